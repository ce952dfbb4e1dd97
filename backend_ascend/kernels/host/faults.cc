#include "backend_ascend/kernels/host/faults.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace hpmoe {
namespace {

constexpr const char* kFaultNames[] = {"none",
                                       "zero_output",
                                       "dropped_tile",
                                       "swapped_experts",
                                       "stale_row",
                                       "lost_k_slot",
                                       "misplaced_weight",
                                       "missing_wait",
                                       "missing_signal",
                                       "early_signal",
                                       "wrong_offset",
                                       "off_by_one_row",
                                       "early_rounding",
                                       "wrong_accumulation"};
static_assert(sizeof(kFaultNames) / sizeof(kFaultNames[0]) ==
                  static_cast<size_t>(FaultKind::kNumFaultKinds),
              "every fault has a name");

struct Bytes {
  char* data;
  size_t size;
};

// One entry per row that the task writes.
std::vector<Bytes> WrittenRows(const TaskDesc& task, const Layer& layer) {
  const ImageHeader& image = *layer.image;
  const RowRange rows = RealRows(task, layer);
  std::vector<Bytes> written;
  if (rows.count() == 0) return written;
  const auto add = [&](void* data, int64_t elements) {
    written.push_back({static_cast<char*>(data),
                       static_cast<size_t>(elements * layer.ElementBytes())});
  };
  const auto add_tile = [&](void* data, int64_t ld, int32_t cols) {
    for (int64_t i = 0; i < rows.count(); ++i) {
      add(static_cast<char*>(data) + i * ld * layer.ElementBytes(), cols);
    }
  };
  switch (task.kind) {
    case kDispatch: {
      const int32_t owner = task.expert / (image.num_experts / image.num_ranks);
      add_tile(layer.At(layer.out.expert_in, owner, image.num_rows,
                        FirstRow(task, layer), image.d_model, 0),
               image.d_model, image.d_model);
      break;
    }
    case kGateUp:
    case kDown: {
      const GemmTile tile = MakeGemmTile(task, task.expert, layer);
      add_tile(tile.c, tile.ldc, tile.n);
      break;
    }
    case kSwiglu: {
      const SwigluTile tile = MakeSwigluTile(task, layer);
      add_tile(tile.out, tile.ld_out, tile.cols);
      break;
    }
    case kReturn: {
      const int64_t slots = int64_t{image.num_tokens} * image.top_k;
      ForEachReturned(task, layer, [&](int32_t, int32_t source, int32_t slot) {
        add(layer.At(layer.out.returned, source, slots, slot, image.d_model, 0),
            image.d_model);
      });
      break;
    }
    case kCombine: {
      const CombineTile tile = MakeCombineTile(task, layer);
      add_tile(tile.y, tile.ld_y, tile.cols);
      break;
    }
  }
  return written;
}

std::vector<char> Gather(const std::vector<Bytes>& rows) {
  std::vector<char> bytes;
  for (const Bytes& row : rows) {
    bytes.insert(bytes.end(), row.data, row.data + row.size);
  }
  return bytes;
}

// Another token of the rank overwrites the first row that it would change.
void SpoilStaleRow(const TaskDesc& task, const Layer& layer,
                   const std::vector<Bytes>& written) {
  const ImageHeader& image = *layer.image;
  for (const Bytes& row : written) {
    for (int32_t t = 0; t < image.num_tokens; ++t) {
      const char* other = layer.At(layer.in.x, task.rank, image.num_tokens, t,
                                   image.d_model, 0);
      if (std::memcmp(row.data, other, row.size) == 0) continue;
      std::memcpy(row.data, other, row.size);
      return;
    }
  }
}

void SpoilWrongOffset(const Layer& layer, const std::vector<Bytes>& written) {
  const size_t shift = layer.ElementBytes();
  for (const Bytes& row : written) {
    const std::vector<char> sent(row.data, row.data + row.size);
    std::memcpy(row.data, sent.data() + shift, row.size - shift);
    std::memcpy(row.data + row.size - shift, sent.data(), shift);
  }
}

void SpoilOffByOneRow(const std::vector<Bytes>& written) {
  const std::vector<char> sent = Gather(written);
  for (size_t i = 0; i < written.size(); ++i) {
    const size_t next = (i + 1) % written.size();
    std::memcpy(written[i].data, sent.data() + next * written[i].size,
                written[i].size);
  }
}

// The task's tile narrowed to one token.
CombineTile OneToken(const CombineTile& tile, int32_t token,
                     const Layer& layer) {
  const int64_t bytes = layer.ElementBytes();
  CombineTile one = tile;
  one.tokens = 1;
  one.returned = static_cast<const char*>(tile.returned) +
                 int64_t{token} * tile.top_k * tile.ld * bytes;
  one.y = static_cast<char*>(tile.y) + token * tile.ld_y * bytes;
  if (tile.weights != nullptr) one.weights = tile.weights + token * tile.top_k;
  return one;
}

// The first token whose sum changes is summed without its last slot.
void SpoilLostSlot(const TaskDesc& task, const Layer& layer,
                   const std::vector<Bytes>& written) {
  const CombineTile tile = MakeCombineTile(task, layer);
  for (int32_t token = 0; token < tile.tokens; ++token) {
    const Bytes& row = written[token];
    const std::vector<char> sum(row.data, row.data + row.size);
    // The kernel reads [tokens, top_k] rows, so a token with a slot less is a
    // tile of its own.
    CombineTile one = OneToken(tile, token, layer);
    one.top_k -= 1;
    RunCombineTile(one, layer.isa);
    if (std::memcmp(sum.data(), row.data, row.size) != 0) return;
  }
}

// The first token whose sum changes takes every weight from its next slot.
void SpoilCombineWeight(const TaskDesc& task, const Layer& layer,
                        const std::vector<Bytes>& written) {
  const CombineTile tile = MakeCombineTile(task, layer);
  for (int32_t token = 0; tile.weights && token < tile.tokens; ++token) {
    const Bytes& row = written[token];
    const std::vector<char> sum(row.data, row.data + row.size);
    CombineTile one = OneToken(tile, token, layer);
    std::vector<float> weights(one.weights + 1, one.weights + one.top_k);
    weights.push_back(one.weights[0]);
    one.weights = weights.data();
    RunCombineTile(one, layer.isa);
    if (std::memcmp(sum.data(), row.data, row.size) != 0) return;
  }
}

// The first row that changes takes the weight of the next row of the tile.
void SpoilRowWeight(const TaskDesc& task, const Layer& layer,
                    const std::vector<Bytes>& written) {
  const SwigluTile tile = MakeSwigluTile(task, layer);
  for (int32_t i = 0; tile.row_weight && i < tile.rows; ++i) {
    const Bytes& row = written[i];
    const std::vector<char> right(row.data, row.data + row.size);
    const int64_t in = i * tile.ld_in * layer.ElementBytes();
    SwigluTile one = tile;
    one.rows = 1;
    one.gate = static_cast<const char*>(tile.gate) + in;
    one.up = static_cast<const char*>(tile.up) + in;
    one.out = row.data;
    one.row_weight = tile.row_weight + (i + 1) % tile.rows;
    RunSwigluTile(one, layer.isa);
    if (std::memcmp(right.data(), row.data, row.size) != 0) return;
  }
}

void Spoil(const TaskDesc& task, FaultKind kind, const Layer& layer,
           const std::vector<Bytes>& written, GemmScratch* scratch) {
  const ImageHeader& image = *layer.image;
  const bool gemm = task.kind == kGateUp || task.kind == kDown;
  const bool put = task.kind == kDispatch || task.kind == kReturn;
  if (kind == FaultKind::kZeroOutput) {
    for (const Bytes& row : written) std::memset(row.data, 0, row.size);
  } else if (kind == FaultKind::kSwappedExperts && gemm) {
    const int32_t next = (task.expert + 1) % image.num_experts;
    RunGemmTile(MakeGemmTile(task, next, layer), layer.isa, scratch);
  } else if (kind == FaultKind::kWrongAccumulation && gemm) {
    RunGemmTileBf16Accumulate(MakeGemmTile(task, task.expert, layer));
  } else if (kind == FaultKind::kStaleRow && task.kind == kDispatch) {
    SpoilStaleRow(task, layer, written);
  } else if (kind == FaultKind::kWrongOffset && put) {
    SpoilWrongOffset(layer, written);
  } else if (kind == FaultKind::kOffByOneRow && task.kind == kReturn) {
    SpoilOffByOneRow(written);
  } else if (kind == FaultKind::kLostKSlot && task.kind == kCombine) {
    if (image.top_k > 1) SpoilLostSlot(task, layer, written);
  } else if (kind == FaultKind::kMisplacedWeight && task.kind == kCombine) {
    SpoilCombineWeight(task, layer, written);
  } else if (kind == FaultKind::kMisplacedWeight && task.kind == kSwiglu) {
    SpoilRowWeight(task, layer, written);
  } else if (kind == FaultKind::kEarlyRounding && task.kind == kSwiglu) {
    SwigluTile tile = MakeSwigluTile(task, layer);
    tile.early_rounding = true;
    RunSwigluTile(tile, layer.isa);
  }
}

}  // namespace

const char* FaultName(FaultKind kind) {
  const auto number = static_cast<int32_t>(kind);
  if (number < 0 || kind >= FaultKind::kNumFaultKinds) return nullptr;
  return kFaultNames[number];
}

FaultKind FaultByName(const char* name) {
  for (int32_t i = 1; i < static_cast<int32_t>(FaultKind::kNumFaultKinds);
       ++i) {
    if (std::strcmp(name, kFaultNames[i]) == 0) return FaultKind{i};
  }
  return FaultKind::kNone;
}

bool IsOrderFault(FaultKind kind) {
  return kind == FaultKind::kMissingWait || kind == FaultKind::kMissingSignal ||
         kind == FaultKind::kEarlySignal;
}

bool RunFaulty(const TaskDesc& task, FaultKind kind, const Layer& layer,
               GemmScratch* scratch) {
  if (RealRows(task, layer).count() == 0) return false;
  if (kind == FaultKind::kDroppedTile) return true;
  RunTask(task, layer, scratch);
  const std::vector<Bytes> written = WrittenRows(task, layer);
  const std::vector<char> right = Gather(written);
  Spoil(task, kind, layer, written, scratch);
  return Gather(written) != right;
}

}  // namespace hpmoe
