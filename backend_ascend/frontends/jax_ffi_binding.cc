#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "backend_ascend/frontends/failure.h"
#include "backend_ascend/frontends/image_registry.h"
#include "backend_ascend/frontends/jax_ffi.h"
#include "backend_ascend/frontends/operands.h"
#include "backend_ascend/kernels/host/launch/launch.h"

namespace hpmoe {
namespace {

namespace ffi = xla::ffi;

ffi::Error Expected(const std::string& name, const std::string& expected,
                    const std::string& got) {
  return ffi::Error::InvalidArgument(name + ": expected " + expected +
                                     ", got " + got);
}

ffi::Error CheckSize(const char* what, size_t expected, size_t got) {
  if (expected == got) return ffi::Error::Success();
  return Expected(what, std::to_string(expected), std::to_string(got));
}

// Python checked shapes and dtypes; a graph from elsewhere did not.
ffi::Error CheckBytes(const Operand& operand, const ffi::AnyBuffer& buffer) {
  const auto got = static_cast<int64_t>(buffer.size_bytes());
  if (operand.bytes == got) return ffi::Error::Success();
  return Expected(operand.name, std::to_string(operand.bytes) + " bytes",
                  std::to_string(got));
}

ffi::Error PlaceInputs(const ImageHeader& image, ffi::RemainingArgs args,
                       LaunchTensors* tensors) {
  const std::vector<Operand> operands = InputsOf(image);
  ffi::Error size = CheckSize("operands", operands.size(), args.size());
  if (size.failure()) return size;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    const ffi::AnyBuffer buffer = args.get<ffi::AnyBuffer>(i).value();
    ffi::Error bytes = CheckBytes(operand, buffer);
    if (bytes.failure()) return bytes;
    operand.place(buffer.untyped_data(), tensors);
    if (operand.float_bytes == 0) continue;
    const auto dims = buffer.dimensions();
    const std::string text =
        NonFiniteText(operand.name, buffer.untyped_data(), operand.float_bytes,
                      {dims.begin(), dims.end()});
    if (!text.empty()) return ffi::Error::InvalidArgument(text);
  }
  return ffi::Error::Success();
}

ffi::Error PlaceOutputs(const ImageHeader& image, ffi::RemainingRets rets,
                        LaunchTensors* tensors) {
  const std::vector<Operand> operands = OutputsOf(image);
  ffi::Error size = CheckSize("results", operands.size(), rets.size());
  if (size.failure()) return size;
  for (size_t i = 0; i < operands.size(); ++i) {
    ffi::AnyBuffer buffer = *rets.get<ffi::AnyBuffer>(i).value();
    ffi::Error bytes = CheckBytes(operands[i], buffer);
    if (bytes.failure()) return bytes;
    // A launch leaves rows past a rank's last one as they arrive; XLA's arrive
    // with what was there before.
    std::memset(buffer.untyped_data(), 0, operands[i].bytes);
    operands[i].place(buffer.untyped_data(), tensors);
  }
  return ffi::Error::Success();
}

ffi::Error Run(const ImageView& view, const LaunchTensors& tensors,
               int32_t threads, double deadline_s) {
  LaunchOptions options;
  options.threads = threads;
  options.deadline_s = deadline_s;
  LaunchReport report;
  const Status status = Launch(view, tensors, options, &report);
  if (status.code != 0) return ffi::Error::InvalidArgument(status.message);
  const Diagnosis& diagnosis = report.diagnosis;
  if (diagnosis.reason == StopReason::kNone) return ffi::Error::Success();
  const bool deadline = diagnosis.reason == StopReason::kDeadline;
  return ffi::Error(
      deadline ? ffi::ErrorCode::kDeadlineExceeded : ffi::ErrorCode::kInternal,
      diagnosis.text);
}

ffi::Error LaunchCall(std::string_view image, int32_t threads,
                      double deadline_s, ffi::RemainingArgs args,
                      ffi::RemainingRets rets) {
  const ImageView* const view = FindImage(image);
  if (view == nullptr) {
    return ffi::Error::InvalidArgument(
        "image: expected one that this process compiled "
        "(jax_layer.prepare), got " +
        std::string(image));
  }
  // What no clock counts would end the launch at once, or never.
  if (!(deadline_s > 0 && deadline_s <= kMaxDeadlineS)) {
    return Expected("deadline_s", "seconds in (0, 1e9]",
                    std::to_string(deadline_s));
  }
  LaunchTensors tensors{};
  ffi::Error inputs = PlaceInputs(*view->header, args, &tensors);
  if (inputs.failure()) return inputs;
  ffi::Error outputs = PlaceOutputs(*view->header, rets, &tensors);
  if (outputs.failure()) return outputs;
  return Run(*view, tensors, threads, deadline_s);
}

}  // namespace

XLA_FFI_Error* JaxLaunch(XLA_FFI_CallFrame* frame) {
  static const auto* const handler = ffi::Ffi::Bind()
                                         .Attr<std::string_view>("image")
                                         .Attr<int32_t>("threads")
                                         .Attr<double>("deadline_s")
                                         .RemainingArgs()
                                         .RemainingRets()
                                         .To(&LaunchCall)
                                         .release();
  return handler->Call(frame);
}

}  // namespace hpmoe
