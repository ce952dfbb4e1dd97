r"""How often right kernels fail: 1,000 layers, and 200 of every quantised form.

Each stage and gradient of a layer is judged in lane bounded, and some layers by
whole checks: in lanes exact, bounded and standard, both passes.  Dtypes,
placements of the routing weight, orders of sums, and in checks what is returned
take turns by seed.  Layers of codes are judged by y in lane bounded, where
scales multiply terms or sums.  A row counts layers and those that fail; `each`
of the figures has them by dtype and form.

Example:
  python -m benchmarks.right_kernels --keep
  python -m benchmarks.right_kernels --seeds=10
"""

from collections.abc import Iterator
import dataclasses

from absl import app
from absl import flags

from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import quantised_testing
from hpmoe.parity_tests.judge import trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import quantised
from hpmoe.tools.docs import figures

_SEEDS = flags.DEFINE_integer('seeds', 1000, 'Layers without codes, by stage.')
_CHECKED = flags.DEFINE_integer('checked', 48, 'Layers checked whole.')
_OF_FORM = flags.DEFINE_integer('of_form', 200, 'Layers of each form.')

_COLUMNS = ('right', 'layers', 'fail')
_BY_STAGE, _WHOLE, _CODES = 'by_stage', 'checked_whole', 'quantised'
_DTYPES = ('float32', 'bfloat16', 'float16')
_ORDERS = (
  *(trial.blas, trial.ascending, trial.descending),
  *(trial.even_odd, trial.blocked, trial.pairwise),
)
_CONFIG = dataclasses.replace(
  presets.config(presets.get('tiny'), 2, 8), capacity=64
)
# The row, the line of `each`, and whether it fails.
Layers = Iterator[tuple[str, str, bool]]


def _of_seed(seed: int) -> tuple[str, str, trial.Kernel]:
  """Returns a dtype, a placement and a kernel."""
  turn = seed // 3
  placement = precision.PLACEMENTS[turn % len(precision.PLACEMENTS)]
  kernel = trial.Kernel(_ORDERS[turn % len(_ORDERS)])
  return _DTYPES[seed % 3], placement, kernel


def _stages(seeds: int) -> Layers:
  """Yields of each layer its row, whether it fails and is explained."""
  for seed in range(seeds):
    dtype, placement, kernel = _of_seed(seed)
    policy = precision.PrecisionPolicy(dtype, placement=placement)
    made = trial.with_saved(trial.draw(_CONFIG, policy, seed))
    rows = []
    for run in (kernel.forward, kernel.backward):
      got = run(made.config, policy, made.arrays)
      rows += trial.judge_stages(made, got).values()
    assert any(r.verdict == verdicts.PASS for r in rows), seed
    fails = any(r.verdict == verdicts.FAIL for r in rows)
    yield _BY_STAGE, dtype, fails


def _checked(seeds: int) -> Layers:
  for seed in range(seeds):
    dtype, placement, kernel = _of_seed(seed)
    found = numpy_testing.judged(
      numpy_testing.Numpy(kernel, everything=seed // 3 % 5 > 0),
      ('exact', 'bounded', 'standard'),
      seed=seed,
      tokens=8,
      capacity=64,
      dtype=dtype,
      direction='both',
      policy=(f'placement={placement}',),
    )
    judged = [r for r in found if r.verdict != verdicts.NOT_JUDGED]
    assert judged, seed
    fails = any(r.verdict == verdicts.FAIL for r in judged)
    yield _WHOLE, f'{dtype}, checked', fails


def _of_codes(form: str, rows: str, how: str, seeds: int) -> Layers:
  for seed in range(seeds):
    kernel = quantised_testing.Kernel(('sums', 'terms')[seed % 2], rows=how)
    made = quantised_testing.drawn(form, _DTYPES[seed // 2 % 3], seed, rows)
    fails = bool(quantised_testing.failed(made, kernel))
    yield _CODES, f'{form}, rows {rows}' if rows else form, fails


def _all() -> Layers:
  yield from _stages(_SEEDS.value)
  yield from _checked(_CHECKED.value)
  for form in quantised.FORMS:
    yield from _of_codes(form, '', '', _OF_FORM.value)
  for form, rows, how in quantised_testing.DYNAMIC:
    if how not in _OTHER:
      yield from _of_codes(form, rows, how, _OF_FORM.value)


# A second way to compute what another row has.
_OTHER = ('int8 divide', 'e4m3 128 reciprocal')


def main(argv):
  del argv
  sums: dict[str, list[int]] = {}
  each: dict[str, list[int]] = {}
  for done, (row, line, fails) in enumerate(_all(), 1):
    for counts, name in ((sums, row), (each, line)):
      layers, failed = counts.setdefault(name, [0, 0])
      counts[name] = [layers + 1, failed + fails]
    if done % 50 == 0:
      print(done, line, *each[line], flush=True)
  for line in _told(each):
    print(*line, sep='\t')
  figures.keep(
    'right_kernels', 'right_kernels', _COLUMNS, _told(sums), each=_told(each)
  )
  return int(any(failed for _, failed in sums.values()))


def _told(counts: dict[str, list[int]]) -> list[list[str]]:
  return [[name, *map(str, row)] for name, row in counts.items()]


if __name__ == '__main__':
  app.run(main)
