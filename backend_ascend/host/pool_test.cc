// Threads that take from one pool at once, for ThreadSanitizer to watch: prints
// how many were made.

#include "backend_ascend/host/pool.h"

#include <cstdio>
#include <thread>
#include <vector>

int main() {
  hpmoe::Pool<int> pool;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&pool] {
      for (int turn = 0; turn < 1000; ++turn) {
        std::unique_ptr<int> taken = pool.Take();
        ++*taken;  // nobody else has it
        pool.Return(std::move(taken));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int turns = 0, made = 0;
  pool.ForEach([&](int count) {
    turns += count;
    ++made;
  });
  std::printf("%d turns, %s\n", turns, made <= 8 ? "few" : "many");
}
