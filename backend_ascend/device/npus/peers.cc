#include "backend_ascend/device/npus/peers.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <thread>

#include "acl/acl.h"
#include "shmem.h"

namespace hpmoe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kBetweenLooks{500};
constexpr int32_t kGroup = 8;  // devices of an A2 that reach each other

}  // namespace

uint64_t ThisServer() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::hash<std::string>()(boot);
}

bool Reaches(const hpmoe_npus_hello& one, const hpmoe_npus_hello& other) {
  const bool one_server = one.server == other.server;
  if (one.in_groups != 0 || other.in_groups != 0) {
    return one_server && one.in_groups == other.in_groups &&
           one.device / kGroup == other.device / kGroup;
  }
  return one_server || (one.pod >= 0 && one.pod == other.pod);
}

End CheckHellos(const hpmoe_npus_hello* hellos, const hpmoe_npus_hello& own) {
  std::vector<int32_t> far;
  for (int32_t r = 0; r < own.num_ranks; ++r) {
    const hpmoe_npus_hello& one = hellos[r];
    if (one.rank != r || one.num_ranks != own.num_ranks) {
      return {HPMOE_NPUS_INPUT,
              "hellos: expected rank " + std::to_string(r) + " of " +
                  std::to_string(own.num_ranks) + ", got rank " +
                  std::to_string(one.rank) + " of " +
                  std::to_string(one.num_ranks),
              {r}};
    }
    if (one.heap_bytes != hellos[0].heap_bytes) {
      return {HPMOE_NPUS_INPUT,
              "heap_bytes: expected " + std::to_string(hellos[0].heap_bytes) +
                  ", those of rank 0, got " + std::to_string(one.heap_bytes) +
                  " on rank " + std::to_string(r),
              {r}};
    }
    if (!Reaches(own, one)) far.push_back(r);
  }
  if (far.empty()) return {};
  const hpmoe_npus_hello& one = hellos[far[0]];
  const bool near = one.server == own.server;
  return {HPMOE_NPUS_UNREACHABLE,
          "rank " + std::to_string(own.rank) +
              ": expected ranks whose memory "
              "its cores can write, " +
              (own.in_groups != 0
                   ? "on the same server and in the same group of 8 devices"
                   : "on the same server or in the same super pod") +
              ", got " + RanksText(far) + ": device " +
              std::to_string(one.device) + (near ? " of this" : " of another") +
              " server, and this is device " + std::to_string(own.device),
          far};
}

End RollCall::Begin(CounterLine* lines, int32_t rank, int32_t num_ranks) {
  lines_ = lines;
  rank_ = rank;
  num_ranks_ = num_ranks;
  return word_.Grow(sizeof(CounterLine));
}

End RollCall::Say(int32_t word) {
  const CounterLine line = {word, {}};
  HPMOE_TRY(CopyIn(word_.data(), &line, sizeof(line)));
  for (int32_t r = 0; r < num_ranks_; ++r) {
    aclshmem_putmem(lines_ + rank_, word_.data(), sizeof(line), r);
  }
  return {};
}

End RollCall::Read(std::vector<CounterLine>* lines) {
  lines->resize(num_ranks_);
  return CopyOut(lines->data(), lines_, num_ranks_ * sizeof(CounterLine));
}

void RollCall::GiveUp(int32_t step) { Say(-step); }

End RollCall::Meet(int32_t step, double deadline_s) {
  HPMOE_TRY(Say(step));
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(deadline_s));
  std::vector<CounterLine> lines;
  for (;;) {
    HPMOE_TRY(Read(&lines));
    std::vector<int32_t> late, left;
    for (int32_t r = 0; r < num_ranks_; ++r) {
      if (lines[r].value < 0) left.push_back(r);
      if (lines[r].value < step) late.push_back(r);
    }
    if (late.empty()) return {};
    if (!left.empty()) {
      return {HPMOE_NPUS_RANK_LOST, RanksText(left) + " gave up", left};
    }
    if (Clock::now() > end) {
      return {HPMOE_NPUS_RANK_LOST,
              RanksText(late) + ": expected word within " +
                  SecondsText(deadline_s) + ", got none",
              late};
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

End RollCall::Silent(int32_t step, double deadline_s,
                     std::vector<int32_t>* silent) {
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(deadline_s));
  std::vector<CounterLine> lines;
  do {
    HPMOE_TRY(Read(&lines));
    silent->clear();
    for (int32_t r = 0; r < num_ranks_; ++r) {
      if (std::abs(lines[r].value) < step) silent->push_back(r);
    }
    std::this_thread::sleep_for(kBetweenLooks);
  } while (!silent->empty() && Clock::now() < end);
  return {};
}

}  // namespace hpmoe
