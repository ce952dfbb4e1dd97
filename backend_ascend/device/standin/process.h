// What the stand-ins of ACL and SHMEM know together in one process.

#ifndef BACKEND_ASCEND_DEVICE_STANDIN_PROCESS_H_
#define BACKEND_ASCEND_DEVICE_STANDIN_PROCESS_H_

#include <cstdint>
#include <map>

#include "backend_ascend/device/standin/board.h"

namespace hpmoe {

// Gives out part of a device's memory, filled with what is no zero.
class Arena {
 public:
  Arena() = default;
  Arena(char* begin, uint64_t bytes) : begin_(begin), bytes_(bytes) {}
  // Null where there is no room.
  void* Take(uint64_t bytes);
  bool Give(void* at);
  // Whether [at, at + bytes) lies in something that was given out.
  bool Holds(const void* at, uint64_t bytes) const;

 private:
  char* begin_ = nullptr;
  uint64_t bytes_ = 0;
  std::map<uint64_t, uint64_t> taken_;  // begin and bytes, from begin_
};

struct Process {
  Board* board = nullptr;
  int32_t device = -1;  // that was set; the rank of a seat
  int32_t streams = 0;
  Arena own, heap;
};
Process& ThisProcess();

// Does at a call what HPMOE_BOARD_DRILL says, once: "RANK CALL kill", or "RANK
// CALL SECONDS" of sleep; behind it the how-manieth call, if not the first.
void Drill(const char* call);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_STANDIN_PROCESS_H_
