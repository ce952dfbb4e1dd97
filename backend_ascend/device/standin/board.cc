#include "backend_ascend/device/standin/board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace hpmoe {
namespace {

// Where nothing else is: below it lie programs and their heaps, above it stacks
// and libraries.
constexpr uint64_t kAddress = uint64_t{0x2000} << 32;

uint64_t BytesOf(int32_t num_ranks) {
  return kBoardBytes + num_ranks * (kHeapBytes + kOwnBytes);
}

Board* Map(int file, uint64_t bytes, std::string* why) {
  void* const wanted = reinterpret_cast<void*>(kAddress);
  void* const at =
      mmap(wanted, bytes, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, file, 0);
  close(file);
  if (at == wanted) return static_cast<Board*>(at);
  *why = "expected " + std::to_string(bytes) + " bytes of address space at " +
         std::to_string(kAddress) + ", got " + std::strerror(errno);
  if (at != MAP_FAILED) munmap(at, bytes);
  return nullptr;
}

}  // namespace

Board* MakeBoard(const std::string& path, int32_t num_ranks, std::string* why) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0 || ftruncate(file, BytesOf(num_ranks)) != 0) {
    *why = path + ": expected a new file, got " + std::strerror(errno);
    if (file >= 0) close(file);
    return nullptr;
  }
  Board* const board = Map(file, BytesOf(num_ranks), why);
  if (board != nullptr) board->num_ranks = num_ranks;
  return board;
}

Board* FindBoard(const std::string& path, std::string* why) {
  const int file = open(path.c_str(), O_RDWR);
  struct stat told{};
  if (file < 0 || fstat(file, &told) != 0) {
    *why = path + ": expected a board, got " + std::strerror(errno);
    if (file >= 0) close(file);
    return nullptr;
  }
  Board* const board = Map(file, told.st_size, why);
  if (board == nullptr || board->num_ranks > 0) return board;
  *why = path + ": expected a board, got another file";
  return nullptr;
}

void DropBoard(Board* board) { munmap(board, BytesOf(board->num_ranks)); }

}  // namespace hpmoe
