// Contributions that were computed elsewhere: a block of rows, each a record's own vector.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mechanism/sum/contributions.hpp"

namespace dpinfer {

template <typename Scalar>
class GivenRows final : public Contributions {
 public:
  // values: rows of `length` numbers, which must outlive this.
  GivenRows(const Scalar* values, int length) : values_(values), length_(length) {}

  int length() const override { return length_; }
  int scratch_length() const override { return 0; }
  void contribution(std::int64_t i, double*, double* out) const noexcept override {
    std::copy_n(values_ + i * length_, length_, out);
  }

 private:
  const Scalar* values_;
  int length_;
};

}  // namespace dpinfer
