#include "backend_ascend/compiler/proofs/proofs_context.h"

#include <cstdarg>
#include <cstdio>

namespace hpmoe::proofs {

namespace {

__attribute__((format(printf, 1, 2))) Text Format(const char* format, ...) {
  Text text;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.s, sizeof(text.s), format, arguments);
  va_end(arguments);
  return text;
}

}  // namespace

Text TaskText(const Context& c, int64_t task) {
  if (task < 0) return Format("no task");
  const TaskDesc& t = c.v.tasks[task];
  const bool link = FormOf(t) == Form::kWeightTile;
  return Format("%s(rank %d, expert %d, %srow block %d, col block %d, %s %d)",
                KindName(t.kind), t.rank, t.expert,
                link ? Format("link %d, ", t.peer).s : "", t.row_block,
                t.col_block, UnitName(c.v.queues[c.queue_of[task]].unit),
                t.core);
}

Text RegionText(const RegionDesc& r) {
  return Format("%s%s(rank %d, group %d, rows %d:%d, cols %d:%d)",
                BufferName(r.buffer), r.view == kSender ? " as sent" : "",
                r.rank, r.group, r.row_begin, r.row_end, r.col_begin,
                r.col_end);
}

}  // namespace hpmoe::proofs
