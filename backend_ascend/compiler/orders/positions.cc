#include "backend_ascend/compiler/orders/positions.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/regions.h"

namespace hpmoe::schedule {
namespace {

// Just before the next expert.
constexpr double kAlmost = 1 - 1.0 / 1024;
// Experts by which relayed rows are copied ahead.  One would keep all cube
// cores within two experts, which need not fill them: a vector core copies for
// the next expert behind what it does for this one.
constexpr double kRelayLead = 2;

// Whether the second GEMM of an expert stands before it.
bool IsLater(int kind) {
  return kind == kDown || kind == kReturn || kind == kGateUpGrad ||
         kind == kGateUpWeightGrad || kind == kReturnGrad;
}

double OfExpert(const Rules& rules, int kind, double place, double part) {
  const double at = place + (IsLater(kind) ? rules.lag : 0);
  // Only then do the GEMMs of an expert take turns by row block.
  if (rules.lag == std::floor(rules.lag)) return at;
  // A weight gradient reads all rows of its expert.
  const bool weights = kKinds[kind].form() == Form::kWeightTile;
  return at + (weights ? kAlmost : std::min(part, kAlmost));
}

}  // namespace

double Position(const Rules& rules, int experts, int kind, double place,
                double part) {
  const double sent = rules.lead < 0 ? -1 : place - rules.lead;
  switch (kKinds[kind].form()) {
    case Form::kSlicePut:
      return sent;
    case Form::kRelayTile:
      // One expert behind the puts that it waits for.
      return std::max(place - std::max(kRelayLead, rules.lead - 1), sent);
    case Form::kTokenTile:
      return std::numeric_limits<double>::infinity();
    case Form::kWeightTile: {
      const double lag =
          kind == kDownWeightGrad ? rules.weight_lag : rules.gate_weight_lag;
      if (std::isinf(lag)) return experts + rules.lag;
      return OfExpert(rules, kind, place, part) + lag;
    }
    default:
      return OfExpert(rules, kind, place, part);
  }
}

}  // namespace hpmoe::schedule
