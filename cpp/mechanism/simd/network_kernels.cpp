// The network's kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include "mechanism/simd/network_kernels.hpp"

#include "mechanism/simd/network_contribution-inl.hpp"
#include "mechanism/simd/network_update-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {

extern const NetworkKernelTable kNetworkTable;
const NetworkKernelTable kNetworkTable = {DPINFER_VARIANT_NAME, contribution, update};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT
