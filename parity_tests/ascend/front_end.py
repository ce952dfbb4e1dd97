"""Our backend as a framework's users call it: the layer of a front end.

The forward pass returns every tensor of a launch, but y comes from the function
that users call.  The backward pass is the gradient of that function, computed
from the tensors that its own forward launch saved.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import ClassVar, Self

import numpy as np

from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.parity_tests.ascend import failures
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import option_fields
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Arrays = dict[str, np.ndarray]

_FLOATS = tuple(layer_call.GRAD_OF)
_GRADS = tuple(layer_call.GRAD_OF.values())


@dataclasses.dataclass(frozen=True)
class Framework:
  """The two passes of a front end's layer.

  Attributes:
    forward: takes a call and its inputs by name; returns every tensor of the
      pass by name.
    backward: takes a call, its inputs by name and dy; returns the gradients by
      name.
  """

  forward: Callable[[layer_call.LayerCall, Arrays], Arrays]
  backward: Callable[[layer_call.LayerCall, Arrays, np.ndarray], Arrays]


def _jax(device: str) -> Framework:
  import jax

  if device != 'cpu':
    raise ValueError(f'device: expected cpu with JAX, got {device!r}')

  from hpmoe.backend_ascend.frontends import jax_layer

  def forward(call, inputs):
    fields = vars(call)
    whole = {name: field for name, field in fields.items() if name != 'scan'}
    outputs = jax_layer.forward(**whole, **inputs)
    outputs['y'] = jax_layer.layer(**fields, **inputs)
    return {name: np.asarray(array) for name, array in outputs.items()}

  def backward(call, inputs, dy):
    def layer(*floats):
      float_inputs = dict(zip(_FLOATS, floats, strict=True))
      return jax_layer.layer(**vars(call), **(inputs | float_inputs))

    _, pull = jax.vjp(layer, *(inputs[name] for name in _FLOATS))
    return dict(zip(_GRADS, map(np.asarray, pull(dy)), strict=True))

  return Framework(forward, backward)


def _mindspore(device: str) -> Framework:
  try:
    from hpmoe.backend_ascend.frontends import mindspore_layer
  except ImportError as error:
    raise ValueError(f'frontend: {error}') from error
  import mindspore as ms

  if device == 'ascend' and not mindspore_layer.has_ascend():
    raise ValueError(
      "device: expected 'cpu', got 'ascend': MindSpore finds no Ascend device"
    )
  ms.set_device('Ascend' if device == 'ascend' else 'CPU')
  # An operator's error is raised where it runs, not at a later operator.
  ms.set_context(pynative_synchronize=True)

  def build_cell(call):
    return mindspore_layer.MoELayer(**vars(call), device=device)

  def forward(call, inputs):
    cell = build_cell(call)
    layer_inputs = [ms.Tensor(inputs[name]) for name in tensors.INPUTS]
    outputs = cell.tensors(*layer_inputs) | dict(y=cell(*layer_inputs))
    return {n: mindspore_layer.to_numpy(a) for n, a in outputs.items()}

  def backward(call, inputs, dy):
    cell = build_cell(call)
    layer_inputs = [ms.Tensor(inputs[name]) for name in tensors.INPUTS]
    pull = ms.ops.GradOperation(get_all=True, sens_param=True)
    grads = dict(
      zip(tensors.INPUTS, pull(cell)(*layer_inputs, ms.Tensor(dy)), strict=True)
    )
    return {
      grad: mindspore_layer.to_numpy(grads[name])
      for name, grad in layer_call.GRAD_OF.items()
    }

  return Framework(forward, backward)


_FRAMEWORKS = dict(jax=_jax, mindspore=_mindspore)
NAMES = tuple(_FRAMEWORKS)


@dataclasses.dataclass(frozen=True)
class FrontEnd(candidates.Candidate):
  """A framework's layer, in our process.

  Attributes:
    framework: one of NAMES.
    options: granularity and cores.
    threads: OS threads; None is one per core.
    deadline_s: seconds without progress that end a launch.
    device: 'cpu' or 'ascend', on which the layer runs.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    directions=('forward', 'both'),
    description='a gradient reads what its own forward pass saved',
  )
  framework: str = option_fields.option(
    dataclasses.MISSING,
    'Call the megakernel through a framework, as its users do: the layer '
    'and its gradient; see docs/frontends.md.',
    flag='frontend',
    choices=NAMES,
  )
  options: granularity.Options = granularity.Options()
  threads: int | None = option_fields.share(host.Megakernel, 'threads')
  deadline_s: float = option_fields.share(host.Megakernel, 'deadline_s')
  device: str = option_fields.option(
    'cpu',
    'Device of the layer of --frontend=mindspore; see docs/on_an_npu.md.',
    choices=('cpu', 'ascend'),
  )

  def __post_init__(self):
    if self.framework not in NAMES:
      raise ValueError(
        f'frontend: expected one of {list(NAMES)}, got {self.framework!r}'
      )

  @property
  def name(self) -> str:  # type: ignore[override]
    return f'{self.framework}_layer'

  def ready(self, case, beside='') -> Self:
    """Imports the framework; see `Candidate`.

    Raises:
      ValueError: it is not installed, or has no such device.
    """
    super().ready(case, beside)
    assert self._layer
    return self

  @functools.cached_property
  def _layer(self) -> Framework:
    return _FRAMEWORKS[self.framework](self.device)

  def run(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    inputs: passes.Tensors,
    layer_pass: passes.Pass = passes.FORWARD,
    oracle_tensors: passes.Tensors | None = None,
  ) -> Arrays:
    """See `Candidate`."""
    del oracle_tensors  # It does not replay.
    call = layer_call.LayerCall(
      config,
      policy,
      options=self.options,
      threads=self.threads,
      deadline_s=self.deadline_s,
      scan=True,
    )
    layer_inputs = {name: inputs[name] for name in tensors.INPUTS}
    with failures.report_failures(self.name):
      try:
        if layer_pass is passes.FORWARD:
          return self._layer.forward(call, layer_inputs)
        return self._layer.backward(call, layer_inputs, inputs['dy'])
      except RuntimeError as error:
        message = layer_call.launch_error(str(error)) or error
        raise candidates.CandidateError(f'{self.name}: {message}') from error
