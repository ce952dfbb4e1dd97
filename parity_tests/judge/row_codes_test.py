"""Codes and scales of rows that a kernel quantises and returns are judged."""

import dataclasses

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.candidates import outputs as outputs_lib
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs as codes_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import row_codes_testing as testing
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import report_html
from hpmoe.parity_tests.report import report_text
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import quantised
from hpmoe.reference.contract import tensors

CASE = case_lib.Case(
  'forward',
  preset='tiny:d_model=144:d_ff=136',
  ranks=1,
  tokens=13,
  routing='zipf',
)
PARTS = tuple(spec.name for spec in tensors.ROW_CODES)
OF_TOKENS = tuple(spec.name for spec in tensors.TOKEN_CODES)
SLOW = pytest.mark.slow
QUICK = (
  *('int8_token', 'e4m3_1x128', 'mxfp8', 'e4m3_static'),
  *('mxfp4', 'mxfp4_deepgemm', 'nvfp4_static'),
)
_NAMES = ('expert_in', 'activation')
# From what rows are quantised.
FROM_DTYPES: tuple[dict, ...] = (
  {},
  {'policy': ('activation=bf16',)},
  {'dtype': 'bfloat16'},
)


def _layer(form: str, order: str = 'divide', **fields) -> testing.Layer:
  quantiser = testing.Quantiser(form, order)
  return testing.Layer(dict.fromkeys(_NAMES, quantiser), **fields)


def _check(kernel, rows: str, **fields):
  case = dataclasses.replace(CASE, rows=rows, **fields)
  return hpmoe.check(kernel, case, lanes=['bounded'], repeat=1)


def _list_judged(report) -> dict[str, str]:
  """Returns the verdicts on codes and scales, by name."""
  return {
    r.stage: r.verdict for r in report.check_report.results if r.stage in PARTS
  }


def _change(layer: testing.Layer, name: str, change):
  """Returns a kernel that answers one tensor otherwise."""

  def kernel(inputs, config, policy):
    outputs = layer(inputs, config, policy)
    outputs[name] = change(outputs[name])
    return outputs

  return kernel


@pytest.mark.parametrize(
  'form',
  [
    *QUICK,
    *(pytest.param(f, marks=SLOW) for f in quantised.OF_ROWS if f not in QUICK),
  ],
)
@pytest.mark.few(1)
def test_codes_of_right_kernels_pass(form):
  # Given three orders of arithmetic, from stages in float32 and in bfloat16,
  for number, (order, fields) in enumerate(zip(testing.ORDERS, FROM_DTYPES)):
    # when all stages are returned, or codes alone,
    names = None if number != 1 else {'y', *PARTS}
    report = _check(
      _layer(form, order, outputs=names), form, seed=number, **fields
    )
    # then each code and scale is judged, and right.
    assert report.is_pass, (order, fields, report.first_failure)
    parts = codes_lib.list_row_names(precision.PrecisionPolicy(rows=form))
    parts = [name for name in parts if name not in OF_TOKENS]
    assert _list_judged(report) == dict.fromkeys(parts, verdicts.PASS)


@pytest.mark.parametrize('form', ['int8_token', 'e4m3_1x128', 'mxfp4'])
@pytest.mark.parametrize('outputs', [None, ('y', *OF_TOKENS)])
@pytest.mark.few(1)
def test_tokens_that_a_kernel_quantises_are_judged(form, outputs):
  # Given a kernel that quantises tokens, and sends codes,
  layer = _layer(form, quantises_tokens=True, outputs=outputs)
  # then its codes of x are judged, and those of expert_in are copies.
  report = _check(layer, form)
  assert report.is_pass, report.first_failure
  assert {report.stages[name] for name in OF_TOKENS} == {'pass'}
  verdict = 'not judged' if outputs else 'pass'
  assert report.stages['expert_in_codes'] == verdict


# What a kernel does to the codes and scales of tokens, and what is said of it.
TOKEN_MISTAKES = {
  'x_scales': (
    lambda codes, scales: (codes, np.roll(scales, 1, 0)),
    'scales of the previous row',
  ),
  'x_codes': (lambda codes, scales: (codes + (codes == 5), scales), ''),
}


@pytest.mark.parametrize('stage', TOKEN_MISTAKES)
@pytest.mark.verdict_alone
def test_wrong_codes_of_tokens_are_no_error_behind_them(stage):
  change, words = TOKEN_MISTAKES[stage]
  layer = _layer('int8_token', quantises_tokens=True, change=change)
  report = _check(layer, 'int8_token')
  failed_stages = {n for n, v in report.stages.items() if v == 'fail'}
  assert failed_stages <= {stage, 'layer'}
  assert report.first_failure.stage == stage
  assert words in report.first_failure.pattern


def test_no_rounding_is_sought_behind_wrong_codes(monkeypatch):
  # Given a kernel that is right but for codes of tokens, which it returns,
  def refuse(stage):
    raise AssertionError(f'roundings of {stage.name} were sought')

  monkeypatch.setattr(roundings, 'explain', refuse)
  change, _ = TOKEN_MISTAKES['x_codes']
  for outputs in (None, ('y', *OF_TOKENS)):
    layer = _layer(
      'int8_token', quantises_tokens=True, change=change, outputs=outputs
    )
    report = _check(layer, 'int8_token')
    # then its layer fails because of them.
    results = report.check_report.results
    patterns = {r.stage: r.failure.pattern for r in results if r.failure}
    assert patterns['layer'] == 'right from its own x_codes on'
    assert {*patterns} == {'x_codes', 'layer'}


@pytest.mark.verdict_alone
def test_codes_that_are_sent_to_other_rows_are_found_by_bits():
  layer = _layer('int8_token', quantises_tokens=True)
  kernel = _change(layer, 'expert_in_codes', lambda a: np.roll(a, 1, 1))
  report = _check(kernel, 'int8_token')
  failure = report.first_failure
  assert failure.stage == 'expert_in_codes'
  assert failure.rule == 'equals its own x_codes, sent'


def test_codes_that_are_sent_to_other_rows_are_found_in_some_tiles_too():
  layer = _layer('int8_token', quantises_tokens=True)
  wrong = _change(layer, 'expert_in_codes', lambda a: np.roll(a, 1, 1))
  case = dataclasses.replace(CASE, rows='int8_token')
  reports = [
    hpmoe.check(kernel, case, lanes=['bitwise', 'bounded'], repeat=1, tiles=1)
    for kernel in (layer, wrong)
  ]
  assert reports[0].is_pass, reports[0].first_failure
  assert reports[1].first_failure.stage == 'expert_in_codes'


def test_limits_start_anew_from_returned_codes_of_tokens():
  # Given tokens all of whose values lie between two codes,
  arrays = dict(CASE.make().arrays)
  names = ('x', 'w_gate_up', 'w_down', 'topk_ids', 'topk_weights')
  arrays = {name: np.array(arrays[name]) for name in names}
  arrays['x'] = np.floor(arrays['x'] * 8).clip(-64, 63) + np.float32(0.5)
  arrays['x'][..., 0] = 127
  powers = []
  for outputs in (('y', *OF_TOKENS), ('y',)):
    # when a kernel returns which of them it chose, or y alone,
    quantisers = {'expert_in': testing.Quantiser('int8_token')}
    layer = testing.Layer(quantisers, outputs, quantises_tokens=True)
    case = case_lib.Case(input=arrays, rows='expert_in=int8_token')
    report = hpmoe.check(layer, case, lanes=['bounded'], repeat=1)
    assert report.is_pass, report.first_failure
    row = next(r for r in report.check_report.results if r.stage == 'y')
    powers.append(row.power['element'])
  # then its y is held against that choice.
  assert powers[0] < powers[1] / 100


def test_tokens_that_come_as_codes_are_quantised_by_nobody():
  policy = precision.PrecisionPolicy(rows='int8_token', x_form='int8_token')
  assert not {*OF_TOKENS} & {*codes_lib.list_row_names(policy)}


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(40))
@pytest.mark.parametrize('form', quantised.OF_ROWS)
def test_codes_of_many_right_kernels_pass(form, seed):
  order = testing.ORDERS[seed % 3]
  names = None if seed % 4 else {'y', *PARTS}
  report = _check(
    _layer(form, order, outputs=names),
    form,
    seed=seed,
    **FROM_DTYPES[seed // 3 % 3],
  )
  assert report.is_pass, report.first_failure


@pytest.mark.slow
def test_limits_start_anew_from_returned_codes():
  # Given a kernel that returns its codes and y, and one that returns y alone,
  case = dict(preset='tiny:d_model=256:d_ff=256', rows='e4m3_1x128')
  powers = []
  for names in ({'y', *PARTS}, {'y'}):
    report = _check(_layer('e4m3_1x128', outputs=names), **case)
    assert report.is_pass
    powers.append(
      [
        r.power
        for r in report.check_report.results
        if verdicts.tensor_of(r.stage) == 'y' and 'element' in r.power
      ]
    )
  # then the smallest error that is found in y is far smaller with codes.
  with_codes, alone = (min(p['element'] for p in shares) for shares in powers)
  assert with_codes < alone / 50


def _spoil(y: np.ndarray, element: float, row: float) -> np.ndarray:
  """Adds a share of its row's root mean square to an element, and scales a row.

  The element is in the row, `y` is `[1, T, D]`.
  """
  wrong = y.astype(np.float32)
  wrong[0, 3] *= 1 + row
  wrong[0, 3, 5] += element * np.sqrt(np.square(wrong[0, 3]).mean())
  return wrong.astype(y.dtype)


@pytest.mark.parametrize(
  'policy, element, row', [((), 0.01, 0.001), (('y=bf16',), 0.02, 0.006)]
)
@pytest.mark.few(1)
def test_few_codes_can_move_so_small_errors_show_in_y_alone(
  policy, element, row
):
  # Given a kernel that quantises its float32 rows, and returns y,
  right = _layer('e4m3_1x128', 'reciprocal', outputs=['y'])
  # when an element, a row, or nothing is wrong,
  for share in ((element, 0), (0, row), (0, 0)):
    kernel = _change(right, 'y', lambda y, share=share: _spoil(y, *share))
    report = _check(kernel, 'e4m3_1x128', policy=policy)
    results = report.check_report.results
    # then rounding edges refuse the error, and nothing refuses a right kernel.
    failed_rules = {r.rule for r in results if r.verdict == verdicts.FAIL}
    assert (verdicts.EDGES_RULE in failed_rules) == any(share), share
  assert report.is_pass
  # Other rules see errors that are twice as large, or larger.
  powers = {r.rule: r.power for r in results if r.power}
  sharp = powers.pop(verdicts.EDGES_RULE)
  assert all(
    sharp[name] < power[name] / 2
    for power in powers.values()
    for name in ('element', 'row')
  )


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'name, change, pattern',
  [
    ('activation_scales', lambda a: a * np.float32(1.001), 'largest code was'),
    ('activation_scales', lambda a: np.roll(a, 1, 2), 'of the next group'),
    ('activation_codes', lambda a: (-a).astype(a.dtype), 'opposite sign'),
    ('expert_in_codes', lambda a: a * 0, 'codes were 0'),
    ('expert_in_scales', lambda a: np.ones_like(a), 'scales were 1'),
    ('activation_codes', lambda a: np.roll(a, 1, 2), 'of the previous column'),
  ],
)
def test_wrong_codes_and_scales_are_the_first_failure(name, change, pattern):
  report = _check(_change(_layer('e4m3_1x128'), name, change), 'e4m3_1x128')
  assert report.first_failure.stage == name
  assert pattern in report.first_failure.pattern


_COARSE = np.float32(1.5)


class _Coarse(testing.Quantiser):
  """Scales are half as large again as is right, and codes made with them."""

  def __call__(self, rows, static=None):
    _, scales = super().__call__(rows, static)
    codes = np.ones(rows.shape, ml_dtypes.float8_e4m3fn)
    codes = rows / testing.dequantise(self.form, codes, _COARSE * scales)
    return codes.astype(ml_dtypes.float8_e4m3fn), _COARSE * scales


def test_a_gemm_is_judged_from_codes_though_they_are_wrong():
  layer = testing.Layer(dict.fromkeys(_NAMES, _Coarse('e4m3_1x128')))
  report = _check(layer, 'e4m3_1x128')
  wrong = {
    r.stage for r in report.check_report.results if r.verdict == verdicts.FAIL
  }
  # A GEMM of such codes is right; one that reads others would not be.
  assert {*PARTS} <= wrong
  assert not wrong & {'gate_up', 'activation', 'expert_out', 'y'}


def test_a_gemm_whose_codes_are_not_returned_asks_for_them():
  stages = {'y', 'activation', 'gate_up', 'expert_out'}
  layer = _change(
    _layer('e4m3_1x128', outputs=stages), 'expert_out', lambda a: a * 2
  )
  report = _check(layer, 'e4m3_1x128')
  assert report.first_failure.stage == 'expert_out'
  parts = 'activation_codes, activation_scales'
  assert report.first_failure.hint.startswith(f'return {parts}, ')
  # They are named as tensors that would show more.
  notes = report_text.format_notes(report.check_report)
  assert parts in notes.replace('activation_scales, activation_codes', parts)


def test_codes_of_rows_that_were_not_declared_say_what_is_lacking():
  words = r'activation_codes: expected --rows=FORM.* such as --rows=activation='
  layer = _layer('e4m3_1x128', outputs={'y', 'activation_codes'})
  with pytest.raises(ValueError, match=words):
    _check(layer, '')


@pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
@pytest.mark.few(1)
def test_one_code_that_is_next_to_the_right_one_is_wrong(storage):
  # Given a code whose value is far from the edge, moved by one,
  def move(codes):
    bits = codes.copy().view(np.uint8)
    bits[0, 3, 5] ^= 1
    return bits.view(codes.dtype)

  layer = _layer('e4m3_1x128')
  report = _check(
    _change(layer, 'activation_codes', move), 'e4m3_1x128', dtype=storage
  )
  # then it is found, with its value, scale and group.
  failure = report.first_failure
  assert failure.stage == 'activation_codes'
  assert failure.index == (0, 3, 5)
  assert failure.group == 0
  code = failure.before / failure.scale
  rounded = np.float32(code).astype(ml_dtypes.float8_e4m3fn)
  assert failure.expected == float(rounded) != failure.actual


@pytest.mark.slow
def test_a_code_at_an_edge_may_be_either():
  # Given x whose second value lies at the edge of two codes at scale 1,
  inputs = dataclasses.replace(CASE, rows='int8_token').make().arrays
  inputs = {n: np.array(inputs[n]) for n in tensors.INPUTS}
  inputs['x'][:] = 0
  inputs['x'][..., 0], inputs['x'][..., 1] = 127, 2.5

  def compute(step):
    def move(codes):
      codes = codes.copy()
      codes[0, :, 1] = step
      return codes

    return _change(_layer('int8_token'), 'expert_in_codes', move)

  # then both neighbours are right, and no other one is.
  for code in (2, 3, 4):
    report = hpmoe.check(
      compute(code),
      case_lib.Case('forward', input=inputs, rows='int8_token'),
      lanes=['bounded'],
      repeat=1,
    )
    wrong = _list_judged(report)['expert_in_codes'] == verdicts.FAIL
    assert wrong == (code == 4)


def test_codes_past_the_last_row_must_be_zero():
  def fill(codes):
    padded = np.pad(codes, [(0, 0), (0, 2), (0, 0)])
    padded[0, -1, 0] = 1
    return padded

  case = dict(rows='int8_token', capacity=40)
  report = _check(
    _change(_layer('int8_token'), 'activation_codes', fill), **case
  )
  failure = report.first_failure
  assert failure.stage == 'activation_codes' and failure.row_block is None


@pytest.mark.parametrize(
  'rows, change, message',
  [
    (
      'int8_token',
      ('activation_scales', None),
      'activation_scales: expected i',
    ),
    (
      'int8_token',
      ('activation_codes', 'f4'),
      'activation_codes: expected int',
    ),
    ('activation=int8_token', ('', ''), 'expected --rows=FORM, .*expert_in='),
  ],
)
def test_codes_that_cannot_be_read_are_refused(rows, change, message):
  def kernel(*arguments):
    outputs = _layer('int8_token')(*arguments)
    name, dtype = change
    if dtype is None:
      del outputs[name]
    elif name:
      outputs[name] = outputs[name].astype(dtype)
    return outputs

  with pytest.raises(ValueError, match=message):
    _check(kernel, rows)


@pytest.mark.parametrize(
  ('form', 'per_rank', 'in_shares'),
  [('e4m3_1x128', True, False), ('mxfp8', False, False)]
  + [('e4m3_1x128', True, True)],
)
@pytest.mark.few(2)
def test_codes_that_were_computed_elsewhere_are_judged(
  tmp_path, form, per_rank, in_shares
):
  # Given a case that was written, and what a kernel made of it elsewhere,
  bench = bench_lib.Bench(dataclasses.replace(CASE, rows=form))
  real = {'real': bench.read_by((passes.FORWARD,), 'real')}
  folder_writer.write(tmp_path / 'case', 'forward', real, per_rank)
  case = read_case.load(tmp_path / 'case')
  axes = case.returns.activation_scales
  assert axes.startswith(
    'R N ceil(F/128)' if form == 'e4m3_1x128' else 'R N ceil(F/32)'
  )
  inputs = read_case.inputs(case, 'real')
  policy = bench.real_inputs.policy
  outputs = _layer(form)(inputs, bench.real_inputs.config, policy)
  # when a scale is right, or twice as large, then the report says so.
  for factor in (1, 2):
    if factor > 1:
      scales = outputs['activation_scales'] = outputs['activation_scales'] * 1
      scales[0, 3, 1] += scales[0, 3, 1] if scales.dtype != np.uint8 else 1
    folder = tmp_path / f'out{factor}'
    rank = 0 if per_rank else None
    by_name = {n: a[0] if per_rank else a for n, a in outputs.items()}
    read_case.write(folder, case, 'real', by_name, rank)
    report = numpy_testing.check_unexplained(
      check.Request(
        case_lib.Case.from_folder(str(tmp_path / 'case'), 'forward'),
        outputs_lib.Outputs(str(folder), in_shares=in_shares),
        judgement.Judgement(('bounded',)),
      )
    )
    stages = {r.stage for r in report.results if r.stage in PARTS}
    assert stages == {*PARTS}
    failure = report.first_failure
    if factor == 1:
      assert failure is None
    else:
      assert failure.stage == 'activation_scales'
      assert in_shares or 'activation_scales[' in failure.location
      text = failure_text.format_failure(report)
      assert f'before    {failure.before!r}, group 1 of its row' in text
      page = report_html.to_html(report)
      assert 'activation_codes<small> pass, 0 of ' in page
      assert 'codes moved' in page


@pytest.mark.parametrize('form', ['e4m3_1x128', 'mxfp8'])
@pytest.mark.few(1)
def test_codes_of_jax_are_judged(form):
  def kernel(inputs, config, policy):
    outputs = _layer(form)(inputs, config, policy)
    outputs = {name: jnp.asarray(array) for name, array in outputs.items()}
    for name, array in outputs.items():
      if array.dtype == np.uint8:  # bytes of exponents have a dtype there
        outputs[name] = array.view(jnp.float8_e8m0fnu)
    return outputs

  assert set(_list_judged(_check(kernel, form)).values()) == {verdicts.PASS}


def test_a_sample_of_codes_is_judged():
  case = dataclasses.replace(CASE, rows='e4m3_1x128')
  few = dict(lanes=['bitwise', 'bounded'], tiles=1, repeat=1)
  layer = _layer('e4m3_1x128')
  report = hpmoe.check(layer, case, **few)
  assert report.is_pass and set(_list_judged(report)) == {*PARTS}
  wrong = _change(layer, 'activation_scales', lambda a: a * np.float32(2))
  assert not hpmoe.check(wrong, case, **few).is_pass


def _swap_nibbles(codes):
  return codes << 4 | codes >> 4


class TestPackedRows:
  """Two codes of 4 bits lie in a byte."""

  FORMS = ('mxfp4', 'nvfp4_static')

  @pytest.mark.few(1)
  @pytest.mark.parametrize('form', FORMS)
  @pytest.mark.parametrize(
    'name, change, pattern',
    [
      (
        'expert_in_codes',
        _swap_nibbles,
        'even and odd columns were swapped',
      ),
      ('activation_codes', lambda a: a ^ 0x88, 'of the opposite sign'),
      ('activation_codes', lambda a: np.roll(a, 1, 1), 'of the previous row'),
      ('expert_in_scales', lambda a: np.roll(a, 1, 2), 'of the previous group'),
      ('activation_scales', lambda a: a + np.uint8(8), ''),
    ],
  )
  def test_wrong_codes_are_named(self, form, name, change, pattern):
    def as_bytes(array):
      return change(array.view(np.uint8)).view(array.dtype)

    report = _check(_change(_layer(form), name, as_bytes), form)
    assert report.first_failure.stage == name
    assert pattern in report.first_failure.pattern

  @pytest.mark.parametrize('names', [None, {'y'}])
  @pytest.mark.few(1)
  def test_the_scale_of_the_next_expert_is_wrong(self, names):
    def kernel(inputs, config, policy):
      scale = np.roll(inputs['activation_scale'], 1, 1)
      layer = _layer('nvfp4_static', outputs=names)
      return layer({**inputs, 'activation_scale': scale}, config, policy)

    report = _check(kernel, 'nvfp4_static')
    stage = 'activation_scales' if names is None else 'y'
    assert report.first_failure.stage == stage

  @pytest.mark.parametrize('wrong', ['mxfp4_ceil', 'mxfp8'])
  @pytest.mark.few(1)
  def test_rows_of_another_form_show_in_y_alone(self, wrong):
    layer = _layer(wrong, outputs={'y'})
    assert not _check(layer, 'mxfp4').is_pass

  def test_codes_that_are_not_packed_are_refused(self):
    layer = _change(_layer('mxfp4'), 'expert_in_codes', lambda a: a[..., :9])
    with pytest.raises(ValueError, match=r'expected uint8 \[1, \d+, 72\], got'):
      _check(layer, 'mxfp4')

  def test_columns_that_fill_no_bytes_are_refused(self):
    words = 'expected an even number of columns of activation with mxfp4'
    with pytest.raises(ValueError, match=words):
      _check(_layer('mxfp4'), 'mxfp4', preset='tiny:d_model=32:d_ff=33')


class TestStaticScales:
  """Scales of rows are an input, whatever the rows are."""

  def test_they_are_drawn_so_that_some_codes_saturate(self):
    inputs = dataclasses.replace(CASE, rows='e4m3_static').make()
    layer = _layer('e4m3_static')
    outputs = layer(inputs.arrays, inputs.config, inputs.policy)
    for name in _NAMES:
      scale = inputs.arrays[f'{name}_scale']
      assert scale.shape == (1, 8) and scale.dtype == np.float32
      codes = outputs[f'{name}_codes'].astype(np.float32)
      saturated = np.mean(np.abs(codes) == 448)
      assert 0 < saturated < 0.2
    assert len(np.unique(inputs.arrays['expert_in_scale'])) == 1
    assert len(np.unique(inputs.arrays['activation_scale'])) > 1

  @pytest.mark.few(1)
  @pytest.mark.parametrize('names', [None, {'y'}])
  @pytest.mark.parametrize(
    'wrong', ['next expert', 'own scale', 'overflow', 'reciprocal']
  )
  def test_wrong_kernels_fail(self, wrong, names):
    def kernel(inputs, config, policy):
      inputs, order = dict(inputs), 'divide'
      scale = inputs['activation_scale']
      if wrong == 'next expert':
        inputs['activation_scale'] = np.roll(scale, 1, 1)
      elif wrong == 'reciprocal':
        inputs['activation_scale'] = 1 / scale
      elif wrong == 'own scale':
        del inputs['activation_scale']
      elif wrong == 'overflow':
        order = 'overflow'
      layer = testing.Layer(
        {
          'expert_in': testing.Quantiser('e4m3_static'),
          'activation': testing.Quantiser(
            'e4m3_channel' if wrong == 'own scale' else 'e4m3_static', order
          ),
        }
      )
      outputs = layer(inputs, config, policy)
      outputs.pop('activation_scales', None)
      return {n: a for n, a in outputs.items() if names is None or n in names}

    report = _check(kernel, 'e4m3_static')
    assert not report.is_pass
    if names is None:
      assert report.first_failure.stage == 'activation_codes'

  @pytest.mark.parametrize(
    ('rows', 'change', 'message'),
    [
      ('e4m3_static', lambda a: -a, 'expected scales above 0'),
      ('e4m3_static', lambda a: a[:, :1], r'expected float32 \[1, 8\]'),
      ('e4m3_token', lambda a: a, 'expected none without --rows of a static'),
    ],
  )
  def test_scales_of_a_file_are_taken_or_refused(self, rows, change, message):
    inputs = dataclasses.replace(CASE, rows='e4m3_static').make().arrays
    scales = [spec.name for spec in tensors.STATIC_SCALES]
    inputs = {n: np.array(inputs[n]) for n in (*tensors.INPUTS, *scales)}
    inputs['activation_scale'] *= np.float32(1.5)
    case = case_lib.Case('forward', input=inputs, rows='e4m3_static')
    np.testing.assert_array_equal(
      case.make().arrays['activation_scale'], inputs['activation_scale']
    )
    inputs['activation_scale'] = change(inputs['activation_scale'])
    with pytest.raises(ValueError, match=f'_scale: {message}'):
      case_lib.Case('forward', input=inputs, rows=rows).make()

  def test_weights_and_x_have_no_static_form(self):
    for field in ('quantised', 'x_form'):
      with pytest.raises(ValueError, match=f'^{field}: expected one of'):
        precision.PrecisionPolicy(**{field: 'e4m3_static'})
