#include "backend_ascend/twin/watch/event_lines.h"

#include <algorithm>

namespace ascend_twin {
namespace {

// In the order of Event::Kind.
constexpr const char* kKinds[] = {
    "work",  "set",  "wait",  "barrier",     "cross_set",  "cross_wait",
    "drain", "load", "store", "global_load", "write_back", "write_backs_done",
    "polled"};

std::string WordOf(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text.empty() ? "-" : text;
}

}  // namespace

bool EventLog::Open(const std::string& path) {
  file_ = std::fopen(path.c_str(), "w");
  return file_ != nullptr;
}

void EventLog::Watch(LaunchSpec* spec) {
  std::fputs("launch\n", file_);
  spec->on_event = [this](const Event& event) { Write(event); };
}

void EventLog::Write(char access, const Span& span) {
  if (span.bytes == 0) return;
  std::fprintf(file_, " %c %s %llu %llu %llu %llu", access, NameOf(span.memory),
               static_cast<unsigned long long>(span.begin),
               static_cast<unsigned long long>(span.bytes),
               static_cast<unsigned long long>(span.rows),
               static_cast<unsigned long long>(span.pitch));
}

void EventLog::Write(const Event& event) {
  const Instruction& work = *event.work;
  std::fprintf(file_, "%s %d %s %d %d %s %s %d %d %d %d %s %s:%d",
               kKinds[event.kind], event.core.rank, NameOf(event.core.type),
               event.core.index, event.block, NameOf(event.pipe),
               NameOf(event.other), event.id, event.mode, work.atomic,
               work.in_order, WordOf(work.name).c_str(),
               WordOf(work.site.file).c_str(), work.site.line);
  for (const Span& span : work.reads) Write('r', span);
  for (const Span& span : work.writes) Write('w', span);
  std::fputc('\n', file_);
}

void EventLog::Close() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  file_ = nullptr;
}

}  // namespace ascend_twin
