// A production launch: one image, launched many times.  Its arena is kept, only
// the tensors that are asked for are made, and nothing is filled or scanned
// beyond what memory safety needs: ids and capacity.
//
// It runs the tasks of the image in the order of its queues, as any launch
// does; but a tensor that nobody asked for, and that its readers can do
// without, is not made, and its tasks only signal:
//
//   expert_in, d_expert_out at    rows are read where their tokens lie
//     no weight
//   gate_up                       computed by the activation's task, for itself
//   activation                    by the task of `down`, where that has all
//                                 columns
//   d_activation                  by the task of d_gate_up
//   returned, d_returned          tokens are summed from the owners' rows
//
// Every element that is made is computed by the same chain, from the same
// values, rounded at the same places: bits are those of a checking launch.

#ifndef BACKEND_ASCEND_KERNELS_HOST_PRODUCTION_H_
#define BACKEND_ASCEND_KERNELS_HOST_PRODUCTION_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

#include "backend_ascend/kernels/host/launch/diagnosis.h"
#include "backend_ascend/kernels/host/launch/launch_prepare.h"
#include "backend_ascend/kernels/host/load/image_loader.h"
#include "backend_ascend/kernels/host/production/production_tasks.h"

namespace hpmoe {

// Memory that grows and is not cleared.
class Arena {
 public:
  // `bytes`, aligned to cache lines, contents undefined.  Throws bad_alloc.
  char* Reserve(int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t bytes_ = 0;
};

struct ProductionOptions {
  int32_t threads = 0;  // 0: one per core, no more than there are workers
  double deadline_s = 60;
  Isa isa = BestIsa();
};

class Production {
 public:
  // `view` must outlive it.
  explicit Production(const ImageView& view);

  // Buffers that tasks write are made if they are given; counts, row_base and
  // row_of_slot may be null.  What lies past a rank's last valid row stays as
  // it was.  Backward: of expert_in and x, and of returned and expert_out, one
  // is enough.  Thread-safe: launches at the same time have arenas of their
  // own.
  Status Launch(const LaunchTensors& tensors, const ProductionOptions& options,
                Diagnosis* diagnosis);

  const ImageHeader& image() const { return *view_.header; }

  // Of all arenas.
  int64_t arena_bytes();

 private:
  struct Held {
    Arena arena;
    Routed routed;
    std::vector<GemmScratch> scratch;  // by thread
  };

  std::unique_ptr<Held> Take();
  void Return(std::unique_ptr<Held> held);
  Status LaunchIn(const LaunchTensors& tensors,
                  const ProductionOptions& options, Held* held,
                  Diagnosis* diagnosis) const;
  bool Needs(const LaunchTensors& tensors, int buffer) const;
  Status Place(const LaunchTensors& tensors, Held* held,
               ProductionLayer* production) const;

  const ImageView& view_;
  bool whole_down_ = true;  // every task of `down` has all columns
  std::mutex mutex_;
  std::vector<std::unique_ptr<Held>> free_;  // guarded by mutex_
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_PRODUCTION_H_
