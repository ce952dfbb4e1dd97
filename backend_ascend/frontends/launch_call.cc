#include "backend_ascend/frontends/launch_call.h"

#include <cstddef>
#include <cstring>

#include "backend_ascend/frontends/image_registry.h"
#include "backend_ascend/frontends/operands.h"
#include "backend_ascend/host/launch/launch.h"
#include "backend_ascend/host/tiles/finite.h"

namespace hpmoe {
namespace {

CallStatus Refused(const std::string& text) {
  return {CallStatus::kRefused, text};
}

CallStatus Expected(const std::string& name, const std::string& expected,
                    const std::string& got) {
  return Refused(name + ": expected " + expected + ", got " + got);
}

// Of an element that is not finite.
const char* NameOf(const char* data, DType dtype) {
  const int64_t bytes = BytesOf(dtype);
  uint32_t bits = 0;  // little-endian
  std::memcpy(&bits, data, bytes);
  const uint32_t sign = 1u << (8 * bytes - 1);
  if ((bits & ~sign) != kDTypes[dtype].exponent()) return "nan";
  return (bits & sign) != 0 ? "-inf" : "inf";
}

std::string IndexText(int64_t flat, const std::vector<int64_t>& shape) {
  std::string text = ")";
  for (size_t axis = shape.size(); axis-- > 0;) {
    text = std::to_string(flat % shape[axis]) + text;
    flat /= shape[axis];
    if (axis > 0) text = ", " + text;
  }
  return "(" + text;
}

// As runtime.launch refuses the first value that is not finite; empty if there
// is none.
std::string NonFiniteText(const char* name, const void* data, DType dtype,
                          const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const char* const bytes = static_cast<const char*>(data);
  const int64_t at = FirstNonFinite(bytes, dtype, count);
  if (at < 0) return "";
  return std::string(name) + ": expected finite values, got " +
         NameOf(bytes + at * BytesOf(dtype), dtype) + " at " +
         IndexText(at, shape);
}

// Python checked shapes and dtypes; a graph from elsewhere did not.
CallStatus CheckSizes(const char* what, const std::vector<Operand>& wanted,
                      const std::vector<CallArray>& arrays) {
  if (wanted.size() != arrays.size()) {
    return Expected(what, std::to_string(wanted.size()),
                    std::to_string(arrays.size()));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].bytes == arrays[i].bytes) continue;
    return Expected(wanted[i].name, std::to_string(wanted[i].bytes) + " bytes",
                    std::to_string(arrays[i].bytes));
  }
  return {};
}

CallStatus PlaceOperands(const std::vector<Operand>& wanted,
                         const std::vector<CallArray>& arrays,
                         LaunchTensors* tensors) {
  const CallStatus sizes = CheckSizes("operands", wanted, arrays);
  if (sizes.code != CallStatus::kDone) return sizes;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Operand& operand = wanted[i];
    operand.place(arrays[i].data, tensors);
    if (operand.finite == kNumDTypes) continue;
    const std::string text = NonFiniteText(operand.name, arrays[i].data,
                                           operand.finite, arrays[i].shape);
    if (!text.empty()) return Refused(text);
  }
  return {};
}

CallStatus PlaceResults(const std::vector<Operand>& wanted,
                        const std::vector<CallArray>& arrays, bool clear,
                        LaunchTensors* tensors) {
  const CallStatus sizes = CheckSizes("results", wanted, arrays);
  if (sizes.code != CallStatus::kDone) return sizes;
  for (size_t i = 0; i < wanted.size(); ++i) {
    // A launch leaves rows past a rank's last one as they arrive; a framework's
    // arrive with what was there before.
    if (clear) std::memset(arrays[i].data, 0, wanted[i].bytes);
    wanted[i].place(arrays[i].data, tensors);
  }
  return {};
}

CallStatus StatusOf(const Status& status, const Diagnosis& diagnosis) {
  if (status.code != 0) return Refused(status.message);
  if (diagnosis.reason == StopReason::kNone) return {};
  const bool deadline = diagnosis.reason == StopReason::kDeadline;
  return {deadline ? CallStatus::kDeadline : CallStatus::kDeadlock,
          diagnosis.text};
}

}  // namespace

std::vector<Operand> OperandsOf(const ImageHeader& image,
                                const CallOptions& options, bool made) {
  const bool whole = options.asked == 0;
  const uint64_t mask = made ? options.asked : options.given;
  const std::vector<Operand> known = KnownOperands(image);
  std::vector<Operand> named;
  for (size_t i = 0; i < known.size(); ++i) {
    const bool wanted = whole ? known[i].used : ((mask >> i) & 1) != 0;
    if (!wanted || known[i].made != made) continue;
    named.push_back(known[i]);
    const bool weights = std::strcmp(known[i].name, "topk_weights") == 0;
    if (!whole && !options.scan && !weights) named.back().finite = kNumDTypes;
  }
  return named;
}

CallStatus CallLaunch(const CallOptions& options,
                      const std::vector<CallArray>& operands,
                      const std::vector<CallArray>& results) {
  Launch* const launch = FindLaunch(options.digest);
  if (launch == nullptr) {
    return Expected("image",
                    "one that this process compiled (`prepare` of the front "
                    "end)",
                    std::string(options.digest));
  }
  // What no clock counts would end the launch at once, or never.
  if (!(options.deadline_s > 0 && options.deadline_s <= kMaxDeadlineS)) {
    return Expected("deadline_s", "seconds in (0, 1e9]",
                    std::to_string(options.deadline_s));
  }
  const ImageHeader& image = launch->image();
  LaunchTensors tensors{};
  CallStatus placed = PlaceOperands(OperandsOf(image, options, /*made=*/false),
                                    operands, &tensors);
  if (placed.code != CallStatus::kDone) return placed;
  const bool whole = options.asked == 0;
  placed = PlaceResults(OperandsOf(image, options, /*made=*/true), results,
                        /*clear=*/whole, &tensors);
  if (placed.code != CallStatus::kDone) return placed;
  LaunchOptions how;
  how.threads = options.threads;
  how.deadline_s = options.deadline_s;
  if (whole) how.modes.start = Modes::Start::kPoison;
  LaunchReport report;
  return StatusOf(launch->Run(tensors, how, &report), report.diagnosis);
}

}  // namespace hpmoe
