// Sums of clipped, rounded gradients of any number of rows: one row per lane where rows are short, else row by row.
#pragma once

#include <cstdint>

#include "mechanism/simd/factored_rows-inl.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/simd/narrow_rows-inl.hpp"
#include "mechanism/simd/wide_rows-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

void clipped_rows(const GradientTask& task, const std::int64_t* rows, int count, int available, double* scratch,
                  std::uint64_t* sums) {
  if (task.is_narrow()) {
    narrow_rows(task, rows, count, available, scratch, sums);
    return;
  }
  auto add = task.records.is_float32 ? wide_group<float> : wide_group<double>;
  if (task.is_factored()) {
    if (task.records.is_float32) {
      add = task.uniform_loc_scale ? factored_group<float, true> : factored_group<float, false>;
    } else {
      add = task.uniform_loc_scale ? factored_group<double, true> : factored_group<double, false>;
    }
  }
  for (int i = 0; i < count; i += kRowGroup) {
    const int here = count - i < kRowGroup ? count - i : kRowGroup;
    const int left = available - i - here;
    add(task, rows + i, here, rows + i + here, left < kRowGroup ? left : kRowGroup, scratch, sums);
  }
}

}  // namespace
}  // namespace dpinfer::DPINFER_SIMD_VARIANT
