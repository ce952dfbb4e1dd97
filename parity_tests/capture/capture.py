"""Records one call of a MoE layer in a run of yours, gradients included.

It needs numpy, and torch or MindSpore (eager); where hpmoe is not installed,
copy this file and `case/read_case.py`, to any Python from 3.8 on.

    with capture(model.model.layers[0].mlp, 'captured'):
      model(tokens, labels=tokens).loss.backward()

`captured/inputs.safetensors` is what the layer read, `real.safetensors` beside
it what it computed: y and, of a backward pass, gradients.  The verdict:

    hpmoe check --input=captured/inputs.safetensors --outputs=captured
"""

import contextlib
import fnmatch
import inspect
import math
import os
import re
import sys
import warnings

import numpy as np

try:
  from hpmoe.parity_tests.case import read_case
except ImportError:  # copied, beside it
  import read_case  # type: ignore[import-not-found, no-redef]

# Where the tensors of a layer are, and how they lie: the name of an argument of
# its call or of a parameter; axes as in `case/layouts/`.
_TRANSFORMERS = {
  'x': ('hidden_states', 'M D'),
  'topk_ids': ('top_k_index', 'M K'),
  'topk_weights': ('top_k_weights', 'M K'),
  'w_gate_up': ('gate_up_proj', 'E 2F D'),
  'w_down': ('down_proj', 'E D F'),
}
LAYERS = (
  # This project's own.
  {
    'x': ('x', 'R T D'),
    'topk_ids': ('topk_ids', 'R T K'),
    'topk_weights': ('topk_weights', 'R T K'),
    'w_gate_up': ('w_gate_up', 'R L D 2F'),
    'w_down': ('w_down', 'R L F D'),
  },
  # Experts of transformers 5: Mixtral, Qwen, DeepSeek and many more.
  _TRANSFORMERS,
)
INPUTS = tuple(_TRANSFORMERS)
# What an activation is called in a module, and as a word of a configuration.
_ACTIVATIONS = (
  *('act_fn', 'act', 'activation', 'activation_fn', 'activation_func'),
  *('hidden_act', 'hidden_activation'),
)
_WORDS = {
  'silu': 'swiglu',
  'swish': 'swiglu',
  'gelu': 'geglu',
  'gelu_new': 'geglu_tanh',
  'gelu_tanh': 'geglu_tanh',
  'gelu_pytorch_tanh': 'geglu_tanh',
  'relu': 'reglu',
  'relu2': 'relu2',
  'sigmoid': 'glu',
  'linear': 'bilinear',
}
# Gates that a function is tried on, to see which activation it is.
_GATES = np.linspace(-6, 6, 48, dtype=np.float32)
_NEAR = 1e-5
_GRADS = {'x': 'dx', 'topk_weights': 'd_topk_weights'}
_GRADS.update({name: 'd_' + name for name in ('w_gate_up', 'w_down')})


@contextlib.contextmanager
def capture(layer, folder, call=None, activation=None, **places):
  """Records one call of a layer that is made within its block.

  What is recorded of a gradient is what flows through this call alone,
  whatever else its inputs and weights are used for: `dx` is without the
  router's part.  A tensor that wants a gradient and gets none in torch's
  backward pass has the gradient zero.

  Args:
    layer: a Module of torch or a Cell of MindSpore, called with tokens, ids and
      routing weights, or one whose `experts` is; or a function, which is to be
      called as what the block is given.
    folder: to write, empty or not there; it is left so if the block raises.
    call: which of several calls, from 0.
    activation: of the layer, as `hpmoe check --activation` has it; None: what
      an attribute such as `act_fn` is, which is tried on a few gates.  Where
      that cannot be seen, a warning says so.
    **places: by names of `INPUTS`, where a tensor is: the name of an argument
      or a parameter, of several that are stacked if it has a *, a list of names
      whose tensors are the halves of 2F, or a function of the call's arguments;
      or a pair of that and its layout.  Default: a row of `LAYERS`.

  Yields:
    What to call, where `layer` is a function.

  Raises:
    ValueError: a tensor is not to be found, no call is made or more than one,
      or more than one backward pass goes through it.
  """
  if os.path.isdir(folder) and os.listdir(folder):
    raise ValueError(f'folder: expected one that is empty, got {folder!r}')
  target, method = _target(layer, not places)
  function = getattr(target, method) if method else target
  record = _Record(function, target if method else None, call, places)
  record.activation = activation or _read_activation(layer)
  if not method:
    yield record.call_layer
  else:
    own = method in vars(target)
    setattr(target, method, record.call_layer)
    try:
      yield layer
    finally:
      delattr(target, method)
      if own:
        setattr(target, method, function)
  record.write(folder)


def _target(layer, inside):
  """Returns the module that is called with a routing, and its method.

  Args:
    layer: of the user.
    inside: whether the module may be the layer's `experts`.
  """
  for method in ('forward', 'construct'):
    if hasattr(layer, method):
      experts = getattr(layer, 'experts', None)
      argument_names = _arguments(getattr(experts, method, None))
      return (
        experts if inside and 'top_k_index' in argument_names else layer
      ), method
  if not callable(layer):
    raise ValueError(
      f'layer: expected a Module, a Cell or a function, got {layer!r}'
    )
  return layer, ''


def _read_activation(layer):
  """Returns the activation of a layer, as a check calls it, or None."""
  names = {_name_activation(act) for act in _list_activations(layer)} - {None}
  if len(names) == 1:
    return names.pop()
  activations = ' and '.join(sorted(names)) or 'none'
  warnings.warn(
    'activation: expected one that the layer shows, as an attribute act_fn or '
    f'so, got {activations}: hpmoe check takes swiglu unless capture(..., '
    'activation=...) says another',
    stacklevel=4,
  )
  return None


def _list_activations(layer):
  """Yields what a layer and its parts have as an activation."""
  modules = [layer]
  for method in ('modules', 'cells'):
    if hasattr(layer, method):
      modules += list(getattr(layer, method)())
  for module in modules:
    for owner in (module, getattr(module, 'config', None)):
      for name in _ACTIVATIONS:
        if getattr(owner, name, None) is not None:
          yield getattr(owner, name)


def _name_activation(act):
  """Returns which activation a function or a word is; None: unknown."""
  if isinstance(act, str):
    return _WORDS.get(act)
  for make, read in _list_frameworks():
    # One that takes more than a gate, or another framework's tensors.
    with contextlib.suppress(Exception):
      return _name_outputs(_try_activation(act, make, read))
  return None


def _name_outputs(outputs):
  """Returns which activation made these of `_GATES`; None: an unknown one."""
  for name, function in _FUNCTIONS.items():
    expected = function(_GATES.astype(np.float64))
    if np.shape(outputs) == expected.shape and np.all(
      np.abs(outputs - expected) <= _NEAR * (1 + np.abs(expected))
    ):
      return name
  return None


def _try_activation(act, make, read):
  """Returns an activation of `_GATES`, with up = 1 if it is gated."""
  outputs = read(act(make(_GATES)))
  if outputs.shape[-1] == _GATES.shape[-1] // 2:
    outputs = read(act(make(np.concatenate([_GATES, np.ones_like(_GATES)]))))
  return outputs


def _list_frameworks():
  """Yields how a tensor of each framework in this process is made, and read."""
  if 'torch' in sys.modules:
    torch = sys.modules['torch']
    yield torch.from_numpy, lambda a: a.detach().numpy()
  if 'mindspore' in sys.modules:
    yield sys.modules['mindspore'].Tensor, lambda a: a.asnumpy()
  yield np.asarray, np.asarray


def _sigmoid(z):
  return 1 / (1 + np.exp(-z))


_FUNCTIONS = {
  'swiglu': lambda z: z * _sigmoid(z),
  'geglu': lambda z: z * np.array([1 + math.erf(a / 2**0.5) for a in z]) / 2,
  'geglu_tanh': lambda z: (
    z * (1 + np.tanh((2 / np.pi) ** 0.5 * (z + 0.044715 * z**3))) / 2
  ),
  'swiglu:alpha=1.702': lambda z: z * _sigmoid(1.702 * z),
  'reglu': lambda z: np.maximum(z, 0),
  'relu2': lambda z: np.maximum(z, 0) ** 2,
  'glu': _sigmoid,
  'bilinear': lambda z: z,
}


def _arguments(function):
  """Returns the names of a function's arguments."""
  return inspect.signature(function).parameters if callable(function) else ()


def write_folder(folder, inputs, outputs, layouts, activation=None):
  """Writes what a layer read and what it computed, as a check reads them.

  Args:
    folder: to write.
    inputs: bits of what it read, by name.
    outputs: likewise what it computed.
    layouts: axes of each of them; the leading ones may be several of an array.
    activation: of the layer, or None.
  """
  arrays = dict(inputs, **outputs)
  notes = dict(layouts)
  if activation:
    notes['activation_form'] = activation
  # Their dtypes are not those of the layer.
  for name in ('topk_ids', 'topk_weights', 'd_topk_weights'):
    if name in arrays:
      notes[name] = f'{layouts[name]}, {_name_dtype(arrays[name])}'
  flat = {name: _flattened(a, layouts[name]) for name, a in arrays.items()}
  notes['case'] = read_case.digest({name: flat[name] for name in inputs})
  os.makedirs(folder, exist_ok=True)
  for file, names in (('inputs', inputs), ('real', outputs)):
    part = {name: flat[name] for name in names}
    read_case.save(read_case.path_of(folder, file), part, notes)


def _name_dtype(bits):
  return 'bfloat16' if bits.dtype == read_case.BFLOAT16 else bits.dtype.name


class _Record:
  """What one call reads and computes."""

  def __init__(self, function, module, call, places):
    self._function, self._module, self._call = function, module, call
    self._calls = 0
    self._places = _places(function, module, places)
    self._layouts = {name: place[1] for name, place in self._places.items()}
    self._inputs, self._outputs = {}, {}
    # By name, each part of a tensor with what its gradients were.
    self._parts = {}
    self._dy = []
    self.activation = None

  def call_layer(self, *args, **kwargs):
    """Calls the layer; in the call to capture, records what it reads."""
    self._calls += 1
    if self._calls - 1 != (self._call or 0):
      return self._function(*args, **kwargs)
    bound = inspect.signature(self._function).bind(*args, **kwargs)
    parameters = _parameters(self._module)
    with contextlib.ExitStack() as after:
      for name, (source, layout) in self._places.items():
        if callable(source):
          self._inputs[name] = _bits(source(*args, **kwargs))
        elif source in tuple(bound.arguments):
          self._read(name, source, bound.arguments)
        else:
          self._read_weights(name, source, layout, parameters, after)
      result = self._function(*bound.args, **bound.kwargs)
    is_tuple = isinstance(result, tuple)
    y = result[0] if is_tuple else result
    self._outputs['y'] = _bits(y)
    y = _tapped(y, self._dy)
    return (y, *result[1:]) if is_tuple else y

  def _read(self, name, argument, arguments):
    """Records an argument; replaces it by an alias that records gradients."""
    part = _Part(arguments[argument])
    self._inputs[name] = part.value
    # Where the layer routes by itself, x has a gradient of the router too.
    routes = any(callable(source) for source, _ in self._places.values())
    if name in _GRADS and not (routes and name == 'x'):
      self._parts[name] = [part]
      arguments[argument] = _tapped(arguments[argument], part.grads)

  def _read_weights(self, name, source, layout, parameters, after):
    """Does the same with parameters, until the call is over."""
    self._parts[name] = []
    for pattern in source if isinstance(source, list) else [source]:
      paths = _matching(pattern, parameters)
      parts = [_Part(parameters[path]) for path in paths]
      self._parts[name].append(parts if '*' in pattern else parts[0])
      for path, part in zip(paths, parts):
        after.enter_context(_in_place(self._module, path, part.grads))
    self._inputs[name] = _whole(self._parts[name], layout, 'value')

  def write(self, folder):
    """Writes inputs and outputs."""
    self._check()
    inputs, outputs = dict(self._inputs), dict(self._outputs)
    layouts = dict(self._layouts)
    layouts.update((grad, layouts[name]) for name, grad in _GRADS.items())
    layouts.update(y=layouts['x'], dy=layouts['x'])
    if self._dy:
      inputs['dy'] = self._dy[0]
      for name, parts in self._parts.items():
        if any(part.is_wanted for part in _flat(parts)):
          outputs[_GRADS[name]] = _whole(parts, self._layouts[name], 'grad')
    write_folder(folder, inputs, outputs, layouts, self.activation)

  def _check(self):
    """Checks that the block had one call and one backward pass.

    Raises:
      ValueError: it had another number of either.
    """
    call = self._call or 0
    if self._calls <= call:
      raise ValueError(
        f'layer: expected call {call} within the block, got {self._calls} calls'
      )
    if self._call is None and self._calls > 1:
      raise ValueError(
        f'call: expected a number from 0 to {self._calls - 1}, as the block '
        f'has {self._calls} calls, got none'
      )
    parts = [
      part for part_list in self._parts.values() for part in _flat(part_list)
    ]
    passes = max(len(grads) for grads in (self._dy, *(p.grads for p in parts)))
    if passes > 1:
      raise ValueError(
        f'layer: expected one backward pass through call {call}, got {passes}'
      )


class _Part:
  """A tensor, and the gradients of it that came.

  Attributes:
    value: its bits.
    grads: as they came.
    is_wanted: whether a backward pass is to give one.
  """

  def __init__(self, value):
    self.value = _bits(value)
    self.grads = []
    # MindSpore's only wants what its `grad` is asked for.
    self._requires = not _is_mindspore(value) and value.requires_grad

  @property
  def is_wanted(self):
    return bool(self.grads) or self._requires

  @property
  def grad(self):
    return self.grads[0] if self.grads else np.zeros_like(self.value)


def _places(function, module, sources_given):
  """Returns (source, layout) of each input, by name.

  Raises:
    ValueError: an input has no argument and no parameter.
  """
  strange = [name for name in sources_given if name not in INPUTS]
  if strange:
    raise ValueError(
      f'{strange[0]}: expected {", ".join(INPUTS)}, got {strange[0]!r}'
    )
  parameters = _parameters(module)
  names_known = (*_arguments(function), *parameters)
  lacking = []
  for row in LAYERS:
    sources = {n: sources_given.get(n, row[n]) for n in INPUTS}
    places = {
      n: source if isinstance(source, tuple) else (source, row[n][1])
      for n, source in sources.items()
    }
    lacks = [
      n for n, place in places.items() if not _is_known(place, names_known)
    ]
    if not lacks:
      _refuse_others(places, parameters)
      return places
    lacking.append((len(lacks), lacks[0], places[lacks[0]][0]))
  _, name, source = min(lacking)
  sample = [*names_known[:6], '...'] if len(names_known) > 6 else names_known
  raise ValueError(
    f'{name}: expected an argument of the layer or a parameter of that name, '
    f'got none named {source!r}, but {", ".join(sample) or "nothing"}: say '
    f'where it is, as {name}=...'
  )


def _is_known(place, names_known):
  source = place[0]
  names = source if isinstance(source, list) else [source]
  return all(callable(n) or fnmatch.filter(names_known, n) for n in names)


def _refuse_others(places, parameters):
  """Checks that every parameter is one of the layer's weights.

  Raises:
    ValueError: a parameter is not.
  """
  if any(callable(source) for source, _ in places.values()):
    return  # the router's are among them
  own_parameters = []
  for source, _ in places.values():
    for pattern in source if isinstance(source, list) else [source]:
      own_parameters += fnmatch.filter(parameters, pattern)
  spare = [name for name in parameters if name not in own_parameters]
  if spare and own_parameters:
    raise ValueError(
      f'layer: expected only the parameters {", ".join(own_parameters)}, got '
      f'{spare[0]} too'
    )


def _matching(pattern, parameters):
  """Returns the names that match a pattern, in the order of their numbers."""
  return sorted(
    fnmatch.filter(parameters, pattern),
    key=lambda name: [int(n) for n in re.findall(r'\d+', name)],
  )


def _parameters(module):
  """Returns the parameters of a Module or a Cell by name."""
  if module is None:
    return {}
  if hasattr(module, 'parameters_and_names'):
    return dict(module.parameters_and_names())
  return dict(module.named_parameters())


@contextlib.contextmanager
def _in_place(module, path, grads):
  """Replaces a parameter by an alias that records its gradients."""
  *parents, name = path.split('.')
  for parent in parents:
    module = getattr(module, parent)
  module_parameters = getattr(
    module, '_params' if hasattr(module, 'construct') else '_parameters'
  )
  own = module_parameters[name]
  module_parameters[name] = _tapped(own, grads)
  try:
    yield
  finally:
    module_parameters[name] = own


def _is_mindspore(tensor):
  mindspore = sys.modules.get('mindspore')
  return mindspore is not None and isinstance(tensor, mindspore.Tensor)


def _tapped(tensor, grads):
  """Returns an alias of a tensor; gradients of the alias are kept."""
  if _is_mindspore(tensor):
    keep = lambda grad: grads.append(_bits(grad[0]))
    return sys.modules['mindspore'].ops.HookBackward(keep)(tensor)
  alias = tensor.view_as(tensor)
  if alias.requires_grad:
    alias.register_hook(lambda grad: grads.append(_bits(grad)))
  return alias


def _bits(tensor):
  """Returns a copy of a tensor, as `read_case.bits_of` does."""
  return np.array(read_case.bits_of(tensor))


def _flat(parts):
  """Returns the parts of a tensor, those of stacks too."""
  for part in parts:
    yield from part if isinstance(part, list) else [part]


def _whole(halves, layout, field):
  """Returns a tensor from its halves of 2F; a half may be a stack."""
  arrays = [
    np.stack([getattr(part, field) for part in half])
    if isinstance(half, list)
    else getattr(half, field)
    for half in halves
  ]
  if len(arrays) == 1:
    return arrays[0]
  return np.concatenate(arrays, _axes(layout).index('2F'))


def _axes(layout):
  return layout.partition(',')[0].split()


def _flattened(array, layout):
  """Returns a tensor whose first axes are as many as its layout says."""
  rest = len(_axes(layout)) - 1
  return array.reshape(-1, *array.shape[array.ndim - rest :])
