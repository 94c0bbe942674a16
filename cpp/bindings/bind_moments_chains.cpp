#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.hpp"
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

std::unique_ptr<MomentsChains> make_chains(const py::dict& law, const Array<double>& frames,
                                           const Array<std::int64_t>& level, const Array<std::int64_t>& spread,
                                           const Array<double>& error, std::uint64_t seed) {
  MomentsProblem problem;
  const std::size_t d = problem.width = length_of("eigenvalues", law);
  require(frames.ndim() == 3 && static_cast<std::size_t>(frames.shape(2)) == d, "frames must be (chains, k, d)");
  const std::size_t m = problem.flattened = static_cast<std::size_t>(frames.shape(1));
  require(d > 0 && m <= kMostFlattened && m < d, "too many flattened directions");
  problem.noise = law["noise"].cast<double>();
  problem.unit = law["unit"].cast<double>();
  problem.low = law["low"].cast<double>();
  problem.high = law["high"].cast<double>();
  problem.score_noise = law["score_noise"].cast<double>();
  problem.sampling = law["sampling"].cast<double>();
  problem.eigenvalues = copied<double>("eigenvalues", law, d);
  problem.levels = copied<double>("levels", law, length_of("levels", law));
  problem.log_prior = copied<double>("log_prior", law, problem.levels.size());
  problem.spreads = copied<double>("spreads", law, length_of("spreads", law));
  problem.proposals = copied<double>("proposals", law, length_of("proposals", law));
  require(!problem.proposals.empty() && problem.proposals.size() % (3 * d * d) == 0, "proposals must be (p, 3, d, d)");
  problem.score = copied<double>("score", law, d);
  problem.position = copied<double>("position", law, d);
  problem.prior_precision = copied<double>("prior_precision", law, d * d);
  const auto chains = static_cast<std::size_t>(frames.shape(0));
  const auto at = flat("frames", frames, frames.size());
  const auto first = flat("level", level, static_cast<py::ssize_t>(chains * m));
  const auto wide = flat("spread", spread, static_cast<py::ssize_t>(chains));
  const auto off = flat("error", error, static_cast<py::ssize_t>(chains * d));
  std::vector<MomentsState> start(chains);
  for (std::size_t i = 0; i < chains; ++i) {
    auto& state = start[i];
    const auto frame = at.subspan(i * m * d, m * d);
    const auto own = off.subspan(i * d, d);
    state.frame.assign(frame.begin(), frame.end());
    state.error.assign(own.begin(), own.end());
    state.centre = problem.unit;
    require(wide[i] >= 0 && static_cast<std::size_t>(wide[i]) < problem.spreads.size(),
            "spread must be a number of a spread");
    state.spread = static_cast<std::size_t>(wide[i]);
    for (std::size_t k = 0; k < m; ++k) {
      const auto index = first[i * m + k];
      require(index >= 0 && static_cast<std::size_t>(index) < problem.levels.size(),
              "level must be a number of a level");
      state.level[k] = static_cast<std::size_t>(index);
    }
  }
  return std::make_unique<MomentsChains>(std::move(problem), std::move(start), seed);
}

// Frames (chains, k, d), how flat each of their directions is (chains, k), spreads and centres (chains), errors of the
// weights (chains, d) and log densities (chains).
py::tuple chain_states(const MomentsChains& chains) {
  const auto size = static_cast<py::ssize_t>(chains.size());
  const auto& problem = chains.problem();
  const auto d = static_cast<py::ssize_t>(problem.width);
  const auto m = static_cast<py::ssize_t>(problem.flattened);
  py::array_t<double> frames({size, m, d});
  py::array_t<double> levels({size, m});
  py::array_t<double> spreads(size);
  py::array_t<double> centres(size);
  py::array_t<double> errors({size, d});
  py::array_t<double> densities(size);
  for (py::ssize_t i = 0; i < size; ++i) {
    const auto& state = chains.state(static_cast<std::size_t>(i));
    std::copy(state.frame.begin(), state.frame.end(), frames.mutable_data() + i * m * d);
    std::copy(state.error.begin(), state.error.end(), errors.mutable_data() + i * d);
    for (py::ssize_t k = 0; k < m; ++k) {
      levels.mutable_at(i, k) = problem.levels[state.level[static_cast<std::size_t>(k)]];
    }
    spreads.mutable_at(i) = problem.spreads[state.spread];
    centres.mutable_at(i) = state.centre;
    densities.mutable_at(i) = chains.log_density(static_cast<std::size_t>(i));
  }
  return py::make_tuple(frames, levels, spreads, centres, errors, densities);
}

}  // namespace

void bind_moments_chains(py::module_& module) {
  py::class_<MomentsChains>(module, "MomentsChains")
      .def(py::init(&make_chains), py::arg("law"), py::arg("frames").noconvert(), py::arg("level").noconvert(),
           py::arg("spread").noconvert(), py::arg("error").noconvert(), py::arg("seed"))
      .def(
          "advance",
          [](MomentsChains& chains, std::size_t sweeps, int threads) {
            py::gil_scoped_release unlocked;
            chains.advance(sweeps, threads);
          },
          py::arg("sweeps"), py::arg("n_threads"))
      .def("states", &chain_states);
}
