// What memory holds that nobody has written, and margins that nobody should.

#ifndef BACKEND_ASCEND_HOST_TILES_POISON_H_
#define BACKEND_ASCEND_HOST_TILES_POISON_H_

#include <algorithm>
#include <cstdint>

namespace hpmoe {

// A NaN that no kernel computes: it says that an element was never written.
constexpr uint32_t kPoison = 0x7FDEDEADu;
// Of the two-byte dtypes: a NaN of either.
constexpr uint16_t kPoison16 = kPoison >> 16;
// Of codes: -128, which no kernel makes of a row.
constexpr uint8_t kPoison8 = 0x80;

inline void PoisonElements(char* begin, int64_t elements,
                           int64_t element_bytes) {
  if (element_bytes == 1) {
    std::fill_n(reinterpret_cast<uint8_t*>(begin), elements, kPoison8);
  } else if (element_bytes == 2) {
    std::fill_n(reinterpret_cast<uint16_t*>(begin), elements, kPoison16);
  } else {
    std::fill_n(reinterpret_cast<uint32_t*>(begin), elements, kPoison);
  }
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_TILES_POISON_H_
