// Moves of operands between storage and float32, and all that an instruction
// set has for GEMM tiles.  Its file includes this once, in its namespace,
// behind
//   HPMOE_TARGET                 the attribute of its functions
//   kRows, kCols                 of a tile of sums
//   Multiply, MultiplyEvenOdd    its products, in both orders
//   Widen, Narrow of some dtypes, where it has better ones

template <typename T>
HPMOE_TARGET void Widen(const T* in, float* out, int64_t n) {
  WidenBody(in, out, n);
}

template <typename T>
HPMOE_TARGET void Narrow(const float* in, T* out, int64_t n) {
  NarrowBody(in, out, n);
}

template <typename T>
HPMOE_TARGET void Pack(const T* const* in, int64_t first, int32_t rows,
                       int32_t cols, float* out, int32_t ld_out) {
  const WidenFn<T> widen = Widen;
  PackBody<kCols, kRows, T>(in, first, rows, cols, out, ld_out, widen);
}

template <typename T>
HPMOE_TARGET void Transpose(const T* const* in, int64_t first, int32_t rows,
                            int32_t cols, float* out, int32_t ld_out) {
  const WidenFn<T> widen = Widen;
  TransposeBody<T>(in, first, rows, cols, out, ld_out, widen);
}

template <typename T>
constexpr GemmMoves<T> kMoves = {Pack<T>, Transpose<T>, Widen, Narrow};

constexpr GemmKernels kKernels = {kRows,
                                  kCols,
                                  Multiply,
                                  MultiplyEvenOdd,
                                  {kMoves<float>, kMoves<Bf16>, kMoves<Half>}};
