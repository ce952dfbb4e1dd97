// Kernels for tests of the engine: moves and sums as bare instructions.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_ENGINE_ENGINE_TESTING_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_ENGINE_ENGINE_TESTING_H_

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "backend_ascend/kernels/ascendc/twin/api/sync.h"
#include "backend_ascend/kernels/ascendc/twin/api/system.h"
#include "backend_ascend/kernels/ascendc/twin/engine/launch.h"

namespace ascend_twin {

inline Span OnUb(uint64_t begin, uint64_t bytes) {
  return {Memory::kUb, begin, bytes};
}

inline Span OnGm(const void* address, uint64_t bytes) {
  return {Memory::kGm, reinterpret_cast<uint64_t>(address), bytes};
}

// `bytes` bytes from one memory to another.
inline void Move(const char* name, Pipe pipe, const Span& to, const Span& from,
                 Site site, bool atomic = false) {
  Instruction move{name, pipe, site, {from}, {to}, nullptr, {}};
  move.work.bytes = from.bytes;
  move.atomic = atomic;
  move.run = [to, from, atomic] {
    char* const target = Bytes(to.memory, to.begin);
    const char* const source = Bytes(from.memory, from.begin);
    if (!atomic) {
      std::memcpy(target, source, from.bytes);
      return;
    }
    int32_t sum[2];
    std::memcpy(&sum[0], target, sizeof(int32_t));
    std::memcpy(&sum[1], source, sizeof(int32_t));
    sum[0] += sum[1];
    std::memcpy(target, sum, sizeof(int32_t));
  };
  Issue(std::move(move));
}

inline void MoveIn(uint64_t to, const void* from, uint64_t bytes,
                   Site site = Site::Here()) {
  Move("MoveIn", Pipe::kMte2, OnUb(to, bytes), OnGm(from, bytes), site);
}

inline void MoveOut(void* to, uint64_t from, uint64_t bytes,
                    Site site = Site::Here()) {
  Move("MoveOut", Pipe::kMte3, OnGm(to, bytes), OnUb(from, bytes), site);
}

// Adds the int32 at `from` in UB to that at `to`.
inline void AddOut(void* to, uint64_t from, Site site = Site::Here()) {
  Move("AddOut", Pipe::kMte3, OnGm(to, 4), OnUb(from, 4), site, true);
}

// to = a + b, int32.
inline void Sum(uint64_t to, uint64_t a, uint64_t b, uint32_t count,
                Site site = Site::Here()) {
  const uint64_t bytes = uint64_t{count} * sizeof(int32_t);
  Instruction sum{"Sum",
                  Pipe::kV,
                  site,
                  {OnUb(a, bytes), OnUb(b, bytes)},
                  {OnUb(to, bytes)},
                  nullptr,
                  {}};
  sum.run = [=] {
    const auto* x = reinterpret_cast<const int32_t*>(Bytes(Memory::kUb, a));
    const auto* y = reinterpret_cast<const int32_t*>(Bytes(Memory::kUb, b));
    auto* z = reinterpret_cast<int32_t*>(Bytes(Memory::kUb, to));
    for (uint32_t i = 0; i < count; ++i) z[i] = x[i] + y[i];
  };
  Issue(std::move(sum));
}

inline GlobalRange RangeOf(const char* name, const std::vector<int32_t>& words,
                           GlobalKind kind, int32_t rank = 0) {
  return {name, reinterpret_cast<uint64_t>(words.data()),
          words.size() * sizeof(int32_t), kind, rank};
}

// "ok", or the kind of each error and its text.
inline void Print(const char* name, const LaunchResult& result) {
  if (result.ok()) std::printf("%s: ok\n", name);
  for (const Error& error : result.errors) {
    std::vector<Place> places = error.others;
    places.push_back(error.at);
    for (const Place& place : places) {
      if (place.call && place.site.file) continue;
      std::printf("%s: an error has a place without a name\n", name);
    }
    std::printf("%s: %s [%s] %s\n", name, NameOf(error.kind),
                error.missing.c_str(), error.text.c_str());
  }
}

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_ENGINE_ENGINE_TESTING_H_
