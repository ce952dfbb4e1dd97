// Code of kernels for both types of core, as build_kernel.py compiled it.

#ifndef BACKEND_ASCEND_TWIN_INTRINSICS_MODULES_H_
#define BACKEND_ASCEND_TWIN_INTRINSICS_MODULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"

namespace ascend_twin {

// One type of core's code, a shared library.
struct Module {
  void* handle = nullptr;
  char* locals = nullptr;  // one of each core
  char* locals_end = nullptr;
  std::vector<char> fresh;  // as they are before a kernel
};

struct Modules {
  Module vector;
  Module cube;
};

// Empty, or what is wrong with a library.
std::string Open(const char* path, Module* module);

// Whether bytes are of opened code: its variables and literals.
bool IsOfCode(uint64_t address);

// Has a launch run such code: what the headers keep of each memory they touch,
// and check that kernels do not; each core has variables of its own.  `modules`
// outlive it.
void Adapt(Modules* modules, LaunchSpec* spec);

}  // namespace ascend_twin

#endif  // BACKEND_ASCEND_TWIN_INTRINSICS_MODULES_H_
