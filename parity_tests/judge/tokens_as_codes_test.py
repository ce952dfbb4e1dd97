"""Layers whose tokens are codes and scales; rows that one GEMM quantises."""

import dataclasses
import functools

import ml_dtypes
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import oracle
from hpmoe.parity_tests.judge import quantised_testing
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import precision


class TestTokensAsCodes:
  """x comes as codes, and one GEMM alone quantises its rows."""

  CASE = case_lib.Case(
    'forward',
    preset='tiny:d_model=256:d_ff=128',
    ranks=2,
    tokens=13,
    x_form='e4m3_1x128',
    quantised='e4m3_128x128',
  )

  def _judge(self, kernel, **fields):
    case = dataclasses.replace(self.CASE, **fields)
    return hpmoe.check(kernel, case, lanes=['bounded'], repeat=1)

  @pytest.mark.parametrize('scaled', ['terms', 'sums'])
  @pytest.mark.few(1)
  def test_a_right_kernel_passes_wherever_it_scales(self, scaled):
    kernel = functools.partial(_compute_y, scaled=scaled)
    assert self._judge(kernel).is_pass

  @pytest.mark.parametrize(
    ('form', 'group'), [('e4m3_1x128', 128), ('mxfp8_e5m2', 32)]
  )
  @pytest.mark.few(1)
  def test_x_alone_may_come_in_codes(self, form, group):
    # Every lane, and the mirrored data, of a layer with plain weights.
    case = dataclasses.replace(self.CASE, x_form=form, quantised='')
    report = hpmoe.check(functools.partial(_compute_y, group=group), case)
    assert report.is_pass
    assert {
      r.lane for r in report.check_report.results if r.verdict == verdicts.PASS
    } >= {
      'exact',
      'bounded',
    }

  @pytest.mark.parametrize(
    'wrong', ['scales of the next block', 'scales of the next token']
  )
  @pytest.mark.verdict_alone
  @pytest.mark.few(1)
  def test_a_wrong_scale_fails(self, wrong):
    kernel = functools.partial(_compute_y, wrong=wrong)
    assert not self._judge(kernel).is_pass

  @pytest.mark.slow
  @pytest.mark.verdict_alone
  def test_an_activation_in_codes_is_a_policy_of_one_gemm(self):
    # Given a kernel that quantises its activation, and not its tokens again,
    kernel = functools.partial(_compute_y, quantises=True)
    # then it passes where that is declared, and only there.
    assert not self._judge(kernel).is_pass
    assert self._judge(kernel, rows='activation=e4m3_1x128').is_pass
    assert not self._judge(kernel, rows='expert_in=int8_token').is_pass

  def test_exact_data_have_codes_of_tokens_too(self):
    inputs = self.CASE.make()
    exact = self.CASE.data(inputs, 'exact')
    values = exact.arrays['x_codes'].astype(np.float32) * np.repeat(
      exact.arrays['x_scales'], 128, -1
    )
    np.testing.assert_array_equal(values, exact.arrays['x'])
    assert np.any(exact.arrays['x_scales'] != 1)

  @pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
  @pytest.mark.verdict_alone
  @pytest.mark.few(1)
  def test_moved_rows_are_values_of_codes(self, dtype):
    # expert_in is float32 in every storage: code times scale.
    case = dataclasses.replace(self.CASE, dtype=dtype, quantised='')
    rows = self._judge_expert_in(case)
    assert rows == {'pass'}

  def _judge_expert_in(self, case):
    def kernel(inputs, config, policy):
      y = _compute_y(inputs, config, policy, stores=policy.storage)
      arrays = {'topk_ids': inputs['topk_ids']}
      plan = oracle.Oracle(config, precision.PrecisionPolicy(), arrays).plan
      rows = np.zeros(
        (config.num_ranks, config.num_rows, config.d_model), np.float32
      )
      x, ids = _read_tokens(inputs, '', 128), inputs['topk_ids']
      for place in np.argwhere(ids >= 0):
        rank, token, _ = place
        owner = ids[tuple(place)] // config.experts_per_rank
        rows[owner, plan['row_of_slot'][tuple(place)]] = x[rank, token]
      return y | {'expert_in': rows}

    report = hpmoe.check(kernel, case, lanes=['bitwise'], repeat=1)
    return {
      result.verdict
      for result in report.check_report.results
      if result.stage == 'expert_in'
    }

  def test_a_sample_of_tiles_is_judged(self):
    lanes = ['bitwise', 'bounded']
    report = hpmoe.check(_compute_y, self.CASE, lanes=lanes, tiles=1, repeat=1)
    assert report.is_pass

  def test_routing_weights_of_a_kernel_s_own_have_their_roundings(self):
    # Weights a few units off: right for who computes them, else wrong.
    kernel = functools.partial(_compute_y, weight_error=40 * 2.0**-24)
    case = dataclasses.replace(
      self.CASE, x_form='', quantised='', preset='tiny:d_model=256:d_ff=16'
    )
    few = dict(lanes=['bounded'], repeat=1)
    loose = dataclasses.replace(case, weight_ulp=45.0)
    assert hpmoe.check(kernel, loose, **few).is_pass

  @pytest.mark.parametrize('seed', range(4))
  @pytest.mark.parametrize('scaled', ['terms', 'sums'])
  @pytest.mark.few(2)
  def test_y_in_bfloat16_of_float32_stages_passes(self, scaled, seed):
    kernel = functools.partial(_compute_y, scaled=scaled, stores='bfloat16')
    report = self._judge(kernel, policy=('y=bfloat16',), seed=seed)
    assert report.is_pass
    spread = [
      r for r in report.check_report.results if r.rule == verdicts.SPREAD_RULE
    ]
    assert {r.verdict for r in spread} == {verdicts.PASS}

  @pytest.mark.parametrize(
    'change',
    [
      (np.s_[:], 1.01),
      (np.s_[0, 3], 1.01),
      (np.s_[0, 3, 5], 1.5),
    ],
    ids=['all by 1 %', 'a row by 1 %', 'an element by a half'],
  )
  @pytest.mark.verdict_alone
  @pytest.mark.few(1)
  def test_y_in_bfloat16_is_sharp_all_the_same(self, change):
    index, factor = change

    def kernel(inputs, config, policy):
      y = _compute_y(inputs, config, policy)['y']
      y[index] *= np.float32(factor)
      return {'y': y.astype(ml_dtypes.bfloat16)}

    assert not self._judge(kernel, policy=('y=bfloat16',)).is_pass

  @pytest.mark.parametrize(
    ('rows', 'quantises', 'words'),
    quantised_testing.mark_slow(
      1,
      (
        'activation=e4m3_1x128',
        False,
        'activation was not quantised before its GEMM',
      ),
      (
        '',
        True,
        'activation was quantised to e4m3_1x128 before its GEMM',
      ),
    ),
  )
  @pytest.mark.slow
  def test_a_form_that_nobody_declared_is_named(self, rows, quantises, words):
    kernel = functools.partial(_compute_y, quantises=quantises)
    # Where a row is more than one group, or a token's scale would do as well.
    wide = 'tiny:d_model=256:d_ff=256'
    report = self._judge(kernel, rows=rows, preset=wide)
    assert report.first_failure is not None
    pattern = report.first_failure.pattern
    assert words in pattern
    asked_rows = 'activation=e4m3_1x128' if quantises else '""'
    assert f'--rows={asked_rows} allows it' in pattern

  @pytest.mark.parametrize(
    'seed',
    [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 250))],
  )
  @pytest.mark.parametrize('stores', ['bfloat16', 'float32'])
  @pytest.mark.parametrize('scaled', ['terms', 'sums'])
  def test_right_kernels_of_eight_bit_rows_pass(self, scaled, stores, seed):
    kernel = functools.partial(
      _compute_y, scaled=scaled, stores=stores, quantises=True
    )
    policy = ('y=bfloat16',) if stores == 'bfloat16' else ()
    rows = dict(rows='activation=e4m3_1x128', policy=policy, seed=seed)
    assert self._judge(kernel, **rows).is_pass

  @pytest.mark.parametrize('stores', ['bfloat16', 'float32'])
  @pytest.mark.parametrize('wrong', ['a row by 2 %', 'an element by a quarter'])
  @pytest.mark.verdict_alone
  @pytest.mark.few(1)
  def test_limits_of_eight_bit_rows_are_sharp(self, wrong, stores):
    # Codes that no error can move have no part in the limit.
    def kernel(inputs, config, policy):
      y = _compute_y(inputs, config, policy, quantises=True)['y']
      if wrong == 'a row by 2 %':
        y[1, 7] *= np.float32(1.02)
      else:
        y[1, 7, 9] += np.sqrt(np.mean(np.square(y[1, 7]))) / 4
      return {'y': y.astype(getattr(ml_dtypes, stores, stores))}

    policy = ('y=bfloat16',) if stores == 'bfloat16' else ()
    rows = dict(rows='activation=e4m3_1x128', policy=policy)
    assert not self._judge(kernel, **rows).is_pass

  def test_lane_exact_alone_is_refused(self):
    case = dataclasses.replace(
      self.CASE, x_form='', quantised='', rows='int8_token'
    )
    kernel = in_process.Function(quantised_testing.Kernel())
    exact_alone = judgement.Judgement(lanes=('exact',))
    with pytest.raises(ValueError, match='^lanes: .*int8_token, for which'):
      check.run(check.Request(case, kernel, exact_alone))

  @pytest.mark.parametrize(
    'rows', ['int9', 'gate_up=int8_token', 'activation=', 'activation']
  )
  def test_unknown_rows_are_refused(self, rows):
    with pytest.raises(ValueError, match='rows: expected a form'):
      precision.PrecisionPolicy(rows=rows)


def _compute_y(
  inputs,
  config,
  policy,
  scaled='terms',
  wrong='',
  quantises=False,
  weight_error=0.0,
  stores='float32',
  group=128,
):
  """Returns y of a layer in numpy that reads x as codes."""
  x, weights = _read_tokens(inputs, wrong, group), inputs['topk_weights']
  weights = weights * np.float32(1 + weight_error)
  matrices = [_read_weight(inputs, name) for name in quantised_inputs.WEIGHTS]
  y = np.zeros(x.shape, np.float32)
  for expert in range(config.num_experts):
    owner, local = divmod(expert, config.experts_per_rank)
    rank, token, slot = np.nonzero(inputs['topk_ids'] == expert)
    rows = x[rank, token]
    gate, up = np.split(
      _multiply(rows, matrices[0][owner, local], scaled), 2, -1
    )
    if policy.activation == 'absolute':
      activation = np.abs(gate) * up
    else:
      with np.errstate(over='ignore'):
        activation = gate / (1 + np.exp(-gate)) * up
    if quantises:
      activation = _quantise_rows(activation)
    out = activation @ matrices[1][owner, local]
    np.add.at(y, (rank, token), out * weights[rank, token, slot, None])
  return {'y': y.astype(getattr(ml_dtypes, stores, stores))}


def _read_tokens(inputs, wrong: str, group: int) -> np.ndarray:
  if 'x_codes' not in inputs:
    return inputs['x']
  scales = inputs['x_scales']
  if wrong == 'scales of the next block':
    scales = np.roll(scales, 1, -1)
  elif wrong == 'scales of the next token':
    scales = np.roll(scales, 1, -2)
  code_values = inputs['x_codes'].astype(np.float32)
  if scales.dtype == np.uint8:
    scales = np.exp2(scales.astype(np.float32) - 127)
  scales = np.repeat(scales, group, -1)
  return code_values * scales[..., : code_values.shape[-1]]


def _read_weight(inputs, name: str) -> np.ndarray:
  if f'{name}_codes' not in inputs:
    return inputs[name]
  code_values = inputs[f'{name}_codes'].astype(np.float32)
  scales = inputs[f'{name}_scales']
  for axis in (-2, -1):
    scales = np.repeat(scales, 128, axis)
  return (
    code_values * scales[..., : code_values.shape[-2], : code_values.shape[-1]]
  )


def _multiply(rows, matrix, scaled: str) -> np.ndarray:
  """Returns rows times a matrix; 'sums': block by block of the depth."""
  if scaled == 'terms':
    return rows @ matrix
  blocks = range(0, len(matrix), 128)
  return sum(rows[:, b : b + 128] @ matrix[b : b + 128] for b in blocks)


def _quantise_rows(rows: np.ndarray) -> np.ndarray:
  groups = rows.reshape(len(rows), rows.shape[1] // 128, 128)
  largest = np.maximum(np.abs(groups).max(-1, keepdims=True), 1e-4)
  scales = (largest / np.float32(448)).astype(np.float32)
  rounded = (groups / scales).astype(ml_dtypes.float8_e4m3fn)
  return (rounded.astype(np.float32) * scales).reshape(rows.shape)
