"""Layers whose expert weights are codes and scales.

A right kernel passes wherever it multiplies by a scale; each that takes a wrong
scale fails, and where it does is named.  The kernel reads codes as files have
them, by steps of its own.
"""

import dataclasses
import functools

import ml_dtypes
import numpy as np
import pytest

from hpmoe.backend_ascend import compiler
from hpmoe.parity_tests.candidates import exchange
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import codes
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import controls_testing
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

CONFIG = config_lib.MoEConfig(
  num_ranks=2, num_tokens=16, num_experts=4, top_k=2, d_model=144, d_ff=72
)
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
  'mxfp4': (32, 1),
  'int8_channel': (0, 1),
  'int8_channel_bf16': (0, 1),
  'int4_128': (128, 1),
  'uint4_64': (64, 1),
  'e4m3_tensor': (0, 0),
  'e5m2_tensor': (0, 0),
  'e4m3_channel': (0, 1),
  'e4m3_128x128': (128, 128),
  'e4m3_128x128_ceil': (128, 128),
  'mxfp8': (32, 1),
}
SLOW = pytest.mark.slow
E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _codes(form: str, codes: np.ndarray) -> np.ndarray:
  """Returns codes `[X, Y]` float32; 4 bits are of int4, uint4 or e2m1."""
  if '4_' not in form[:6] and form != 'mxfp4':
    return codes.astype(np.float32)
  pairs = np.stack([codes & 15, codes >> 4], axis=1)
  nibbles = pairs.reshape(-1, codes.shape[1]).astype(np.int32)
  if form == 'mxfp4':
    return np.where(nibbles & 8, -1, 1) * E2M1[nibbles & 7]
  if form.startswith('int4'):
    nibbles = nibbles - 16 * (nibbles > 7)
  return nibbles.astype(np.float32)


def _wide(scales: np.ndarray) -> np.ndarray:
  if scales.dtype == np.uint8:
    return np.float32(2) ** (scales.astype(np.int32) - 127)
  return scales.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A layer of codes.

  Attributes:
    where: a scale multiplies 'terms', or 'sums' of one group's terms; or terms
      that are then rounded to 'operands' of the storage dtype.
    rows: what it makes of its rows, see `_of_rows`.
    wrong: what it does to the scales of w_gate_up, see `_spoilt`.
  """

  where: str = 'sums'
  wrong: str = ''
  rows: str = ''

  def __call__(self, inputs, config, policy):
    ids, local = inputs['topk_ids'], inputs['w_down_codes'].shape[1]
    ranks, tokens, slots = ids.shape
    x = inputs['x'].reshape(ranks * tokens, -1).astype(np.float32)
    made = np.zeros((ranks * tokens, slots, x.shape[1]), np.float32)
    gate_ups, hiddens, outs = (
      np.zeros((ranks, config.num_rows, width), np.float32)
      for width in (2 * config.d_ff, config.d_ff, config.d_model)
    )
    first = 0
    for expert in range(ranks * local):
      token, slot = np.nonzero(ids.reshape(-1, slots) == expert)
      at = divmod(expert, local)
      first = first if at[1] else 0
      gate_up = self._gemm(policy, x[token], inputs, 'w_gate_up', at)
      place = at[0], slice(first, first + len(token))
      gate_ups[place] = gate_up
      first += len(token)
      gate, up = np.split(self._stored(policy, gate_up), 2, axis=1)
      act = np.abs(gate)
      if policy.activation == 'swiglu':
        with np.errstate(over='ignore'):
          act = gate / (1 + np.exp(-gate))
      hidden = self._stored(policy, act * up)
      out = self._gemm(policy, hidden, inputs, 'w_down', at)
      made[token, slot] = self._stored(policy, out)
      hiddens[place], outs[place] = hidden, out
    weights = inputs['topk_weights'].reshape(-1, slots, 1)
    y = (made * weights).sum(1, dtype=np.float32).reshape(ranks, tokens, -1)
    dtype = inputs['x'].dtype
    found = dict(y=y, gate_up=gate_ups, activation=hiddens, expert_out=outs)
    return {name: a.astype(dtype) for name, a in found.items()}

  def _stored(self, policy, a):
    dtype = getattr(ml_dtypes, policy.storage, policy.storage)
    return a.astype(dtype).astype(np.float32)

  def _gemm(self, policy, a, inputs, name, at):
    codes = _codes(policy.quantised, inputs[f'{name}_codes'][at])
    scales = _wide(inputs[f'{name}_scales'][at])
    size = [g or n for g, n in zip(FORMS[policy.quantised], codes.shape)]
    if name == 'w_gate_up':
      scales = _spoilt(self.wrong, scales)
    each = np.repeat(scales, size[1], axis=1)[:, : codes.shape[1]]
    if f'{name}_zeros' in inputs:
      zeros = np.repeat(inputs[f'{name}_zeros'][at], size[1], axis=1)
      zeros = np.repeat(zeros, size[0], axis=0)
      codes = codes - zeros[: codes.shape[0], : codes.shape[1]]
    total = np.zeros((len(a), codes.shape[1]), np.float32)
    if self.rows:
      return self._quantised(a, codes, each, size[0])
    for block, scale in enumerate(each):
      of = slice(block * size[0], (block + 1) * size[0])
      if self.where == 'sums':
        total += a[:, of] @ codes[of] * scale
      else:
        terms = codes[of] * scale
        if self.where == 'operands':
          terms = self._stored(policy, terms)
        total += a[:, of] @ terms
    return total

  def _quantised(self, a, codes, each, size):
    """Returns sums of products of codes, scaled block by block of 128."""
    total = np.zeros((len(a), codes.shape[1]), np.float32)
    of_name = {'128': 128, 'mx': 32}
    word = next((w for w in of_name if w in self.rows), '')
    step = of_name.get(word, len(codes))
    for lo in range(0, len(codes), step):
      of = slice(lo, lo + step)
      mine, scale = _of_rows(self.rows, a[:, of])
      total += (mine @ codes[of] * scale) * each[lo // size]
    return total


def _of_rows(how: str, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns codes of rows `[n, x]`, each one group, and scales `[n, 1]`."""
  amax = np.abs(a).max(1, keepdims=True)
  if how == 'mx':
    power = np.frexp(np.where(amax, amax, 1))[1] - 1 - 8
    scale = np.ldexp(np.float32(1), power)
    codes = np.clip(a / scale, -448, 448)
    return codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), scale
  if how.startswith('e4m3'):
    amax = np.maximum(amax, np.float32(1e-4))
    scale = amax / np.float32(448)
    codes = a / scale
    if 'power' in how:
      scale = np.exp2(np.ceil(np.log2(scale)))
      codes = a / scale
    if 'reciprocal' in how:
      codes = a * (np.float32(1) / scale)
    if 'tail' in how and a.shape[1] < 128:
      scale = np.ones_like(scale)
    return codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), scale
  amax = np.where(amax, amax, np.float32(1))
  scale = amax / np.float32(127)
  codes = a * (np.float32(127) / amax)
  if 'divide' in how:
    codes = a / scale
  if 'next row' in how:
    scale = np.roll(scale, 1)
  if 'cut' in how:
    return np.trunc(codes), scale
  if 'one scale' in how:
    scale = np.broadcast_to(scale.max(), scale.shape)
    codes = a / scale
  return np.rint(codes), scale


def _spoilt(wrong: str, scales: np.ndarray) -> np.ndarray:
  scales = scales.copy()
  if wrong == 'of the next block':
    scales = np.roll(scales, 1, axis=int(scales.shape[0] == 1))
  elif wrong == 'transposed':
    scales = np.ascontiguousarray(scales.T).reshape(scales.shape)
  elif wrong == 'an exponent off':
    scales[-1, -1] *= 2
  elif wrong == 'not of the tail':
    scales[-1] = 1
  elif wrong == 'in bfloat16':
    scales = scales.astype(ml_dtypes.bfloat16).astype(np.float32)
  elif wrong:
    raise ValueError(wrong)
  return scales


def _some(quick: int, *of) -> list:
  """Returns parameters; those after the first few are slow together."""
  rest = [
    pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=SLOW)
    for one in of[quick:]
  ]
  return [*of[:quick], *rest]


# A fault, and forms whose scales can have it.
WRONG = [
  (wrong, form)
  for wrong, some in (
    ('of the next block', ('int8_channel', 'int4_32', 'mxfp4', 'mxfp8')),
    ('of the next block', ('e4m3_128x128',)),
    ('transposed', ('int4_32', 'mxfp4', 'mxfp8', 'e4m3_128x128')),
    ('an exponent off', FORMS),
    ('not of the tail', ('int4_32', 'int4_128', 'mxfp4', 'e4m3_128x128')),
    ('in bfloat16', ('int8_channel', 'e4m3_channel', 'e4m3_128x128')),
  )
  for form in some
]


def _drawn(form: str, storage: str, seed: int, rows: str = ''):
  policy = precision.PrecisionPolicy(storage, rows=rows)
  return trial.draw(CONFIG, policy, seed).with_codes(form)


def _failed(made, kernel: Kernel) -> list[str]:
  """Returns what of y lane bounded refuses."""
  other = 'terms' if kernel.where == 'sums' else 'sums'
  right = dataclasses.replace(kernel, where=other)
  got, same = (
    {'y': k(made.arrays, made.config, made.policy)['y']}
    for k in (kernel, right)
  )
  found = trial.judge(made, got, same)
  return [r.rule for r in found.values() if r.verdict == verdicts.FAIL]


@pytest.mark.parametrize('form', _some(3, *FORMS))
@pytest.mark.parametrize('where', ('sums', 'terms'))
def test_a_right_kernel_is_within_its_bounds(form, where):
  for seed, storage in enumerate(('bfloat16', 'float32', 'float16')):
    made = _drawn(form, storage, seed)
    assert not _failed(made, Kernel(where)), storage


@functools.cache
def _bench(case: case_lib.Case) -> bench_lib.Bench:
  return bench_lib.Bench(case, keep=True)


def _judged(form: str, kernel, *lanes: str, **changes) -> check.Report:
  case = dataclasses.replace(CASE, quantised=form, **changes)
  asked = judgement.Judgement(lanes=lanes, repeat=1)
  request = check.Request(case, in_process.Function(kernel), asked)
  return check.examined(request, _bench(case), 0)


@pytest.mark.parametrize('form', _some(1, *FORMS))
def test_a_right_kernel_passes_in_every_lane(form):
  report = _judged(form, Kernel(), *verdicts.LANES)
  assert report.verdict == verdicts.PASS
  judged = {r.lane for r in report.results if r.verdict == verdicts.PASS}
  assert {'exact', 'bounded', 'standard'} <= judged


_BEFORE = 'w_gate_up had the scales of the group before along its'


@pytest.mark.parametrize('lane', ('bounded', 'exact'))
@pytest.mark.parametrize(
  'wrong, form, told',
  _some(
    2,
    ('of the next block', 'int4_32', f'{_BEFORE} depth'),
    ('not of the tail', 'mxfp4', 'w_gate_up had no scale in the last group of'),
    ('of the next block', 'int8_channel', f'{_BEFORE} columns'),
    ('of the next block', 'mxfp8', f'{_BEFORE} depth'),
    ('of the next block', 'e4m3_128x128', f'{_BEFORE} '),
    ('transposed', 'int4_32', 'w_gate_up had its scales transposed'),
    ('transposed', 'mxfp4', 'w_gate_up had its scales transposed'),
    ('not of the tail', 'e4m3_128x128', 'had no scale in the last group of'),
  ),
)
def test_a_wrong_scale_is_named(wrong, form, told, lane):
  report = _judged(form, Kernel(wrong=wrong), lane)
  assert told in report.first_failure.pattern


@pytest.mark.slow
@pytest.mark.parametrize('wrong, form', WRONG)
@pytest.mark.parametrize('lane', ('bounded', 'standard'))
def test_a_wrong_scale_fails_and_is_located(wrong, form, lane):
  report = _judged(form, Kernel(wrong=wrong), lane)
  assert report.verdict == verdicts.FAIL
  # Standards allow of an element more than this one rounding.
  hidden = wrong == 'in bfloat16' and lane == 'standard'
  assert hidden or report.first_failure.stage == 'gate_up'


def test_the_tile_of_a_wrong_scale_is_named():
  # The last column of w_gate_up has its last scale doubled.
  report = _judged('int4_32', Kernel(wrong='an exponent off'), 'bounded')
  failure = report.first_failure
  assert failure.stage == 'gate_up'
  assert failure.index[-1] == 2 * 72 - 1


@pytest.mark.parametrize(
  'wrong, form',
  [
    ('of the next block', 'int4_32'),
    ('transposed', 'mxfp4'),
    ('not of the tail', 'mxfp4'),
    ('an exponent off', 'int8_channel'),
  ],
)
@pytest.mark.slow
def test_a_wrong_scale_fails_lane_exact(wrong, form):
  report = _judged(form, Kernel(wrong=wrong), 'exact')
  assert report.first_failure.stage == 'gate_up'


@pytest.mark.slow
@pytest.mark.parametrize('form', ('int8_channel', 'uint4_64', 'mxfp4'))
def test_no_control_passes_in_any_lane(form):
  bench = _bench(dataclasses.replace(CASE, quantised=form))
  candidate = in_process.Function(Kernel())
  cases = [
    bench.case(candidate, passes.FORWARD, bench.inputs(data))
    for data in ('exact', 'wide', 'real')
  ]
  for control in controls_testing.controls(cases[-1]):
    answers = [controls_testing.answer(case, control) for case in cases]
    for lane in ('exact', 'bounded', 'standard'):
      of = iter(answers if lane == 'exact' else answers[2:])
      report = _judged(form, lambda *_, of=of: next(of), lane)
      assert report.verdict == verdicts.FAIL, (control.name, lane)


KERNEL = """
import numpy as np


def moe(inputs, layer, policy):
  x, ids, weights = inputs['x'], inputs['topk_ids'], inputs['topk_weights']
  local = layer.num_experts // layer.num_ranks
  y = np.zeros_like(x)
  for rank, token, slot in np.ndindex(*ids.shape):
    at = divmod(int(ids[rank, token, slot]), local)
    row = x[rank, token] @ of('w_gate_up', inputs, at)
    gate, up = np.split(row, 2)
    hidden = abs(gate)
    if policy.activation == 'swiglu':
      with np.errstate(over='ignore'):
        hidden = gate / (1 + np.exp(-gate))
    hidden = (hidden * up).astype(np.float32)
    y[rank, token] += weights[rank, token, slot] * (
      hidden @ of('w_down', inputs, at)
    )
  return {'y': y}


def of(name, inputs, at):
  codes, scales = (inputs[name + part][at] for part in ('_codes', '_scales'))
  assert name not in inputs and codes.dtype == np.uint8
  low, high = codes & 15, codes >> 4
  codes = np.stack([low, high], 1).reshape(-1, codes.shape[1])
  table = np.float32([0, .5, 1, 1.5, 2, 3, 4, 6])
  values = np.where(codes & 8, -1, 1) * table[codes & 7]
  scales = np.float32(2) ** (scales.astype(np.int32) - 127)
  return (values * np.repeat(scales, 32, 0)[: len(values)]).astype(np.float32)
"""


@pytest.mark.parametrize(
  'change, per_rank',
  _some(1, ('', False), ('', True), ('codes & 8', False), ('- 127', False)),
)
def test_a_case_of_codes_is_judged_elsewhere(tmp_path, change, per_rank):
  # Given a case that was written, and a kernel that knows numpy alone,
  wide = dataclasses.replace(CASE, quantised='mxfp4', dtype='float32')
  bench = bench_lib.Bench(wide, keep=True)
  made = {data: bench.read_by(wide.passes, data) for data in inputs.DATA}
  folder.write(tmp_path / 'case', 'forward', made, per_rank)
  path = tmp_path / 'kernel.py'
  path.write_text(KERNEL.replace(change, '- 126') if change else KERNEL)
  given = read_case.load(tmp_path / 'case')
  # when it ran there, right or with a wrong scale or sign,
  read_case.run(given, read_case.function(f'{path}:moe'), tmp_path / 'out')
  # then its y says so.
  case = case_lib.Case.of(str(tmp_path / 'case'), 'forward')
  assert case.quantised == 'mxfp4'
  request = check.Request(case, outputs.Outputs(str(tmp_path / 'out')))
  found = check.run(request)
  failed = {r.lane for r in found.results if r.failure and r.stage == 'y'}
  expected = {'exact', 'bounded', 'standard'}
  assert failed & expected == (expected if change else set())


def test_a_form_that_has_no_gradient_or_no_backend_is_refused():
  made = dataclasses.replace(CASE, quantised='int4_32').make()
  with pytest.raises(
    ValueError, match="quantised: expected '' for our backend"
  ):
    compiler.compile_forward(made.config, made.policy)
  case = case_lib.Case('forward', quantised='int8_channel')
  with pytest.raises(ValueError, match='^weights: expected none with backend_'):
    check.run(check.Request(case))
  case = dataclasses.replace(case, direction='both')
  with pytest.raises(ValueError, match='^direction: expected forward with wei'):
    case.make()
  with pytest.raises(ValueError, match='^quantised: expected one of'):
    precision.PrecisionPolicy(quantised='int3')


def test_codes_that_fill_no_byte_are_refused():
  case = dataclasses.replace(CASE, preset='tiny:d_model=143', quantised='mxfp4')
  with pytest.raises(ValueError, match='^codes: expected a multiple of 2'):
    case.make()


def _given(form: str) -> dict[str, np.ndarray]:
  """Returns what users have: codes, and no values."""
  made = dataclasses.replace(CASE, quantised=form).make()
  return {
    name: array
    for name, array in codes.given(made.policy, made.arrays).items()
    if name != 'dy'
  }


@pytest.mark.parametrize('form', ('int8_channel', 'uint4_64', 'e4m3_128x128'))
def test_codes_that_are_given_are_the_weights(form, tmp_path):
  # Given codes and scales of somebody's, in a file,
  given, path = _given(form), str(tmp_path / 'in.safetensors')
  given['w_down_scales'] = given['w_down_scales'] * 2
  read_case.save(path, given, {})
  # when they are a case,
  made = dataclasses.replace(CASE, quantised=form, input=path).make()
  # then its weights are what they mean.
  expected = dataclasses.replace(CASE, quantised=form).make().arrays
  for name, factor in (('w_gate_up', 1), ('w_down', 2)):
    np.testing.assert_array_equal(made.arrays[name], factor * expected[name])
  for name in given:
    np.testing.assert_array_equal(made.arrays[name], given[name])


@pytest.mark.parametrize(
  'name, change, told',
  [
    ('w_down_scales', lambda a: a[..., :-1], 'expected float32 .2, 4, 1, 144'),
    ('w_down_scales', lambda a: a.astype('f2'), 'expected float32 .*got float'),
    ('w_gate_up_codes', lambda a: a[..., 1:, :], 'expected int8 .2, 4, 144, 1'),
    ('w_gate_up_codes', lambda a: a[0], 'expected .R, L, X, Y., got .4, 144'),
    ('w_down_scales', lambda a: a * np.nan, 'expected finite values, got nan'),
  ],
)
def test_codes_that_cannot_be_the_weights_are_refused(name, change, told):
  given = _given('int8_channel')
  given[name] = change(given[name])
  with pytest.raises(ValueError, match=f'^{name}: {told}'):
    dataclasses.replace(CASE, quantised='int8_channel', input=given).make()


def test_codes_without_a_form_are_refused():
  with pytest.raises(ValueError, match='^w_gate_up: expected x, topk_ids'):
    dataclasses.replace(CASE, input=_given('int8_channel')).make()


@pytest.mark.parametrize('form', ('int8_channel_bf16', 'e4m3_128x128', 'mxfp4'))
def test_codes_reach_another_process_as_they_are(form, tmp_path):
  given = _given(form)
  exchange.save(tmp_path / 'in', given)
  for name, array in exchange.load(tmp_path / 'in').items():
    assert array.dtype == given[name].dtype
    assert array.tobytes() == given[name].tobytes()


# (weights, rows, what kernels do to rows).
DYNAMIC = [
  ('int8_channel', 'int8_token', 'int8 divide'),
  ('e4m3_128x128', 'e4m3_1x128', 'e4m3 128 reciprocal'),
  ('int8_channel', 'int8_token', 'int8'),
  ('e4m3_128x128', 'e4m3_1x128', 'e4m3 128'),
  ('e4m3_128x128_ceil', 'e4m3_1x128_ceil', 'e4m3 128 power'),
  ('e4m3_channel', 'e4m3_1x128', 'e4m3 128'),
  ('mxfp8', 'mxfp8', 'mx'),
]


@pytest.mark.parametrize('storage', _some(1, 'float16', 'bfloat16', 'float32'))
@pytest.mark.parametrize('form, rows, how', DYNAMIC)
def test_rows_that_are_quantised_are_within_bounds(form, rows, how, storage):
  made = _drawn(form, storage, 0, rows)
  assert not _failed(made, Kernel(rows=how))


@pytest.mark.parametrize('form, rows, how', _some(1, *DYNAMIC))
def test_the_oracle_quantises_rows(form, rows, how):
  bench = _bench(dataclasses.replace(CASE, quantised=form, rows=rows))
  candidate = in_process.Function(Kernel(rows=how))
  case = bench.case(candidate, passes.FORWARD, bench.made)
  answer = controls_testing.answer(case)
  report = _judged(form, lambda *_: answer, 'bounded', rows=rows)
  assert report.verdict == verdicts.PASS


@pytest.mark.parametrize('form, rows, how', _some(2, *DYNAMIC))
def test_a_right_quantiser_of_rows_passes(form, rows, how):
  report = _judged(form, Kernel(rows=how), *verdicts.LANES, rows=rows)
  assert report.verdict == verdicts.PASS
  (why,) = {r.why for r in report.results if r.lane == 'exact'}
  assert why == f'no data are exact whose rows become {rows}'


@pytest.mark.parametrize(
  'form, rows, how',
  _some(
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
def test_a_wrong_quantiser_of_rows_is_located(form, rows, how):
  report = _judged(form, Kernel(rows=how), 'bounded', rows=rows)
  assert report.first_failure.stage == 'gate_up'


# Triton's and Marlin's kernels multiply weights that the storage dtype has.
@pytest.mark.parametrize(
  'policy, where, told',
  _some(
    2,
    ((), 'operands', 'as if operands was rounded to bfloat16'),
    (('operands=storage',), 'operands', ''),
    (('operands=storage',), 'sums', 'as if operands was not rounded'),
    ((), 'sums', ''),
  ),
)
# Values of more digits than bfloat16 has.
@pytest.mark.parametrize(
  'form', _some(1, 'uint4_64', 'int8_channel', 'int8_channel_bf16', 'int4_32')
)
def test_where_a_scale_multiplies_is_a_rounding_point(
  form, policy, where, told
):
  report = _judged(form, Kernel(where), 'bounded', policy=policy)
  failure = report.first_failure
  assert (failure.pattern if failure else '').startswith(told)
  assert bool(failure) == bool(told)


def test_weights_that_are_no_codes_are_not_exact():
  made = CASE.data(CASE.make(), 'exact')
  assert np.abs(made.arrays['w_gate_up'].astype(np.float32)).max() > 7
  with pytest.raises(
    ValueError, match='^w_gate_up: expected whole numbers that'
  ):
    made.with_codes('int4_32')
