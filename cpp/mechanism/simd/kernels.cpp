// The kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include "mechanism/simd/affine_rows-inl.hpp"
#include "mechanism/simd/chacha20_lanes-inl.hpp"
#include "mechanism/simd/clipped_rows-inl.hpp"
#include "mechanism/simd/clipped_vector-inl.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/simd/normal_lanes-inl.hpp"
#include "mechanism/simd/regression_rows-inl.hpp"
#include "mechanism/simd/row_masks-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {

extern const KernelTable kTable;
const KernelTable kTable = {DPINFER_VARIANT_NAME, chacha20_blocks, threshold_masks, list_rows,
                            box_muller,           round_normals,   clipped_rows,    affine_rows,
                            clipped_vector,       regression_rows, plain_vector};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT
