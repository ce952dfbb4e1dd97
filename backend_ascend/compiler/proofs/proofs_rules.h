// The rules of proofs.h, one function each.

#ifndef BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_RULES_H_
#define BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_RULES_H_

#include "backend_ascend/compiler/proofs/proofs_context.h"
#include "backend_ascend/compiler/proofs/proofs_spaces.h"

namespace hpmoe::proofs {

void ProveUnits(Context* context);
void ProveRegions(Context* context);
void ProveProgress(Context* context);
void ProveEvents(Context* context);
void ProveOnce(Context* context, const Spaces& spaces);
void ProveOrder(Context* context, const Spaces& spaces);

}  // namespace hpmoe::proofs

#endif  // BACKEND_ASCEND_COMPILER_PROOFS_PROOFS_RULES_H_
