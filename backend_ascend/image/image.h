// The task image: one flat little-endian blob that host, simulator and NPU
// read.  Plain structs, no pointers, no host-only constructs.

#ifndef BACKEND_ASCEND_IMAGE_IMAGE_H_
#define BACKEND_ASCEND_IMAGE_IMAGE_H_

#include <stdint.h>

#include "backend_ascend/image/dtypes.h"
#include "backend_ascend/image/kinds.h"

namespace hpmoe {

constexpr uint64_t kImageMagic = 0x31474D49454F4D48ull;  // "HMOEIMG1"
constexpr uint32_t kImageVersion = 3;
constexpr int32_t kAnyRank = -1;
constexpr int32_t kNoExpert = -1;
constexpr int32_t kRowBlockRange = -1;  // TaskDesc::peer: rows of an expert
constexpr int32_t kPerRow = -1;         // SignalDesc::amount: one per row

enum EventGrain : uint32_t { kExpertGrain = 0, kRowBlockGrain = 1 };
enum ActivationKind : uint32_t { kSwigluActivation = 0, kAbsolute = 1 };

// What products multiply: values of the storage, or int8 codes, of rows with a
// scale each and of weights with one for each column, summed in int32.  In the
// last, as in Ascend's operators, gate, up and activation stay in float32 until
// codes are made of them; else they are rounded to the storage first.
enum Quantised : uint16_t {
  kOfValues = 0,
  kInt8TokenChannel = 1,
  kInt8TokenChannelWide = 2
};
// Terms of two codes of 8 bits that an int32 can sum.
constexpr int32_t kMaxCodeDepth = 0x7FFFFFFF / (128 * 128);

// What a norm adds to the mean square, as precision.EPSILONS has them.
constexpr float kEpsilons[] = {1e-6f, 1e-5f};
constexpr int kNumEpsilons = 2;

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
  int32_t peer;       // puts of slices: owner of `expert`; puts
                      // home at grain expert: destination rank of the
                      // slice; weight gradients: position in the chain;
                      // otherwise kRowBlockRange
  int32_t row_begin;  // slice rows, rows of the expert (relays: those that
                      // were relayed for it), tokens, or (weight
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
  uint16_t direction;  // Direction
  uint8_t span;        // Span
  uint8_t epsilon;     // of a sub-layer's norm, into kEpsilons
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
  uint16_t activation;  // ActivationKind
  // AccumulationOrder.  It was the upper half of `activation` while there was
  // one order, and so 0.
  uint16_t accumulation_order;
  // Granularity and machine.
  uint32_t event_grain;
  int32_t row_block;
  int32_t col_block;
  int32_t put_rows;     // rows of one dispatch put
  int32_t token_block;  // tokens of one combine task
  int32_t num_aic;      // per rank
  int32_t num_aiv;
  int32_t chain_rows;    // backward: rows of one link of a weight gradient
  uint16_t relay;        // 1: a token crosses to a rank once; kinds.h
  uint16_t quantised;    // Quantised.  It was the upper half of `relay`
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

// What a relayed row carries beside it: where on its rank one copy of it goes,
// the slot and the weight of that copy's row header.  It has as many of them as
// a token can have experts on a rank; those that it does not need have row -1.
struct RowCopy {
  int32_t row;  // packed, of the rank
  int32_t slot;
  float weight;
};
static_assert(sizeof(RowCopy) == 12, "RowCopy is 12 bytes");

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_IMAGE_IMAGE_H_
