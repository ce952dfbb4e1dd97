#include "backend_ascend/device/twin_launch/changed_image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend_ascend/image/regions.h"

namespace hpmoe {
namespace {

constexpr uint64_t kTableAlign = 64;

uint64_t Align(uint64_t bytes) {
  return (bytes + kTableAlign - 1) / kTableAlign * kTableAlign;
}

// An image's tables, to change.
class Tables {
 public:
  Tables(const ImageView& view, uint64_t slack)
      : words_((view.header->total_bytes + slack + 7) / 8) {
    std::memcpy(words_.data(), view.header, view.header->total_bytes);
  }
  ImageHeader& header() {
    return *reinterpret_cast<ImageHeader*>(words_.data());
  }
  template <class T>
  T* At(const TableRef& table) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(words_.data()) +
                                table.offset);
  }
  // Moves a table to the end of the image, with room for one more element.
  template <class T>
  T* Grow(TableRef ImageHeader::* member) {
    const TableRef from = header().*member;
    const TableRef to = {Align(header().total_bytes), from.count + 1};
    std::memcpy(At<T>(to), At<T>(from), from.count * sizeof(T));
    header().*member = to;
    header().total_bytes = to.offset + to.count * sizeof(T);
    return At<T>(to);
  }
  std::vector<uint64_t> Take() { return std::move(words_); }

 private:
  std::vector<uint64_t> words_;
};

// The queue that holds a task, and the task's place in it.
struct Queued {
  QueueDesc* queue;
  uint32_t* first;
  uint32_t* task;
};

Queued Find(Tables* tables, uint32_t task) {
  const ImageHeader& header = tables->header();
  QueueDesc* queue = tables->At<QueueDesc>(header.queues);
  uint32_t* const queued = tables->At<uint32_t>(header.queue_tasks);
  for (;; ++queue) {
    uint32_t* const first = queued + queue->begin;
    uint32_t* const last = first + queue->count;
    uint32_t* const found = std::find(first, last, task);
    if (found != last) return {queue, first, found};
  }
}

void SignalEarly(Tables* tables, uint32_t task) {
  TaskDesc* const tasks = tables->Grow<TaskDesc>(&ImageHeader::tasks);
  const auto extra = static_cast<uint32_t>(tables->header().tasks.count - 1);
  tasks[extra] = tasks[task];
  tasks[extra].wait_count = tasks[extra].signal_count = 0;
  tasks[task].row_end = tasks[task].row_begin;
  uint32_t* const queued = tables->Grow<uint32_t>(&ImageHeader::queue_tasks);
  QueueDesc* const home = Find(tables, task).queue;
  uint32_t* const end = queued + home->begin + home->count;
  std::copy_backward(end, queued + tables->header().queue_tasks.count - 1,
                     queued + tables->header().queue_tasks.count);
  *end = extra;
  ++home->count;
  QueueDesc* const queues = tables->At<QueueDesc>(tables->header().queues);
  for (QueueDesc* q = home + 1; q < queues + tables->header().queues.count;
       ++q) {
    ++q->begin;
  }
}

}  // namespace

uint64_t FaultyImageSlack(const ImageHeader& header) {
  return (header.tasks.count + 1) * sizeof(TaskDesc) +
         (header.queue_tasks.count + 1) * sizeof(uint32_t) + 2 * kTableAlign;
}

std::vector<uint64_t> FaultyImage(const ImageView& view,
                                  const FaultSpec& fault) {
  const bool early = fault.kind == FaultKind::kEarlySignal;
  Tables tables(view, early ? FaultyImageSlack(*view.header) : 0);
  if (fault.task < 0) return tables.Take();
  const auto index = static_cast<uint32_t>(fault.task);
  TaskDesc& task = tables.At<TaskDesc>(tables.header().tasks)[index];
  switch (fault.kind) {
    case FaultKind::kMissingWait: {
      const Queued found = Find(&tables, index);
      std::rotate(found.first, found.task, found.task + 1);
      task.wait_count = 0;
      break;
    }
    case FaultKind::kSkippedWait:
      task.wait_count = 0;
      break;
    case FaultKind::kMissingSignal:
      task.signal_count = 0;
      break;
    case FaultKind::kEarlySignal:
      SignalEarly(&tables, index);
      break;
    default:
      break;
  }
  return tables.Take();
}

int64_t NumLinks(const ImageHeader& header, uint16_t kind) {
  return kKinds[kind].form() == Form::kWeightTile ? LinksOf(header) : 1;
}

std::vector<uint64_t> ImageOfKind(const ImageView& view, uint16_t kind,
                                  int64_t link) {
  const ImageHeader& header = *view.header;
  Tables tables(view, 0);
  TaskDesc* const tasks = tables.At<TaskDesc>(header.tasks);
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    tasks[t].wait_count = tasks[t].signal_count = 0;
  }
  QueueDesc* const queues = tables.At<QueueDesc>(header.queues);
  uint32_t* const queued = tables.At<uint32_t>(header.queue_tasks);
  uint32_t end = 0;
  for (int32_t q = 0; q < view.num_queues; ++q) {
    queues[q].begin = end;
    for (int32_t t = 0; queues[q].core == 0 && t < view.num_tasks; ++t) {
      const TaskDesc& task = tasks[t];
      const bool wanted =
          task.kind == kind && task.rank == queues[q].rank &&
          task.unit == queues[q].unit &&
          (kKinds[kind].form() != Form::kWeightTile || task.peer == link);
      if (wanted) queued[end++] = t;
    }
    queues[q].count = end - queues[q].begin;
  }
  return tables.Take();
}

}  // namespace hpmoe
