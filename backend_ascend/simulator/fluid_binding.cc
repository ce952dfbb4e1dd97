// One shared resource, and one cache, by themselves, from Python: for tests.

#include <algorithm>
#include <array>

#include "backend_ascend/kernels/host/binding.h"
#include "backend_ascend/simulator/cache.h"
#include "backend_ascend/simulator/fluid.h"

namespace hpmoe {
namespace {

using Caps = std::array<double, sim::kNumDemandClasses>;

// When each demand ends.  `times` ascend.
std::vector<double> FluidEnds(double capacity, const std::vector<double>& caps,
                              const std::vector<double>& times,
                              const std::vector<int32_t>& classes,
                              const std::vector<double>& bytes) {
  Caps of{};
  std::copy_n(caps.begin(), of.size(), of.begin());
  sim::Fluid fluid(capacity, of.data());
  std::vector<double> ends(times.size());
  std::vector<uint32_t> ended;
  size_t next = 0;
  while (next < times.size() || fluid.next() != sim::kNoTime) {
    if (next < times.size() && times[next] < fluid.next()) {
      fluid.Enter(times[next], static_cast<sim::DemandClass>(classes[next]),
                  bytes[next], static_cast<uint32_t>(next));
      ++next;
      continue;
    }
    const double now = fluid.next();
    ended.clear();
    fluid.Leave(&ended);
    for (const uint32_t demand : ended) ends[demand] = now;
  }
  return ends;
}

// Which of the touches of parts of a cache, each of `bytes[part]`, miss.
std::vector<bool> CacheMisses(double l2_bytes, const std::vector<double>& bytes,
                              const std::vector<int32_t>& touched) {
  sim::Clock clock(l2_bytes);
  std::vector<double> last(bytes.size(), sim::Clock::kNever);
  std::vector<bool> misses;
  for (const int32_t part : touched) {
    misses.push_back(clock.Touch(bytes[part], &last[part]));
    clock.Tick();
  }
  return misses;
}

}  // namespace

void BindFluid(nb::module_& m) {
  m.def("fluid_ends", &FluidEnds, "capacity"_a, "caps"_a, "times"_a,
        "classes"_a, "bytes"_a,
        "When each demand on one shared resource ends; `times` ascend.");
  m.def("cache_misses", &CacheMisses, "l2_bytes"_a, "bytes"_a, "touched"_a,
        "Which touches of a cache's parts miss; `bytes` are of each part.");
}

}  // namespace hpmoe
