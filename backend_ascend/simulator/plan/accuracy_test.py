"""What is said of modelled plans is what published ones came out as."""

import pytest

from hpmoe.backend_ascend.simulator.plan import accuracy
from hpmoe.backend_ascend.simulator.reproduce import pangu


@pytest.mark.slow
def test_errors_are_those_of_the_reproduction():
  # Given the published plans, when they are modelled with nothing fitted, then
  # rates and ratios are off by what the table says.
  machines = pangu.WITNESS.load()
  share = machines[pangu.NPU]['run_share']
  values = pangu._values(pangu.Rates(machines, lambda text: None))
  published = {row.name: row.published for row in pangu.WITNESS.rows}
  for rate in accuracy.RATES:
    name = f'tokens/s of a GPU, {rate.name}'
    modelled = values.get(name, values[pangu._FAST] / share)
    ratio = modelled / published.get(name, published[pangu._FAST])
    assert rate.ratio == pytest.approx(ratio, abs=6e-4), rate.name
  assert len(accuracy.RATES) == 1 + len(pangu._GPU_RUNS)
  assert set(accuracy.RATIOS) == {
    row.name for row in pangu.WITNESS.rows if row.group == 'ratios'
  }
  for name, ratio in accuracy.RATIOS.items():
    assert ratio == pytest.approx(values[name] / published[name], abs=6e-4)
  assert pytest.approx(1 / 0.713) == accuracy.RESOLUTION


@pytest.mark.parametrize(
  'parameters, family, names',
  [
    (30e9, 'ascend', ['Qwen3-30B, 16 H100']),
    (1e9, 'hopper', ['Qwen3-30B, 16 H100']),
    (700e9, 'ascend', ['Pangu Ultra MoE, 6144 NPUs']),
    (1e12, 'hopper', ['DeepSeek-V3, 2048 H800', 'DeepSeek-V3, 1024 H100']),
  ],
)
def test_a_plan_is_compared_with_published_ones_of_its_kind(
  parameters, family, names
):
  rates = accuracy.similar_rates(parameters, family)
  assert [rate.name for rate in rates][: len(names)] == names


def test_a_figure_is_off_as_published_ones_were():
  # Given plans that were modelled 2 and 0.5 times too fast, when a rate of 100
  # and a time of 3 s are modelled, then they are 50 to 200, and 1.5 to 6 s.
  rates = [
    accuracy.PublishedRate('fast', 'hopper', 1e9, 2.0),
    accuracy.PublishedRate('slow', 'hopper', 1e9, 0.5),
  ]
  assert accuracy.corrected(100.0, rates) == (50.0, 200.0)
  assert accuracy.corrected(3.0, rates, 1) == (1.5, 6.0)


def test_no_ranking_within_the_error():
  # Given times, when plans within a factor of 1.4 of the first of a group are
  # not told apart, then they share its ranks.
  seconds = [1.0, 1.3, 1.4, 1.41, 1.9, 2.5]
  assert accuracy.rank_groups(seconds, 1.4) == [
    *[(1, 3)] * 3,
    *[(4, 5)] * 2,
    (6, 6),
  ]
  assert accuracy.rank_groups([]) == []
