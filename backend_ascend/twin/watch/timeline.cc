#include "backend_ascend/twin/watch/timeline.h"

#include <algorithm>

namespace ascend_twin {
namespace {

constexpr double kMicroseconds = 1e6;

int ProcessOf(const CoreName& core) {
  return 2 * core.index + (core.type == CoreType::kAiv ? 1 : 0);
}

}  // namespace

bool Timeline::Open(const std::string& path) {
  file_ = std::fopen(path.c_str(), "w");
  if (file_ != nullptr) std::fputs("{\"traceEvents\": [\n", file_);
  return file_ != nullptr;
}

void Timeline::Watch(LaunchSpec* spec) {
  spec->on_done = [this](const CoreName& core, const Instruction& work,
                         double begin,
                         double end) { Write(core, work, begin, end); };
}

void Timeline::Name(const CoreName& core, Pipe pipe) {
  const int process = ProcessOf(core);
  const int thread = static_cast<int>(pipe);
  if (!named_.insert(process * kNumPipes + thread).second) return;
  std::fprintf(file_,
               "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, "
               "\"args\": {\"name\": \"%s %d\"}},\n"
               "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, "
               "\"tid\": %d, \"args\": {\"name\": \"%s\"}},\n",
               process, NameOf(core.type), core.index, process, thread,
               NameOf(pipe));
}

void Timeline::Write(const CoreName& core, const Instruction& work,
                     double begin, double end) {
  Name(core, work.pipe);
  end_ = std::max(end_, begin_ + end);
  std::string file;
  for (const char* at = work.site.file; *at != '\0'; ++at) {
    if (*at == '"' || *at == '\\') file += '\\';
    file += *at;
  }
  std::fprintf(file_,
               "{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, "
               "\"ts\": %.6f, \"dur\": %.6f, \"args\": {\"at\": \"%s:%d\", "
               "\"bytes\": %llu}},\n",
               work.name, ProcessOf(core), static_cast<int>(work.pipe),
               (begin_ + begin) * kMicroseconds, (end - begin) * kMicroseconds,
               file.c_str(), work.site.line,
               static_cast<unsigned long long>(work.work.bytes));
}

void Timeline::Close() {
  if (file_ == nullptr) return;
  // No comma after the last.
  std::fputs(
      "{\"ph\": \"M\", \"name\": \"twin\", \"pid\": 0, \"args\": {}}\n"
      "], \"displayTimeUnit\": \"ns\"}\n",
      file_);
  std::fclose(file_);
  file_ = nullptr;
}

}  // namespace ascend_twin
