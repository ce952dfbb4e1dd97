"""A model's operators as an NPU would run them, seen on a CPU.

What computes is a CPU, on weights of zero, and all that this device does in a
way of its own is done as on an NPU.  The megakernel's operators, which no CPU
has, are noted and not run.
"""

import collections
from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import enum
import functools
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import ops as ms_ops
from mindspore import utils as ms_utils
import ml_dtypes
import numpy as np

from hpmoe.backend_ascend.frontends import mindspore_npu
from hpmoe.models import config as config_lib
from hpmoe.models import parameters

# Sizes of `narrow`; a tile of the megakernel fits in the width.
_WIDTH, _HEADS, _WORDS = 128, 2, 512


class Kind(enum.StrEnum):
  """How an operator was asked for.

  A primitive of Python reaches a device only if the log has it too: see
  `eager_log.Log.ran`.
  """

  FUNCTION = 'function'
  PRIMITIVE = 'primitive'
  CUSTOM = 'custom'
  MEGAKERNEL = 'megakernel'


class Operator(NamedTuple):
  """An operator that ran.

  Attributes:
    name: of the operator.
    dtypes: of its tensors, in order; a tuple of some is one.
    kind: how it was asked for.
  """

  name: str
  dtypes: tuple[str, ...]
  kind: Kind


def shortened(config: config_lib.ModelConfig) -> config_lib.ModelConfig:
  """Returns the model's first layers: as many as have all kinds of layers."""
  kinds = [
    (
      config.has_experts(layer),
      config.has_window(layer),
      config.is_linear(layer),
    )
    for layer in range(config.num_hidden_layers)
  ]
  count = 1 + max(kinds.index(kind) for kind in kinds)
  return dataclasses.replace(
    config,
    num_hidden_layers=count,
    layer_types=config.layer_types[:count],
    mlp_only_layers=tuple(n for n in config.mlp_only_layers if n < count),
  )


def narrow(config: config_lib.ModelConfig) -> config_lib.ModelConfig:
  """Returns a model of the same operators, whose weights are small.

  Widths, words and heads do not decide which operators run; what does stays:
  how many queries share a key, experts, groups, and parts of a head.
  """
  sharing = config.num_attention_heads // config.num_key_value_heads
  keys = min(config.num_key_value_heads, _HEADS)
  limits = dict(
    vocab_size=_WORDS,
    hidden_size=_WIDTH,
    intermediate_size=_WIDTH,
    moe_intermediate_size=_WIDTH,
    shared_expert_intermediate_size=_WIDTH,
    q_lora_rank=_WIDTH,
    kv_lora_rank=_WIDTH,
  )
  sizes = {n: min(getattr(config, n) or 0, size) for n, size in limits.items()}
  return dataclasses.replace(
    config,
    num_attention_heads=keys * sharing,
    num_key_value_heads=keys,
    num_global_key_value_heads=min(config.num_global_key_value_heads, keys),
    **sizes | dict(q_lora_rank=sizes['q_lora_rank'] or None),
  )


def zeros(
  config: config_lib.ModelConfig, dtype: str | None = None
) -> dict[str, np.ndarray]:
  """Returns parameters of zero, by name, of `dtype` or the model's."""
  shapes = parameters.parameter_shapes(config, dtype)
  return {n: np.zeros(s.shape, s.dtype) for n, s in shapes.items()}


@contextlib.contextmanager
def recorded() -> Iterator[collections.Counter[Operator]]:
  """Has MindSpore run as on an NPU, and yields what it runs, as it runs.

  For a process that does nothing else.
  """
  operators: collections.Counter[Operator] = collections.Counter()
  mindspore_npu.dry = functools.partial(_Megakernel, operators)
  try:
    with _Recorder(operators):
      yield operators
  finally:
    mindspore_npu.dry = None


class _Recorder(ms_utils.MsDispatchMode):
  """Notes each operator, and runs it."""

  def __init__(self, operators: collections.Counter[Operator]):
    super().__init__()
    self._operators = operators

  def __ms_dispatch__(self, func, args, kwargs=None):
    name, operands, kind = func.name, args, Kind.FUNCTION
    if args and isinstance(args[0], ms_ops.Primitive):
      operands, kind = args[-1], Kind.PRIMITIVE
      if isinstance(args[0], ms_ops.Custom):
        name, kind = str(args[0].func).rpartition(':')[2], Kind.CUSTOM
    self._operators[Operator(name, _dtypes(operands), kind)] += 1
    return func(*args)


class _Megakernel:
  """Notes an operator that a CPU does not have, and returns zeros."""

  def __init__(self, operators, name, shapes, dtypes, kind, reg_info):
    assert kind == 'aot' and reg_info['target'] == 'Ascend'
    self._operators, self._name = operators, name
    self._results = tuple(map(_zero, shapes, dtypes))

  def __call__(self, *operands: ms.Tensor) -> tuple[ms.Tensor, ...]:
    row = Operator(self._name, _dtypes(operands), Kind.MEGAKERNEL)
    self._operators[row] += 1
    return self._results


def _dtypes(operands: Iterable[Any]) -> tuple[str, ...]:
  return tuple(filter(None, map(_dtype, operands)))


def _dtype(operand: Any) -> str | None:
  """Returns that of a tensor, or of some of one dtype; None: of neither."""
  if isinstance(operand, ms.Tensor):
    return str(operand.dtype).lower()
  if isinstance(operand, tuple | list):
    return next(filter(None, map(_dtype, operand)), None)
  return None


def _zero(shape: tuple[int, ...], dtype) -> ms.Tensor:
  name = str(dtype).lower()
  dtype_name = ml_dtypes.bfloat16 if name == 'bfloat16' else name
  return ms.Tensor(np.zeros(shape, dtype_name))
