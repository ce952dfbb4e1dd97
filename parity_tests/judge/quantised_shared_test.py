"""Shared experts whose weights and rows are quantised as routed ones are."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import controls_testing
from hpmoe.parity_tests.judge import quantised_testing
from hpmoe.parity_tests.judge import verdicts

# As DeepSeek-V3, GLM-4.5 and Kimi-K2 are served in FP8: last groups of 128 of
# the layer's and of the shared experts' width are not full.
CASE = case_lib.Case(
  'forward',
  preset='tiny:d_model=144:d_ff=72',
  ranks=2,
  tokens=13,
  dtype='bfloat16',
  d_shared=136,
  quantised='e4m3_128x128',
  rows='e4m3_1x128',
)
STAGES = ('gate_up', 'activation', 'expert_out')
OF_SHARED = tuple(f'shared_{name}' for name in ('gate_up', 'activation', 'out'))
TOKEN_CODES = ('x_codes', 'x_scales')


@dataclasses.dataclass(frozen=True)
class Kernel(quantised_testing.Kernel):
  """A layer of codes.

  Attributes:
    returns: names of tensors.
    flaw: what is wrong in the shared experts, see `_Shared`; '': nothing.
  """

  rows: str = 'e4m3 128'
  returns: tuple[str, ...] = ('y', *STAGES, *OF_SHARED)
  flaw: str = ''

  def __call__(self, inputs, config, policy):
    outputs = self.forward(config, policy, inputs)
    if 'x_codes' in self.returns:
      outputs |= quantise_tokens(inputs['x'], self.rows)
    return {name: outputs[name] for name in self.returns}

  def _of_shared(self, run, config, policy, arrays):
    if not config.d_shared:
      return {}
    arrays = dict(arrays)
    if self.flaw == 'scales transposed':
      name = 'w_shared_gate_up_scales'
      by_columns = np.ascontiguousarray(arrays[name].swapaxes(1, 2))
      arrays[name] = by_columns.reshape(arrays[name].shape)
    shared = _Shared(rows=self.rows, flaw=self.flaw)
    return super()._of_shared(shared.forward, config, policy, arrays)


class _Shared(Kernel):
  """The layer that shared experts are."""

  def _expert(self, policy, a, inputs, name, *beside):
    # By flaw, the weight whose rows are not quantised.
    plain = {'x unquantised': 'w_gate_up', 'activation unquantised': 'w_down'}
    rows = '' if plain.get(self.flaw) == name else self.rows
    kernel = quantised_testing.Kernel(rows=rows)
    return kernel._expert(policy, a, inputs, name, *beside)


def quantise_tokens(x: np.ndarray, quantiser: str) -> dict[str, np.ndarray]:
  """Returns codes and scales of tokens, in groups of 128."""
  flat, parts = x.reshape(-1, x.shape[-1]).astype(np.float32), []
  for first in range(0, x.shape[-1], 128):
    group = flat[:, first : first + 128]
    parts.append(quantised_testing._quantise_rows(quantiser, group))
  codes, scales = (np.hstack(part) for part in zip(*parts))
  return dict(
    x_codes=codes.astype(ml_dtypes.float8_e4m3fn).reshape(x.shape),
    x_scales=scales.reshape(*x.shape[:-1], -1),
  )


def check(kernel: Kernel, *lanes: str, **changes) -> hpmoe.Report:
  case = dataclasses.replace(CASE, **changes)
  return hpmoe.check(kernel, case, lanes=lanes or verdicts.LANES)


@pytest.mark.parametrize(
  'changes, kernel',
  [
    (dict(), Kernel()),
    (dict(), Kernel(returns=('y',))),
    (dict(), Kernel(returns=('y', *TOKEN_CODES, *OF_SHARED))),
    (dict(dtype='float32'), Kernel()),
    (dict(dtype='float32', placement='input'), Kernel()),
    (dict(rows='', quantised='mxfp4'), Kernel(rows='')),
    (dict(rows='mxfp8', quantised='mxfp8'), Kernel(rows='mx')),
  ],
)
@pytest.mark.few(3)
def test_a_right_kernel_passes_in_all_lanes(changes, kernel):
  report = check(kernel, **changes)
  assert report.is_pass, str(report)
  lanes = {
    r.lane for r in report.check_report.results if r.verdict == verdicts.PASS
  }
  has_rows = changes.get('rows', CASE.rows)
  assert {'bounded', 'standard'} <= lanes
  assert ('exact' in lanes) == (not has_rows)


@pytest.mark.parametrize(
  'lane, dtype', [('bounded', 'bfloat16'), ('standard', 'float32')]
)
@pytest.mark.parametrize(
  'flaw, stage, words',
  [
    (
      'activation unquantised',
      'shared_out',
      'as if shared_activation was not quantised before its GEMM',
    ),
    (
      'x unquantised',
      'shared_gate_up',
      'as if x was not quantised before its GEMM',
    ),
    (
      'scales transposed',
      'shared_gate_up',
      'as if w_shared_gate_up had its scales transposed where shared_gate_up',
    ),
  ],
)
@pytest.mark.few(1)
def test_a_flaw_of_shared_experts_alone_is_named(
  flaw, stage, words, lane, dtype
):
  failure = check(Kernel(flaw=flaw), lane, dtype=dtype).first_failure
  assert failure.stage == stage
  assert failure.pattern.startswith(words)
  # No flag has the forms of shared experts alone.
  assert '--' not in failure.pattern


def test_shared_experts_read_the_codes_of_tokens_that_were_returned():
  # Given a kernel that returns codes, but whose shared experts read x,
  kernel = Kernel(flaw='x unquantised', returns=('y', *TOKEN_CODES, *OF_SHARED))
  # then these are not what its GEMM multiplied.
  failure = check(kernel, 'bounded').first_failure
  assert failure.stage == 'shared_gate_up'


@pytest.mark.slow
@pytest.mark.parametrize(
  'flaw', ['activation unquantised', 'scales transposed']
)
def test_y_alone_says_so_too(flaw):
  kernel = Kernel(flaw=flaw, returns=('y',))
  assert not check(kernel, 'bounded', dtype='float32').is_pass


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
@pytest.mark.few(1)
def test_the_oracle_quantises_them(dtype):
  case = dataclasses.replace(CASE, dtype=dtype)
  bench = bench_lib.Bench(case, keep=True)
  candidate = in_process.Function(Kernel())
  right = controls_testing.answer(
    bench.case(candidate, passes.FORWARD, bench.real_inputs)
  )
  # It has one answer, so it is called once.
  report = hpmoe.check(lambda *_: right, case, lanes=['bounded'], repeat=1)
  assert report.is_pass, str(report)


def test_a_case_in_a_folder_has_their_codes(tmp_path):
  # Given a case that was written,
  folder = str(tmp_path / 'case')
  inputs = CASE.make()
  folder_writer.write(folder, 'forward', {'real': inputs})
  # when it is read,
  read = case_lib.Case.from_folder(folder).make()
  # then weights of shared experts are their codes.
  names = [n for n in inputs.arrays if n.startswith('w_shared')]
  assert len(names) == 6
  for name in names:
    np.testing.assert_array_equal(read.arrays[name], inputs.arrays[name])


def test_static_scales_of_shared_experts_are_refused():
  case = dataclasses.replace(CASE, rows='e4m3_static')
  with pytest.raises(
    ValueError, match='^d_shared: expected 0 with rows=e4m3_static'
  ) as error:
    case.make()
  assert len(str(error.value)) < 300
