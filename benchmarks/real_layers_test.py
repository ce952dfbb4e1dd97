"""What a verdict costs, measured on the smallest layer."""

import json
import subprocess
import sys

import pytest


def _run(*options: str) -> str:
  command = [sys.executable, '-m', 'benchmarks.real_layers', '--layers=tiny']
  return subprocess.run(
    [*command, *options], capture_output=True, text=True, check=True
  ).stdout


def test_a_loop_over_the_experts_takes_time():
  wall, processor = map(float, _run('--probe').split())

  assert 0 < processor < 10 and wall > 0


@pytest.mark.slow
def test_a_row_of_the_page():
  (_, layer), *costs = json.loads(_run('--rounds=1'))

  assert layer == '`tiny`, R=4 T=16 E=8 K=2 D=32 F=16'
  assert len(costs) == 13 and all(float(value) > 0 for _, value in costs)
