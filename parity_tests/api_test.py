"""A check from Python: functions of this process, values of the caller."""

import dataclasses
import functools
import importlib.util
import inspect
import itertools
import json
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

import hpmoe
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.candidates import numpy_kernel_testing
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.explain import roundings
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.reference.contract import option_fields
from hpmoe.reference.contract import presets

CASE = hpmoe.Case(preset='tiny', ranks=2)


def right(inputs, config, policy):
  return trial.Kernel().forward(config, policy, inputs)


def wrong(inputs, config, policy):
  return {'y': right(inputs, config, policy)['y'] * 1.02}


right.backward = lambda inputs, config, policy: trial.Kernel().backward(
  config, policy, inputs
)


class TestNames:
  def test_import_takes_no_jax_and_no_numpy(self):
    # Given a new interpreter, then the import loads nothing that is heavy.
    code = "import sys, hpmoe; print({'jax', 'numpy'} & {*sys.modules})"
    output = subprocess.run(
      [sys.executable, '-c', code], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == 'set()'

  def test_each_name_is_what_type_checkers_see(self):
    source = pathlib.Path(hpmoe.__file__).read_text()
    for name, (module, attribute) in hpmoe._HOMES.items():
      alias = '' if attribute == name else f' as {name}'
      line = f'  from hpmoe.{module} import {attribute}{alias}\n'
      assert source.count(line) == 1
      assert getattr(hpmoe, name).__name__ == attribute
    assert source.count('\n  from hpmoe.') == len(hpmoe._HOMES)
    assert hpmoe.__all__ == sorted(hpmoe._HOMES)
    assert set(hpmoe.__all__) <= set(dir(hpmoe))

  def test_an_unknown_name_is_no_attribute(self):
    with pytest.raises(AttributeError, match="'hpmoe' has no attribute 'chek'"):
      _ = hpmoe.chek


@pytest.mark.verdict_alone
class TestCheck:
  def test_a_right_function_passes_with_a_row_for_each_stage(self):
    report = hpmoe.check(right, CASE)

    assert report.is_pass and report.first_failure is None
    assert {'pass'} == {report.stages[n] for n in ('expert_in', 'y', 'layer')}
    assert report.stages['counts'] == 'not judged'
    assert str(report).splitlines()[-1].startswith('PASS (partial check')

  def test_old_names_work_and_say_the_new_ones(self):
    report = hpmoe.check(wrong, CASE, lanes=['bounded'])

    with pytest.warns(DeprecationWarning, match='is now called Report.is_pass'):
      assert report.passed is report.is_pass is False
    with pytest.warns(DeprecationWarning, match='Report.check_report'):
      assert report.found is report.check_report
    with pytest.raises(AttributeError, match="got 'pased'"):
      _ = report.pased

  def test_a_wrong_function_is_named_with_a_line_that_repeats_it(self):
    report = hpmoe.check(wrong, CASE, lanes=['bounded'], repeat=3)

    assert not report.is_pass and report.stages['y'] == 'fail'
    failure = report.first_failure
    assert failure.stage == 'y' and failure.pattern == 'got = 1.02 * expected'
    assert failure.replay == (
      f"hpmoe.check({__name__}.wrong, hpmoe.Case(preset='tiny', ranks=2), "
      "lanes=('bounded',), repeat=3)"
    )
    second_report = eval(failure.replay.replace(f'{__name__}.', ''))
    assert second_report.first_failure == failure

  @pytest.mark.parametrize(
    'function', [lambda *layer: wrong(*layer), functools.partial(wrong)]
  )
  def test_a_function_without_a_name_has_no_line_that_repeats_it(
    self, function
  ):
    failure = hpmoe.check(function, CASE, lanes=['bounded']).first_failure

    assert failure.replay.startswith('none: ')
    assert 'hpmoe.check(' not in failure.replay

  def test_a_report_as_data_and_as_a_page(self):
    report = hpmoe.check(wrong, CASE, lanes=['bounded'])

    content = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert content['verdict'] == 'fail'
    assert content['first_failure']['stage'] == 'y'
    page = report.to_html()
    assert ElementTree.fromstring(page.partition('\n')[2]).tag.endswith('html')

  @pytest.mark.parametrize('searches', [False, True])
  def test_the_search_for_roundings_may_be_left_out(
    self, monkeypatch, searches
  ):
    # Given an error that has no pattern, and a search that finds nothing,
    monkeypatch.setattr(roundings, 'explain', lambda stage: ('', 7))
    noise = 1 + np.random.default_rng(0).normal(size=(2, 16, 32)) / 10

    def noisy(inputs, config, policy):
      y = wrong(inputs, config, policy)['y'] * noise
      return {'y': y.astype(np.float32)}

    # then the report says what was tried, if anything was.
    report = hpmoe.check(
      noisy, CASE, lanes=['bounded'], search_roundings=searches
    )
    pattern = report.first_failure.pattern
    assert ('no rounding, of 7 that were tried' in pattern) == searches
    assert not pattern.startswith(';')

  def test_a_prompt_shows_three_lines_and_a_notebook_a_table(self):
    report = hpmoe.check(wrong, CASE, lanes=['bounded'])

    lines = repr(report).splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 120
    assert lines[0] == (
      f'FAIL {__name__}:wrong: R=2 T=16 E=8 K=2 D=32 F=16, float32'
    )
    assert lines[1] == 'first failure: y (bounded): got = 1.02 * expected'
    fragment = ElementTree.fromstring(report._repr_html_())
    text = ''.join(fragment.itertext())
    assert 'got = 1.02 * expected' in text and 'of bound' in text
    assert not [*fragment.iter('a')] and not [*fragment.iter('script')]

  def test_a_name_runs_in_a_process_of_its_own(self):
    name = f'{numpy_kernel_testing.__name__}:moe'
    assert hpmoe.check(name, CASE, lanes=['exact']).is_pass

  def test_both_passes_and_a_backward_pass_that_is_missing(self):
    case = hpmoe.Case(preset='tiny', ranks=2, direction='both')
    report = hpmoe.check(right, case, lanes=['bounded'])
    assert report.is_pass and report.stages['dx'] == 'pass'

    with pytest.raises(ValueError, match='wrong: expected its backward pass'):
      hpmoe.check(wrong, case)

  @pytest.mark.parametrize('lane', ['exact', 'bounded'])
  def test_a_function_that_writes_to_its_inputs_is_told_so(self, lane):
    def spoils(inputs, config, policy):
      y = np.array(right(inputs, config, policy)['y'])
      inputs['topk_ids'] = None  # the mapping is the function's own
      inputs['x'][...] = y
      return {'y': inputs['x']}

    message = r'spoils: x: expected an input as it was .* work on a copy$'
    with pytest.raises(hpmoe.CandidateError, match=message):
      hpmoe.check(spoils, CASE, lanes=[lane])

  def test_a_function_that_answers_otherwise_the_next_time(self):
    turns = itertools.count()

    def unsteady(inputs, config, policy):
      outputs = dict(right(inputs, config, policy))
      y = outputs['y'] = np.array(outputs['y'])
      y[0, 0, 0] = np.nextafter(y[0, 0, 0], np.float32(next(turns) % 2))
      return outputs

    memory = np.empty((2, 16, 32), np.float32)

    def unsteady_in_place(*layer):
      memory[...] = unsteady(*layer)['y']
      return {'y': memory}

    for function in (unsteady, unsteady_in_place):
      report = hpmoe.check(function, CASE, lanes=['bounded'])
      assert not report.is_pass and 'y[0, 0, 0]' in str(report)
    options = dict(allow_nondeterministic=True)
    assert hpmoe.check(unsteady, CASE, lanes=['bounded'], **options).is_pass

  def test_a_function_that_raises(self):
    def raises(inputs, config, policy):
      raise RuntimeError('out of memory')

    with pytest.raises(
      hpmoe.CandidateError, match=('out of memory')
    ) as error_info:
      hpmoe.check(raises, CASE)
    assert isinstance(error_info.value.__cause__.__cause__, RuntimeError)

  @pytest.mark.parametrize(
    ('answer', 'message'),
    [
      (3, "expected a mapping with 'y', got int"),
      ({'y': 'no array'}, 'y: expected float32'),
    ],
  )
  def test_an_answer_that_is_none_is_refused(self, answer, message):
    with pytest.raises(ValueError, match=message):
      hpmoe.check(lambda *_: answer, CASE)

  @pytest.mark.parametrize(
    ('candidate', 'options', 'message'),
    [
      (3, {}, 'candidate: expected a function'),
      ('no name', {}, 'candidate: expected pkg.module:function'),
      (None, dict(lanes='bounded'), r"lanes: .*\['bounded'\], got 'bounded'$"),
      (None, dict(standards='msprobe'), "standards: .*, got 'msprobe'$"),
      (None, dict(case='tiny'), r"case: .*Case\(preset='tiny'\), got 'tiny'$"),
      (None, dict(lanes=['exat']), 'lanes: .*got \\[.exat.\\]'),
      (None, dict(standards=['msprob']), 'msprob'),
    ],
  )
  def test_a_wrong_argument_is_named(self, candidate, options, message):
    with pytest.raises(ValueError, match=message):
      hpmoe.check(candidate, **dict(case=CASE) | options)


class TestValuesOfTheCaller:
  @pytest.mark.parametrize('kind', [np.asarray, jnp.asarray])
  def test_are_what_is_checked(self, kind):
    layer_inputs = inputs_lib.make_inputs(presets.get('tiny'), 2)
    arrays = {n: kind(a) for n, a in layer_inputs.arrays.items()}

    def verify(inputs, config, policy):
      for name, array in inputs.items():
        assert array.tobytes() == np.asarray(arrays[name]).tobytes()
      return right(inputs, config, policy)

    # A second run would be between calls on other data.
    options = dict(lanes=['bounded'], repeat=1)
    assert hpmoe.check(verify, hpmoe.Case(input=arrays), **options).is_pass


class TestAssertParity:
  def test_returns_the_report(self):
    assert hpmoe.assert_parity(right, CASE, lanes=['bounded']).is_pass

  @pytest.mark.verdict_alone
  def test_raises_the_first_failure(self):
    with pytest.raises(AssertionError) as error_info:
      hpmoe.assert_parity(wrong, CASE, lanes=['bounded'])
    lines = str(error_info.value).splitlines()
    assert lines[0] == 'first failure: y (bounded: a-priori rounding bound)'
    assert lines[-1].startswith('FAIL')


class TestCompile:
  CONFIG = presets.config(presets.get('tiny'), 2)

  @pytest.mark.parametrize('direction', ['forward', 'backward'])
  def test_has_the_options_of_its_target(self, direction):
    compiled = hpmoe.compile(self.CONFIG, direction=direction)
    assert compiled.summary()['direction'] == direction
    assert compiled.flow.options.row_block == 16

  def test_a_direction_that_is_none(self):
    with pytest.raises(ValueError, match="direction: expected .*'forward'"):
      hpmoe.compile(self.CONFIG, direction='both')


def of_vllm(inputs, config, policy):
  """A layer as vLLM's kernels have it: one rank's tokens, `[E, 2F, D]`."""
  x, ids, weights = inputs['x'], inputs['topk_ids'], inputs['topk_weights']
  w13, w2 = inputs['w_gate_up'], inputs['w_down']
  y = np.zeros(x.shape, np.float32)
  for token, slot in np.ndindex(ids.shape):
    expert = ids[token, slot]
    gate, up = np.split(w13[expert] @ x[token], 2)
    if policy.activation == 'absolute':
      hidden = abs(gate) * up
    else:
      with np.errstate(over='ignore'):
        hidden = gate / (1 + np.exp(-gate)) * up
    y[token] += weights[token, slot] * (w2[expert] @ hidden)
  return {'y': y}


def right_of_ours(inputs, config, policy):
  return of_vllm(inputs, config, policy)


class TestLayout:
  @pytest.mark.parametrize('lane', ['exact', 'bounded'])
  def test_a_function_is_judged_on_a_projects_tensors(self, lane):
    report = hpmoe.check(of_vllm, CASE, lanes=[lane], layout='vllm')

    assert report.is_pass
    assert 'tensors laid out as vllm has them' in str(report)

  def test_a_name_and_a_line_that_repeats_it(self):
    name = f'{__name__}:of_vllm'
    assert hpmoe.check(name, CASE, lanes=['bounded'], layout='vllm').is_pass
    failure = hpmoe.check(
      lambda *layer: {'y': of_vllm(*layer)['y'] * 2},
      CASE,
      lanes=['bounded'],
      layout='vllm',
    ).first_failure
    assert 'twice' in failure.pattern
    assert failure.replay.startswith('none: ')

  def test_the_line_that_repeats_it_has_the_layout(self):
    report = hpmoe.check(right_of_ours, CASE, lanes=['bitwise'], layout='vllm')

    assert (
      "lanes=('bitwise',), layout='vllm')"
      in report.to_json()['config']['command']
    )

  def test_an_answer_in_another_layout_is_named(self):
    message = r'of_ours: layout vllm: y: expected \[M D\] = \[32, 32\], got'

    def of_ours(*layer):
      return {'y': of_vllm(*layer)['y'].reshape(2, 16, 32)}

    with pytest.raises(ValueError, match=message):
      hpmoe.check(of_ours, CASE, layout='vllm')

  @pytest.mark.parametrize(
    ('candidate', 'case', 'layout', 'message'),
    [
      (of_vllm, CASE, 'vlm', r"layout: expected one of 'vllm', "),
      (None, CASE, 'vllm', 'layout: expected none, except for a function'),
      (
        'outputs:a',
        CASE,
        'vllm',
        'layout: expected none, except for a function',
      ),
    ],
  )
  def test_a_layout_without_effect_is_refused(
    self, candidate, case, layout, message
  ):
    with pytest.raises(ValueError, match=message):
      hpmoe.check(candidate, case, layout=layout)


class TestDevice:
  @pytest.mark.skipif(
    importlib.util.find_spec('torch') is not None, reason='torch is installed'
  )
  def test_without_torch_is_refused(self):
    with pytest.raises(ValueError, match="device: expected torch .* 'cuda'"):
      hpmoe.check(of_vllm, CASE, device='cuda')

  @pytest.mark.parametrize('candidate', [None, 'a:b', 'outputs:a'])
  def test_of_what_is_no_function_is_refused(self, candidate):
    with pytest.raises(
      ValueError, match='device: expected none, except for a func'
    ):
      hpmoe.check(candidate, CASE, device='cpu')


def test_arguments_of_a_check_are_the_fields_that_its_options_set():
  arguments = inspect.signature(hpmoe.check).parameters
  fields = {
    field.name: field.default
    for group in (judgement.Judgement, function_candidate.Subprocess)
    for field in dataclasses.fields(group)
    if option_fields.is_option(field)
  }
  del fields['name']  # the candidate itself

  assert {*arguments} - {*fields} == {'candidate', 'case', 'device'}
  for name, default in fields.items():
    assert arguments[name].default == default, name
