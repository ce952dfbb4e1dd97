// What the processes of a rehearsal share: one file, which each maps at the
// same address.  It holds the memory of every rank's device and what ranks ask
// of them.
//
//   board | rank 0: heap, own | rank 1: heap, own | ..

#ifndef BACKEND_ASCEND_DEVICE_STANDIN_BOARD_H_
#define BACKEND_ASCEND_DEVICE_STANDIN_BOARD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace hpmoe {

constexpr int32_t kMostRanks = 64;
constexpr std::chrono::microseconds kBetweenLooks{200};
constexpr uint64_t kBoardBytes = 1 << 20;
constexpr uint64_t kHeapBytes = uint64_t{4} << 30;  // address space, not memory
constexpr uint64_t kOwnBytes = uint64_t{12} << 30;

// One rank's word with its device.  Zero when made.
struct Seat {
  std::atomic<int32_t> pid;
  std::atomic<uint32_t> meetings;  // of the control barrier that it came to
  std::atomic<uint64_t> heap_bytes;
  // A launch: written, then posted is 1 more; done follows.
  uint64_t args;
  uint32_t blocks;
  uint32_t at_once;  // whether batch scheduling was asked for
  std::atomic<uint32_t> posted;
  std::atomic<uint32_t> done;
};

struct Board {
  std::atomic<int32_t> num_ranks;  // 0: not ready
  Seat seats[kMostRanks];

  char* HeapOf(int32_t rank) {
    return reinterpret_cast<char*>(this) + kBoardBytes +
           rank * (kHeapBytes + kOwnBytes);
  }
  char* OwnOf(int32_t rank) { return HeapOf(rank) + kHeapBytes; }
};
static_assert(sizeof(Board) <= kBoardBytes, "the board has room");
static_assert(std::atomic<uint64_t>::is_always_lock_free,
              "atomics work between processes");

// Makes the file, or maps one that was made; null, with `why`, if that cannot
// be.
Board* MakeBoard(const std::string& path, int32_t num_ranks, std::string* why);
Board* FindBoard(const std::string& path, std::string* why);
void DropBoard(Board* board);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_STANDIN_BOARD_H_
