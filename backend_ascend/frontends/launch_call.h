// One launch as an operator of a framework makes it: an image by digest,
// operands and results by position.

#ifndef BACKEND_ASCEND_FRONTENDS_LAUNCH_CALL_H_
#define BACKEND_ASCEND_FRONTENDS_LAUNCH_CALL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend_ascend/frontends/operands.h"

namespace hpmoe {

// Contiguous, and aligned for its elements.
struct CallArray {
  void* data;
  int64_t bytes;
  std::vector<int64_t> shape;  // that errors speak of
};

struct CallOptions {
  std::string_view digest;  // see image_registry.h
  int32_t threads;          // 0: as the runtime chooses
  double deadline_s;
  // Bits of KnownOperands: what is given, and what is
  // asked for.  0 and 0: a launch that takes and makes everything.
  uint64_t given = 0, asked = 0;
  // Of a launch of some tensors: whether more than routing weights is looked
  // through for values that are not finite.
  bool scan = false;
};

struct CallStatus {
  enum Code { kDone, kRefused, kDeadline, kDeadlock };
  Code code = kDone;
  std::string text;  // one line; empty if it is done
};

// What a call takes or, of those that are `made`, makes, in order.
std::vector<Operand> OperandsOf(const ImageHeader& image,
                                const CallOptions& options, bool made);

// Operands and results as above.  What a refused call leaves
// in the results is not said.  Thread-safe.
CallStatus CallLaunch(const CallOptions& options,
                      const std::vector<CallArray>& operands,
                      const std::vector<CallArray>& results);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_LAUNCH_CALL_H_
