// Answers requests to launch kernels of the file that includes this, one a
// line: SEED MODE ORDER COUNTS ABSENT [IN OUT].  MODE is of the twin, ORDER a
// seed of its random one, COUNTS its option flags_count, ABSENT numbers of
// calls to leave out, by commas, or "-".  IN and OUT are files of the arrays'
// bytes, one after the other; without them the arrays hold numbers.  Each
// answer is a line of JSON.

#ifndef TOOLS_WITNESS_RUN_PROGRAMS_H_
#define TOOLS_WITNESS_RUN_PROGRAMS_H_

#include <cstdint>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"
#include "kernel_operator.h"

struct Kernel {
  int seed;
  void (*run)();
  std::vector<uint64_t> bytes;  // of each array
};

extern const Kernel kKernels[];
extern const int kNumKernels;

struct Request {
  std::vector<std::vector<uint32_t>> arrays;
  std::set<int> absent;
};
inline Request& ThisRequest() {
  static Request request;
  return request;
}

// Whether a call that synchronises is made.
inline bool IsIn(int number) { return ThisRequest().absent.count(number) == 0; }

template <typename T>
AscendC::LocalTensor<T> Ub(uint32_t begin, uint32_t count) {
  return {AscendC::TPosition::VECCALC, begin, count};
}

template <typename T>
AscendC::GlobalTensor<T> Gm(int array, uint64_t begin, uint64_t count) {
  AscendC::GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(
      reinterpret_cast<T*>(ThisRequest().arrays[array].data()) + begin, count);
  return tensor;
}

inline void PrintPlace(const ascend_twin::Place& place) {
  std::cout << "[" << place.site.line - 1 << ", \""
            << ascend_twin::NameOf(place.pipe) << "\"]";
}

inline std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

inline void PrintErrors(const std::vector<ascend_twin::Error>& errors) {
  std::cout << "[";
  for (size_t i = 0; i < errors.size(); ++i) {
    const ascend_twin::Error& error = errors[i];
    std::cout << (i ? ", " : "") << "{\"kind\": \""
              << ascend_twin::NameOf(error.kind) << "\", \"at\": ";
    PrintPlace(error.at);
    std::cout << ", \"others\": [";
    for (size_t j = 0; j < error.others.size(); ++j) {
      if (j) std::cout << ", ";
      PrintPlace(error.others[j]);
    }
    std::cout << "], \"missing\": " << Quoted(error.missing)
              << ", \"text\": " << Quoted(error.text) << "}";
  }
  std::cout << "]" << std::endl;
}

inline void FillArrays(const Kernel& kernel, std::istream* in) {
  std::vector<std::vector<uint32_t>>& arrays = ThisRequest().arrays;
  arrays.clear();
  for (const uint64_t bytes : kernel.bytes) {
    arrays.emplace_back(bytes / sizeof(uint32_t), 0x3C003C00);  // halves of 1
    if (in != nullptr) {
      in->read(reinterpret_cast<char*>(arrays.back().data()), bytes);
    }
  }
}

inline std::vector<ascend_twin::Error> LaunchKernel(const Kernel& kernel,
                                                    ascend_twin::Mode mode,
                                                    uint64_t order,
                                                    bool flags_count) {
  ascend_twin::LaunchSpec spec;
  spec.kernel = "p" + std::to_string(kernel.seed);
  spec.type = ascend_twin::TaskType::kAivOnly;
  spec.mode = mode;
  spec.seed = order;
  spec.flags_count = flags_count;
  // What is compared is order: programs may copy between arrays that overlap.
  spec.numerics.strict = false;
  for (std::vector<uint32_t>& array : ThisRequest().arrays) {
    spec.globals.push_back({"g" + std::to_string(spec.globals.size()),
                            reinterpret_cast<uint64_t>(array.data()),
                            array.size() * sizeof(uint32_t),
                            ascend_twin::GlobalKind::kFilled});
  }
  spec.entry = [&](int32_t) { kernel.run(); };
  return ascend_twin::Launch(spec).errors;
}

inline const Kernel* FindKernel(int seed) {
  for (int i = 0; i < kNumKernels; ++i) {
    if (kKernels[i].seed == seed) return &kKernels[i];
  }
  return nullptr;
}

inline void Answer(const std::string& line) {
  std::istringstream words(line);
  int seed;
  int mode;
  uint64_t order;
  bool counts;
  std::string absent, in, out, number;
  words >> seed >> mode >> order >> counts >> absent >> in >> out;
  const Kernel* const kernel = FindKernel(seed);
  if (kernel == nullptr) {
    std::cerr << "seed: expected one of this file, got " << seed << std::endl;
    std::exit(2);
  }
  ThisRequest().absent.clear();
  std::istringstream numbers(absent == "-" ? "" : absent);
  while (std::getline(numbers, number, ',')) {
    ThisRequest().absent.insert(std::stoi(number));
  }
  std::ifstream file(in, std::ios::binary);
  FillArrays(*kernel, in.empty() ? nullptr : &file);
  const auto errors = LaunchKernel(
      *kernel, static_cast<ascend_twin::Mode>(mode), order, counts);
  if (!out.empty()) {
    std::ofstream result(out, std::ios::binary);
    for (const std::vector<uint32_t>& array : ThisRequest().arrays) {
      result.write(reinterpret_cast<const char*>(array.data()),
                   array.size() * sizeof(uint32_t));
    }
  }
  PrintErrors(errors);
}

int main() {
  std::string line;
  while (std::getline(std::cin, line)) Answer(line);
  return 0;
}

#endif  // TOOLS_WITNESS_RUN_PROGRAMS_H_
