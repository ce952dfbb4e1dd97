#include "backend_ascend/twin/watch/coverage.h"

#include <cinttypes>
#include <cstdio>

namespace ascend_twin {

LineCounts& ThisCoverage() {
  static LineCounts counts;
  return counts;
}

bool WriteCoverage(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  for (const auto& [at, count] : ThisCoverage()) {
    std::fprintf(file, "%" PRIu64 " %d %s\n", count, at.second, at.first);
  }
  return std::fclose(file) == 0;
}

}  // namespace ascend_twin

extern "C" void hpmoe_twin_line(const char* file, int line) {
  ++ascend_twin::ThisCoverage()[{file, line}];
}
