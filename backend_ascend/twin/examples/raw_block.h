// A header that lies over the compiler's intrinsics, as those of Ascend C do:
// blocks of floats of one core.

#ifndef BACKEND_ASCEND_TWIN_EXAMPLES_RAW_BLOCK_H_
#define BACKEND_ASCEND_TWIN_EXAMPLES_RAW_BLOCK_H_

namespace raw {

constexpr uint32_t kBlock = 8;    // floats of 32 bytes
constexpr uint32_t kRepeat = 64;  // floats of 256 bytes

// `count` floats from byte `begin` of the unified buffer.
struct Block {
  uint32_t begin;
  uint32_t count;

  __aicore__ __ubuf__ float* data() const {
    return reinterpret_cast<__ubuf__ float*>(static_cast<uint64_t>(begin));
  }
  __aicore__ float Get(uint32_t i) const { return *(data() + i); }
  __aicore__ void Set(uint32_t i, float x) const { *(data() + i) = x; }
};

__aicore__ inline void Load(Block to, __gm__ float* from) {
  copy_gm_to_ubuf((__ubuf__ void*)to.data(), (__gm__ void*)from, 0, 1,
                  to.count / kBlock, 0, 0);
}

__aicore__ inline void Store(__gm__ float* to, Block from) {
  copy_ubuf_to_gm((__gm__ void*)to, (__ubuf__ void*)from.data(), 0, 1,
                  from.count / kBlock, 0, 0);
}

__aicore__ inline void Add(Block to, Block a, Block b) {
  set_mask_norm();
  set_vector_mask(~0ull, ~0ull);
  vadd(to.data(), a.data(), b.data(), to.count / kRepeat, 1, 1, 1, 8, 8, 8);
}

}  // namespace raw

#endif  // BACKEND_ASCEND_TWIN_EXAMPLES_RAW_BLOCK_H_
