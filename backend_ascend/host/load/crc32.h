// CRC-32 with zlib's polynomial, so that Python's zlib.crc32 agrees.

#ifndef BACKEND_ASCEND_HOST_LOAD_CRC32_H_
#define BACKEND_ASCEND_HOST_LOAD_CRC32_H_

#include <cstddef>
#include <cstdint>

namespace hpmoe {

// Continues `crc` (0 to begin) over `size` bytes.
uint32_t Crc32(uint32_t crc, const void* data, size_t size);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LOAD_CRC32_H_
