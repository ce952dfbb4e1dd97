// A stand-in for CANN's header of this name, for tests: the calls that
// launch_op.cc makes, which here write down what they were given.

#ifndef BACKEND_ASCEND_DEVICE_FAKE_CANN_REGISTER_OP_DEF_REGISTRY_H_
#define BACKEND_ASCEND_DEVICE_FAKE_CANN_REGISTER_OP_DEF_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

namespace ge {
using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0, GRAPH_FAILED = 1;
enum DataType { DT_FLOAT, DT_UINT8, DT_BF16 };
enum Format { FORMAT_ND };
}  // namespace ge

namespace gert {

class Shape {
 public:
  void SetDimNum(size_t count) { sizes.resize(count); }
  void SetDim(size_t at, int64_t size) { sizes[at] = size; }
  std::vector<int64_t> sizes;
};

struct Words {
  std::vector<int64_t> values;
  size_t GetSize() const { return values.size(); }
  const int64_t* GetData() const { return values.data(); }
};

struct Attrs {
  Words header;
  int64_t deadline_us = 0;
  const Words* GetListInt(size_t) const { return &header; }
  const int64_t* GetInt(size_t) const { return &deadline_us; }
};

struct Context {
  Attrs attrs;
  const Attrs* GetAttrs() const { return &attrs; }
};

struct InferShapeContext : Context {
  std::vector<Shape> shapes;
  Shape* GetOutputShape(size_t at) {
    return at < shapes.size() ? &shapes[at] : nullptr;
  }
};

struct InferDataTypeContext : Context {
  std::map<size_t, ge::DataType> dtypes;
  ge::graphStatus SetOutputDataType(size_t at, ge::DataType dtype) {
    dtypes[at] = dtype;
    return ge::GRAPH_SUCCESS;
  }
};

struct TilingContext : Context {
  int32_t cores = 0;  // cube cores of the chip
  uint64_t tiling = 0;
  size_t workspace = 0;
  uint32_t mode = 0, blocks = 0;
  const TilingContext* GetPlatformInfo() const { return this; }
  template <class T>
  T* GetTilingData() {
    static_assert(sizeof(T) == sizeof(tiling), "one word");
    return reinterpret_cast<T*>(&tiling);
  }
  size_t* GetWorkspaceSizes(size_t) { return &workspace; }
  void SetScheduleMode(uint32_t schedule) { mode = schedule; }
  ge::graphStatus SetBlockDim(uint32_t count) {
    blocks = count;
    return ge::GRAPH_SUCCESS;
  }
};

}  // namespace gert

namespace ops {

enum Option { REQUIRED, OPTIONAL };

struct OpParamDef {
  std::string name;
  Option type = REQUIRED;
  std::vector<ge::DataType> dtypes;
  OpParamDef& ParamType(Option option) {
    type = option;
    return *this;
  }
  OpParamDef& DataType(std::vector<ge::DataType> all) {
    dtypes = std::move(all);
    return *this;
  }
  OpParamDef& Format(std::vector<ge::Format>) { return *this; }
  OpParamDef& UnknownShapeFormat(std::vector<ge::Format>) { return *this; }
};

struct OpAttrDef {
  OpAttrDef& AttrType(Option) { return *this; }
  OpAttrDef& ListInt() { return *this; }
  OpAttrDef& Int() { return *this; }
};

class OpDef {
 public:
  using Shapes = ge::graphStatus (*)(gert::InferShapeContext*);
  using Types = ge::graphStatus (*)(gert::InferDataTypeContext*);
  using Tiling = ge::graphStatus (*)(gert::TilingContext*);
  struct Core {
    Tiling tiling = nullptr;
    std::vector<std::string> chips;
    Core& SetTiling(Tiling function) {
      tiling = function;
      return *this;
    }
    Core& AddConfig(const char* chip) {
      chips.emplace_back(chip);
      return *this;
    }
  };

  explicit OpDef(const char* name) : name(name) {}
  OpParamDef& Input(const char* name) { return Add(name, &inputs); }
  OpParamDef& Output(const char* name) { return Add(name, &outputs); }
  OpAttrDef& Attr(const char* name) {
    attrs.emplace_back(name);
    return attr_;
  }
  OpDef& SetInferShape(Shapes function) {
    shapes = function;
    return *this;
  }
  OpDef& SetInferDataType(Types function) {
    types = function;
    return *this;
  }
  Core& AICore() { return core; }

  const std::string name;
  // A reference to an element outlives what is added behind it.
  std::list<OpParamDef> inputs, outputs;
  std::vector<std::string> attrs;
  Shapes shapes = nullptr;
  Types types = nullptr;
  Core core;

 private:
  static OpParamDef& Add(const char* name, std::list<OpParamDef>* params) {
    params->push_back({});
    params->back().name = name;
    return params->back();
  }
  OpAttrDef attr_;
};

inline std::map<std::string, std::function<OpDef()>>& Registry() {
  static auto* const all = new std::map<std::string, std::function<OpDef()>>;
  return *all;
}
struct Registered {
  Registered(const char* name, std::function<OpDef()> make) {
    Registry()[name] = std::move(make);
  }
};

}  // namespace ops

#define OP_ADD(type) \
  static const Registered registered_##type(#type, [] { return type(#type); })

#endif  // BACKEND_ASCEND_DEVICE_FAKE_CANN_REGISTER_OP_DEF_REGISTRY_H_
