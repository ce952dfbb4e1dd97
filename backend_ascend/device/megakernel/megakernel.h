// The megakernel of one rank, on all of its cores: MIX, one AIC and two AIVs a
// block.

#ifndef BACKEND_ASCEND_DEVICE_MEGAKERNEL_MEGAKERNEL_H_
#define BACKEND_ASCEND_DEVICE_MEGAKERNEL_MEGAKERNEL_H_

#include "backend_ascend/device/megakernel/ascendc.h"
#include "backend_ascend/device/megakernel/cube_worker.h"
#include "backend_ascend/device/megakernel/launch_args.h"
#include "backend_ascend/device/megakernel/rank_tensors.h"
#include "backend_ascend/device/megakernel/vector_worker.h"
#include "backend_ascend/device/megakernel/waits.h"
#include "backend_ascend/device/megakernel/worker_core.h"

namespace hpmoe {

// Puts write into other ranks, so a vector core starts when all are there.  A
// cube core writes to its own rank only.
HPMOE_FUNCTION CoreDiagnosis AwaitRanks(const RankTensors& rank, int32_t core) {
  if (core > 0) return AwaitLine(rank.args.ready, kAllReady, rank.args);
  return ShakeHands(rank.args, rank.heap, rank.image.num_ranks);
}

// `Core` is VectorWorker or CubeWorker.
template <class Core>
HPMOE_FUNCTION CoreDiagnosis RunQueue(const RankTensors& rank, int32_t index) {
  Core core(rank);
  core.Start();
  const CoreDiagnosis ended = WalkQueue(rank, index, &core);
  core.Finish();
  return ended;
}

template <typename T, typename U>
HPMOE_FUNCTION CoreDiagnosis RunVectorCore(const RankTensors& rank,
                                           int32_t index) {
  const CoreDiagnosis ready = AwaitRanks(rank, index);
  if (ready.reason != kEnded) return ready;
  return RunQueue<VectorWorker<T, U>>(rank, index);
}

// Of storage T and products of U, on the core that calls.  Cores beyond those
// of the image have nothing to do.
template <typename T, typename U>
HPMOE_FUNCTION void RunCore(const RankTensors& rank) {
  const int32_t index = static_cast<int32_t>(AscendC::GetBlockIdx());
  if ASCEND_IS_AIC {
    if (index >= rank.image.num_aic) return;
    WriteDiagnosis(RunQueue<CubeWorker<U>>(rank, index),
                   rank.args.diagnosis + index);
  }
  if ASCEND_IS_AIV {
    if (index >= rank.image.num_aiv) return;
    WriteDiagnosis(RunVectorCore<T, U>(rank, index),
                   rank.args.diagnosis + rank.image.num_aic + index);
  }
}

template <typename T>
HPMOE_FUNCTION void RunStored(const RankTensors& rank) {
  if (IsQuantised(rank.image)) {
    RunCore<T, int8_t>(rank);
  } else {
    RunCore<T, T>(rank);
  }
}

// What every core calls.  The image stores float32 or bfloat16: another is
// refused before launch.
HPMOE_FUNCTION void RunMegakernel(const LaunchArgs& args) {
  AscendC::InitSocState();
  KeepInfinities();  // whatever ran before
  ImageHeader image;
  CopyConstant(reinterpret_cast<const HPMOE_GM ImageHeader*>(args.image),
               &image);
  const RankTensors rank(args, image);
  if (image.dtype == kFloat32) {
    RunStored<float>(rank);
  } else {
    RunStored<bfloat16_t>(rank);
  }
  AscendC::PipeBarrier<PIPE_ALL>();
}

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_DEVICE_MEGAKERNEL_MEGAKERNEL_H_
