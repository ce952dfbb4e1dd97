"""The source that CANN's build writes for an operator, for the twin.

CANN's build writes the struct of tiling, the macros of types, formats and the
tiling key, and the words that read the struct.
"""

from collections.abc import Mapping, Sequence

from hpmoe.backend_ascend.twin.intrinsics.operators import operator_declaration
from hpmoe.backend_ascend.twin.intrinsics.operators import operator_folder

# Of a number of NumPy's: what a kernel calls it, and CANN.
DTYPES = {
  'float32': ('float', 'DT_FLOAT'),
  'float16': ('half', 'DT_FLOAT16'),
  'bfloat16': ('bfloat16_t', 'DT_BF16'),
  'int8': ('int8_t', 'DT_INT8'),
  'uint8': ('uint8_t', 'DT_UINT8'),
  'int16': ('int16_t', 'DT_INT16'),
  'uint16': ('uint16_t', 'DT_UINT16'),
  'int32': ('int32_t', 'DT_INT32'),
  'uint32': ('uint32_t', 'DT_UINT32'),
  'int64': ('int64_t', 'DT_INT64'),
  'uint64': ('uint64_t', 'DT_UINT64'),
  'float64': ('double', 'DT_DOUBLE'),
  'bool': ('bool', 'DT_BOOL'),
}
# The basic API, the advanced one and the structs of its tilings.
APIS = (
  'kernel_operator.h',
  'include/adv_api/kernel_api.h',
  'kernel_tiling/kernel_tiling.h',
)
_PRELUDE = """\
// Reads a struct as the scalar unit does.
namespace hpmoe_twin {
// `Whole`: the struct that T is, or is a member of.
template <typename T, typename Whole>
inline void ReadTiling(const __gm__ uint8_t* from, T* to) {
  auto* const bytes = reinterpret_cast<uint8_t*>(to);
  size_t i = 0;
  for (; i + 8 <= sizeof(T); i += 8) {
    const uint64_t word = *reinterpret_cast<const __gm__ uint64_t*>(from + i);
    __builtin_memcpy(bytes + i, &word, 8);
  }
  for (; i < sizeof(T); ++i) bytes[i] = from[i];
}
template <typename T, typename Whole = T>
struct Tiling {
  alignas(8) uint8_t bytes[sizeof(T)];
  explicit Tiling(const __gm__ uint8_t* from) {
    ReadTiling<T, Whole>(from, reinterpret_cast<T*>(bytes));
  }
  T& Value() { return *reinterpret_cast<T*>(bytes); }
};
}  // namespace hpmoe_twin
#define HPMOE_TILING(type, name, at)         \\
  ::hpmoe_twin::Tiling<type> hpmoe_of_##name( \\
      (const __gm__ uint8_t*)(at));          \\
  type& name = hpmoe_of_##name.Value()
#define GET_TILING_DATA_WITH_STRUCT(type, name, at) HPMOE_TILING(type, name, at)
#define GET_TILING_DATA_MEMBER(type, member, name, at)                       \\
  ::hpmoe_twin::Tiling<std::remove_reference_t<decltype(((type*)0)->member)>, \\
                       type>                                                 \\
      hpmoe_of_##name((const __gm__ uint8_t*)(at) +                          \\
                      __builtin_offsetof(type, member));                     \\
  auto& name = hpmoe_of_##name.Value()
#define GET_TILING_DATA_PTR_WITH_STRUCT(type, name, at) \\
  const __gm__ type* name = (const __gm__ type*)(at)
#define COPY_TILING_WITH_STRUCT(type, at, name) \\
  HPMOE_TILING(type, hpmoe_at_##name, at);      \\
  const type* name = &hpmoe_at_##name
#define COPY_TILING_WITH_ARRAY(type, count, at, name)                \\
  using HpmoeArray##name = struct { type values[count]; };           \\
  HPMOE_TILING(HpmoeArray##name, hpmoe_at_##name, at);               \\
  const type(*name)[count] = &hpmoe_at_##name.values
#define __tiling_data_ptr__ const __gm__
#define REGISTER_TILINGDATA_SIZE(type, counter)
#undef REGISTER_TILING_DEFAULT
#define REGISTER_TILING_DEFAULT(type)
#undef REGISTER_TILING_FOR_TILINGKEY
#define REGISTER_TILING_FOR_TILINGKEY(condition, type)
// A template's parameters: of each, how many bits of the key it has, and the
// values of which those bits are the number; without any, they are the value.
namespace hpmoe_twin {
struct Parameter {
  unsigned bits;
  bool numbered;
  unsigned count;
  uint64_t values[64];
};
constexpr Parameter Numbered(unsigned bits,
                             std::initializer_list<uint64_t> values) {
  const uint64_t* at = values.begin();
  Parameter out{bits, true, 0, {}};
  if (*at++ != 1) {  // ranges, and then a list
    for (uint64_t range = *at++; range > 0; --range, at += 2) {
      for (uint64_t x = at[0]; x <= at[1] && out.count < 64; ++x) {
        out.values[out.count++] = x;
      }
    }
  }
  while (at < values.end() && out.count < 64) out.values[out.count++] = *at++;
  return out;
}
template <size_t n>
constexpr uint64_t FromKey(const Parameter (&all)[n], unsigned number,
                           uint64_t key) {
  for (unsigned i = 0; i < number; ++i) key >>= all[i].bits;
  const Parameter& own = all[number];
  key &= (uint64_t{1} << own.bits) - 1;
  return own.numbered ? own.values[key] : key;
}
}  // namespace hpmoe_twin
#define ASCENDC_TPL_KERNEL
#if __has_include("utils/tiling/template_argument.h")
#include "utils/tiling/template_argument.h"
#endif
#ifndef ASCENDC_TPL_UI_LIST
#define ASCENDC_TPL_UI_RANGE 0
#define ASCENDC_TPL_UI_LIST 1
#define ASCENDC_TPL_UI_MIX 2
#endif
#undef ASCENDC_TPL_ARGS_DECL
#undef ASCENDC_TPL_UINT_DECL
#undef ASCENDC_TPL_BOOL_DECL
#undef ASCENDC_TPL_DTYPE_DECL
#undef ASCENDC_TPL_DATATYPE_DECL
#undef ASCENDC_TPL_FORMAT_DECL
#undef ASCENDC_TPL_KERNEL_TYPE_DECL
#undef ASCENDC_TPL_SEL
#define ASCENDC_TPL_ARGS_DECL(op, ...)                               \\
  constexpr ::hpmoe_twin::Parameter hpmoe_parameters_of_##op[] = {   \\
      __VA_ARGS__}
#define ASCENDC_TPL_UINT_DECL(name, bits, ...) \\
  ::hpmoe_twin::Numbered(bits, {__VA_ARGS__})
#define HPMOE_PLAIN(bits) ::hpmoe_twin::Parameter{bits, false, 0, {}}
#define ASCENDC_TPL_BOOL_DECL(name, ...) HPMOE_PLAIN(1)
#define ASCENDC_TPL_DTYPE_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_DATATYPE_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_FORMAT_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_KERNEL_TYPE_DECL(name, ...) HPMOE_PLAIN(8)
#define ASCENDC_TPL_SEL(...)
#ifndef TILING_KEY_IS
#define TILING_KEY_IS(key) (TILING_KEY_VAR == (key))
#endif
#ifndef KERNEL_TASK_TYPE_DEFAULT
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define KERNEL_TASK_TYPE(key, type)
#endif
"""


def write(
  op: operator_folder.Folder,
  *,
  key: int,
  dtypes: Mapping[str, str],
  formats: Mapping[str, str],
  template: Sequence[str] = (),
  bare: bool = False,
) -> str:
  """Returns the source that is compiled: macros, structs and the kernel.

  Its kernel is `as_built::` the kernel's name.

  Args:
    op: the operator's folder.
    key: TILING_KEY_IS(key) holds.
    dtypes: of arguments, by their macros' ends: names of DTYPES.
    formats: of arguments, likewise: ND, FRACTAL_NZ.
    template: arguments of the kernel's template.
    bare: without headers of Ascend C.

  Raises:
    OperatorError: it is no dtype, or a template's arguments are missing.
  """
  lines = [] if bare else [f'#include "{name}"' for name in APIS]
  if op.kernel.template and not template:
    template = _arguments(op, key)
  lines += ['#undef TILING_KEY_VAR', f'#define TILING_KEY_VAR {key}UL']
  for name, dtype in dtypes.items():
    if dtype not in DTYPES:
      raise operator_declaration.OperatorError(
        f'dtypes: expected one of {", ".join(DTYPES)} for {name}, got {dtype}'
      )
    scalar, code = DTYPES[dtype]
    lines += [
      f'#define DTYPE_{name} {scalar}',
      f'#define ORIG_DTYPE_{name} {code}',
      f'#define FORMAT_{name} FORMAT_{formats.get(name, "ND")}',
    ]
  struct = op.struct(key)
  lines += [_PRELUDE, op.structs.text]
  lines.append(
    f'#define GET_TILING_DATA(name, at) HPMOE_TILING({struct}, name, at)'
  )
  lines.append(f'#include "{op.source}"')
  lines.append(_entry(op.kernel, template, bare))
  return '\n'.join((*lines, ''))


def _arguments(op: operator_folder.Folder, key: int) -> list[str]:
  """Returns a template's arguments, which a tiling key has the bits of.

  Raises:
    OperatorError: no ASCENDC_TPL_ARGS_DECL says which.
  """
  names = op.templates
  if not names:
    raise operator_declaration.OperatorError(
      f'template: expected arguments of the template {op.kernel.name}, got none'
    )
  stem = op.kernel.name.replace('_', '').lower()
  name = next((n for n in names if n.lower() == stem), names[0])
  table = f'hpmoe_parameters_of_{name}'
  values = [
    f'::hpmoe_twin::FromKey({table}, {i}, {key}ULL)'
    for i in range(len(op.kernel.template))
  ]
  return [
    f'TypeFromId<int({value})>::type'
    if kind in ('typename', 'class')
    else f'({kind})({value})'
    for kind, value in zip(op.kernel.template, values)
  ]


def _entry(
  kernel: operator_declaration.Signature, template: Sequence[str], bare: bool
) -> str:
  """Returns what CANN's build calls a kernel by."""
  parameters = ', '.join(kernel.parameters)
  arguments = ', '.join(kernel.names)
  position = kernel.position('workspace', 'userws')
  space = ''
  if position is not None and not bare:
    space = f'  AscendC::SetSysWorkspaceForce({kernel.names[position]});\n'
  name = f'{kernel.name}<{", ".join(template)}>' if template else kernel.name
  return (
    f'namespace as_built {{\n__global__ void {kernel.name}({parameters}) {{\n'
    f'{space}  ::{name}({arguments});\n}}\n}}  // namespace as_built'
  )
