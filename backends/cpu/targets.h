// SPDX-License-Identifier: Apache-2.0
//
// Choosing a function of a HWY_EXPORT table by target. Highway's own dispatch keeps the choice in a
// process-wide variable; here each context may ask for another target (TSR_CPU_TARGET), so the
// index is computed from the target and the tables are read directly. Included in once-only blocks.
#ifndef TESSERA_CPU_TARGETS_H_
#define TESSERA_CPU_TARGETS_H_

#include <stddef.h>
#include <stdint.h>

#include "hwy/highway.h"

namespace tessera {

// Index of a target's entry in every HWY_EXPORT table of this build.
inline size_t target_index(int64_t target) {
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
  (void)target;
  return 0;
#else
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
#endif
}

}  // namespace tessera

#define TSRI_CPU_FUNCTION(space, function, target) \
  (space::HWY_DISPATCH_TABLE(function)[tessera::target_index(target)])

#endif  // TESSERA_CPU_TARGETS_H_
