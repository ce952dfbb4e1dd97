#include "backend_ascend/device/npus/npus.h"

#include <exception>
#include <memory>

#include "backend_ascend/device/npus/session.h"

struct hpmoe_npus {
  hpmoe::Session session;
};

namespace {

// Runs a step; what it throws is an end like others.
template <class Step>
int32_t Call(hpmoe_npus_end* end, Step step) {
  try {
    *end = step();
  } catch (const std::exception& error) {
    *end = hpmoe::End(HPMOE_NPUS_INTERNAL, error.what());
  }
  return end->code;
}

}  // namespace

extern "C" {

uint64_t hpmoe_npus_heap_bytes(const void* image, uint64_t image_bytes) {
  hpmoe_npus_end end;
  uint64_t bytes = 0;
  Call(&end, [&] {
    hpmoe::LoadedImage loaded;
    if (loaded.Load(image, image_bytes).code == 0) {
      bytes = hpmoe::HeapBytesOf(loaded.header());
    }
    return hpmoe::End();
  });
  return bytes;
}

int32_t hpmoe_npus_open(const hpmoe_npus_options* options,
                        hpmoe_npus_hello* hello, hpmoe_npus** session,
                        hpmoe_npus_end* end) {
  *session = nullptr;
  return Call(end, [&] {
    auto made = std::make_unique<hpmoe_npus>();
    const hpmoe::End opened = made->session.Open(*options, hello);
    if (opened.ok()) *session = made.release();
    return opened;
  });
}

int32_t hpmoe_npus_join(hpmoe_npus* session, const hpmoe_npus_hello* hellos,
                        hpmoe_npus_end* end) {
  return Call(end, [&] { return session->session.Join(hellos); });
}

int32_t hpmoe_npus_launch(hpmoe_npus* session, const hpmoe_npus_call* call,
                          hpmoe_npus_end* end) {
  return Call(end, [&] { return session->session.Launch(*call); });
}

int32_t hpmoe_npus_close(hpmoe_npus* session, hpmoe_npus_end* end) {
  const std::unique_ptr<hpmoe_npus> owned(session);
  return Call(end, [&] { return owned->session.Close(); });
}

}  // extern "C"
