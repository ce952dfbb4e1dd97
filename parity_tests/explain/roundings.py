"""Which rounding explains a stage: neighbouring policies, on its own inputs.

A stage with errors no larger than roundings cause is computed again under
policies with one rounding point more or less, then with several.  The policy
that reproduces the candidate's bits is named, with all others that do so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.explain import element_sizes
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# The largest errors of roundings, relative to the row's largest element: the
# mean is less than for unrelated rows, one element less than for a lost term.
_NEAR, _NEAR_EACH = 2.0**-5, 2.0**-3
# A policy is named if it leaves at most this share of the error; one word more
# is added if it leaves at most this share of the rest; two policies whose
# errors differ by less than this factor are both named.
_EXPLAINED_SHARE, _WORTH_A_WORD, _ALIKE = 0.25, 0.5, 1.25
# No more words are tried if at most this share of the error is left, or if
# every pair leaves more than this share: of three that act together, each
# removes a fifth.
_LITTLE, _HARDLY = 1 / 16, 0.9
# Only the words of a rounding contain one of these.
ASKS = ('; --policy=', '; --rows=', '; --activation=', '; --recipe=')
# A word of this kind and a tensor's name is the form of what a GEMM multiplies.
_ROWS_OF = 'rows of '
_OPERAND = 'operand '
_UNQUANTISED = 'none'
_ACTIVATION = 'the activation'
# Causes that are written out, of those that explain a stage equally well.
_MOST_CAUSES = 4
# Without shared experts they round what is rounded to storage anyway.
_ROUTED_SUMS = {*precision.ROUTED_SUMS.values()}
# Most words in a set; sets that are tried with one word more.
_MOST_WORDS, _BEAM = 3, 4
# Sets that are judged by limits.
_MOST_TRIED = 12


@dataclasses.dataclass(frozen=True)
class RoundedStage:
  """A stage that fails.

  Attributes:
    name: name of the tensor.
    policy: the policy of the case.
    chain: the stages before it that were not returned, and itself, in order.
    actual: `[R, ...]` what the candidate has.
    expected: `[R, ...]` what it should have, computed as `under` does.
    real: `[R, ...]` bool, elements that are not padding.
    under: computes it under a policy from the candidate's tensors.
    is_right: says whether it is right under a policy, by the limits of a lane;
      None: nobody can say.
    has_shared: whether the layer has shared experts.
  """

  name: str
  policy: precision.PrecisionPolicy
  chain: Sequence[str]
  actual: np.ndarray
  expected: np.ndarray
  real: np.ndarray
  under: Callable[[precision.PrecisionPolicy], np.ndarray]
  is_right: Callable[[precision.PrecisionPolicy], bool] | None = None
  has_shared: bool = False

  def list_points(self) -> list[precision.Point]:
    """Returns rounding points inside the stages that are computed."""
    return [
      point
      for point in precision.INSIDE
      if {*point.stages} & {*self.chain}
      and (self.has_shared or point.name not in _ROUTED_SUMS)
    ]


def explain(stage: RoundedStage) -> tuple[str, int]:
  """Returns the roundings that explain a stage, or '', and how many it tried.

  An error larger than roundings cause is searched for none.
  """
  deviation = _Deviation.measure(stage)
  if deviation is None or not deviation.right > 0:
    return '', 0
  left_by_set = _search(stage, deviation)
  explaining_sets = _select_best(left_by_set, deviation)
  explaining_sets = explaining_sets or _find_right(stage, left_by_set)
  tries = len(left_by_set) - 1
  smallest_left = min(explaining_sets.values(), default=deviation.right)
  if smallest_left > deviation.smallest and (
    cause := _explain_result(stage, deviation)
  ):
    return cause, tries
  if not explaining_sets:
    return '', tries
  alike = sorted(explaining_sets, key=_count_tensors)
  causes = ' or '.join(
    _format_words(stage, words) for words in alike[:_MOST_CAUSES]
  )
  if len(alike) > _MOST_CAUSES:
    causes += f', or {len(alike) - _MOST_CAUSES} more that round alike'
  best = min(explaining_sets, key=lambda words: explaining_sets[words])
  fit, flag = _format_fit(stage, deviation, best), ''
  if not _has_forms_of_shared(stage, alike[0]):
    flag = _format_flag(stage, alike)
  return f'{causes}{fit}{flag}', tries


@dataclasses.dataclass(frozen=True)
class _Deviation:
  """The error of a stage: mean over elements, relative to the row's largest.

  Attributes:
    actual: `[n]` float64 what the candidate has.
    size: `[n]` float64 as `element_sizes.measure_sizes` has it.
    right: error under the policy of the case.
    smallest: error of one element that differs by one rounding.
  """

  actual: np.ndarray
  size: np.ndarray
  right: float
  smallest: float

  @classmethod
  def measure(cls, stage: RoundedStage) -> '_Deviation | None':
    """Returns the deviation; None: it is larger than roundings can cause."""
    if not stage.real.any():
      return None
    stored_format = storage.FORMATS[str(stage.actual.dtype)]
    wide = stage.expected.astype(np.float64)
    size = element_sizes.measure_sizes(np.where(stage.real, wide, 0))
    actual = stage.actual.astype(np.float64)
    size = np.where(size > 0, size, 1.0)[stage.real]
    # The error of a rounding is not relative among subnormal numbers.
    size = np.maximum(size, stored_format.smallest_normal)
    unit = stored_format.unit_roundoff
    smallest = unit / max(len(size), 1)
    deviation = cls(actual[stage.real], size, 0.0, smallest)
    of_element = deviation._measure_elements(stage, stage.expected)
    if not of_element.mean() < _NEAR or not of_element.max() < _NEAR_EACH:
      return None
    return dataclasses.replace(deviation, right=float(of_element.mean()))

  def measure_left(self, stage: RoundedStage, computed: np.ndarray) -> float:
    return float(self._measure_elements(stage, computed).mean())

  def _measure_elements(
    self, stage: RoundedStage, computed: np.ndarray
  ) -> np.ndarray:
    wide = computed[stage.real].astype(np.float64)
    with np.errstate(invalid='ignore'):
      distance = np.abs(self.actual - wide) / self.size
    return np.where(np.isfinite(distance), distance, np.inf)


def _search(
  stage: RoundedStage, deviation: _Deviation
) -> dict[tuple[str, ...], float]:
  """Returns sets of words, with the error that they leave.

  It stops when one leaves next to nothing, or no pair leaves less than none.
  """
  words = [*_words(stage)]
  left_by_set: dict[tuple[str, ...], float] = {(): deviation.right}
  sets: list[tuple[str, ...]] = [(word,) for word in words]
  for count in range(1, _MOST_WORDS + 1):
    for word_set in sets:
      left_by_set[word_set] = deviation.measure_left(
        stage, stage.under(_add_words(stage.policy, word_set))
      )
    smallest_left = min(left_by_set.values())
    is_least = smallest_left <= max(
      deviation.smallest, _LITTLE * deviation.right
    )
    is_hopeless = count > 1 and smallest_left > _HARDLY * deviation.right
    if is_least or is_hopeless or not sets:
      break
    sets = _list_longer(words, sets, left_by_set)
  return left_by_set


def _list_longer(
  words: Sequence[str],
  sets: Sequence[tuple[str, ...]],
  left_by_set: dict[tuple[str, ...], float],
) -> list[tuple[str, ...]]:
  """Returns sets with one word more: all pairs, then those of the best sets.

  Of two roundings that act together, neither alone may leave less.  Activations
  do not act together with others: those that leave much are in no pair.  Of a
  quantised layer, which has dozens of forms to try, pairs are of the best words
  and the best forms of each operand.
  """
  ranked = sorted(sets, key=lambda word_set: left_by_set[word_set])
  best = ranked[:_BEAM]
  if len(best[0]) == 1:
    forms = [s for s in ranked if s[0].startswith((_ROWS_OF, _OPERAND))]
    if forms:
      best = [*best, *_select_forms(forms)]
    else:
      best = [s for s in sets if s in best or not s[0].startswith(_ACTIVATION)]
    words = [word for word in words if (word,) in best]
  longer = {
    tuple(w for w in words if w in word_set or w == word)
    for word_set in best
    for word in words
    if word not in word_set and _is_one((*word_set, word))
  }
  return sorted(longer)


def _select_forms(
  ranked_forms: Sequence[tuple[str, ...]],
) -> list[tuple[str, ...]]:
  """Returns the two best words on the form of each operand."""
  by_operand: dict[str, list[tuple[str, ...]]] = {}
  for word_set in ranked_forms:
    operand = word_set[0].partition('=')[0]
    by_operand.setdefault(operand, []).append(word_set)
  return [s for word_sets in by_operand.values() for s in word_sets[:2]]


def _find_right(
  stage: RoundedStage, left_by_set: dict[tuple[str, ...], float]
) -> dict[tuple[str, ...], float]:
  """Returns a set of words under whose policy the stage is right, if any is.

  A kernel that rounds at other terms of a sum than the oracle has other bits,
  and is right by the limits.  The set must leave less of the error than none.
  """
  if stage.is_right is None:
    return {}
  most_left = _HARDLY * left_by_set[()]
  near = [s for s, left in left_by_set.items() if s and left <= most_left]
  near.sort(key=lambda word_set: (len(word_set), left_by_set[word_set]))
  for word_set in near[:_MOST_TRIED]:
    if stage.is_right(_add_words(stage.policy, word_set)):
      return {word_set: left_by_set[word_set]}
  return {}


def _select_best(
  left_by_set: dict[tuple[str, ...], float], deviation: _Deviation
) -> dict[tuple[str, ...], float]:
  """Returns the best sets, of the smallest size that does nearly as well."""
  smallest_left = min(left_by_set.values())
  for count in range(1, _MOST_WORDS + 1):
    of_count = {
      word_set: v
      for word_set, v in left_by_set.items()
      if len(word_set) == count
    }
    best_left = min(of_count.values(), default=deviation.right)
    if best_left <= max(
      smallest_left / _WORTH_A_WORD, smallest_left + deviation.smallest
    ):
      largest_accepted = _EXPLAINED_SHARE * deviation.right
      near = max(_ALIKE * best_left, best_left + deviation.smallest)
      return {
        s: v for s, v in of_count.items() if v <= min(near, largest_accepted)
      }
  return {}


def _count_tensors(words: Sequence[str]) -> int:
  """Returns how many words are dtypes of tensors, not of points inside."""
  return sum(word.partition('=')[0] in tensors.SPECS for word in words)


def _is_one(words: Sequence[str]) -> bool:
  """Says whether no rounding point occurs twice."""
  names = [word.partition('=')[0] for word in words]
  return len({*names}) == len(names)


def _find_narrow(policy: precision.PrecisionPolicy) -> str:
  """Returns the dtype that a kernel is likely to round to."""
  in_float32 = policy.storage == policy.accumulate
  return 'bfloat16' if in_float32 else policy.storage


def _explain_result(stage: RoundedStage, deviation: _Deviation) -> str:
  """Returns words where the stage itself was rounded, and nothing before it.

  No policy allows that: it would ask for the narrow dtype.  So a set of words
  that leaves no error is preferred.
  """
  policy, name = stage.policy, stage.name
  if name not in precision.POINTS or policy.dtype(name) != policy.accumulate:
    return ''
  narrow = _find_narrow(policy)
  rounded = stage.under(_add_words(policy, (f'{name}={narrow}',)))
  if deviation.measure_left(stage, rounded) > deviation.smallest:
    return ''
  return (
    f'as if {name} was rounded to {narrow}, and returned in '
    f'{policy.accumulate}: leaves no error'
  )


def _words(stage: RoundedStage) -> Iterator[str]:
  """Yields the words that differ from the policy in one point."""
  policy = stage.policy
  narrow = _find_narrow(policy)
  for point in stage.list_points():
    now = policy.rounding(point.name)
    if point.name == 'operands' and policy.emulated:
      now = policy.roundings[point.name]
    if now is not None:
      yield f'{point.name}=accumulate'
    for dtype in dict.fromkeys((narrow, *_MORE_DTYPES.get(point.name, ()))):
      wide = _is_wide(policy, dtype)
      # Operands are stored so already, but for weights of codes.
      is_stored_so = point.name == 'operands' and dtype == policy.storage
      is_stored_so = is_stored_so and not policy.quantised
      if dtype != now and not wide and not is_stored_so:
        yield f'{point.name}={dtype}'
  for name in stage.chain[:-1]:
    role = tensors.role(name, policy.placement)
    if name in precision.POINTS and role == 'compute':
      is_kept_whole = policy.dtype(name) == policy.accumulate
      yield f'{name}={narrow if is_kept_whole else "accumulate"}'
  for field, tensor in precision.SUM_ORDERS.items():
    for order in precision.ROW_ORDERS if tensor in stage.chain else ():
      if order != getattr(policy, field):
        yield f'{field}={order}'
  yield from _form_words(stage)
  yield from _operand_words(stage)
  if ACTIVATED & {*stage.chain} and policy.activation != 'absolute':
    for form in precision.list_other_forms(policy):
      yield f'{_ACTIVATION}={form}'
  weighs = {*tensors.WEIGHTED.values()} & {*stage.chain}
  for placement, weighted_stage in tensors.WEIGHTED.items():
    both_stages = {weighted_stage, tensors.WEIGHTED[policy.placement]} <= weighs
    if placement != policy.placement and both_stages:
      yield f'placement={placement}'


def _is_wide(policy: precision.PrecisionPolicy, dtype: str) -> bool:
  """Says whether a dtype, or products, lose nothing of what is stored."""
  if dtype in storage.EMULATED:
    return policy.storage != policy.accumulate
  digits = storage.ROUNDED[dtype].digits
  return digits >= storage.ROUNDED[policy.accumulate].digits


def _form_words(stage: RoundedStage) -> Iterator[str]:
  """Yields other forms of what a GEMM of the chain multiplies.

  They are tried of quantised layers alone.
  """
  policy = stage.policy
  if not (policy.coded or policy.rows):
    return
  forms, routed = quantised.row_forms(policy.rows), _list_routed(stage.chain)
  for gemm, (rows, _) in tensors.GEMMS.items():
    if gemm in routed:
      for form in (_UNQUANTISED, *quantised.OF_X):
        if form != forms.get(rows, _UNQUANTISED):
          yield f'{_ROWS_OF}{rows}={form}'


def _operand_words(stage: RoundedStage) -> Iterator[str]:
  """Yields other forms of what a recipe quantises: none, or of its others."""
  forms = recipes.read_words(stage.policy.operand_forms)
  routed = _list_routed(stage.chain)
  for name, own_form in forms.items():
    if name.partition(':')[0] in routed:
      for form in dict.fromkeys((_UNQUANTISED, *forms.values())):
        is_known = form == _UNQUANTISED or recipes.suits(name, form)
        if is_known and form != own_form:
          yield f'{_OPERAND}{name}={form}'


def _list_routed(chain: Sequence[str]) -> set[str]:
  """Returns stages by the names that those of routed experts have."""
  return {tensors.routed(name) for name in chain}


def _name_operand(
  chain: Sequence[str], gemm: str, operand: str
) -> tuple[str, str]:
  """Returns a GEMM and its operand, those of shared experts if no other is."""
  if gemm in chain:
    return gemm, operand
  shared = {routed: name for name, routed in tensors.AS_ROUTED.items()}
  return shared[gemm], shared[operand]


# Stages that have to do with the activation.
ACTIVATED = {'activation', 'd_gate_up', 'd_topk_weights'}
_ORDERS = {'expert_back': 'expert, from the last one back'}
# Dtypes beside the storage that points are rounded to.
_MORE_DTYPES: Mapping[str, tuple[str, ...]] = {
  'operands': ('tf32', 'tf32_rz', 'bfloat16', 'tf32x3', 'bf16x3'),
  'accumulator': ('float16',),
  'routing_weight': ('bfloat16', 'float16'),
}


def _add_words(
  policy: precision.PrecisionPolicy, words: Sequence[str]
) -> precision.PrecisionPolicy:
  """Returns a policy with words added to its own, or replacing them."""
  own = [word for word in policy.points if not _is_set_by(word, words)]
  plain = _list_plain(words)
  fields = {'points': (), **policies.fields((*own, *plain))}
  policy = precision.with_form(policy, _find_form(policy, words))
  return dataclasses.replace(
    policy,
    rows=_format_rows(policy, words),
    operand_forms=_format_operands(policy, words),
    **fields,
  )


def _list_plain(words: Sequence[str]) -> list[str]:
  """Returns the words that `policies.fields` reads."""
  not_plain = (_ROWS_OF, _OPERAND, _ACTIVATION)
  return [w for w in words if not w.startswith(not_plain)]


def _find_form(policy: precision.PrecisionPolicy, words: Sequence[str]) -> str:
  """Returns the activation that words say, or else the policy's own."""
  forms = (w.partition('=')[2] for w in words if w.startswith(_ACTIVATION))
  return next(forms, policy.form)


def _read_changes(words: Sequence[str], kind: str) -> dict[str, str]:
  """Returns forms by operand, of the words of one kind."""
  return dict(
    word.removeprefix(kind).split('=')
    for word in words
    if word.startswith(kind)
  )


def _format_rows(
  policy: precision.PrecisionPolicy, words: Sequence[str]
) -> str:
  """Returns the field `rows` of a policy with the forms that words say."""
  changes = _read_changes(words, _ROWS_OF)
  if not changes:
    return policy.rows
  forms = quantised.row_forms(policy.rows) | changes
  return ','.join(
    f'{name}={form}' for name, form in forms.items() if form != _UNQUANTISED
  )


def _format_operands(
  policy: precision.PrecisionPolicy, words: Sequence[str]
) -> str:
  """Returns the field `operand_forms` of a policy, changed by words."""
  changes = _read_changes(words, _OPERAND)
  forms = recipes.read_words(policy.operand_forms) | changes
  return recipes.join_words(
    {name: form for name, form in forms.items() if form != _UNQUANTISED}
  )


def _has_forms_of_shared(stage: RoundedStage, words: Sequence[str]) -> bool:
  """Says whether words are forms of shared experts: no flag sets them alone."""
  is_form = any(word.startswith((_ROWS_OF, _OPERAND)) for word in words)
  return is_form and not {*stage.chain} & {*recipes.OPERANDS}


def _format_recipe(
  policy: precision.PrecisionPolicy, words: Sequence[str]
) -> str | None:
  """Returns the recipe that words make of a policy's; None: they do not."""
  changes = [w.removeprefix(_OPERAND) for w in words if w.startswith(_OPERAND)]
  for word in words:
    for gemm, (rows, _) in tensors.GEMMS.items():
      if word.startswith(f'{_ROWS_OF}{rows}='):
        changes.append(f'{gemm}:{word.removeprefix(_ROWS_OF)}')
  if not (changes and policy.operand_forms):
    return None
  changes = [change.removesuffix(_UNQUANTISED) for change in changes]
  name = recipes.find_name(policy.rows, policy.operand_forms)
  return ','.join([name or policy.operand_forms, *changes])


def _is_set_by(word: str, words: Sequence[str]) -> bool:
  name = word.partition('=')[0]
  return any(other_word.partition('=')[0] == name for other_word in words)


def _format_words(stage: RoundedStage, words: Sequence[str]) -> str:
  """Returns 'as if' and the roundings in words."""
  return 'as if ' + ' and '.join(_format_word(stage, word) for word in words)


def name_activation(chain: Sequence[str]) -> str:
  """Returns 'the activation was', or what of it alone a chain reads."""
  if {*chain} & ACTIVATED == {'d_gate_up'}:
    return 'the slope of the activation was that of'
  return f'{_ACTIVATION} was'


def _format_word(stage: RoundedStage, word: str) -> str:
  name, _, value = word.partition('=')
  if name.startswith(_ROWS_OF):
    rows = name.removeprefix(_ROWS_OF)
    (gemm,) = (g for g, (left, _) in tensors.GEMMS.items() if left == rows)
    _, rows = _name_operand(stage.chain, gemm, rows)
    if value == _UNQUANTISED:
      return f'{rows} was not quantised before its GEMM'
    return f'{rows} was quantised to {value} before its GEMM'
  if name.startswith(_OPERAND):
    gemm, _, operand = name.removeprefix(_OPERAND).partition(':')
    gemm, operand = _name_operand(stage.chain, gemm, operand)
    quantised_to = f'quantised to {value}'
    if value == _UNQUANTISED:
      quantised_to = 'not quantised'
    return f'{operand} was {quantised_to} in {gemm}'
  if name == _ACTIVATION:
    return f'{name_activation(stage.chain)} {value}'
  if name == 'placement':
    return f'the routing weight multiplied at {value}'
  if name in precision.SUM_ORDERS:
    return f"a token's rows were added by {_ORDERS.get(value, value)}"
  point = precision.POINTS[name]
  says = '' if point in precision.TENSORS else f' ({point.says})'
  if value == 'accumulate':
    return f'{name} was not rounded{says}'
  if value in storage.EMULATED:
    return f'{name} was multiplied as {value}{says}'
  return f'{name} was rounded to {value}{says}'


def _format_fit(
  stage: RoundedStage, deviation: _Deviation, words: Sequence[str]
) -> str:
  computed = stage.under(_add_words(stage.policy, words))
  wide = computed[stage.real].astype(np.float64)
  expected = stage.expected[stage.real].astype(np.float64)
  alike = 100 * float((wide == deviation.actual).mean())
  before = 100 * float((expected == deviation.actual).mean())
  if stage.actual.dtype == np.float32:
    deviation_left = deviation.measure_left(stage, computed)
    if not deviation_left:
      return ': leaves no error'
    return f': leaves 1/{deviation.right / deviation_left:.3g} of the error'
  return f': {alike:.4g} % of elements equal, {before:.3g} % without it'


def _format_flag(stage: RoundedStage, alike: Sequence[Sequence[str]]) -> str:
  """Returns the flag that allows the roundings, and policies that do."""
  rows = _format_rows(stage.policy, alike[0])
  form = _find_form(stage.policy, alike[0])
  policy_words = _join_policy(stage, alike[0])
  recipe = _format_recipe(stage.policy, alike[0])
  is_same = rows == stage.policy.rows or recipe is not None
  changes = {
    ASKS[3]: recipe,
    ASKS[1]: None if is_same else rows or '""',
    ASKS[2]: None if form == stage.policy.form else form,
    ASKS[0]: policy_words or None,
  }
  flags = [flag + value for flag, value in changes.items() if value is not None]
  if flags[0].startswith(ASKS[1:]):
    later_flags = (' ' + flag.removeprefix('; ') for flag in flags[1:])
    return f'{flags[0]}{"".join(later_flags)} allows it'
  of_name = [
    name
    for name in policies.POLICIES
    if any(_is_named(stage, name, words_of_set) for words_of_set in alike)
  ]
  also_named = f', as does {", ".join(of_name[:3])}' if of_name else ''
  # Lanes with few bits cannot tell all causes apart: no flag is better known.
  policies_alike = dict.fromkeys(
    _join_policy(stage, cause)
    for cause in alike[:_MOST_CAUSES]
    if cause == alike[0] or _list_plain(cause) == [*cause]
  )
  return (
    f'{ASKS[0]}{" or --policy=".join(policies_alike)} allows it{also_named}'
  )


def _join_policy(stage: RoundedStage, cause: Sequence[str]) -> str:
  """Returns the value of --policy that adds a set of words to the case's."""
  own_words = policies.words(stage.policy)
  # A named policy that the flag replaces may have set it.
  placement = stage.policy.placement
  if placement != precision.PrecisionPolicy().placement:
    own_words = (f'placement={placement}', *own_words)
  unset_words = (w for w in own_words if not _is_set_by(w, cause))
  return ','.join((*unset_words, *_list_plain(cause)))


def _is_named(stage: RoundedStage, name: str, words: Sequence[str]) -> bool:
  """Says whether a named policy and some words agree on the stage."""
  plain = dict.fromkeys(precision.SUM_ORDERS, 'slot')
  fields = dict(points=(), **plain) | policies.fields((name,))
  named_policy = dataclasses.replace(stage.policy, **fields)
  own_policy = _add_words(stage.policy, words)

  def list_roundings(policy: precision.PrecisionPolicy):
    rounds = {
      point.name: policy.rounding(point.name) for point in stage.list_points()
    }
    dtypes = {
      stage_name: policy.dtype(stage_name) for stage_name in stage.chain
    }
    orders = [
      precision.order_of(stage_name, policy) for stage_name in stage.chain
    ]
    forms = policy.rows, policy.operand_forms
    return rounds, dtypes, policy.placement, forms, orders

  return list_roundings(named_policy) == list_roundings(own_policy)
