#include "backend_ascend/twin/watch/rates.h"

namespace ascend_twin {

Seconds SecondsOf(const Rates& rates, const Instruction& work) {
  constexpr double kStep = 2 * 16 * 16 * 16;  // flop of 2-byte elements
  constexpr double kLanes = 64;               // float32, of a vector step
  const bool cube = ThisCoreType() == CoreType::kAic;
  const auto bytes = static_cast<double>(work.work.bytes);
  const auto steps = static_cast<double>(work.work.cube_steps);
  switch (work.pipe) {
    case Pipe::kS:
      return {0, 0};
    case Pipe::kMte1: {
      const bool a = work.writes[0].memory == Memory::kL0A;
      return {bytes / (a ? rates.aic_l0a : rates.aic_l0b) + rates.move_head, 0};
    }
    case Pipe::kMte2:
      return {bytes / (cube ? rates.aic_read : rates.aiv_read),
              rates.read_latency};
    case Pipe::kMte3:
      return {bytes / rates.aiv_write, 0};
    case Pipe::kM: {
      const double step = work.work.of_floats ? kStep / 2 / rates.cube_f32
                                              : kStep / rates.cube_bf16;
      return {steps * step / rates.cube_efficiency + rates.product_head, 0};
    }
    case Pipe::kV:
      return {
          static_cast<double>(work.work.vector_steps) * kLanes / rates.vector,
          0};
    case Pipe::kFix:
      return {bytes / rates.aic_write, 0};
  }
  return {0, 0};
}

}  // namespace ascend_twin
