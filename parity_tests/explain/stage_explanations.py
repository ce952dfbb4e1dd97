"""Explains the stages of a pass that fail: which bug or rounding fits them."""

from collections.abc import Callable
import dataclasses
import functools

import numpy as np

from hpmoe.parity_tests.case import lazy_tensors
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.explain import explain
from hpmoe.parity_tests.explain import quantised_misreads
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import pass_case
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors


def explain_results(
  asked: pass_case.LaneOptions,
  case: pass_case.PassCase,
  answered: pass_case.Answer,
  expected: passes.Tensors,
  results: pass_case.Results,
  refuses: Callable[[str, np.ndarray], np.ndarray],
  exact: bool,
) -> pass_case.Results:
  """Tells of stages that fail what they look like.

  Of the first one, or of each that is wrong in itself, see `explain`; of each
  where only roundings are, `roundings`.
  Not where some ranks are judged alone: it takes the tensors of all.

  Args:
    asked: where roundings are looked for.
    case: the pass.
    answered: what the candidate returned.
    expected: tensors of the oracle's.
    results: of one lane.
    refuses: returns `[R, ...]` bool, the elements that the lane refuses, of a
      stage's name and of what it should be.
    exact: whether right values are equal.
  """
  if not asked.explain or case.tiling.ranks is not None or case.tiling.sample:
    return results
  failures = {
    verdicts.tensor_of(r.stage): r.failure
    for r in reversed(results)
    if r.failure
  }
  words: dict[str, str] = {}
  # Relayed rows have bits only.
  for name in (n for n in case.which.stages if n in failures):
    failure = failures[name]
    # In lane exact what is wrong spreads, elsewhere each has its own reason.
    first = not words or not exact and failure.stage == name
    told, whole = '', False
    if first and failure.bad_rows:
      stage = _build_failed_stage(
        case, answered, expected, failure, refuses, exact
      )
      told, whole = explain.explain(stage, failure.pattern)
    looked = asked.roundings is None or name in asked.roundings
    # A hundred roundings need not be tried where one bug is enough.
    if looked and pass_case.is_small(case) and not whole:
      rounded = _build_rounding_stage(case, answered, name)
      with oracle_lib.in_passing():
        told = roundings.explain(rounded) or told
    words[name] = told or failure.pattern

  def tell(result: verdicts.Result) -> verdicts.Result:
    name = verdicts.tensor_of(result.stage)
    if result.failure is None or name not in words:
      return result
    change = functools.partial(dataclasses.replace, pattern=words[name])
    return result.part.but(change)

  return [tell(r) for r in results]


def _build_rounding_stage(
  case: pass_case.PassCase, answered: pass_case.Answer, name: str
) -> roundings.Stage:
  chain = (*case.unseen(name, answered.sources), name)
  got = lazy_tensors.whole(answered.got[name])
  real = np.ones(got.shape, bool)
  for rank in range(len(got)):
    case.tiling.padding(name, real, rank)[:] = False

  computed = [one for one in chain if one in case.sources]
  held: dict[tuple, np.ndarray] = {}

  def under(policy: precision.PrecisionPolicy) -> np.ndarray:
    of_policy = case.under(policy)
    known = dict(answered.sources)
    key: tuple = ()
    for one in computed:
      order = precision.order_of(one, policy)
      where = policy.placement, policy.dtype(one), order
      key = (*key, precision.points_of(one, policy), *where)
      if key not in held:
        held[key] = lazy_tensors.whole(of_policy.recompute(one, known))
      known[one] = held[key]
    return known[name]

  policy = case.made.policy
  expected = under(policy)
  return roundings.Stage(name, policy, chain, got, expected, real, under)


def _list_weights(stage: str) -> tuple[str, ...]:
  gemms = (tensors.GEMMS, tensors.TRANSPOSED_GEMMS, tensors.WEIGHT_GRADS)
  spec = tensors.SPECS[stage]
  unweighted = spec.role != 'compute' or spec.part == 'shared'
  is_gemm = any(stage in some for some in gemms)
  return () if is_gemm or unweighted else ('topk_weights',)


def _build_failed_stage(
  case, answered, expected, failure, refuses, exact
) -> explain.Stage:
  name, sources = verdicts.tensor_of(failure.stage), answered.sources
  held = {**case.made.arrays, **expected, **sources, **case.oracle.plan}
  held = {n: lazy_tensors.whole(a) for n, a in held.items()}
  before = case.unseen(name, sources)
  # What its forward pass kept to itself is the oracle's, in `made`.
  chain = (*(one for one in before if one in case.sources), name)
  for one in chain[:-1]:
    held[one] = case.recompute(one, sources)
  right = case.recompute(name, sources)
  bad = refuses(name, right)
  for rank in range(len(bad)):
    case.tiling.padding(name, bad, rank)[:] = False

  def recompute(bugs: explain.Bugs) -> np.ndarray:
    made = dict(held)
    begun = False
    for one in chain:
      begun = begun or one in bugs
      if not begun:
        continue
      read = {n: bug(made[n]) for n, bug in bugs.get(one, {}).items()}
      read = {
        n: np.ascontiguousarray(a) for n, a in read.items() if a is not None
      }
      made[one] = case.oracle.stage(one, {**made, **read})
    return made[name]

  reads = tensors.reads(case.made.config, case.made.policy.placement)
  return explain.Stage(
    name,
    failure.rank,
    lazy_tensors.whole(answered.got[name]),
    lazy_tensors.whole(right),
    bad,
    {
      one: {n: held[n] for n in (*_list_weights(one), *reads[one])}
      for one in reversed(chain)
    },
    recompute,
    case.tiling,
    exact,
    quantised_misreads.of(case.made.policy.quantised, case.made.arrays),
    {n: lazy_tensors.whole(a) for n, a in case.before.items()},
  )
