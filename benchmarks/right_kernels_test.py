"""Right kernels pass, a wrong one is counted, and the page has the rows."""

import functools

import pytest

from benchmarks import right_kernels
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import quantised_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.tools.docs import figures


def test_every_row_of_the_page_is_counted_and_none_fails():
  counts = dict(codes=0, policies=0, combined=1, routers=1)
  rows = dict(right_kernels.judge_all(1, 1, **counts))
  draws = [(name, rows.pop(name)) for name in ('combined', 'with a router')]
  rows['quantised'] = right_kernels.fails_in_codes('int4_32', '', '', 0)
  rows['under a policy'] = right_kernels.fails_under_policy('gate_up=bf16', 0)
  rows |= dict(draws)
  assert not any(rows.values())
  assert [row[0] for row in figures.load('right_kernels')['rows']] == [*rows]


@pytest.mark.slow
@pytest.mark.verdict_alone
def test_a_wrong_kernel_is_counted(monkeypatch):
  wrong = trial.Kernel(silu=1.1)
  monkeypatch.setattr(
    right_kernels, 'choose', lambda seed: ('float32', 'combine', wrong)
  )
  assert right_kernels.fails_by_stage(0)
  assert right_kernels.fails_whole(0)


@pytest.mark.verdict_alone
def test_a_kernel_that_does_not_round_is_counted(monkeypatch):
  unrounded = functools.partial(numpy_testing.Numpy, words=())
  monkeypatch.setattr(right_kernels.numpy_testing, 'Numpy', unrounded)
  assert right_kernels.fails_under_policy('gate_up=bf16', 0)


@pytest.mark.verdict_alone
@pytest.mark.slow
def test_a_kernel_of_a_combination_that_does_not_round_is_counted(monkeypatch):
  seed = next(
    s
    for s in range(99)
    if 'hf_mixtral' in right_kernels.draw_combination(s).policy
  )
  unrounded = functools.partial(numpy_testing.Numpy, words=())
  monkeypatch.setattr(right_kernels.numpy_testing, 'Numpy', unrounded)
  assert right_kernels.fails_combined(seed)


@pytest.mark.slow
@pytest.mark.verdict_alone
def test_a_router_that_is_counted_twice_is_counted(monkeypatch):
  testing = right_kernels.router_grads_testing
  wrong = functools.partial(testing.differentiate, change='added twice')
  monkeypatch.setattr(testing, 'differentiate', wrong)
  assert right_kernels.fails_with_router(0)


@pytest.mark.parametrize('form, rows, quantiser', quantised_testing.DYNAMIC[:1])
@pytest.mark.verdict_alone
def test_a_wrong_quantiser_is_counted(form, rows, quantiser):
  assert not right_kernels.fails_in_codes(form, rows, quantiser, 0)
  assert right_kernels.fails_in_codes(form, rows, 'int8 cut', 0)
