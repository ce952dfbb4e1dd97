// How a step ended, inside the host program.

#ifndef BACKEND_ASCEND_DEVICE_NPUS_END_H_
#define BACKEND_ASCEND_DEVICE_NPUS_END_H_

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "backend_ascend/device/npus/npus.h"

namespace hpmoe {

struct End : hpmoe_npus_end {
  End() : hpmoe_npus_end{} { task = -1; }
  End(int32_t code_of, const std::string& text_of,
      const std::vector<int32_t>& ranks_of = {})
      : End() {
    code = code_of;
    std::snprintf(text, sizeof(text), "%s", text_of.c_str());
    num_ranks = std::min<int32_t>(static_cast<int32_t>(ranks_of.size()),
                                  HPMOE_NPUS_MAX_RANKS);
    std::copy_n(ranks_of.begin(), num_ranks, ranks);
  }
  bool ok() const { return code == HPMOE_NPUS_SUCCESS; }
};

inline std::string RanksText(const std::vector<int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  return text;
}

inline std::string SecondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
}

}  // namespace hpmoe

// Hands a failure on.
#define HPMOE_TRY(expression)                                            \
  do {                                                                   \
    if (const ::hpmoe::End end_ = (expression); !end_.ok()) return end_; \
  } while (false)

#endif  // BACKEND_ASCEND_DEVICE_NPUS_END_H_
