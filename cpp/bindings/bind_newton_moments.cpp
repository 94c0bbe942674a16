#include <omp.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/scipy_lapack.hpp"
#include "common/aligned.hpp"
#include "common/parallel.hpp"
#include "inference/newton_moments.hpp"

namespace py = pybind11;
using namespace dpinfer::inference;
using dpinfer::bindings::Array;
using dpinfer::bindings::flat;

namespace {

using Span = std::span<const double>;

constexpr int kMostLeaps = 1000;
constexpr py::ssize_t kFewFeatures = 24;

// The released matrices of B chains, which outlive it: the arrays are kept.
class NewtonMoments {
 public:
  NewtonMoments(Array<double> noisy, Array<double> precision, Array<double> prior_factor, Array<double> to_declared,
                Array<double> diagonal, Array<double> diagonal_precision, const Array<double>& prior,
                Array<double> concentrations, Array<double> locations, int threads)
      : noisy_(std::move(noisy)),
        precision_(std::move(precision)),
        prior_factor_(std::move(prior_factor)),
        to_declared_(std::move(to_declared)),
        diagonal_(std::move(diagonal)),
        diagonal_precision_(std::move(diagonal_precision)),
        concentrations_(std::move(concentrations)),
        locations_(std::move(locations)),
        threads_(threads) {
    if (threads_ < 0) throw py::value_error("threads must not be negative");
    if (noisy_.ndim() != 3 || noisy_.shape(1) != noisy_.shape(2) || noisy_.shape(1) < 1) {
      throw py::value_error("noisy must be (B, d, d)");
    }
    const Span numbers = flat("prior", prior, 5);
    const auto [values, weights] = pairs("concentrations", concentrations_);
    const auto [rates, rate_weights] = pairs("locations", locations_);
    prior_ = {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], values, weights, rates, rate_weights};
    chains_ = noisy_.shape(0);
    d_ = noisy_.shape(1);
    declared_ = to_declared_.size() > 0;
    flat("noisy", noisy_, chains_ * d_ * d_);
    flat("precision", precision_, chains_);
    flat("prior_factor", prior_factor_, chains_ * d_ * d_);
    flat("to_declared", to_declared_, declared_ ? chains_ * d_ * d_ : 0);
    flat("diagonal", diagonal_, declared_ ? chains_ * d_ : 0);
    flat("diagonal_precision", diagonal_precision_, declared_ ? chains_ * d_ : 0);
  }

  py::tuple density(const Array<double>& points, const py::tuple& scores) const {
    const Scores given(scores, chains_, d_);
    const MomentsShape shape = shape_of(points);
    py::array_t<double> value(chains_);
    py::array_t<double> gradient({chains_, points.shape(1)});
    const std::size_t all = shape.coordinates();
    const double* from = flat("points", points, points.size()).data();
    double* values = value.mutable_data();
    double* gradients = gradient.mutable_data();
    each_chain(shape, given.steps, 0, [&](std::size_t c, const Lapack& lapack, std::span<double> work) {
      values[c] = moments_density(lapack, shape, prior_, released(c), given.of(c), {from + c * all, all},
                                  {gradients + c * all, all}, work);
    });
    return py::make_tuple(value, gradient);
  }

  py::tuple leapfrog(const Array<double>& points, const Array<double>& momenta, const Array<double>& steps,
                     const Array<double>& scales, int leaps, const py::tuple& scores) const {
    const Scores given(scores, chains_, d_);
    const MomentsShape shape = shape_of(points);
    const std::size_t all = shape.coordinates();
    const Span push = flat("momenta", momenta, points.size());
    const Span step = flat("steps", steps, chains_);
    const Span scale = flat("scales", scales, points.size());
    if (leaps < 1 || leaps > kMostLeaps) throw py::value_error("leaps must be in 1, ..., 1000");
    py::array_t<double> moved({points.shape(0), points.shape(1)});
    py::array_t<double> change(chains_);
    double* to = moved.mutable_data();
    double* changes = change.mutable_data();
    const Span from = flat("points", points, points.size());
    std::copy(from.begin(), from.end(), to);
    each_chain(shape, given.steps, all, [&](std::size_t c, const Lapack& lapack, std::span<double> work) {
      const std::span<double> momentum = work.first(all);
      std::copy(push.begin() + c * all, push.begin() + (c + 1) * all, momentum.begin());
      changes[c] =
          moments_leapfrog(lapack, shape, prior_, released(c), given.of(c), static_cast<std::size_t>(leaps), step[c],
                           scale.subspan(c * all, all), {to + c * all, all}, momentum, work.subspan(all));
    });
    return py::make_tuple(moved, change);
  }

  py::tuple step(const Array<double>& points, const Array<double>& momenta, const Array<double>& sizes,
                 const Array<double>& scales, const Array<double>& numbers, const Array<double>& uniforms, int leaps,
                 int follows, const py::tuple& scores) const {
    const Scores given(scores, chains_, d_);
    const MomentsShape shape = shape_of(points);
    const std::size_t all = shape.coordinates();
    const Span push = flat("momenta", momenta, points.size());
    const Span size = flat("sizes", sizes, chains_);
    const Span scale = flat("scales", scales, points.size());
    const Span uniform = flat("uniforms", uniforms, chains_);
    if (leaps < 1 || leaps > kMostLeaps) throw py::value_error("leaps must be in 1, ..., 1000");
    if (follows < 0 || follows > kMostLeaps) throw py::value_error("follows must be in 0, ..., 1000");
    if (numbers.ndim() != 3 || numbers.shape(2) != static_cast<py::ssize_t>(regroup_numbers(shape)) ||
        numbers.shape(1) % 2 != 0) {
      throw py::value_error("numbers must be (B, 2 P, d + 4)");
    }
    const std::size_t each = static_cast<std::size_t>(numbers.shape(1) * numbers.shape(2));
    const Span drawn = flat("numbers", numbers, chains_ * numbers.shape(1) * numbers.shape(2));
    py::array_t<double> moved({points.shape(0), points.shape(1)});
    py::array_t<double> rate(chains_);
    double* to = moved.mutable_data();
    double* rates = rate.mutable_data();
    const Span from = flat("points", points, points.size());
    std::copy(from.begin(), from.end(), to);
    each_chain(shape, given.steps, all, [&](std::size_t c, const Lapack& lapack, std::span<double> work) {
      const std::span<double> momentum = work.first(all);
      std::copy(push.begin() + c * all, push.begin() + (c + 1) * all, momentum.begin());
      const MomentsStep one{static_cast<std::size_t>(leaps), static_cast<std::size_t>(follows), size[c],
                            scale.subspan(c * all, all), uniform[c]};
      rates[c] = moments_step(lapack, shape, prior_, released(c), given.of(c), one, drawn.subspan(c * each, each),
                              {to + c * all, all}, momentum, work.subspan(all));
    });
    return py::make_tuple(moved, rate);
  }

 private:
  // Calls each(chain, lapack, work) for every chain, the chains shared out over the threads; the work arrays have
  // `more` doubles beyond what the kernels need.
  template <typename Each>
  void each_chain(const MomentsShape& shape, std::size_t steps, std::size_t more, Each each) const {
    const Lapack& lapack = dpinfer::bindings::scipy_lapack();
    py::gil_scoped_release unlocked;
    // Below so many features a step of all chains takes less than threads take to meet.
    const int most = d_ > kFewFeatures ? dpinfer::resolve_threads(threads_) : 1;
    const int team = static_cast<int>(std::min<py::ssize_t>(most, chains_));
    const std::size_t size = moments_work_size(shape, steps) + more;
    std::vector<dpinfer::AlignedVector<double>> works;
    for (int thread = 0; thread < team; ++thread) works.emplace_back(size);
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (team > 1)
    for (py::ssize_t c = 0; c < chains_; ++c) {
      auto& work = works[static_cast<std::size_t>(omp_get_thread_num())];
      each(static_cast<std::size_t>(c), lapack, std::span<double>(work.data(), work.size()));
    }
  }

  // (2, n): values and their weights.
  static std::pair<Span, Span> pairs(const char* name, const Array<double>& array) {
    if (array.ndim() != 2 || array.shape(0) != 2 || array.shape(1) < 1) {
      throw py::value_error(std::string(name) + " must be (2, n)");
    }
    const Span both = flat(name, array, array.size());
    return {both.first(both.size() / 2), both.last(both.size() / 2)};
  }

  // (precision, deviation, moved, total, mean_score, mean_position, sampling, prior_variance)
  struct Scores {
    Scores(const py::tuple& parts, py::ssize_t chains, py::ssize_t d) : width(static_cast<std::size_t>(d)) {
      if (parts.size() != 8) throw py::value_error("scores must be eight arrays");
      for (const py::handle part : parts) arrays.push_back(part.cast<Array<double>>());
      if (arrays[0].ndim() != 2) throw py::value_error("precision must be (B, T)");
      const py::ssize_t count = arrays[0].shape(1);
      steps = static_cast<std::size_t>(count);
      const py::ssize_t sizes[] = {count, count * d, count * d, 1, d, d, 1, 1};
      for (std::size_t k = 0; k < 8; ++k) spans.push_back(flat("scores", arrays[k], chains * sizes[k]));
    }

    LinearScores of(std::size_t c) const {
      return {steps,
              spans[0].data() + c * steps,
              spans[1].data() + c * steps * width,
              spans[2].data() + c * steps * width,
              spans[4].data() + c * width,
              spans[5].data() + c * width,
              spans[3][c],
              spans[6][c],
              spans[7][c]};
    }

    std::size_t width;
    std::size_t steps = 0;
    std::vector<Array<double>> arrays;
    std::vector<Span> spans;
  };

  MomentsShape shape_of(const Array<double>& points) const {
    if (points.ndim() != 2 || points.shape(0) != chains_) throw py::value_error("points must be (B, n)");
    const py::ssize_t rest = points.shape(1) - d_ * d_;
    if (rest < 0 || rest % (d_ + 1) != 0) throw py::value_error("points must be (B, d d + m d + m)");
    if (rest / (d_ + 1) > static_cast<py::ssize_t>(kMostFlattened)) {
      throw py::value_error("points must have at most 8 directions");
    }
    return {static_cast<std::size_t>(d_), static_cast<std::size_t>(rest / (d_ + 1))};
  }

  ReleasedMoments released(std::size_t c) const {
    const auto d = static_cast<std::size_t>(d_);
    return {noisy_.data() + c * d * d,
            precision_.data()[c],
            prior_factor_.data() + c * d * d,
            declared_ ? to_declared_.data() + c * d * d : nullptr,
            declared_ ? diagonal_.data() + c * d : nullptr,
            declared_ ? diagonal_precision_.data() + c * d : nullptr};
  }

  Array<double> noisy_;
  Array<double> precision_;
  Array<double> prior_factor_;
  Array<double> to_declared_;
  Array<double> diagonal_;
  Array<double> diagonal_precision_;
  Array<double> concentrations_;
  Array<double> locations_;
  int threads_;
  MomentsPrior prior_{};
  py::ssize_t chains_ = 0;
  py::ssize_t d_ = 0;
  bool declared_ = false;
};

}  // namespace

void bind_newton_moments(py::module_& module) {
  py::class_<NewtonMoments>(module, "NewtonMoments")
      .def(py::init<Array<double>, Array<double>, Array<double>, Array<double>, Array<double>, Array<double>,
                    const Array<double>&, Array<double>, Array<double>, int>(),
           py::arg("noisy").noconvert(), py::arg("precision").noconvert(), py::arg("prior_factor").noconvert(),
           py::arg("to_declared").noconvert(), py::arg("diagonal").noconvert(),
           py::arg("diagonal_precision").noconvert(), py::arg("prior").noconvert(),
           py::arg("concentrations").noconvert(), py::arg("locations").noconvert(), py::arg("threads"))
      .def("density", &NewtonMoments::density, py::arg("points").noconvert(), py::arg("scores"))
      .def("leapfrog", &NewtonMoments::leapfrog, py::arg("points").noconvert(), py::arg("momenta").noconvert(),
           py::arg("steps").noconvert(), py::arg("scales").noconvert(), py::arg("leaps"), py::arg("scores"))
      .def("step", &NewtonMoments::step, py::arg("points").noconvert(), py::arg("momenta").noconvert(),
           py::arg("sizes").noconvert(), py::arg("scales").noconvert(), py::arg("numbers").noconvert(),
           py::arg("uniforms").noconvert(), py::arg("leaps"), py::arg("follows"), py::arg("scores"));
}
