"""Images whose products are of int8 codes: what they say, and what has none."""

import dataclasses

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler import compiler
from hpmoe.backend_ascend.compiler import interpreter
from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.host.checks import modes
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

CONFIG = config_testing.make_config(r=2, t=9, e=4, k=2, d=16, f=8)
OPTIONS = granularity.Options(row_block=8, col_block=8, num_aic=2, num_aiv=2)
FORMS = dict(zip(('quantised', 'rows'), layout.QUANTISED[1]))
POLICY = precision.PrecisionPolicy('bfloat16', **FORMS)
Kind, Buffer = layout.Kind, layout.Buffer


def _compile(policy=POLICY, options=OPTIONS) -> compiler.Compiled:
  return compiler.compile_forward(CONFIG, policy, options)


@pytest.mark.parametrize('grain', granularity.EVENT_GRAINS)
@pytest.mark.parametrize('relay', [False, True])
@pytest.mark.parametrize('placement', ['combine', 'before_down'])
def test_an_image_says_its_forms_and_is_proved(grain, relay, placement):
  policy = dataclasses.replace(POLICY, placement=placement)
  options = dataclasses.replace(OPTIONS, event_grain=grain, relay=relay)
  compiled = _compile(policy, options)
  assert compiled.image.policy == policy
  assert all(rule.proved for rule in compiled.proof.rules)
  # Half of what travels: codes and a scale, beside slot and weight.
  wide = dataclasses.replace(policy, quantised='', rows='')
  assert compiled.image.heap_bytes < _compile(wide, options).image.heap_bytes


def test_an_activation_may_stay_wide_until_codes_are_made_of_it():
  wide = dataclasses.replace(POLICY, points=layout.WIDE_POINTS)
  assert _compile(wide).image.policy == wide
  assert _compile(wide).image.header['quantised'] == 2


def test_the_heap_that_a_summary_says_is_that_of_its_tensors():
  sizes = CONFIG.dims()
  d, f, n = (sizes[letter] for letter in 'DFN')
  row = d + 4 * 2 * f + f + 4 * d + 2 * 4 + 8
  events = 4 * len(_compile().flow.events) // sizes['R']
  home = 2 * sizes['T'] * sizes['K'] * d
  assert _compile().summary()['heap_bytes'] == n * row + home + events


@pytest.mark.parametrize(
  'kind, buffer',
  [(Kind.SWIGLU, Buffer.EXPERT_IN), (Kind.RETURN, Buffer.ACTIVATION)],
)
def test_a_task_that_does_not_say_that_it_reads_a_scale_is_refused(
  kind, buffer
):
  # Given an image one of whose tasks forgets the scales beside its rows, when
  # it is proved, then that task is told.
  blob = bytearray(bytes(_compile().image))
  tables = image_lib.tables(blob)
  task = int(np.flatnonzero(tables['tasks']['kind'] == kind)[0])
  begin = int(tables['tasks'][task]['region_begin'])
  reads = tables['regions'][begin:][: int(tables['tasks'][task]['read_count'])]
  (place,) = np.flatnonzero(reads['buffer'] == buffer)
  writable = np.frombuffer(blob, layout.REGION, 1, _offset(blob, begin + place))
  writable['col_end'] = writable['col_begin']
  report = proofs.prove(image_lib.load(image_lib.seal(blob)))
  (violation,) = (v for v in report.violations if 'which its read' in v.text)
  name = buffer.name.lower()
  assert kind.name.lower() in violation.text and name in violation.text


def _offset(blob, index: int) -> int:
  header = image_lib.header(blob)
  return int(header['regions']['offset']) + index * layout.REGION.itemsize


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(rows=''), r'policy\.quantised, policy\.rows: expected int8_channel'),
    (dict(rows='e4m3_1x128'), r"got \('int8_channel', 'e4m3_1x128'\)"),
    (dict(rows='activation=int8_token'), r'got .*activation=int8_token'),
    (dict(quantised='int8_channel_bf16'), r'got .*int8_channel_bf16'),
    (dict(placement='epilogue'), r'placement: expected one of .*sums of codes'),
    (dict(points=('silu=bfloat16',)), r'points: expected \(\) or .*gate_up=fl'),
    (dict(x_form='int8_token'), r'policy\.x_form: .*int8_token'),
    (
      dict(operand_forms='d_w_down:d_expert_out=mxfp8'),
      r'policy\.operand_forms: expected',
    ),
  ],
)
def test_other_forms_are_refused_by_name(fields, message):
  with pytest.raises(ValueError, match=message) as refusal:
    _compile(dataclasses.replace(POLICY, **fields))
  assert len(str(refusal.value)) < 300


def test_sums_that_an_int32_does_not_hold_are_refused():
  config = dataclasses.replace(CONFIG, d_ff=layout.MAX_CODE_DEPTH + 1)
  with pytest.raises(
    ValueError, match=r'd_ff: expected at most 131071 .*131072'
  ):
    compiler.compile_forward(config, POLICY, OPTIONS)


def test_only_the_forward_pass_of_a_layer_has_codes():
  # Given rows of codes, when anything else is asked, then one line says so.
  def refuses(message, function, *args, **kwargs):
    with pytest.raises(ValueError, match=message):
      function(*args, **kwargs)

  rows = "policy.rows: expected '' "
  refuses(rows + 'of the backward', compiler.compile_backward, CONFIG, POLICY)
  sublayer = config_lib.MoEConfig(**vars(CONFIG) | dict(sublayer=True))
  refuses(rows + 'of a sub-', compiler.compile_forward, sublayer, POLICY)
  call = layer_call.LayerCall(CONFIG, POLICY, OPTIONS)
  refuses(rows + 'of a front end', call.check)
  refuses(
    'without relay and codes', interpreter.Interpreter, _compile().image, {}
  )


def test_what_replays_the_oracle_is_refused():
  image = _compile().image
  actions = np.full(len(image.tables['tasks']), modes.ISOLATED, np.uint8)
  with pytest.raises(ValueError, match=r'actions: .*rows of int8_token'):
    modes.check_actions(image, modes.Modes(actions=actions))


class TestInputs:
  def _case(self):
    rng = np.random.default_rng(5)
    image = _compile().image
    case = testing.make_case(
      layout.Direction.FORWARD,
      CONFIG,
      dataclasses.replace(POLICY, quantised='', rows=''),
      'zipf',
    )
    inputs = {n: case.inputs[n] for n in ('x', 'topk_ids', 'topk_weights')}
    for name, depth, width in (('w_gate_up', 16, 16), ('w_down', 8, 16)):
      codes = rng.integers(-127, 128, (2, 2, depth, width), np.int8)
      scales = rng.uniform(1e-3, 1e-2, (2, 2, 1, width)).astype(np.float32)
      inputs |= {f'{name}_codes': codes, f'{name}_scales': scales}
    return image, inputs

  def test_a_launch_returns_codes_scales_and_sums(self):
    image, inputs = self._case()
    outputs = runtime.launch(image, inputs)
    assert outputs['expert_in_codes'].dtype == np.int8
    assert outputs['activation_scales'].shape == (2, CONFIG.num_rows, 1)
    assert outputs['gate_up_sums'].dtype == np.int32
    serial = runtime.launch_serial(image, inputs)
    for name, array in outputs.items():
      np.testing.assert_array_equal(
        array.view('u1'), serial[name].view('u1'), err_msg=name
      )

  @pytest.mark.parametrize('guards', [False, True])
  def test_rows_of_nobody_are_zeros_in_every_tensor(self, guards):
    image, inputs = self._case()
    valid = runtime.route(image, inputs['topk_ids']).counts.sum(axis=0)
    valid = valid.reshape(CONFIG.num_ranks, -1).sum(axis=1)
    checks = modes.Modes(guards=guards)
    outputs = runtime.run(image, inputs, modes=checks).outputs
    rows = [n for n, a in outputs.items() if a.shape[1] == CONFIG.num_rows]
    assert {'expert_in_scales', 'activation_scales'} < set(rows)
    for name in rows:
      for of_rank, count in zip(outputs[name], valid, strict=True):
        assert 0 < count < CONFIG.num_rows
        assert not of_rank[count:].any(), name

  @pytest.mark.parametrize(
    'name, change, message',
    [
      ('w_down_codes', None, r'inputs: expected .*w_down_codes'),
      ('w_down_scales', None, r'inputs: expected .*w_down_scales'),
      (
        'w_down_codes',
        lambda a: a.astype('i2'),
        'w_down_codes: expected dtype',
      ),
      ('w_down_scales', lambda a: a[..., :3], 'w_down_scales: expected shape'),
      ('w_down_scales', lambda a: a * np.nan, 'w_down_scales: expected finite'),
    ],
  )
  def test_inputs_that_do_not_fit_are_refused(self, name, change, message):
    image, inputs = self._case()
    array = inputs.pop(name)
    if change is not None:
      inputs[name] = change(array)
    with pytest.raises(ValueError, match=message):
      runtime.launch(image, inputs)
