"""The user's candidate: what it may return, and how it may end."""

import textwrap

import numpy as np
import pytest

from parity_tests import candidates
from parity_tests import passes
from parity_tests import ulp
from reference import config as config_lib
from reference import precision
from reference import tensors

CONFIG = config_lib.MoEConfig(1, 3, 2, 1, 4, 2)


def _inputs(dtype: str):
  kinds = {
      'storage': ulp.storage_dtype(dtype),
      'f32': np.float32,
      'i32': np.int32,
  }
  specs = [tensors.SPECS[name] for name in tensors.INPUTS]
  return {
      s.name: np.ones(s.dims(**CONFIG.dims()), kinds[s.kind]) for s in specs
  }


@pytest.fixture
def candidate(tmp_path, monkeypatch):
  """Returns a function from source text to a candidate in this folder."""
  monkeypatch.chdir(tmp_path)

  def make(body: str, timeout_s: float = 60) -> candidates.Subprocess:
    head = 'import os, time\nimport numpy as np\n\n'
    (tmp_path / 'user_kernel.py').write_text(head + textwrap.dedent(body))
    return candidates.Subprocess('user_kernel:forward', timeout_s)

  return make


def _run(candidate, dtype='float32'):
  policy = precision.PrecisionPolicy(storage=dtype)
  return candidate.run(CONFIG, policy, _inputs(dtype))


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_inputs_arrive_and_outputs_come_back_bit_for_bit(candidate, dtype):
  ours = candidate("""
      def forward(inputs, config, policy):
        assert config.d_model == 4 and policy.storage in str(inputs['x'].dtype)
        return dict(y=inputs['x'] * 3, counts=np.full((1, 2), 7, np.int32))
      """)

  got = _run(ours, dtype)

  assert set(got) == {'y', 'counts'}
  np.testing.assert_array_equal(got['y'], np.full((1, 3, 4), 3, got['y'].dtype))
  np.testing.assert_array_equal(got['counts'], [[7, 7]])


@pytest.mark.parametrize(
    ('body', 'text'),
    [
        ("def forward(*a): raise KeyError('boom')", "raised KeyError('boom')"),
        ('def forward(*a): os.abort()', 'got signal 6'),
        ('def forward(*a): os._exit(9)', 'got exit code 9'),
        ('raise RuntimeError("no device")', 'raised on import'),
    ],
    ids=('raises', 'aborts', 'exits', 'raises_on_import'),
)
def test_a_crash_is_an_answer(candidate, body, text):
  with pytest.raises(candidates.CandidateError, match='user_kernel') as error:
    _run(candidate(body))

  assert text in str(error.value)


def test_a_hang_ends_at_the_timeout(candidate):
  ours = candidate('def forward(*a): time.sleep(60)', timeout_s=3)

  with pytest.raises(candidates.CandidateError, match='within 3 s, got none'):
    _run(ours)


@pytest.mark.parametrize(
    ('body', 'text'),
    [
        ('return {}', "expected 'y', got \\[\\]"),
        ('return dict(y=x[:, :2])', 'y: expected float32 \\[1, 3, 4\\], got'),
        ('return dict(y=x.astype(np.float64))', 'got float64 \\[1, 3, 4\\]'),
        ('return dict(y=x, z=x)', "expected tensors among .* got 'z'"),
    ],
    ids=('nothing', 'shape', 'dtype', 'name'),
)
def test_a_wrong_answer_shape_is_a_wrong_request(candidate, body, text):
  source = 'def forward(inputs, config, policy):\n  x = inputs["x"]\n  '

  with pytest.raises(ValueError, match=text):
    _run(candidate(source + body))


@pytest.mark.parametrize(
    ('name', 'text'),
    [
        ('user_kernel', 'expected pkg.module:function'),
        (':forward', 'expected pkg.module:function'),
        ('user kernel:forward', 'expected pkg.module:function'),
        ('no_such_module:forward', "No module named 'no_such_module'"),
        ('user_kernel:nothing', "got 'nothing', which it has not"),
        ('user_kernel:NUMBER', 'expected a function, got 5'),
    ],
)
def test_a_name_that_is_no_function_is_a_wrong_request(candidate, name, text):
  candidate('NUMBER = 5\ndef forward(*a): pass')

  with pytest.raises(ValueError, match=text):
    _run(candidates.Subprocess(name))


@pytest.mark.parametrize(
    'body',
    ('os._exit(0)', 'raise SystemExit(0)', 'raise SystemExit'),
)
def test_a_quiet_exit_is_no_answer(candidate, body):
  with pytest.raises(candidates.CandidateError) as error:
    _run(candidate(f'def forward(*a): {body}'))

  assert str(error.value) == (
      'user_kernel:forward: expected an answer, got exit status 0 without one'
  )


@pytest.mark.parametrize(
    ('body', 'text'),
    [
        ('def forward(*a): return None', "a mapping with 'y', got NoneType"),
        (
            'def forward(i, *a): return i["x"]',
            "a mapping with 'y', got ndarray float32 \\[1, 3, 4\\]",
        ),
        (
            'def forward(*a): return dict(y=[[1], [1, 2]])',
            'y: expected an array, got list: ',
        ),
        (
            'def forward(x): pass',
            'expected function\\(inputs, config, policy\\), got forward\\(x\\)',
        ),
    ],
    ids=('none', 'array', 'ragged', 'arity'),
)
def test_a_wrong_answer_is_told_in_one_line(candidate, capfd, body, text):
  with pytest.raises(ValueError, match=text) as error:
    _run(candidate(body))

  assert '\n' not in str(error.value)
  assert not capfd.readouterr().err


def test_a_traceback_holds_the_users_frames_only(candidate, capfd):
  source = 'def inner(): raise KeyError("boom")\ndef forward(*a): inner()'
  with pytest.raises(candidates.CandidateError):
    _run(candidate(source))

  said = capfd.readouterr().err
  assert 'in inner' in said and 'in forward' in said and 'boom' in said
  assert 'candidate_worker' not in said


def test_an_import_that_fails_in_the_users_module_is_named(candidate, capfd):
  with pytest.raises(candidates.CandidateError) as error:
    _run(candidate('import no_such_toolkit\ndef forward(*a): pass'))

  assert 'user_kernel: its import failed' in str(error.value)
  assert "'no_such_toolkit'" in str(error.value)
  assert 'candidate_worker' not in capfd.readouterr().err


def test_a_kernel_may_say_which_activations_it_does(candidate):
  ours = candidate("""
      def forward(inputs, config, policy):
        return dict(y=inputs['x'])
      forward.activations = ('swiglu',)
      """)

  assert set(_run(ours)) == {'y'}
  policy = precision.PrecisionPolicy(activation='product')
  with pytest.raises(candidates.CannotJudge, match="declares .*'swiglu'.*prod"):
    ours.run(CONFIG, policy, _inputs('float32'))


_GRAD_SOURCE = """
    def forward(inputs, config, policy):
      return dict(y=inputs['x'])
    def backward(inputs, config, policy):
      names = sorted(inputs)
      assert 'gate_up' in names and 'counts' in names and 'y' not in names
      {body}
    forward.backward = backward
    """


def _run_backward(ours):
  policy = precision.PrecisionPolicy()
  dims = CONFIG.dims()
  kinds = {'storage': np.float32, 'f32': np.float32, 'i32': np.int32}
  inputs = {}
  for name in passes.BACKWARD.reads(policy):
    spec = tensors.SPECS[name]
    inputs[name] = np.ones(spec.dims(**dims), kinds[spec.kind])
  return ours.run(CONFIG, policy, inputs, passes.BACKWARD)


def test_a_backward_pass_gets_what_was_saved_and_returns_gradients(candidate):
  body = 'return dict(dx=inputs["dy"] * 2, d_w_down=inputs["w_down"])'
  ours = candidate(_GRAD_SOURCE.format(body=body))

  got = _run_backward(ours)

  assert set(got) == {'dx', 'd_w_down'}
  assert (got['dx'] == 2).all()


@pytest.mark.parametrize(
    ('body', 'text'),
    [
        ('return {}', "expected 'dx', got"),
        ('return dict(dx=inputs["dy"], y=1)', "expected tensors among .*'y'"),
        ('return 5', "expected a mapping with 'dx', got int"),
    ],
)
def test_a_wrong_backward_answer_is_a_wrong_request(candidate, body, text):
  with pytest.raises(ValueError, match=text):
    _run_backward(candidate(_GRAD_SOURCE.format(body=body)))


def test_a_missing_backward_pass_is_told_before_the_forward_runs(candidate):
  source = 'def forward(inputs, config, policy): os.abort()'
  ours = candidate(source)
  ours = candidates.Subprocess(ours.name, 60, has_backward=True)

  with pytest.raises(ValueError, match='user_kernel:forward.backward'):
    _run(ours)
