#include "backend_ascend/taskflow/fuzz/image_mutator_fuzz.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "backend_ascend/kernels/host/load/crc32.h"
#include "backend_ascend/kernels/image.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace hpmoe {
namespace {

using Random = std::minstd_rand;

struct TableInfo {
  size_t ref;  // offset of its TableRef in the header
  size_t row_bytes;
};
constexpr TableInfo kTables[] = {
    {offsetof(ImageHeader, tasks), sizeof(TaskDesc)},
    {offsetof(ImageHeader, waits), sizeof(WaitDesc)},
    {offsetof(ImageHeader, signals), sizeof(SignalDesc)},
    {offsetof(ImageHeader, regions), sizeof(RegionDesc)},
    {offsetof(ImageHeader, events), sizeof(EventDesc)},
    {offsetof(ImageHeader, spaces), sizeof(SpaceDesc)},
    {offsetof(ImageHeader, queues), sizeof(QueueDesc)},
    {offsetof(ImageHeader, queue_tasks), sizeof(uint32_t)},
};
constexpr size_t kNumTables = sizeof(kTables) / sizeof(kTables[0]);

// Rows of equal size that lie in the blob; the header's is one row.
struct Rows {
  uint8_t* data;
  size_t row_bytes;
  size_t count;
  size_t ref;  // of its TableRef; 0 for the header
  uint8_t* At(size_t row) const { return data + row * row_bytes; }
};

Rows Find(uint8_t* data, size_t size, size_t table) {
  if (table == kNumTables) return {data, sizeof(ImageHeader), 1, 0};
  const TableInfo& info = kTables[table];
  TableRef ref;
  std::memcpy(&ref, data + info.ref, sizeof(ref));
  const size_t offset = std::min<uint64_t>(ref.offset, size);
  const size_t room = (size - offset) / info.row_bytes;
  return {data + offset, info.row_bytes, std::min<uint64_t>(ref.count, room),
          info.ref};
}

// `header` is where bounds are: sizes and counts.
template <class T>
T NewValue(T old, const uint8_t* header, Random* random) {
  constexpr T kExtremes[] = {0, 1, 2, T(-1), T(T(-1) >> 1), T(~(T(-1) >> 1))};
  uint32_t bound;
  switch ((*random)() % 6) {
    case 0:
      return static_cast<T>(old + 1);
    case 1:
      return static_cast<T>(old - 1);
    case 2:
      return static_cast<T>((*random)() % 16);
    case 3:
    case 4:
      std::memcpy(&bound, header + (*random)() % (sizeof(ImageHeader) / 4) * 4,
                  sizeof(bound));
      return static_cast<T>(bound + (*random)() % 3 - 1);
    default:
      return kExtremes[(*random)() % 6];
  }
}

template <class T>
void ChangeWord(const uint8_t* header, const Rows& rows, Random* random) {
  const size_t at = (*random)() % (rows.row_bytes / sizeof(T)) * sizeof(T);
  uint8_t* const row = rows.At((*random)() % rows.count);
  T value;
  std::memcpy(&value, row + at, sizeof(T));
  // Another row's value fits its field more often than an invented one.
  if ((*random)() % 2 == 0) {
    std::memcpy(&value, rows.At((*random)() % rows.count) + at, sizeof(T));
  } else {
    value = NewValue(value, header, random);
  }
  std::memcpy(row + at, &value, sizeof(T));
}

void SwapRows(const Rows& rows, Random* random) {
  uint8_t* const a = rows.At((*random)() % rows.count);
  uint8_t* const b = rows.At((*random)() % rows.count);
  if (a != b) std::swap_ranges(a, a + rows.row_bytes, b);
}

// A table's count, not the bytes of its rows.
void ChangeCount(uint8_t* data, const Rows& rows, Random* random) {
  const size_t at = rows.ref + offsetof(TableRef, count);
  const uint64_t count = NewValue<uint64_t>(rows.count, data, random);
  std::memcpy(data + at, &count, sizeof(count));
}

void MutateTable(uint8_t* data, size_t size, Random* random) {
  const Rows rows = Find(data, size, (*random)() % (kNumTables + 1));
  if (rows.count == 0) return;
  switch ((*random)() % 16) {
    case 0:
      if (rows.ref != 0) return ChangeCount(data, rows, random);
      break;
    case 1:
      return SwapRows(rows, random);
    case 2:
    case 3:
      return ChangeWord<uint8_t>(data, rows, random);
    case 4:
    case 5:
    case 6:
      return ChangeWord<uint16_t>(data, rows, random);
    default:
      return ChangeWord<uint32_t>(data, rows, random);
  }
}

// Now and then one of these stays as it is: what they guard is code too.
void Seal(uint8_t* data, size_t size, Random* random) {
  const auto put = [&](size_t at, const auto& value) {
    if ((*random)() % 32 != 0) std::memcpy(data + at, &value, sizeof(value));
  };
  put(offsetof(ImageHeader, magic), kImageMagic);
  put(offsetof(ImageHeader, version), kImageVersion);
  put(offsetof(ImageHeader, header_bytes),
      static_cast<uint32_t>(sizeof(ImageHeader)));
  put(offsetof(ImageHeader, total_bytes), uint64_t{size});
  std::memset(data + offsetof(ImageHeader, crc32), 0, sizeof(uint32_t));
  put(offsetof(ImageHeader, crc32), Crc32(0, data, size));
}

}  // namespace

size_t MutateImage(uint8_t* data, size_t size, size_t max_size, uint32_t seed) {
  Random random(seed);
  const bool blind = size < sizeof(ImageHeader) || random() % 16 == 0;
  if (blind) size = LLVMFuzzerMutate(data, size, max_size);
  if (size < sizeof(ImageHeader)) return size;
  for (uint32_t i = random() % 4; !blind && i < 4; ++i) {
    MutateTable(data, size, &random);
  }
  Seal(data, size, &random);
  return size;
}

}  // namespace hpmoe
