#include "backend_ascend/device/standin/twin_devices.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "backend_ascend/device/launch/launch_arrays.h"
#include "backend_ascend/device/twin_launch/changed_image.h"
#include "backend_ascend/device/twin_launch/device_memory.h"
#include "kernel_operator.h"

// The kernel of megakernel.cc.
extern "C" void hpmoe_megakernel(uint8_t* args);

namespace hpmoe {
namespace {

using ascend_twin::CoreType;
using ascend_twin::GlobalKind;
using ascend_twin::GlobalRange;
using Clock = std::chrono::steady_clock;

// Looks at arrays that have their places.
class Reader {
 public:
  Reader(int32_t rank, std::vector<GlobalRange>* ranges)
      : rank_(rank), ranges_(ranges) {}

  template <class T>
  void Add(T** field, const char* name, int64_t count, Content content) {
    if (count == 0) return;
    ranges_->push_back({name, reinterpret_cast<uint64_t>(*field),
                        count * sizeof(T), KindOf(content), rank_});
  }

 private:
  const int32_t rank_;
  std::vector<GlobalRange>* const ranges_;
};

class Launched {
 public:
  explicit Launched(Board* board) : board_(*board) {}

  // Those that posted and were not served.
  std::vector<int32_t> Ranks() const {
    std::vector<int32_t> ranks;
    for (int32_t r = 0; r < board_.num_ranks; ++r) {
      if (board_.seats[r].posted != board_.seats[r].done) ranks.push_back(r);
    }
    return ranks;
  }
  LaunchArgs* ArgsOf(int32_t rank) const {
    return reinterpret_cast<LaunchArgs*>(board_.seats[rank].args);
  }
  const ImageHeader& HeaderOf(int32_t rank) const {
    return *reinterpret_cast<const ImageHeader*>(ArgsOf(rank)->image);
  }

  std::vector<GlobalRange> Ranges(const std::vector<int32_t>& ranks) const {
    std::vector<GlobalRange> ranges;
    for (const int32_t rank : ranks) AddRanges(rank, &ranges);
    // The others' handshake is written to, though nobody is there.
    const LaunchArgs& known = *ArgsOf(ranks[0]);
    for (int32_t r = 0; r < board_.num_ranks; ++r) {
      if (std::count(ranks.begin(), ranks.end(), r) > 0) continue;
      LaunchArgs absent{};
      absent.ready = reinterpret_cast<CounterLine*>(
          reinterpret_cast<uint64_t>(known.ready) - known.heaps[ranks[0]] +
          known.heaps[r]);
      Reader reader(r, &ranges);
      PlaceReady(&reader, &absent);
    }
    return ranges;
  }

 private:
  void AddRanges(int32_t rank, std::vector<GlobalRange>* ranges) const {
    const ImageHeader& h = HeaderOf(rank);
    LaunchArgs* at = ArgsOf(rank);
    LaunchArgs args = *at;
    const int64_t slices = int64_t{h.num_ranks} * h.num_experts;
    const PlanSizes sizes = {args.slice_begin[slices],
                             h.relay == 0 ? 0 : args.once_slice_begin[slices]};
    Reader reader(rank, ranges);
    reader.Add(&at, "launch_args", 1, Content::kConstant);
    reader.Add(&args.heaps, "heaps", h.num_ranks, Content::kConstant);
    PlaceTables(h, h.total_bytes, sizes, &reader, &args);
    PlaceHeap(h, &reader, &args);
    PlaceReady(&reader, &args);
    PlaceOwn(h, &reader, &args);
  }

  Board& board_;
};

// Whether a process goes on; one that was killed may not have been buried.
bool Lives(int32_t pid) {
  std::ifstream told("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(told, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] != 'Z';
}

// Leaves out signals or waits of a task, if that is asked for: in the image of
// every rank, as its size stays.
void Spoil(const FaultSpec& fault, uint8_t* image) {
  const auto& header = *reinterpret_cast<const ImageHeader*>(image);
  ImageView view{};
  if (fault.kind != FaultKind::kMissingSignal &&
      fault.kind != FaultKind::kSkippedWait) {
    return;
  }
  if (LoadImage(image, header.total_bytes, &view).code != 0) return;
  const std::vector<uint64_t> spoilt = FaultyImage(view, fault);
  std::memcpy(image, spoilt.data(), header.total_bytes);
}

template <class Done>
bool WaitUntil(Clock::time_point end, Done done) {
  while (!done()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds));
}

}  // namespace

std::vector<int32_t> Serve(Board* board, const TwinOptions& options,
                           double wait_s, TwinReport* report) {
  *report = {};
  const Launched launched(board);
  if (!WaitUntil(After(wait_s), [&] { return !launched.Ranks().empty(); })) {
    return {};
  }
  const LaunchArgs* const first = launched.ArgsOf(launched.Ranks()[0]);
  const auto all = static_cast<size_t>(board->num_ranks);
  WaitUntil(After(first->deadline_us * 1e-6),
            [&] { return launched.Ranks().size() == all; });
  const std::vector<int32_t> ranks = launched.Ranks();
  std::vector<bool> there(all, false);
  ascend_twin::LaunchSpec spec;
  spec.kernel = "hpmoe_megakernel";
  spec.ranks = board->num_ranks;
  for (const int32_t rank : ranks) {
    there[rank] = Lives(board->seats[rank].pid);
    Spoil(options.fault, const_cast<uint8_t*>(launched.ArgsOf(rank)->image));
    spec.blocks =
        std::max(spec.blocks, static_cast<int32_t>(board->seats[rank].blocks));
  }
  spec.entry = [&](int32_t rank) {
    if (!there[rank]) return;
    // A busy device starts what it has room for, unless it was asked for all.
    const int64_t block = AscendC::GetBlockIdx() / AscendC::GetTaskRatio();
    if (block > 0 && board->seats[rank].at_once == 0) return;
    hpmoe_megakernel(reinterpret_cast<uint8_t*>(launched.ArgsOf(rank)));
  };
  spec.globals = launched.Ranges(ranks);
  SetModes(options, &spec);
  const ascend_twin::LaunchResult result = ascend_twin::Launch(spec);
  report->errors = result.errors;
  report->counts = result.counts;
  report->cycles = result.cycles;
  for (const int32_t rank : ranks) {
    board->seats[rank].done = board->seats[rank].posted.load();
  }
  return ranks;
}

}  // namespace hpmoe
