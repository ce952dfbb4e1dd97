"""Where in its rank a stage is wrong, in words."""

import itertools
import math

import numpy as np

from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import failed_stage
from hpmoe.parity_tests.judge import verdicts

# Of tokens that a block of a kernel takes, the largest first.
_MULTIPLES = (128, 64, 32, 16, 8, 4)
# Fewer wrong rows say nothing of their experts.
_FEWEST_ROWS = 3
# A pair of experts says nothing of more than this share of wrong rows, nor
# where fewer rows than for each of them are right.
_MOST_WRONG = 0.75
# More experts are not paired.
_MOST_SUSPECTS = 24
_ROWS_OF_EXPERTS = 'only in rows of expert'


def locate_nan_gates(stage: failed_stage.FailedStage) -> str:
  """Returns for which values of the gate the activation is NaN, or ''."""
  gate_up = stage.reads[stage.name].get('gate_up')
  if gate_up is None or stage.name != 'activation':
    return ''
  rows = stage.tiling.rows
  gate = rows('gate_up', gate_up, stage.rank)[:, : stage.actual.shape[-1]]
  gate = gate.astype(np.float64)
  nan = np.isnan(rows(stage.name, stage.actual, stage.rank).astype(np.float64))
  if nan.all() or not nan.any():
    return ''
  if gate[nan].max() < gate[~nan].min():
    return f'NaN where gate is {gate[nan].max():.4g} or less'
  if gate[nan].min() > gate[~nan].max():
    return f'NaN where gate is {gate[nan].min():.4g} or more'
  return ''


def locate(stage: failed_stage.FailedStage) -> str:
  """Returns where in its rank a stage is wrong; '' if that tells nothing."""
  bad = stage.tiling.rows(stage.name, stage.bad, stage.rank)
  cut = stage.tiling.cut(stage.name, stage.rank)
  experts = _describe_experts(stage)
  rows = (
    _describe_unserved(stage)
    or _describe_tokens(stage, bad.any(axis=1))
    or _describe_rows(cut, bad.any(axis=1))
  )
  parts = [
    # Experts of all ranks say what those of one rank do.
    '' if experts and rows.startswith(_ROWS_OF_EXPERTS) else rows,
    _describe_stretch('column', bad.any(axis=0)),
    experts or _describe_rank(stage),
  ]
  return ', '.join(part for part in parts if part)


def find_experts(stage: failed_stage.FailedStage) -> tuple[int, ...]:
  """Returns one or two experts whose rows or tokens, and no others, are wrong.

  Returns () if it is none, or more.
  """
  wrong = _count_wrong_slots(stage)
  if wrong is None:
    return ()
  experts, is_wrong, is_served = wrong
  candidates = [e for e in range(experts.max() + 1) if (experts == e).any()]
  takers = {e: (experts == e) & is_served for e in candidates}
  # Whoever has a right row is not among them.
  suspects = [
    e
    for e in candidates
    if takers[e].any() and not (takers[e].any(axis=-1) & ~is_wrong).any()
  ]
  for count in (1, 2):
    for group in itertools.combinations(suspects[:_MOST_SUSPECTS], count):
      is_chosen = np.any([takers[e].any(axis=-1) for e in group], axis=0)
      if np.array_equal(is_chosen, is_wrong):
        return group
  return ()


def _count_wrong_slots(
  stage: failed_stage.FailedStage,
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
  """Returns experts `[n, k]` of rows, which rows are wrong, and which count.

  Rows of all ranks: a token's have an expert for each slot, whose weight is not
  0; others have one.  None: their numbers differ, or every row that has an
  expert is wrong.
  """
  tiling = stage.tiling
  ranks = range(len(stage.bad))
  if stage.name in ('y', 'dx'):
    experts = tiling.topk_ids.reshape(-1, tiling.topk_ids.shape[-1])
    is_wrong = stage.bad.reshape(len(experts), -1).any(axis=1)
    is_served = experts >= 0
    weights = stage.reads[stage.name].get('topk_weights')
    if weights is not None:
      is_served &= weights.reshape(experts.shape) != 0
  else:
    cuts = [tiling.cut(stage.name, rank) for rank in ranks]
    rows = [np.repeat(cut.expert, np.diff(cut.starts)) for cut in cuts]
    experts = np.concatenate(rows)[:, None]
    bad = [tiling.rows(stage.name, stage.bad, rank) for rank in ranks]
    is_wrong = np.concatenate([b.any(axis=1) for b in bad])
    is_served = experts != tiles.NO_EXPERT
  if len(is_wrong) != len(experts) or is_wrong[is_served.any(axis=-1)].all():
    return None
  return experts, is_wrong, is_served


def _describe_experts(stage: failed_stage.FailedStage) -> str:
  """Returns which experts all wrong rows, and no others, belong to, or ''."""
  group = find_experts(stage)
  wrong = _count_wrong_slots(stage)
  if not group or wrong is None or not _is_telling(wrong[1], len(group)):
    return ''
  names = ' or '.join(map(str, group))
  if stage.name in ('y', 'dx'):
    return f'{verdicts.GUILTY_TOKENS} {names}'
  noun = f'{_ROWS_OF_EXPERTS}{"s" * (len(group) > 1)}'
  return f'{noun} {" and ".join(map(str, group))}'


def _is_telling(is_wrong: np.ndarray, count: int) -> bool:
  """Says whether rows that are wrong `[n]` are hardly an expert's by chance.

  Where nearly all are wrong, some pair of experts has all of them.
  """
  wrong, right = int(is_wrong.sum()), int((~is_wrong).sum())
  if count > 1 and wrong > _MOST_WRONG * len(is_wrong):
    return False
  return min(wrong, right) >= count * _FEWEST_ROWS


def _describe_tokens(stage: failed_stage.FailedStage, bad: np.ndarray) -> str:
  """Returns which tokens are wrong in words of tokens, or ''."""
  if stage.name not in ('y', 'dx'):
    return ''
  positions = np.flatnonzero(bad)
  first = int(positions[0]) if len(positions) else 0
  is_tail = len(positions) > 0 and bad[first:].all() and first > 0
  for multiple in _MULTIPLES if is_tail else ():
    if len(bad) // multiple * multiple == first:
      return f'only in tokens past a multiple of {multiple}'
  return ''


def _describe_unserved(stage: failed_stage.FailedStage) -> str:
  """Returns that wrong tokens are those without an expert, or ''."""
  if stage.name not in ('y', 'dx'):
    return ''
  is_served = (stage.tiling.topk_ids >= 0).any(axis=-1)
  is_wrong = stage.bad.reshape(*is_served.shape, -1).any(axis=-1)
  if not is_wrong.any() or (is_wrong & is_served).any():
    return ''
  return 'only in tokens without an expert'


def _describe_rank(stage: failed_stage.FailedStage) -> str:
  ranks = [
    rank
    for rank in range(len(stage.bad))
    if stage.tiling.rows(stage.name, stage.bad, rank).any()
  ]
  has_others = len(stage.bad) > len(ranks) == 1
  return f'only on rank {stage.rank}' if has_others else ''


def _describe_stretch(noun: str, bad: np.ndarray) -> str:
  positions = np.flatnonzero(bad)
  if len(positions) in (0, len(bad)):
    return ''
  if len(positions) == 1:
    return f'only in {noun} {positions[0]}'
  if len(positions) == positions[-1] - positions[0] + 1 and (bad[0] or bad[-1]):
    return (
      f'only in the {"first" if bad[0] else "last"} {len(positions)} {noun}s'
    )
  return ''


def _describe_rows(cut: tiles.Cut, bad: np.ndarray) -> str:
  """Returns which rows are wrong, or '' if no words fit."""
  positions = np.flatnonzero(bad)
  if len(positions) in (0, len(bad)):
    return ''
  if len(positions) == 1:
    return f'only in row {positions[0]}'
  expert = np.repeat(cut.expert, np.diff(cut.starts))
  tile_rows = {*(np.searchsorted(cut.starts, positions, 'right') - 1)}
  if len(tile_rows) == 1 and (cut.expert == expert[positions[0]]).sum() > 1:
    block = cut.block[tile_rows.pop()]
    return f'only in row block {block}{_of_expert(expert[positions[0]])}'
  if len({*expert}) > 1 and len({*expert[positions]}) == 1:
    return f'{_ROWS_OF_EXPERTS} {expert[positions[0]]}'
  ends = _find_tails(expert, bad)
  if ends:
    return ends
  every_second = np.array_equal(
    positions, np.arange(positions[0] % 2, len(bad), 2)
  )
  if every_second and len(positions) > 2:
    return f'only in {"odd" if positions[0] else "even"} rows'
  return _describe_stretch('row', bad)


def _of_expert(expert: int) -> str:
  return '' if expert == tiles.NO_EXPERT else f' of expert {expert}'


def _find_tails(expert: np.ndarray, bad: np.ndarray) -> str:
  """Returns words if only the last rows of experts are wrong, or ''."""
  starts, whole = [], 0
  for expert_id in np.unique(expert):
    expert_bad = bad[expert == expert_id]
    first = int(np.argmax(expert_bad))
    if not expert_bad.any():
      continue
    if not expert_bad[first:].all():
      return ''
    starts.append(first)
    whole += first == 0
  if whole == len(starts):
    return ''
  multiple = math.gcd(*starts)
  past = f', past a multiple of {multiple}' if multiple > 1 else ''
  return f'only in the last rows of experts{past}'
