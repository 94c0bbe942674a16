#include "mechanism/rows/glm_rows.hpp"

#include <cstddef>
#include <numeric>

namespace dpinfer {

void GlmRows::collect(const std::uint64_t* sums, std::uint64_t* total) const noexcept {
  const bool narrow = task_.is_narrow();
  const auto at = [&](int index) {
    if (!narrow) return sums[index];
    const std::uint64_t* lanes = sums + static_cast<std::ptrdiff_t>(index) * kRowGroup;
    return std::accumulate(lanes, lanes + kRowGroup, std::uint64_t{0});
  };
  const int raw = narrow ? task_.n_coef : task_.n_pad;
  const int extra = narrow ? 2 * task_.n_coef : task_.gradient_length() - kRowGroup;
  for (int j = 0; j < task_.n_coef; ++j) *total++ += at(j);
  if (task_.has_dispersion) *total++ += at(extra);
  if (!task_.has_raw) return;
  for (int j = 0; j < task_.n_coef; ++j) *total++ += at(raw + j);
  if (task_.has_dispersion) *total++ += at(extra + 1);
}

}  // namespace dpinfer
