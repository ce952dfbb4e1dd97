// The GEMM tiles of a cube core (AIC).
//
// A tile's sums stay in L0C over its whole depth, in one strip of columns or in
// two.  Its sides come in stages: a stage of L1 is filled (MTE2) while the
// other is read (MTE1), and so of L0 (MTE1 against M).  Of each stage of L1 the
// strips take their terms in turn, and strips take the halves of L0C in turn,
// so one moves out (FIX) while the next adds up (M).  Stages and halves go on
// from tile to tile: the first moves of a tile run beside the last products of
// the one before.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_CORE_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_CORE_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/cube_load.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/tile_budget.h"

namespace hpmoe {

// `T` is what is multiplied: float, bfloat16_t or int8_t.  Codes have no carry.
template <typename T>
class CubeCore {
 public:
  HPMOE_FUNCTION explicit CubeCore(const HPMOE_GM Constants* constants)
      : constants_(constants) {}

  // Before the first tile.
  HPMOE_FUNCTION void Start() {
    // Whatever ran before.
    KeepFloats();
    for (int32_t part = 0; part < kStages * kParts; ++part) {
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(part);
    }
    for (int32_t stage = 0; stage < kStages; ++stage) {
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(stage);
    }
    for (int32_t half = 0; half < kSums; ++half) {
      AscendC::SetFlag<AscendC::HardEvent::FIX_M>(half);
    }
  }

  // After the last, and whenever the core ends: no flag stays set.
  HPMOE_FUNCTION void Finish() {
    for (int32_t part = 0; part < kStages * kParts; ++part) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(part);
    }
    for (int32_t stage = 0; stage < kStages; ++stage) {
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(stage);
    }
    for (int32_t half = 0; half < kSums; ++half) {
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(half);
    }
  }

  // Returns when the tile is issued: what follows it waits for FIX.
  HPMOE_FUNCTION void Run(const CubeTile& tile) {
    const bool carry_in = tile.carry != nullptr && tile.carry_in;
    const bool carry_out = tile.carry != nullptr && tile.carry_out;
    if (tile.m <= 0 || tile.n <= 0) return;
    if (carry_in && carry_out && tile.k == 0) return;  // carry stays as it is
    Cut(tile);
    if constexpr (!kIsCode<T>) {
      if (carry_in) AddCarry(tile);
    }
    if (tile.k > 0) AddProduct(tile);
    if (!carry_in && tile.k == 0) AddZeros(tile);
  }

 private:
  // A strip of columns of the tile.
  struct Strip {
    int32_t begin, width;
    int32_t half;  // of L0C, that has its sums
    bool empty;    // they have no product yet
  };

  using Sum = typename Product<T>::Sum;

  // Parts of a stage of L1, each with a flag: the left side, then the right
  // side of each strip.
  static constexpr int32_t kParts = 1 + kSums;

  HPMOE_FUNCTION void Cut(const CubeTile& tile) {
    const int32_t width = StripOf(tile.m, tile.n, sizeof(T));
    num_strips_ = DivideUp(tile.n, width);
    for (int32_t i = 0; i < num_strips_; ++i) {
      const int32_t begin = i * width;
      strips_[i] = {begin, Least(width, tile.n - begin), half_, true};
      half_ = 1 - half_;
    }
  }

  HPMOE_FUNCTION void AddProduct(const CubeTile& tile) {
    const Side<T> a = {reinterpret_cast<HPMOE_GM T*>(tile.a), tile.lda, tile.m,
                       tile.trans_a};
    const Side<T> b = {reinterpret_cast<HPMOE_GM T*>(tile.b), tile.ldb, tile.n,
                       !tile.trans_b};
    Add(a, b, tile.k, tile, /*last=*/true);
  }

  // identity @ carry: exact for finite values, but for the sign of a zero.
  HPMOE_FUNCTION void AddCarry(const CubeTile& tile) {
    const Side<float> a = {const_cast<HPMOE_GM float*>(constants_->identity),
                           kIdentityRows, tile.m, /*depth_major=*/false};
    const Side<float> b = {tile.carry, tile.ld_carry, tile.n,
                           /*depth_major=*/true};
    Add(a, b, tile.m, tile, /*last=*/tile.k == 0);
  }

  HPMOE_FUNCTION void AddZeros(const CubeTile& tile) {
    auto* const zeros = reinterpret_cast<HPMOE_GM T*>(
        const_cast<HPMOE_GM float*>(constants_->zeros));
    const Side<T> a = {zeros, tile.m, tile.m, /*depth_major=*/true};
    const Side<T> b = {zeros, tile.n, tile.n, /*depth_major=*/true};
    Add(a, b, 1, tile, /*last=*/true);
  }

  // Sums += a @ b over `depth` terms; `last`: then they move out.  The next
  // stage of L1 is on its way before this one is read.
  template <typename U>
  HPMOE_FUNCTION void Add(const Side<U>& a, const Side<U>& b, int32_t depth,
                          const CubeTile& tile, bool last) {
    const CubeDepths depths = DepthsOf(a.width, b.width, sizeof(U));
    // Stages are alike, so that none fills longer than another is read.
    const int32_t stages = DivideUp(depth, depths.l1);
    const int32_t step = RoundUp(DivideUp(depth, stages), depths.l0);
    Fill(a, b, 0, Least(step, depth));
    for (int32_t begin = 0; begin < depth; begin += step) {
      const int32_t next = begin + step;
      if (next < depth) Fill(a, b, next, Least(step, depth - next));
      const int32_t l1_depth = Least(step, depth - begin);
      for (int32_t i = 0; i < num_strips_; ++i) {
        AddStage(a, b, i, l1_depth, depths.l0);
        if (last && next >= depth) Store(tile, strips_[i]);
      }
      read_ = 1 - read_;
    }
  }

  // The right side of a strip.
  template <typename U>
  HPMOE_FUNCTION static Side<U> SideOf(const Side<U>& b, const Strip& strip) {
    const int64_t step = b.depth_major ? 1 : b.ld;
    return {b.data + strip.begin * step, b.ld, strip.width, b.depth_major};
  }

  // Terms [begin, begin + depth) into a stage of L1.
  template <typename U>
  HPMOE_FUNCTION void Fill(const Side<U>& a, const Side<U>& b, int32_t begin,
                           int32_t depth) {
    FillPart(a, begin, depth, 0, 0);
    int32_t at = L1BytesOf(a, depth);
    for (int32_t i = 0; i < num_strips_; ++i) {
      const Side<U> side = SideOf(b, strips_[i]);
      FillPart(side, begin, depth, 1 + i, at);
      at += L1BytesOf(side, depth);
    }
    filled_ = 1 - filled_;
  }

  // The side is a part of its own, from byte `at` of the stage on.
  template <typename U>
  HPMOE_FUNCTION void FillPart(const Side<U>& side, int32_t begin,
                               int32_t depth, int32_t part, int32_t at) {
    const int32_t flag = filled_ * kParts + part;
    // MTE1 has read what was there.
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(flag);
    MoveToL1(side, begin, depth, StageOfL1<U>(filled_, at));
    // The part is there for MTE1.
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(flag);
  }

  // All terms of a stage of L1 of one strip, in stages of L0.
  template <typename U>
  HPMOE_FUNCTION void AddStage(const Side<U>& a, const Side<U>& b,
                               int32_t strip, int32_t depth, int32_t l0_depth) {
    const int32_t flag = read_ * kParts;
    // MTE2 has filled the parts: the left one for all strips.
    if (strip == 0) AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(flag);
    for (int32_t begin = 0; begin < depth; begin += l0_depth) {
      AddPart(a, b, strip, {depth, begin, Least(l0_depth, depth - begin)});
    }
    // They may be filled again.
    if (strip + 1 == num_strips_) {
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(flag);
    }
    AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(flag + 1 + strip);
  }

  template <typename U>
  HPMOE_FUNCTION void AddPart(const Side<U>& a, const Side<U>& b, int32_t strip,
                              const DepthRange& range) {
    const AscendC::LocalTensor<U> l0a = StageOfL0<U>(AscendC::TPosition::A2);
    const AscendC::LocalTensor<U> l0b = StageOfL0<U>(AscendC::TPosition::B2);
    const Side<U> side = SideOf(b, strips_[strip]);
    // M has read what was in the stage of L0.
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(part_);
    MoveToL0A(a, range, StageOfL1<U>(read_, 0), l0a);
    if (range.begin == 0) {
      // MTE2 has filled the strip's part, maybe after the left one.
      AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(read_ * kParts + 1 +
                                                       strip);
    }
    MoveToL0B(side, range, StageOfL1<U>(read_, PartOf(a, b, strip, range)),
              l0b);
    // The stage of L0 is there for M.
    AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(part_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(part_);
    Multiply(a, side, &strips_[strip], range.depth, l0a, l0b);
    // It may be filled again.
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(part_);
    part_ = 1 - part_;
  }

  // Byte of a stage of L1 where the right side of a strip begins.
  template <typename U>
  HPMOE_FUNCTION int32_t PartOf(const Side<U>& a, const Side<U>& b,
                                int32_t strip, const DepthRange& range) const {
    const int32_t left = L1BytesOf(a, range.l1_depth);
    if (strip == 0) return left;
    return left + L1BytesOf(SideOf(b, strips_[0]), range.l1_depth);
  }

  template <typename U>
  HPMOE_FUNCTION void Multiply(const Side<U>& a, const Side<U>& b, Strip* strip,
                               int32_t depth,
                               const AscendC::LocalTensor<U>& l0a,
                               const AscendC::LocalTensor<U>& l0b) {
    AscendC::MmadParams product;
    // One row would be taken for a vector, which lies otherwise in L0A.
    product.m = a.width == 1 ? kFractalRows : a.width;
    product.n = kIsCode<U> ? RoundUp(b.width, kUnit<U>) : b.width;
    product.k = depth;
    product.cmatrixInitVal = strip->empty;
    // Transposed float comes in pairs of fractals along the sum.
    product.kDirectionAlign = sizeof(U) == sizeof(float) && a.depth_major;
    WaitForSums(product, *strip);
    AscendC::Mmad(SumsOf(a.width, *strip), l0a, l0b, product);
    strip->empty = false;
  }

  HPMOE_FUNCTION void WaitForSums(const AscendC::MmadParams& product,
                                  const Strip& strip) {
    // Products into the same sums overlap if they are shorter than this.
    constexpr int32_t kOrderedFractals = 10;
    if (strip.empty) {
      // FIX has moved out the sums that were in this half.
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(strip.half);
    } else if (product.m / kFractalRows * (product.n / kFractalRows) <
               kOrderedFractals) {
      AscendC::PipeBarrier<PIPE_M>();
    }
  }

  HPMOE_FUNCTION void Store(const CubeTile& tile, const Strip& strip) {
    if constexpr (kIsCode<T>) {
      Store(reinterpret_cast<HPMOE_GM int32_t*>(tile.c), tile.ldc, tile.m,
            strip);
    } else if (tile.carry != nullptr && tile.carry_out) {
      Store(tile.carry, tile.ld_carry, tile.m, strip);
    } else {
      Store(reinterpret_cast<HPMOE_GM T*>(tile.c), tile.ldc, tile.m, strip);
    }
  }

  // The sums, rounded once to `To` if they are floats, to rows `ld` apart.
  template <typename To>
  HPMOE_FUNCTION void Store(HPMOE_GM To* to, int64_t ld, int32_t rows,
                            const Strip& strip) {
    AscendC::FixpipeParamsV220 move;
    move.nSize = strip.width;
    move.mSize = rows;
    move.srcStride = RoundUp(rows, kFractalRows);
    move.dstStride = ld;
    move.quantPre = sizeof(To) == sizeof(float) ? QuantMode_t::NoQuant
                                                : QuantMode_t::F322BF16;
    // The last product is in the sums.
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(strip.half);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(strip.half);
    AscendC::Fixpipe<To, Sum, AscendC::CFG_ROW_MAJOR>(
        GlobalOf(to + strip.begin), SumsOf(rows, strip), move);
    // A later strip may use this half of L0C.
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(strip.half);
  }

  // From byte `at` of a stage on.
  template <typename U>
  HPMOE_FUNCTION AscendC::LocalTensor<U> StageOfL1(int32_t stage,
                                                   int32_t at) const {
    return AscendC::LocalTensor<U>(
        AscendC::TPosition::A1, kL1Stages + stage * kL1StageBytes + at,
        (kL1StageBytes - at) / static_cast<int32_t>(sizeof(U)));
  }

  template <typename U>
  HPMOE_FUNCTION AscendC::LocalTensor<U> StageOfL0(
      AscendC::TPosition side) const {
    return AscendC::LocalTensor<U>(side, part_ * kL0StageBytes,
                                   kL0StageBytes / sizeof(U));
  }

  HPMOE_FUNCTION AscendC::LocalTensor<Sum> SumsOf(int32_t rows,
                                                  const Strip& strip) const {
    return AscendC::LocalTensor<Sum>(
        AscendC::TPosition::CO1, strip.half * kSumsBytes,
        RoundUp(rows, kFractalRows) * RoundUp(strip.width, kUnit<T>));
  }

  const HPMOE_GM Constants* constants_;
  Strip strips_[kSums];
  int32_t num_strips_ = 0;
  // Stages that come next.
  int32_t filled_ = 0;  // of L1, by MTE2
  int32_t read_ = 0;    // of L1, by MTE1
  int32_t part_ = 0;    // of L0
  int32_t half_ = 0;    // of L0C
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_CUBE_CORE_H_
