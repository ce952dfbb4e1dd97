#include "backend_ascend/kernels/host/load/image_loader.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "backend_ascend/kernels/host/load/crc32.h"

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

  bool Range(const char* table, int64_t index, const char* field, int64_t got,
             int64_t low, int64_t high) {
    if (low <= got && got <= high) return true;
    if (low == high) {
      return Refuse("%s[%" PRId64 "].%s: expected %" PRId64 ", got %" PRId64,
                    table, index, field, low, got);
    }
    return Refuse("%s[%" PRId64 "].%s: expected %" PRId64 "..%" PRId64
                  ", got %" PRId64,
                  table, index, field, low, high, got);
  }

  // 0 <= begin <= end <= limit.
  bool Interval(const char* table, int64_t index, const char* begin_name,
                const char* end_name, int64_t begin, int64_t end,
                int64_t limit) {
    return Range(table, index, begin_name, begin, 0, limit) &&
           Range(table, index, end_name, end, begin, limit);
  }
};

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

bool CheckLayer(const ImageHeader& h, Checker* check) {
  const struct {
    const char* name;
    int64_t got, low, high;
  } fields[] = {
      {"direction", h.direction, 0, kBackward},
      {"num_ranks", h.num_ranks, 1, kMaxRanks},
      {"num_tokens", h.num_tokens, 1, kMaxInt32},
      {"num_experts", h.num_experts, 1, kMaxInt32},
      {"top_k", h.top_k, 1, h.num_experts},
      {"d_model", h.d_model, 1, kMaxInt32 - 1},
      {"d_ff", h.d_ff, 1, kMaxInt32 / 2},
      {"num_rows", h.num_rows, 1, kMaxInt32},
      {"expert_capacity", h.expert_capacity, 1, kMaxInt32},
      {"dtype", h.dtype, 0, kNumDTypes - 1},
      {"placement", h.placement, 0, kInEpilogue},
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
      {"relay", h.relay, 0, 1},
      // Rows of `returned` are addressed by int32.
      {"num_tokens * top_k", int64_t{h.num_tokens} * h.top_k, 1, kMaxInt32},
  };
  for (const auto& field : fields) {
    if (!check->Header(field.name, field.got, field.low, field.high)) {
      return false;
    }
  }
  if (h.num_experts % h.num_ranks != 0) {
    return check->Refuse(
        "header.num_experts: expected a multiple of "
        "num_ranks=%" PRId32 ", got %" PRId32,
        h.num_ranks, h.num_experts);
  }
  if (h.expert_capacity % h.row_block != 0) {
    return check->Refuse(
        "header.expert_capacity: expected a multiple of "
        "row_block=%" PRId32 ", got %" PRId32,
        h.row_block, h.expert_capacity);
  }
  if (h.chain_rows % h.row_block != 0) {
    return check->Refuse(
        "header.chain_rows: expected a multiple of "
        "row_block=%" PRId32 ", got %" PRId32,
        h.row_block, h.chain_rows);
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
  const int64_t item = BytesOf(DType{h.dtype});
  for (uint16_t b = 0; b < kNumBuffers; ++b) {
    Extent e = ExtentOf(h, b, kRows);
    // Rows of all experts of a rank are packed.  Links, which share a place,
    // are counted as if they did not.
    if (e.groups > 0 && IsPacked(BufferForm(h, b))) {
      e = {1, h.num_rows, e.cols};
    }
    int64_t bytes = item * h.num_ranks;
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
bool CheckTile(const ImageHeader& h, const TaskDesc& t, int64_t i,
               Checker* check) {
  const int64_t local = h.num_experts / h.num_ranks;
  const Form form = FormOf(t);
  int64_t low = t.rank * local, high = low + local - 1;
  if (form == Form::kSlicePut) low = 0, high = h.num_experts - 1;
  if (form == Form::kTokenTile) low = high = kNoExpert;
  if (!check->Range("tasks", i, "expert", t.expert, low, high)) return false;
  int64_t peer = kRowBlockRange, last_peer = kRowBlockRange;
  if (form == Form::kSlicePut) peer = last_peer = t.expert / local;
  if (form == Form::kWeightTile) peer = 0, last_peer = LinksOf(h) - 1;
  if (form == Form::kHomePut && h.event_grain == kExpertGrain) {
    peer = 0, last_peer = h.num_ranks - 1;
  }
  const Extent tile = ExtentOf(h, KindOf(t).written, ViewOf(form));
  return check->Range("tasks", i, "peer", t.peer, peer, last_peer) &&
         check->Interval("tasks", i, "row_begin", "row_end", t.row_begin,
                         t.row_end, tile.rows) &&
         check->Interval("tasks", i, "col_begin", "col_end", t.col_begin,
                         t.col_end, tile.cols);
}

bool CheckKind(const ImageHeader& h, uint16_t kind, int64_t i, Checker* check) {
  if (kind < kNumTaskKinds && DirectionOf(kind) == Direction{h.direction} &&
      HasKind(kind, h.relay != 0)) {
    return true;
  }
  return check->Refuse("tasks[%" PRId64
                       "].kind: expected one of the %s layer%s, got %d (%s)",
                       i, DirectionName(h), h.relay != 0 ? " with relay" : "",
                       kind, KindName(kind));
}

bool CheckTasks(const ImageView& v, Checker* check) {
  const ImageHeader& h = *v.header;
  for (int64_t i = 0; i < v.num_tasks; ++i) {
    const TaskDesc& t = v.tasks[i];
    const auto range = [&](const char* field, int64_t got, int64_t low,
                           int64_t high) {
      return check->Range("tasks", i, field, got, low, high);
    };
    if (!CheckKind(h, t.kind, i, check) ||
        !range("unit", t.unit, 0, kNumUnits - 1) ||
        !range("rank", t.rank, 0, h.num_ranks - 1) ||
        !CheckTile(h, t, i, check) ||
        !range("row_block", t.row_block, 0, kMaxInt32) ||
        !range("col_block", t.col_block, 0, kMaxInt32) ||
        !range("wait_begin", t.wait_begin, 0, v.num_waits) ||
        !range("wait_count", t.wait_count, 0, v.num_waits - t.wait_begin) ||
        !range("signal_begin", t.signal_begin, 0, v.num_signals) ||
        !range("signal_count", t.signal_count, 0,
               v.num_signals - t.signal_begin) ||
        !range("region_begin", t.region_begin, 0, v.num_regions) ||
        !range("read_count + write_count", t.read_count + t.write_count, 0,
               v.num_regions - t.region_begin) ||
        !range("reserved", t.reserved, 0, 0)) {
      return false;
    }
  }
  return true;
}

bool CheckWaits(const ImageView& v, Checker* check) {
  for (int64_t i = 0; i < v.num_waits; ++i) {
    const WaitDesc& w = v.waits[i];
    if (!check->Range("waits", i, "event", w.event, 0, v.num_events - 1) ||
        !check->Range("waits", i, "threshold", w.threshold, 1, kMaxInt32)) {
      return false;
    }
  }
  return true;
}

bool CheckSignals(const ImageView& v, Checker* check) {
  for (int64_t i = 0; i < v.num_signals; ++i) {
    const SignalDesc& s = v.signals[i];
    const int64_t low = s.amount == kPerRow ? kPerRow : 1;
    const int64_t last =
        s.amount == kPerRow ? v.num_events - int64_t{s.event} : 1;
    if (!check->Range("signals", i, "event", s.event, 0, v.num_events - 1) ||
        !check->Range("signals", i, "amount", s.amount, low, kMaxInt32) ||
        !check->Range("signals", i, "span", s.span, 1, last) ||
        !check->Range("signals", i, "rank", s.rank, 0,
                      v.header->num_ranks - 1)) {
      return false;
    }
  }
  return true;
}

// Only rows that go home may go to any rank.
int64_t LowestRank(const ImageHeader& h, uint16_t buffer, uint16_t view) {
  const bool home = BufferForm(h, buffer) == Form::kHomePut;
  return home && view == kSender ? kAnyRank : 0;
}

// Regions are of what the image's layer touches; events and spaces of what its
// tasks write.
bool CheckBuffer(const ImageView& v, const char* table, int64_t i,
                 uint16_t buffer, uint16_t view, int32_t rank, bool written,
                 Extent* extent, Checker* check) {
  if (!check->Range(table, i, "buffer", buffer, 0, kNumBuffers - 1) ||
      !check->Range(table, i, "view", view, 0, kNumViews - 1)) {
    return false;
  }
  const ImageHeader& h = *v.header;
  const Use use = PassUse(h, buffer);
  if (use == Use::kAbsent || (written && use == Use::kInput)) {
    return check->Refuse("%s[%" PRId64
                         "].buffer: expected one that the %s layer %s, got %s",
                         table, i, DirectionName(h),
                         written ? "writes" : "touches", BufferName(buffer));
  }
  *extent = ExtentOf(h, buffer, view);
  if (extent->groups == 0) {
    return check->Refuse("%s[%" PRId64
                         "].view: expected 0 for buffer %s, "
                         "got %d",
                         table, i, BufferName(buffer), view);
  }
  return check->Range(table, i, "rank", rank, LowestRank(h, buffer, view),
                      h.num_ranks - 1);
}

bool CheckRegions(const ImageView& v, Checker* check) {
  for (int64_t i = 0; i < v.num_regions; ++i) {
    const RegionDesc& r = v.regions[i];
    Extent e;
    if (!CheckBuffer(v, "regions", i, r.buffer, r.view, r.rank, false, &e,
                     check) ||
        !check->Range("regions", i, "group", r.group, 0, e.groups - 1) ||
        !check->Interval("regions", i, "row_begin", "row_end", r.row_begin,
                         r.row_end, e.rows) ||
        !check->Interval("regions", i, "col_begin", "col_end", r.col_begin,
                         r.col_end, e.cols) ||
        !check->Range("regions", i, "reserved", r.reserved, 0, 0)) {
      return false;
    }
  }
  return true;
}

bool CheckEvents(const ImageView& v, Checker* check) {
  for (int64_t i = 0; i < v.num_events; ++i) {
    const EventDesc& e = v.events[i];
    Extent x;
    if (!CheckBuffer(v, "events", i, e.buffer, kRows, e.rank, true, &x,
                     check) ||
        !check->Range("events", i, "group", e.group, 0, x.groups - 1) ||
        !check->Range("events", i, "part_rows", e.part_rows, 1, kMaxInt32) ||
        !check->Range("events", i, "part", e.part, 0,
                      (x.rows - 1) / e.part_rows) ||
        !check->Range("events", i, "mode", e.mode, 0, kCountRows) ||
        !check->Range("events", i, "threshold", e.threshold, 1, kMaxInt32)) {
      return false;
    }
  }
  return true;
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
  for (int64_t i = 0; i < v.num_spaces; ++i) {
    const SpaceDesc& s = v.spaces[i];
    Extent e;
    if (!CheckBuffer(v, "spaces", i, s.buffer, s.view, s.rank, true, &e,
                     check) ||
        !check->Range("spaces", i, "groups", s.groups, e.groups, e.groups) ||
        !check->Range("spaces", i, "rows", s.rows, e.rows, e.rows) ||
        !check->Range("spaces", i, "cols", s.cols, e.cols, e.cols) ||
        !check->Range("spaces", i, "reserved", s.reserved, 0, 0)) {
      return false;
    }
  }
  return true;
}

bool Ascends(const QueueDesc& a, const QueueDesc& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.unit != b.unit) return a.unit < b.unit;
  return a.core < b.core;
}

bool CheckQueues(const ImageView& v, Checker* check) {
  const ImageHeader& h = *v.header;
  for (int64_t i = 0; i < v.num_queues; ++i) {
    const QueueDesc& q = v.queues[i];
    if (!check->Range("queues", i, "rank", q.rank, 0, h.num_ranks - 1) ||
        !check->Range("queues", i, "unit", q.unit, 0, kNumUnits - 1) ||
        !check->Range("queues", i, "core", q.core, 0,
                      (q.unit == kAic ? h.num_aic : h.num_aiv) - 1) ||
        !check->Range("queues", i, "begin", q.begin, 0, v.num_queue_tasks) ||
        !check->Range("queues", i, "count", q.count, 0,
                      v.num_queue_tasks - q.begin)) {
      return false;
    }
    if (i > 0 && !Ascends(v.queues[i - 1], q)) {
      return check->Refuse("queues[%" PRId64
                           "]: expected ascending (rank, "
                           "unit, core), got (%d, %d, %d) after (%d, %d, %d)",
                           i, q.rank, q.unit, q.core, v.queues[i - 1].rank,
                           v.queues[i - 1].unit, v.queues[i - 1].core);
    }
  }
  return true;
}

bool CheckQueueTasks(const ImageView& v, Checker* check) {
  for (int64_t i = 0; i < v.num_queue_tasks; ++i) {
    const int64_t task = v.queue_tasks[i];
    if (task >= v.num_tasks) {
      return check->Refuse("queue_tasks[%" PRId64
                           "]: expected 0..%d, got "
                           "%" PRId64,
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
      if (!check->Range("tasks", task, "rank", v.tasks[task].rank, q.rank,
                        q.rank) ||
          !check->Range("tasks", task, "core", v.tasks[task].core, q.core,
                        q.core)) {
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
