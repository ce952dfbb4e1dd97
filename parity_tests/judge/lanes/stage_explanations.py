"""Explains failed stages of a pass by known bugs or roundings."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import failed_stage
from hpmoe.parity_tests.explain import known_bugs
from hpmoe.parity_tests.explain import one_expert
from hpmoe.parity_tests.explain import operand_mistakes
from hpmoe.parity_tests.explain import patterns
from hpmoe.parity_tests.explain import quantised_misreads
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import tolerance_lanes
from hpmoe.parity_tests.judge.limits.bounds import activation_bounds
from hpmoe.parity_tests.judge.limits.bounds import bounded_values
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import recipes
from hpmoe.reference.contract import tensors

_CODES = frozenset(s.name for s in tensors.TOKEN_CODES + tensors.ROW_CODES)


def explain_results(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  answer: pass_case.Answer,
  expected: passes.Tensors,
  results: pass_case.Results,
  refuses: Callable[[str, np.ndarray], np.ndarray],
  exact: bool,
) -> pass_case.Results:
  """Adds a pattern to the results of failed stages.

  `explain` is applied to the first failed stage and to each other stage that is
  wrong by itself, `roundings` to each failed stage.  Results of some ranks, or
  of a sample, are returned unchanged: an explanation needs the tensors of all
  ranks.

  Args:
    options: which stages are searched for roundings.
    case: the pass.
    answer: what the candidate returned.
    expected: the oracle's tensors.
    results: the rows of one lane.
    refuses: (a stage's name, its expected tensor) -> `[R, ...]` bool, the
      elements that the lane refuses.
    exact: whether right values are equal, not only near.
  """
  if not options.explain or case.tiling.ranks is not None or case.tiling.sample:
    return results
  failures = _pick_failures(results)
  words_of_stage = _find_behind_codes(results, failures)
  names_to_explain = {*failures} - {*words_of_stage}
  # Relayed rows have bits only.
  for name in (n for n in case.layer_pass.stages if n in names_to_explain):
    failure = failures[name]
    options.progress(f'what explains {name}')
    # In lane exact errors spread; elsewhere each failure has its own cause.
    first = not words_of_stage or not exact and failure.stage == name
    explanation, whole = '', False
    if first and failure.bad_rows:
      stage = _build_failed_stage(
        options, case, answer, expected, failure, refuses, exact
      )
      explanation, whole = explain.explain(stage, failure.pattern)
      if not whole and 'as if' not in explanation:
        cause = _explain_expert(case, stage)
        explanation, whole = cause or explanation, bool(cause)
    seeks_roundings = options.roundings is None or name in options.roundings
    # No search among a hundred roundings if a bug explains the stage,
    if seeks_roundings and pass_case.is_small(case) and not whole:
      rounded = build_rounding_stage(case, answer, name, exact)
      with oracle_lib.compile_less():
        cause, tries = roundings.explain(rounded)
      explanation = cause or explanation or failure.pattern
      # nor if a pattern describes a common factor of all elements.
      is_vague = not explanation or explanation.startswith(patterns.NEAR)
      if tries and not cause and is_vague:
        remark = f'no rounding, of {tries} that were tried, explains it'
        explanation = '; '.join(filter(None, (explanation, remark)))
    words_of_stage[name] = explanation or failure.pattern

  def tell(result: verdicts.Result) -> verdicts.Result:
    name = verdicts.tensor_of(result.stage)
    if result.failure is None or name not in words_of_stage:
      return result
    change = functools.partial(
      dataclasses.replace, pattern=words_of_stage[name]
    )
    return result.part.but(change)

  return [tell(r) for r in results]


def _explain_expert(
  case: pass_case.PassCase, stage: failed_stage.FailedStage
) -> str:
  """Returns the mistake of one expert in words, or ''."""
  config, policy = case.inputs.config, case.inputs.policy
  has_forms = policy.quantised or policy.x_form or policy.rows
  is_plain = not (has_forms or policy.operand_forms or config.bias)
  is_plain = is_plain and policy.placement != 'input'
  needed_stages = {'expert_in', 'gate_up', 'activation', 'expert_out'}
  if stage.name != 'y' or not is_plain or not needed_stages <= {*stage.reads}:
    return ''
  if 'topk_weights' not in stage.reads['y'] or not pass_case.is_small(case):
    return ''

  def activate(gate_up: np.ndarray) -> np.ndarray:
    exact = bounded_values.exact(gate_up)
    return activation_bounds.activate(policy, exact, None).value

  return one_expert.find_cause(stage, activate)


def _pick_failures(
  results: pass_case.Results,
) -> dict[str, verdicts.Failure]:
  """Returns the failure to explain of each tensor: the first with bad rows.

  Of a limit of the whole tensor, no single element is bad.
  """
  pairs = [(verdicts.tensor_of(r.stage), r.failure) for r in results]
  failures = [(name, failure) for name, failure in pairs if failure]
  failures.sort(key=lambda pair: not pair[1].bad_rows)
  return dict(reversed(failures))  # It keeps the last of each tensor.


def _find_behind_codes(
  results: pass_case.Results, failures: Mapping[str, verdicts.Failure]
) -> dict[str, str]:
  """Returns what is said of results that only wrong codes make wrong.

  They are right from the codes that the kernel returned on, so no search among
  roundings is of use.
  """
  wrong_codes = [r.stage for r in results if r.failure and r.stage in _CODES]
  right_stages = {
    r.stage
    for r in results
    if (r.lane, r.verdict) == ('bounded', verdicts.PASS)
  }
  if not wrong_codes:
    return {}
  words = f'right from its own {wrong_codes[-1]} on'
  return {
    name: words
    for name, failure in failures.items()
    if failure.stage != name and name in right_stages
  }


def build_rounding_stage(
  case: pass_case.PassCase,
  answer: pass_case.Answer,
  name: str,
  exact: bool = False,
) -> roundings.RoundedStage:
  """Returns a stage of an answer, to be searched for roundings.

  Args:
    case: the pass.
    answer: what the candidate returned.
    name: of the stage.
    exact: whether right values are equal, so that no limits say more.
  """
  chain = (*case.list_unseen(name, answer.sources), name)
  actual = lazy_tensors.load_whole(answer.outputs[name])
  real = np.ones(actual.shape, bool)
  for rank in range(len(actual)):
    case.tiling.padding(name, real, rank)[:] = False

  computed = [stage for stage in chain if stage in case.sources]
  computed_stages: dict[tuple, np.ndarray] = {}

  def compute(policy: precision.PrecisionPolicy) -> pass_case.Arrays:
    of_policy = case.with_policy(policy)
    sources = dict(answer.sources)
    key: tuple = ()
    for stage in computed:
      sum_order = precision.order_of(stage, policy)
      of_gemm = policy.of_gemm(stage)
      form = of_gemm.rows, of_gemm.operand_forms
      is_activated = tensors.routed(stage) in roundings.ACTIVATED
      order_key = policy.placement, policy.dtype(stage), sum_order, form
      act = policy.form if is_activated else ''
      key = (*key, precision.points_of(stage, policy), *order_key, act)
      if key not in computed_stages:
        computed_stages[key] = lazy_tensors.load_whole(
          of_policy.recompute(stage, sources)
        )
      sources[stage] = computed_stages[key]
    return {stage: sources[stage] for stage in computed}

  def under(policy: precision.PrecisionPolicy) -> np.ndarray:
    return compute(policy)[name]

  def is_right(policy: precision.PrecisionPolicy) -> bool:
    wrong_elements = tolerance_lanes.find_refused(
      case.with_policy(policy), name, answer.sources, compute(policy), actual
    )
    return not wrong_elements.any()

  policy = case.inputs.policy
  return roundings.RoundedStage(
    name,
    policy,
    chain,
    actual,
    under(policy),
    real,
    under,
    None if exact else is_right,
    has_shared=bool(case.inputs.config.d_shared),
  )


def _list_weights(stage: str, placement: str) -> tuple[str, ...]:
  gemm_tables = (tensors.GEMMS, tensors.TRANSPOSED_GEMMS, tensors.WEIGHT_GRADS)
  is_copy = tensors.role(stage, placement) != 'compute'
  unweighted = is_copy or tensors.SPECS[stage].part == 'shared'
  is_gemm = any(stage in gemms for gemms in gemm_tables)
  return () if is_gemm or unweighted else ('topk_weights',)


def _build_failed_stage(
  options, case, answer, expected, failure, refuses, exact
) -> failed_stage.FailedStage:
  name, sources = verdicts.tensor_of(failure.stage), answer.sources
  arrays = {**case.inputs.arrays, **expected, **sources, **case.oracle.plan}
  arrays = {n: lazy_tensors.load_whole(a) for n, a in arrays.items()}
  unseen = case.list_unseen(name, sources)
  # Saved tensors that were not returned are the oracle's, in `case.inputs`.
  chain = (*(stage for stage in unseen if stage in case.sources), name)
  for stage in chain[:-1]:
    arrays[stage] = case.recompute(stage, sources)
  expected_stage = case.recompute(name, sources)
  bad = refuses(name, expected_stage)
  for rank in range(len(bad)):
    case.tiling.padding(name, bad, rank)[:] = False

  def recompute(bugs: known_bugs.Bugs) -> np.ndarray:
    computed = dict(arrays)
    has_begun = False
    for stage in chain:
      has_begun = has_begun or stage in bugs
      if not has_begun:
        continue
      read = {n: bug(computed[n]) for n, bug in bugs.get(stage, {}).items()}
      read = {
        n: np.ascontiguousarray(a) for n, a in read.items() if a is not None
      }
      policy = case.read_policy(stage, sources)
      read = {**case.read_token_codes(stage, sources), **read}
      computed[stage] = case.oracle.stage(stage, {**computed, **read}, policy)
    return computed[name]

  reads, placement = case.reads, case.inputs.policy.placement
  return failed_stage.FailedStage(
    name,
    failure.rank,
    lazy_tensors.load_whole(answer.outputs[name]),
    lazy_tensors.load_whole(expected_stage),
    bad,
    {
      stage: {
        n: arrays[n] for n in (*_list_weights(stage, placement), *reads[stage])
      }
      for stage in reversed(chain)
    },
    recompute,
    case.tiling,
    exact,
    quantised_misreads.list_misreads(
      case.inputs.policy.quantised,
      case.inputs.arrays,
      case.inputs.policy.x_form,
    ),
    {n: lazy_tensors.load_whole(a) for n, a in case.before.items()},
    [
      *_list_other_routings(options, case, name, sources),
      *(() if exact else _list_operand_mistakes(case, name, sources)),
      *(() if exact else _list_shared_scales(case, name, sources, chain)),
      *_list_variants(case, name, sources, chain, exact),
      *options.list_others(case, name, sources, chain),
    ],
  )


def _list_other_routings(
  options: pass_case.LaneOptions,
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
  """Yields y of kernels with a wrong routing, with a description."""
  for other in options.other_inputs if name == 'y' else ():
    inputs = case.inputs
    config = inputs.config
    if 'topk_ids' in other.arrays:
      ids = other.arrays['topk_ids']
      config = inputs_lib.with_capacity(
        dataclasses.replace(config, capacity=None), ids
      )
      config = dataclasses.replace(
        config, capacity=max(config.num_rows, inputs.config.num_rows)
      )
    arrays = {**inputs.arrays, **other.arrays}
    changed_inputs = dataclasses.replace(inputs, config=config, arrays=arrays)
    changed_case = dataclasses.replace(case, inputs=changed_inputs)
    usable = {} if 'topk_ids' in other.arrays else sources
    compute = functools.partial(changed_case.recompute, name, usable)
    yield f'as if {other.says}', '', compute


def _list_operand_mistakes(
  case: pass_case.PassCase, name: str, sources: passes.Tensors
) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
  """Yields a GEMM whose operands are quantised differently, with words."""
  if name not in recipes.OPERANDS or not case.has_all_sources(name, sources):
    return
  arrays, edges = {**case.inputs.arrays, **sources}, _list_edges(case)
  for operand in recipes.OPERANDS[name]:
    form = _find_plain_form(case, name, operand)
    if form is None:
      continue
    values = lazy_tensors.load_whole(arrays[operand])
    for says, other in operand_mistakes.list_mistakes(
      form, name, operand, values, edges
    ):
      compute = functools.partial(
        _multiply_other, case, name, sources, operand, other
      )
      yield f'as if {says} in {name}', '', compute


def _list_edges(case: pass_case.PassCase) -> list[np.ndarray]:
  """Returns, by rank, the first row of each expert and the end, `[L + 1]`."""
  config, counts = case.tiling.config, case.tiling.counts
  ranks = range(config.num_ranks)
  return [tiles.expert_rows(config, counts, rank) for rank in ranks]


def _find_plain_form(
  case: pass_case.PassCase, gemm: str, operand: str
) -> quantised.Form | None:
  """Returns the form of an operand, if its scales and codes are plain."""
  forms = case.inputs.policy.forms(gemm, operand)
  if not forms or forms[-1].reads_scale or forms[-1].is_packed:
    return None
  return forms[-1]


def _multiply_other(
  case: pass_case.PassCase,
  gemm: str,
  sources: passes.Tensors,
  operand: str,
  values: np.ndarray,
) -> np.ndarray:
  """Returns a GEMM that multiplies other values of an operand, as they are."""
  policy = case.inputs.policy
  fields = recipes.leave_out(policy.rows, policy.operand_forms, gemm, operand)
  read = {n: sources[n] for n in case.sources[gemm]} | {operand: values}
  return case.oracle.stage(gemm, read, dataclasses.replace(policy, **fields))


def _list_shared_scales(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  chain: tuple[str, ...],
) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
  """Yields a stage whose GEMMs give an expert's rows one scale, with words."""
  gemms = []
  for gemm in tensors.GEMMS:
    form = _find_plain_form(case, gemm, recipes.OPERANDS[gemm][0])
    if gemm in chain and form is not None and form.group[0] == 1:
      gemms.append(gemm)
  choices = [(gemm,) for gemm in gemms] + [(*gemms,)] * (len(gemms) > 1)
  for some_gemms in choices:
    compute = functools.partial(
      _share_scales, case, name, sources, chain, some_gemms
    )
    words = ' and '.join(some_gemms)
    yield f'as if all rows of an expert had one scale in {words}', '', compute


def _share_scales(case, name, sources, chain, gemms) -> np.ndarray:
  """Returns a stage, of GEMMs whose rows of an expert have one scale."""
  arrays, edges = dict(sources), _list_edges(case)
  for stage in (s for s in chain if s in case.sources):
    if stage not in gemms:
      arrays[stage] = lazy_tensors.load_whole(case.recompute(stage, arrays))
      continue
    operand = recipes.OPERANDS[stage][0]
    form = _find_plain_form(case, stage, operand)
    rows = lazy_tensors.load_whole({**case.inputs.arrays, **arrays}[operand])
    values = operand_mistakes.share_scales(form, rows, edges)
    arrays[stage] = lazy_tensors.load_whole(
      _multiply_other(case, stage, arrays, operand, values)
    )
  return arrays[name]


def _list_variants(
  case: pass_case.PassCase,
  name: str,
  sources: passes.Tensors,
  chain: tuple[str, ...],
  exact: bool,
) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
  """Yields the stage under other policies, with words; none in lane exact."""
  changes = [] if exact else [*_list_other_policies(case, chain)]
  for words, flag, policy in changes:
    compute = functools.partial(
      case.with_policy(policy).recompute, name, sources
    )
    passes_words = ', in both passes' if words.startswith('the slope') else ''
    yield f'as if {words}; {flag} allows it{passes_words}', '', compute


def _list_other_policies(
  case: pass_case.PassCase, chain: tuple[str, ...]
) -> Iterator[tuple[str, str, precision.PrecisionPolicy]]:
  """Yields words, flag and policy with another activation or placement.

  A placement changes only roundings if both stages that it concerns are in the
  chain: the search for roundings then tries it.
  """
  own = case.inputs.policy
  if not roundings.ACTIVATED.isdisjoint(map(tensors.routed, chain)):
    noun = roundings.name_activation(chain)
    for form in precision.list_other_forms(own):
      policy = precision.with_form(own, form)
      yield f'{noun} {form}', f'--activation={form}', policy
  for placement, weighted_stage in tensors.WEIGHTED.items():
    stages = {weighted_stage, tensors.WEIGHTED[own.placement]}
    if placement != own.placement and len(stages & {*chain}) == 1:
      words = f'the routing weight multiplied at {placement}'
      policy = dataclasses.replace(own, placement=placement)
      yield words, f'--placement={placement}', policy
