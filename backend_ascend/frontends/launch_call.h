// One launch as an operator of a framework makes it: an image by digest,
// operands and results by position.

#ifndef BACKEND_ASCEND_FRONTENDS_LAUNCH_CALL_H_
#define BACKEND_ASCEND_FRONTENDS_LAUNCH_CALL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
};

struct CallStatus {
  enum Code { kDone, kRefused, kDeadline, kDeadlock };
  Code code = kDone;
  std::string text;  // one line; empty if it is done
};

// Operands and results in the order of operands.h.  What a refused call leaves
// in the results is not said.  Thread-safe.
CallStatus CallLaunch(const CallOptions& options,
                      const std::vector<CallArray>& operands,
                      const std::vector<CallArray>& results);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_FRONTENDS_LAUNCH_CALL_H_
