// The order of a schedule: where a task stands in it.

#ifndef BACKEND_ASCEND_COMPILER_ORDERS_POSITIONS_H_
#define BACKEND_ASCEND_COMPILER_ORDERS_POSITIONS_H_

namespace hpmoe::schedule {

// As flow.Order, in experts.
struct Rules {
  double lead;  // below 0: all puts of a dispatch come first
  double lag;
  // Infinite: all weight gradients come after all input gradients.
  double weight_lag, gate_weight_lag;
};

// Returns the position of a task, in experts; ties go by kind.
//
// `place`: at which place its rank, which has so many experts, takes its
// expert; `part`: how far in that it stands, in [0, 1], of tiles of its rows.
double Position(const Rules& rules, int experts, int kind, double place,
                double part);

}  // namespace hpmoe::schedule

#endif  // BACKEND_ASCEND_COMPILER_ORDERS_POSITIONS_H_
