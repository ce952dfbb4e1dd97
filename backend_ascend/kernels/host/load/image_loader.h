// Loading of a task image: every byte is checked once, so that nothing that
// runs on an ImageView needs a bounds check, whatever the blob held.

#ifndef BACKEND_ASCEND_KERNELS_HOST_IMAGE_LOADER_H_
#define BACKEND_ASCEND_KERNELS_HOST_IMAGE_LOADER_H_

#include <cstddef>
#include <cstdint>

#include "backend_ascend/kernels/image.h"

namespace hpmoe {

// Outcome of a native call.  code 0 is success; otherwise `message` is one
// line that says what, expected and got.
struct Status {
  int code;
  char message[256];
};

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

// The five forms of task, the same as the emitters of the lowering.  A form
// says what the rows of a tile are, who runs it and what `peer` names.
enum class Form : uint8_t {
  kNone,        // of a buffer that no task writes
  kSlicePut,    // rows of a slice, sent by `rank` to `peer`, owner of `expert`
  kExpertTile,  // rows of an expert of the rank
  kWeightTile,  // rows of a weight of an expert of the rank; link `peer`
  kHomePut,     // rows of an expert of the rank; at grain expert, rows of the
                // slice of destination rank `peer`
  kTokenTile,   // tokens of the rank, no expert
};

enum class Use : uint8_t { kAbsent, kInput, kWritten };

struct BufferInfo {
  const char* name;  // of the design's tensor
  Use use[2];        // by Direction
  Form form;         // of the one kind that writes it
};

struct KindInfo {
  const char* name;
  Unit unit;         // that can run it
  BufferId written;  // by this kind only; its form is the kind's
};

extern const BufferInfo kBuffers[kNumBuffers];
extern const KindInfo kKinds[kNumTaskKinds];

// Logical size of a buffer on one rank, as the table in image.h says.
struct Extent {
  int64_t groups;
  int64_t rows;
  int64_t cols;
};

// All zeros when the image's direction has no such buffer, or not in that view.
Extent ExtentOf(const ImageHeader& header, uint16_t buffer, uint16_t view);

int64_t LinksOf(const ImageHeader& header);  // of one weight gradient's chain

inline bool IsPut(Form form) {
  return form == Form::kSlicePut || form == Form::kHomePut;
}

inline Form FormOf(const TaskDesc& task) {
  return kBuffers[kKinds[task.kind].written].form;
}

const char* BufferName(uint16_t buffer);  // "unknown" out of range, as below
const char* KindName(uint16_t kind);
const char* UnitName(uint16_t unit);

// Fills `out` and returns code 0, or refuses the blob with code 1.  `data` must
// be 8-byte aligned.  A loaded view satisfies: every table lies in the blob;
// every index, range and enum is valid; kinds and buffers are those of the
// image's direction; every region lies in its buffer; every task is in exactly
// one queue, of its rank and core.  Whether a task's unit fits its queue, and
// whether the flow is sound, is for the proofs.
Status LoadImage(const void* data, size_t size, ImageView* out);

}  // namespace hpmoe

#endif  // BACKEND_ASCEND_KERNELS_HOST_IMAGE_LOADER_H_
