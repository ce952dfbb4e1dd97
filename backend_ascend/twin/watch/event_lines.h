// What cores gave their queues, as lines that another reads.

#ifndef BACKEND_ASCEND_TWIN_WATCH_EVENT_LINES_H_
#define BACKEND_ASCEND_TWIN_WATCH_EVENT_LINES_H_

#include <cstdio>
#include <string>

#include "backend_ascend/twin/engine/kernel_launch.h"

namespace ascend_twin {

// A line for each event, words between blanks: kind, rank, type and index of
// the core, its block, pipe, other pipe, id, mode, whether it adds, whether the
// hardware keeps it in order, call, FILE:LINE; then for each span `r` or `w`,
// memory, first byte, bytes, rows and pitch.
class EventLog {
 public:
  // Whether the file can be written.
  bool Open(const std::string& path);
  bool is_open() const { return file_ != nullptr; }
  // Has a launch write to it.
  void Watch(LaunchSpec* spec);
  void Close();

 private:
  void Write(const Event& event);
  void Write(char access, const Span& span);

  std::FILE* file_ = nullptr;
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_WATCH_EVENT_LINES_H_
