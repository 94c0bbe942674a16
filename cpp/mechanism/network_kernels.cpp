// The network's kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include "mechanism/network_kernels.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/simd.hpp"
#include "common/special.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {
namespace {

// clang-format off
#include "mechanism/network_moments.inc"
#include "mechanism/network_contribution.inc"
#include "mechanism/network_update.inc"
// clang-format on

}  // namespace

extern const NetworkKernelTable kNetworkTable;
const NetworkKernelTable kNetworkTable = {DPINFER_VARIANT_NAME, contribution, update};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT
