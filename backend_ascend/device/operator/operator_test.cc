// Tells what the operators of launch_op.cc say of an image.
//
//   operator_test OPERATOR HEADER_FILE CUBE_CORES
//
// HEADER_FILE begins with an image's header.

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "backend_ascend/image/image.h"
#include "register/op_def_registry.h"

namespace {

void Tell(const char* what, const std::list<ops::OpParamDef>& params) {
  for (const ops::OpParamDef& param : params) {
    std::printf("%s %s%s", what, param.name.c_str(),
                param.type == ops::OPTIONAL ? " optional" : "");
    for (const ge::DataType dtype : param.dtypes) std::printf(" %d", dtype);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 || ops::Registry().count(argv[1]) == 0) return 2;
  const ops::OpDef op = ops::Registry()[argv[1]]();
  gert::Attrs attrs;
  attrs.deadline_us = 250;
  attrs.header.values.resize(sizeof(hpmoe::ImageHeader) / 8);
  auto* const header = reinterpret_cast<char*>(attrs.header.values.data());
  std::ifstream file(argv[2], std::ios::binary);
  if (!file.read(header, sizeof(hpmoe::ImageHeader))) return 2;

  Tell("input", op.inputs);
  Tell("output", op.outputs);
  for (const std::string& attr : op.attrs)
    std::printf("attr %s\n", attr.c_str());
  for (const std::string& chip : op.core.chips) {
    std::printf("chip %s\n", chip.c_str());
  }

  gert::InferShapeContext shapes;
  shapes.attrs = attrs;
  shapes.shapes.resize(op.outputs.size());
  std::printf("shapes %u\n", op.shapes(&shapes));
  for (const gert::Shape& shape : shapes.shapes) {
    std::printf("shape");
    for (const int64_t size : shape.sizes) {
      std::printf(" %lld", static_cast<long long>(size));
    }
    std::printf("\n");
  }

  gert::InferDataTypeContext types;
  types.attrs = attrs;
  std::printf("types %u\n", op.types(&types));
  for (const auto& [at, dtype] : types.dtypes) {
    std::printf("type %zu %d\n", at, dtype);
  }

  gert::TilingContext tiling;
  tiling.attrs = attrs;
  tiling.cores = std::atoi(argv[3]);
  std::printf("tiling %u\n", op.core.tiling(&tiling));
  std::printf("blocks %u mode %u workspace %zu deadline %llu\n", tiling.blocks,
              tiling.mode, tiling.workspace,
              static_cast<unsigned long long>(tiling.tiling));
  return 0;
}
