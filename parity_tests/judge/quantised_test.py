"""Layers whose expert weights are codes and scales.

A right kernel passes wherever it multiplies by a scale; each that takes a wrong
scale fails, and where it does is named.  The kernel reads codes as files have
them, by steps of its own.
"""

import dataclasses
import functools

import numpy as np
import pytest

import hpmoe
from hpmoe.backend_ascend.compiler import compiler
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import tensor_transfer
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import controls_testing
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import quantised_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import precision

# Last groups of 32, 64 and 128 are not full.
CASE = case_lib.Case(
  'forward',
  preset='tiny:d_model=144:d_ff=72',
  ranks=2,
  tokens=13,
  dtype='bfloat16',
)
# Weights come in these, by size of a group along the depth and across.
FORMS = {
  'int4_32': (32, 1),
  'nvfp4': (16, 1),
  'mxfp4': (32, 1),
  'mxint4': (32, 1),
  'e4m3fnuz_128x128': (128, 128),
  'int8_channel': (0, 1),
  'int8_channel_bf16': (0, 1),
  'int4_128': (128, 1),
  'uint4_64': (64, 1),
  'int4_awq': (128, 1),
  'int4_gptq': (128, 1),
  'e4m3_tensor': (0, 0),
  'e5m2_tensor': (0, 0),
  'e4m3_channel': (0, 1),
  'e4m3_128x128': (128, 128),
  'e4m3_128x128_ceil': (128, 128),
  'mxfp8': (32, 1),
}
# A fault, and forms whose scales can have it.
WRONG = [
  (wrong, form)
  for wrong, some_forms in (
    ('of the next block', ('int8_channel', 'int4_32', 'mxfp4', 'mxfp8')),
    ('of the next block', ('e4m3_128x128',)),
    ('transposed', ('int4_32', 'mxfp4', 'mxfp8', 'e4m3_128x128')),
    ('an exponent off', FORMS),
    ('not of the tail', ('int4_32', 'int4_128', 'mxfp4', 'e4m3_128x128')),
    ('in bfloat16', ('int8_channel', 'e4m3_channel', 'e4m3_128x128')),
  )
  for form in some_forms
]


@pytest.mark.parametrize('form', quantised_testing.mark_slow(3, *FORMS))
@pytest.mark.parametrize('scaled', ('sums', 'terms'))
def test_a_right_kernel_is_within_its_bounds(form, scaled):
  for seed, storage in enumerate(('bfloat16', 'float32', 'float16')):
    inputs = quantised_testing.draw_inputs(form, storage, seed)
    assert not quantised_testing.list_failed_rules(
      inputs, quantised_testing.Kernel(scaled=scaled)
    ), storage


@functools.cache
def _bench(case: case_lib.Case) -> bench_lib.Bench:
  return bench_lib.Bench(case, keep=True)


def _check(form: str, kernel, *lanes: str, **changes) -> check.Report:
  case = dataclasses.replace(CASE, quantised=form, **changes)
  judging = judgement.Judgement(lanes=lanes, repeat=1)
  request = check.Request(case, in_process.Function(kernel), judging)
  return check.run_on_bench(request, _bench(case), 0)


@pytest.mark.parametrize('form', quantised_testing.mark_slow(1, *FORMS))
def test_a_right_kernel_passes_in_every_lane(form):
  report = _check(form, quantised_testing.Kernel(), *verdicts.LANES)
  assert report.verdict == verdicts.PASS
  passing_lanes = {r.lane for r in report.results if r.verdict == verdicts.PASS}
  assert {'exact', 'bounded', 'standard'} <= passing_lanes


_BEFORE = 'w_gate_up had the scales of the previous group along its'


@pytest.mark.parametrize('lane', ('bounded', 'exact'))
@pytest.mark.parametrize(
  'wrong, form, pattern',
  quantised_testing.mark_slow(
    2,
    ('of the next block', 'int4_32', f'{_BEFORE} depth'),
    ('not of the tail', 'mxfp4', 'w_gate_up had no scale in the last group of'),
    ('of the next block', 'int8_channel', f'{_BEFORE} columns'),
    ('of the next block', 'mxfp8', f'{_BEFORE} depth'),
    ('of the next block', 'e4m3_128x128', f'{_BEFORE} '),
    ('of the first block', 'int4_32', 'w_gate_up had the scales of the first'),
    ('of the first block', 'int8_channel', 'first group along its columns'),
    ('transposed', 'int4_32', 'w_gate_up had its scales transposed'),
    ('transposed', 'mxfp4', 'w_gate_up had its scales transposed'),
    ('not of the tail', 'e4m3_128x128', 'had no scale in the last group of'),
  ),
)
@pytest.mark.few(1)
def test_a_wrong_scale_is_named(wrong, form, pattern, lane):
  report = _check(form, quantised_testing.Kernel(wrong=wrong), lane)
  assert pattern in report.first_failure.pattern


@pytest.mark.slow
@pytest.mark.parametrize('wrong, form', WRONG)
@pytest.mark.parametrize('lane', ('bounded', 'standard'))
def test_a_wrong_scale_fails_and_is_located(wrong, form, lane):
  report = _check(form, quantised_testing.Kernel(wrong=wrong), lane)
  assert report.verdict == verdicts.FAIL
  # Standards allow of an element more than this one rounding.
  hidden = wrong == 'in bfloat16' and lane == 'standard'
  assert hidden or report.first_failure.stage == 'gate_up'


def test_the_tile_of_a_wrong_scale_is_named():
  # The last column of w_gate_up has its last scale doubled.
  report = _check(
    'int4_32', quantised_testing.Kernel(wrong='an exponent off'), 'bounded'
  )
  failure = report.first_failure
  assert failure.stage == 'gate_up'
  assert failure.index[-1] == 2 * 72 - 1


# Takes the place of the one that reads weights.
OF_CODES = """
def read_expert(name, inputs, index):
  if name.startswith('b_'):
    return np.float32(0)
  codes, scales = (inputs[name + part][index] for part in ('_codes', '_scales'))
  assert name not in inputs and codes.dtype == np.uint8
  low, high = codes & 15, codes >> 4
  codes = np.stack([low, high], 1).reshape(-1, codes.shape[1])
  table = np.float32([0, .5, 1, 1.5, 2, 3, 4, 6])
  values = np.where(codes & 8, -1, 1) * table[codes & 7]
  scales = np.float32(2) ** (scales.astype(np.int32) - 127)
  return (values * np.repeat(scales, 32, 0)[: len(values)]).astype(np.float32)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  'change, per_rank',
  quantised_testing.mark_slow(
    1, ('', False), ('', True), ('codes & 8', False), ('- 127', False)
  ),
)
def test_a_case_of_codes_is_judged_elsewhere(tmp_path, change, per_rank):
  # Given a kernel that knows numpy alone, right or with a wrong scale or sign,
  wide = dataclasses.replace(CASE, quantised='mxfp4', dtype='float32')
  bench = bench_lib.Bench(wide, keep=True)
  # when it ran elsewhere on a case that was written,
  report = numpy_testing.check_elsewhere(
    bench, tmp_path, (change, '- 126'), OF_CODES, per_rank
  )
  # then its y says so.
  assert report.config['policy']['quantised'] == 'mxfp4'
  failed_lanes = {
    r.lane for r in report.results if r.failure and r.stage == 'y'
  }
  expected = {'exact', 'bounded', 'standard'}
  assert failed_lanes & expected == (expected if change else set())


def test_a_form_that_has_no_backend_is_refused():
  inputs = dataclasses.replace(CASE, quantised='int4_32').make()
  with pytest.raises(
    ValueError, match='policy.rows: expected int8_channel and int8_token'
  ):
    compiler.compile_forward(inputs.config, inputs.policy)
  case = case_lib.Case('forward', quantised='int8_channel')
  with pytest.raises(
    ValueError, match='^weights: expected weights=int8_channel'
  ):
    check.run(check.Request(case))
  odd = dict(preset='tiny:d_model=143', quantised='mxfp4')
  for change, message in (
    (odd, '^codes: expected a multiple of 2'),
    (
      dict(input=_load_codes('int8_channel'), quantised=''),
      '^w_gate_up: expected x',
    ),
  ):
    with pytest.raises(ValueError, match=message):
      dataclasses.replace(case, **change).make()
  with pytest.raises(ValueError, match='^quantised: expected one of'):
    precision.PrecisionPolicy(quantised='int3')


def _dequantise(inputs):
  """Returns inputs of e4m3 codes as numbers."""
  values = dict(inputs)
  for name in ('w_gate_up', 'w_down', 'x'):
    if f'{name}_codes' in inputs:
      coded = inputs[f'{name}_codes'].astype(np.float32)
      scales = np.repeat(inputs[f'{name}_scales'], 128, -1)
      if name != 'x':
        scales = np.repeat(scales, 128, -2)[..., : coded.shape[-2], :]
      values[name] = coded * scales[..., : coded.shape[-1]]
  return values


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields, wrong, first_stage',
  quantised_testing.mark_slow(
    1,
    (dict(quantised='e4m3_128x128'), '', None),
    (dict(x_form='e4m3_1x128'), '', None),
    (
      dict(quantised='e4m3_128x128'),
      'scales',
      'd_activation',
    ),
  ),
)
def test_a_backward_pass_reads_codes(fields, wrong, first_stage):
  # Given a kernel that dequantises, with the right scales or others,
  def backward(inputs, config, policy):
    if wrong:
      name = 'w_down_scales'
      inputs = inputs | {name: 2 * inputs[name]}
    return trial.Kernel().backward(config, policy, _dequantise(inputs))

  def layer(inputs, config, policy):
    return trial.Kernel().forward(config, policy, _dequantise(inputs))

  layer.backward = backward
  # when both passes are checked,
  case = dataclasses.replace(CASE, direction='both', dtype='float32', **fields)
  report = hpmoe.check(layer, case, lanes=['exact', 'bounded'])
  # then gradients are those of the numbers that codes mean.
  failure = report.first_failure
  assert first_stage == (failure and failure.stage)
  passing_lanes = {
    r.lane for r in report.check_report.results if r.verdict == verdicts.PASS
  }
  assert {'exact', 'bounded'} <= passing_lanes


def _load_codes(form: str) -> dict[str, np.ndarray]:
  """Returns what users have: codes, and no values."""
  inputs = dataclasses.replace(CASE, quantised=form).make()
  return {
    name: array
    for name, array in quantised_inputs.replace_values(
      inputs.policy, inputs.arrays
    ).items()
    if name != 'dy'
  }


@pytest.mark.parametrize('form', ('int8_channel', 'uint4_64', 'e4m3_128x128'))
def test_codes_that_are_given_are_the_weights(form, tmp_path):
  # Given codes and scales of somebody's, in a file,
  arrays, path = _load_codes(form), str(tmp_path / 'in.safetensors')
  arrays['w_down_scales'] = arrays['w_down_scales'] * 2
  read_case.save(path, arrays, {})
  # when they are a case,
  inputs = dataclasses.replace(CASE, quantised=form, input=path).make()
  # then its weights are what they mean.
  expected = dataclasses.replace(CASE, quantised=form).make().arrays
  for name, factor in (('w_gate_up', 1), ('w_down', 2)):
    np.testing.assert_array_equal(inputs.arrays[name], factor * expected[name])
  for name in arrays:
    np.testing.assert_array_equal(inputs.arrays[name], arrays[name])


@pytest.mark.parametrize(
  'name, change, message',
  [
    ('w_down_scales', lambda a: a[..., :-1], 'expected float32 .2, 4, 1, 144'),
    ('w_down_scales', lambda a: a.astype('f2'), 'expected float32 .*got float'),
    ('w_gate_up_codes', lambda a: a[..., 1:, :], 'expected int8 .2, 4, 144, 1'),
    ('w_gate_up_codes', lambda a: a[0], 'expected .R, L, X, Y., got .4, 144'),
    ('w_down_scales', lambda a: a * np.nan, 'expected finite values, got nan'),
  ],
)
def test_codes_that_cannot_be_the_weights_are_refused(name, change, message):
  arrays = _load_codes('int8_channel')
  arrays[name] = change(arrays[name])
  with pytest.raises(ValueError, match=f'^{name}: {message}'):
    dataclasses.replace(CASE, quantised='int8_channel', input=arrays).make()


@pytest.mark.parametrize('form', ('int8_channel_bf16', 'e4m3_128x128', 'mxfp4'))
def test_codes_reach_another_process_as_they_are(form, tmp_path):
  arrays = _load_codes(form)
  tensor_transfer.save(tmp_path / 'in', arrays)
  for name, array in tensor_transfer.load(tmp_path / 'in').items():
    assert array.dtype == arrays[name].dtype
    assert array.tobytes() == arrays[name].tobytes()


@pytest.mark.parametrize(
  'storage', quantised_testing.mark_slow(1, 'float16', 'bfloat16', 'float32')
)
@pytest.mark.parametrize('form, rows, quantiser', quantised_testing.DYNAMIC)
def test_rows_that_are_quantised_are_within_bounds(
  form, rows, quantiser, storage
):
  inputs = quantised_testing.draw_inputs(form, storage, 0, rows)
  assert not quantised_testing.list_failed_rules(
    inputs, quantised_testing.Kernel(rows=quantiser)
  )


@pytest.mark.parametrize(
  'form, rows, quantiser',
  quantised_testing.mark_slow(1, *quantised_testing.DYNAMIC),
)
def test_the_oracle_quantises_rows(form, rows, quantiser):
  bench = _bench(dataclasses.replace(CASE, quantised=form, rows=rows))
  candidate = in_process.Function(quantised_testing.Kernel(rows=quantiser))
  case = bench.case(candidate, passes.FORWARD, bench.real_inputs)
  answer = controls_testing.answer(case)
  report = _check(form, lambda *_: answer, 'bounded', rows=rows)
  assert report.verdict == verdicts.PASS


@pytest.mark.parametrize(
  'form, rows, quantiser',
  quantised_testing.mark_slow(1, *quantised_testing.DYNAMIC),
)
def test_a_right_quantiser_of_rows_passes(form, rows, quantiser):
  report = _check(
    form, quantised_testing.Kernel(rows=quantiser), *verdicts.LANES, rows=rows
  )
  assert report.verdict == verdicts.PASS
  (reason,) = {r.reason for r in report.results if r.lane == 'exact'}
  assert reason == f'there are no exact data for rows quantised to {rows}'
  coded = {r.stage: r.histogram for r in report.results if _has_codes(r)}
  assert [*coded] == ['activation']
  assert coded['activation'].codes > 0
  # A code differs where a float32 error e moves a bfloat16 number by its
  # spacing s, with the probability e / s, and that moves the code, with s over
  # the step S of codes: e / S.  Of a value v, e is 2^-21 v at most (silu's 3.5
  # units in the last place, and a product), S 2^-4 v of e4m3 and 2^-7 v of
  # int8, and s 2^-8 v: 2^-14.  The largest of a group moves likewise with e / s
  # = 2^-13, and then each code of the group with s / S, below 1: 2^-13.  Both
  # come to 0.7 of 3,744 codes.
  assert coded['activation'].moved_codes <= coded['activation'].codes // 1000


def _has_codes(result: verdicts.Result) -> bool:
  return result.histogram is not None and result.histogram.codes > 0


@pytest.mark.parametrize(
  'form, rows, quantiser',
  quantised_testing.mark_slow(
    0,
    ('int8_channel', 'int8_token', 'int8 next row'),
    ('int8_channel', 'int8_token', 'int8 cut'),
    ('int8_channel', 'int8_token', 'int8 one scale'),
    ('e4m3_128x128', 'e4m3_1x128', 'e4m3 128 tail'),
    ('e4m3_128x128', 'e4m3_1x128', 'e4m3 128 power'),
    ('e4m3_128x128', 'e4m3_1x128_ceil', 'e4m3 128'),
    ('e4m3_128x128', 'e4m3_1x128', 'e4m3'),
  ),
)
def test_a_wrong_quantiser_of_rows_is_located(form, rows, quantiser):
  report = _check(
    form, quantised_testing.Kernel(rows=quantiser), 'bounded', rows=rows
  )
  assert report.first_failure.stage == 'gate_up'


@pytest.mark.parametrize(
  ('names', 'words'),
  [
    (('y',), 'gate_up and expert_out'),
    (('y', 'expert_in', 'gate_up'), 'gate_up'),
  ],
)
@pytest.mark.few(1)
def test_one_scale_of_an_experts_rows_is_named(names, words):
  # given: a kernel whose scale is that of all rows of an expert
  kernel = quantised_testing.Kernel(rows='int8 one scale')

  def layer(inputs, config, policy):
    outputs = kernel.forward(config, policy, inputs)
    return {name: outputs[name] for name in names}

  layer.activations = ('swiglu', 'absolute')
  # when: rows of a token each have a scale
  report = _check('int8_channel', layer, 'bounded', rows='int8_token')
  # then
  expected = f'as if all rows of an expert had one scale in {words}'
  assert report.first_failure.pattern.startswith(expected)


# Triton's and Marlin's kernels multiply weights that the storage dtype has.
# Each compiles the oracle under dozens of policies.
@pytest.mark.slow
@pytest.mark.parametrize(
  'policy, scaled, pattern',
  quantised_testing.mark_slow(
    1,
    ((), 'operands', 'as if operands was rounded to bfloat16'),
    (('operands=storage',), 'operands', ''),
    (('operands=storage',), 'sums', 'as if operands was not rounded'),
    ((), 'sums', ''),
  ),
)
# Values of more digits than bfloat16 has.
@pytest.mark.parametrize(
  'form',
  quantised_testing.mark_slow(
    1, 'int4_32', 'uint4_64', 'int8_channel', 'int8_channel_bf16'
  ),
)
def test_where_a_scale_multiplies_is_a_rounding_point(
  form, policy, scaled, pattern
):
  report = _check(
    form, quantised_testing.Kernel(scaled=scaled), 'bounded', policy=policy
  )
  failure = report.first_failure
  assert (failure.pattern if failure else '').startswith(pattern)
  assert bool(failure) == bool(pattern)


def test_weights_that_are_no_codes_are_not_exact():
  inputs = CASE.data(CASE.make(), 'exact')
  assert np.abs(inputs.arrays['w_gate_up'].astype(np.float32)).max() > 7
  with pytest.raises(
    ValueError, match='^w_gate_up: expected whole numbers that'
  ):
    inputs.with_codes('int4_32')
