// A core polls a word that another writes: with Ascend C of which a compiler
// sees through all, as an optimising one on a device may.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <thread>

#define __aicore__
#define __gm__

uint64_t get_ctrl();
void set_ctrl(uint64_t bits);
uint64_t sbitset1(uint64_t bits, int64_t at);

namespace AscendC {

template <typename T>
struct LocalTensor {};
void SetHF32Mode(bool);
template <typename T>
void WholeReduceSum(const LocalTensor<T>&, const LocalTensor<T>&, int, int, int,
                    int, int);

template <typename T>
struct GlobalTensor {
  void SetGlobalBuffer(T* data) { data_ = data; }
  T GetValue(int) const { return *data_; }
  T* data_;
};
enum class CacheLine { SINGLE_CACHE_LINE };
enum class DcciDst { CACHELINE_OUT };
template <typename T, CacheLine, DcciDst>
void DataCacheCleanAndInvalid(const GlobalTensor<T>&) {}

}  // namespace AscendC

#include "backend_ascend/device/megakernel/read_counter.h"

namespace {

__attribute__((noinline)) int32_t Await(hpmoe::CounterLine* line) {
  int32_t value = 0;
  while (value == 0) value = hpmoe::ReadCounter(line);
  return value;
}

TEST(ReadCounter, SeesWhatAnotherCoreWrites) {
  // A load that left the loop never ends.
  static hpmoe::CounterLine line = {};
  std::packaged_task<int32_t()> poll([] { return Await(&line); });
  std::future<int32_t> value = poll.get_future();
  std::thread(std::move(poll)).detach();
  // Most often the first poll comes before it.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  __atomic_store_n(&line.value, 1, __ATOMIC_RELEASE);

  ASSERT_EQ(value.wait_for(std::chrono::seconds(30)),
            std::future_status::ready);
  EXPECT_EQ(value.get(), 1);
}

}  // namespace
