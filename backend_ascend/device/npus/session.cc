#include "backend_ascend/device/npus/session.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "backend_ascend/device/launch/target.h"
#include "backend_ascend/device/npus/diagnose_cores.h"
#include "shmem.h"

namespace hpmoe {
namespace {

// Of SHMEM's heap beside the one allocation: its allocator's own.
constexpr uint64_t kPage = 2 << 20;
constexpr double kMostDeadline_s = 10000;

static_assert(sizeof(aclshmemx_uniqueid_t) <=
                  sizeof(hpmoe_npus_hello::unique_id),
              "a unique id fits in a hello");

End Called(int code, const char* call) {
  if (code == ACLSHMEM_SUCCESS) return {};
  return {HPMOE_NPUS_LIBRARY,
          std::string(call) + ": expected 0, got " + std::to_string(code)};
}

End FromStatus(const Status& status) {
  if (status.code == 0) return {};
  return {status.code == kBroken ? HPMOE_NPUS_INTERNAL : HPMOE_NPUS_INPUT,
          status.message};
}

// Steps of the roll call: ranks have come to a launch, and have ended it.
int32_t CameTo(int32_t generation) { return 2 * generation - 1; }
int32_t Ended(int32_t generation) { return 2 * generation; }

}  // namespace

struct Session::Shmem {
  aclshmemx_uniqueid_t id = ACLSHMEM_UNIQUEID_INITIALIZER;
  aclshmemx_init_attr_t attributes;
  bool started = false;
  void* heap = nullptr;
};

Session::Session() : shmem_(std::make_unique<Shmem>()) {}
Session::~Session() { Close(); }

End Session::Open(const hpmoe_npus_options& options, hpmoe_npus_hello* hello) {
  const auto refuse = [](const char* name, const char* expected) {
    return End(HPMOE_NPUS_INPUT, std::string(name) + ": expected " + expected);
  };
  if (options.num_ranks < 1) return refuse("num_ranks", "at least 1");
  if (options.rank < 0 || options.rank >= options.num_ranks) {
    return refuse("rank", "one in [0, num_ranks)");
  }
  if (options.heap_bytes == 0) return refuse("heap_bytes", "more than 0");
  if (!(options.start_s > 0 && options.start_s <= kMostDeadline_s)) {
    return refuse("start_s", "seconds in (0, 10000]");
  }
  if (options.kernel == nullptr || options.kernel[0] != '/') {
    return refuse("kernel", "an absolute path");
  }
  rank_ = options.rank;
  num_ranks_ = options.num_ranks;
  heap_bytes_ = options.heap_bytes;
  start_s_ = options.start_s;
  HPMOE_TRY(device_.Open(options.device, options.kernel));
  *hello = {};
  hello->rank = rank_;
  hello->num_ranks = num_ranks_;
  hello->device = device_.physical();
  hello->in_groups = device_.in_groups() ? 1 : 0;
  hello->server = ThisServer();
  hello->pod = device_.pod();
  hello->heap_bytes = heap_bytes_;
  if (rank_ == 0) {
    HPMOE_TRY(
        Called(aclshmemx_get_uniqueid(&shmem_->id), "aclshmemx_get_uniqueid"));
    std::memcpy(hello->unique_id, &shmem_->id, sizeof(shmem_->id));
  }
  return {};
}

End Session::Start(const hpmoe_npus_hello* hellos) {
  std::memcpy(&shmem_->id, hellos[0].unique_id, sizeof(shmem_->id));
  const uint64_t bytes = (heap_bytes_ + kPage - 1) / kPage * kPage + kPage;
  HPMOE_TRY(Called(aclshmemx_set_attr_uniqueid_args(
                       rank_, num_ranks_, static_cast<int64_t>(bytes),
                       &shmem_->id, &shmem_->attributes),
                   "aclshmemx_set_attr_uniqueid_args"));
  const auto seconds = static_cast<uint32_t>(std::max(1.0, start_s_));
  shmem_->attributes.option_attr.shm_init_timeout = seconds;
  shmem_->attributes.option_attr.shm_create_timeout = seconds;
  shmem_->attributes.option_attr.control_operation_timeout = seconds;
  const End began = Called(
      aclshmemx_init_attr(ACLSHMEMX_INIT_WITH_UNIQUEID, &shmem_->attributes),
      "aclshmemx_init_attr");
  shmem_->started = began.ok();
  if (began.ok()) return began;
  return {began.code, std::string(began.text) + " of SHMEM: not all of " +
                          std::to_string(num_ranks_) + " ranks came within " +
                          SecondsText(start_s_)};
}

// One allocation: the same size on every rank, so the same distances.  It is
// zero before any rank has it, so whoever speaks first finds lines made.
End Session::AllocateHeap() {
  shmem_->heap = aclshmem_calloc(1, heap_bytes_);
  if (shmem_->heap == nullptr) {
    return {HPMOE_NPUS_LIBRARY, "aclshmem_calloc: expected " +
                                    std::to_string(heap_bytes_) +
                                    " bytes, got none"};
  }
  for (int32_t r = 0; r < num_ranks_; ++r) {
    void* const at = aclshmem_ptr(shmem_->heap, r);
    if (at == nullptr) {
      return {HPMOE_NPUS_UNREACHABLE,
              "aclshmem_ptr: expected the heap of rank " + std::to_string(r) +
                  ", got none",
              {r}};
    }
    heaps_.push_back(reinterpret_cast<uint64_t>(at));
  }
  return {};
}

End Session::Join(const hpmoe_npus_hello* hellos) {
  if (joined_) return {HPMOE_NPUS_INPUT, "join: expected to be called once"};
  hpmoe_npus_hello own = hellos[rank_];
  own.rank = rank_;
  own.num_ranks = num_ranks_;
  HPMOE_TRY(CheckHellos(hellos, own));
  HPMOE_TRY(Start(hellos));
  HPMOE_TRY(AllocateHeap());
  memory_ = std::make_unique<RankMemory>();
  roll_ = std::make_unique<RollCall>();
  HPMOE_TRY(roll_->Begin(
      reinterpret_cast<CounterLine*>(static_cast<char*>(shmem_->heap) +
                                     HeapHeadOf(num_ranks_).roll),
      rank_, num_ranks_));
  joined_ = true;
  return {};
}

// An image is looked through once.
End Session::Load(const hpmoe_npus_call& call, const LoadedImage** image) {
  for (const auto& one : images_) {
    if (one->size() == call.image_bytes &&
        std::memcmp(one->data(), call.image, call.image_bytes) == 0) {
      *image = one.get();
      return {};
    }
  }
  auto loaded = std::make_unique<LoadedImage>();
  HPMOE_TRY(FromStatus(loaded->Load(call.image, call.image_bytes)));
  const ImageView& view = loaded->view();
  if (view.header->num_ranks != num_ranks_) {
    return {HPMOE_NPUS_INPUT, "image: expected one of " +
                                  std::to_string(num_ranks_) + " ranks, got " +
                                  std::to_string(view.header->num_ranks)};
  }
  HPMOE_TRY(FromStatus(CheckNpuTarget(view)));
  *image = loaded.get();
  images_.push_back(std::move(loaded));
  return {};
}

// Its own failure, and who is to blame: ranks that say nothing any more.
End Session::Blame(const End& failed, double deadline_s) {
  roll_->GiveUp(Ended(generation_));
  std::vector<int32_t> silent;
  if (!roll_->Silent(Ended(generation_), deadline_s, &silent).ok() ||
      silent.empty()) {
    return failed;
  }
  End end(HPMOE_NPUS_RANK_LOST,
          RanksText(silent) + ": expected word within " +
              SecondsText(deadline_s) + ", got none; " + failed.text,
          silent);
  end.task = failed.task;
  end.event = failed.event;
  end.expected = failed.expected;
  end.actual = failed.actual;
  end.num_suspects = failed.num_suspects;
  std::copy_n(failed.suspects, failed.num_suspects, end.suspects);
  return end;
}

End Session::RunKernel(const ImageView& view, const hpmoe_npus_call& call) {
  const End ran =
      device_.Run(memory_->args(), BlocksOf(*view.header), call.deadline_s);
  std::vector<CoreDiagnosis> ends;
  const End read = memory_->Ends(*view.header, &ends);
  const End told = read.ok() ? EndOf(view, rank_, ends) : read;
  // What the cores say tells more than that the launch failed.
  if (!ran.ok() && told.code != HPMOE_NPUS_DEADLINE) return ran;
  return told;
}

End Session::Run(const ImageView& view, const hpmoe_npus_call& call) {
  const ImageHeader& header = *view.header;
  HPMOE_TRY(device_.CheckBlocks(BlocksOf(header)));
  Plan plan;
  HPMOE_TRY(FromStatus(
      MakeRankPlan(header, rank_, call.topk_ids, call.counts, &plan)));
  HPMOE_TRY(FromStatus(CheckPlan(header, rank_, 1, call.topk_ids, plan)));
  HPMOE_TRY(memory_->Begin(view, plan, heaps_, heap_bytes_, rank_, call,
                           generation_));
  // From here on others may write into this rank.
  HPMOE_TRY(roll_->Meet(CameTo(generation_), call.deadline_s));
  if (const End failed = RunKernel(view, call); !failed.ok()) {
    return Blame(failed, call.deadline_s);
  }
  HPMOE_TRY(roll_->Meet(Ended(generation_), call.deadline_s));
  return memory_->CopyResults(view, plan);
}

End Session::Launch(const hpmoe_npus_call& call) {
  if (!joined_) return {HPMOE_NPUS_INPUT, "launch: expected join before it"};
  if (lost_) {
    return {HPMOE_NPUS_INPUT,
            "launch: expected a session whose launches all ended, got one that "
            "failed: close it"};
  }
  if (!(call.deadline_s > 0 && call.deadline_s <= kMostDeadline_s)) {
    return {HPMOE_NPUS_INPUT, "deadline_s: expected seconds in (0, 10000]"};
  }
  ++generation_;
  const LoadedImage* image = nullptr;
  End end = Load(call, &image);
  if (end.ok()) end = Run(image->view(), call);
  if (end.ok()) return end;
  // The others need not wait: whatever it was, this rank is not there.
  lost_ = true;
  roll_->GiveUp(Ended(generation_));
  return end;
}

End Session::Close() {
  End first;
  memory_.reset();
  roll_.reset();
  if (shmem_->started && !lost_) {
    if (shmem_->heap != nullptr) aclshmem_free(shmem_->heap);
    first = Called(aclshmem_finalize(), "aclshmem_finalize");
  }
  // Finalising waits for every rank; where one is lost, the process ends it.
  shmem_->started = false;
  const End closed = device_.Close();
  return first.ok() ? closed : first;
}

}  // namespace hpmoe
