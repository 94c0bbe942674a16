// What turns private rows into lattice integers: the one thing that a new mechanism brings to a private sum.
#pragma once

#include <cstdint>

namespace dpinfer {

// Rows that a kernel adds at once.  Those listed from `rows` on up to `available` come next: they may be fetched ahead.
struct RowBatch {
  const std::int64_t* rows;
  int count;
  int available;
};

// Each record contributes an integer vector k with |k| <= C / g (lattice.hpp) that is a function of that record and of
// public numbers alone, and zero where it is not finite.  Nothing else is asked: any batches, in any order, on any
// threads, then give the same sum.
class RowKernel {
 public:
  RowKernel() = default;
  RowKernel(const RowKernel&) = default;
  RowKernel& operator=(const RowKernel&) = default;
  virtual ~RowKernel() = default;

  virtual int length() const = 0;  // integers that are released, at most kMaxLatticeDimension
  // Integers that a thread adds to, and doubles that it works in.
  virtual int sums_length() const { return length(); }
  virtual int scratch_length() const = 0;
  // Adds the vectors of a batch to `sums` (two's complement, wrapping).  Called concurrently.
  virtual void add(const RowBatch& batch, double* scratch, std::uint64_t* sums) const noexcept = 0;
  // Adds `sums`, those of all threads, to the length() integers of `total`.
  virtual void collect(const std::uint64_t* sums, std::uint64_t* total) const noexcept {
    for (int j = 0; j < length(); ++j) total[j] += sums[j];
  }
};

}  // namespace dpinfer
