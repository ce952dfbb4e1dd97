"""The user's candidate: what it may return, and how it may end."""

import dataclasses
import pathlib
import textwrap

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking
from hpmoe.parity_tests.candidates import function_candidate
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge.limits import ulp
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

CONFIG = config_testing.make_config(r=1, t=3, e=2, k=1, d=4, f=2)


def _make_tensors(names, dtype: str = 'float32', value: int = 1):
  """Returns tensors filled with one value."""
  kinds = {
    'storage': ulp.storage_dtype(dtype),
    'f32': np.float32,
    'i32': np.int32,
  }
  specs = [tensors.SPECS[name] for name in names]
  return {
    s.name: np.full(s.dims(**CONFIG.dims()), value, kinds[s.kind])
    for s in specs
  }


@pytest.fixture
def candidate(tmp_path, monkeypatch):
  """Returns a function from source text to a candidate in this folder."""
  monkeypatch.chdir(tmp_path)

  def make(body: str, timeout_s: float = 60) -> function_candidate.Subprocess:
    head = 'import os, time\nimport numpy as np\n\n'
    (tmp_path / 'user_kernel.py').write_text(head + textwrap.dedent(body))
    return function_candidate.Subprocess('user_kernel:forward', timeout_s)

  return make


def _run(candidate, dtype='float32', **fields):
  policy = precision.PrecisionPolicy(storage=dtype, **fields)
  return candidate.run(CONFIG, policy, _make_tensors(tensors.INPUTS, dtype))


def _run_backward(kernel):
  policy = precision.PrecisionPolicy()
  inputs = _make_tensors(passes.BACKWARD.reads(CONFIG, policy))
  return kernel.run(CONFIG, policy, inputs, passes.BACKWARD)


def _run_stages(kernel, layer_pass=passes.FORWARD):
  kernel = dataclasses.replace(kernel, checking=checking.Checking(isolate=True))
  policy = precision.PrecisionPolicy()
  inputs = _make_tensors(layer_pass.reads(CONFIG, policy), value=7)
  names = {*tensors.PLAN, *layer_pass.stages} - {*inputs}
  oracle_tensors = _make_tensors(names, value=7)
  return kernel.run(
    CONFIG, policy, inputs, layer_pass, oracle_tensors=oracle_tensors
  )


def _refuse(run, kernel, text: str, error=ValueError) -> None:
  """Asserts that a run raises a matching message of one line."""
  with pytest.raises(error, match=text) as error_info:
    run(kernel)
  assert '\n' not in str(error_info.value)


@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_inputs_arrive_and_outputs_come_back_bit_for_bit(candidate, dtype):
  kernel = candidate("""
      def forward(inputs, config, policy):
        assert config.d_model == 4 and policy.storage in str(inputs['x'].dtype)
        return dict(y=inputs['x'] * 3, counts=np.full((1, 2), 7, np.int32))
      """)

  outputs = _run(kernel, dtype)

  assert set(outputs) == {'y', 'counts'}
  np.testing.assert_array_equal(
    outputs['y'], np.full((1, 3, 4), 3, outputs['y'].dtype)
  )
  np.testing.assert_array_equal(outputs['counts'], [[7, 7]])


def test_a_users_folders_have_the_users_names(candidate, tmp_path):
  # Given a repository with folders that are called as ours,
  for name in ('models', 'reference', 'parity_tests', 'backend_ascend'):
    (tmp_path / name).mkdir()
    (tmp_path / name / '__init__.py').write_text(f"SCALE = '{name}'\n")
  kernel = candidate("""
      import sys
      from reference import SCALE
      import backend_ascend, models, parity_tests
      def forward(inputs, config, policy):
        assert SCALE == 'reference' and models.SCALE == 'models'
        assert parity_tests.SCALE == 'parity_tests'
        assert backend_ascend.SCALE == 'backend_ascend'
        ours = [n for n in sys.modules if n.split('.')[0] == 'hpmoe']
        assert 'jax' not in sys.modules and len(ours) <= 16, sorted(ours)
        return dict(y=inputs['x'])
      """)

  # when its kernel imports them, then it gets them, and little else.
  assert set(_run(kernel)) == {'y'}


_QUIET = ': expected an answer, got exit status 0 without one'


@pytest.mark.parametrize(
  ('body', 'text', 'frames'),
  [
    (
      "def inner(): raise KeyError('boom')\ndef forward(*a): inner()",
      "raised KeyError('boom')",
      ('in inner', 'in forward', 'boom'),
    ),
    ('def forward(*a): os.abort()', 'got signal 6', ()),
    (
      'def forward(*a): os.kill(os.getpid(), 9)',
      'got signal 9, perhaps because memory ran out',
      (),
    ),
    ('def forward(*a): os._exit(9)', 'got exit code 9', ()),
    ('raise RuntimeError("no device")', 'raised on import', ('no device',)),
    (
      'import no_such_toolkit\ndef forward(*a): pass',
      "user_kernel: its import failed: No module named 'no_such_toolkit'",
      ('no_such_toolkit',),
    ),
    ('def forward(*a): os._exit(0)', _QUIET, ()),
    ('def forward(*a): raise SystemExit(0)', _QUIET, ()),
    ('def forward(*a): raise SystemExit', _QUIET, ()),
    (
      'def forward(*a): pass\ndef y(*a): 1 / 0\nforward.stages = {"y": y}',
      "user_kernel:forward.stages['y']: raised ZeroDivisionError",
      ('in y',),
    ),
  ],
)
@pytest.mark.few(5)
def test_a_crash_is_an_answer_with_the_users_frames_alone(
  candidate, capfd, body, text, frames
):
  with pytest.raises(candidates.CandidateError, match='user_kernel') as error:
    (_run_stages if 'stages' in body else _run)(candidate(body))

  stderr = capfd.readouterr().err
  assert text in str(error.value)
  assert all(frame in stderr for frame in frames)
  assert 'function_worker' not in stderr


def test_what_a_kernel_starts_does_not_outlive_it(candidate, tmp_path):
  # Given a kernel whose child is in a session of its own, when the kernel
  # hangs, or returns without a thought of it, then the child ends too.
  start = """
      def forward(inputs, config, policy):
        import subprocess
        child = subprocess.Popen(['sleep', '1000'], start_new_session=True)
        open('child', 'w').write(str(child.pid))
        %s
      """
  for body, timeout_s, error, text in (
    ('time.sleep(60)', 3, candidates.CandidateError, 'within 3 s, got none'),
    ('return {}', 60, ValueError, "expected 'y'"),
  ):
    _refuse(_run, candidate(start % body, timeout_s), text, error)

    pid = (tmp_path / 'child').read_text()
    state = pathlib.Path(f'/proc/{pid}/stat')
    assert not state.exists() or ') Z ' in state.read_text()


@pytest.mark.parametrize('extra_rows', [-2, 0, 3])
def test_rows_that_a_rank_did_not_receive_may_be_left_out(
  candidate, extra_rows
):
  # Given a kernel with fewer or more rows than N, the last of them zero, when
  # it runs, then the check has N.
  source = f"""
      def forward(inputs, config, policy):
        rows = np.zeros((1, config.num_rows + {extra_rows}, 4), np.float32)
        rows[:, 0] = 7
        return dict(y=inputs['x'], expert_in=rows)
      """

  rows = _run(candidate(source))['expert_in']

  assert rows.shape[1] > 2 and (rows[:, 0] == 7).all() and not rows[:, 1:].any()


@pytest.mark.parametrize(
  ('name', 'text'),
  [
    ('user_kernel', 'expected pkg.module:function'),
    (':forward', 'expected pkg.module:function'),
    ('user kernel:forward', 'expected pkg.module:function'),
    ('away/mo-dels.py:forward', 'expected pkg.module:function or FILE'),
    ('no_such_module:forward', "No module named 'no_such_module'"),
    ('user_kernel:nothing', "got 'nothing', which is not in it"),
    ('user_kernel:NUMBER', 'expected a function, got 5'),
  ],
)
def test_a_name_that_is_no_function_is_a_wrong_request(candidate, name, text):
  candidate('NUMBER = 5\ndef forward(*a): pass')
  _refuse(lambda name: _run(function_candidate.Subprocess(name)), name, text)


_ANSWERS = 'def forward(inputs, *a): x = inputs["x"]; return '


@pytest.mark.parametrize(
  ('body', 'text'),
  [
    (f'{_ANSWERS}{{}}', "expected 'y', got \\[\\]"),
    (f'{_ANSWERS}dict(y=x[:, :2])', 'y: expected float32 \\[1, 3, 4\\], got'),
    (f'{_ANSWERS}dict(y=x.astype("f8"))', 'got float64 \\[1, 3, 4\\]'),
    (f'{_ANSWERS}dict(y=x, z=x)', "expected tensors among .* got 'z'"),
    (
      f'{_ANSWERS}dict(y=x, expert_in=np.ones((1, 99, 4), np.float32))',
      'expert_in: expected at most .* rows',
    ),
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
      'def forward(*a): return dict(y=object())',
      'y: expected an array, got object: its elements are objects, not num',
    ),
    (
      'def forward(x): pass',
      'expected function\\(inputs, config, policy\\), got forward\\(x\\)',
    ),
  ],
)
@pytest.mark.few(6)
def test_a_wrong_answer_is_told_in_one_line(candidate, capfd, body, text):
  _refuse(_run, candidate(body), text)
  assert not capfd.readouterr().err


def test_a_kernel_may_say_which_activations_it_does(candidate):
  kernel = candidate("""
      def forward(inputs, config, policy):
        return dict(y=inputs['x'])
      forward.activations = ('swiglu',)
      """)

  assert set(_run(kernel)) == {'y'}
  with pytest.raises(
    candidates.CannotJudge, match="declares .*'swiglu'.*absol"
  ):
    _run(kernel, activation='absolute')


_GRAD_SOURCE = """
    def forward(inputs, config, policy):
      return dict(y=inputs['x'])
    def backward(inputs, config, policy):
      names = sorted(inputs)
      assert 'gate_up' in names and 'counts' in names and 'y' not in names
      {body}
    forward.backward = backward
    """


def test_a_backward_pass_gets_what_was_saved_and_returns_gradients(candidate):
  body = 'return dict(dx=inputs["dy"] * 2, d_w_down=inputs["w_down"])'
  kernel = candidate(_GRAD_SOURCE.format(body=body))

  grads = _run_backward(kernel)

  assert set(grads) == {'dx', 'd_w_down'}
  assert (grads['dx'] == 2).all()
  kernel = candidate(_GRAD_SOURCE.format(body='return dict(d_w_down=1)'))
  _refuse(_run_backward, kernel, "expected 'dx', got")


# 36 MB: over the largest threshold of glibc, so `malloc` asks the kernel for
# these pages, which come as zeros.
_FRESH_PAGES = """
    def forward(inputs, config, policy):
      total = np.empty(9 << 20, np.float32)[:inputs['x'].size]
      total += inputs['x'].ravel()
      return dict(y=total.reshape(inputs['x'].shape))
    """


@pytest.mark.parametrize('modes', ({}, {'poison': False}))
def test_memory_that_is_never_written_is_not_zero_by_luck(candidate, modes):
  # Given a kernel that sums into memory that it never set to zero,
  kernel = dataclasses.replace(
    candidate(_FRESH_PAGES), checking=checking.Checking(**modes)
  )

  # when it runs, then the sum is wrong by default, and else right by luck.
  errors = np.abs(_run(kernel)['y'] - 1)
  assert (errors == 0).all() if modes else (errors > 1e38).all()


_STAGES_SOURCE = """
    def forward(inputs, config, policy):
      raise KeyError('an isolated replay calls its stages only')
    def gate_up(tensors, config, policy):
      assert {'x', 'counts', 'expert_in'} <= set(tensors)
      assert not {'gate_up', 'activation', 'y'} & set(tensors)
      return np.zeros((1, config.num_rows, 4), np.float32)
    def activation(tensors, config, policy):
      assert (tensors['expert_in'] == 7).all() and 'activation' not in tensors
      return tensors['gate_up'][..., :2] * 3
    forward.stages = dict(gate_up=gate_up, activation=activation)
    """


def test_a_stage_alone_reads_what_the_oracle_wrote_before_it(candidate):
  outputs = _run_stages(candidate(_STAGES_SOURCE))

  # Not what the user's stage returned.
  assert set(outputs) == {'gate_up', 'activation'}
  assert (outputs['gate_up'] == 0).all() and (outputs['activation'] == 21).all()


def test_who_writes_to_inputs_is_told_so(candidate):
  pattern = r'^user_kernel:forward%s: %s: expected an input as it was before'
  kernel = candidate("""
      def forward(inputs, config, policy):
        inputs['x'][0, 0, 0] = -0.0
        return dict(y=inputs['x'])
      """)
  for dtype in ('float32', 'bfloat16'):
    with pytest.raises(candidates.InputsSpoilt, match=pattern % ('', 'x')):
      _run(kernel, dtype)

  source = textwrap.dedent(_STAGES_SOURCE).replace(
    'return np', "tensors['expert_in'][0] += 1; return np"
  )
  text = pattern % (r"\.stages\['gate_up'\]", 'expert_in')
  _refuse(_run_stages, candidate(source), text, candidates.InputsSpoilt)


def test_a_stage_of_the_backward_pass_alone(candidate):
  grads = _run_stages(
    candidate("""
      def forward(inputs, config, policy): pass
      def backward(inputs, config, policy): pass
      def dx(tensors, config, policy):
        assert 'dy' in tensors and 'gate_up' in tensors and 'dx' not in tensors
        return tensors['d_returned'].sum(axis=2)
      forward.backward = backward
      backward.stages = dict(dx=dx)
      """),
    passes.BACKWARD,
  )

  assert set(grads) == {'dx'} and (grads['dx'] == 7).all()


@pytest.mark.parametrize(
  ('source', 'text'),
  [
    ('', 'isolate: expected an attribute user_kernel:forward.stages, a '),
    ('forward.stages = {}', 'y to stage\\(tensors, .*, got {}'),
    ('forward.stages = 5', 'stages, a mapping .* got 5'),
    ('forward.stages = dict(z=print)', "some of expert_in, .*got 'z'"),
    ('forward.stages = dict(dx=print)', "some of expert_in, .*got 'dx'"),
    ('forward.stages = dict(y=7)', "functions .*got 'y': 7"),
    (
      'forward.stages = dict(y=lambda x: x)',
      "stages\\['y'\\]: expected stage\\(tensors, config, policy\\), got",
    ),
    (
      'forward.stages = dict(y=lambda *a: a[0]["x"][:, 1:])',
      'y: expected float32 \\[1, 3, 4\\], got float32 \\[1, 2, 4\\]',
    ),
  ],
)
@pytest.mark.few(4)
def test_stages_that_cannot_be_asked_are_a_wrong_request(
  candidate, source, text
):
  kernel = candidate('def forward(inputs, config, policy): pass\n' + source)
  _refuse(_run_stages, kernel, text)


def test_a_device_that_torch_lacks_is_a_wrong_request(candidate, tmp_path):
  # Given a torch that has no GPU,
  (tmp_path / 'torch.py').write_text(
    'def zeros(size, device):\n  assert device == "cpu", "no CUDA here"\n'
  )
  # then a kernel that asks for tensors there is refused before it runs.
  kernel = candidate("""
      import os
      def forward(inputs, config, policy):
        os.abort()
      forward.torch = 'cuda'
      """)
  _refuse(_run, kernel, "forward.torch: device: .*'cuda': no CUDA here")


def test_what_the_backward_pass_lacks_is_told_before_the_forward_runs(
  candidate,
):
  stages = textwrap.dedent(_STAGES_SOURCE).replace('return np', 'os.abort()#')
  for run, source, text in (
    (_run, 'def forward(inputs, config, policy): os.abort()', 'backward'),
    (
      _run_stages,
      stages + 'forward.backward = gate_up\n',
      'backward.stages',
    ),
  ):
    kernel = dataclasses.replace(candidate(source), has_backward=True)
    _refuse(run, kernel, f'user_kernel:forward.{text}')


def test_a_kernel_that_raises_in_lane_exact_gets_the_hint(candidate):
  kernel = candidate("""
      def forward(inputs, config, policy):
        raise KeyError(policy.activation)
      """)
  request = check.Request(
    case_lib.Case(preset='tiny', ranks=2, tokens=13),
    kernel,
    judgement.Judgement(lanes=('exact',)),
  )

  with pytest.raises(candidates.CandidateError, match="declare it: .*'swiglu'"):
    check.run(request)


def test_a_file_is_a_module(tmp_path, monkeypatch):
  # given: a folder away from here, with a module of a name that others have.
  folder = tmp_path / 'away'
  folder.mkdir()
  (folder / 'helper.py').write_text('FACTOR = 3\n')
  (folder / 'models.py').write_text(
    'import helper\n'
    'def forward(inputs, config, policy):\n'
    "  return dict(y=inputs['x'] * helper.FACTOR)\n"
  )
  monkeypatch.chdir(tmp_path)
  for path in ('away/models.py', f'{folder}/models.py'):
    outputs = _run(function_candidate.Subprocess(f'{path}:forward'))
    np.testing.assert_array_equal(
      outputs['y'], np.full((1, 3, 4), 3, np.float32)
    )
