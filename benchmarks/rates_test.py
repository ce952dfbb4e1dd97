"""Simulated flows have the tasks that the page shows."""

import json
import pathlib

import pytest

from benchmarks import rates

_FIGURES = pathlib.Path(__file__).parent / 'figures/rates.json'


@pytest.mark.parametrize('name', ['CAIS,L2', 'MoE-Hub,Mixtral'])
def test_a_flow_has_the_tasks_of_the_page(name):
  figures = {row[0]: row[1] for row in json.loads(_FIGURES.read_text())['rows']}

  times = rates.WORK[name]()()

  assert f'{len(times.start):,}' == figures[name]
  assert 0 < times.start.max() <= times.total
