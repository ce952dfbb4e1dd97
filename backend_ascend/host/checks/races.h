// Accesses that nothing orders, from vector clocks.
//
// Every worker has a clock, which counts for each worker how many of its tasks
// are known to be done.  An event carries the join of the clocks of those that
// signalled it, a wait that is met joins it.  The clocks are computed after the
// launch, from what every task really signalled in it, so a race is found
// whether or not it happened to spoil anything, and the same ones every time.
//
//   * A wait below the sum of the event's signals is met by luck: it orders
//     nothing.
//   * A task that runs before its turn knows of nothing; of one that runs after
//     it has signalled nobody knows.  When each did its work and when it
//     signalled is recorded as it happens.
//   * A put is complete only at an event that it adds to, late or not: that its
//     worker has gone on says nothing.
//
// Most pairs are ordered by one edge; clocks are kept of the tasks of the
// others only, and memory does not grow with the number of races.

#ifndef BACKEND_ASCEND_HOST_CHECKS_RACES_H_
#define BACKEND_ASCEND_HOST_CHECKS_RACES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpmoe {

struct LaunchState;

enum class RaceKind : uint8_t { kWriteRead = 0, kReadWrite, kWriteWrite };

// What would order the two; the words are in race_report.py.
enum class MissingEdge : uint8_t {
  kNone = 0,         // no event of theirs would
  kWait = 1,         // second does not wait for it
  kEarlySignal = 2,  // first signals it before its work
  kEarlyRun = 3,     // second runs before it waits for it
  kLowWait = 4,      // second waits for less than all of it
  kSignal = 5,       // first does not signal it
};

// Between two tasks, on one buffer of one rank.
struct Race {
  int64_t first, second;  // in the image's order
  RaceKind kind;
  uint16_t buffer;
  int32_t rank;
  int32_t row_begin, row_end, col_begin, col_end;  // bounds of all overlaps
  MissingEdge missing;
  int32_t event, threshold, total;  // -1, 0, 0 where there is none
};

struct Races {
  static constexpr size_t kMaxKept = 64;
  static constexpr size_t kMaxCounted = 1 << 16;
  uint64_t count = 0;       // from kMaxCounted on, there may be more
  std::vector<Race> first;  // in the image's order
};

// After every task has ended.
Races FindRaces(const LaunchState& state);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_CHECKS_RACES_H_
