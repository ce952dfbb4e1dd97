// A tile of sums in vector registers: the one source that every instruction set
// compiles for itself.  Its file includes this, in a namespace, behind
//   HPMOE_TARGET         the attribute of its functions
//   HPMOE_UNROLL_DEPTH   a pragma for the loop over the depth, or nothing
//   kRows, kVectors      of a tile: as many sums as there are registers for
//   Vector, kLanes       a register, and the floats in it
//   Zero(), Broadcast(p), LoadAligned(p), Add(x, y)
//   MultiplyAdd(x, y, sum)   rounds once
//   Load(p, count)           the first lanes of `count`, at most all
//   Store(x, p, count)       as many; a NaN as the canonical one

constexpr int kCols = kLanes * kVectors;

template <int kM, int kV>
HPMOE_INLINE HPMOE_TARGET void Clear(Vector (&sums)[kM][kV]) {
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kV; ++v) sums[i][v] = Zero();
  }
}

// Columns of a tile from vector `v` on.
template <int kV, bool kWhole>
HPMOE_INLINE int32_t ColsFrom(const MicroTile& t, int v) {
  return kWhole ? kLanes * (kV - v) : t.cols - kLanes * v;
}

template <int kV, bool kWhole, int kM>
HPMOE_INLINE HPMOE_TARGET void Start(const MicroTile& t,
                                     Vector (&sums)[kM][kV]) {
  if (t.start == nullptr) return Clear(sums);
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kV; ++v) {
      sums[i][v] = Load(t.start + i * t.ld_start + kLanes * v,
                        ColsFrom<kV, kWhole>(t, v));
    }
  }
}

// Adds `count` products to every sum, of every `step`-th row of the operands.
template <int kM, int kV>
HPMOE_INLINE HPMOE_TARGET void Chain(const float* a, const float* b,
                                     int32_t count, int step,
                                     Vector (&sums)[kM][kV]) {
  HPMOE_UNROLL_DEPTH
  for (int32_t p = 0; p < count; ++p, b += step * kCols, a += step * kM) {
    Vector row[kV];
#pragma GCC unroll 3
    for (int v = 0; v < kV; ++v) row[v] = LoadAligned(b + kLanes * v);
#pragma GCC unroll 14
    for (int i = 0; i < kM; ++i) {
      const Vector x = Broadcast(a + i);
#pragma GCC unroll 3
      for (int v = 0; v < kV; ++v) {
        sums[i][v] = MultiplyAdd(x, row[v], sums[i][v]);
      }
    }
  }
}

template <int kV, bool kWhole, int kM>
HPMOE_INLINE HPMOE_TARGET void Finish(const MicroTile& t,
                                      const Vector (&sums)[kM][kV]) {
  float* const c = t.c;  // stores to c may change t, for all the compiler knows
  const int64_t ldc = t.ldc;
  const int32_t last = ColsFrom<kV, kWhole>(t, kV - 1);
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kV; ++v) {
      Store(sums[i][v], c + i * ldc + kLanes * v, v + 1 < kV ? kLanes : last);
    }
  }
}

template <int kM, int kV, bool kWhole>
HPMOE_TARGET void MicroBody(const MicroTile& t) {
  Vector sums[kM][kV];
  Start<kV, kWhole>(t, sums);
  Chain(t.a, t.panel, t.k, 1, sums);
  Finish<kV, kWhole>(t, sums);
}

// A branch at every load and store would cost as much as six steps of the
// depth.
template <int kM, int kV>
HPMOE_TARGET void Micro(const MicroTile& t) {
  t.cols == kLanes* kV ? MicroBody<kM, kV, true>(t)
                       : MicroBody<kM, kV, false>(t);
}

// One step of even_odd_32, of `terms`: c = start + (even + odd).  The sums of
// even terms wait in memory: registers are for one chain at a time.
template <int kM, int kV>
HPMOE_TARGET void MicroEvenOdd(const MicroTile& t, const float* a,
                               const float* b, int32_t terms) {
  Vector even[kM][kV], odd[kM][kV], start[kM][kV];
  Clear(even);
  Chain(a, b, (terms + 1) / 2, 2, even);
  Clear(odd);
  Chain(a + kM, b + kCols, terms / 2, 2, odd);
  Start<kV, false>(t, start);
#pragma GCC unroll 14
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 3
    for (int v = 0; v < kV; ++v) {
      start[i][v] = Add(start[i][v], Add(even[i][v], odd[i][v]));
    }
  }
  Finish<kV, false>(t, start);
}

// A function for each number of rows and vectors.
template <int... kAt>
constexpr std::array<MultiplyFn, sizeof...(kAt)> Micros(
    std::integer_sequence<int, kAt...>) {
  return {Micro<kAt / kVectors + 1, kAt % kVectors + 1>...};
}
template <int... kAt>
constexpr std::array<StepFn, sizeof...(kAt)> EvenOddMicros(
    std::integer_sequence<int, kAt...>) {
  return {MicroEvenOdd<kAt / kVectors + 1, kAt % kVectors + 1>...};
}
using EveryMicro = std::make_integer_sequence<int, kRows * kVectors>;

inline int MicroOf(const MicroTile& t) {
  return (t.rows - 1) * kVectors + (t.cols - 1) / kLanes;
}

void Multiply(const MicroTile& t) {
  static constexpr auto kMicros = Micros(EveryMicro());
  kMicros[MicroOf(t)](t);
}

[[maybe_unused]] void MultiplyEvenOdd(const MicroTile& t) {
  static constexpr auto kMicros = EvenOddMicros(EveryMicro());
  if (t.k == 0) return Multiply(t);
  EvenOddSteps<kCols>(t, kMicros[MicroOf(t)]);
}
