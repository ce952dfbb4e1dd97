// Runs one kernel on memory that lies in files, for run_kernel.py.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_INCLUDE_HPMOE_RUN_KERNEL_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_INCLUDE_HPMOE_RUN_KERNEL_H_

#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "acl/acl.h"

namespace hpmoe_twin {

constexpr int kWrongArgument = 2;

[[noreturn]] inline void WrongArgument(size_t index, const std::string& text) {
  std::fprintf(stderr, "argument %zu: expected %s\n", index, text.c_str());
  std::exit(kWrongArgument);
}

// One argument: `filled:FILE`, `empty:FILE`, `value:FILE`, the bytes of a
// value, `none:`, a null pointer, or `list:FILE`, the lines of a list of
// tensors, each `filled:FILE` or `empty:FILE` and, after a space, sizes with
// commas between.
class FileArgument {
 public:
  FileArgument(size_t index, const std::string& word) : index_(index) {
    const size_t at = word.find(':');
    kind_ = word.substr(0, at);
    path_ = word.substr(at + 1);
    if (kind_ == "none") return;
    std::FILE* const file = std::fopen(path_.c_str(), "rb");
    if (file == nullptr) WrongArgument(index_, "a file, got " + path_);
    char piece[4096];
    for (size_t got; (got = std::fread(piece, 1, sizeof(piece), file)) > 0;) {
      bytes_.insert(bytes_.end(), piece, piece + got);
    }
    std::fclose(file);
    if (kind_ == "list") ReadTensors();
  }

  template <typename P>
  P As() {
    if constexpr (std::is_pointer<P>::value) {
      if (kind_ == "value") WrongArgument(index_, "an array, got a value");
      if (kind_ == "none") return (P)(uint64_t)0;
      if (kind_ == "list") DescribeTensors();
      aclrtMalloc(&memory_, bytes_.size(), ACL_MEM_MALLOC_HUGE_FIRST);
      if (kind_ != "empty") {
        aclrtMemcpy(memory_, bytes_.size(), bytes_.data(), bytes_.size(),
                    ACL_MEMCPY_HOST_TO_DEVICE);
      }
      return (P)(uint64_t)memory_;
    } else {
      if (kind_ != "value") WrongArgument(index_, "a value, got an array");
      if (bytes_.size() != sizeof(P)) {
        WrongArgument(index_, "a value of " + std::to_string(sizeof(P)) +
                                  " B, got " + std::to_string(bytes_.size()));
      }
      P value;
      std::memcpy((void*)&value, bytes_.data(), sizeof(P));
      return value;
    }
  }

  // What memory holds now.
  void Keep() const {
    for (const FileArgument& tensor : tensors_) tensor.Keep();
    if (memory_ == nullptr || kind_ == "list") return;
    std::FILE* const file = std::fopen(path_.c_str(), "wb");
    std::fwrite(memory_, 1, bytes_.size(), file);
    std::fclose(file);
  }

 private:
  void ReadTensors() {
    std::string line;
    for (const char c : bytes_) {
      if (c != '\n') {
        line += c;
        continue;
      }
      const size_t space = line.find(' ');
      tensors_.emplace_back(index_, line.substr(0, space));
      shapes_.emplace_back();
      for (const char* at = line.c_str() + space; *at != '\0';) {
        char* end = nullptr;
        shapes_.back().push_back(std::strtoull(at + 1, &end, 10));
        at = end;
      }
      line.clear();
    }
  }

  // As ListTensorDesc reads it: where the pointers begin, then of each tensor
  // its number of sizes and the sizes, then the pointers.
  void DescribeTensors() {
    std::vector<uint64_t> words = {0};
    for (size_t i = 0; i < shapes_.size(); ++i) {
      words.push_back(shapes_[i].size() | uint64_t{i} << 32);
      words.insert(words.end(), shapes_[i].begin(), shapes_[i].end());
    }
    words[0] = words.size() * sizeof(uint64_t);
    for (FileArgument& tensor : tensors_) {
      words.push_back((uint64_t)tensor.As<char*>());
    }
    const char* const begin = (const char*)words.data();
    bytes_.assign(begin, begin + words.size() * sizeof(uint64_t));
  }

  size_t index_;
  std::vector<FileArgument> tensors_;
  std::vector<std::vector<uint64_t>> shapes_;
  std::string kind_;
  std::string path_;
  std::vector<char> bytes_;
  void* memory_ = nullptr;
};

template <typename... P, size_t... i>
int RunKernel(void (*kernel)(P...), int count, char** words,
              std::index_sequence<i...>) {
  const int given = count - 2;
  if (given != static_cast<int>(sizeof...(P))) {
    std::fprintf(stderr, "arguments: expected %zu, got %d\n", sizeof...(P),
                 given);
    return kWrongArgument;
  }
  std::vector<FileArgument> arguments = {FileArgument(i, words[2 + i])...};
  const auto blocks = static_cast<uint32_t>(std::atoi(words[1]));
  Launch(blocks).With(arguments[i].template As<P>()...).On(kernel);
  for (const FileArgument& argument : arguments) argument.Keep();
  return 0;
}

template <typename... P>
int RunKernel(void (*kernel)(P...), int count, char** words) {
  return RunKernel(kernel, count, words, std::index_sequence_for<P...>());
}

}  // namespace hpmoe_twin

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_INCLUDE_HPMOE_RUN_KERNEL_H_
