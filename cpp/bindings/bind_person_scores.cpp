#include <pybind11/stl.h>

#include <optional>
#include <vector>

#include "bindings/array_arguments.hpp"
#include "bindings/random_key.hpp"
#include "mechanism/rows/person_scores.hpp"

namespace py = pybind11;
using namespace dpinfer;
using namespace dpinfer::bindings;

namespace {

PersonFamily person_family(const std::string& name) {
  if (name == "gaussian") return PersonFamily::gaussian;
  if (name == "binomial") return PersonFamily::binomial;
  if (name == "probit") return PersonFamily::probit;
  if (name == "poisson") return PersonFamily::poisson;
  if (name == "negativebinomial") return PersonFamily::negative_binomial;
  throw py::value_error("family must be one of persons' likelihoods");
}

PersonModel make_person_model(const std::string& family, std::int64_t max_rows, std::int64_t n_columns,
                              std::int64_t slope, std::vector<double> nodes, std::vector<double> weights) {
  if (max_rows < 1 || n_columns < 0 || slope < -1 || slope >= n_columns) {
    throw py::value_error("max_rows, n_columns and slope must be places in a person's rows");
  }
  if (nodes.empty() || nodes.size() != weights.size()) throw py::value_error("nodes must have weights");
  return {person_family(family), max_rows, n_columns, slope, std::move(nodes), std::move(weights)};
}

// Flat: coefficients, the scale, the covariance.
PersonParameters person_parameters(const PersonModel& model, const char* name, const Array<double>& flat_values) {
  const std::int64_t n_coef = model.n_columns + 1;
  const auto values = flat(name, flat_values, n_coef + 4);
  PersonParameters found{};
  found.coef.assign(values.begin(), values.begin() + n_coef);
  found.scale = values[static_cast<std::size_t>(n_coef)];
  for (std::size_t k = 0; k < 3; ++k) found.covariance[k] = values[static_cast<std::size_t>(n_coef) + 1 + k];
  return found;
}

py::array_t<double> scores_of_persons(const PersonModel& model, const Array<double>& point, const Array<double>& truth,
                                      const Array<double>& transform, const Array<double>& features,
                                      const std::optional<Array<double>>& responses, const Array<std::uint64_t>& seeds,
                                      std::uint64_t stream, std::int64_t n_draws, int n_threads) {
  const std::int64_t n = model.n_scores(), width = 1 + model.max_rows * model.n_columns;
  if (features.ndim() != 2 || features.shape(1) != width) throw py::value_error("features must be those of persons");
  if (transform.ndim() != 2 || transform.shape(1) != n) throw py::value_error("transform must have a column a score");
  if (n_draws < 0) throw py::value_error("n_draws must be a number of them");
  const std::int64_t n_persons = features.shape(0), n_out = transform.shape(0);
  const PersonParameters at = person_parameters(model, "point", point), from = person_parameters(model, "truth", truth);
  const auto seen = flat("seeds", seeds, 2 * n_persons);
  const auto applied = flat("transform", transform, n_out * n);
  const double* observed = nullptr;
  if (responses) observed = flat("responses", *responses, n_persons * model.max_rows).data();
  py::array_t<double> result({n_out, n_draws + (responses ? 1 : 0), n_persons});
  kernels();  // refuses an unknown variant
  double* found = result.mutable_data();
  const double* rows = aligned_data("features", features);
  {
    py::gil_scoped_release release;
    person_scores(*person_kernel_table(), model, at, from, applied, rows, observed, seen.data(), stream, n_draws,
                  n_persons, n_threads, found);
  }
  return result;
}

}  // namespace

void bind_person_scores(py::module_& module) {
  py::class_<PersonModel>(module, "PersonModel", py::module_local())
      .def(py::init(&make_person_model), py::kw_only(), "family"_a, "max_rows"_a, "n_columns"_a, "slope"_a, "nodes"_a,
           "weights"_a)
      .def("scores", &scores_of_persons, StandardArithmetic(), py::kw_only(), exact("point"), exact("truth"),
           exact("transform"), exact("features"), exact("responses") = py::none(), exact("seeds"), "stream"_a,
           "n_draws"_a, "n_threads"_a = 1);
}
