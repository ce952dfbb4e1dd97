"""What wrong codes and scales of rows look like, in a few words.

A pattern is what a kernel would have returned with one bug; it is named if it
is where the wrong ones are, and far from what was expected there.
"""

from collections.abc import Callable
import dataclasses
import functools

import ml_dtypes
import numpy as np

from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import quantised
from hpmoe.reference.quantised import quantise

# Of the wrong ones, the share that a pattern must explain.
_SHARE = 0.95
# Of all scales, the share that another largest code makes wrong at least.
_FORM_SHARE = 0.5
# What is as good as equal: a scale that was rounded in another order.
_CLOSE = 2.0**-20


@dataclasses.dataclass(frozen=True)
class WrongCodes:
  """Scales (g columns) or codes (X) of the rows of a rank.

  Attributes:
    form: of them.
    values: `[n, X]` float64 before they were quantised.
    actual: `[n, c]` float64.
    expected: `[n, c]` float64.
    bad: `[n, c]` bool.
    scales: `[n, g]` float64, those that are right.
    expert: `[n]` which one of the rank.
  """

  form: quantised.Form
  values: at.Float[np.ndarray, 'n X']
  actual: at.Float[np.ndarray, 'n c']
  expected: at.Float[np.ndarray, 'n c']
  bad: at.Bool[np.ndarray, 'n c']
  scales: at.Float[np.ndarray, 'n g']
  expert: at.Int[np.ndarray, ' n']

  def quantise(self, values: np.ndarray, form: quantised.Form | None = None):
    """Returns codes and scales float64 of other rows, or in another form."""
    form = form or self.form
    coded = quantise.quantise(form, values.astype(np.float32))
    return (np.asarray(a).astype(np.float64) for a in coded[:2])

  def roll_rows(self, array: np.ndarray, step: int) -> np.ndarray:
    """Returns `[n, c]` in which each row has that of another of its expert."""
    rolled = np.array(array)
    for expert in np.unique(self.expert):
      rows = self.expert == expert
      rolled[rows] = np.roll(array[rows], step, 0)
    return rolled

  def round_at(
    self, scales: np.ndarray, values: np.ndarray | None = None
  ) -> np.ndarray:
    """Returns codes `[n, X]` of values at other scales `[n, g]`."""
    values = self.values if values is None else values
    element = quantised.ELEMENTS[self.form.element]
    codes = self.divide(scales, values)
    codes = np.asarray(quantise.rounded(element, 'even', codes))
    return np.clip(codes, *self.form.limits).astype(np.float64)

  def divide(
    self, scales: np.ndarray, values: np.ndarray | None = None
  ) -> np.ndarray:
    """Returns values over scales, `[n, X]` float32."""
    values = self.values if values is None else values
    scales = np.where(scales == 0, 1.0, scales)
    spread = quantise.spread(self.form, scales, values.shape)
    with np.errstate(over='ignore', invalid='ignore'):
      return (values / spread).astype(np.float32)


Bug = Callable[[WrongCodes], np.ndarray]


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
  return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def _share_largest(wrong: WrongCodes, sizes: np.ndarray) -> np.ndarray:
  """Returns `[n, c]` in which each row has the largest of its expert's rows."""
  largest = np.array(sizes)
  for expert in np.unique(wrong.expert):
    rows = wrong.expert == expert
    largest[rows] = sizes[rows].max(0)
  return largest


def _largest(wrong: WrongCodes, of_rows: bool) -> np.ndarray:
  """Returns `[n, 1]`: one magnitude of each row, or of an expert's."""
  largest = np.abs(wrong.values).max(1, keepdims=True)
  return largest if of_rows else _share_largest(wrong, largest)


def _largest_of_expert(wrong: WrongCodes) -> np.ndarray:
  """Returns `[n, g]`: a magnitude of the same group of all its rows."""
  width = wrong.form.group[1] or wrong.values.shape[1]
  starts = np.arange(0, wrong.values.shape[1], width)
  return _share_largest(
    wrong, np.maximum.reduceat(np.abs(wrong.values), starts, 1)
  )


def _first_of_columns(wrong: WrongCodes) -> np.ndarray:
  """Returns `[n, g]`: the largest in the first column of each group."""
  width = wrong.form.group[1] or wrong.values.shape[1]
  return _share_largest(wrong, np.abs(wrong.values[:, ::width]))


def _scale_of(wrong: WrongCodes, largest: np.ndarray) -> np.ndarray:
  """Returns scales `[n, g]` of other largest magnitudes."""
  width = wrong.form.group[1] or wrong.values.shape[1]
  values = np.zeros_like(wrong.values)
  values[:, ::width] = largest
  return [*wrong.quantise(values)][1]


def _rescale(find: Bug, wrong: WrongCodes) -> np.ndarray:
  return _scale_of(wrong, find(wrong))


_SCALES: tuple[tuple[str, Bug], ...] = (
  (
    'they were the scales of the next group',
    lambda w: np.roll(w.expected, -1, 1),
  ),
  (
    'they were the scales of the previous group',
    lambda w: np.roll(w.expected, 1, 1),
  ),
  (
    'they were the scales of the next row',
    lambda w: w.roll_rows(w.expected, -1),
  ),
  (
    'they were the scales of the previous row',
    lambda w: w.roll_rows(w.expected, 1),
  ),
  *(
    (
      f'the largest magnitude was that of {words}',
      functools.partial(_rescale, find),
    )
    for words, find in (
      ('a whole row', functools.partial(_largest, of_rows=True)),
      ('an expert', functools.partial(_largest, of_rows=False)),
      ('the group in all rows of an expert', _largest_of_expert),
      ('a column', _first_of_columns),
    )
  ),
  (
    'values were rounded to bfloat16 before',
    lambda w: [*w.quantise(_to_bfloat16(w.values))][1],
  ),
  ('scales were rounded to bfloat16', lambda w: _to_bfloat16(w.expected)),
  (
    'scales were rounded up to powers of two',
    lambda w: np.exp2(np.ceil(np.log2(w.expected))),
  ),
  (
    'scales were rounded down to powers of two',
    lambda w: np.exp2(np.floor(np.log2(w.expected))),
  ),
  ('scales were squared', lambda w: w.expected**2),
  ('scales were their reciprocals', lambda w: 1 / w.expected),
  ('scales were 1', lambda w: np.ones(())),
  ('scales were the largest magnitudes', lambda w: w.expected * w.form.top[0]),
)


def _cut(wrong: WrongCodes) -> np.ndarray:
  element = quantised.ELEMENTS[wrong.form.element]
  codes = wrong.divide(wrong.scales)
  low = np.asarray(quantise.rounded(element, 'cut', codes))
  return np.clip(low, element.lowest, element.highest)


def _in_element(name: str) -> Bug:
  def make(wrong: WrongCodes) -> np.ndarray:
    element = quantised.ELEMENTS[name]
    codes = np.asarray(
      quantise.rounded(element, 'even', wrong.divide(wrong.scales))
    )
    return np.clip(codes, element.lowest, element.highest)

  return make


def _wrap(wrong: WrongCodes) -> np.ndarray:
  whole = np.rint(wrong.divide(wrong.scales)).astype(np.int64)
  return whole.astype(np.int8).astype(np.float64)


_CODES: tuple[tuple[str, Bug], ...] = (
  (
    'codes were made with the scale of the next group',
    lambda w: w.round_at(np.roll(w.scales, -1, 1)),
  ),
  (
    'codes were made with the scale of the previous group',
    lambda w: w.round_at(np.roll(w.scales, 1, 1)),
  ),
  (
    'codes were made with the scale of the next row',
    lambda w: w.round_at(w.roll_rows(w.scales, -1)),
  ),
  ('codes were cut, not rounded', _cut),
  (
    'values were rounded to bfloat16 before',
    lambda w: w.round_at(w.scales, _to_bfloat16(w.values)),
  ),
  ('codes were of the next row', lambda w: w.roll_rows(w.expected, -1)),
  ('codes were of the previous row', lambda w: w.roll_rows(w.expected, 1)),
  # Over the end of an expert's rows.
  ('codes were of the next row', lambda w: np.roll(w.expected, -1, 0)),
  ('codes were of the previous row', lambda w: np.roll(w.expected, 1, 0)),
  ('codes were of the next column', lambda w: np.roll(w.expected, -1, 1)),
  ('codes were of the previous column', lambda w: np.roll(w.expected, 1, 1)),
  ('codes of even and odd columns were swapped', lambda w: _swap(w.expected)),
  ('signs of codes were lost', lambda w: np.abs(w.expected)),
  ('codes were of the opposite sign', lambda w: -w.expected),
  ('codes were 0', lambda w: np.zeros(())),
  ('codes wrapped around', _wrap),
  *(
    (f'codes were rounded to {name}', _in_element(name))
    for name in ('float8_e5m2', 'int8', 'float4_e2m1fn')
  ),
)


def _swap(codes: np.ndarray) -> np.ndarray:
  columns = np.arange(codes.shape[1]) ^ 1
  return codes[:, np.minimum(columns, codes.shape[1] - 1)]


def describe(wrong: WrongCodes, stage: str) -> str:
  """Returns a likely cause of wrong scales or codes, or ''.

  Args:
    wrong: at least one is bad.
    stage: which of both they are.
  """
  of_scales = stage.endswith('_scales')
  with np.errstate(all='ignore'):
    for words, bug in _SCALES if of_scales else _CODES:
      if _fits(wrong, bug(wrong), exact=not of_scales):
        return f'as if {words}'
    if not of_scales:
      return _describe_range(wrong)
    return _describe_few(wrong) or _describe_factor(wrong)


def _describe_few(wrong: WrongCodes) -> str:
  """Returns what a few wrong scales are, while the others are right.

  A code has too few values for that: many bugs would give the same one.
  """
  if wrong.bad.mean() >= _FORM_SHARE:
    return ''
  for words, bug in _SCALES:
    output = np.where(wrong.bad, bug(wrong), wrong.expected)
    if _fits(wrong, output, exact=False):
      return f'as if {words}; {wrong.bad.sum()} of {wrong.bad.size} are wrong'
  return ''


def _fits(wrong: WrongCodes, output: np.ndarray, exact: bool) -> bool:
  """Says whether a bug explains where codes are wrong, and how far."""
  actual, output = wrong.actual, np.asarray(output, np.float64)
  if output.ndim == 0:  # all of one number: some may be as they should
    return bool((actual == output)[wrong.bad].mean() >= _SHARE)
  alike = (actual == output) | (np.isnan(actual) & np.isnan(output))
  if not exact:
    alike |= np.abs(actual - output) <= _CLOSE * np.abs(actual)
  differs = output != wrong.expected
  share = (alike & differs)[wrong.bad].mean()
  return bool(share >= _SHARE and alike.mean() >= _SHARE)


def _describe_factor(wrong: WrongCodes) -> str:
  """Returns by what all wrong scales are off, if that is one number."""
  ratios = (wrong.actual / wrong.expected)[wrong.bad]
  middle = float(np.median(ratios))
  if not np.isfinite(middle) or middle <= 0:
    return ''
  if np.mean(np.abs(ratios / middle - 1) < _CLOSE) < _SHARE:
    return _describe_least(wrong)
  top = wrong.form.top[0] / middle
  if wrong.form.rule in quantised.POWERS:
    return (
      f'scales are {middle:g} times what they should be: rounded '
      f'{"up" if middle > 1 else "down"}, or another bias'
    )
  if wrong.bad.mean() < _FORM_SHARE:
    return (
      f'{wrong.bad.sum()} of {wrong.bad.size} scales are {middle:.6g} times '
      'what they should be'
    )
  return f'as if the largest code was {top:.6g}, not {wrong.form.top[0]:g}'


def _describe_least(wrong: WrongCodes) -> str:
  """Returns the least scale, if all wrong ones are that."""
  scales = np.unique(wrong.actual[wrong.bad])
  if len(scales) > 1 or wrong.bad.sum() == 1:
    return ''
  magnitude = scales[0] * wrong.form.top[0]
  return (
    f'as if the least magnitude was {magnitude:.6g}, '
    f'not {wrong.form.min_magnitude:g}'
  )


def _describe_range(wrong: WrongCodes) -> str:
  """Returns where codes saturate, or that they overflow."""
  actual, expected = wrong.actual[wrong.bad], wrong.expected[wrong.bad]
  if np.isnan(actual).all():
    return 'codes that should be the largest are NaN: they overflow'
  limit = float(np.abs(actual).max())
  highest = quantised.ELEMENTS[wrong.form.element].highest
  at_limit = np.abs(actual) == limit
  is_beyond = (np.abs(expected) > limit) & (
    np.sign(actual) == np.sign(expected)
  )
  if limit < highest and np.mean(at_limit & is_beyond) >= _SHARE:
    return f'codes saturate at {limit:g}, not {highest:g}'
  return ''
