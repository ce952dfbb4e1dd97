#include "backend_ascend/kernels/ascendc/twin/launch/serial_image.h"

#include <cstring>

#include "backend_ascend/kernels/regions.h"

namespace hpmoe {
namespace {

template <class T>
T* Table(std::vector<uint64_t>* words, const TableRef& table) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(words->data()) +
                              table.offset);
}

}  // namespace

int64_t NumLinks(const ImageHeader& header, uint16_t kind) {
  return kKinds[kind].form() == Form::kWeightTile ? LinksOf(header) : 1;
}

std::vector<uint64_t> ImageOfKind(const ImageView& view, uint16_t kind,
                                  int64_t link) {
  const ImageHeader& header = *view.header;
  std::vector<uint64_t> words((header.total_bytes + 7) / 8);
  std::memcpy(words.data(), view.header, header.total_bytes);
  TaskDesc* const tasks = Table<TaskDesc>(&words, header.tasks);
  for (int32_t t = 0; t < view.num_tasks; ++t) {
    tasks[t].wait_count = tasks[t].signal_count = 0;
  }
  QueueDesc* const queues = Table<QueueDesc>(&words, header.queues);
  uint32_t* const queued = Table<uint32_t>(&words, header.queue_tasks);
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
  return words;
}

}  // namespace hpmoe
