#include <algorithm>
#include <string>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "mechanism/poisson_sample.hpp"
#include "mechanism/rounded_gaussian.hpp"
#include "mechanism/sum/lattice.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

namespace {

py::bytes native_keystream(const py::bytes& key, int domain, std::uint64_t step, std::uint32_t counter, int n_blocks) {
  if (domain < 1 || domain > 5) throw py::value_error("domain must be in 1..5, got " + std::to_string(domain));
  if (n_blocks < 0) throw py::value_error("n_blocks must be at least 0, got " + std::to_string(n_blocks));
  std::string out(static_cast<std::size_t>(n_blocks) * kChaChaBlockBytes, '\0');
  keystream(kernels(), random_key(key), static_cast<RandomDomain>(domain), step, counter,
            static_cast<std::size_t>(n_blocks), reinterpret_cast<std::uint8_t*>(out.data()));
  return py::bytes(out);
}

py::array_t<double> native_normals(const py::bytes& key, std::uint64_t step, py::ssize_t n) {
  if (n < 0) throw py::value_error("n must be at least 0, got " + std::to_string(n));
  py::array_t<double> out(n);
  standard_normals(kernels(), random_key(key), RandomDomain::monte_carlo, step, static_cast<std::size_t>(n),
                   out.mutable_data());
  return out;
}

void check_noise(double stddev, py::ssize_t n) {
  if (!(stddev > 0.0 && stddev <= kMaxLatticeStddev)) throw py::value_error("stddev must be in (0, 1e17]");
  if (n < 0 || n > kMaxLatticeDimension) throw py::value_error("n must be in [0, 2**20], got " + std::to_string(n));
}

py::tuple native_rounded_gaussian(const py::bytes& key, std::uint64_t step, double stddev, py::ssize_t n) {
  check_noise(stddev, n);
  const RandomKey parsed = random_key(key);
  py::array_t<std::int64_t> out(n);
  std::fill_n(out.mutable_data(), n, std::int64_t{0});
  const std::int64_t n_exact =
      add_rounded_gaussian(kernels(), parsed, step, stddev, static_cast<int>(n), out.mutable_data());
  return py::make_tuple(out, n_exact);
}

py::array_t<std::int64_t> native_exact_rounded_gaussian(const py::bytes& key, std::uint64_t step, double stddev,
                                                        py::ssize_t n) {
  check_noise(stddev, n);
  py::array_t<std::int64_t> out(n);
  exact_rounded_gaussian(kernels(), random_key(key), step, stddev, static_cast<int>(n), out.mutable_data());
  return out;
}

py::array_t<double> native_box_muller(const Array<std::uint64_t>& words) {
  if (words.ndim() != 1 || words.size() % 16 != 0) throw py::value_error("words must be (16 n,)");
  py::array_t<double> out(words.size());
  kernels().box_muller(words.data(), static_cast<std::size_t>(words.size()) / 2, out.mutable_data());
  return out;
}

py::array_t<std::int64_t> native_poisson_sample(const py::bytes& key, std::uint64_t step, double sample_rate,
                                                std::int64_t n_rows) {
  if (!(sample_rate >= 0.0 && sample_rate <= 1.0)) throw py::value_error("sample_rate must be in [0, 1]");
  if (n_rows < 0 || n_rows > (std::int64_t{1} << 31)) throw py::value_error("n_rows must be in [0, 2**31]");
  const RandomKey parsed = random_key(key);
  const auto threshold = SampleThreshold::from_rate(sample_rate);
  std::vector<std::int64_t> rows;
  std::int64_t found[kRowBlock];
  for (std::int64_t block = 0; block * kRowBlock < n_rows; ++block) {
    const int count = poisson_sample(kernels(), parsed, step, block, n_rows, threshold, found);
    rows.insert(rows.end(), found, found + count);
  }
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(rows.size()), rows.data());
}

}  // namespace

void bind_random_source(py::module_& module) {
  module.def("simd_variant", [] { return std::string(kernels().name); });
  module.def("keystream", &native_keystream, StandardArithmetic(), "key"_a, "domain"_a, "step"_a, "counter"_a,
             "n_blocks"_a);
  module.def("monte_carlo_normals", &native_normals, StandardArithmetic(), "key"_a, "step"_a, "n"_a);
  module.def("rounded_gaussian", &native_rounded_gaussian, StandardArithmetic(), "key"_a, "step"_a, "stddev"_a, "n"_a);
  module.def("exact_rounded_gaussian", &native_exact_rounded_gaussian, StandardArithmetic(), "key"_a, "step"_a,
             "stddev"_a, "n"_a);
  module.def("box_muller", &native_box_muller, StandardArithmetic(), exact("words"));
  module.def("poisson_sample", &native_poisson_sample, StandardArithmetic(), "key"_a, "step"_a, "sample_rate"_a,
             "n_rows"_a);
}
