r"""Counts how often right kernels fail: layers in numpy, by three judges.

By stage: each stage and gradient of a layer, in lane bounded.  Whole: checks in
lanes exact, bounded and standard, both passes.  Quantised: y of layers of every
form, and of rows in codes, in lane bounded.  Under a policy: results alone of
both passes, with each rounding point and each tensor narrower than float32, in
lane bounded.  Combined: both passes of layers whose dtype, sizes, routing,
activation, bias, shared experts and policy (a named one, or up to three
roundings) are drawn together, in lanes exact and bounded.  With a router:
backward passes through a router's GEMM of every rule, in lane bounded, whose
dtype, sizes, precision and returned gradients are drawn.  Elsewhere dtypes,
placements of the routing weight, orders of sums, and what multiplies a scale
take turns by seed.

Exit code 0: none failed; 1: one did.

Example:
  python -m benchmarks.right_kernels --keep
  python -m benchmarks.right_kernels --stages=10 --checks=1 --codes=1 \
    --policies=0 --combined=20 --routers=4
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import sys
from typing import Any

from absl import app
from absl import flags
import numpy as np

from hpmoe.parity_tests import api
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import quantised_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import trial_verdicts_testing as trial_verdicts
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.router import router_grads_testing
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import router as router_lib
from hpmoe.tools.docs import figures

_STAGES = flags.DEFINE_integer('stages', 1000, 'Layers judged by stage.')
_CHECKS = flags.DEFINE_integer('checks', 48, 'Layers checked whole.')
_CODES = flags.DEFINE_integer('codes', 200, 'Layers of each quantised form.')

_POLICIES = flags.DEFINE_integer('policies', 4, 'Layers of each policy.')

_COMBINED = flags.DEFINE_integer('combined', 200, 'Layers drawn as a whole.')
_ROUTERS = flags.DEFINE_integer('routers', 100, "Layers with a router's GEMM.")

_DTYPES = ('float32', 'bfloat16', 'float16')
_ORDERS = tuple(trial.ORDERS.values())
_ROUNDED = ('bfloat16', 'float16', 'storage', 'accumulate')
_ACTIVATIONS = (*precision.ACTIVATIONS, *precision.FORMS)
_CONFIG = dataclasses.replace(
  presets.config(presets.get('tiny'), 2, 8), capacity=64
)
_LANES = ('exact', 'bounded', 'standard')
# Of a rule with groups.
_GROUPS = ':groups=4:top_groups=2:scale=2.5'


def choose(seed: int) -> tuple[str, str, trial.Kernel]:
  """Returns the dtype, the placement and the kernel of a seed."""
  turn = seed // len(_DTYPES)
  placement = precision.PLACEMENTS[turn % len(precision.PLACEMENTS)]
  kernel = trial.Kernel(_ORDERS[turn % len(_ORDERS)])
  return _DTYPES[seed % len(_DTYPES)], placement, kernel


def fails_by_stage(seed: int) -> bool:
  """Returns whether a stage or gradient of a right layer fails."""
  dtype, placement, kernel = choose(seed)
  policy = precision.PrecisionPolicy(dtype, placement=placement)
  inputs = trial_verdicts.with_saved(trial_verdicts.draw(_CONFIG, policy, seed))
  results: list[verdicts.Result] = []
  for run in (kernel.forward, kernel.backward):
    outputs = run(inputs.config, policy, inputs.arrays)
    results += trial_verdicts.judge_stages(inputs, outputs).values()
  return has_failed(results)


def fails_whole(seed: int) -> bool:
  """Returns whether a check of a right layer fails."""
  dtype, placement, kernel = choose(seed)
  candidate = numpy_testing.Numpy(kernel, everything=seed // 3 % 5 > 0)
  results = numpy_testing.check_rows(
    candidate,
    _LANES,
    seed=seed,
    tokens=8,
    capacity=64,
    dtype=dtype,
    direction='both',
    policy=(f'placement={placement}',),
  )
  return has_failed(results)


def has_failed(results) -> bool:
  """Returns whether a result fails; one must have passed.

  Raises:
    ValueError: nothing was judged.
  """
  verdicts_of_results = {result.verdict for result in results}
  if verdicts_of_results <= {verdicts.NOT_JUDGED}:
    raise ValueError('results: expected a verdict, got none')
  return verdicts.FAIL in verdicts_of_results


def fails_in_codes(form: str, rows: str, quantiser: str, seed: int) -> bool:
  """Returns whether y of a right layer of codes fails."""
  kernel = quantised_testing.Kernel(('sums', 'terms')[seed % 2], rows=quantiser)
  if rows:
    kernel = quantised_testing.Kernel(rows=quantiser)
  dtype = _DTYPES[seed // 2 % len(_DTYPES)]
  inputs = quantised_testing.draw_inputs(form, dtype, seed, rows)
  return bool(quantised_testing.list_failed_rules(inputs, kernel))


def list_policies() -> list[str]:
  """Returns words that round one point, or store one tensor, narrower."""
  dtypes = ('bfloat16', 'float16')
  words = [f'{name}={dtype}' for dtype in dtypes for name in precision.POINTS]
  return [*words, 'operands=tf32', 'operands=tf32_rz']


def fails_under_policy(word: str, seed: int) -> bool:
  """Says whether results of a right float32 layer under a policy fail."""
  kernel = trial.Kernel(_ORDERS[seed % len(_ORDERS)])
  placement = precision.PLACEMENTS[seed % len(precision.PLACEMENTS)]
  case = case_lib.Case(
    preset='tiny',
    ranks=2,
    seed=seed,
    direction='both',
    policy=(word, f'placement={placement}'),
  )
  candidate = numpy_testing.Numpy(kernel, everything=False)
  bench = bench_lib.Bench(case)
  return bool(numpy_testing.list_refused(bench, case, candidate, 'bounded'))


def draw_combination(seed: int) -> case_lib.Case:
  """Returns a case whose fields are drawn together."""
  rng = np.random.default_rng(seed)

  def choose_one(choices: Sequence):
    return choices[rng.integers(len(choices))]

  top_k = choose_one((1, 2, 4))
  routing = choose_one(inputs_lib.ROUTINGS)
  # A routing that drops tokens needs two, so that one has a row.
  fewest = 1 + (routing in routings.DROPPING)
  return case_lib.Case(
    direction='both',
    preset=f'tiny:top_k={top_k}',
    ranks=choose_one((1, 2, 4)),
    tokens=choose_one((fewest, 7, 16, 33)),
    dtype=choose_one(_DTYPES),
    routing=routing,
    seed=seed,
    placement=choose_one(precision.PLACEMENTS),
    policy=_draw_policy(choose_one),
    activation=choose_one(_ACTIVATIONS),
    bias=choose_one((False, True)),
    d_shared=choose_one((0, 0, 8)),
  )


def _draw_policy(choose_one: Callable[[Sequence], Any]) -> tuple[str, ...]:
  """Returns the name of a policy, or up to three words of others."""
  if choose_one((True, False)):
    return (choose_one([*policies.POLICIES]),)
  words = {
    choose_one([*precision.POINTS]): choose_one(_ROUNDED)
    for _ in range(choose_one(range(4)))
  }
  return tuple(f'{name}={dtype}' for name, dtype in words.items())


def fails_combined(seed: int) -> bool:
  """Returns whether a right layer of `draw_combination` fails."""
  case = draw_combination(seed)
  kernel = trial.Kernel(_ORDERS[seed % len(_ORDERS)])
  candidate = numpy_testing.Numpy(kernel, everything=seed % 2 > 0)
  bench = bench_lib.Bench(case)
  return bool(numpy_testing.list_refused(bench, case, candidate, *_LANES[:2]))


def draw_router_case(seed: int) -> tuple[case_lib.Case, tuple[str, ...]]:
  """Returns a backward pass through a router's GEMM, and what it returns."""
  rng = np.random.default_rng(seed)

  def choose_one(choices: Sequence):
    return choices[rng.integers(len(choices))]

  name, rule = choose_one([*router_lib.RULES.items()])
  case = case_lib.Case(
    direction='backward',
    preset='tiny:experts=16:top_k=4',
    router=name + _GROUPS * rule.grouped,
    router_gemm=True,
    ranks=choose_one((1, 2, 4)),
    tokens=choose_one((3, 7, 16, 33)),
    dtype=choose_one(_DTYPES),
    seed=seed,
    policy=choose_one(('', 'd_router_in=f32', 'd_router_w=f32')),
  )
  returns = [n for n in router_grads_testing.ALL if rng.integers(2)]
  return case, tuple(returns)


def fails_with_router(seed: int) -> bool:
  """Returns whether a right layer of `draw_router_case` fails."""
  case, returns = draw_router_case(seed)

  def layer(inputs, config, policy):
    raise AssertionError('only its backward pass is called')

  layer.backward = functools.partial(
    router_grads_testing.differentiate,
    word=case.router,
    returns=returns,
    kernel=trial.Kernel(_ORDERS[seed % len(_ORDERS)]),
  )
  return not api.check(layer, case, lanes=['bounded']).is_pass


def judge_all(
  stages: int,
  checks: int,
  codes: int,
  policies: int,
  combined: int,
  routers: int,
) -> Iterator[tuple[str, bool]]:
  """Yields each layer's row of the table, and whether it fails."""
  for seed in range(stages):
    yield 'judged by stage', fails_by_stage(seed)
  for seed in range(checks):
    yield 'judged end to end', fails_whole(seed)
  forms = [(form, '', '') for form in quantised.OF_VALUES]
  for form, rows, quantiser in (*forms, *quantised_testing.DYNAMIC):
    for seed in range(codes):
      yield 'quantised', fails_in_codes(form, rows, quantiser, seed)
  for number, word in enumerate(list_policies()):
    for seed in range(number, number + policies):
      yield 'under a policy', fails_under_policy(word, seed)
  for seed in range(combined):
    yield 'combined', fails_combined(seed)
  for seed in range(routers):
    yield 'with a router', fails_with_router(seed)


def main(argv):
  del argv
  counts: dict[str, list[int]] = {}
  numbers = _STAGES, _CHECKS, _CODES, _POLICIES, _COMBINED, _ROUTERS
  for row, fails in judge_all(*(number.value for number in numbers)):
    count = counts.setdefault(row, [0, 0])
    count[0] += 1
    count[1] += fails
    if count[0] % 500 == 0 or fails:
      print(row, *count, flush=True)
  rows = [[row, *map(str, count)] for row, count in counts.items()]
  for cells in rows:
    print(*cells, sep='\t')
  if figures.KEEP.value:
    words = [word for word in sys.argv[1:] if word != '--keep']
    command = ' '.join(['python -m benchmarks.right_kernels', *words])
    columns = ['right', 'layers', 'fail']
    figures.write('right_kernels', columns, rows, [figures.run(command)])
  return int(any(count[1] for count in counts.values()))


if __name__ == '__main__':
  app.run(main)
