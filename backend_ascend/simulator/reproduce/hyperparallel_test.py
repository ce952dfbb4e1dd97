"""The paper's layer, small: who is faster and what a permutation costs."""

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.backend_ascend.simulator.reproduce import fit
from hpmoe.backend_ascend.simulator.reproduce import hyperparallel
from hpmoe.backend_ascend.simulator.reproduce import score
from hpmoe.reference.contract import config_testing

_SMALL = config_testing.make_config(r=4, t=512, e=32, k=8, d=1024, f=512)


@pytest.fixture(scope='module')
def machine():
  return machine_lib.load('ascend_a3')


@pytest.mark.parametrize(
  'system, all_aiv, cores',
  [('system', True, 48), ('system', False, 24), ('baseline', False, 48)],
)
def test_the_point_is_the_published_one(system, all_aiv, cores):
  # Given balanced routing, then a die has 32768 rows and an expert 4096, and
  # all cores work in the baseline, in the system those of the hypothesis.
  hypotheses = hyperparallel.Hypotheses(all_aiv=all_aiv)
  for case in hyperparallel.cases(
    hyperparallel.config(8), system, hypotheses=hypotheses
  ).values():
    options = case.options
    assert (options.num_aic, options.num_aiv) == (24, cores)
    assert (case.config.capacity, options.expert_capacity) == (32768, 4096)


def test_a_permutation_reads_and_writes_every_row(machine):
  # Given two permutations of [T * K, D] in bfloat16, when HBM is the limit,
  # then they take two launches and four times those bytes.
  row_bytes = 512 * 8 * 1024 * 2
  expected = 2 * machine['launch'] + 4 * row_bytes / machine['hbm']
  seconds = hyperparallel.permutation(machine, _SMALL)
  assert seconds == pytest.approx(expected)


@pytest.mark.slow
def test_a_window_explains_two_hops(machine):
  # Given nodes of 8 dies, and of a put no more on its way than over one hop,
  # when the table is simulated, then over two hops an AIV has window over
  # latency, 3.04 GB/s; EP4 and EP8, which are one node, have the same bits; and
  # errors are those that `--hypotheses` prints.
  (window,) = (v for v in hyperparallel.WITNESS.variants if '8 dies' in v.text)
  hypotheses = window.witness.run.__self__
  held_up = machine.with_figures(**hypotheses.figures)
  a, b = held_up['aiv_window'] / held_up['far_latency'], held_up['aiv_link']
  assert (a, b) == (pytest.approx(3.036e9, rel=1e-3), machine['aiv_link'])
  machines = window.witness.load()
  plain = dict(hyperparallel.Hypotheses().run(machines, print))
  values = window.witness.simulate(machines, print)
  changed_names = {name for name in values if values[name] != plain[name]}
  assert changed_names == {
    name for name in values if 'EP16' in name and 'baseline' not in name
  }
  groups = score.score(window.witness, values, machines).groups
  errors = {group.name: f'{group.mean_error:.2%}' for group in groups}
  assert errors == dict(latency='1.13%', speedup='1.10%')
  assert all(group.holds for group in groups)


@pytest.mark.slow
def test_the_paper_is_reproduced():
  # Given the figures of the machine files, when the whole witness runs, then
  # the goals of the held-out rows are met, another fit of the EP4 rows changes
  # none of them, and the same figures give the same values.
  witness = hyperparallel.WITNESS
  machines = witness.load()
  values = witness.simulate(machines, print)
  assert score.score(witness, values, machines).holds
  assert witness.simulate(machines, print) == values
  fitted = dict(machines)
  for (name, figure), value in fit.fit(witness, machines, print).items():
    fitted[name] = fitted[name].with_figures(**{figure: value})
  refitted = witness.run_fitted(fitted, print)
  for row in witness.rows:
    if row.fitted and row.group == 'latency':
      # Published to a tenth of a millisecond.
      assert abs(values[row.name] - row.published) <= 0.05
      assert abs(refitted[row.name] - values[row.name]) <= 0.05
