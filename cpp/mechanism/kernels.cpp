// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/simd.hpp"
#include "common/simd_transpose.hpp"
#include "common/special.hpp"
#include "mechanism/kernel_table.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// Parts of this file, one concept each.
// clang-format off
#include "mechanism/chacha20_lanes.inc"
#include "mechanism/normal_lanes.inc"
#include "mechanism/row_masks.inc"
#include "mechanism/record_rows.inc"
#include "mechanism/slopes.inc"
#include "mechanism/wide_rows.inc"
#include "mechanism/factored_rows.inc"
#include "mechanism/narrow_rows.inc"
#include "mechanism/clipped_rows.inc"
#include "mechanism/affine_rows.inc"
#include "mechanism/clipped_vector.inc"
// clang-format on

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {DPINFER_VARIANT_NAME, chacha20_blocks, threshold_masks, list_rows,      box_muller,
                            round_normals,        clipped_rows,    affine_rows,     clipped_vector, plain_vector};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT
