// Launches task images whose inputs are files: `make arm`.
//
//   launch_files ISA THREADS FOLDER...
//
// Each folder holds image.bin and NAME.in for each input, as raw elements in
// row-major order.  NAME.out is left for each tensor that the launch makes.
// THREADS 0: the serial launch.  ISA `list` prints what this build and this CPU
// have.  Exit code 1: one line on stderr says what was refused.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backend_ascend/host/launch/launch.h"
#include "backend_ascend/host/launch/runtime_tasks.h"
#include "backend_ascend/host/load/image_loader.h"
#include "backend_ascend/host/tiles/cpu_features.h"

namespace hpmoe {
namespace {

using Bytes = std::vector<char>;

Bytes Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": expected a file");
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

void Require(const Status& status) {
  if (status.code != 0) throw std::runtime_error(status.message);
}

// The files of one folder; `folder` ends in a slash.
class Tensors {
 public:
  explicit Tensors(std::string folder) : folder_(std::move(folder)) {}

  template <class T>
  T* Input(const char* name, int64_t bytes) {
    const std::string path = folder_ + name + ".in";
    held_.push_back(Read(path));
    const auto got = static_cast<int64_t>(held_.back().size());
    if (got != bytes) {
      throw std::runtime_error(path + ": expected " + std::to_string(bytes) +
                               " bytes, got " + std::to_string(got));
    }
    return reinterpret_cast<T*>(held_.back().data());
  }

  template <class T>
  T* Output(const char* name, int64_t bytes) {
    held_.emplace_back(bytes);
    made_.push_back({folder_ + name + ".out", held_.size() - 1});
    return reinterpret_cast<T*>(held_.back().data());
  }

  void WriteOutputs() const {
    for (const auto& [path, index] : made_) {
      std::ofstream file(path, std::ios::binary);
      file.write(held_[index].data(), held_[index].size());
      if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
    }
  }

 private:
  const std::string folder_;
  std::vector<Bytes> held_;  // moved as it grows, their bytes stay
  std::vector<std::pair<std::string, size_t>> made_;
};

LaunchTensors TensorsOf(const ImageHeader& h, Tensors* files) {
  const int64_t by_expert = int64_t{h.num_ranks} * h.num_experts * 4;
  const int64_t by_slot = int64_t{h.num_ranks} * h.num_tokens * h.top_k * 4;
  LaunchTensors tensors{};
  tensors.topk_ids = files->Input<int32_t>("topk_ids", by_slot);
  tensors.topk_weights = files->Input<float>("topk_weights", by_slot);
  tensors.counts = files->Output<int32_t>("counts", by_expert);
  tensors.row_base = files->Output<int32_t>("row_base", by_expert);
  tensors.row_of_slot = files->Output<int32_t>("row_of_slot", by_slot);
  for (int b = 0; b < kNumBuffers; ++b) {
    const int64_t bytes = ShapeOf(h, static_cast<BufferId>(b)).bytes();
    const Use use = UseOf(h, b);
    if (use == Use::kInput) {
      tensors.buffers[b] = files->Input<void>(kBuffers[b].name, bytes);
    } else if (use == Use::kWritten) {
      tensors.buffers[b] = files->Output<void>(kBuffers[b].name, bytes);
    }
  }
  return tensors;
}

void LaunchFolder(const std::string& folder, Isa isa, int32_t threads) {
  const Bytes blob = Read(folder + "image.bin");
  LoadedImage image;
  Require(image.Load(blob.data(), blob.size()));
  Tensors files(folder);
  const LaunchTensors tensors = TensorsOf(image.header(), &files);
  LaunchOptions options;
  options.isa = isa;
  if (threads == 0) {
    Require(LaunchSerial(image.view(), tensors, options));
  } else {
    options.threads = threads;
    LaunchReport report;
    options.modes.start = Modes::Start::kPoison;
    Require(Launch(image.view()).Run(tensors, options, &report));
    if (report.diagnosis.reason != StopReason::kNone) {
      throw std::runtime_error(report.diagnosis.text);
    }
  }
  files.WriteOutputs();
}

Isa IsaByName(const std::string& name) {
  for (const Isa isa : kAllIsas) {
    if (name == IsaName(isa) && IsaSupported(isa)) return isa;
  }
  throw std::runtime_error("ISA: expected one of `list`, got " + name);
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"list"}) {
    for (const Isa isa : kAllIsas) {
      if (IsaSupported(isa)) std::puts(IsaName(isa));
    }
    return 0;
  }
  if (arguments.size() < 3) {
    throw std::runtime_error("expected ISA THREADS FOLDER...");
  }
  const Isa isa = IsaByName(arguments[0]);
  const int threads = std::atoi(arguments[1].c_str());
  for (size_t i = 2; i < arguments.size(); ++i) {
    LaunchFolder(arguments[i] + "/", isa, threads);
  }
  return 0;
}

}  // namespace
}  // namespace hpmoe

int main(int argc, char** argv) {
  try {
    return hpmoe::Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "launch_files: %s\n", error.what());
    return 1;
  }
}
