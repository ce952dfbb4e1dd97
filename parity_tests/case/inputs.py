"""Inputs of one check: real or exact data on a named routing, or a file."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import os
from typing import Any

import numpy as np

from hpmoe.parity_tests.cache import cached_results
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case import text_router
from hpmoe.parity_tests.case.values import deferred
from hpmoe.parity_tests.case.values import exact_data
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import exact_proof
from hpmoe.parity_tests.case.values import magnitudes
from hpmoe.parity_tests.case.values import real_data
from hpmoe.parity_tests.case.values import static_scales
from hpmoe.parity_tests.case.values import unusual_values
from hpmoe.parity_tests.case.values import wide_data
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.config import MoEConfig
from hpmoe.reference.contract.precision import PrecisionPolicy

DATA = passes.DATA

ROUTINGS = ('text', *routings.GENERATORS, *routings.DROPPING)
_CAPACITY_STEP = 16


@dataclasses.dataclass(frozen=True)
class LayerInputs:
  """All inputs of one layer, and their origin.

  Attributes:
    config: sizes.
    policy: precision.
    arrays: the tensors of `tensors.inputs` and dy by name, in their stored
      dtypes; exact data have dy only if the backward pass is exact too.
    routing: name of the routing, or the path of its file.
    facts: facts for a report: seed, origin, skew.
    data: one of `DATA`.
  """

  config: MoEConfig
  policy: PrecisionPolicy
  arrays: Mapping[str, np.ndarray]
  routing: str
  facts: Mapping[str, object]
  data: str = 'real'

  def with_policy(self, **fields: Any) -> 'LayerInputs':
    """Returns the same layer with other fields of its policy.

    Raises:
      ValueError: the policy has no such value.
    """
    policy = dataclasses.replace(self.policy, **fields)
    return dataclasses.replace(
      self, policy=policy, arrays=_cast_to_storage(policy, self.arrays)
    )

  def with_codes(
    self, weights: str, x: str = '', seed: int = 0
  ) -> 'LayerInputs':
    """Returns the same layer with quantised expert weights or x; '': neither.

    Whole numbers keep their values, see `quantised_inputs.factor_exactly`.

    Raises:
      ValueError: codes do not fill words.
    """
    forms = quantised_inputs.make_forms(weights, x)
    present = quantised_inputs.select_forms(forms, self.arrays)
    forms = {
      n: form
      for n, form in forms.items()
      if n in self.arrays and n not in present
    }
    if not forms:
      return self
    if self.data == 'real':
      arrays = quantised_inputs.quantise_values(forms, self.arrays)
    else:
      arrays = quantised_inputs.factor_exactly(forms, self.arrays, seed)
    quantised = dataclasses.replace(self, arrays=arrays)
    return quantised.with_policy(quantised=weights, x_form=x)

  def with_static_scales(self) -> 'LayerInputs':
    """Returns the same layer with scales of rows that are inputs.

    Missing scales are drawn.

    Raises:
      ValueError: the policy lacks a scale, or a scale is not above 0 or has a
        wrong shape or dtype; rows do not fill bytes; or there are shared
        experts, which have no such scale.
    """
    quantised_inputs.check_row_widths(self.policy, **self.config.dims())
    names, d_shared = self.policy.static_scales, self.config.d_shared
    if names and d_shared:
      raise ValueError(
        f'd_shared: expected 0 with rows={self.policy.rows}, whose scales are '
        'an input for each routed expert; judge shared experts as a layer of '
        f'their own, with --experts=1 --top_k=1 --d_ff={d_shared} and one '
        f'rank; got {d_shared}'
      )
    present = [s.name for s in tensors.STATIC_SCALES if s.name in self.arrays]
    for name in present:
      if name not in names:
        raise ValueError(
          f'{name}: expected none without --rows of a static form, got '
          f'{self.policy.rows!r}'
        )
      if not (np.asarray(self.arrays[name]) > 0).all():
        raise ValueError(f'{name}: expected scales above 0, got others')
    checks.check_arrays(self.config, self.policy, self.arrays, present)
    if {*present} == {*names}:
      return self
    scales = static_scales.draw_scales(self.config, self.policy, self.arrays)
    return dataclasses.replace(self, arrays={**scales, **self.arrays})


def make_inputs(
  preset: presets.Preset,
  ranks: int,
  tokens: int | None = None,
  dtype: str = 'float32',
  routing: str = 'text',
  seed: int = 0,
  text: str | os.PathLike[str] | None = None,
  placement: str = 'combine',
  capacity: int | None = None,
  bias: bool = False,
  limit: float = 0.0,
  d_shared: int = 0,
  coded: bool = False,
  least_range: str | None = None,
  row_form: quantised.Form | None = None,
) -> LayerInputs:
  """Returns seeded inputs whose sums are all of order one.

  For any number of ranks the R * T tokens and the experts are the same, in
  another distribution.

  Args:
    preset: the shape.
    ranks: R.
    tokens: T instead of the preset's.
    dtype: storage, one of `exact_limits.STORAGE`.
    routing: one of `ROUTINGS`, or the path of a file with `topk_ids`.
    seed: of all values.
    text: path of the text that x embeds; None means the one shipped.
    placement: where the routing weight multiplies.
    capacity: N; None means what the fullest rank receives, rounded up as the
      preset's `capacity_step` says, so that there is always empty space.
    bias: whether both GEMMs add a bias.
    limit: the activation's limit, which some values of up exceed; 0: none.
    d_shared: S, of the shared experts, the same on all ranks; 0: none.
    coded: whether weights or rows are quantised later, which narrows ranges.
    least_range: the dtype with the smallest range of all tensors and rounding
      points; None: `dtype`.
    row_form: the form to which a kernel quantises x; None: none.

  Raises:
    ValueError: an argument, a file or the data are wrong;
      `exact_limits.ExactnessError` is such an error.
  """
  if dtype not in exact_limits.STORAGE:
    raise ValueError(
      f'dtype: expected one of {list(exact_limits.STORAGE)}, got {dtype!r}'
    )
  policy = PrecisionPolicy(storage=dtype, placement=placement)
  config = presets.config(preset, ranks, tokens, capacity)
  config = dataclasses.replace(config, bias=bias, d_shared=d_shared)
  x = text_router.embed(config, text_router.read_text(text), seed)
  routed = _route(preset.router, config, routing, x, seed)
  has_others = config.num_experts >= config.top_k + 2
  if preset.starved and has_others and routing in ROUTINGS:
    routed = routings.starve_experts(routed, config)
  config = with_capacity(config, routed.topk_ids, preset.capacity_step)
  facts: dict[str, object] = dict(
    seed=seed,
    preset=preset.name,
    text=str(text or text_router.DEFAULT_TEXT.name),
    note=routed.note,
    **routings.measure_skew(config, routed.topk_ids),
  )
  storage = exact_limits.STORAGE[dtype]
  arrays: Mapping[str, np.ndarray]
  if config.sublayer:
    arrays = small_arrays = real_data.draw_sublayer(
      config, storage, routed, seed
    )
  else:
    is_own = routing in ROUTINGS and preset.is_routed
    plan = functools.partial(
      magnitudes.plan_magnitudes,
      storage=exact_limits.STORAGE.get(least_range or dtype, storage),
      limit=limit,
      coded=coded,
      weighted=is_own,
    )
    scales = plan(config)
    x = unusual_values.change_x((x * scales.x).astype(storage), seed)
    if row_form is not None:
      x = unusual_values.plant_ties(x, row_form)
    small_arrays = dict(
      x=x,
      topk_ids=routed.topk_ids,
      topk_weights=(
        unusual_values.change_weights(routed, scales.experts)
        if is_own
        else routed.topk_weights
      ),
      **real_data.draw_biases(config, storage, seed, scales),
      **real_data.draw_shared(config, storage, seed, plan),
      dy=real_data.draw_dy(config, storage, seed, scales),
    )
    experts = np.unique(routed.topk_ids[routed.topk_ids >= 0])
    draw = functools.partial(
      real_data.draw_weights, config, storage, seed, scales, experts
    )
    arrays = deferred.DeferredArrays(small_arrays, real_data.WEIGHTS, draw)
    real_data.refuse_overflow(storage, scales)
  # Drawn weights need no check: shapes are right and values finite.
  later_names = () if config.sublayer else real_data.WEIGHTS
  checks.check_inputs(config, policy, small_arrays, later_names)
  return LayerInputs(config, policy, arrays, routing, facts)


def with_data(
  real_inputs: LayerInputs, data: str, backward: bool, seed: int
) -> LayerInputs:
  """Returns data of another kind on the same routing.

  Args:
    real_inputs: real inputs.
    data: one of `DATA` but 'real'.
    backward: whether the backward pass is to be exact too.
    seed: of the values.

  Raises:
    exact_data.ExactnessError: no such data suit the layer.
  """
  policy = dataclasses.replace(real_inputs.policy, activation='absolute')
  make: Callable = functools.partial(exact_data.make, backward=backward)
  if data == 'wide':
    make = functools.partial(wide_data.make, backward=backward)
    policy = dataclasses.replace(policy, limit=0.0, offset=0.0)
  ids = real_inputs.arrays['topk_ids']
  # Cached data were proved exact when they were drawn.
  arrays = cached_results.get_or_compute(
    __package__,
    (data, backward, seed, real_inputs.config, policy),
    [ids],
    lambda: make(real_inputs.config, policy, ids, seed)[0],
  )
  return dataclasses.replace(
    real_inputs,
    policy=policy,
    arrays=_cast_to_storage(policy, arrays),
    data=data,
  )


def _cast_to_storage(
  policy: PrecisionPolicy, arrays: Mapping[str, np.ndarray]
) -> Any:
  """Returns inputs, each in the dtype of the policy."""
  if isinstance(arrays, deferred.DeferredArrays):
    return arrays.convert(functools.partial(_cast_to_storage, policy))
  # Codes and scales have a dtype of their own.
  dtypes = {n: policy.dtype(n) for n in arrays if n in tensors.SPECS}
  return {
    n: a.astype(storage.FORMATS[dtypes[n]].numpy, copy=False)
    if dtypes.get(n) in storage.FORMATS
    else a
    for n, a in arrays.items()
  }


def with_weights(inputs: LayerInputs, dtype: str) -> LayerInputs:
  """Returns the same inputs with routing weights rounded to a narrow dtype.

  They stay float32, with values of the narrow dtype.

  Raises:
    exact_data.ExactnessError: exact data are not exact any more.
  """
  weights = inputs.arrays['topk_weights']
  rounded = weights.astype(storage.FORMATS[dtype].numpy).astype(np.float32)
  if np.array_equal(rounded, weights):
    return inputs
  arrays = {**inputs.arrays, 'topk_weights': rounded}
  if inputs.data != 'real':
    exact_proof.prove(inputs.config, inputs.policy, arrays)
  facts = {**inputs.facts, 'topk_weights': f'rounded to {dtype}'}
  return dataclasses.replace(inputs, arrays=arrays, facts=facts)


def _route(router, config, routing, x, seed) -> routings.TokenRouting:
  if routing == 'text':
    scores = text_router.gate_scores(config, x, seed)
    return text_router.route(config, router, scores, seed)
  if routing in ROUTINGS:
    return routings.make(routing, config, seed)
  if os.path.splitext(routing)[1] in tensor_files.SUFFIXES:
    return routings.load(routing, config, seed)
  beside = f' or a file that ends in one of {list(tensor_files.SUFFIXES)}'
  expected = messages.refuse_choice(ROUTINGS, routing, beside=beside)
  raise ValueError(f'routing: {expected}')


def with_capacity(config, topk_ids, step=_CAPACITY_STEP) -> MoEConfig:
  if config.capacity is not None:
    return config
  max_rows = int(routings.measure_skew(config, topk_ids)['max_rows_of_rank'])
  steps = max_rows // step + 1
  # An even number of odd steps may be what a block divides, after all.
  steps += step % 2 and steps % 2 == 0
  return dataclasses.replace(config, capacity=steps * step)
