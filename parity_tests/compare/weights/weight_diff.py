"""Compares two folders of weights, and names the change of each tensor."""

from collections.abc import Callable, Iterator
import dataclasses
import re

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters
from hpmoe.parity_tests.compare.weights import weight_experts
from hpmoe.parity_tests.compare.weights import weight_forms
from hpmoe.parity_tests.compare.weights import weight_pair
from hpmoe.parity_tests.compare.weights import weight_sides
from hpmoe.parity_tests.judge import verdicts

Finding = weight_forms.Finding
Progress = Callable[[str], None]
# Fields of a configuration on which no logit depends.
_NO_EFFECT = (
  *('dtype', 'initializer_range', 'router_aux_loss_coef'),
  *('bos_token_id', 'eos_token_id'),
)
_LAYER = re.compile(r'model\.layers\.(\d+)\.(.*)')


@dataclasses.dataclass(frozen=True)
class Row:
  """One parameter, or the experts of one layer, on both sides.

  Attributes:
    name: of the parameter, or of the experts' module.
    shape: the left's; () if it is absent.
    dtypes: of the left and of the right; '': absent.
    findings: empty if all values are equal.
    distance: relative distance of the sides.
  """

  name: str
  shape: tuple[int, ...]
  dtypes: tuple[str, str]
  findings: tuple[Finding, ...]
  distance: float

  @property
  def kind(self) -> str:
    """The worst of its findings, one of `weight_forms.KINDS`."""
    kinds = [finding.kind for finding in self.findings]
    order = weight_forms.KINDS
    return max(kinds, key=order.index, default=weight_forms.EQUAL)


@dataclasses.dataclass(frozen=True)
class Result:
  """The answer.

  Attributes:
    rows: of every parameter, in the order of the layers.
    config: fields of the configurations that differ, a line for each, and
      whether logits depend on it.
    extra: tensors that belong to no parameter, of the left and of the right.
  """

  rows: tuple[Row, ...]
  config: tuple[tuple[str, bool], ...]
  extra: tuple[tuple[str, ...], tuple[str, ...]]

  @property
  def kind(self) -> str:
    """The worst finding, one of `weight_forms.KINDS`."""
    kinds = [row.kind for row in self.rows]
    kinds += [weight_forms.WRONG for _, has_effect in self.config if has_effect]
    kinds += [weight_forms.WRONG] * bool(
      set(self.extra[1]) - set(self.extra[0])
    )
    return max(kinds, key=weight_forms.KINDS.index, default=weight_forms.EQUAL)

  @property
  def verdict(self) -> str:
    """'pass' if the right computes the same as the left, up to rounding."""
    wrong = self.kind == weight_forms.WRONG
    return verdicts.FAIL if wrong else verdicts.PASS


def compare(
  left: weight_sides.WeightSide,
  right: weight_sides.WeightSide,
  progress: Progress = lambda name: None,
  *,
  is_part: bool = False,
) -> Result:
  """Compares the weights of two sides, one expert of a layer at a time.

  Args:
    left: the reference.
    right: the candidate.
    progress: called with each parameter's name before it is compared.
    is_part: whether the right may lack whole modules, like a dump.

  Raises:
    OSError: a file cannot be read.
    ValueError: the models are of different families.
  """
  families = [side.config.model_type for side in (left, right)]
  if families[0] != families[1]:
    raise ValueError(
      f'right_model: expected a {families[0]}, as {left.name}, got a '
      f'{families[1]}: {right.name}'
    )
  rows = []
  for name in _list_names(left, right):
    progress(name)
    if is_part and not _has_module(right, name):
      continue
    if name.endswith('.experts.'):
      rows.append(_compare_experts(left, right, name))
    else:
      rows.append(_compare_tensor(left, right, name))
  rows = _join_routers(rows)
  lines = list(_compare_configs(left.config, right.config))
  lines, rows = _excuse_rope(left.config, right.config, lines, rows)
  return Result(tuple(rows), tuple(lines), (left.extra, right.extra))


def _has_module(side: weight_sides.WeightSide, name: str) -> bool:
  """Returns whether a side has any tensor of a parameter's module."""
  if parameters.is_router_bias(name):
    return bool(side.find_dtype(name))  # no dump has it
  module = name.rpartition('.')[0]
  last = '.w_down' if name.endswith('.experts.') else '.weight'
  return bool(side.find_dtype(name) or side.find_dtype(f'{module}{last}'))


def count_steps(left: weight_sides.WeightSide) -> int:
  """Returns the steps of a comparison, about."""
  return len(list(_list_names(left, left)))


def _list_names(
  left: weight_sides.WeightSide, right: weight_sides.WeightSide
) -> Iterator[str]:
  """Yields parameters of both, and prefixes of experts, in order."""
  names: dict[str, None] = {}
  for side in (left, right):
    for name in side.pieces:
      expert = parameters.is_of_experts(name)
      names.setdefault(name.rpartition('.')[0] + '.' if expert else name)
  yield from sorted(names, key=lambda n: (_find_place(n), list(names).index(n)))


def _find_place(name: str) -> int:
  match = _LAYER.match(name)
  if match:
    return int(match[1])
  return -1 if 'embed' in name else 10**6


def _compare_experts(left, right, prefix: str) -> Row:
  dtypes = tuple(side.find_dtype(f'{prefix}w_down') for side in (left, right))
  name, config = prefix.rstrip('.'), left.config
  shape = (config.num_experts, config.hidden_size, config.moe_intermediate_size)
  absent = [
    not any(n.startswith(prefix) for n in side.pieces) for side in (left, right)
  ]
  if any(absent):
    text = f'absent in {"left" if absent[0] else "right"}'
    finding = Finding(weight_forms.WRONG, text)
    return Row(name, shape, dtypes, (finding,), float('nan'))
  layer = weight_experts.compare_layer(left, right, prefix)
  findings = weight_forms.refuse_added_bits(layer.findings, dtypes)
  return Row(name, shape, dtypes, findings, layer.distance)


def _compare_tensor(left, right, name: str) -> Row:
  dtypes = tuple(side.find_dtype(name) for side in (left, right))
  sides = [side.read_tensor(name) for side in (left, right)]
  if None in [None if side is None else 0 for side in sides]:
    return _compare_absent(name, dtypes, *sides)
  codes = left.find_codes(name) or right.find_codes(name)
  block = weight_sides.find_block(right, left)
  finding = weight_forms.find_form(
    left.config, name, *sides, codes=codes, block=block
  )
  distance = 0.0
  if finding is None or finding.kind != weight_forms.EQUAL:
    distance = weight_forms.measure_distance(*sides)
  if finding is None:
    text = _find_elsewhere(left, name, sides[1], codes)
    text = text or weight_forms.describe_difference(*sides)
    finding = Finding(weight_forms.WRONG, text)
  is_equal = finding.kind == weight_forms.EQUAL
  findings = weight_forms.refuse_added_bits(
    () if is_equal else (finding,), dtypes
  )
  return Row(name, sides[0].shape, dtypes, findings, distance)


def _compare_absent(name, dtypes, left, right) -> Row:
  """Returns the row of a parameter that a side lacks."""
  side = 'left' if left is None else 'right'
  tensor = right if left is None else left
  if tensor is None:
    finding, shape = Finding(weight_forms.WRONG, 'absent in both'), ()
    return Row(name, shape, dtypes, (finding,), float('nan'))
  noun = 'bias' if 'bias' in name.rpartition('.')[2] else 'tensor'
  text, kind = f'{noun} lost: absent in {side}', weight_forms.WRONG
  if noun == 'bias' and not np.any(tensor):
    text, kind = f'absent in {side}, zeros in the other', weight_forms.REORDERED
  return Row(name, tensor.shape, dtypes, (Finding(kind, text),), 1.0)


def _find_elsewhere(left, name: str, right: np.ndarray, codes: str) -> str:
  """Returns the left's other parameter that the right has here, or ''."""
  match = _LAYER.match(name)
  if match is None:
    return ''
  prefix, last = f'model.layers.{match[1]}.', match[2]
  near = [n for n in left.pieces if n.startswith(prefix)]
  far = [n for n in left.pieces if n.endswith(f'.{last}')]
  for other in dict.fromkeys([*near, *far]):
    is_experts = parameters.is_of_experts(other)
    if other == name or is_experts or left.find_shape(other) != right.shape:
      continue
    tensor = left.read_tensor(other)
    pairs = weight_pair.list_pairs(tensor, right, codes)
    if tensor.ndim > 1 and any(pair.are_alike() for pair in pairs):
      if other in far:
        return f'right holds that of layer {_find_place(other)} of left'
      return f'right holds {other.removeprefix(prefix)} of left'
  return ''


def _join_routers(rows: list[Row]) -> list[Row]:
  """Excuses experts in an order that their router's rows have too."""
  orders = {
    row.name: finding.order
    for row in rows
    for finding in row.findings
    if finding.order
  }
  results = []
  for row in rows:
    findings = []
    for finding in row.findings:
      block = row.name.rpartition('.experts')[0]
      if '.experts' not in row.name:
        block = next(
          (b for b in _list_blocks(rows) if row.name.startswith(b)), ''
        )
      routers = [r for r in rows if _is_router(r.name, block)]
      wrong = finding.kind == weight_forms.WRONG
      if wrong and finding.order and block and routers:
        names = [f'{block}.experts', *(r.name for r in routers)]
        alike = all(orders.get(n) == finding.order for n in names)
        if alike:
          text = f'{finding.text}, alike in experts and router'
          finding = Finding(weight_forms.REORDERED, text, finding.order)
        elif row.name.endswith('.experts'):
          text = f'{finding.text}, but the router is not'
          finding = dataclasses.replace(finding, text=text)
        else:
          text = finding.text.replace('rows are', "router's rows are", 1)
          text = f'{text}, not so the experts'
          finding = dataclasses.replace(finding, text=text)
      findings.append(finding)
    results.append(dataclasses.replace(row, findings=tuple(findings)))
  return results


def _list_blocks(rows: list[Row]) -> list[str]:
  suffix = '.experts'
  return [r.name.removesuffix(suffix) for r in rows if r.name.endswith(suffix)]


def _is_router(name: str, block: str) -> bool:
  """Returns whether a parameter has a row for each expert of a block."""
  if not block or not name.startswith(f'{block}.'):
    return False
  rest = name.removeprefix(f'{block}.')
  return rest.split('.')[0] in ('gate', 'router')


def _compare_configs(
  left: config_lib.ModelConfig, right: config_lib.ModelConfig
) -> Iterator[tuple[str, bool]]:
  for field in dataclasses.fields(left):
    left_value, right_value = (getattr(c, field.name) for c in (left, right))
    if left_value != right_value:
      theirs_name = left.family.renamed.get(field.name, field.name)
      has_effect = field.name not in _NO_EFFECT
      yield (
        f'{theirs_name}: {left_value} in left, {right_value} in right',
        has_effect,
      )


def _excuse_rope(left, right, lines, rows):
  """Excuses rows of pairs in the order that the right's config says."""
  if left.rope_interleave == right.rope_interleave:
    return lines, rows
  side = 'left' if left.rope_interleave else 'right'
  words = f'neighbours in {side}'
  has_turns = [any(words in f.text for f in row.findings) for row in rows]
  if not any(has_turns):
    return lines, rows
  excused = []
  for row in rows:
    findings = tuple(
      Finding(weight_forms.REORDERED, f'{f.text}, as the configs say')
      if words in f.text
      else f
      for f in row.findings
    )
    excused.append(dataclasses.replace(row, findings=findings))
  lines = [
    (line, has_effect and not line.startswith('rope_interleave:'))
    for line, has_effect in lines
  ]
  return lines, excused
