"""What came of two runs: a table by layer, and plain data."""

import dataclasses
import math
from typing import Any

import numpy as np

from hpmoe.parity_tests.agreement import agreement
from hpmoe.parity_tests.agreement import choices as choices_lib
from hpmoe.parity_tests.agreement import layer_diff
from hpmoe.parity_tests.agreement import log_shares
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table

_HEADING = (
  *('', 'layer', 'near ties', 'other experts', 'why', 'x apart', 'y apart'),
  *('replayed', 'experts'),
)
_MOST_FAULTS = 8
_LENGTH = 290


def format_tables(result: agreement.Result) -> str:
  """Returns a table by layer of each step and rank, and how both predict."""
  texts = []
  for place in result.places:
    title = f'{place.name}: ' if place.name else ''
    texts.append(f'{title}{len(place.rows.left)} tokens')
    rows = [_format_row(place, row) for row in place.layers]
    texts.append(text_table.format_table(_HEADING, rows))
    if (first := _describe_first(place)) is not None:
      texts.append(first)
    if place.shares is not None:
      texts += _describe_shares(place, place.shares)
    texts.append('')
  return '\n'.join(texts).rstrip()


def _format_row(place: agreement.Place, row: layer_diff.Row) -> tuple[str, ...]:
  choices = row.choices
  share = 100 * float(np.mean(choices.is_other)) if row.tokens else 0.0
  ties = '-' if choices.near_ties is None else str(choices.near_ties)
  return (
    '>' if row.faults else '',
    row.name,
    ties,
    f'{int(choices.is_other.sum())} ({share:.2g} %)',
    _describe_reasons(choices),
    *map(_format, (row.x_apart, row.y_apart, row.y_replayed)),
    '-' if math.isnan(row.alone) else 'right' if row.alone <= 1 else 'wrong',
  )


def _describe_reasons(choices: choices_lib.Choices) -> str:
  names = (choices_lib.TIE, choices_lib.UPSTREAM, choices_lib.UNEXPLAINED)
  counts = [(choices.count(name), name) for name in names]
  text = ', '.join(f'{count} {name}' for count, name in counts if count)
  if choices.count(''):
    text = 'not known'
  if choices.reordered:
    text += f'{", " if text else ""}{choices.reordered} in other slots'
  return text or '-'


def _format(value: float) -> str:
  return '-' if math.isnan(value) else f'{value:.2g}'


def _describe_first(place: agreement.Place) -> str | None:
  row = place.first
  if row is None or row.first is None:
    return None
  first = row.first
  return (
    f'first other expert: {row.name}, {place.rows.name(first.token)}, slot '
    f'{first.slot}: left {list(first.left)}, right {list(first.right)}'
    + (f': {first.reason}' if first.reason else '')
  )


def _describe_shares(
  place: agreement.Place, shares: log_shares.Agreement
) -> list[str]:
  low, high = log_shares.CLIP
  lines = [
    f'log-probabilities of {shares.tokens} tokens: mean difference '
    f'{shares.mean:.3g} nats, largest {shares.largest:.3g} '
    f'({place.rows.name(shares.place)})',
    f'KL(left, right) {shares.divergence:.3g} nats a token; top-1 agreement '
    f'{100 * shares.best:.2f} %',
    f'importance ratio right/left: {shares.least_ratio:.4g} to '
    f'{shares.most_ratio:.4g}, {100 * shares.outside:.2g} % outside of '
    f'{low} to {high}',
  ]
  if place.replay is not None:
    replay = place.replay
    lines.append(
      f'routing replay, whole model: routing causes '
      f'{replay.routing:.3g} of {replay.runs:.3g} nats; with '
      f"left's routing {replay.rest:.3g} remain"
    )
  return lines


def conclude(result: agreement.Result) -> str:
  """Returns what is wrong, what could not be told, and the verdict."""
  lines = []
  faults = result.faults
  for place, layer, text in faults[:_MOST_FAULTS]:
    lines.append(_cut(f'{place} {layer}: {text}'.strip()))
  if len(faults) > _MOST_FAULTS:
    lines.append(f'... and {len(faults) - _MOST_FAULTS} more')
  notes = dict.fromkeys(note for row in result.rows for note in row.notes)
  lines += [_cut(f'note: {note}') for note in notes]
  if result.reason:
    lines.append(_cut(f'note: no routing rule: {result.reason}'))
  lines.append(f'{result.verdict}: {_describe_verdict(result)}')
  return '\n'.join(lines)


def _cut(text: str) -> str:
  return text if len(text) <= _LENGTH else f'{text[:_LENGTH]} ...'


def _describe_verdict(result: agreement.Result) -> str:
  unequal = sum(int(row.choices.is_other.sum()) for row in result.rows)
  choices = sum(row.tokens for row in result.rows)
  share = 100 * unequal / choices if choices else 0.0
  counts = f'{unequal} of {choices} choices differ ({share:.2g} %)'
  if result.verdict == verdicts.FAIL:
    place, layer, _ = result.faults[0]
    name = f'{place} {layer}'.strip()
    return f'the runs differ in {name} by more than rounding; {counts}'
  if result.verdict == verdicts.NOT_JUDGED:
    return f'nothing explains why experts differ; {counts}'
  if not unequal:
    return 'all tokens have the same experts'
  return f'rounding explains the difference; {counts}'


def to_json(result: agreement.Result, left: str, right: str) -> dict[str, Any]:
  """Returns the whole report as plain data."""
  return json_fields.to_plain_data(
    dict(
      verdict=result.verdict,
      left=left,
      right=right,
      router=result.rule,
      faults=[
        dict(place=place, layer=layer, text=text)
        for place, layer, text in result.faults
      ],
      places=[_place_to_json(place) for place in result.places],
    )
  )


def _place_to_json(place: agreement.Place) -> dict[str, Any]:
  shares, replay = place.shares, place.replay
  return dict(
    name=place.name,
    tokens=len(place.rows.left),
    layers=[_row_to_json(place, row) for row in place.layers],
    log_probabilities=shares and shares.to_json(),
    replay=replay and dataclasses.asdict(replay),
  )


def _row_to_json(place: agreement.Place, row: layer_diff.Row) -> dict[str, Any]:
  choices, first = row.choices, row.first
  numbers = ('x_apart', 'y_apart', 'y_replayed', 'alone')
  fields = {name: getattr(row, name) for name in numbers}
  return dict(
    layer=row.name,
    number=row.number,
    tokens=row.tokens,
    near_ties=choices.near_ties,
    other_experts=int(choices.is_other.sum()),
    other_slots=choices.reordered,
    reasons={
      name or 'not known': choices.count(name)
      for name in dict.fromkeys(choices.reasons)
    },
    first=first
    and dict(
      dataclasses.asdict(first),
      sequence=int(place.rows.sequence[first.token]),
      position=int(place.rows.position[first.token]),
    ),
    faults=list(row.faults),
    notes=list(row.notes),
    **{n: None if math.isnan(v) else v for n, v in fields.items()},
  )
