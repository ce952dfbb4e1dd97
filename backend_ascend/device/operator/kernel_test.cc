// Runs an operator's kernel on the twin and prints what it does wrong.
//
//   kernel_test BLOCKS {OPERAND OFFSET} < BEFORE > AFTER
//
// Operands in the kernel's order, each at a multiple of 512 bytes.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernel_operator.h"

// What CANN makes of a tiling, and keeps of a workspace.
#define REGISTER_TILING_DEFAULT(type)
#define GET_TILING_DATA(name, at) \
  const auto name = *reinterpret_cast<HpmoeLaunchTiling*>(at)
namespace AscendC {
inline GM_ADDR GetUserWorkspace(GM_ADDR all) { return all + (16 << 20); }
}  // namespace AscendC

#include "backend_ascend/device/operator/hpmoe_launch.cc"
#include "backend_ascend/device/operator/hpmoe_launch_grad.cc"
// After them, which say what device functions are.
#include "backend_ascend/device/operator/call_layout.h"
#include "backend_ascend/device/twin_launch/device_memory.h"

namespace {

alignas(512) uint8_t memory[32 << 20];

// Arrays of a layout: each lies in a blob, or is an operand itself.
struct Reader {
  std::map<std::string, GM_ADDR> operands;
  std::vector<ascend_twin::GlobalRange> ranges;

  template <class T>
  void Add(T** field, const char* name, int64_t count, hpmoe::Content content) {
    if (count == 0) return;
    const GM_ADDR begins[] = {operands[name], operands["tables"],
                              operands["state"],
                              AscendC::GetUserWorkspace(operands["workspace"])};
    const auto at = reinterpret_cast<uint64_t>(*field);
    const uint64_t blob = at >> hpmoe::kBlobBit;
    const GM_ADDR begin = begins[blob] + (at - (blob << hpmoe::kBlobBit));
    ranges.push_back({name, reinterpret_cast<uint64_t>(begin),
                      count * sizeof(T), hpmoe::KindOf(content)});
  }
};

template <class Kernel, size_t... I>
void Call(Kernel kernel, const std::vector<GM_ADDR>& operands,
          std::index_sequence<I...>) {
  kernel(operands.at(I)...);
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = std::fread(memory, 1, sizeof(memory), stdin);
  std::vector<GM_ADDR> operands;
  Reader reader;
  for (int i = 2; i < argc; i += 2) {
    operands.push_back(memory + std::atoi(argv[i + 1]));
    reader.operands[argv[i]] = operands.back();
  }
  const auto& header = *reinterpret_cast<hpmoe::ImageHeader*>(operands[0]);
  hpmoe::LaunchArgs args = hpmoe::LayoutOf(header).args;
  const int64_t slots = int64_t{header.num_tokens} * header.top_k;
  PlaceTables(header, header.total_bytes, {slots, 0}, &reader, &args);
  PlaceHeap(header, &reader, &args);
  PlaceReady(&reader, &args);
  PlaceOwn(header, &reader, &args);
  ascend_twin::LaunchSpec spec;
  spec.kernel = "operator";
  spec.blocks = std::atoi(argv[1]);
  spec.globals = reader.ranges;
  spec.entry = [&](int32_t) {
    if (header.direction == hpmoe::kForward) {
      Call(hpmoe_launch, operands, std::make_index_sequence<15>());
    } else {
      Call(hpmoe_launch_grad, operands, std::make_index_sequence<22>());
    }
  };
  for (const ascend_twin::Error& error : ascend_twin::Launch(spec).errors) {
    std::fprintf(stderr, "%s\n", error.text.c_str());
  }
  return std::fwrite(memory, 1, bytes, stdout) != bytes;
}
