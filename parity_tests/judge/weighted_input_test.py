"""Kernels that multiply x by the routing weight, as Llama-4, and wrong ones.

Everything is judged, or results alone; a wrong kernel fails where it is wrong.
"""

import dataclasses

import pytest

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import precision

_DTYPES = ('float32', 'bfloat16', 'float16')


@dataclasses.dataclass(frozen=True)
class _Weighted(trial.Kernel):
  """A kernel that multiplies its weights elsewhere.

  Attributes:
    placements: where it multiplies; twice at two of them.
  """

  placements: tuple[str, ...] = ('input',)

  def forward(self, config, policy, arrays):
    first, *later_placements = self.placements
    policy = dataclasses.replace(policy, placement=first)
    computed = super().forward(config, policy, arrays)
    for _ in later_placements:
      # The weights again, at combine.
      rows = computed['returned'] * arrays['topk_weights'][..., None]
      computed['y'][:] = rows.sum(2)
    return computed

  def backward(self, config, policy, arrays):
    policy = dataclasses.replace(policy, placement=self.placements[0])
    return super().backward(config, policy, arrays)


def _find_failed(kernel, dtype, everything, direction='forward', **parts):
  rows = numpy_testing.check_rows(
    numpy_testing.Numpy(kernel, everything=everything),
    ('exact', 'bounded', 'standard'),
    placement='input',
    dtype=dtype,
    direction=direction,
    **parts,
  )
  return {row.stage for row in rows if row.verdict == verdicts.FAIL}


@pytest.mark.parametrize('everything', [True, False])
@pytest.mark.parametrize('dtype', _DTYPES)
@pytest.mark.parametrize('parts', [{}, dict(bias=True), dict(d_shared=8)])
@pytest.mark.few(1)
def test_a_right_kernel_passes(parts, dtype, everything):
  kernel = _Weighted(trial.descending)

  assert not _find_failed(kernel, dtype, everything, 'both', **parts)


@pytest.mark.parametrize('everything', [True, False])
@pytest.mark.parametrize('dtype', _DTYPES)
@pytest.mark.parametrize(
  'placements, stage',
  [
    (('before_down',), 'expert_in'),
    (('epilogue',), 'expert_in'),
    (('combine',), 'expert_in'),
    (('input', 'combine'), 'y'),
  ],
)
@pytest.mark.few(1)
def test_a_kernel_that_weighs_elsewhere_fails(
  placements, stage, dtype, everything
):
  failed_stages = _find_failed(
    _Weighted(trial.blas, placements=placements), dtype, everything
  )

  assert (stage if everything else 'y') in failed_stages


@pytest.mark.slow
@pytest.mark.parametrize('dtype', _DTYPES)
def test_gradients_of_weights_elsewhere_fail(dtype):
  kernel = _Weighted(trial.blas, placements=('before_down',))

  failed_stages = _find_failed(kernel, dtype, False, 'backward')

  assert {'d_topk_weights', 'd_w_gate_up'} <= failed_stages


@pytest.mark.parametrize('placement', ['before_down', 'combine'])
def test_where_a_weight_multiplied_is_named(placement):
  rows = numpy_testing.check_rows(
    numpy_testing.Numpy(_Weighted(trial.blas, placements=(placement,))),
    ['bounded'],
    placement='input',
    direction='forward',
  )

  # Of rows of x alone, every other placement makes copies.
  pattern = next(r.failure.pattern for r in rows if r.failure)
  assert 'as if the routing weight multiplied at combine; --pl' in pattern


def test_our_backend_refuses_it():
  message = '^placement: expected one of .* with backend_ascend, got input'
  with pytest.raises(ValueError, match=message):
    check.run(check.Request(case_lib.Case(placement='input')))


def test_tokens_that_are_quantised_before_are_no_codes_of_its_rows():
  policy = precision.PrecisionPolicy(rows='e4m3_1x128', placement='input')

  names = quantised_inputs.list_row_names(policy)

  assert 'expert_in_codes' in names
  assert not {'x_codes', 'x_scales'} & {*names}
