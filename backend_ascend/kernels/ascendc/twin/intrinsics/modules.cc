#include "backend_ascend/kernels/ascendc/twin/intrinsics/modules.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <memory>

#include "backend_ascend/kernels/ascendc/twin/engine/instruction.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/argument.h"
#include "backend_ascend/kernels/ascendc/twin/intrinsics/core_state.h"

namespace ascend_twin {
namespace {

// What each core of a launch keeps, and the one that runs.
struct Kept {
  CoreState state;
  std::vector<char> locals;
};
CoreState* running = nullptr;

void Switch(Module* module, std::vector<Kept>* all, size_t index,
            bool goes_on) {
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
  opened[path] = *module;
  return "";
}

void Adapt(Modules* modules, LaunchSpec* spec) {
  spec->reserved_ub = false;
  spec->reserved_ub_end = 0;
  spec->reserved_l1 = 0;
  const auto all = std::make_shared<std::vector<Kept>>();
  spec->on_switch = [=](size_t index, bool goes_on) {
    const bool cube = ThisCoreType() == CoreType::kAic;
    Switch(cube ? &modules->cube : &modules->vector, all.get(), index, goes_on);
  };
}

}  // namespace ascend_twin
