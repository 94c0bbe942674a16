// The switches of the test-only module.
#include <pybind11/pybind11.h>

#include <string>

#include "mechanism/mutants.hpp"

namespace py = pybind11;
using dpinfer::mutants::Mutant;

namespace {

py::tuple names() {
  py::list all;
  for (int i = 1; i < static_cast<int>(Mutant::count); ++i) {
    all.append(dpinfer::mutants::mutant_name(static_cast<Mutant>(i)));
  }
  return py::tuple(all);
}

void activate(const std::string& name) {
  for (int i = 0; i < static_cast<int>(Mutant::count); ++i) {
    if (name == dpinfer::mutants::mutant_name(static_cast<Mutant>(i))) {
      dpinfer::mutants::activate(static_cast<Mutant>(i));
      return;
    }
  }
  throw py::value_error("no mutant is called " + name);
}

}  // namespace

void bind_mutants(py::module_& module) {
  module.attr("mutants") = names();
  module.def("activate_mutant", &activate, py::arg("name"));
}
