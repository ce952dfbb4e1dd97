#include <algorithm>
#include <cstring>

#include "backend_ascend/compiler/proofs/proofs_rules.h"

namespace hpmoe::proofs {

// unit: a core can run what its queue holds.
void ProveUnits(Context* c) {
  for (int32_t q = 0; q < c->v.num_queues; ++q) {
    const uint16_t unit = c->v.queues[q].unit;
    for (const uint32_t task : c->QueueTasks(q)) {
      const TaskDesc& t = c->v.tasks[task];
      ++c->result.checked[kUnitRule];
      const uint16_t wanted = KindOf(t).info().unit;
      if (t.unit == wanted && unit == wanted) continue;
      const RegionDesc* write = c->Writes(t).begin();
      c->Refuse(kUnitRule, task, -1, -1, t.write_count > 0 ? write : nullptr,
                "unit: %s: expected an %s task on an %s queue, got an %s task "
                "on an %s queue",
                TaskText(*c, task).s, UnitName(wanted), UnitName(wanted),
                UnitName(t.unit), UnitName(unit));
    }
  }
}

// regions: tasks declare what their kind and tile touch.
void ProveRegions(Context* c) {
  const Touched touched(*c->v.header);
  for (int64_t i = 0; i < c->v.num_tasks; ++i) {
    const TaskDesc& t = c->v.tasks[i];
    ++c->result.checked[kRegionsRule];
    const RegionDesc write = touched.Write(t);
    if (t.write_count != 1 ||
        std::memcmp(c->Writes(t).begin(), &write, sizeof(write)) != 0) {
      c->Refuse(kRegionsRule, i, -1, -1, &write,
                "regions: %s writes %s, which its %d write regions do not say",
                TaskText(*c, i).s, RegionText(write).s, t.write_count);
    }
    const int32_t width = write.col_end - BesideOf(*c->v.header, write.buffer);
    if (WritesWholeRows(*c->v.header, KindOf(t)) &&
        (t.col_begin != 0 || t.col_end < width)) {
      c->Refuse(kRegionsRule, i, -1, -1, &write,
                "regions: %s writes whole rows: expected columns 0:%d, got "
                "%d:%d",
                TaskText(*c, i).s, width, t.col_begin, t.col_end);
    }
    const auto reads = c->Reads(t);
    for (const ReadSpec& spec : KindOf(t).reads) {
      if (spec.buffer == kNumBuffers) break;
      const RegionDesc need = touched.Read(t, spec);
      const auto has = [&](const RegionDesc& r) { return Contains(r, need); };
      if (IsEmpty(need) || std::any_of(reads.begin(), reads.end(), has)) {
        continue;
      }
      c->Refuse(kRegionsRule, i, -1, -1, &need,
                "regions: %s reads %s, which its read regions do not say",
                TaskText(*c, i).s, RegionText(need).s);
    }
  }
}

}  // namespace hpmoe::proofs
