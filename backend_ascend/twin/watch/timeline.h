// When pipes did what they did, as Perfetto and chrome://tracing read it.

#ifndef BACKEND_ASCEND_TWIN_WATCH_TIMELINE_H_
#define BACKEND_ASCEND_TWIN_WATCH_TIMELINE_H_

#include <cstdio>
#include <set>
#include <string>

#include "backend_ascend/twin/engine/kernel_launch.h"

namespace ascend_twin {

// A process for each core, a thread for each of its pipes; launches one after
// the other.
class Timeline {
 public:
  // Whether the file can be written.
  bool Open(const std::string& path);
  bool is_open() const { return file_ != nullptr; }
  // Has a launch write to it.
  void Watch(LaunchSpec* spec);
  // The launch is over.
  void Next() { begin_ = end_; }
  void Close();

 private:
  void Write(const CoreName& core, const Instruction& work, double begin,
             double end);
  void Name(const CoreName& core, Pipe pipe);

  std::FILE* file_ = nullptr;
  double begin_ = 0;  // s, of the launch
  double end_ = 0;    // of the last instruction so far
  std::set<int> named_;
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_WATCH_TIMELINE_H_
