// An intrinsic: a name, and how its arguments become a call of an instruction.

#ifndef BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_INTRINSICS_INTRINSIC_H_
#define BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_INTRINSICS_INTRINSIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "backend_ascend/kernels/ascendc/twin/instructions/operand.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/argument.h"

namespace ascend_twin {

// The arguments of one call, from 0.
class Arguments {
 public:
  Arguments(const char* name, Site site, const Argument* all, int count)
      : call(name, site), all_(all), count_(count) {}

  int count() const { return count_; }
  // Ends the launch unless there are `low` to `high` of them.
  void Expect(int low, int high) const;
  void Expect(int count) const { Expect(count, count); }
  int64_t At(int i) const { return static_cast<int64_t>(all_[i].bits); }
  uint64_t Bits(int i) const { return all_[i].bits; }
  // A pointer; what points to void is of type `otherwise`.
  Operand Of(int i, Type otherwise = Type::kUint8) const;

  const Call call;

 private:
  const Argument* all_;
  int count_;
};

struct Intrinsic {
  const char* name;
  int64_t (*run)(const Arguments& arguments);
};

// All names that the twin has.
std::vector<std::string> IntrinsicNames();

// Those of each family.
std::vector<Intrinsic> SyncIntrinsics();
std::vector<Intrinsic> MoveIntrinsics();
std::vector<Intrinsic> VectorIntrinsics();
std::vector<Intrinsic> ChooseIntrinsics();
std::vector<Intrinsic> CubeIntrinsics();

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_KERNELS_ASCENDC_TWIN_INTRINSICS_INTRINSIC_H_
