"""Scales of rows that are an input: drawn so that some elements saturate.

A calibrated scale is one that the rows of a day do not always fit.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised

# Of the largest magnitude that was looked at, what the largest code stands for.
_SHARE = np.float32(0.75)
# Rows of an expert that are looked at.
_MOST_ROWS = 8


def draw_scales(
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  arrays: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
  """Returns `[R, L]` float32, the inputs that `policy.static_scales` names.

  Rows of x have one scale for the layer, as such checkpoints have it, and those
  of the activation one for each expert.

  Args:
    config: sizes.
    policy: has the forms.
    arrays: of the layer: x, ids and weights, as values.
  """
  forms = quantised.row_forms(policy.rows)
  scales = {}
  for name in policy.static_scales:
    rows = name.removesuffix('_scale')
    form = quantised.FORMS[forms[rows]]
    top = np.float32(form.limits[1])
    if not form.is_static:  # scales of groups saturate
      top *= np.float32(quantised.ELEMENTS[form.scale].highest)
    largest = _measure_rows(config, arrays, rows)
    if rows == 'expert_in':
      largest = np.full_like(largest, largest.max())
    scales[name] = np.where(largest > 0, largest * _SHARE, 1) / top
  return scales


def _measure_rows(
  config: config_lib.MoEConfig, arrays: Mapping[str, np.ndarray], rows: str
) -> np.ndarray:
  """Returns `[R, L]` float32, about the largest magnitude; 0: it has no row."""
  largest = np.zeros((config.num_ranks, config.experts_per_rank), np.float32)
  for rank, local, x in _iterate_experts(config, arrays):
    if rows == 'activation':
      with np.errstate(over='ignore', invalid='ignore'):
        gate, up = np.split(
          x @ arrays['w_gate_up'][rank, local].astype(np.float32), 2, -1
        )
        x = np.maximum(gate, 0) * up
    size = np.abs(x).max(initial=0)
    largest[rank, local] = size if np.isfinite(size) else 0
  return largest


def _iterate_experts(
  config: config_lib.MoEConfig, arrays: Mapping[str, np.ndarray]
) -> Iterator[tuple[int, int, np.ndarray]]:
  """Yields rank, expert of the rank, and some of its rows `[n, D]` float32."""
  ids = arrays['topk_ids']
  for expert in range(config.num_experts):
    source, token, _ = np.nonzero(ids == expert)
    if len(token):
      tokens = source[:_MOST_ROWS], token[:_MOST_ROWS]
      rank, local = divmod(expert, config.experts_per_rank)
      yield rank, local, arrays['x'][tokens].astype(np.float32)
