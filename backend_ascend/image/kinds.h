// The one table of kinds of task and one of buffers: all that the loader, the
// proofs, the runtimes and Python (`layout.py`) know of a kind or a buffer
// follows from its row here.  Freestanding, as worker.h is.
//
// Coordinates.  Buffers are addressed in LOGICAL coordinates (group, row,
// column), so that regions are static while routing is dynamic.  What the rows
// are says in which group they lie, and where in memory:
//
//   rows    group                      row             memory
//   T, TK   0                          token, or slot  [R, rows]
//   C       local expert               row of it       [R, N], packed
//   One     0                          0               [R, 1]
//   D, F    a weight: local expert;    row of it       [E, rows]
//           its gradient: a link
//
// slot = token * K + position among the token's K.  link = local expert *
// links + position in its chain: a weight gradient sums over the rows of its
// expert in row order, `chain_rows` rows a task.  All links of a chain
// accumulate in the same float32 place.
//
// What travels beside a row is one more column.  The row header is (slot,
// weight): the slot on the source rank and the routing weight, and the scale of
// a row of codes.  It travels with its row, so owners need no global table. The
// weight's gradient is there only where an expert's rank applies the weight.
//
// A put knows which rows it SENDS, not where they land: its write region is a
// dense box in the sender view.
//
//   written by   group                           row
//   kPutRows     local expert * R + source rank  row of the slice (source,
//                                                expert)
//   kPutHome     global expert                   row of the slice (destination
//                                                rank, expert) or, at event
//                                                grain row_block, of the expert
//   kRelayRows   local expert                    row of its relayed rows
//
// Relay, an option of the lowering: a token for several experts of one rank
// crosses the link once (UniEP, arXiv 2604.19241).  A relayed row belongs to
// the lowest of those experts, and its slices hold the tokens that have no
// lower expert on the rank; so the rows of an expert are complete as soon as
// its own relayed rows and those of lower experts are there.  Beside a relayed
// row travel its copies, RowCopy of image.h.  A task of kRelayRows writes
// each of its rows to several rows of the row view, all on its rank, of its
// expert or higher ones.  The way back stays as it is: a sum of a token's rows
// on their rank would round where the layer does not.
//
// The launch plan gives every row of the row view one row of the sender view
// (checked at launch; but for kRelayRows it is a bijection), so boxes that tile
// the sender view write every element of the row view exactly once.  At event
// grain `expert` a task of kPutHome names its destination rank; at grain
// `row_block` it sends a row block of an expert, whose rows go to any rank:
// rank kAnyRank.
//
// A sub-layer of tensor parallelism is the layer rotated: it begins with the
// second GEMM, whose `activation` is an input, makes y, norms it to x, and ends
// with the first GEMM's gate_up; its backward pass likewise.  Rows go home
// before they have come, so row headers are there when it starts, as the plan
// of the launch says, and nobody waits for one.
//
// Physical row of (expert, row) on its owner: expert_base[expert] + row, packed
// as design "deterministic token order" says; known at launch from `counts`.

#ifndef BACKEND_ASCEND_IMAGE_KINDS_H_
#define BACKEND_ASCEND_IMAGE_KINDS_H_

#include <stdint.h>

namespace hpmoe {

enum Unit : uint16_t { kAic = 0, kAiv = 1, kNumUnits = 2 };
enum Direction : uint32_t { kForward = 0, kBackward = 1 };
enum Span : uint8_t { kLayer = 0, kSublayer = 1 };
enum View : uint16_t { kRows = 0, kSender = 1, kNumViews = 2 };
// Where the routing weight multiplies rows.
enum WeightPlacement : uint32_t {
  kAtCombine = 0,
  kBeforeDown = 1,
  kInEpilogue = 2,  // the sums of the second GEMM, before they are rounded
};

// Whether a pass uses a buffer, and whether its tasks write it.
enum class Use : uint8_t { kAbsent, kInput, kWritten };

// An extent, in the notation's letters; C is the rows of one expert.
enum class Axis : uint8_t { kT, kTK, kC, kD, kF, k2F, kK, kOne };

// kHeaders: those of a relayed row's copies; kScale: that of a row of codes.
enum class Beside : uint8_t { kNone, kHeader, kGrad, kHeaders, kScale };

// What an element is: of the policy's storage, or always float32; where the
// image quantises, kCode is an int8 and kSum an int32, else of the storage too.
enum class Element : uint8_t { kStored, kFloat, kCode, kSum };

// The forms of task, the same as the emitters of the lowering.  A form
// says what the rows of a tile are, who runs it and what `peer` names.
enum class Form : uint8_t {
  kNone,        // of a buffer that no task writes
  kSlicePut,    // rows of a slice, sent by `rank` to `peer`, owner of `expert`
  kExpertTile,  // rows of an expert of the rank
  kWeightTile,  // rows of a weight of an expert of the rank; link `peer`
  kHomePut,     // rows of an expert of the rank; at grain expert, rows of the
                // slice of destination rank `peer`
  kTokenTile,   // tokens of the rank, no expert
  kRelayTile,   // relayed rows of an expert of the rank
};

// The images that have a kind: all, those without relay, those with it, those
// of a layer, those of a sub-layer, which has no relay.
enum class Path : uint8_t { kAny, kDirect, kRelayed, kOfLayer, kOfSublayer };

// What a task does with the first two buffers that its kind reads, left and
// right.
enum class Work : uint8_t {
  kPutRows,         // rows of tokens to the owner of their expert
  kGemm,            // left[rows] @ right of the expert
  kGemmTransposed,  // left[rows] @ right^T
  kWeightGrad,      // += left[rows]^T @ right[rows]
  kActivation,      // of left
  kActivationGrad,  // of left, through the activation of right
  kPutHome,         // rows of an expert to the ranks of their tokens
  kSumSlots,        // of each token
  kWeightDots,      // gradients of each token's weights
  kPutOnce,         // rows of tokens to the rank of their experts, each once
  kRelayRows,       // relayed rows to the experts of their copies
  kNorm,            // rows of left by their root mean square, times right
  kNormGrad,        // of left, through the norm of right
  kGainGrad,        // sums over tokens of left times the normed right
};

struct WorkInfo {
  Form form;
  Unit unit;        // that can run it
  bool whole_rows;  // it writes all columns, whatever those of the task
  Path path = Path::kAny;
};

constexpr WorkInfo kWorks[] = {
    {Form::kSlicePut, kAiv, true, Path::kDirect},        // kPutRows
    {Form::kExpertTile, kAic, false},                    // kGemm
    {Form::kExpertTile, kAic, false},                    // kGemmTransposed
    {Form::kWeightTile, kAic, false},                    // kWeightGrad
    {Form::kExpertTile, kAiv, false, Path::kOfLayer},    // kActivation
    {Form::kExpertTile, kAiv, true, Path::kOfLayer},     // kActivationGrad
    {Form::kHomePut, kAiv, true},                        // kPutHome
    {Form::kTokenTile, kAiv, false},                     // kSumSlots
    {Form::kTokenTile, kAiv, true, Path::kOfLayer},      // kWeightDots
    {Form::kSlicePut, kAiv, true, Path::kRelayed},       // kPutOnce
    {Form::kRelayTile, kAiv, true, Path::kRelayed},      // kRelayRows
    {Form::kTokenTile, kAiv, true, Path::kOfSublayer},   // kNorm
    {Form::kTokenTile, kAiv, true, Path::kOfSublayer},   // kNormGrad
    {Form::kTokenTile, kAiv, false, Path::kOfSublayer},  // kGainGrad
};

// Rows of a read, in terms of the reader's tile.
enum class Rows : uint8_t {
  kTile,
  kTileCols,  // the tile's columns: a transposed weight
  kAll,       // of the buffer
  kSlots,     // all slots of the tile's tokens
  kSummed,    // those that a link of a weight gradient sums
  kHome,      // the tile's; of a slice any row of the expert: where it lies
              // there is known at launch only
};

// Columns of a read.
enum class Cols : uint8_t {
  kTile,
  kTileRows,   // the tile's rows: the left side of a weight gradient
  kGateAndUp,  // of the tile, and what lies between
  kAll,        // of the buffer, without what travels beside
  kBeside,     // what travels beside
};

// The images in which a kind reads a buffer, or applies the routing weight.
enum class When : uint8_t {
  kAlways,
  kUnweighted,  // never
  kAtCombine,   // these three as WeightPlacement
  kBeforeDown,
  kInEpilogue,
  kEarly,  // where an expert's rank applies the weight: either of the last two
  kNotFirstLink,
  kInLayer,    // in a sub-layer the plan of the launch says it
  kQuantised,  // where rows are codes, with a scale beside them
  kBeforeDownOrQuantised,
};

// clang-format off

// Buffers.  Id; the design's tensor; its use in the forward and the backward
// pass of a layer; rows; columns; what travels beside them; element.  Backward is an image
// of its own: forward tensors are its inputs.
#define HPMOE_BUFFERS(B)                                                       \
  B(kX,            "x",              Input,   Absent,  T,  D,  None,   Stored) \
  B(kWGateUp,      "w_gate_up",      Input,   Input,   D,  2F, None,   Code)   \
  B(kWDown,        "w_down",         Input,   Input,   F,  D,  None,   Code)   \
  B(kXRelayed,     "x_relayed",      Written, Absent,  C,  D,  Headers, Code)   \
  B(kExpertIn,     "expert_in",      Written, Input,   C,  D,  Header, Code)   \
  B(kGateUpBuffer, "gate_up",        Written, Input,   C,  2F, None,   Sum)    \
  B(kActivation,   "activation",     Written, Input,   C,  F,  Scale,  Code)   \
  B(kExpertOut,    "expert_out",     Written, Absent,  C,  D,  None,   Sum)    \
  B(kReturned,     "returned",       Written, Input,   TK, D,  None,   Stored) \
  B(kY,            "y",              Written, Absent,  T,  D,  None,   Stored) \
  B(kDy,           "dy",             Absent,  Input,   T,  D,  None,   Stored) \
  B(kDyRelayed,    "dy_relayed",     Absent,  Written, C,  D,  Headers, Stored) \
  B(kDExpertOut,   "d_expert_out",   Absent,  Written, C,  D,  Header, Stored) \
  B(kDActivation,  "d_activation",   Absent,  Written, C,  F,  None,   Stored) \
  B(kDWDown,       "d_w_down",       Absent,  Written, F,  D,  None,   Stored) \
  B(kDGateUp,      "d_gate_up",      Absent,  Written, C,  2F, Grad,   Stored) \
  B(kDWGateUp,     "d_w_gate_up",    Absent,  Written, D,  2F, None,   Stored) \
  B(kDExpertIn,    "d_expert_in",    Absent,  Written, C,  D,  None,   Stored) \
  B(kDReturned,    "d_returned",     Absent,  Written, TK, D,  Grad,   Stored) \
  B(kDx,           "dx",             Absent,  Written, T,  D,  None,   Stored) \
  B(kDTopkWeights, "d_topk_weights", Absent,  Written, T,  K,  None,   Float)  \
  B(kWNorm,        "w_norm",         Absent,  Absent,  One, D, None,   Stored) \
  B(kDWNorm,       "d_w_norm",       Absent,  Absent,  One, D, None,   Float)

// Kinds of task, those of a layer's pass in dependency order.  Id; name; work; the
// buffer that only it writes; when it applies the routing weight; all that it
// reads, left and right first.
#define HPMOE_KINDS(KIND)                                                      \
  KIND(kDispatch, "dispatch", PutRows, kExpertIn, kUnweighted,                 \
       {kX, Rows::kAll, Cols::kAll})                                           \
  KIND(kRelayPut, "relay_put", PutOnce, kXRelayed, kUnweighted,                \
       {kX, Rows::kAll, Cols::kAll})                                           \
  KIND(kRelay, "relay", RelayRows, kExpertIn, kUnweighted,                     \
       {kXRelayed, Rows::kTile, Cols::kAll},                                   \
       {kXRelayed, Rows::kTile, Cols::kBeside})                                \
  KIND(kGateUp, "gate_up", Gemm, kGateUpBuffer, kUnweighted,                   \
       {kExpertIn, Rows::kTile, Cols::kAll},                                   \
       {kWGateUp, Rows::kAll, Cols::kTile})                                    \
  KIND(kSwiglu, "swiglu", Activation, kActivation, kBeforeDown,                \
       {kGateUpBuffer, Rows::kTile, Cols::kGateAndUp},                         \
       {kExpertIn, Rows::kTile, Cols::kBeside, When::kBeforeDownOrQuantised})  \
  KIND(kDown, "down", Gemm, kExpertOut, kInEpilogue,                           \
       {kActivation, Rows::kTile, Cols::kAll},                                 \
       {kWDown, Rows::kAll, Cols::kTile},                                      \
       {kExpertIn, Rows::kTile, Cols::kBeside, When::kInEpilogue})             \
  KIND(kReturn, "return", PutHome, kReturned, kUnweighted,                     \
       {kExpertOut, Rows::kHome, Cols::kAll},                                  \
       {kExpertIn, Rows::kHome, Cols::kBeside, When::kInLayer},                \
       {kActivation, Rows::kHome, Cols::kBeside, When::kQuantised})            \
  KIND(kCombine, "combine", SumSlots, kY, kAtCombine,                          \
       {kReturned, Rows::kSlots, Cols::kTile})                                 \
  KIND(kDispatchGrad, "dispatch_grad", PutRows, kDExpertOut, kAtCombine,       \
       {kDy, Rows::kAll, Cols::kAll})                                          \
  KIND(kRelayPutGrad, "relay_put_grad", PutOnce, kDyRelayed, kUnweighted,      \
       {kDy, Rows::kAll, Cols::kAll})                                          \
  KIND(kRelayGrad, "relay_grad", RelayRows, kDExpertOut, kAtCombine,           \
       {kDyRelayed, Rows::kTile, Cols::kAll},                                  \
       {kDyRelayed, Rows::kTile, Cols::kBeside})                               \
  KIND(kDownGrad, "down_grad", GemmTransposed, kDActivation, kUnweighted,      \
       {kDExpertOut, Rows::kTile, Cols::kAll},                                 \
       {kWDown, Rows::kTileCols, Cols::kAll})                                  \
  KIND(kDownWeightGrad, "down_weight_grad", WeightGrad, kDWDown, kInEpilogue,  \
       {kActivation, Rows::kSummed, Cols::kTileRows},                          \
       {kDExpertOut, Rows::kSummed, Cols::kTile},                              \
       {kDWDown, Rows::kTile, Cols::kTile, When::kNotFirstLink},               \
       {kDExpertOut, Rows::kSummed, Cols::kBeside, When::kInEpilogue})         \
  KIND(kSwigluGrad, "swiglu_grad", ActivationGrad, kDGateUp, kEarly,           \
       {kDActivation, Rows::kTile, Cols::kAll},                                \
       {kGateUpBuffer, Rows::kTile, Cols::kAll},                               \
       {kDExpertOut, Rows::kTile, Cols::kBeside, When::kEarly},                \
       {kActivation, Rows::kTile, Cols::kAll, When::kInEpilogue})              \
  KIND(kGateUpGrad, "gate_up_grad", GemmTransposed, kDExpertIn, kUnweighted,   \
       {kDGateUp, Rows::kTile, Cols::kAll},                                    \
       {kWGateUp, Rows::kTileCols, Cols::kAll})                                \
  KIND(kGateUpWeightGrad, "gate_up_weight_grad", WeightGrad, kDWGateUp,        \
       kUnweighted,                                                            \
       {kExpertIn, Rows::kSummed, Cols::kTileRows},                            \
       {kDGateUp, Rows::kSummed, Cols::kTile},                                 \
       {kDWGateUp, Rows::kTile, Cols::kTile, When::kNotFirstLink})             \
  KIND(kReturnGrad, "return_grad", PutHome, kDReturned, kUnweighted,           \
       {kDExpertIn, Rows::kHome, Cols::kAll},                                  \
       {kDExpertOut, Rows::kHome, Cols::kBeside, When::kInLayer},              \
       {kDGateUp, Rows::kHome, Cols::kBeside, When::kEarly})                   \
  KIND(kCombineGrad, "combine_grad", SumSlots, kDx, kUnweighted,               \
       {kDReturned, Rows::kSlots, Cols::kTile})                                \
  KIND(kTopkWeightGrad, "topk_weight_grad", WeightDots, kDTopkWeights,         \
       kUnweighted,                                                            \
       {kDy, Rows::kTile, Cols::kAll, When::kAtCombine},                       \
       {kReturned, Rows::kSlots, Cols::kAll, When::kAtCombine},                \
       {kDReturned, Rows::kSlots, Cols::kBeside, When::kEarly})                \
  KIND(kNorm, "norm", Norm, kX, kUnweighted,                                   \
       {kY, Rows::kTile, Cols::kAll},                                          \
       {kWNorm, Rows::kAll, Cols::kAll})                                       \
  KIND(kNormGrad, "norm_grad", NormGrad, kDy, kUnweighted,                     \
       {kDx, Rows::kTile, Cols::kAll},                                         \
       {kY, Rows::kTile, Cols::kAll},                                          \
       {kWNorm, Rows::kAll, Cols::kAll})                                       \
  KIND(kGainGrad, "gain_grad", GainGrad, kDWNorm, kUnweighted,                 \
       {kDx, Rows::kAll, Cols::kTile},                                         \
       {kY, Rows::kAll, Cols::kAll})

// clang-format on

#define HPMOE_ID(id, ...) id,
enum BufferId : uint16_t { HPMOE_BUFFERS(HPMOE_ID) kNumBuffers };
enum TaskKind : uint16_t { HPMOE_KINDS(HPMOE_ID) kNumTaskKinds };
#undef HPMOE_ID

struct BufferInfo {
  const char* name;  // of the design's tensor
  Use use[2];        // by Direction, in a layer
  Axis rows, cols;
  Beside beside;
  Element element;
};

struct ReadSpec {
  BufferId buffer = kNumBuffers;  // kNumBuffers: no read
  Rows rows = Rows::kTile;
  Cols cols = Cols::kTile;
  When when = When::kAlways;
};

constexpr int kMaxReads = 4;

struct KindInfo {
  const char* name;
  Work work;
  BufferId written;
  When weighted;  // it applies the routing weight
  ReadSpec reads[kMaxReads];

  constexpr const WorkInfo& info() const {
    return kWorks[static_cast<int>(work)];
  }
  constexpr Form form() const { return info().form; }
  constexpr BufferId left() const { return reads[0].buffer; }
  constexpr BufferId right() const { return reads[1].buffer; }
  constexpr int num_reads() const {
    int n = 0;
    while (n < kMaxReads && reads[n].buffer != kNumBuffers) ++n;
    return n;
  }
};

#define HPMOE_ROW(id, name, forward, backward, rows, cols, beside, element) \
  {name,                                                                    \
   {Use::k##forward, Use::k##backward},                                     \
   Axis::k##rows,                                                           \
   Axis::k##cols,                                                           \
   Beside::k##beside,                                                       \
   Element::k##element},
constexpr BufferInfo kBuffers[] = {HPMOE_BUFFERS(HPMOE_ROW)};
#undef HPMOE_ROW

#define HPMOE_ROW(id, name, work, written, weighted, ...) \
  {name, Work::k##work, written, When::weighted, {__VA_ARGS__}},
constexpr KindInfo kKinds[] = {HPMOE_KINDS(HPMOE_ROW)};
#undef HPMOE_ROW

constexpr bool IsWritten(int buffer, int direction) {
  return kBuffers[buffer].use[direction] == Use::kWritten;
}

// The pass that a kind belongs to: backward where it writes what the forward
// pass of a layer does not have.
constexpr Direction DirectionOf(int kind) {
  const Use use = kBuffers[kKinds[kind].written].use[kForward];
  return use != Use::kAbsent ? kForward : kBackward;
}

// Images of a layer without relay and with it, and of a sub-layer.
enum Variant : uint8_t { kIsDirect, kIsRelayed, kIsSublayer, kNumVariants };

constexpr bool HasKind(int kind, int variant) {
  switch (kKinds[kind].info().path) {
    case Path::kDirect:
      return variant != kIsRelayed;
    case Path::kRelayed:
      return variant == kIsRelayed;
    case Path::kOfLayer:
      return variant != kIsSublayer;
    case Path::kOfSublayer:
      return variant == kIsSublayer;
    default:
      return true;
  }
}

// Form of the one kind that writes a buffer; kNone where none does.
constexpr Form FindForm(int buffer, int variant) {
  for (int k = 0; k < kNumTaskKinds; ++k) {
    if (kKinds[k].written == buffer && HasKind(k, variant)) {
      return kKinds[k].form();
    }
  }
  return Form::kNone;
}

struct BufferForms {
  Form of[kNumVariants][kNumBuffers];
};
constexpr BufferForms FindForms() {
  BufferForms forms{};
  for (int b = 0; b < kNumBuffers; ++b) {
    for (int v = 0; v < kNumVariants; ++v) forms.of[v][b] = FindForm(b, v);
  }
  return forms;
}
constexpr BufferForms kBufferForms = FindForms();
constexpr Form BufferForm(int buffer, int variant) {
  return kBufferForms.of[variant][buffer];
}

// How a pass of a sub-layer uses a buffer: as its kinds do.
struct SublayerUses {
  Use of[2][kNumBuffers];
};
constexpr SublayerUses FindSublayerUses() {
  SublayerUses uses{};
  for (int k = 0; k < kNumTaskKinds; ++k) {
    if (!HasKind(k, kIsSublayer)) continue;
    Use* const of = uses.of[DirectionOf(k)];
    of[kKinds[k].written] = Use::kWritten;
    for (const ReadSpec& read : kKinds[k].reads) {
      if (read.buffer == kNumBuffers || read.when == When::kInLayer) continue;
      if (of[read.buffer] == Use::kAbsent) of[read.buffer] = Use::kInput;
    }
  }
  return uses;
}
constexpr SublayerUses kSublayerUses = FindSublayerUses();

// What writes in the sender view and is complete at its events only.  A relay
// writes on its own rank, where only the rows that it reads say.
constexpr bool IsPut(Form form) {
  return form == Form::kSlicePut || form == Form::kHomePut ||
         form == Form::kRelayTile;
}

// Whether rows of what a form of task writes are packed, experts ascending:
// those past the rank's last valid one belong to nobody.
constexpr bool IsPacked(Form form) {
  return form == Form::kSlicePut || form == Form::kExpertTile ||
         form == Form::kRelayTile;
}

// Rows on their way, which nobody asks a launch for but to check it.
constexpr bool IsRelayed(int buffer) {
  return kBuffers[buffer].beside == Beside::kHeaders;
}

constexpr bool IsWeight(Axis rows) {
  return rows == Axis::kD || rows == Axis::kF;
}

// Every buffer that a pass writes has one kind that writes it, relayed rows
// only where there are any, and kinds read and write what their pass has.
constexpr bool TablesAgree(bool relay) {
  for (int b = 0; b < kNumBuffers; ++b) {
    int writers = 0;
    for (int k = 0; k < kNumTaskKinds; ++k) {
      writers += kKinds[k].written == b && HasKind(k, relay);
    }
    const bool has = relay || !IsRelayed(b);
    if (writers != has * (IsWritten(b, kForward) + IsWritten(b, kBackward))) {
      return false;
    }
  }
  for (int k = 0; k < kNumTaskKinds; ++k) {
    if (!HasKind(k, relay)) continue;
    for (int i = 0; i < kKinds[k].num_reads(); ++i) {
      const BufferInfo& read = kBuffers[kKinds[k].reads[i].buffer];
      if (read.use[DirectionOf(k)] == Use::kAbsent) return false;
    }
  }
  return true;
}
static_assert(TablesAgree(false) && TablesAgree(true),
              "kinds and buffers agree");

// "unknown" out of range.
constexpr const char* BufferName(int buffer) {
  return buffer < kNumBuffers ? kBuffers[buffer].name : "unknown";
}
constexpr const char* KindName(int kind) {
  return kind < kNumTaskKinds ? kKinds[kind].name : "unknown";
}
constexpr const char* UnitName(int unit) {
  return unit == kAic ? "AIC" : unit == kAiv ? "AIV" : "unknown";
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_IMAGE_KINDS_H_
