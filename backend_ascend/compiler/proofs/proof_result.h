// What a proof says: the rules, their refusals, what they looked at.

#ifndef BACKEND_ASCEND_COMPILER_PROOFS_PROOF_RESULT_H_
#define BACKEND_ASCEND_COMPILER_PROOFS_PROOF_RESULT_H_

#include <cstdint>
#include <vector>

#include "backend_ascend/image/image.h"

namespace hpmoe {

enum Rule : int32_t {
  kUnitRule = 0,
  kRegionsRule = 1,
  kProgressRule = 2,
  kEventRule = 3,
  kOnceRule = 4,
  kOrderRule = 5,
  kNumRules = 6,
};

// One refusal.  Tasks and event are -1 where there is none.
struct Violation {
  int32_t rule;
  bool has_region;
  int64_t task_a;
  int64_t task_b;
  int64_t event;
  RegionDesc region;
  char text[384];
};

struct ProofResult {
  // What each rule looked at: tasks, regions, tasks run, events, writes,
  // (read, partition) pairs.
  int64_t checked[kNumRules];
  int64_t refused[kNumRules];
  std::vector<Violation> violations;
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_COMPILER_PROOFS_PROOF_RESULT_H_
