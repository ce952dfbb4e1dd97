"""A run of a model here on the tokens of a dump, as a dump would hold it."""

from collections.abc import Callable
import dataclasses

import numpy as np

from hpmoe.models import parameters
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.agreement import forced_decoder
from hpmoe.parity_tests.agreement import runs
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.compare import run_steps
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.reference.contract import array_typing as at

# Names of a layer's slabs in transformers 5, `[out, in]`.
_SLABS = dict(w_gate_up='gate_up_proj', w_down='down_proj')


@dataclasses.dataclass(frozen=True)
class WeightTensor:
  """A parameter of a folder, as a module of transformers 5 holds it.

  Attributes:
    weights: of the folder.
    name: of the parameter.
    dtype: in which the run has it.
  """

  weights: weights_lib.Weights
  name: str
  dtype: str

  def read(self) -> np.ndarray:
    """Returns it; experts are transposed."""
    array = self.weights.read(self.name)
    array = array.astype(run_steps.find_dtype(self.dtype))
    is_slab = parameters.is_of_experts(self.name)
    return array.swapaxes(-1, -2) if is_slab else array


def run_model(
  weights: weights_lib.Weights,
  tokens: at.Int[np.ndarray, 'B S'],
  place: str = '',
  dtype: str = 'float64',
  progress: Callable[[str], None] = lambda name: None,
) -> runs.Run:
  """Returns what a decoder computes of tokens.

  Args:
    weights: of the model.
    tokens: `[B, S]`.
    place: what reports call the run.
    dtype: in which it computes.
    progress: called with each module's name before it is computed.
  """
  slots = forced_decoder.compute_slots(weights, tokens, {}, dtype, progress)
  tensors: dict[str, tensor_files.ArrayTensor | WeightTensor] = {
    _name(path, rest): tensor_files.ArrayTensor(array)
    for (path, rest), array in slots.items()
  }
  for name in weights.specs:
    path, _, last = name.rpartition('.')
    rest = f'parameters.{_SLABS.get(last, last)}'
    tensors[_name(path, rest)] = WeightTensor(weights, name, dtype)
  return runs.read_run(place, tensors, dump_layers.read_kinds())


def _name(path: str, rest: str) -> str:
  module = 'Experts' if path.endswith('.experts') else 'Module'
  return f'{path}.{module}.forward.0.{rest}'
