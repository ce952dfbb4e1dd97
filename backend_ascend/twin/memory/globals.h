// Global memory as the cores may touch it: registered ranges, who touched them
// last, and what a flag word publishes.

#ifndef BACKEND_ASCEND_TWIN_MEMORY_GLOBALS_H_
#define BACKEND_ASCEND_TWIN_MEMORY_GLOBALS_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"
#include "backend_ascend/twin/memory/shadow.h"

namespace ascend_twin {

struct Global {
  GlobalRange range;
  std::unique_ptr<Shadow> shadow;  // none of constants and flags

  uint64_t end() const { return range.begin + range.bytes; }
  bool Holds(uint64_t begin, uint64_t end_of) const {
    return begin >= range.begin && end_of <= end();
  }
};

class Globals {
 public:
  // No shadows without `hazards`.
  Globals(const std::vector<GlobalRange>& ranges, bool hazards);

  // That holds bytes [begin, end), or null.
  Global* Find(uint64_t begin, uint64_t end);
  // "NAME of rank R, 16 bytes after its end": what lies nearest to an address.
  std::string Nearest(uint64_t address) const;
  // "NAME of rank R + 0x40", for an address in a range.
  std::string NameOf(uint64_t address) const;

  // A write of words [begin, end) of flags by who knows `known`: an add is
  // learned of beside earlier ones, a plain write instead of them.
  void Publish(uint64_t begin, uint64_t end, const Clock& known, bool atomic);
  void Acquire(uint64_t begin, uint64_t end, Clock* known) const;

 private:
  std::vector<Global> globals_;  // by address
  Global* last_ = nullptr;
  std::unordered_map<uint64_t, Clock> published_;  // by word of 4 bytes
};

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_MEMORY_GLOBALS_H_
