// The task image: one flat little-endian blob that host, simulator and NPU
// read.  Plain structs, no pointers, no host-only constructs.
//
// Coordinates.  Buffers are addressed in LOGICAL coordinates (group, row,
// column), so that regions are static while routing is dynamic:
//
//   buffer       view     group            row                 column
//   x            kRows    0                token               [0, D)
//   w_gate_up    kRows    local expert     [0, D)              [0, 2F)
//   w_down       kRows    local expert     [0, F)              [0, D)
//   expert_in    kRows    local expert     row of that expert  [0, D], D is
//                                                              the row header
//   expert_in    kSender  local expert * R row of the slice    the same
//                         + source rank    (source, expert)
//   gate_up      kRows    local expert     row of that expert  [0, 2F)
//   activation   kRows    local expert     row of that expert  [0, F)
//   expert_out   kRows    local expert     row of that expert  [0, D)
//   returned     kRows    0                token * K + slot    [0, D)
//   returned     kSender  global expert    see below           [0, D)
//   y            kRows    0                token               [0, D)
//
// Backward (an image of its own; forward tensors are its inputs):
//
//   dy             kRows    0              token               [0, D)
//   d_expert_out   as expert_in, row header included
//   d_activation   as activation
//   d_gate_up      as gate_up; column 2F is the gradient of the row's weight
//   d_expert_in    as expert_out
//   d_returned     as returned; column D is the gradient of the slot's weight
//   d_w_down       kRows    link           [0, F)              [0, D)
//   d_w_gate_up    kRows    link           [0, D)              [0, 2F)
//   dx             kRows    0              token               [0, D)
//   d_topk_weights kRows    0              token               [0, K)
//
// link = local expert * links + position in its chain: a weight gradient sums
// over the rows of its expert in row order, `chain_rows` rows a task.  All
// links of a chain accumulate in the same float32 place.
//
// A put knows which rows it SENDS, not where they land: its write region is a
// dense box in the sender view.  The launch plan is a bijection between the
// sender view and the row view (checked at launch), so boxes that tile the
// sender view write every element of the row view exactly once.  At event
// grain `expert`, a return task sends the slice (destination rank, expert) and
// names its destination rank; at grain `row_block` it sends a row block of an
// expert, whose rows go to any rank: rank kAnyRank.
//
// The row header is (slot, weight): `token * K + slot` on the source rank and
// the routing weight.  It travels with its row, so owners need no global table.
//
// Physical row of (expert, row) on its owner: expert_base[expert] + row, packed
// as design "deterministic token order" says; known at launch from `counts`.

#ifndef BACKEND_ASCEND_KERNELS_IMAGE_H_
#define BACKEND_ASCEND_KERNELS_IMAGE_H_

#include <stdint.h>

namespace hpmoe {

constexpr uint64_t kImageMagic = 0x31474D49454F4D48ull;  // "HMOEIMG1"
constexpr uint32_t kImageVersion = 2;
constexpr int32_t kAnyRank = -1;
constexpr int32_t kNoExpert = -1;
constexpr int32_t kRowBlockRange = -1;  // TaskDesc::peer: rows of an expert
constexpr int32_t kPerRow = -1;         // SignalDesc::amount: one per row

enum TaskKind : uint16_t {
  kDispatch = 0,  // AIV: puts rows [row_begin, row_end) of the slice
                  //   (rank, expert) into expert_in of the owner of `expert`
  kGateUp = 1,    // AIC: gate_up[rows, cols] = expert_in[rows] @ w_gate_up
  kSwiglu = 2,    // AIV: activation[rows, cols] = act(gate, up) [* weight]
  kDown = 3,      // AIC: expert_out[rows, cols] = activation[rows] @ w_down
  kReturn = 4,    // AIV: puts rows of expert_out into `returned` of sources
  kCombine = 5,   // AIV: y[tokens] = ordered sum over slots of `returned`
  // Backward.
  kDispatchGrad = 6,       // AIV: puts weighted rows of dy into d_expert_out
  kDownGrad = 7,           // AIC: d_activation = d_expert_out @ w_down^T
  kDownWeightGrad = 8,     // AIC: d_w_down += activation^T @ d_expert_out
  kSwigluGrad = 9,         // AIV: d_gate_up from d_activation and gate_up
  kGateUpGrad = 10,        // AIC: d_expert_in = d_gate_up @ w_gate_up^T
  kGateUpWeightGrad = 11,  // AIC: d_w_gate_up += expert_in^T @ d_gate_up
  kReturnGrad = 12,        // AIV: puts rows of d_expert_in into d_returned
  kCombineGrad = 13,       // AIV: dx[tokens] = ordered sum of d_returned
  kTopkWeightGrad = 14,    // AIV: d_topk_weights[tokens]
  kNumTaskKinds = 15,
};

enum Unit : uint16_t { kAic = 0, kAiv = 1, kNumUnits = 2 };

enum BufferId : uint16_t {
  kX = 0,
  kWGateUp = 1,
  kWDown = 2,
  kExpertIn = 3,
  kGateUpBuffer = 4,
  kActivation = 5,
  kExpertOut = 6,
  kReturned = 7,
  kY = 8,
  kDy = 9,
  kDExpertOut = 10,
  kDActivation = 11,
  kDWDown = 12,
  kDGateUp = 13,
  kDWGateUp = 14,
  kDExpertIn = 15,
  kDReturned = 16,
  kDx = 17,
  kDTopkWeights = 18,
  kNumBuffers = 19,
};

enum Direction : uint32_t { kForward = 0, kBackward = 1 };

enum View : uint16_t { kRows = 0, kSender = 1, kNumViews = 2 };

enum DType : uint32_t { kFloat32 = 0, kBFloat16 = 1 };
enum EventGrain : uint32_t { kExpertGrain = 0, kRowBlockGrain = 1 };
enum WeightPlacement : uint32_t { kAtCombine = 0, kBeforeDown = 1 };
enum ActivationKind : uint32_t { kSwigluActivation = 0, kAbsolute = 1 };

// What one unit of an event means.
enum EventMode : uint16_t {
  kCountTasks = 0,  // every writer of the partition adds 1
  kCountRows = 1,   // every row adds 1; the writer of an expert's last row
                    // adds the padding, so that the threshold is static
};

// Byte range of one table: `count` elements from `offset`, 64-byte aligned.
struct TableRef {
  uint64_t offset;
  uint64_t count;
};

struct TaskDesc {
  uint16_t kind;      // TaskKind
  uint16_t unit;      // Unit
  int32_t rank;       // rank that executes
  int32_t expert;     // global expert, or kNoExpert
  int32_t peer;       // kDispatch, kDispatchGrad: owner of `expert`; puts
                      // home at grain expert: destination rank of the
                      // slice; weight gradients: position in the chain;
                      // otherwise kRowBlockRange
  int32_t row_begin;  // slice rows, rows of the expert, tokens, or (weight
                      // gradients) rows of the weight
  int32_t row_end;
  int32_t col_begin;  // columns written
  int32_t col_end;
  int32_t row_block;  // tile coordinates for reports
  int32_t col_block;
  uint32_t wait_begin;    // into waits
  uint32_t signal_begin;  // into signals
  uint32_t region_begin;  // into regions: reads, then writes
  uint16_t wait_count;
  uint8_t read_count;
  uint8_t write_count;
  uint16_t signal_count;
  uint16_t core;  // core of its unit on its rank
  uint32_t reserved;
};
static_assert(sizeof(TaskDesc) == 64, "TaskDesc is 64 bytes");

struct WaitDesc {
  int32_t event;
  int32_t threshold;
};
static_assert(sizeof(WaitDesc) == 8, "WaitDesc is 8 bytes");

// Adds `amount` to `event`; kPerRow: for each row sent, 1 to the event
// `event + (landing row) / part_rows`, within `span` events.
struct SignalDesc {
  int32_t event;
  int32_t span;
  int32_t amount;
  int32_t rank;  // rank whose counter this is (home of the event)
};
static_assert(sizeof(SignalDesc) == 16, "SignalDesc is 16 bytes");

struct RegionDesc {
  uint16_t buffer;  // BufferId
  uint16_t view;    // View
  int32_t rank;     // or kAnyRank
  int32_t group;
  int32_t row_begin;
  int32_t row_end;
  int32_t col_begin;
  int32_t col_end;
  int32_t reserved;
};
static_assert(sizeof(RegionDesc) == 32, "RegionDesc is 32 bytes");

// A partition of a buffer's row view: group, rows [part, part + 1) * part_rows,
// cut at the end of the buffer.  In mode kCountRows the threshold is the number
// of rows of the partition (less than part_rows where it is cut).
struct EventDesc {
  int32_t threshold;  // every waiter's threshold, and the sum of all signals
  int32_t rank;       // home of the counter
  int32_t group;
  int32_t part;
  int32_t part_rows;
  uint16_t buffer;  // BufferId
  uint16_t mode;    // EventMode
};
static_assert(sizeof(EventDesc) == 24, "EventDesc is 24 bytes");

// The extent of a buffer in the view in which it is written.  Writers' boxes
// must tile it exactly.
struct SpaceDesc {
  uint16_t buffer;
  uint16_t view;
  int32_t rank;  // or kAnyRank: one space for all ranks
  int32_t groups;
  int32_t rows;
  int32_t cols;
  int32_t reserved;
};
static_assert(sizeof(SpaceDesc) == 24, "SpaceDesc is 24 bytes");

// One core's static queue: `count` entries of queue_tasks from `begin`.
struct QueueDesc {
  int32_t rank;
  uint16_t unit;
  uint16_t core;
  uint32_t begin;
  uint32_t count;
};
static_assert(sizeof(QueueDesc) == 16, "QueueDesc is 16 bytes");

struct ImageHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t total_bytes;
  uint32_t crc32;      // zlib's CRC of all bytes, this field taken as zero
  uint32_t direction;  // Direction
  // Layer.
  int32_t num_ranks;        // R
  int32_t num_tokens;       // T
  int32_t num_experts;      // E
  int32_t top_k;            // K
  int32_t d_model;          // D
  int32_t d_ff;             // F
  int32_t num_rows;         // N, packed rows per rank
  int32_t expert_capacity;  // C, rows of one expert; a multiple of row_block
  // Policy.
  uint32_t dtype;       // DType of storage; accumulation is float32
  uint32_t placement;   // WeightPlacement
  uint32_t activation;  // ActivationKind
  // Granularity and machine.
  uint32_t event_grain;
  int32_t row_block;
  int32_t col_block;
  int32_t put_rows;     // rows of one dispatch put
  int32_t token_block;  // tokens of one combine task
  int32_t num_aic;      // per rank
  int32_t num_aiv;
  int32_t chain_rows;  // backward: rows of one link of a weight gradient
  uint32_t reserved0;
  TableRef tasks;        // TaskDesc
  TableRef waits;        // WaitDesc
  TableRef signals;      // SignalDesc
  TableRef regions;      // RegionDesc
  TableRef events;       // EventDesc
  TableRef spaces;       // SpaceDesc
  TableRef queues;       // QueueDesc, sorted by (rank, unit, core)
  TableRef queue_tasks;  // uint32_t task indices
};
static_assert(sizeof(ImageHeader) == 240, "ImageHeader is 240 bytes");

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_IMAGE_H_
