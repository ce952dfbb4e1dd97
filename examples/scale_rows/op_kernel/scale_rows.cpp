// y = factor * x, row by row, on vector cores.  It calls the compiler's
// intrinsics, so it needs no headers; with those of Ascend C it would begin
// with #include "kernel_operator.h" and have a TPipe and queues.

// One row at the beginning of the unified buffer.
constexpr uint32_t kBlock = 32;    // bytes of a block
constexpr uint32_t kRepeat = 256;  // bytes of a vector instruction's repeat

extern "C" __global__ __aicore__ void scale_rows(__gm__ uint8_t* x,
                                                 __gm__ uint8_t* y,
                                                 __gm__ uint8_t* workspace,
                                                 __gm__ uint8_t* tiling) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  GET_TILING_DATA(shape, tiling);
  auto* const row = reinterpret_cast<__ubuf__ float*>(uint64_t{0});
  const uint32_t bytes = shape.columns * sizeof(float);
  set_mask_norm();
  set_vector_mask(~0ull, ~0ull);
  for (uint32_t i = 0; i < shape.rows; ++i) {
    const uint32_t first = (block_idx * shape.rows + i) * shape.columns;
    copy_gm_to_ubuf((__ubuf__ void*)row,
                    (__gm__ void*)((__gm__ float*)x + first), 0, 1,
                    bytes / kBlock, 0, 0);
    set_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
    wait_flag(PIPE_MTE2, PIPE_V, EVENT_ID0);
    vmuls(row, row, shape.factor, bytes / kRepeat, 1, 1, 8, 8);
    set_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
    wait_flag(PIPE_V, PIPE_MTE3, EVENT_ID0);
    copy_ubuf_to_gm((__gm__ void*)((__gm__ float*)y + first),
                    (__ubuf__ void*)row, 0, 1, bytes / kBlock, 0, 0);
    // The next row is loaded into the same bytes.
    set_flag(PIPE_MTE3, PIPE_MTE2, EVENT_ID0);
    wait_flag(PIPE_MTE3, PIPE_MTE2, EVENT_ID0);
  }
  pipe_barrier(PIPE_ALL);
}
