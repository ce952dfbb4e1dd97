// An intrinsic: a name, and how its arguments become a call of an instruction.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_INTRINSIC_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_INTRINSIC_H_

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend_ascend/twin/instructions/operand.h"
#include "backend_ascend/twin/intrinsics/argument.h"

namespace ascend_twin {

// An argument that becomes an integer, a bool or an enum of a parameter's type.
struct Word {
  uint64_t bits;

  template <typename T>
  operator T() const {
    return static_cast<T>(bits);
  }
};

// The arguments of one call, from 0.
class Arguments {
 public:
  Arguments(const char* name, Site site, const Argument* all, int count)
      : call(name, site), all_(all), count_(count) {}

  int count() const { return count_; }
  Word operator[](int i) const { return {all_[i].bits}; }
  int64_t At(int i) const { return static_cast<int64_t>(all_[i].bits); }
  uint64_t Bits(int i) const { return all_[i].bits; }
  // A pointer; what points to void is of type `otherwise`.
  Operand Of(int i, Type otherwise = Type::kUint8) const;

  const Call call;

 private:
  const Argument* all_;
  int count_;
};

constexpr int kAny = 1 << 10;  // arguments at most: more than any call has

// `run` takes `least` to `most` arguments, and gives a number or nothing.
struct Intrinsic {
  template <typename F>
  Intrinsic(std::string name_, int least_, int most_, F f)
      : name(std::move(name_)),
        least(least_),
        most(most_),
        run([f](const Arguments& arguments) -> int64_t {
          if constexpr (std::is_void<decltype(f(arguments))>::value) {
            f(arguments);
            return 0;
          } else {
            return static_cast<int64_t>(f(arguments));
          }
        }) {}

  std::string name;
  int least;
  int most;
  std::function<int64_t(const Arguments&)> run;
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

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_INTRINSIC_H_
