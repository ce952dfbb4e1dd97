"""What the contract asks of inputs; in numpy, for which nothing is compiled."""

from collections.abc import Container, Iterable, Mapping
import sys
from typing import Any

import numpy as np

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.array_typing import Float
from hpmoe.reference.contract.array_typing import Int


def check_inputs(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  inputs: Mapping[str, np.ndarray],
  exempt: Container[str] = (),
) -> None:
  """Refuses inputs that the layer's contract does not cover.

  Args:
    config: sizes.
    policy: its storage dtype.
    inputs: the tensors of `tensors.inputs` by name.
    exempt: those of them that are known to be right, beside ids; they are not
      looked at.

  Raises:
    ValueError: a tensor is missing, has another shape or dtype, is not finite,
      ids are no routing (`check_ids`), or a rank gets more rows than it can
      hold (`check_capacity`).
  """
  names = [name for name in tensors.inputs(config) if name not in exempt]
  check_arrays(config, policy, inputs, names)
  for name in names:
    check_finite(name, inputs[name])
  check_capacity(config, _counts(config, inputs['topk_ids']))


def _counts(
  config: config_lib.MoEConfig, topk_ids: Int[np.ndarray, 'R T K']
) -> Int[np.ndarray, 'R E']:
  """Returns `[R, E]` counts."""
  ids = np.asarray(topk_ids).reshape(config.num_ranks, -1)
  num_experts = config.num_experts
  return np.stack([np.bincount(i[i >= 0], minlength=num_experts) for i in ids])


def check_arrays(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  arrays: Mapping[str, Any],
  names: Iterable[str],
  ranks: int | None = None,
) -> None:
  """Refuses arrays of other shapes or dtypes, and ids that are no routing.

  Free under jit: traced ids are not looked at.  Under a policy in float64 an
  array may be stored narrower, which loses nothing; otherwise not.

  Args:
    config: sizes.
    policy: dtypes.
    arrays: of numpy or JAX, by name; others than `names` are not looked at.
    names: of `tensors.SPECS`.
    ranks: entries of a rank axis; None: R.

  Raises:
    ValueError: an array is missing, has another shape or dtype, or `topk_ids`
      are no routing (`check_ids`); names the first.
  """
  sizes = config.dims() | ({} if ranks is None else {'R': ranks})
  wide = policy.accumulate == 'float64'
  for name in names:
    dims = tensors.SPECS[name].dims(**sizes)
    dtype, value = policy.dtype(name), arrays.get(name)
    expectation = f'{name}: expected {dtype} {list(dims)}'
    if value is None:
      raise ValueError(f'{expectation}, got nothing')
    narrower = storage.FORMATS if wide and dtype != 'int32' else ()
    actual = str(value.dtype)
    if tuple(value.shape) != dims or actual not in (dtype, *narrower):
      raise ValueError(f'{expectation}, got {actual} {list(value.shape)}')
    if name == 'topk_ids' and _is_known(value):
      _check_routing(config, np.asarray(value))


def _is_known(value: Any) -> bool:
  """Returns whether an array is readable: neither traced nor remote."""
  jax = sys.modules.get('jax')
  if jax is None or not isinstance(value, jax.Array):
    return True
  return not isinstance(value, jax.core.Tracer) and value.is_fully_addressable


def check_finite(name: str, value: np.ndarray) -> None:
  """Refuses values that are not finite.

  Raises:
    ValueError: one is not; names the first.
  """
  bad = np.argwhere(~np.isfinite(np.asarray(value)))
  if bad.size:
    index = tuple(int(i) for i in bad[0])
    raise ValueError(
      f'{name}: expected finite values, got {value[index]} at {list(index)}'
    )


def check_ids(
  config: config_lib.MoEConfig, topk_ids: Int[np.ndarray, 'R T K']
) -> None:
  """Refuses `topk_ids` that are not a routing of this layer.

  Raises:
    ValueError: not int32 `[R, T, K]`, an id outside [0, E) that is not
      `tensors.UNUSED`, or an expert twice for one token; names the first.
  """
  ids = {'topk_ids': np.asarray(topk_ids)}
  check_arrays(config, precision.PrecisionPolicy(), ids, ids)


def _check_routing(
  config: config_lib.MoEConfig, ids: Int[np.ndarray, 'R T K']
) -> None:
  is_used = ids != tensors.UNUSED
  outside = np.argwhere(is_used & ((ids < 0) | (ids >= config.num_experts)))
  if outside.size:
    rank, token, slot = outside[0]
    raise ValueError(
      f'topk_ids: expected ids in [0, {config.num_experts}), or '
      f'{tensors.UNUSED} for a slot that is not used, got '
      f'{ids[rank, token, slot]} at rank {rank}, token {token}, slot {slot}'
    )
  ascending = np.sort(ids, axis=-1)
  is_repeated = ascending[..., 1:] == ascending[..., :-1]
  twice = np.argwhere(is_repeated & (ascending[..., 1:] != tensors.UNUSED))
  if twice.size:
    rank, token, place = twice[0]
    raise ValueError(
      'topk_ids: expected every expert at most once for a token, got expert '
      f'{ascending[rank, token, place]} twice at rank {rank}, token {token}'
    )


def check_capacity(
  config: config_lib.MoEConfig, counts: Int[np.ndarray, 'R E']
) -> None:
  """Refuses `counts` `[R, E]` of rows that some rank cannot hold.

  Raises:
    ValueError: a rank gets more than N rows; names the first.
  """
  rows = np.asarray(counts).sum(0).reshape(config.num_ranks, -1).sum(1)
  overfull_ranks = np.flatnonzero(rows > config.num_rows)
  if overfull_ranks.size:
    rank = overfull_ranks[0]
    raise ValueError(
      f'capacity: expected at least {rows[rank]} rows, which is what rank '
      f'{rank} gets, got {config.num_rows}'
    )


def check_scores(scores: Float[np.ndarray, 'R T E']) -> None:
  """Refuses `scores` `[R, T, E]` that no routing weight can come from.

  -inf masks an expert; every token needs one finite score.

  Raises:
    ValueError: a token has a NaN or +inf, or nothing but -inf; names the first.
  """
  best = np.max(np.asarray(scores, np.float32), axis=-1)
  bad = np.argwhere(~np.isfinite(best))
  if bad.size:
    rank, token = bad[0]
    raise ValueError(
      'scores: expected a finite best score for every token, got '
      f'{best[rank, token]} at rank {rank}, token {token}'
    )
