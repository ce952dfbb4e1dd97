#include "backend_ascend/host/load/crc32.h"

#include <array>
#include <cstring>

namespace hpmoe {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[s][b]: the CRC of byte b followed by s zero bytes.
Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t c = b;
    for (int bit = 0; bit < 8; ++bit)
      c = (c >> 1) ^ (0xEDB88320u & (0 - (c & 1)));
    tables[0][b] = c;
  }
  for (size_t s = 1; s < tables.size(); ++s) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t c = tables[s - 1][b];
      tables[s][b] = tables[0][c & 0xFF] ^ (c >> 8);
    }
  }
  return tables;
}

}  // namespace

uint32_t Crc32(uint32_t crc, const void* data, size_t size) {
  static const Tables tables = MakeTables();
  const auto* p = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);  // images and hosts are little-endian
    word ^= crc;
    crc = 0;
    for (int s = 0; s < 8; ++s) {
      crc ^= tables[7 - s][(word >> (8 * s)) & 0xFF];
    }
  }
  for (; size > 0; --size, ++p) crc = tables[0][(crc ^ *p) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

}  // namespace hpmoe
