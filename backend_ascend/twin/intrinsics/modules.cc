#include "backend_ascend/twin/intrinsics/modules.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>

#include "backend_ascend/twin/engine/instruction.h"
#include "backend_ascend/twin/intrinsics/argument.h"
#include "backend_ascend/twin/intrinsics/core_state.h"

namespace ascend_twin {
namespace {

// What each core of a launch keeps, and the one that runs.
struct Kept {
  CoreState state;
  std::vector<char> locals;
};
CoreState* running = nullptr;

void Switch(Module* module, std::deque<Kept>* all, size_t index, bool goes_on) {
  if (all->size() <= index) all->resize(index + 1);
  Kept& one = (*all)[index];
  if (one.locals.empty()) one.locals = module->fresh;
  if (goes_on) {
    std::copy(one.locals.begin(), one.locals.end(), module->locals);
    running = &one.state;
  } else {
    one.locals.assign(module->locals, module->locals_end);
    running = nullptr;
  }
}

// Code calls back what lies beside this function, in an extension, too.
void Export() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&hpmoe_twin_call), &info) == 0) {
    return;
  }
  dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

// Where opened code lies: first byte and one past the last.
std::map<uint64_t, uint64_t>& Segments() {
  static std::map<uint64_t, uint64_t> segments;
  return segments;
}

void AddSegments(const char* path) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* of) {
        if (std::strcmp(info->dlpi_name, static_cast<const char*>(of)) != 0) {
          return 0;
        }
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_LOAD) continue;
          const uint64_t begin = info->dlpi_addr + header.p_vaddr;
          Segments()[begin] = begin + header.p_memsz;
        }
        return 1;
      },
      const_cast<char*>(path));
}

}  // namespace

CoreState& ThisState() { return *running; }

std::string Open(const char* path, Module* module) {
  // A library stays as its last launch left it: what is fresh was read before.
  static std::map<std::string, Module> opened;
  const auto found = opened.find(path);
  if (found != opened.end()) {
    *module = found->second;
    return "";
  }
  Export();
  module->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (module->handle == nullptr) return dlerror();
  const auto locals = reinterpret_cast<char* (*)(char**)>(
      dlsym(module->handle, "hpmoe_twin_locals"));
  if (locals == nullptr) return std::string(path) + ": no code for the twin";
  module->locals = locals(&module->locals_end);
  module->fresh.assign(module->locals, module->locals_end);
  AddSegments(path);
  opened[path] = *module;
  return "";
}

bool IsOfCode(uint64_t address) {
  const auto next = Segments().upper_bound(address);
  return next != Segments().begin() && address < std::prev(next)->second;
}

void Adapt(Modules* modules, LaunchSpec* spec) {
  spec->reserved_ub = false;
  spec->reserved_ub_end = 0;
  spec->reserved_l1 = 0;
  const auto all = std::make_shared<std::deque<Kept>>();
  spec->on_switch = [=](size_t index, bool goes_on) {
    const bool cube = ThisCoreType() == CoreType::kAic;
    Switch(cube ? &modules->cube : &modules->vector, all.get(), index, goes_on);
  };
}

}  // namespace ascend_twin
