// Which lines of the user's source ran, and how often control came to them.

#ifndef BACKEND_ASCEND_TWIN_WATCH_COVERAGE_H_
#define BACKEND_ASCEND_TWIN_WATCH_COVERAGE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace ascend_twin {

// By file, one string for each module, and line.  Code that was built to be
// counted calls hpmoe_twin_line.
using LineCounts = std::map<std::pair<const char*, int>, uint64_t>;
LineCounts& ThisCoverage();

// One line each: count, line, file.  Whether the file can be written.
bool WriteCoverage(const std::string& path);

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_WATCH_COVERAGE_H_
