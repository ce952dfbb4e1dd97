// The GEMM tiles of a cube core (AIC).
//
// A tile's sums stay in L0C over its whole depth.  Its sides come in stages: a
// stage of L1 is filled (MTE2) while the other is read (MTE1), and so of L0
// (MTE1 against M).  Stages go on from tile to tile, so the first move of a
// tile runs beside the last product of the one before.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_CUBE_CORE_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_CUBE_CORE_H_

#include "backend_ascend/kernels/ascendc/ascendc.h"
#include "backend_ascend/kernels/ascendc/cube_load.h"
#include "backend_ascend/kernels/ascendc/cube_tile.h"
#include "backend_ascend/kernels/ascendc/launch_args.h"
#include "backend_ascend/kernels/ascendc/tile_budget.h"

namespace hpmoe {

// `T` is the storage: float or bfloat16_t.
template <typename T>
class CubeCore {
 public:
  HPMOE_FUNCTION explicit CubeCore(const HPMOE_GM Constants* constants)
      : constants_(constants) {}

  // Before the first tile.
  HPMOE_FUNCTION void Start() {
    // Whatever ran before.
    KeepFloats();
    for (int32_t stage = 0; stage < kStages; ++stage) {
      AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(stage);
      AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(stage);
    }
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kSums);
  }

  // After the last, and whenever the core ends: no flag stays set.
  HPMOE_FUNCTION void Finish() {
    for (int32_t stage = 0; stage < kStages; ++stage) {
      AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(stage);
      AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(stage);
    }
    AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(kSums);
  }

  // Returns when the tile is issued: what follows it waits for FIX.
  HPMOE_FUNCTION void Run(const CubeTile& tile) {
    const bool carry_in = tile.carry != nullptr && tile.carry_in;
    const bool carry_out = tile.carry != nullptr && tile.carry_out;
    if (tile.m <= 0 || tile.n <= 0) return;
    if (carry_in && carry_out && tile.k == 0) return;  // carry stays as it is
    empty_ = true;
    if (carry_in) AddCarry(tile);
    if (tile.k > 0) AddProduct(tile);
    if (empty_) AddZeros(tile);
    if (carry_out) {
      Store(tile.carry, tile.ld_carry, tile);
    } else {
      Store(reinterpret_cast<HPMOE_GM T*>(tile.c), tile.ldc, tile);
    }
  }

 private:
  // The one flag of L0C.
  static constexpr int32_t kSums = 0;

  HPMOE_FUNCTION void AddProduct(const CubeTile& tile) {
    const Side<T> a = {reinterpret_cast<HPMOE_GM T*>(tile.a), tile.lda, tile.m,
                       tile.trans_a};
    const Side<T> b = {reinterpret_cast<HPMOE_GM T*>(tile.b), tile.ldb, tile.n,
                       !tile.trans_b};
    Add(a, b, tile.k);
  }

  // identity @ carry: exact for finite values, but for the sign of a zero.
  HPMOE_FUNCTION void AddCarry(const CubeTile& tile) {
    const Side<float> a = {const_cast<HPMOE_GM float*>(constants_->identity),
                           kIdentityRows, tile.m, /*depth_major=*/false};
    const Side<float> b = {tile.carry, tile.ld_carry, tile.n,
                           /*depth_major=*/true};
    Add(a, b, tile.m);
  }

  HPMOE_FUNCTION void AddZeros(const CubeTile& tile) {
    auto* const zeros = reinterpret_cast<HPMOE_GM T*>(
        const_cast<HPMOE_GM float*>(constants_->zeros));
    const Side<T> a = {zeros, tile.m, tile.m, /*depth_major=*/true};
    const Side<T> b = {zeros, tile.n, tile.n, /*depth_major=*/true};
    Add(a, b, 1);
  }

  // Sums += a @ b over `depth` terms.  The next stage of L1 is on its way
  // before this one is read.
  template <typename U>
  HPMOE_FUNCTION void Add(const Side<U>& a, const Side<U>& b, int32_t depth) {
    const CubeDepths depths = DepthsOf(a.width, b.width, sizeof(U));
    Fill(a, b, 0, Least(depths.l1, depth));
    for (int32_t begin = 0; begin < depth; begin += depths.l1) {
      const int32_t next = begin + depths.l1;
      if (next < depth) Fill(a, b, next, Least(depths.l1, depth - next));
      AddStage(a, b, Least(depths.l1, depth - begin), depths.l0);
    }
  }

  // Terms [begin, begin + depth) into a stage of L1.
  template <typename U>
  HPMOE_FUNCTION void Fill(const Side<U>& a, const Side<U>& b, int32_t begin,
                           int32_t depth) {
    // MTE1 has read what was in the stage.
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_MTE2>(filled_);
    MoveToL1(a, begin, depth, StageOfL1<U>(filled_, 0));
    MoveToL1(b, begin, depth, StageOfL1<U>(filled_, L1BytesOf(a, depth)));
    // The stage is there for MTE1.
    AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE1>(filled_);
    filled_ = 1 - filled_;
  }

  // All terms of a stage of L1, in stages of L0.
  template <typename U>
  HPMOE_FUNCTION void AddStage(const Side<U>& a, const Side<U>& b,
                               int32_t depth, int32_t l0_depth) {
    // MTE2 has filled the stage.
    AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE1>(read_);
    for (int32_t begin = 0; begin < depth; begin += l0_depth) {
      AddPart(a, b, {depth, begin, Least(l0_depth, depth - begin)});
    }
    // The stage may be filled again.
    AscendC::SetFlag<AscendC::HardEvent::MTE1_MTE2>(read_);
    read_ = 1 - read_;
  }

  template <typename U>
  HPMOE_FUNCTION void AddPart(const Side<U>& a, const Side<U>& b,
                              const DepthRange& range) {
    const AscendC::LocalTensor<U> l0a = StageOfL0<U>(AscendC::TPosition::A2);
    const AscendC::LocalTensor<U> l0b = StageOfL0<U>(AscendC::TPosition::B2);
    // M has read what was in the stage of L0.
    AscendC::WaitFlag<AscendC::HardEvent::M_MTE1>(part_);
    MoveToL0A(a, range, StageOfL1<U>(read_, 0), l0a);
    MoveToL0B(b, range, StageOfL1<U>(read_, L1BytesOf(a, range.l1_depth)), l0b);
    // The stage of L0 is there for M.
    AscendC::SetFlag<AscendC::HardEvent::MTE1_M>(part_);
    AscendC::WaitFlag<AscendC::HardEvent::MTE1_M>(part_);
    Multiply(a, b, range.depth, l0a, l0b);
    // It may be filled again.
    AscendC::SetFlag<AscendC::HardEvent::M_MTE1>(part_);
    part_ = 1 - part_;
  }

  template <typename U>
  HPMOE_FUNCTION void Multiply(const Side<U>& a, const Side<U>& b,
                               int32_t depth,
                               const AscendC::LocalTensor<U>& l0a,
                               const AscendC::LocalTensor<U>& l0b) {
    AscendC::MmadParams product;
    // One row would be taken for a vector, which lies otherwise in L0A.
    product.m = a.width == 1 ? kFractalRows : a.width;
    product.n = b.width;
    product.k = depth;
    product.cmatrixInitVal = empty_;
    // Transposed float comes in pairs of fractals along the sum.
    product.kDirectionAlign = sizeof(U) == sizeof(float) && a.depth_major;
    WaitForSums(product);
    AscendC::Mmad(SumsOf(a.width, b.width), l0a, l0b, product);
    empty_ = false;
  }

  HPMOE_FUNCTION void WaitForSums(const AscendC::MmadParams& product) {
    // Products into the same sums overlap if they are shorter than this.
    constexpr int32_t kOrderedFractals = 10;
    if (empty_) {
      // FIX has moved out the sums of the tile before.
      AscendC::WaitFlag<AscendC::HardEvent::FIX_M>(kSums);
    } else if (product.m / kFractalRows * (product.n / kFractalRows) <
               kOrderedFractals) {
      AscendC::PipeBarrier<PIPE_M>();
    }
  }

  // The sums, rounded once to `To`, to rows `ld` apart.
  template <typename To>
  HPMOE_FUNCTION void Store(HPMOE_GM To* to, int64_t ld, const CubeTile& tile) {
    AscendC::FixpipeParamsV220 move;
    move.nSize = tile.n;
    move.mSize = tile.m;
    move.srcStride = RoundUp(tile.m, kFractalRows);
    move.dstStride = ld;
    move.quantPre = sizeof(To) == sizeof(float) ? QuantMode_t::NoQuant
                                                : QuantMode_t::F322BF16;
    // The last product is in the sums.
    AscendC::SetFlag<AscendC::HardEvent::M_FIX>(kSums);
    AscendC::WaitFlag<AscendC::HardEvent::M_FIX>(kSums);
    AscendC::Fixpipe<To, float, AscendC::CFG_ROW_MAJOR>(
        GlobalOf(to), SumsOf(tile.m, tile.n), move);
    // The next tile may use L0C.
    AscendC::SetFlag<AscendC::HardEvent::FIX_M>(kSums);
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

  HPMOE_FUNCTION AscendC::LocalTensor<float> SumsOf(int32_t m,
                                                    int32_t n) const {
    return AscendC::LocalTensor<float>(
        AscendC::TPosition::CO1, 0,
        RoundUp(m, kFractalRows) * RoundUp(n, kFractalRows));
  }

  const HPMOE_GM Constants* constants_;
  // Stages that come next.
  int32_t filled_ = 0;  // of L1, by MTE2
  int32_t read_ = 0;    // of L1, by MTE1
  int32_t part_ = 0;    // of L0
  bool empty_ = true;   // the tile has no product in its sums yet
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_CUBE_CORE_H_
