"""One test of the operator, which every implementation of it inherits.

The oracle is a layer in numpy, which shares no code with a backend; golden
values and bounds are those of a check.
"""

import dataclasses
import functools

import numpy as np
import pytest

from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.parity_tests.ascend import host
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import trial_testing
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# Blocks that divide nothing, and several workers.
OPTIONS = granularity.Options(
  row_block=8, col_block=16, chain_rows=8, num_aic=2, num_aiv=3
)


@dataclasses.dataclass(frozen=True)
class Layer:
  """A layer.

  Attributes:
    sizes: R, T, E, K, D and F.
    storage, placement: of its policy.
    routing: see `runtime_testing.make_ids`.
  """

  sizes: tuple[int, int, int, int, int, int]
  storage: str = 'float32'
  placement: str = 'combine'
  routing: str = 'uniform'

  @property
  def config(self) -> config_lib.MoEConfig:
    return config_testing.make_config(**dict(zip('rtekdf', self.sizes)))

  def policy(self, activation: str) -> precision.PrecisionPolicy:
    return precision.PrecisionPolicy(
      self.storage, placement=self.placement, activation=activation
    )


# What a kernel may get wrong at one size, dtype or routing alone.
LAYERS = {
  'odd_sizes': Layer((2, 13, 4, 2, 17, 13), 'bfloat16'),
  'one_of_everything': Layer((1, 1, 1, 1, 1, 1)),
  'one_expert_a_token': Layer((2, 9, 4, 1, 8, 6), 'float16'),
  'every_expert': Layer((2, 5, 4, 4, 8, 8), 'bfloat16', 'before_down'),
  'experts_without_rows': Layer((2, 9, 6, 2, 8, 6), routing='empty_experts'),
  'every_row_on_one_rank': Layer((4, 5, 8, 2, 16, 12), routing='one_rank'),
  'a_long_expert': Layer(
    (2, 21, 4, 2, 24, 20), 'bfloat16', routing='one_expert_first'
  ),
  'weights_before_down': Layer((2, 9, 4, 2, 17, 13), placement='before_down'),
  'weights_in_the_epilogue': Layer(
    (2, 9, 4, 2, 16, 12), 'bfloat16', 'epilogue'
  ),
  'eight_ranks': Layer((8, 3, 8, 2, 8, 6)),
}


@dataclasses.dataclass(frozen=True)
class Data:
  """Inputs of both passes, and what the oracle computes from them."""

  layer: Layer
  policy: precision.PrecisionPolicy
  inputs: dict[str, np.ndarray]
  outputs: dict[str, np.ndarray]
  tiling: tiles.Tiling


@functools.cache
def make_data(name: str, activation: str) -> Data:
  """Returns data of a layer: small integers if the activation is 'absolute'."""
  layer, exact = LAYERS[name], activation == 'absolute'
  config, policy = layer.config, layer.policy(activation)
  inputs, other_inputs = (
    runtime_testing.make_inputs(config, policy, layer.routing, exact, part)
    for part in ('', 'dy')
  )
  kernel = trial_testing.Kernel()
  forward = kernel.forward(config, policy, inputs)
  inputs |= dict(dy=other_inputs['x'])
  grads = kernel.backward(config, policy, inputs | forward)
  tiling = trial_testing.tiling(config, inputs)
  return Data(layer, policy, inputs | forward, forward | grads, tiling)


def name_differing(data: Data, outputs, expected) -> list[str]:
  """Returns the tensors whose rows have other bits than expected."""
  return [
    name
    for name in outputs.keys() & expected.keys()
    for rank in range(data.tiling.config.num_ranks)
    if data.tiling.rows(name, outputs[name], rank).tobytes()
    != data.tiling.rows(name, expected[name], rank).tobytes()
  ]


def name_out_of_bounds(data: Data, outputs, layer_pass) -> list[str]:
  """Returns the tensors with an error above the a-priori rounding bound."""
  names = tensors.STAGES if layer_pass is passes.FORWARD else tensors.GRADS
  own_tensors = {name: outputs[name] for name in names if name in outputs}
  golden = pass_reference.build_golden(
    layer_pass, data.tiling, data.policy, data.inputs, own_tensors
  )
  return [
    name
    for name, array in own_tensors.items()
    if tile_lanes.out_of_bound(name, array, golden, with_spread=False).any()
  ]


class OperatorTests:
  """What holds of every implementation; a test class of each inherits it.

  Attributes:
    candidate: the implementation.
    lacks: layers that it refuses.
    is_host: whether its sums are those of the host's kernels, bit for bit.
  """

  candidate: candidates.Candidate
  lacks: tuple[str, ...] = ()
  is_host = True

  def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
    """Runs each test on each layer, in both passes."""
    if 'layer_pass' in metafunc.fixturenames:
      names = [name for name in LAYERS if name not in self.lacks]
      both_passes = passes.from_direction('both')
      metafunc.parametrize('layer_pass', both_passes, ids=lambda p: p.name)
      metafunc.parametrize('name', names)

  def run(self, data: Data, inputs, layer_pass) -> dict[str, np.ndarray]:
    """Returns what the implementation computes, with a pass's results."""
    outputs = self.candidate.run(
      data.layer.config, data.policy, inputs, layer_pass
    )
    assert outputs.keys() >= {*layer_pass.results}
    return outputs

  def test_exact_data_have_the_bits_of_the_oracle(self, name, layer_pass):
    data = make_data(name, 'absolute')

    outputs = self.run(data, data.inputs, layer_pass)

    assert not name_differing(data, outputs, data.outputs)

  def test_real_data_are_right(self, name, layer_pass):
    # Given real data, then the host and the twin are within the rounding
    # bounds of golden values, and others have the host's bits.
    data = make_data(name, 'swiglu')
    if not self.is_host:
      outputs = self.run(data, data.inputs, layer_pass)
      assert not name_out_of_bounds(data, outputs, layer_pass)
      return
    launch = functools.partial(
      host.Megakernel(OPTIONS).run, data.layer.config, data.policy
    )
    inputs = data.inputs | launch(data.inputs)  # what a forward pass saves

    outputs = self.run(data, inputs, layer_pass)

    assert not name_differing(data, outputs, launch(inputs, layer_pass))
