#include "backend_ascend/twin/intrinsics/program.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "backend_ascend/twin/engine/sync.h"
#include "backend_ascend/twin/intrinsics/argument.h"
#include "backend_ascend/twin/intrinsics/include/acl/acl.h"

namespace ascend_twin {

Program& ThisProgram() {
  static Program program;
  return program;
}

namespace {

// As the source has it: without namespaces of arguments and what it returns.
std::string Demangled(const char* name) {
  if (name == nullptr) return "kernel";
  int status = 0;
  char* const full = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = full != nullptr ? full : name;
  std::free(full);
  const size_t arguments = text.rfind('(');
  if (arguments != std::string::npos) text.resize(arguments);
  const size_t result = text.find("void ");
  return result == 0 ? text.substr(5) : text;
}

bool TypeOf(const std::string& cores, TaskType* type) {
  const std::pair<const char*, TaskType> kTypes[] = {
      {"aiv", TaskType::kAivOnly},       {"mix01", TaskType::kAivOnly},
      {"aic", TaskType::kAicOnly},       {"mix10", TaskType::kAicOnly},
      {"mix11", TaskType::kMixAic1Aiv1}, {"mix12", TaskType::kMixAic1Aiv2}};
  for (const auto& [name, one] : kTypes) {
    if (cores != name) continue;
    *type = one;
    return true;
  }
  return false;
}

}  // namespace

}  // namespace ascend_twin

using namespace ascend_twin;

// Device memory is nobody's yet: NaN in every type.
static void Register(void* pointer, size_t bytes, size_t whole) {
  Program& program = ThisProgram();
  std::memset(pointer, program.zeroed ? 0 : 0xFF, whole);
  const int number = program.allocations++;
  const uint64_t begin = reinterpret_cast<uint64_t>(pointer);
  const bool flags = std::find(program.flags.begin(), program.flags.end(),
                               number) != program.flags.end();
  program.memory[begin] = {"allocation " + std::to_string(number), begin, bytes,
                           flags            ? GlobalKind::kFlags
                           : program.zeroed ? GlobalKind::kFilled
                                            : GlobalKind::kEmpty};
}

void hpmoe_twin_launch(const void* kernel, const char* cores, uint32_t blocks,
                       void (*invoke)(const void*, const void*),
                       const void* arguments) {
  Program& program = ThisProgram();
  ++program.launches;
  LaunchSpec spec = program.spec;
  spec.blocks = static_cast<int32_t>(blocks);
  const std::string said = *cores != '\0' ? cores : program.cores;
  Dl_info info{};
  dladdr(kernel, &info);
  spec.kernel = Demangled(info.dli_sname);
  if (!TypeOf(said, &spec.type)) {
    program.found.push_back(spec.kernel +
                            ": nothing says which cores run it: expected "
                            "--cores, KERNEL_TASK_TYPE_DEFAULT, __vector__, "
                            "__cube__ or __mix__");
    return;
  }
  const void* on_cube = nullptr;
  if (spec.type != TaskType::kAivOnly) {
    if (info.dli_sname != nullptr) {
      on_cube = dlsym(program.modules.cube.handle, info.dli_sname);
    }
    if (on_cube == nullptr) {
      program.found.push_back(spec.kernel + ": not in the cube's code");
      return;
    }
  }
  for (const auto& [begin, range] : program.memory) {
    spec.globals.push_back(range);
  }
  Adapt(&program.modules, &spec);
  spec.entry = [=, &program](int32_t) {
    if (program.begins) Initialise(false);
    invoke(ThisCoreType() == CoreType::kAic ? on_cube : kernel, arguments);
  };
  if (program.rates) {
    spec.takes = [rates = *program.rates](const Instruction& work) {
      return SecondsOf(rates, work);
    };
  }
  if (program.timeline.is_open()) program.timeline.Watch(&spec);
  if (program.events.is_open()) program.events.Watch(&spec);
  const LaunchResult result = Launch(spec);
  program.timeline.Next();
  for (const Error& error : result.errors) {
    program.found.push_back(std::string(NameOf(error.kind)) + ": " +
                            error.text);
  }
  // What cores wrote is there for the next launch.
  for (auto& [begin, range] : program.memory) {
    if (range.kind == GlobalKind::kEmpty) range.kind = GlobalKind::kFilled;
  }
}

extern "C" {

aclError aclrtMalloc(void** pointer, size_t bytes, aclrtMemMallocPolicy) {
  constexpr size_t kAlign = 512;
  constexpr size_t kBlock = 32;
  // As its page says: a whole number of blocks, and one more.
  if (ThisProgram().slack)
    bytes = (bytes + kBlock - 1) / kBlock * kBlock + kBlock;
  const size_t whole = (bytes + kAlign - 1) / kAlign * kAlign;
  *pointer = std::aligned_alloc(kAlign, whole);
  Register(*pointer, bytes, whole);
  return ACL_SUCCESS;
}

aclError aclrtReserveMemAddress(void** pointer, size_t bytes, size_t,
                                void* expected, uint64_t) {
  const int fixed = expected != nullptr ? MAP_FIXED_NOREPLACE : 0;
  void* const at = mmap(expected, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
  if (at == MAP_FAILED) return ACL_ERROR_BAD_ALLOC;
  *pointer = at;
  Register(at, bytes, bytes);
  return ACL_SUCCESS;
}

aclError aclrtReleaseMemAddress(void* pointer) {
  auto& memory = ThisProgram().memory;
  const auto found = memory.find(reinterpret_cast<uint64_t>(pointer));
  if (found == memory.end()) return ACL_ERROR_BAD_ALLOC;
  munmap(pointer, found->second.bytes);
  memory.erase(found);
  return ACL_SUCCESS;
}

aclError aclrtFree(void* pointer) {
  ThisProgram().memory.erase(reinterpret_cast<uint64_t>(pointer));
  std::free(pointer);
  return ACL_SUCCESS;
}

aclError aclrtMallocHost(void** pointer, size_t bytes) {
  *pointer = std::malloc(bytes);
  return ACL_SUCCESS;
}

aclError aclrtFreeHost(void* pointer) {
  std::free(pointer);
  return ACL_SUCCESS;
}

static void Written(const void* at) {
  auto& memory = ThisProgram().memory;
  auto next = memory.upper_bound(reinterpret_cast<uint64_t>(at));
  if (next == memory.begin()) return;
  GlobalRange& range = std::prev(next)->second;
  if (range.kind == GlobalKind::kEmpty) range.kind = GlobalKind::kFilled;
}

aclError aclrtMemcpy(void* to, size_t, const void* from, size_t bytes,
                     aclrtMemcpyKind) {
  std::memcpy(to, from, bytes);
  Written(to);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* to, size_t most, const void* from, size_t bytes,
                          aclrtMemcpyKind kind, aclrtStream) {
  return aclrtMemcpy(to, most, from, bytes, kind);
}

aclError aclrtMemset(void* to, size_t, int32_t value, size_t bytes) {
  std::memset(to, value, bytes);
  Written(to);
  return ACL_SUCCESS;
}

}  // extern "C"
