// Persons' kernels of one instruction set.  Compiled once per variant; see simd.hpp for the rules this file obeys.
#include "mechanism/simd/person_kernels.hpp"

#include "mechanism/simd/person_lanes-inl.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {

extern const PersonKernelTable kPersonTable;
const PersonKernelTable kPersonTable = {DPINFER_VARIANT_NAME, scores_of_eight};

}  // namespace dpinfer::DPINFER_SIMD_VARIANT
