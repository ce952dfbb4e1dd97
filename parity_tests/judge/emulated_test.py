"""Float32 products that are made of narrower ones: right, and too few."""

import numpy as np
import pytest

from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.reference.contract import storage

Numpy = numpy_testing.Numpy
PRODUCTS = tuple(storage.EMULATED)


@pytest.mark.parametrize('everything', [True, False], ids=['all', 'results'])
@pytest.mark.parametrize('order', ['blas', 'in_blocks', 'descending'])
@pytest.mark.parametrize('direction', ['forward', 'backward'])
@pytest.mark.parametrize('name', PRODUCTS)
@pytest.mark.few(1)
def test_a_right_kernel_passes(name, direction, order, everything):
  candidate = Numpy(trial.Kernel(trial.ORDERS[order]), everything)
  case = dict(policy=(f'operands={name}',), direction=direction)
  assert not numpy_testing.list_failed_stages(candidate, **case)


@pytest.mark.slow
@pytest.mark.parametrize('everything', [True, False], ids=['all', 'y'])
@pytest.mark.parametrize(
  'policy, actual, text',
  [
    ('tf32x3', 'tf32', 'rounded to tf32'),
    ('bf16x3', 'bf16', 'rounded to bfloat16'),
    ('bf16x6', 'bf16x3', 'multiplied as bf16x3'),
    ('bf16x9', 'tf32', 'rounded to tf32'),
    ('f32', 'bf16x3', 'multiplied as bf16x3'),
  ],
)
@pytest.mark.few(1)
def test_fewer_products_are_named(policy, actual, text, everything):
  candidate = Numpy(words=(f'operands={actual}',), everything=everything)
  case = dict(policy=(f'operands={policy}',), preset='small')
  results = numpy_testing.check_rows(candidate, ('bounded',), **case)
  stage = 'gate_up' if everything else 'y'
  pattern_by_stage = {r.stage: r.failure.pattern for r in results if r.failure}
  assert f'as if operands was {text}' in pattern_by_stage[stage]


@pytest.mark.parametrize('name', PRODUCTS)
def test_what_is_left_out_is_no_more_than_is_said(name):
  # given: operands all of whose bits are ones or nearly
  rng = np.random.default_rng(3)
  a, b = (
    np.float32(2 - rng.random((1, 4096)) * 2.0 ** -rng.integers(0, 22, 4096))
    for _ in range(2)
  )
  # when: each product alone, in float64
  left, right = trial._side_by_side(name, a, b.T)
  pairs = len(storage.EMULATED[name].pairs)
  products = left.reshape(pairs, -1).astype(np.float64) * right.reshape(
    pairs, -1
  )
  exact = a[0].astype(np.float64) * b[0]
  # then
  error = np.abs(products.sum(0) / exact - 1).max()
  bound = storage.EMULATED[name].error
  assert bound / 40 <= error <= bound or not bound and error < 2.0**-50


def test_other_points_are_not_multiplied():
  with pytest.raises(ValueError, match='^policy: expected silu=DTYPE'):
    numpy_testing.list_failed_stages(Numpy(), policy=('silu=bf16x3',))
