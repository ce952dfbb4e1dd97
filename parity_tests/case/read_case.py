"""Reads a case of hpmoe, and writes what a kernel computed of it.

It needs numpy alone, in any Python from 3.8 on, and may be copied anywhere.

    python read_case.py CASE my_kernel.py:function OUT [--torch[=DEVICE]]

calls `function(inputs, layer, policy)` for each kind of data in the folder CASE
and writes what it returns, tensors by name, to the folder OUT, for `hpmoe check
--case=CASE --outputs=OUT`.  `layer` and `policy` have what case.toml says of
them as attributes, `layer` also experts_per_rank and num_rows.  The backward
pass is `function.backward`, called likewise; it also gets dy and what a forward
pass saved; one that computes that again says so: `function.backward.recomputes
= True`.  `function.torch = True` does what --torch does, and `function.torch =
'cuda'` what --torch=cuda does: tensors of torch on that device.

In a program of your own:

    case = read_case.load('case')
    for data in case.data:
      inputs = read_case.inputs(case, data)
      y = my_kernel(inputs['x'], ...)
      read_case.write('out', case, data, {'y': y})

With `rank=0` both are of that rank alone; its tensors have no rank axis.
bfloat16 comes as tensors of torch if torch is asked for, else of ml_dtypes if
that is installed (pip install ml_dtypes), else widened to float32, which loses
nothing.  Then `array.astype(x.dtype)` rounds nothing: round what is stored with
`read_case.round_stored(array, policy.storage)`, which needs numpy alone, and
return it as float32; `policy.storage` says the dtype that the case stores.
"""

import argparse
import hashlib
import json
import os
import sys
import types

import numpy as np

# numpy knows none of these: their bits, under their names.
BFLOAT16 = np.dtype([('bfloat16', '<u2')])
FLOAT8 = {
  n: np.dtype([(n, 'u1')])
  for n in ('float8_e4m3fn', 'float8_e4m3fnuz', 'float8_e5m2')
}
_BARE = {'bfloat16': BFLOAT16, **FLOAT8}
# Scales that are powers of two are bytes in files.
_EXPONENTS = 'float8_e8m0fnu'
_DTYPES: 'dict[str, np.dtype]' = {
  'F64': np.dtype('<f8'),
  'F32': np.dtype('<f4'),
  'F16': np.dtype('<f2'),
  'BF16': BFLOAT16,
  'F8_E4M3': FLOAT8['float8_e4m3fn'],
  'F8_E4M3FNUZ': FLOAT8['float8_e4m3fnuz'],
  'F8_E5M2': FLOAT8['float8_e5m2'],
  'I64': np.dtype('<i8'),
  'I32': np.dtype('<i4'),
  'I16': np.dtype('<i2'),
  'I8': np.dtype('i1'),
  'U8': np.dtype('u1'),
  'BOOL': np.dtype('?'),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
FORWARD, BACKWARD = 'forward', 'backward'
# What case.toml does not say is so.
_PLAIN_LAYER = dict(bias=False)
_PLAIN_POLICY = dict(
  alpha=1.0,
  limit=0.0,
  offset=0.0,
  quantised='',
  rows='',
  x_form='',
  weight_ulp=0.0,
  operand_forms='',
)


class _Layer(types.SimpleNamespace):
  """The sizes of case.toml, and what `hpmoe.MoEConfig` makes of them."""

  @property
  def experts_per_rank(self):
    return self.num_experts // self.num_ranks

  @property
  def num_rows(self):
    return self.capacity


def load(folder):
  """Returns case.toml: its tables are objects, `data` a dict of such.

  Raises:
    ValueError: the folder is no case, or a line cannot be read.
  """
  path = os.path.join(folder, 'case.toml')
  if not os.path.exists(path):
    raise ValueError(
      f'case: expected a folder with case.toml, got {str(folder)!r}'
    )
  case = types.SimpleNamespace(folder=str(folder), data={})
  with open(path, encoding='utf-8') as file:
    for section, values in _tables(path, file):
      table = types.SimpleNamespace(**values)
      if section.startswith('data.'):
        case.data[section[len('data.') :]] = table
      else:
        setattr(case, section, table)
  return case


def inputs(case, data, rank=None, torch=False, direction=FORWARD):
  """Returns what a pass reads, tensors by name.

  Args:
    case: of `load`.
    data: one of `case.data`.
    rank: which rank's, without a rank axis; None: `[R, ...]` of all.
    torch: whether as tensors of torch; the name of a device: as tensors there.
    direction: the pass; 'backward' has more.

  Raises:
    ValueError: a file is missing or damaged.
  """
  tensors_by_name = {}
  for part in (FORWARD, BACKWARD)[: 1 + (direction == BACKWARD)]:
    tensors_by_name.update(_read_bits(case, f'{data}.{part}', rank))
  if not torch:
    return {n: as_numpy(a) for n, a in tensors_by_name.items()}
  device = device_of(torch)
  return {n: as_torch(a).to(device) for n, a in tensors_by_name.items()}


def write(folder, case, data, tensors, rank=None, **notes):
  """Writes what a kernel computed: a file that is whole, or none.

  Args:
    folder: of the outputs; made if it is not there.
    case: of `load`.
    data: what it was computed from, one of `case.data`.
    tensors: numpy's or torch's, by name.
    rank: whose, without a rank axis; None: `[R, ...]` of all.
    **notes: strings to be kept with them; recomputes='true': the backward pass
      computed again what it was given of a forward pass.
  """
  os.makedirs(folder, exist_ok=True)
  save(path_of(folder, data, rank), tensors, dict(notes, case=case.case.id))


def path_of(folder, name, rank=None):
  """Returns a file of all ranks, or of one."""
  rank_suffix = '' if rank is None else f'.rank{rank}'
  return os.path.join(folder, name + rank_suffix + '.safetensors')


def digest(tensors):
  """Returns a hash of names, dtypes, shapes and bytes."""
  total = hashlib.sha256()
  for name in sorted(tensors):
    array = bits_of(tensors[name])
    total.update(f'{name} {array.dtype} {array.shape};'.encode())
    total.update(array.reshape(-1).view(np.uint8).data)
  return total.hexdigest()


def read(path):
  """Returns (tensors by name, notes) of a .safetensors file.

  Raises:
    ValueError: it is missing or damaged.
  """
  try:
    with open(path, 'rb') as file:
      length = int.from_bytes(file.read(8), 'little')
      size = os.path.getsize(path)
      if 8 + length > size:
        raise ValueError('a header that ends after it')
      header = json.loads(file.read(length))
    notes = header.pop('__metadata__', {})
    data = np.zeros(0, np.uint8)
    if size > 8 + length:
      data = np.memmap(path, np.uint8, 'r', 8 + length)
    return {n: _tensor(data, row) for n, row in header.items()}, notes
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f'{path}: expected a readable .safetensors file, got {error}'
    ) from error


def save(path, tensors, notes):
  """Writes a .safetensors file beside its place, then moves it there.

  Raises:
    ValueError: a tensor has a dtype that the format has not.
  """
  header, arrays, offset = {'__metadata__': notes}, [], 0
  for name in sorted(tensors):
    array = bits_of(tensors[name])
    if array.dtype not in _CODES:
      raise ValueError(
        f'{name}: expected a dtype among {", ".join(_DTYPES)}, got '
        f'{array.dtype}'
      )
    header[name] = dict(
      dtype=_CODES[array.dtype],
      shape=array.shape,
      data_offsets=(offset, offset + array.nbytes),
    )
    offset += array.nbytes
    arrays.append(array)
  text = json.dumps(header).encode()
  text += b' ' * (-len(text) % 8)
  part = f'{path}.{os.getpid()}'
  try:
    with open(part, 'wb') as file:
      file.write(len(text).to_bytes(8, 'little') + text)
      for array in arrays:
        file.write(array.reshape(-1).view(np.uint8).data)
    os.replace(part, path)
  finally:
    if os.path.exists(part):
      os.remove(part)


def as_numpy(array):
  """Returns values of bits, see the module."""
  if array.dtype not in _BARE.values():
    return array
  (name,) = array.dtype.names
  bits = array.view(f'u{array.itemsize}')
  try:
    import ml_dtypes

    return bits.view(getattr(ml_dtypes, name))
  except ImportError:
    return _widened(name, bits)


def round_stored(array, dtype):
  """Returns float32 values, rounded to nearest even in a storage dtype.

  Args:
    array: float32.
    dtype: 'float32', 'float16' or 'bfloat16', as `policy.storage` says.

  Raises:
    ValueError: there is no such dtype.
  """
  values = np.asarray(array, np.float32)
  if dtype == 'float32':
    return values
  if dtype == 'float16':
    with np.errstate(over='ignore'):
      return values.astype(np.float16).astype(np.float32)
  if dtype != 'bfloat16':
    raise ValueError(
      f'dtype: expected float32, float16 or bfloat16, got {dtype!r}'
    )
  bits = np.ascontiguousarray(values).view(np.uint32)
  # Half of what is cut, and its lowest bit that stays, for ties to even.
  bits = bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))
  near = (bits & np.uint32(0xFFFF0000)).view(np.float32)
  return np.where(np.isnan(values), values, near).reshape(values.shape)


def device_of(torch):
  """Returns the device that `function.torch` or --torch names: cpu if none."""
  return torch if isinstance(torch, str) else 'cpu'


def as_torch(array):
  """Returns torch's tensor of bits, bfloat16 as such."""
  import torch

  if array.dtype not in _BARE.values():
    return torch.from_numpy(np.array(array))
  (name,) = array.dtype.names
  bits = torch.from_numpy(array.view(f'i{array.itemsize}').copy())
  return bits.view(getattr(torch, name))


def bits_of(value):
  """Returns a tensor as a contiguous array of numpy.

  Args:
    value: numpy's, torch's, JAX's, MindSpore's, or another's that speaks
      DLPack; anywhere, strided in any way, with a gradient or not.

  Raises:
    TypeError: it is no array of numbers.
  """
  for method in ('detach', 'cpu', 'asnumpy'):
    value = getattr(value, method, lambda default=value: default)()
  name = str(getattr(value, 'dtype', '')).rpartition('.')[2]
  # numpy knows no such of torch.
  if name == 'bfloat16' and hasattr(value, 'float'):
    wide = np.asarray(value.float())
    value = (wide.view(np.uint32) >> 16).astype(np.uint16)
  elif name in (*_BARE, _EXPONENTS) and hasattr(value, 'contiguous'):
    import torch

    value = value.contiguous().view(torch.uint8).numpy()
  if hasattr(value, '__array__') or not hasattr(value, '__dlpack__'):
    array = np.asarray(value)
  else:
    array = _of_dlpack(value)
  if array.dtype.hasobject:
    raise TypeError(f'its elements are objects, not numbers: {array.dtype}')
  array = array if array.flags.c_contiguous else array.copy()
  array = array.view(_BARE[name]) if name in _BARE else array
  array = array.view(np.uint8) if name == _EXPONENTS else array
  return array.astype(array.dtype.newbyteorder('<'), copy=False)


def _of_dlpack(value):
  try:
    return np.from_dlpack(value)
  except (BufferError, RuntimeError):  # bfloat16, or not on a CPU
    import torch

    return bits_of(torch.from_dlpack(value))


def _widened(name, bits):
  """Returns float32 of bits, the same values."""
  if name == 'bfloat16':
    return (bits.astype(np.uint32) << 16).view(np.float32)
  if name == 'float8_e5m2':
    return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
  codes = np.arange(256)
  power, low = codes >> 3 & 15, codes & 7
  is_fnuz = name == 'float8_e4m3fnuz'
  size = np.where(power, np.ldexp(8 + low, power - 10), np.ldexp(low, -9))
  size = np.ldexp(size, -is_fnuz)
  size[codes == 128 if is_fnuz else codes & 127 == 127] = np.nan
  table = np.where(codes < 128, size, -size).astype(np.float32)
  return table[bits]


def _read_bits(case, name, rank):
  """Returns the bits of a file of all ranks, or of all files of a rank each."""
  whole = path_of(case.folder, name)
  if os.path.exists(whole):
    tensors_by_name = read(whole)[0]
    return (
      tensors_by_name
      if rank is None
      else {n: a[rank] for n, a in tensors_by_name.items()}
    )
  if rank is not None:
    return read(path_of(case.folder, name, rank))[0]
  ranks = range(case.layer.num_ranks)
  parts = [read(path_of(case.folder, name, r))[0] for r in ranks]
  return {n: np.stack([part[n] for part in parts]) for n in parts[0]}


def _tensor(data, row):
  begin, end = row['data_offsets']
  if not 0 <= begin <= end <= len(data):
    raise ValueError('a tensor that ends after it')
  array = np.asarray(data[begin:end]).view(_DTYPES[row['dtype']])
  return array.reshape(row['shape'])


def _tables(path, lines):
  """Yields (name, values) of each table; values are as JSON has them."""
  name = ''
  values: dict = {}
  for number, line in enumerate(lines, 1):
    line = line.strip()
    if line.startswith('[') and line.endswith(']'):
      if name:
        yield name, values
      name, values = line[1:-1], {}
    elif line and not line.startswith('#'):
      key, _, value = line.partition(' = ')
      try:
        values[key] = json.loads(value)
      except ValueError as error:
        raise ValueError(
          f'{path}:{number}: expected name = value, got {line!r}'
        ) from error
  if name:
    yield name, values


def load_module(path):
  """Returns the module in a file of the user, which may import from beside it.

  It is compiled from its text: bytecode may be of another text that had the
  same size in the same second.
  """
  sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
  module = types.ModuleType('hpmoe_candidate')
  module.__file__ = path
  sys.modules[module.__name__] = module
  with open(path, encoding='utf-8') as file:
    exec(compile(file.read(), path, 'exec'), vars(module))
  return module


def function(spec):
  """Returns a function that FILE.py:function names.

  Raises:
    ValueError: it is not there.
  """
  path, _, name = spec.rpartition(':')
  if not path:
    raise ValueError(f'function: expected FILE.py:function, got {spec!r}')
  if not os.path.exists(path):
    raise ValueError(f'function: expected a file {path}, got none')
  module = load_module(path)
  if not callable(getattr(module, name, None)):
    raise ValueError(f'function: expected {name!r} in {path}, got none')
  return getattr(module, name)


def run(case, kernel, out, torch=False):
  """Calls a function on each kind of data, and writes what it returns.

  Raises:
    ValueError: the folder of outputs is in use, the kernel has no backward
      pass where one is asked for, or it changed what it was given.
  """
  if os.path.isdir(out) and os.listdir(out):
    raise ValueError(f'out: expected a folder that is empty, got {out!r}')
  has_backward = callable(getattr(kernel, 'backward', None))
  if case.case.direction != FORWARD and not has_backward:
    raise ValueError(
      'function: expected its backward pass as an attribute, '
      'function.backward(inputs, layer, policy), got none'
    )
  torch = torch or getattr(kernel, 'torch', False)
  for data, table in case.data.items():
    activations = getattr(kernel, 'activations', (table.activation,))
    if table.activation not in activations:
      continue
    layer = _Layer(**dict(_PLAIN_LAYER, **vars(case.layer)))
    policy = types.SimpleNamespace(**dict(_PLAIN_POLICY, **vars(case.policy)))
    for name in ('activation', 'limit', 'offset'):
      if hasattr(table, name):
        setattr(policy, name, getattr(table, name))
    outputs = {}
    if case.case.direction != BACKWARD:
      tensors_by_name = inputs(case, data, None, torch)
      outputs.update(_call(kernel, tensors_by_name, layer, policy))
    if case.case.direction != FORWARD:
      tensors_by_name = inputs(case, data, None, torch, BACKWARD)
      tensors_by_name.update(
        (n, a) for n, a in outputs.items() if n in tensors_by_name
      )
      outputs.update(_call(kernel.backward, tensors_by_name, layer, policy))
    notes = {}
    if case.case.direction != FORWARD:
      recomputes = bool(getattr(kernel.backward, 'recomputes', False))
      notes['recomputes'] = 'true' if recomputes else 'false'
    write(out, case, data, outputs, **notes)


def _is_raised_in(error, spec):
  """Says whether an error was raised in the file of the function."""
  path, frame = spec.rpartition(':')[0], error.__traceback__
  while frame is not None:
    if frame.tb_frame.f_code.co_filename == path:
      return True
    frame = frame.tb_next
  return False


def _call(function, tensors_by_name, layer, policy):
  """Returns what a function returns; it must leave its inputs as they are."""
  own = {
    n: np.array(a) if isinstance(a, np.ndarray) else a
    for n, a in tensors_by_name.items()
  }
  before = {name: digest({name: array}) for name, array in own.items()}
  outputs = function(dict(own), layer, policy)
  for name, array in own.items():
    if digest({name: array}) != before[name]:
      raise ValueError(f'{name}: expected it unchanged, got other values')
  return outputs


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('case', help='folder with case.toml')
  parser.add_argument('function', help='FILE.py:function')
  parser.add_argument('out', help='folder to write to')
  parser.add_argument(
    '--torch',
    nargs='?',
    const='cpu',
    default='',
    metavar='DEVICE',
    help='tensors of torch, on that device',
  )
  options = parser.parse_args()
  try:
    run(
      load(options.case), function(options.function), options.out, options.torch
    )
  except ValueError as error:
    if _is_raised_in(
      error, options.function
    ):  # it is the user's own, with its lines
      raise
    sys.exit(f'read_case: {error}')


if __name__ == '__main__':
  main()
