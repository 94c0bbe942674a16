#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/scipy_lapack.hpp"
#include "inference/moments_chains.hpp"

namespace py = pybind11;
using namespace dpinfer::inference;
using dpinfer::bindings::Array;
using dpinfer::bindings::flat;

namespace {

template <typename Scalar>
std::vector<Scalar> copied(const char* name, const py::dict& from, std::size_t length) {
  const auto array = from[name].cast<Array<Scalar>>();
  const auto values = flat(name, array, static_cast<py::ssize_t>(length));
  return {values.begin(), values.end()};
}

std::size_t length_of(const char* name, const py::dict& from) {
  return static_cast<std::size_t>(from[name].cast<Array<double>>().size());
}

void require(bool holds, const char* message) {
  if (!holds) throw py::value_error(message);
}

std::unique_ptr<MomentsChains> make_chains(const py::dict& law, const py::dict& scores, const Array<double>& frames,
                                           const Array<std::int64_t>& level, const Array<std::int64_t>& spread,
                                           std::uint64_t seed) {
  MomentsProblem problem;
  const std::size_t d = problem.width = length_of("eigenvalues", law);
  require(frames.ndim() == 3 && static_cast<std::size_t>(frames.shape(2)) == d, "frames must be (chains, k, d)");
  const std::size_t m = problem.flattened = static_cast<std::size_t>(frames.shape(1));
  require(d > 0 && m <= kMostFlattened && m < d, "too many flattened directions");
  const std::size_t levels = length_of("levels", law);
  const std::size_t steps = length_of("precision", scores);
  problem.noise = law["noise"].cast<double>();
  problem.unit = law["unit"].cast<double>();
  problem.low = law["low"].cast<double>();
  problem.high = law["high"].cast<double>();
  problem.eigenvalues = copied<double>("eigenvalues", law, d);
  problem.levels = copied<double>("levels", law, levels);
  problem.log_prior = copied<double>("log_prior", law, levels);
  problem.spreads = copied<double>("spreads", law, length_of("spreads", law));
  problem.proposals = copied<double>("proposals", law, length_of("proposals", law));
  require(!problem.proposals.empty() && problem.proposals.size() % (3 * d * d) == 0, "proposals must be (p, 3, d, d)");
  problem.score = copied<double>("score", scores, d);
  problem.position = copied<double>("position", scores, d);
  problem.prior = copied<double>("prior", scores, d * d);
  problem.prior_factor = copied<double>("prior_factor", scores, d * d);
  problem.score_noise = scores["noise"].cast<double>();
  problem.sampling = scores["sampling"].cast<double>();
  problem.precision = copied<double>("precision", scores, steps);
  problem.away_score = copied<double>("away_score", scores, steps * d);
  problem.away_position = copied<double>("away_position", scores, steps * d);
  const auto chains = static_cast<std::size_t>(frames.shape(0));
  const auto at = flat("frames", frames, frames.size());
  const auto first = flat("level", level, static_cast<py::ssize_t>(chains * m));
  const auto wide = flat("spread", spread, static_cast<py::ssize_t>(chains));
  const MomentsStart start{{at.begin(), at.end()}, {first.begin(), first.end()}, {wide.begin(), wide.end()}};
  for (const auto index : start.level) {
    require(index >= 0 && static_cast<std::size_t>(index) < levels, "level must be a number of a level");
  }
  for (const auto index : start.spread) {
    require(index >= 0 && static_cast<std::size_t>(index) < problem.spreads.size(),
            "spread must be a number of a spread");
  }
  return std::make_unique<MomentsChains>(dpinfer::bindings::scipy_lapack(), std::move(problem), start, seed);
}

py::array_t<double> chain_moments(const MomentsChains& chains) {
  const auto size = static_cast<py::ssize_t>(chains.size());
  const auto width = static_cast<py::ssize_t>(chains.width());
  py::array_t<double> out({size, width, width});
  chains.moments({out.mutable_data(), static_cast<std::size_t>(out.size())});
  return out;
}

py::array_t<double> chain_densities(const MomentsChains& chains) {
  py::array_t<double> out(static_cast<py::ssize_t>(chains.size()));
  chains.log_density({out.mutable_data(), chains.size()});
  return out;
}

}  // namespace

void bind_moments_chains(py::module_& module) {
  py::class_<MomentsChains>(module, "MomentsChains")
      .def(py::init(&make_chains), py::arg("law"), py::arg("scores"), py::arg("frames").noconvert(),
           py::arg("level").noconvert(), py::arg("spread").noconvert(), py::arg("seed"))
      .def(
          "advance",
          [](MomentsChains& chains, std::size_t alone, std::size_t steps, int threads) {
            py::gil_scoped_release unlocked;
            chains.advance(alone, steps, threads);
          },
          py::arg("alone"), py::arg("steps"), py::arg("n_threads"))
      .def("moments", &chain_moments)
      .def("log_density", &chain_densities);
}
