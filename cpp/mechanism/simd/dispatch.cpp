#include "common/simd_dispatch.hpp"
#include "mechanism/simd/kernel_table.hpp"
#include "mechanism/simd/network_kernels.hpp"
#include "mechanism/simd/person_kernels.hpp"

DPINFER_SIMD_COPIES(dpinfer::KernelTable, kTable)
DPINFER_SIMD_COPIES(dpinfer::NetworkKernelTable, kNetworkTable)
DPINFER_SIMD_COPIES(dpinfer::PersonKernelTable, kPersonTable)

namespace dpinfer {

const KernelTable* kernel_table(const char* name) { return kTableCopies.named(name); }
const KernelTable* kernel_table() { return kTableCopies.best(); }

const NetworkKernelTable* network_kernel_table(const char* name) { return kNetworkTableCopies.named(name); }
const NetworkKernelTable* network_kernel_table() { return kNetworkTableCopies.best(); }

const PersonKernelTable* person_kernel_table(const char* name) { return kPersonTableCopies.named(name); }
const PersonKernelTable* person_kernel_table() { return kPersonTableCopies.best(); }

}  // namespace dpinfer
