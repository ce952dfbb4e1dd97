"""Inputs of a layer, and the verdicts of lane bounded on trial kernels."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import pass_reference
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tile_lanes
from hpmoe.parity_tests.judge.lanes import tolerance_lanes
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def judge_results(
  inputs: inputs_lib.LayerInputs,
  outputs: trial.Arrays,
  right_outputs: trial.Arrays | None = None,
) -> dict[tuple[str, str], verdicts.Result]:
  """Returns lane bounded's verdicts on results of a fused layer.

  Args:
    inputs: what the kernel was given; `saved` as well if it went backward.
    outputs: what it returned, some results of one pass.
    right_outputs: what a right one does; only narrow storage asks.

  Returns:
    Verdicts by name and rule.
  """
  results = []
  for name, tensor in outputs.items():
    row = verdicts.LAYERS[name]
    beside = None if right_outputs is None else right_outputs[name]
    layer = _golden(inputs, name, {})
    results += tile_lanes.tolerances(
      row, tensor, layer, None, (), stored_oracle=beside
    )
  return {
    (verdicts.tensor_of(result.stage), result.rule): result
    for result in results
  }


def judge_stages(
  inputs: inputs_lib.LayerInputs, outputs: trial.Arrays
) -> dict[tuple[str, str], verdicts.Result]:
  """Returns lane bounded's verdicts on stages, each from those before it.

  As `judge_results`; `outputs` holds every stage of one pass.
  """
  results = []
  for name, tensor in outputs.items():
    golden = _golden(inputs, name, outputs)
    results += tile_lanes.tolerances(name, tensor, golden, None, ())
  return {(result.stage, result.rule): result for result in results}


def _golden(inputs: inputs_lib.LayerInputs, name: str, sources: trial.Arrays):
  layer_pass = verdicts.pass_of(name)
  tiles_of_layer = trial.tiling(inputs.config, inputs.arrays)
  return pass_reference.build_golden(
    layer_pass, tiles_of_layer, inputs.policy, inputs.arrays, sources
  )


def failed_edges(
  forward_inputs: inputs_lib.LayerInputs, seed: int
) -> list[verdicts.Result]:
  """Returns what `edges` refuses of a right kernel; both passes.

  Each stage is judged as if none before it had been returned.  The kernel and
  the one that stands in for the oracle sum in orders of the seed.
  """
  orders = list(trial.ORDERS.values())
  own, candidate = (
    trial.Kernel(
      orders[(seed + i * (1 + seed // len(orders) % 5)) % len(orders)]
    )
    for i in range(2)
  )
  results = []
  for layer_pass, inputs in (
    (passes.FORWARD, forward_inputs),
    (passes.BACKWARD, with_saved(forward_inputs)),
  ):
    arguments = inputs.config, inputs.policy, inputs.arrays
    oracle_tensors, other = (
      kernel.forward(*arguments)
      if layer_pass is passes.FORWARD
      else kernel.backward(*arguments)
      for kernel in (own, candidate)
    )
    case = pass_case.PassCase(
      layer_pass.of_layer(inputs.config),
      inputs,
      trial.tiling(inputs.config, inputs.arrays),
      dict,
    )
    results += [
      tile_lanes.within_edges(
        name,
        other[name],
        tolerance_lanes.build_chain(case, name, {}, oracle_tensors),
      )
      for name in case.layer_pass.stages
      if case.sources[name]
    ]
  return [result for result in results if result.verdict == verdicts.FAIL]


def with_saved(inputs: inputs_lib.LayerInputs) -> inputs_lib.LayerInputs:
  """Returns inputs with what a right forward pass saves for the backward."""
  forward = trial.Kernel(trial.pairwise).forward(
    inputs.config, inputs.policy, inputs.arrays
  )
  return dataclasses.replace(inputs, arrays={**inputs.arrays, **forward})


def draw(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  seed: int,
) -> inputs_lib.LayerInputs:
  """Returns inputs of a layer: normal, weights over the root of their fan-in.

  Routing is uniform, and the capacity whatever `config` has.
  """
  rng = np.random.default_rng(seed)
  ranks, tokens, local = (
    config.num_ranks,
    config.num_tokens,
    config.experts_per_rank,
  )
  width, hidden = config.d_model, config.d_ff

  def normal(*shape: int, fan_in: int = 1) -> np.ndarray:
    values = rng.standard_normal(shape, np.float32) / np.float32(fan_in**0.5)
    return values.astype(ulp.storage_dtype(policy.storage))

  scores = rng.random((ranks, tokens, config.num_experts))
  weights = rng.random((ranks, tokens, config.top_k)).astype(np.float32) + 0.1
  arrays = dict(
    x=normal(ranks, tokens, width),
    topk_ids=np.argsort(scores, axis=-1)[..., : config.top_k].astype(np.int32),
    topk_weights=weights / weights.sum(-1, keepdims=True),
    w_gate_up=normal(ranks, local, width, 2 * hidden, fan_in=width),
    w_down=normal(ranks, local, hidden, width, fan_in=hidden),
    dy=normal(ranks, tokens, width),
  )
  if config.bias:
    arrays['b_gate_up'] = normal(ranks, local, 2 * hidden, fan_in=4)
    arrays['b_down'] = normal(ranks, local, width, fan_in=4)
  for name, fan_in in (
    ('w_shared_gate_up', width),
    ('w_shared_down', config.d_shared),
  ):
    if config.d_shared:
      shape = tensors.SPECS[name].dims(**config.dims())
      arrays[name] = normal(*shape, fan_in=fan_in)
  if policy.limit:
    # Some of gate and up are beyond it.
    arrays['w_gate_up'][..., ::4] *= policy.limit
  return inputs_lib.LayerInputs(config, policy, arrays, 'uniform', {})


def share_of_seed(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  seed: int,
  backward: bool = False,
) -> float:
  """Returns the most that a right kernel uses of a limit of lane bounded.

  Seeds take the orders of summation in turn; its results are held to another's.
  """
  inputs = draw(config, policy, seed)
  if backward:
    inputs = with_saved(inputs)
  orders = list(trial.ORDERS.values())
  outputs, right_outputs = (
    trial.Kernel(orders[(seed + i) % len(orders)]).results(inputs, backward)
    for i in range(2)
  )
  results = judge_results(inputs, outputs, right_outputs).values()
  return max(result.values['error_of_bound'] for result in results)
