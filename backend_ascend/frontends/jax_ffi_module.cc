// The extension module of the JAX front end, the one that knows XLA's headers.

#include <xla/ffi/api/c_api.h>
#include <xla/ffi/api/ffi.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "backend_ascend/frontends/launch_call.h"
#include "backend_ascend/frontends/register_binding.h"

namespace hpmoe {
namespace {

namespace ffi = xla::ffi;

CallArray ArrayOf(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {buffer.untyped_data(),
          static_cast<int64_t>(buffer.size_bytes()),
          {dims.begin(), dims.end()}};
}

ffi::ErrorCode CodeOf(CallStatus::Code code) {
  switch (code) {
    case CallStatus::kDone:
      return ffi::ErrorCode::kOk;
    case CallStatus::kRefused:
      return ffi::ErrorCode::kInvalidArgument;
    case CallStatus::kDeadline:
      return ffi::ErrorCode::kDeadlineExceeded;
    case CallStatus::kDeadlock:
      break;
  }
  return ffi::ErrorCode::kInternal;
}

ffi::Error LaunchCall(std::string_view image, int32_t threads,
                      double deadline_s, int64_t given, int64_t asked,
                      bool scan, ffi::RemainingArgs args,
                      ffi::RemainingRets rets) {
  std::vector<CallArray> operands, results;
  for (size_t i = 0; i < args.size(); ++i) {
    operands.push_back(ArrayOf(args.get<ffi::AnyBuffer>(i).value()));
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    results.push_back(ArrayOf(*rets.get<ffi::AnyBuffer>(i).value()));
  }
  const CallStatus status =
      CallLaunch({image, threads, deadline_s, static_cast<uint64_t>(given),
                  static_cast<uint64_t>(asked), scan},
                 operands, results);
  if (status.code == CallStatus::kDone) return ffi::Error::Success();
  return ffi::Error(CodeOf(status.code), status.text);
}

// The XLA FFI handler that runs one launch.  It sees no Python: XLA calls it
// from threads of its own, which do not hold the interpreter's lock. Attributes
// are those of CallOptions, operands and results as operands.h says.
XLA_FFI_Error* JaxLaunch(XLA_FFI_CallFrame* frame) {
  static const auto* const handler = ffi::Ffi::Bind()
                                         .Attr<std::string_view>("image")
                                         .Attr<int32_t>("threads")
                                         .Attr<double>("deadline_s")
                                         .Attr<int64_t>("given")
                                         .Attr<int64_t>("asked")
                                         .Attr<bool>("scan")
                                         .RemainingArgs()
                                         .RemainingRets()
                                         .To(&LaunchCall)
                                         .release();
  return handler->Call(frame);
}

}  // namespace
}  // namespace hpmoe

namespace nb = nanobind;

NB_MODULE(_jax_ffi, m) {
  m.doc() = "Native part of backend_ascend.frontends.jax_layer.";
  m.attr("api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  hpmoe::BindRegister(m);
  m.def("handler",
        [] { return nb::capsule(reinterpret_cast<void*>(&hpmoe::JaxLaunch)); });
}
