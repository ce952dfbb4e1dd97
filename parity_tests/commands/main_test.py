"""The command line: exit codes, one-line errors, report, replay."""

import json
import math
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.models.train import folder_testing
from hpmoe.parity_tests.ascend.commands import determinism_command
from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.cache import versions
from hpmoe.parity_tests.candidates import candidate_table
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import tiling_fields
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import case_flags
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import memory
from hpmoe.reference.contract import option_fields
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import tensors

TINY = '--preset=tiny --ranks=2 --tokens=13 --row_block=16'


_COMPILES = 'compiling the oracle for this layer, a minute or two'


_WRONG = pathlib.Path(__file__).parent / 'testdata/wrong_requests.txt'
_PROGRAM = (sys.executable, '-m', 'hpmoe.parity_tests.commands.main')


def _main(line: str) -> int:
  return main.main(shlex.split(line))


def _reported(tmp_path, line: str, code: int = cli.PARITY) -> dict:
  """Runs a command that ends with a code, and returns its report."""
  path = tmp_path / 'out.json'
  assert _main(f'{line} --json={path}') == code
  return json.loads(path.read_text())


def _run_refused(capsys, line: str) -> str:
  """Runs a command that must end with one line and exit code 2."""
  assert _main(line) == cli.WRONG_REQUEST
  printed = capsys.readouterr()
  # Some are refused after the oracle was compiled.
  lines = [line for line in printed.err.splitlines() if _COMPILES not in line]
  assert len(lines) == 1
  assert not printed.out
  return f'{lines[0]}\n'


@pytest.fixture(scope='module')
def request_folder(tmp_path_factory) -> pathlib.Path:
  """Returns the folder of the files that `wrong_requests.txt` names."""
  folder = tmp_path_factory.mktemp('here')
  layer_inputs = inputs.make_inputs(presets.get('tiny'), 2, 13)
  input_files.save_safetensors(
    folder / 'layer.safetensors', layer_inputs.arrays
  )
  schedule = schedule_file.Schedule(
    presets.config(presets.get('tiny'), 2),
    'float32',
    'combine',
    granularity.Options(),
  )
  schedule_file.save(folder / 'tiny.schedule', schedule)
  folder_testing.write(folder / 'model')
  (folder / 'empty.txt').write_text('\n')
  (folder / 'odd.jsonl').write_text('{"a": 1}\n')
  return folder


@pytest.fixture
def layer_file(request_folder) -> str:
  """Returns a file of a layer of 2 ranks with 13 tokens each, float32."""
  return f'{request_folder}/layer.safetensors'


@pytest.mark.parametrize(
  'line, text',
  re.findall(r'^(\w.*)\n  (.*)$', _WRONG.read_text(), re.MULTILINE),
)
@pytest.mark.few(18)
def test_wrong_requests_end_with_one_line(
  capsys, request_folder, layer_file, tmp_path, monkeypatch, line, text
):
  monkeypatch.chdir(tmp_path)
  command, _, rest = line.partition(' ')
  tiny = command in ('check', 'compile') and not {'FILE', '--preset'} & {
    *re.findall('FILE|--preset', rest)
  }
  rest = ('--preset=tiny ' * tiny + rest).replace('FILE', layer_file)
  rest = rest.replace('HERE', str(request_folder))
  message = _run_refused(capsys, f'{command} {rest}')
  is_command = command in main.COMMANDS
  assert message.startswith(f'hpmoe {command}: ' if is_command else 'hpmoe: ')
  text = text.replace('FILE', layer_file)
  assert text in message or re.search(text.replace('|', r'\|'), message), (
    message
  )
  assert len(message) <= 300, message
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('name', main.COMMANDS)
def test_options_of_numbers_are_read_as_numbers(name):
  for row in main.COMMANDS[name].list_options():
    defaults = row.default if row.is_list else [row.default]
    is_limited = row.minimum > -math.inf or row.maximum < math.inf
    if is_limited or {int, float} & {*map(type, defaults or ())}:
      assert row.kind is not str, row.name


@pytest.mark.parametrize(
  'words, routing',
  [
    (['--preset=tiny'], 'zipf'),
    (['--preset=tp'], 'text'),
    (['--preset=tp', '--routing=zipf'], 'zipf'),
  ],
)
def test_law_routes_a_preset_as_it_can_be(words, routing):
  parsed = main.COMMANDS['determinism'].parse(words)

  assert determinism_command._plan(parsed).routing == routing


def test_options_that_agree_with_a_file_are_taken(capsys, layer_file):
  agree = '--ranks=2 --tokens=13 --dtype=f32 --lane=bitwise'

  code = _main(f'check --input={layer_file} {agree}')

  assert code == cli.PARITY
  assert 'R=2 T=13' in capsys.readouterr().out


@pytest.mark.parametrize('command', main.COMMANDS)
def test_help_shows_an_example_and_every_option(capsys, command):
  assert _main(f'{command} --help') == cli.PARITY

  help_text = capsys.readouterr().out
  assert f'hpmoe {command}' in help_text
  for option in main.COMMANDS[command].list_options():
    assert f'--{option.name}: ' in help_text
  # Each {word} is replaced.
  assert {*re.findall(r'{\w+}', help_text)} <= {'{case}', '{out}', '{rank}'}
  assert max(map(len, help_text.partition('options:')[2].splitlines())) <= 100


@pytest.mark.parametrize(
  ('command', 'words'),
  [
    ('tune', '`ep16`, 128 experts on 16 ranks'),
    ('tune', '`f32`, `bf16` or `f16`'),
    ('compile', 'a row is a token in one of its experts'),
    ('train', 'ascend (the megakernel on an NPU'),
    ('check', '`e4m3` is float8_e4m3fn, `e4m3fnuz`'),
  ],
)
def test_help_names_what_a_choice_means(capsys, command, words):
  _main(f'{command} --help')

  help_text = ' '.join(capsys.readouterr().out.split())
  assert words in help_text
  known_names = {
    option.name for option in main.COMMANDS[command].list_options()
  }
  preset = re.search(r'--preset: (.*?) --[a-z_]+: ', help_text)
  typed_names = re.findall(r'--(\w+)', preset[1] if preset else '')
  assert {*typed_names} <= known_names


def test_the_list_of_commands_keeps_names_apart_from_what_they_do(capsys):
  assert _main('--help') == cli.PARITY

  lines = capsys.readouterr().out.splitlines()
  for name, command in main.COMMANDS.items():
    line = next(x for x in lines if command.texts['help'] in x)
    assert line.split()[:2] == ['hpmoe', name]
  groups = [line for line in lines if re.fullmatch(r'\w.*:', line)]
  assert 'schedule and simulate:' in groups
  assert (
    len([heading for heading in groups if not heading.startswith('hpmoe')]) == 4
  )


def test_the_flags_of_check_stand_under_what_they_decide(capsys):
  _main('check --help')

  help_text = capsys.readouterr().out.partition('options:')[2]
  heads = re.findall(r'^(\w.*):$', help_text, re.MULTILINE)
  last = [
    *('benchmark definition', 'dumped run', 'judgement'),
    *('report', 'several processes'),
  ]
  assert heads[0] == 'case' and heads[-5:] == last
  assert heads[1] == 'candidate, the megakernel on the host'
  assert 'candidate, --frontend=mindspore' in heads
  assert len(heads) == len(candidate_table.ROWS) + len(last) + 1
  parts = dict(
    zip(heads, re.split(r'^\w.*:$', help_text, flags=re.MULTILINE)[1:])
  )
  assert '\n  --device: ' in parts['candidate, --frontend=mindspore']
  assert (
    '\n  --seed: ' in parts['case'] and '\n  --lane: ' in parts['judgement']
  )
  # Each is explained once.
  explained_names = re.findall(r'^  --(\w+): ', help_text, re.MULTILINE)
  options = main.COMMANDS['check'].list_options()
  assert sorted(explained_names) == sorted(row.name for row in options)


def test_version_is_said(capsys):
  assert _main('--version') == cli.PARITY

  version = capsys.readouterr().out.strip()
  assert version == f'hpmoe {versions.list_versions()["hyperparallel-moe"]}'


def test_a_check_tells_ci_what_it_says(capsys, tmp_path):
  path = tmp_path / 'parity.xml'

  code = _main(f'check {TINY} --lane=bitwise --annotate --junit={path}')

  assert code == cli.PARITY
  last_line = capsys.readouterr().out.splitlines()[-1]
  assert last_line.startswith('::notice title=hpmoe check%3A parity holds::')
  assert 'failures="0"' in path.read_text()


def test_a_check_that_holds_prints_a_table_and_writes_a_report(
  capsys, tmp_path
):
  report = _reported(tmp_path, f'check {TINY} --verbose')

  out = capsys.readouterr().out
  assert report['verdict'] == 'pass'
  assert report['first_failure'] is None
  assert report['seconds'] > 0
  assert report['versions']['numpy'] == np.__version__
  assert report['versions']['sources'] == versions.digest_sources()
  assert report['config']['layer']['num_ranks'] == 2
  assert {row['lane'] for row in report['stages']} == set(verdicts.LANES)
  for row in report['stages']:
    assert row['verdict'] == 'pass'
    assert row['tiles'] > row['failed'] == 0
    assert {'stage', 'rule', 'worst_ulp', 'worst_abs'} <= set(row)
    assert row['rule'] in out
  assert 'PASS' in out.splitlines()[-1]


@pytest.mark.parametrize(
  ('options', 'code', 'verdict'),
  [
    ('', cli.WRONG_REQUEST, 'PASS'),
    ('--fault=swapped_experts', cli.NO_PARITY, 'FAIL'),
  ],
)
def test_a_report_that_finds_no_room_leaves_the_verdict(
  capsys, options, code, verdict
):
  command_flags = (
    f'--direction=forward --lane=bitwise --json=/dev/full {options}'
  )

  assert _main(f'check {TINY} {command_flags}') == code

  printed = capsys.readouterr()
  assert printed.out.splitlines()[-1].startswith(verdict)
  assert printed.err.splitlines()[-1].startswith(
    'hpmoe check: json: expected room for a report in /dev/full, got'
  )


def test_a_file_is_written_whole_or_stays(tmp_path):
  # Given a report of before, and no room for another,
  path = tmp_path / 'out.json'
  cli.write('json', str(path), 'before')
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
  try:
    cli.write('json', str(path), 'after' * 4096)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  # then it is as it was, and told, until there is room.
  assert path.read_text() == 'before' and len(list(tmp_path.iterdir())) == 1
  assert 'json: expected room' in ''.join(cli.unwritten())
  cli.write('json', str(path), 'after')
  assert path.read_text() == 'after' and len(list(tmp_path.iterdir())) == 1


_SECOND = """
import sys
from hpmoe.parity_tests.commands import main
assert main.main(sys.argv[2:]) == 0
heavy = {'jax', 'jaxtyping', 'asyncio', 'unittest'}
loaded = heavy & {*sys.modules}
assert sys.argv[1] == 'first' or not loaded, loaded
"""


def test_a_renamed_command_works_and_says_so(capsys):
  # given the old name of a command, when its help is asked for
  assert main.main(['law', '--help']) == cli.PARITY
  # then the new command answers, and its name is told
  out, err = capsys.readouterr()
  assert out.startswith('hpmoe determinism: ')
  assert 'hpmoe law: this command is now called hpmoe determinism' in err


def test_a_second_check_loads_little(tmp_path):
  # The modules that it must not load take longer to import than numpy.
  arguments = shlex.split(f'check {TINY} --direction=forward --lane=all')
  environment = os.environ | {cache_folder.VARIABLE: str(tmp_path)}
  for run_name in ('first', 'second'):
    process = subprocess.run(
      [sys.executable, '-c', _SECOND, run_name, *arguments],
      env=environment,
      capture_output=True,
      text=True,
    )
    assert process.returncode == 0, process.stderr
    # The first run alone says that it compiles.
    assert process.stderr.count(_COMPILES) == (run_name == 'first'), (
      process.stderr
    )


def _failing(tmp_path, line: str) -> dict:
  """Returns the report of a check that fails, and whose replay agrees."""
  reports = []
  for replay in (False, True):
    if replay:
      program, *words = shlex.split(reports[0]['first_failure']['replay'])
      assert program == 'hpmoe' and not [w for w in words if '--html' in w]
      line = shlex.join(words)
    reports.append(_reported(tmp_path, line, cli.NO_PARITY))
  assert reports[1]['first_failure'] == reports[0]['first_failure']
  return reports[0]


def test_a_fault_fails_is_located_and_replays(capsys, tmp_path):
  # Given a fault, when it is checked,
  page = tmp_path / 'out.html'
  report = _failing(tmp_path, f'check {TINY} --fault=stale_row --html={page}')

  # then the report names the place.
  out = capsys.readouterr().out
  first = report['first_failure']
  assert first['stage'] == 'expert_in'
  assert first['bad_rows'] == 1
  assert first['got'] != first['expected']
  assert str(first['index']) in out and first['replay'] in out
  assert '#' in out
  assert f'expected  {first["expected"]}' in page.read_text('utf-8')


def test_a_backward_fault_is_located_and_replays(capsys, tmp_path):
  # Given a fault of the backward pass and options of its own,
  options = '--direction=backward --chain_rows=16 --weight_grad_order=last'
  options_and_fault = f'--fault=weight_grad_twice {options} --lane=exact'

  # when it is checked, then it is named with its expert and drawn,
  report = _failing(tmp_path, f'check {TINY} {options_and_fault}')
  out = capsys.readouterr().out
  first = report['first_failure']
  assert first['stage'] == 'd_w_gate_up' and first['expert'] is not None
  assert len(first['index']) == 4 and first['token'] is None
  assert 'tiles, by expert and weight row block (# bad):' in out
  assert report['config']['direction'] == 'backward'
  assert 'direction backward' in out.splitlines()[0]
  # and the replay has all that decides it.
  assert {*options.split()} < {*shlex.split(first['replay'])}


def test_a_launch_that_cannot_end_exits_3_with_the_diagnosis(capsys, tmp_path):
  line = f'check {TINY} --fault=missing_signal --lane=bitwise'

  report = _reported(tmp_path, line, cli.CANDIDATE_FAILED)

  line_printed = capsys.readouterr().err.splitlines()
  (line_printed,) = (line for line in line_printed if _COMPILES not in line)
  assert (
    'waits for event' in line_printed
    and 'not signalled by: gate_up' in line_printed
  )
  assert report['verdict'] == 'fail' and report['seconds'] > 0
  # and the report names the task, and how to see it again.
  first = report['first_failure']
  assert report['error'].endswith(f'; replay: {first["replay"]}')
  assert first['replay'] == (
    'hpmoe check --fault=missing_signal --preset=tiny --ranks=2 '
    '--row_block=16 --tokens=13 --lane=bitwise'
  )
  assert first['stage'] == 'activation'
  assert (first['got'], first['token']) == (None, None)
  place = 'rank {rank}, expert {expert}, row block {row_block}, column block '
  place = f'swiglu task 40 ({place}{{col_block}}) waits'.format(**first)
  assert place in report['error']


@pytest.mark.parametrize(
  'signal_number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
)
@pytest.mark.few(1)
def test_a_signal_to_end_ends_the_kernels_processes_too(
  tmp_path, signal_number
):
  # Given a kernel that has started a process, and waits,
  (tmp_path / 'slow.py').write_text(
    'import pathlib, subprocess, time\n'
    'def forward(inputs, config, policy):\n'
    "  child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    "  pathlib.Path('draft').write_text(str(child.pid))\n"
    "  pathlib.Path('draft').rename('child')\n"
    '  time.sleep(1000)\n'
  )
  scratch = tmp_path / 'scratch'
  scratch.mkdir()
  path = os.pathsep.join(sys.path)
  line = f'check {TINY} --candidate=slow:forward --lane=bounded'
  process = subprocess.Popen(
    [*_PROGRAM, *shlex.split(line)],
    cwd=tmp_path,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ | {'PYTHONPATH': path, 'TMPDIR': str(scratch)},
    # A shell's background jobs, and their children, ignore some signals.
    preexec_fn=lambda: signal.signal(signal_number, signal.SIG_DFL),
  )
  while not (tmp_path / 'child').exists():
    assert process.poll() is None
    time.sleep(0.05)
  # when the command is told to end,
  process.send_signal(signal_number)
  lines = process.communicate(timeout=60)[1].splitlines()
  # then one line says so, and nothing of it is left.
  assert process.returncode == cli.INTERRUPTED
  messages = [line for line in lines if _COMPILES not in line]
  assert messages == ['hpmoe check: interrupted']
  assert not list(scratch.iterdir())
  state = pathlib.Path(f'/proc/{(tmp_path / "child").read_text()}/stat')
  assert not state.exists() or ') Z ' in state.read_text()


def test_a_second_signal_to_end_lets_the_first_clean_up():
  interrupt = main._interrupter(grace_s=1000)
  with pytest.raises(KeyboardInterrupt):
    interrupt(signal.SIGTERM, None)
  interrupt(signal.SIGTERM, None)

  # One that was lost, in a finalizer for example, is not the last.
  interrupt = main._interrupter(grace_s=0)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      interrupt(signal.SIGTERM, None)
    time.sleep(0.01)


def _set_clock(monkeypatch, seconds) -> None:
  """Gives the times to `cli` alone: threads of other tests read the clock."""
  clock = types.SimpleNamespace(monotonic=lambda: next(seconds))
  monkeypatch.setattr(cli, 'time', clock)


def test_a_step_shows_after_2_s_in_a_terminal_that_hides_its_size(monkeypatch):
  # Given a terminal of 0 lines and 0 columns, as `script` opens one, a clock,
  leader, follower = os.openpty()
  os.set_blocking(leader, False)
  clock = iter([0.0, 1.9, 2.0])
  _set_clock(monkeypatch, clock)
  with os.fdopen(follower, 'w') as terminal:
    monkeypatch.setattr(sys, 'stderr', terminal)

    # when one step comes before the delay and one after it,
    with cli.progress(2) as step:
      step('first')
      step('second' * 20)
    terminal_bytes = os.read(leader, 10_000).decode()
  os.close(leader)

  # then the second shows, in one line, which is cleared at the end.
  assert terminal_bytes == f'\r{("second" * 20)[:79]}\x1b[K\r\x1b[K'


@pytest.mark.parametrize(
  ('estimate', 'left'),
  [(False, ('', '')), (True, (', 00:31 left', ', 00:00 left'))],
)
def test_a_log_gets_a_line_of_progress_now_and_then(
  monkeypatch, capsys, estimate, left
):
  # Given an output that is no terminal, and a clock,
  clock = iter([0.0, 1.0, 31.0, 32.0, 95.0])
  _set_clock(monkeypatch, clock)

  # when steps begin,
  with cli.progress(4, estimate) as step:
    for name in ('first', 'second', 'third', 'fourth'):
      step(name)

  # then one line of each 30 s names the step that begins, and the time left if
  # that is asked for: two steps, each as long as the mean of the two so far.
  assert capsys.readouterr().err.splitlines() == [
    f'second 2/4 [00:31{left[0]}]',
    f'fourth 4/4 [01:35{left[1]}]',
  ]


def test_more_steps_than_were_expected_show_no_total(monkeypatch, capsys):
  clock = iter([0.0, 31.0, 62.0])
  _set_clock(monkeypatch, clock)

  with cli.progress(1) as step:
    step('expected')
    step('again')

  assert capsys.readouterr().err.splitlines() == [
    'expected 1/1 [00:31]',
    'again 2 [01:02]',
  ]


@pytest.mark.slow
def test_a_sweep_writes_a_line_for_each_case_and_a_report(capsys, tmp_path):
  lines = tmp_path / 'sweep.jsonl'
  case = '--ranks=2 --routing=zipf --dtype=f32 --tokens=13 --preset=tiny'
  cut = '--event_grain=expert --row_block=16'

  report = _reported(tmp_path, f'sweep {case} {cut} --out={lines}')

  assert report['verdict'] == 'pass'
  assert report['plan']['routings'] == ['zipf']
  assert report['cases'] == [json.loads(lines.read_text())]
  assert '1 of 1 cases pass' in capsys.readouterr().out


def test_compile_prints_counts_and_writes_the_image(capsys, tmp_path):
  image = tmp_path / 'flow.img'

  summary = _reported(tmp_path, f'compile --preset=tiny --out={image}')

  assert summary['image_bytes'] == image.stat().st_size
  out = capsys.readouterr().out
  for name in ('tasks.dispatch', 'tasks.combine', 'events', 'image_bytes'):
    assert name in out


@pytest.mark.parametrize('placement', precision.LAUNCHED_PLACEMENTS)
@pytest.mark.parametrize('chain', ('', '--chain_rows=16'))
def test_a_backward_image_says_what_it_holds(tmp_path, placement, chain):
  # Given an image of the backward pass, when it is compiled,
  options = f'--direction=backward --placement={placement} {chain}'
  line = f'compile --preset=tiny --row_block=16 {options}'
  summary = _reported(tmp_path, line)

  # then its heap is the gradients between dy and the results, row headers,
  # counters, and what is handed on in float32.
  assert summary['direction'] == 'backward'
  layer = config_lib.MoEConfig(**summary['config'])
  dims = layer.dims()
  rows = layer.num_ranks * layer.num_rows
  early = placement in tensors.EARLY
  names = [
    *('d_expert_out', 'd_activation', 'd_gate_up', 'd_expert_in'),
    *('d_returned', *['d_topk_weights'] * early),
    *(['d_w_down', 'd_w_gate_up'] if chain else []),
  ]
  shapes = [tensors.SPECS[name].dims(**dims) for name in names]
  values = sum(int(np.prod(shape)) for shape in shapes) + early * rows
  headers = 2 * rows
  expected = 4 * (values + headers + summary['events'])
  assert summary['heap_bytes'] * layer.num_ranks == expected


def test_full_shapes_have_room_for_twice_balanced_routing(tmp_path):
  # Given T=16, K=2, R=4 and L=2, then a rank has room for 2 T K rows, or for
  # the rows of --capacity.
  sizes = '--tokens=16 --top_k=2 --experts=8 --d_model=32 --d_ff=16 '
  sizes += '--ranks=4 --row_block=16'
  for option, rows in (('', 64), ('--capacity=96', 96)):
    summary = _reported(tmp_path, f'compile --preset=ep16 {sizes} {option}')
    assert summary['config']['capacity'] == rows
    assert option or summary['options']['expert_capacity'] == 32


def test_flags_offer_what_the_libraries_take():
  assert case_flags.DIRECTIONS == passes.DIRECTIONS
  (order,) = option_fields.select(tiling_fields.CUT, 'weight_grad_order')
  assert order.choices is granularity.WEIGHT_GRAD_ORDERS


@pytest.mark.slow
def test_a_file_without_an_empty_expert_leaves_a_fault_out(capsys, layer_file):
  options = f'--input={layer_file} --direction=backward --row_block=8'

  code = _main(f'faults {options}')

  assert code == cli.PARITY
  assert capsys.readouterr().out.splitlines()[-1] == (
    'backward empty_grad_not_zeroed: left out, needs an expert without rows'
  )


def test_steps_are_counted_right():
  case = case_lib.Case(direction='both', preset='tiny', ranks=2, tokens=13)
  for lane in verdicts.LANES:
    lane_judgement = judgement.Judgement(lanes=(lane,))
    request = check.Request(case, judgement=lane_judgement)
    steps = []
    check.run(request, steps.append)

    assert len(steps) == check.count_steps(request), lane


def test_a_launch_that_ends_early_is_in_the_report(monkeypatch, tmp_path):
  def run(*_):
    raise candidates.CandidateError('gate_up waits for 3, got 2')

  monkeypatch.setattr('hpmoe.parity_tests.ascend.faults.faults_table.run', run)

  report = _reported(tmp_path, 'faults', cli.CANDIDATE_FAILED)

  assert report == dict(verdict='fail', error='gate_up waits for 3, got 2')


def test_a_check_says_what_it_needs_and_takes_nothing(monkeypatch, capsys):
  monkeypatch.setattr(memory, 'available', lambda: 10**9)

  message = _run_refused(
    capsys, f'check --preset=tiny --ranks=2 --tokens={2**28}'
  )

  assert 'or more' in message and 'memory available, 1.0 GB, got one' in message
