// Runs both kernels of this folder on the twin, in each mode, and prints what
// it finds: how a kernel is brought to the twin.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "backend_ascend/twin/engine/kernel_launch.h"
#include "backend_ascend/twin/examples/vector_add.h"
#include "backend_ascend/twin/examples/vector_add_unordered.h"

namespace {

constexpr uint32_t kCount = 4096;
constexpr int32_t kBlocks = 4;

using Kernel = void (*)(GM_ADDR, GM_ADDR, GM_ADDR, uint32_t);

struct Vectors {
  std::vector<float> x, y, z;
};

Vectors MakeVectors() {
  Vectors v{std::vector<float>(kCount), std::vector<float>(kCount),
            std::vector<float>(kCount, -1.0f)};
  for (uint32_t i = 0; i < kCount; ++i) {
    v.x[i] = static_cast<float>(i);
    v.y[i] = 0.5f;
  }
  return v;
}

ascend_twin::GlobalRange RangeOf(const char* name, std::vector<float>* vector,
                                 ascend_twin::GlobalKind kind) {
  return {name, reinterpret_cast<uint64_t>(vector->data()),
          vector->size() * sizeof(float), kind};
}

ascend_twin::LaunchSpec SpecOf(const char* name, Kernel kernel, Vectors* v) {
  using ascend_twin::GlobalKind;
  ascend_twin::LaunchSpec spec;
  spec.kernel = name;
  spec.type = ascend_twin::TaskType::kAivOnly;
  spec.blocks = kBlocks;
  spec.globals = {RangeOf("x", &v->x, GlobalKind::kConstant),
                  RangeOf("y", &v->y, GlobalKind::kConstant),
                  RangeOf("z", &v->z, GlobalKind::kEmpty)};
  spec.entry = [=](int32_t) {
    kernel(reinterpret_cast<GM_ADDR>(v->x.data()),
           reinterpret_cast<GM_ADDR>(v->y.data()),
           reinterpret_cast<GM_ADDR>(v->z.data()), kCount);
  };
  return spec;
}

bool IsSum(const Vectors& v) {
  for (uint32_t i = 0; i < kCount; ++i) {
    if (v.z[i] != v.x[i] + v.y[i]) return false;
  }
  return true;
}

void Run(const char* name, Kernel kernel, const char* mode_name,
         ascend_twin::Mode mode, bool hazards) {
  Vectors vectors = MakeVectors();
  ascend_twin::LaunchSpec spec = SpecOf(name, kernel, &vectors);
  spec.mode = mode;
  spec.hazards = hazards;
  const ascend_twin::LaunchResult result = ascend_twin::Launch(spec);
  std::printf("%s, %s%s: %s\n", name, mode_name,
              hazards ? "" : ", order not checked",
              IsSum(vectors) ? "the sum" : "not the sum");
  for (const ascend_twin::Error& error : result.errors) {
    std::printf("  %s: %s\n", ascend_twin::NameOf(error.kind),
                error.text.c_str());
  }
}

}  // namespace

int main() {
  const auto run = [](const char* name, Kernel kernel, bool hazards) {
    Run(name, kernel, "in order", ascend_twin::Mode::kInOrder, hazards);
    Run(name, kernel, "seeded", ascend_twin::Mode::kSeeded, hazards);
    Run(name, kernel, "late", ascend_twin::Mode::kLate, hazards);
  };
  run("vector_add", vector_add, true);
  run("vector_add_unordered", vector_add_unordered, true);
  run("vector_add_unordered", vector_add_unordered, false);
  return 0;
}
