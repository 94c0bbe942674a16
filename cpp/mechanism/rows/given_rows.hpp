// Contributions that were computed elsewhere: a block of rows, each a record's own vector.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mechanism/sum/contributions.hpp"

namespace dpinfer {

template <typename Scalar>
class GivenRows final : public Contributions {
 public:
  // values: rows of `length` numbers; scale: as many that each row is multiplied by, or null.  Both must outlive this.
  GivenRows(const Scalar* values, int length, const double* scale = nullptr)
      : values_(values), scale_(scale), length_(length) {}

  int length() const override { return length_; }
  int scratch_length() const override { return 0; }
  void contribution(std::int64_t i, double*, double* out) const noexcept override {
    const Scalar* const row = values_ + i * length_;
    if (scale_ == nullptr) {
      std::copy_n(row, length_, out);
    } else {
      for (int j = 0; j < length_; ++j) out[j] = row[j] * scale_[j];
    }
  }

 private:
  const Scalar* values_;
  const double* scale_;
  int length_;
};

}  // namespace dpinfer
