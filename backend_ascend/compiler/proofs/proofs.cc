#include "backend_ascend/compiler/proofs/proofs.h"

#include "backend_ascend/compiler/proofs/proofs_rules.h"

namespace hpmoe {

const char* RuleName(int32_t rule) {
  constexpr const char* kNames[kNumRules] = {"unit",  "regions", "progress",
                                             "event", "once",    "order"};
  return rule >= 0 && rule < kNumRules ? kNames[rule] : "unknown";
}

ProofResult Prove(const ImageView& view, int max_violations) {
  proofs::Context context(view, max_violations);
  proofs::ProveUnits(&context);
  proofs::ProveRegions(&context);
  proofs::ProveProgress(&context);
  proofs::ProveEvents(&context);
  const proofs::Spaces spaces(context);
  proofs::ProveOnce(&context, spaces);
  proofs::ProveOrder(&context, spaces);
  return context.result;
}

}  // namespace hpmoe
