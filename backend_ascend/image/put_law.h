// When a put is complete: the law that proofs and races share.

#ifndef BACKEND_ASCEND_IMAGE_PUT_LAW_H_
#define BACKEND_ASCEND_IMAGE_PUT_LAW_H_

#include <algorithm>

namespace hpmoe {

// Returns whether all that a task writes is there for another.
//
// Any other task is done before what comes after it.  A put is complete only at
// an event that it adds to: its queue goes on before, so what comes after it in
// any other way knows nothing of its rows.
//
// `before`: whether the task comes before the other at all.
// `waited`: whether the other, or what comes before it, waited for a signal.
template <class Signals, class Waited>
bool IsComplete(bool is_put, bool before, const Signals& signals,
                Waited waited) {
  if (!is_put) return before;
  return std::any_of(signals.begin(), signals.end(), waited);
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_IMAGE_PUT_LAW_H_
