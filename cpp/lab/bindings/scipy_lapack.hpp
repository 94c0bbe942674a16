// SciPy's LAPACK and BLAS, fetched at run time from the capsules that scipy.linalg publishes for Cython.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "lab/lapack.hpp"

namespace dpinfer::bindings {

// A capsule's name is the C declaration of the routine; it is compared after Cython's names of double are spelt out.
inline std::string plain_signature(std::string_view name) {
  std::string result;
  for (std::size_t i = 0; i < name.size();) {
    if (name.substr(i, 7) == "__pyx_t") {
      std::size_t end = i;
      while (end < name.size() && name[end] != ' ') ++end;
      result += name.substr(i, end - i).ends_with("_dselect2") ? "select" : "double";
      i = end;
    } else {
      result += name[i++];
    }
  }
  return result;
}

template <typename Routine>
void fetch(const char* module, const char* routine, const char* signature, Routine*& out) {
  namespace py = pybind11;
  const py::dict table = py::module_::import(module).attr("__pyx_capi__");
  if (!table.contains(routine)) throw py::import_error(std::string(module) + " has no " + routine);
  const py::object capsule = table[routine];
  const char* name = PyCapsule_GetName(capsule.ptr());
  if (name == nullptr) throw py::error_already_set();
  if (plain_signature(name) != signature) {
    throw py::import_error(std::string(module) + "." + routine + " has another signature: " + name);
  }
  out = reinterpret_cast<Routine*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (out == nullptr) throw py::error_already_set();
}

// Called with the GIL held; the table is filled once.
inline const lab::Lapack& scipy_lapack() {
  static lab::Lapack table{};
  static bool ready = false;
  if (ready) return table;
  constexpr auto* kLapack = "scipy.linalg.cython_lapack";
  constexpr auto* kBlas = "scipy.linalg.cython_blas";
  fetch(kLapack, "dpotrf", "void (char *, int *, double *, int *, int *)", table.dpotrf);
  fetch(kLapack, "dpotri", "void (char *, int *, double *, int *, int *)", table.dpotri);
  fetch(kLapack, "dsyevd",
        "void (char *, char *, int *, double *, int *, double *, double *, int *, int *, int *, int *)", table.dsyevd);
  fetch(kLapack, "dgees",
        "void (char *, char *, select *, int *, double *, int *, int *, double *, double *, double *, int *, double *, "
        "int *, int *, int *)",
        table.dgees);
  fetch(kLapack, "dgesv", "void (int *, int *, double *, int *, int *, double *, int *, int *)", table.dgesv);
  fetch(
      kLapack, "dtrsyl",
      "void (char *, char *, int *, int *, int *, double *, int *, double *, int *, double *, int *, double *, int *)",
      table.dtrsyl);
  fetch(kBlas, "dgemm",
        "void (char *, char *, int *, int *, int *, double *, double *, int *, double *, int *, double *, double *, "
        "int *)",
        table.dgemm);
  fetch(kBlas, "dsyrk", "void (char *, char *, int *, int *, double *, double *, int *, double *, double *, int *)",
        table.dsyrk);
  fetch(kBlas, "dsyr2k",
        "void (char *, char *, int *, int *, double *, double *, int *, double *, int *, double *, double *, int *)",
        table.dsyr2k);
  fetch(kBlas, "dtrmm",
        "void (char *, char *, char *, char *, int *, int *, double *, double *, int *, double *, int *)", table.dtrmm);
  ready = true;
  return table;
}

}  // namespace dpinfer::bindings
