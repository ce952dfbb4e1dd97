#include "backend_ascend/host/load/image_loader.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "backend_ascend/host/load/crc32.h"

namespace hpmoe {
namespace {

static_assert(std::is_trivially_copyable<Status>::value, "Status is a POD");
static_assert(std::is_trivially_copyable<ImageView>::value, "a POD");

constexpr int64_t kMaxInt32 = 0x7FFFFFFF;
// Keeps (buffer, rank, group) packable into one 64-bit key.
constexpr int64_t kMaxRanks = 1 << 20;
constexpr uint64_t kTableAlign = 64;

// Remembers the first refusal; every check returns whether it held.
struct Checker {
  Status status = {0, ""};

  __attribute__((format(printf, 2, 3))) bool Refuse(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    status.code = 1;
    std::vsnprintf(status.message, sizeof(status.message), format, arguments);
    va_end(arguments);
    return false;
  }

  bool Header(const char* field, int64_t got, int64_t low, int64_t high) {
    if (low <= got && got <= high) return true;
    return Refuse("header.%s: expected %" PRId64 "..%" PRId64 ", got %" PRId64,
                  field, low, high, got);
  }

  bool Multiple(const char* field, int32_t got, const char* of,
                int32_t divisor) {
    return got % divisor == 0 ||
           Refuse("header.%s: expected a multiple of %s=%" PRId32
                  ", got %" PRId32,
                  field, of, divisor, got);
  }
};

// A row of a table, whose fields are checked.
struct Row {
  Checker* check;
  const char* table;
  int64_t index;

  bool operator()(const char* field, int64_t got, int64_t low,
                  int64_t high) const {
    if (low <= got && got <= high) return true;
    char expected[48];
    std::snprintf(expected, sizeof(expected),
                  low == high ? "%" PRId64 : "%" PRId64 "..%" PRId64, low,
                  high);
    return check->Refuse("%s[%" PRId64 "].%s: expected %s, got %" PRId64, table,
                         index, field, expected, got);
  }

  // 0 <= begin <= end <= limit.
  bool Interval(const char* begin_name, const char* end_name, int64_t begin,
                int64_t end, int64_t limit) const {
    const Row& row = *this;
    return row(begin_name, begin, 0, limit) && row(end_name, end, begin, limit);
  }
};

// Whether `holds(row, number)` of all rows.
template <class Holds>
bool EachRow(Checker* check, const char* table, int64_t count, Holds holds) {
  for (int64_t i = 0; i < count; ++i) {
    if (!holds(Row{check, table, i}, i)) return false;
  }
  return true;
}

// Preamble: what must hold before any other byte means anything.
bool CheckPreamble(const void* data, size_t size, Checker* check) {
  if (reinterpret_cast<uintptr_t>(data) % alignof(ImageHeader) != 0) {
    return check->Refuse("image: expected memory aligned to %zu bytes",
                         alignof(ImageHeader));
  }
  if (size < sizeof(ImageHeader)) {
    return check->Refuse("image: expected at least %zu bytes, got %zu",
                         sizeof(ImageHeader), size);
  }
  const auto& header = *static_cast<const ImageHeader*>(data);
  if (header.magic != kImageMagic) {
    return check->Refuse("header.magic: expected %016" PRIx64
                         ", got %016" PRIx64,
                         kImageMagic, header.magic);
  }
  if (header.version != kImageVersion) {
    return check->Refuse("header.version: expected %" PRIu32 ", got %" PRIu32,
                         kImageVersion, header.version);
  }
  if (header.header_bytes != sizeof(ImageHeader)) {
    return check->Refuse("header.header_bytes: expected %zu, got %" PRIu32,
                         sizeof(ImageHeader), header.header_bytes);
  }
  if (header.total_bytes != size) {
    return check->Refuse(
        "header.total_bytes: expected %zu (bytes given), got "
        "%" PRIu64,
        size, header.total_bytes);
  }
  ImageHeader zeroed = header;
  zeroed.crc32 = 0;
  const uint32_t head = Crc32(0, &zeroed, sizeof(zeroed));
  const uint32_t crc =
      Crc32(head, static_cast<const uint8_t*>(data) + sizeof(zeroed),
            size - sizeof(zeroed));
  if (crc != header.crc32) {
    return check->Refuse("header.crc32: expected %08" PRIx32 ", got %08" PRIx32,
                         crc, header.crc32);
  }
  return true;
}

// What can multiply codes: the forward pass of a layer, without weights on
// sums.
int64_t LastQuantised(const ImageHeader& h) {
  const bool can = h.direction == kForward && h.span == kLayer;
  return can ? kInt8TokenChannelWide : kOfValues;
}

int64_t LastPlacement(const ImageHeader& h) {
  if (h.span == kSublayer) return kAtCombine;
  return IsQuantised(h) ? kBeforeDown : kInEpilogue;
}

bool CheckLayer(const ImageHeader& h, Checker* check) {
  const int32_t depth = IsQuantised(h) ? kMaxCodeDepth : kMaxInt32 - 1;
  const struct {
    const char* name;
    int64_t got, low, high;
  } fields[] = {
      {"direction", h.direction, 0, kBackward},
      {"span", h.span, 0, kSublayer},
      {"epsilon", h.epsilon, 0, h.span == kSublayer ? kNumEpsilons - 1 : 0},
      {"num_ranks", h.num_ranks, 1, kMaxRanks},
      {"num_tokens", h.num_tokens, 1, kMaxInt32},
      {"num_experts", h.num_experts, 1, kMaxInt32},
      {"top_k", h.top_k, 1, h.num_experts},
      {"quantised", h.quantised, 0, LastQuantised(h)},
      {"d_model", h.d_model, 1, depth},
      {"d_ff", h.d_ff, 1, depth < kMaxInt32 / 2 ? depth : kMaxInt32 / 2},
      {"num_rows", h.num_rows, 1, kMaxInt32},
      {"expert_capacity", h.expert_capacity, 1, kMaxInt32},
      {"dtype", h.dtype, 0, kNumDTypes - 1},
      {"placement", h.placement, 0, LastPlacement(h)},
      {"activation", h.activation, 0, kAbsolute},
      {"accumulation_order", h.accumulation_order, 0,
       h.dtype == kBFloat16 ? kEvenOdd32 : kAscending},
      {"event_grain", h.event_grain, 0, kRowBlockGrain},
      {"row_block", h.row_block, 1, kMaxInt32},
      {"col_block", h.col_block, 1, kMaxInt32},
      {"put_rows", h.put_rows, 1, kMaxInt32},
      {"token_block", h.token_block, 1, kMaxInt32},
      {"num_aic", h.num_aic, 1, 0xFFFF},
      {"num_aiv", h.num_aiv, 1, 0xFFFF},
      {"chain_rows", h.chain_rows, 1, h.expert_capacity},
      {"relay", h.relay, 0, h.span == kSublayer ? 0 : 1},
      // Rows of `returned` are addressed by int32.
      {"num_tokens * top_k", int64_t{h.num_tokens} * h.top_k, 1, kMaxInt32},
  };
  for (const auto& field : fields) {
    if (!check->Header(field.name, field.got, field.low, field.high)) {
      return false;
    }
  }
  if (!check->Multiple("num_experts", h.num_experts, "num_ranks",
                       h.num_ranks) ||
      !check->Multiple("expert_capacity", h.expert_capacity, "row_block",
                       h.row_block) ||
      !check->Multiple("chain_rows", h.chain_rows, "row_block", h.row_block)) {
    return false;
  }
  // A link that is not the last hands on a sum of whole steps.
  if (h.accumulation_order == kEvenOdd32 && LinksOf(h) > 1 &&
      h.chain_rows % kEvenOddTerms != 0) {
    return check->Refuse("header.chain_rows: expected a multiple of %" PRId32
                         " for accumulation_order even_odd_32, got %" PRId32,
                         kEvenOddTerms, h.chain_rows);
  }
  // Groups of a weight gradient are addressed by int32.
  return check->Header("num_experts / num_ranks * links",
                       h.num_experts / h.num_ranks * LinksOf(h), 1, kMaxInt32);
}

// Everywhere below, a size in bytes and an index are int64.
bool CheckBytes(const ImageHeader& h, Checker* check) {
  constexpr int64_t kMaxBytes = int64_t{1} << 60;
  for (uint16_t b = 0; b < kNumBuffers; ++b) {
    Extent e = ExtentOf(h, b, kRows);
    // Rows of all experts of a rank are packed.  Links, which share a place,
    // are counted as if they did not.
    if (e.groups > 0 && IsPacked(BufferForm(h, b))) {
      e = {1, h.num_rows, e.cols};
    }
    int64_t bytes = ElementBytes(h, b) * h.num_ranks;
    bool fits = true;
    for (const int64_t size : {e.groups, e.rows, e.cols}) {
      fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
    }
    if (fits && bytes <= kMaxBytes) continue;
    return check->Refuse("header: expected at most %" PRId64
                         " bytes of %s, got more",
                         kMaxBytes, kBuffers[b].name);
  }
  return true;
}

// Points `out` at a table.  `end` is the end of the table before it: tables
// follow each other in the order of the header.
template <typename T>
bool FindTable(const uint8_t* data, size_t size, const char* name,
               const TableRef& ref, uint64_t* end, const T** out,
               int32_t* count, Checker* check) {
  if (ref.offset % kTableAlign != 0) {
    return check->Refuse("header.%s.offset: expected a multiple of %" PRIu64
                         ", got %" PRIu64,
                         name, kTableAlign, ref.offset);
  }
  if (ref.offset < *end || ref.offset > size) {
    return check->Refuse("header.%s.offset: expected %" PRIu64
                         "..%zu, got %" PRIu64,
                         name, *end, size, ref.offset);
  }
  const uint64_t room = (size - ref.offset) / sizeof(T);
  const uint64_t limit = room < kMaxInt32 ? room : uint64_t{kMaxInt32};
  if (ref.count > limit) {
    return check->Refuse("header.%s.count: expected 0..%" PRIu64
                         " (bytes given), got %" PRIu64,
                         name, limit, ref.count);
  }
  *out = reinterpret_cast<const T*>(data + ref.offset);
  *count = static_cast<int32_t>(ref.count);
  *end = ref.offset + ref.count * sizeof(T);
  return true;
}

bool FindTables(const void* data, size_t size, ImageView* v, Checker* check) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  const ImageHeader& h = *v->header;
  uint64_t end = sizeof(ImageHeader);
  const auto find = [&](const char* name, const TableRef& ref, auto* out,
                        int32_t* count) {
    return FindTable(bytes, size, name, ref, &end, out, count, check);
  };
  return find("tasks", h.tasks, &v->tasks, &v->num_tasks) &&
         find("waits", h.waits, &v->waits, &v->num_waits) &&
         find("signals", h.signals, &v->signals, &v->num_signals) &&
         find("regions", h.regions, &v->regions, &v->num_regions) &&
         find("events", h.events, &v->events, &v->num_events) &&
         find("spaces", h.spaces, &v->spaces, &v->num_spaces) &&
         find("queues", h.queues, &v->queues, &v->num_queues) &&
         find("queue_tasks", h.queue_tasks, &v->queue_tasks,
              &v->num_queue_tasks);
}

const char* DirectionName(const ImageHeader& h) {
  return h.direction == kForward ? "forward" : "backward";
}

// The view in which a form of task writes.
View ViewOf(Form form) { return IsPut(form) ? kSender : kRows; }

// The rows and columns that a kind of task may name, and who runs it.
bool CheckTile(const ImageHeader& h, const TaskDesc& t, const Row& row) {
  const int64_t local = h.num_experts / h.num_ranks;
  const Form form = FormOf(t);
  int64_t low = t.rank * local, high = low + local - 1;
  if (form == Form::kSlicePut) low = 0, high = h.num_experts - 1;
  if (form == Form::kTokenTile) low = high = kNoExpert;
  if (!row("expert", t.expert, low, high)) return false;
  int64_t peer = kRowBlockRange, last_peer = kRowBlockRange;
  if (form == Form::kSlicePut) peer = last_peer = t.expert / local;
  if (form == Form::kWeightTile) peer = 0, last_peer = LinksOf(h) - 1;
  if (form == Form::kHomePut && h.event_grain == kExpertGrain) {
    peer = 0, last_peer = h.num_ranks - 1;
  }
  const Extent tile = ExtentOf(h, KindOf(t).written, ViewOf(form));
  return row("peer", t.peer, peer, last_peer) &&
         row.Interval("row_begin", "row_end", t.row_begin, t.row_end,
                      tile.rows) &&
         row.Interval("col_begin", "col_end", t.col_begin, t.col_end,
                      tile.cols);
}

bool CheckKind(const ImageHeader& h, uint16_t kind, const Row& row) {
  if (kind < kNumTaskKinds && DirectionOf(kind) == Direction{h.direction} &&
      HasKind(kind, VariantOf(h))) {
    return true;
  }
  return row.check->Refuse(
      "tasks[%" PRId64 "].kind: expected one of the %s layer%s, got %d (%s)",
      row.index, DirectionName(h), h.relay != 0 ? " with relay" : "", kind,
      KindName(kind));
}

bool CheckTasks(const ImageView& v, Checker* check) {
  const ImageHeader& h = *v.header;
  return EachRow(check, "tasks", v.num_tasks, [&](const Row& row, int64_t i) {
    const TaskDesc& t = v.tasks[i];
    return CheckKind(h, t.kind, row) && row("unit", t.unit, 0, kNumUnits - 1) &&
           row("rank", t.rank, 0, h.num_ranks - 1) && CheckTile(h, t, row) &&
           row("row_block", t.row_block, 0, kMaxInt32) &&
           row("col_block", t.col_block, 0, kMaxInt32) &&
           row("wait_begin", t.wait_begin, 0, v.num_waits) &&
           row("wait_count", t.wait_count, 0, v.num_waits - t.wait_begin) &&
           row("signal_begin", t.signal_begin, 0, v.num_signals) &&
           row("signal_count", t.signal_count, 0,
               v.num_signals - t.signal_begin) &&
           row("region_begin", t.region_begin, 0, v.num_regions) &&
           row("read_count + write_count", t.read_count + t.write_count, 0,
               v.num_regions - t.region_begin) &&
           row("reserved", t.reserved, 0, 0);
  });
}

bool CheckWaits(const ImageView& v, Checker* check) {
  return EachRow(check, "waits", v.num_waits, [&](const Row& row, int64_t i) {
    const WaitDesc& w = v.waits[i];
    return row("event", w.event, 0, v.num_events - 1) &&
           row("threshold", w.threshold, 1, kMaxInt32);
  });
}

bool CheckSignals(const ImageView& v, Checker* check) {
  const auto holds = [&](const Row& row, int64_t i) {
    const SignalDesc& s = v.signals[i];
    const bool rows = s.amount == kPerRow;
    const int64_t last = rows ? v.num_events - int64_t{s.event} : 1;
    return row("event", s.event, 0, v.num_events - 1) &&
           row("amount", s.amount, rows ? kPerRow : 1, kMaxInt32) &&
           row("span", s.span, 1, last) &&
           row("rank", s.rank, 0, v.header->num_ranks - 1);
  };
  return EachRow(check, "signals", v.num_signals, holds);
}

// Only rows that go home may go to any rank.
int64_t LowestRank(const ImageHeader& h, uint16_t buffer, uint16_t view) {
  const bool home = BufferForm(h, buffer) == Form::kHomePut;
  return home && view == kSender ? kAnyRank : 0;
}

// Regions are of what the image's layer touches; events and spaces of what its
// tasks write.
bool CheckBuffer(const ImageHeader& h, const Row& row, uint16_t buffer,
                 uint16_t view, int32_t rank, bool written, Extent* extent) {
  if (!row("buffer", buffer, 0, kNumBuffers - 1) ||
      !row("view", view, 0, kNumViews - 1)) {
    return false;
  }
  const Use use = PassUse(h, buffer);
  if (use == Use::kAbsent || (written && use == Use::kInput)) {
    return row.check->Refuse(
        "%s[%" PRId64 "].buffer: expected one that the %s layer %s, got %s",
        row.table, row.index, DirectionName(h), written ? "writes" : "touches",
        BufferName(buffer));
  }
  *extent = ExtentOf(h, buffer, view);
  if (extent->groups == 0) {
    return row.check->Refuse("%s[%" PRId64
                             "].view: expected 0 for buffer %s, got %d",
                             row.table, row.index, BufferName(buffer), view);
  }
  return row("rank", rank, LowestRank(h, buffer, view), h.num_ranks - 1);
}

bool CheckRegions(const ImageView& v, Checker* check) {
  const auto holds = [&](const Row& row, int64_t i) {
    const RegionDesc& r = v.regions[i];
    Extent e;
    return CheckBuffer(*v.header, row, r.buffer, r.view, r.rank, false, &e) &&
           row("group", r.group, 0, e.groups - 1) &&
           row.Interval("row_begin", "row_end", r.row_begin, r.row_end,
                        e.rows) &&
           row.Interval("col_begin", "col_end", r.col_begin, r.col_end,
                        e.cols) &&
           row("reserved", r.reserved, 0, 0);
  };
  return EachRow(check, "regions", v.num_regions, holds);
}

bool CheckEvents(const ImageView& v, Checker* check) {
  return EachRow(check, "events", v.num_events, [&](const Row& row, int64_t i) {
    const EventDesc& e = v.events[i];
    Extent x;
    return CheckBuffer(*v.header, row, e.buffer, kRows, e.rank, true, &x) &&
           row("group", e.group, 0, x.groups - 1) &&
           row("part_rows", e.part_rows, 1, kMaxInt32) &&
           row("part", e.part, 0, (x.rows - 1) / e.part_rows) &&
           row("mode", e.mode, 0, kCountRows) &&
           row("threshold", e.threshold, 1, kMaxInt32);
  });
}

// Rows are counted where puts bring them: a relay takes the group of its event
// for an expert of its rank, and the groups of a weight's gradient are more.
bool CheckRowSignals(const ImageView& v, Checker* check) {
  for (int64_t i = 0; i < v.num_signals; ++i) {
    const SignalDesc& s = v.signals[i];
    const uint16_t buffer = v.events[s.event].buffer;
    if (s.amount != kPerRow || IsPut(BufferForm(*v.header, buffer))) continue;
    return check->Refuse("signals[%" PRId64
                         "].event: expected one of rows that puts send, got "
                         "one of %s",
                         i, BufferName(buffer));
  }
  return true;
}

// A space is the whole of its buffer in that view, so tiling it is writing it.
bool CheckSpaces(const ImageView& v, Checker* check) {
  return EachRow(check, "spaces", v.num_spaces, [&](const Row& row, int64_t i) {
    const SpaceDesc& s = v.spaces[i];
    Extent e;
    return CheckBuffer(*v.header, row, s.buffer, s.view, s.rank, true, &e) &&
           row("groups", s.groups, e.groups, e.groups) &&
           row("rows", s.rows, e.rows, e.rows) &&
           row("cols", s.cols, e.cols, e.cols) &&
           row("reserved", s.reserved, 0, 0);
  });
}

bool Ascends(const QueueDesc& a, const QueueDesc& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.unit != b.unit) return a.unit < b.unit;
  return a.core < b.core;
}

bool CheckQueues(const ImageView& v, Checker* check) {
  const ImageHeader& h = *v.header;
  return EachRow(check, "queues", v.num_queues, [&](const Row& row, int64_t i) {
    const QueueDesc& q = v.queues[i];
    if (!row("rank", q.rank, 0, h.num_ranks - 1) ||
        !row("unit", q.unit, 0, kNumUnits - 1) ||
        !row("core", q.core, 0, (q.unit == kAic ? h.num_aic : h.num_aiv) - 1) ||
        !row("begin", q.begin, 0, v.num_queue_tasks) ||
        !row("count", q.count, 0, v.num_queue_tasks - q.begin)) {
      return false;
    }
    if (i == 0 || Ascends(v.queues[i - 1], q)) return true;
    const QueueDesc& before = v.queues[i - 1];
    return check->Refuse("queues[%" PRId64
                         "]: expected ascending (rank, unit, core), got "
                         "(%d, %d, %d) after (%d, %d, %d)",
                         i, q.rank, q.unit, q.core, before.rank, before.unit,
                         before.core);
  });
}

bool CheckQueueTasks(const ImageView& v, Checker* check) {
  for (int64_t i = 0; i < v.num_queue_tasks; ++i) {
    const int64_t task = v.queue_tasks[i];
    if (task >= v.num_tasks) {
      return check->Refuse("queue_tasks[%" PRId64
                           "]: expected 0..%d, got %" PRId64,
                           i, v.num_tasks - 1, task);
    }
  }
  std::vector<uint8_t> seen(v.num_tasks, 0);
  for (int64_t i = 0; i < v.num_queues; ++i) {
    const QueueDesc& q = v.queues[i];
    for (int64_t j = q.begin; j < int64_t{q.begin} + q.count; ++j) {
      const int64_t task = v.queue_tasks[j];
      if (seen[task]++ != 0) {
        return check->Refuse("queue_tasks[%" PRId64
                             "]: expected every task "
                             "once, got task %" PRId64 " again",
                             j, task);
      }
      const Row row{check, "tasks", task};
      if (!row("rank", v.tasks[task].rank, q.rank, q.rank) ||
          !row("core", v.tasks[task].core, q.core, q.core)) {
        return false;
      }
    }
  }
  for (int64_t task = 0; task < v.num_tasks; ++task) {
    if (seen[task] == 0) {
      return check->Refuse("tasks[%" PRId64
                           "]: expected in one queue, got "
                           "none",
                           task);
    }
  }
  return true;
}

}  // namespace

Status Refused(int code, const char* format, ...) {
  Status status{code, {}};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(status.message, sizeof(status.message), format, arguments);
  va_end(arguments);
  return status;
}

Status LoadImage(const void* data, size_t size, ImageView* out) {
  Checker check;
  ImageView view = {};
  if (!CheckPreamble(data, size, &check)) return check.status;
  view.header = static_cast<const ImageHeader*>(data);
  if (CheckLayer(*view.header, &check) && CheckBytes(*view.header, &check) &&
      FindTables(data, size, &view, &check) && CheckTasks(view, &check) &&
      CheckWaits(view, &check) && CheckSignals(view, &check) &&
      CheckRegions(view, &check) && CheckEvents(view, &check) &&
      CheckRowSignals(view, &check) && CheckSpaces(view, &check) &&
      CheckQueues(view, &check) && CheckQueueTasks(view, &check)) {
    *out = view;
  }
  return check.status;
}

Status LoadedImage::Load(const void* data, size_t size) {
  words_.resize((size + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  if (size > 0) std::memcpy(words_.data(), data, size);
  return LoadImage(words_.data(), size, &view_);
}

}  // namespace hpmoe
