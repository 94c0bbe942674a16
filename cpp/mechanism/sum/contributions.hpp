// Contributions that any code may compute, one record at a time, as a row kernel: clipped and rounded here.
//
// What computes them cannot widen the sensitivity: its numbers are clipped and rounded by clipped_vector-inl.hpp, so
// that one record's integer vector k has |k| <= C / g whatever they are.  Adding or removing a record moves the sum by
// at most C, replacing one by at most 2 C (from one clipped vector to another).  Proof:
// docs/derivations/private-sum.md.
#pragma once

#include <cstdint>
#include <span>

#include "common/aligned.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/sum/lattice.hpp"
#include "mechanism/sum/row_kernel.hpp"

namespace dpinfer {

class Contributions {
 public:
  Contributions() = default;
  Contributions(const Contributions&) = default;
  Contributions& operator=(const Contributions&) = default;
  virtual ~Contributions() = default;

  virtual int length() const = 0;          // doubles in a contribution, at most kMaxLatticeDimension
  virtual int scratch_length() const = 0;  // doubles of scratch, per thread
  // Writes record i's contribution before clipping: a function of record i and the public state only.  Called
  // concurrently; never throws.
  virtual void contribution(std::int64_t i, double* scratch, double* out) const noexcept = 0;
};

// Refers to the table and the contributions, which must outlive it.
class ClippedContributions final : public RowKernel {
 public:
  ClippedContributions(const KernelTable& kernels, const Contributions& contributions, const Lattice& lattice)
      : kernels_(kernels),
        contributions_(contributions),
        inverse_step_(1.0 / lattice.step),
        clip_norm_(lattice.clip_norm / lattice.step) {}

  int length() const override { return contributions_.length(); }
  int sums_length() const override { return padded_length(); }
  int scratch_length() const override { return padded_length() + kRowGroup + contributions_.scratch_length(); }
  void add(const RowBatch& batch, double* scratch, std::uint64_t* sums) const noexcept override;

 private:
  int padded_length() const { return (contributions_.length() + kRowGroup - 1) / kRowGroup * kRowGroup; }

  const KernelTable& kernels_;
  const Contributions& contributions_;
  double inverse_step_, clip_norm_;
};

// Not private: float64 sums without noise over the rows row_at(0) ... row_at(n_rows - 1) of contributions clipped to
// max_norm (pass infinity for none).  A contribution that is not finite adds zero.  Rows are added in a fixed tree, so
// that the bits do not depend on the number of threads.
void plain_sum(const KernelTable& kernels, const Contributions& contributions, std::int64_t n_rows, double max_norm,
               int n_threads, std::span<double> sum);
void plain_sum(const KernelTable& kernels, const Contributions& contributions, std::span<const std::int64_t> rows,
               double max_norm, int n_threads, std::span<double> sum);

}  // namespace dpinfer
