"""The search for roundings misses no policy under which a kernel is right."""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import re

import numpy as np
import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge.lanes import pass_case
from hpmoe.parity_tests.judge.lanes import stage_explanations
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

Words = tuple[str, ...]
PLAIN = ('placement=combine', 'sum_order=slot')
CASES = {
  'tiny': dict(preset='tiny', ranks=2),
  'small': dict(preset='small', ranks=4, tokens=64),
  'deep': dict(preset='tiny:top_k=4:d_model=160:d_ff=144', ranks=2),
  'shared': dict(preset='tiny', ranks=2, d_shared=8),
}


def list_words(dtype: str, everything: bool, d_shared: int) -> list[str]:
  """Returns the words of the policy that a forward kernel may have.

  Who returns a tensor returns it in the dtype that the policy says.
  """
  narrow = 'bfloat16' if dtype == 'float32' else dtype
  inside = [p.name for p in precision.INSIDE if not p.name.startswith('d_')]
  if not d_shared:
    inside.remove(precision.ROUTED_SUMS['y'])
  words = [f'{name}={narrow}' for name in inside if name != 'operands']
  # Limits from y alone do not hold for narrower tensors of a float32 layer.
  unseen = ('gate_up', 'activation', 'expert_out')
  unseen = () if everything or dtype == 'float32' else unseen
  words += [f'{name}=float32' for name in unseen]
  # Where all is returned a placement is no rounding: see below.
  placements = () if everything else precision.ALIKE_PLACEMENTS[1:]
  words += [f'placement={name}' for name in placements]
  words += [f'sum_order={name}' for name in precision.ROW_ORDERS[1:]]
  if dtype == 'float32':
    words += ['operands=tf32', 'operands=bfloat16']
  return words


def list_sets(dtype: str, everything: bool, d_shared: int = 0) -> list[Words]:
  """Returns all words, and all pairs of them."""
  words = list_words(dtype, everything, d_shared)
  pairs = itertools.combinations(words, 2)
  names = lambda pair: {word.partition('=')[0] for word in pair}
  return [*((w,) for w in words), *(p for p in pairs if len(names(p)) == 2)]


class Search:
  """A case, and what is said of kernels that round elsewhere."""

  def __init__(self, name: str, dtype: str, everything: bool):
    self.case = case_lib.Case(direction='forward', dtype=dtype, **CASES[name])
    self.everything = everything
    self.bench = bench_lib.Bench(self.case, keep=True)
    inputs = self.bench.real_inputs
    self.layer = self.bench.case(numpy_testing.Numpy(), passes.FORWARD, inputs)
    self._under = None

  def find_missed(
    self, word_sets: Sequence[Words], kernel: trial.Kernel | None = None
  ) -> list[Words]:
    """Returns sets whose kernel fails, and is right under no policy named."""
    unnamed_sets = []
    for words in word_sets:
      candidate = numpy_testing.Numpy(
        kernel or trial.Kernel(), self.everything, words=(*PLAIN, *words)
      )
      policies = self._name_policies(candidate)
      is_named = any({*policy} <= {*words} for policy in policies)
      if is_named or not self._list_failed(candidate, ()):
        continue
      if all(self._list_failed(candidate, policy) for policy in policies):
        unnamed_sets.append(words)
    return unnamed_sets

  def _name_policies(self, candidate) -> list[Words]:
    outputs = self.layer.run(candidate.run)
    answer = pass_case.Answer(outputs, outputs, None)
    names = [n for n in outputs if tensors.SPECS[n].role == 'compute']
    texts = [self._explain(answer, n) for n in names]
    matches = (re.search(r'--policy=(\S+) allows', text) for text in texts)
    return [tuple(m[1].split(',')) for m in matches if m]

  def _explain(self, answer: pass_case.Answer, name: str) -> str:
    stage = stage_explanations.build_rounding_stage(self.layer, answer, name)
    if not self.everything:
      # From y alone all kernels are compared with the same computed stages.
      self._under = self._under or functools.cache(stage.under)
      stage = dataclasses.replace(stage, under=self._under)
    with oracle_lib.compile_less():
      return roundings.explain(stage)[0]

  def _list_failed(self, candidate, policy: Words) -> set[str]:
    case = dataclasses.replace(self.case, policy=policy)
    bench = bench_lib.Bench(case) if policy else self.bench
    failures = numpy_testing.list_refused(bench, case, candidate, 'bounded')
    return {stage for _, stage in failures}


@pytest.mark.slow
@pytest.mark.parametrize('everything', [True, False], ids=['all', 'y'])
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('name', CASES)
def test_no_word_and_no_pair_is_missed(name, dtype, everything):
  search = Search(name, dtype, everything)
  word_sets = list_sets(dtype, everything, search.case.d_shared)
  assert not search.find_missed(word_sets)


@pytest.mark.slow
def test_what_acts_together_is_found():
  # Of these pairs neither word alone leaves less of the error.
  pairs = [
    ('silu=bfloat16', 'gate_up=float32'),
    ('product=bfloat16', 'placement=before_down'),
    ('running_sum=bfloat16', 'sum_order=expert'),
    ('running_sum=bfloat16',),
  ]
  assert not Search('tiny', 'bfloat16', False).find_missed(pairs)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['small', 'deep'])
def test_a_sum_that_begins_whole_is_found(name):
  # Its bits are not the oracle's: it is right by the limits.
  search = Search(name, 'bfloat16', False)
  kernel = trial.Kernel(first_row_whole=True)
  assert not search.find_missed([('running_sum=bfloat16',)], kernel)


@pytest.mark.slow
def test_what_no_rounding_explains_is_said_with_what_was_tried():
  # Given errors as large as roundings, which are none,
  noise = np.random.default_rng(5).normal(size=(2, 16, 32))

  class Noisy(numpy_testing.Numpy):
    def run(self, *arguments, **options):
      outputs = super().run(*arguments, **options)
      y = outputs['y'].astype(np.float64) * (1 + noise * 2.0**-7)
      return {**outputs, 'y': y.astype(outputs['y'].dtype)}

  # when y alone is judged,
  case = dict(dtype='bfloat16', direction='forward')
  candidate = Noisy(everything=False)
  results = numpy_testing.check_rows(candidate, ('bounded',), **case)
  # then
  pattern = next(r.failure.pattern for r in results if r.failure)
  assert re.search('; no rounding, of [0-9]+ that were tried, expl', pattern)


@pytest.mark.parametrize('placement', precision.PLACEMENTS[1:])
@pytest.mark.few(1)
def test_another_placement_is_named_where_all_is_returned(placement):
  candidate = numpy_testing.Numpy(words=(f'placement={placement}',))
  results = numpy_testing.check_rows(
    candidate, ('bounded',), dtype='bfloat16', direction='forward'
  )
  pattern_by_stage = {r.stage: r.failure.pattern for r in results if r.failure}
  words = f'as if the routing weight multiplied at {placement}; --placement='
  assert words in pattern_by_stage[tensors.WEIGHTED[placement]]
