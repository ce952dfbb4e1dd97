"""The errors of published systems are what the page says."""

import pytest

from hpmoe.backend_ascend.simulator.reproduce import score as score_lib
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.tools.docs import figures

# Command words by the name of a system in the table.
_WITNESSES = {
  'HyperParallel-MoE': 'hyperparallel-moe',
  'pto-isa': 'pto-megamoe',
  'DeepGEMM': 'deepgemm',
  'UniEP': 'uniep',
  'Pangu': 'pangu',
  'CAIS': 'cais',
  'DySHARP': 'dysharp',
  'MoE-Hub': 'moe-hub',
}
_NULLS = (
  'nearest fitted row',
  'roofline',
  'best constant',
  'best-scaled roofline',
)


def _show_share(value: float | None) -> str:
  return '-' if value is None else f'{value:.1%}'


def _read_page() -> dict[str, list[str]]:
  """Returns rows, mean error and errors of null predictors, by name."""
  table = figures.load('reproduce_errors')
  assert tuple(table['columns'][3 : 3 + len(_NULLS)]) == _NULLS
  return {row[0]: row[1 : 3 + len(_NULLS)] for row in table['rows']}


def _simulate(name: str) -> dict[str, list[str]]:
  """Returns the same of a simulated witness."""
  witness = witness_lib.get(_WITNESSES[name])
  machines = witness.load(None)
  values = witness.simulate(machines, lambda step: None)
  return {
    f'{name}, {group.name}': [
      str(group.rows),
      _show_share(group.mean_error),
      *(_show_share(group.nulls.get(null)) for null in _NULLS),
    ]
    for group in score_lib.score(witness, values, machines).groups
  }


def test_every_row_is_of_a_witness():
  assert {row.partition(', ')[0] for row in _read_page()} == set(_WITNESSES)


@pytest.mark.parametrize(
  'name',
  [
    'HyperParallel-MoE',
    *(pytest.param(name, marks=pytest.mark.slow) for name in [*_WITNESSES][1:]),
  ],
)
def test_errors_are_those_of_the_page(name):
  simulation = _simulate(name)
  page = {
    row: errors
    for row, errors in _read_page().items()
    if row.partition(', ')[0] == name
  }
  assert page == {row: simulation[row] for row in page}
