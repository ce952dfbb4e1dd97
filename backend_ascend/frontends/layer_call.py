"""What the front ends share: a call of the layer, and its images by digest.

An image reaches a native handler by the SHA-256 of its bytes, which is all that
a framework's graph holds.  As an attribute or constant, megabytes of image
would be copied, printed and hashed with every compilation.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import hashlib
import os
from typing import Any

import numpy as np

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

FORWARD = layout.Direction.FORWARD
BACKWARD = layout.Direction.BACKWARD

# Ids have no gradient.
GRAD_OF = dict(
  x='dx',
  topk_weights='d_topk_weights',
  w_gate_up='d_w_gate_up',
  w_down='d_w_down',
)


@dataclasses.dataclass(frozen=True)
class LayerCall:
  """What decides a call beside its arrays; hashable, so it can key caches."""

  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  options: granularity.Options = granularity.Options()
  threads: int | None = None
  deadline_s: float = 60.0
  scan: bool = False

  def check(self) -> None:
    """Refuses what no launch would take.

    Raises:
      ValueError: names the field.
    """
    for name, kind in (
      ('config', config_lib.MoEConfig),
      ('policy', precision.PrecisionPolicy),
      ('options', granularity.Options),
    ):
      if not isinstance(getattr(self, name), kind):
        raise ValueError(
          f'{name}: expected a {kind.__name__}, got {getattr(self, name)!r}'
        )
    if self.policy.rows or self.policy.quantised:
      raise ValueError(
        "policy.rows: expected '' of a front end, whose operands are values, "
        f'got {self.policy.rows or self.policy.quantised!r}'
      )
    runtime.require_options(self.threads, self.deadline_s)

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns the shape of a tensor of `tensors.SPECS`."""
    return tensors.SPECS[name].dims(**self.config.dims())

  def dtype(self, name: str) -> str:
    """Returns the name of a tensor's dtype."""
    return self.policy.dtype(name)

  def compile(self, direction: layout.Direction) -> image_lib.Image:
    """Returns the task image of a pass.

    Raises:
      ValueError: sizes, policy or options are out of range.
    """
    forward = direction == FORWARD
    compile_ = (
      compiler.compile_forward if forward else compiler.compile_backward
    )
    return compile_(self.config, self.policy, self.options).image

  def check_array(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Refuses an argument that is not the layer's.

    Raises:
      ValueError: names the argument.
    """
    for field, want, actual in (
      ('dtype', self.dtype(name), dtype),
      ('shape', self.shape(name), shape),
    ):
      if want != actual:
        raise ValueError(f'{name}: expected {field} {want}, got {actual}')


@dataclasses.dataclass(frozen=True)
class Registered:
  """An image that an extension module holds: its digest, and names in order.

  `tensor_names`: the tensors that a launch can take and make; bit i of a mask
  is name i.
  """

  digest: str
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  tensor_names: tuple[str, ...] = ()

  def select(
    self, inputs: Iterable[str], outputs: Iterable[str]
  ) -> 'PartLaunch':
    """Returns the launch that takes some tensors and makes others."""
    takes, makes = (
      sorted({self.tensor_names.index(name) for name in names})
      for names in (inputs, outputs)
    )
    return PartLaunch(
      self.digest,
      inputs=tuple(self.tensor_names[i] for i in takes),
      outputs=tuple(self.tensor_names[i] for i in makes),
      input_mask=sum(1 << i for i in takes),
      output_mask=sum(1 << i for i in makes),
    )


@dataclasses.dataclass(frozen=True)
class PartLaunch:
  """A launch of an image: names in order, and as masks.

  Masks of 0 are those of a launch that takes and makes everything.
  """

  digest: str
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]
  input_mask: int = 0
  output_mask: int = 0


def whole(image: Registered) -> PartLaunch:
  """Returns the launch that takes and makes everything."""
  return PartLaunch(image.digest, image.inputs, image.outputs)


def list_saved(policy: precision.PrecisionPolicy) -> tuple[str, ...]:
  """Returns the tensors that a forward pass makes for its gradient."""
  weighed = ('expert_out',) if policy.placement == 'combine' else ()
  return ('gate_up', 'activation', *weighed)


def gradient_inputs(policy: precision.PrecisionPolicy) -> tuple[str, ...]:
  """Returns what the backward pass reads of inputs and `list_saved`."""
  return (*tensors.INPUTS, *list_saved(policy))


class Images:
  """The images that the extension module of one front end holds, for good."""

  def __init__(self, extension: Any):
    self._extension = extension
    # Compiled once; kept as long as the process, as compiled graphs may be.
    self._compiled = functools.cache(self._compile)

  def register(self, image) -> Registered:
    """Hands a task image, any contiguous buffer, to the extension module.

    Raises:
      ValueError: the image is truncated, corrupt or inconsistent.
    """
    digest = hashlib.sha256(image).hexdigest()
    names = self._extension.register(digest, np.frombuffer(image, np.uint8))
    return Registered(digest, *map(tuple, names))

  def find_image(
    self, call: LayerCall, direction: layout.Direction
  ) -> Registered:
    """Returns the image of a call's pass.

    Raises:
      ValueError: sizes, policy or options are out of range.
    """
    return self._compiled(direction, call.config, call.policy, call.options)

  def prepare(
    self,
    config: config_lib.MoEConfig,
    policy: precision.PrecisionPolicy,
    options: granularity.Options | None = None,
    schedule: schedule_file.Schedule | str | os.PathLike | None = None,
  ) -> None:
    """Compiles both passes of a layer, so that exported graphs of it run here.

    Raises:
      OSError: the file of the schedule cannot be read.
      ValueError: sizes, policy, options or schedule are out of range.
    """
    options = options_of(config, policy, options, schedule)
    for direction in (FORWARD, BACKWARD):
      self.find_image(LayerCall(config, policy, options), direction)

  def _compile(self, direction, config, policy, options) -> Registered:
    return self.register(LayerCall(config, policy, options).compile(direction))


def options_of(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  options: granularity.Options | None,
  schedule: schedule_file.Schedule | str | os.PathLike | None,
) -> granularity.Options:
  """Returns the options of a call: its own, its schedule's, or the host's.

  Raises:
    OSError: the file cannot be read.
    ValueError: there are both, or the schedule is damaged or of another layer.
  """
  if schedule is None:
    return options or granularity.host_options(config)
  if options is not None:
    raise ValueError(
      'options: expected none beside schedule, which has its own'
    )
  return schedule_file.load_options(schedule, config, policy)


def launch_error(text: str) -> str | None:
  """Returns what a launch said, out of MindSpore's words; None if none did."""
  before, separator, after = text.partition('Error message is ')
  if not separator or "'Custom'" not in before:
    return None
  return after.splitlines()[0]


def grads_by_input(grads: Mapping[str, Any], ids: Any) -> tuple[Any, ...]:
  """Returns what a backward launch computed, in the order of INPUTS.

  Args:
    grads: by name.
    ids: stands in for the gradient of topk_ids.
  """
  return tuple(
    grads[GRAD_OF[name]] if name in GRAD_OF else ids for name in tensors.INPUTS
  )
