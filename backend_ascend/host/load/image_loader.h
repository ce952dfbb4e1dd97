// Loading of a task image: every byte is checked once, so that nothing that
// runs on an ImageView needs a bounds check, whatever the blob held.

#ifndef BACKEND_ASCEND_HOST_LOAD_IMAGE_LOADER_H_
#define BACKEND_ASCEND_HOST_LOAD_IMAGE_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend_ascend/image/image.h"
#include "backend_ascend/image/regions.h"

namespace hpmoe {

// Outcome of a native call.  code 0 is success; otherwise `message` is one
// line that says what, expected and got: 1 of the caller's data, kBroken of
// what this library made of them.
constexpr int kBroken = 2;
struct Status {
  int code;
  char message[256];
};

// A status of `code`, which is not 0, and of what printf makes.
__attribute__((format(printf, 2, 3))) Status Refused(int code,
                                                     const char* format, ...);

// Pointers into the caller's blob, which must outlive the view.
struct ImageView {
  const ImageHeader* header;
  const TaskDesc* tasks;
  const WaitDesc* waits;
  const SignalDesc* signals;
  const RegionDesc* regions;
  const EventDesc* events;
  const SpaceDesc* spaces;
  const QueueDesc* queues;
  const uint32_t* queue_tasks;
  int32_t num_tasks;
  int32_t num_waits;
  int32_t num_signals;
  int32_t num_regions;
  int32_t num_events;
  int32_t num_spaces;
  int32_t num_queues;
  int32_t num_queue_tasks;
};

// Fills `out` and returns code 0, or refuses the blob with code 1.  `data` must
// be 8-byte aligned.  A loaded view satisfies: every table lies in the blob;
// every index, range and enum is valid; kinds and buffers are those of the
// image's direction; every region lies in its buffer; rows are counted only
// into events of buffers that puts write; every task is in exactly one queue,
// of its rank and core.  Whether a task's unit fits its queue, and whether the
// flow is sound, is for the proofs.
Status LoadImage(const void* data, size_t size, ImageView* out);

// An image with bytes of its own, checked once.  Nothing changes it, so threads
// may share it.
class LoadedImage {
 public:
  LoadedImage() = default;
  LoadedImage(LoadedImage&&) = default;
  LoadedImage& operator=(LoadedImage&&) = default;

  // Copies the blob, wherever it lies, and checks it as LoadImage does.
  Status Load(const void* data, size_t size);

  const ImageView& view() const { return view_; }
  const ImageHeader& header() const { return *view_.header; }
  const void* data() const { return words_.data(); }
  size_t size() const { return header().total_bytes; }

 private:
  std::vector<uint64_t> words_;
  ImageView view_ = {};  // into words_
};

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_HOST_LOAD_IMAGE_LOADER_H_
