"""The twin through `hpmoe`: cheap cases here, the product marked slow."""

import csv
import itertools
import json
import shutil

import numpy as np
import pytest

from hpmoe.backend_ascend.host.checks import faults
from hpmoe.backend_ascend.twin import twin_testing
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

TWIN = '--backend=ascend_twin'
NEEDS_CLANG = twin_testing.needs_clang()
TINY = ('--preset=tiny', '--ranks=2')
HEADERS = (
  pytest.param('', id='our headers'),
  pytest.param(
    f'--twin_include={twin_testing.ASC_DEVKIT}',
    id='real headers',
    marks=twin_testing.needs_asc_devkit,
  ),
)


def read_error(capsys) -> str:
  lines = capsys.readouterr().err.splitlines()
  # Some requests are refused only after the oracle was compiled.
  return '\n'.join(line for line in lines if 'compiling the oracle' not in line)


class TestCheck:
  @pytest.mark.parametrize('mode', ['in_order', 'late'])
  @pytest.mark.few(1)
  def test_both_passes_in_all_lanes(self, capsys, tmp_path, mode):
    # Real data of bfloat16, weights before w_down and whole experts: exact data
    # of others tools/sync/probe_test.py has.
    arguments = f'--twin_mode={mode} --dtype=bf16 --placement=before_down '
    path = tmp_path / 'out.json'
    arguments += '--event_grain=expert --aic=3 --aiv=5 --mmad_order=reversed '
    arguments += f'--json={path}'
    code = main.main(['check', TWIN, *TINY, *arguments.split()])
    assert code == cli.PARITY
    assert 'ascend_twin against the oracle' in capsys.readouterr().out
    text = path.read_text()
    assert '"candidate": "ascend_twin"' in text
    assert '"mmad_order": "reversed"' in text

  def test_a_fault_of_order_ends_it_with_its_task(self, capsys):
    arguments = ['--direction=forward', '--lane=exact', '--fault=missing_wait']
    code = main.main(['check', TWIN, *TINY, *arguments])
    assert code == cli.CANDIDATE_FAILED
    line = read_error(capsys)
    assert 'which nobody has written' in line and 'in gate_up task' in line
    assert '\n' not in line


class TestFaults:
  def _check_caught(
    self, monkeypatch, capsys, direction, names, *options
  ) -> str:
    """Checks that the named faults are caught, and returns the table."""
    pass_direction = faults.Direction[direction.upper()]
    table = [
      s
      for s in faults.TABLE
      if s.name in names and s.direction == pass_direction
    ]
    monkeypatch.setattr(faults, 'TABLE', tuple(table))
    arguments = ['faults', TWIN, f'--direction={direction}', *options]
    code = main.main(arguments)
    out = capsys.readouterr().out
    assert code == cli.PARITY, out
    return out

  @pytest.mark.slow
  def test_are_planted_and_located(self, monkeypatch, capsys):
    # Of order by another image, of values by what is stored.
    names = ('early_signal', 'stale_row', 'narrow_accumulator', 'zero_output')
    out = self._check_caught(monkeypatch, capsys, 'forward', names, '--ranks=2')
    assert [out.count(name) for name in names] == [1] * len(names)
    assert out.count('  caught\n') == len(names)

  @pytest.mark.slow
  def test_any_reader_of_a_faulty_task_may_be_named(self, monkeypatch, capsys):
    # given a task whose tile two kinds read, of which the second comes first
    names, options = ('early_signal',), ('--ranks=1', '--twin_mode=late')
    # when
    out = self._check_caught(monkeypatch, capsys, 'backward', names, *options)
    # then
    assert 'gate_up_weight_grad task' in out

  @pytest.mark.slow
  @pytest.mark.parametrize('dtype', ['f32', 'bf16'])
  @pytest.mark.parametrize('mode', ['in_order', 'late'])
  def test_are_all_caught(self, dtype, mode):
    arguments = ['--ranks=2', f'--dtype={dtype}', f'--twin_mode={mode}']
    assert main.main(['faults', TWIN, *arguments]) == cli.PARITY


class TestLaw:
  ARGUMENTS = (
    *('determinism', TWIN, '--ranks=2', '--tokens=9', '--direction=forward'),
    *('--dtype=f32', '--layout=2x3', '--interleavings=1'),
  )

  @pytest.mark.slow
  def test_holds_within_one_policy(self, capsys):
    assert main.main(self.ARGUMENTS) == cli.PARITY
    out = capsys.readouterr().out
    # Three cuts and modes: once ascending, three other orders a cut alone, and
    # four orders on exact data.
    assert 'bits are reproducible: 72 launches, 0 differing bits' in out

  @pytest.mark.slow
  def test_a_launch_that_breaks_it_is_named(self, capsys, tmp_path):
    path = tmp_path / 'determinism.json'
    arguments = [*self.ARGUMENTS, '--fault=wrong_offset', f'--json={path}']
    assert main.main(arguments) == cli.NO_PARITY
    assert 'bits are NOT reproducible' in capsys.readouterr().out
    rows = json.loads(path.read_text())['rows']
    assert all(row['differing_bits'] > 0 for row in rows)
    assert TWIN in rows[0]['first_break']['replay']


class TestCounts:
  def test_are_written(self, tmp_path, capsys):
    table, report = tmp_path / 'c.csv', tmp_path / 'c.json'
    arguments = ['--tokens=8', f'--csv={table}', f'--json={report}']
    assert main.main(['twin-counts', *arguments]) == cli.PARITY
    assert 'gate_up_weight_grad' in capsys.readouterr().out
    rows = list(csv.DictReader(table.open()))
    tiles = json.loads(report.read_text())['tiles']
    assert len(rows) == len(tiles) > 20
    for row, tile in zip(rows, tiles):
      assert row['kind'] == tile['kind']
      assert float(row['bytes_mte2']) == pytest.approx(tile['bytes_mte2'], 1e-5)
    assert {row['direction'] for row in rows} == {'forward', 'backward'}


class TestTwin:
  @NEEDS_CLANG
  def test_a_program_runs_and_gives_its_exit_code(self, tmp_path, capfd):
    source = tmp_path / 'program.asc'
    source.write_text(
      '#include "acl/acl.h"\n'
      '__global__ __vector__ void empty() { pipe_barrier(PIPE_ALL); }\n'
      'int main(int count, char** a) {\n'
      '  empty<<<2, nullptr, nullptr>>>();\n'
      '  return std::atoi(a[count - 1]);\n'
      '}\n'
    )
    arguments = ['twin', str(source), '--arguments=5', f'--work={tmp_path}']
    assert main.main(arguments) == 5
    assert 'twin: launches: 1, errors: 0' in capfd.readouterr().err

  def test_an_operator_says_what_it_takes_and_runs(self, tmp_path, capfd):
    # Given an operator's folder, when it is named alone, then its arguments are
    # told; and with a launch, then its outputs are there.
    code = tmp_path / 'double/op_kernel/double.cpp'
    code.parent.mkdir(parents=True)
    code.write_text(
      'struct Tiling { int32_t count; };\n'
      '__global__ void doubled(__gm__ uint8_t* x, __gm__ uint8_t* tiling) {\n'
      '  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);\n'
      '  GET_TILING_DATA_WITH_STRUCT(Tiling, t, tiling);\n'
      '  auto* const at = (__gm__ float*)x;\n'
      '  for (int i = 0; i < t.count; ++i) at[i] = 2 * at[i];\n'
      '  dcci(at, SINGLE_CACHE_LINE, CACHELINE_OUT);\n'
      '  pipe_barrier(PIPE_ALL);\n}\n'
    )
    op = f'--op={tmp_path / "double"}'
    assert main.main(['twin', op]) == cli.PARITY
    assert 'argument 0: x' in capfd.readouterr().out
    assert main.main(['twin', f'--op={tmp_path}']) == cli.WRONG_REQUEST
    assert 'expected a folder that holds op_kernel' in capfd.readouterr().err
    if not any(map(shutil.which, ('clang++', 'clang++-14'))):
      pytest.skip('no clang++')
    np.save(tmp_path / 'x.npy', np.ones(4, np.float32))
    launch = tmp_path / 'launch.json'
    launch.write_text(
      json.dumps(dict(arguments=['x.npy'], tiling=dict(count=3)))
    )
    out = tmp_path / 'out'
    arguments = ['twin', op, f'--launch={launch}', f'--out={out}']
    assert main.main(arguments) == cli.PARITY
    np.testing.assert_array_equal(np.load(out / '0.npy'), [2, 2, 2, 1])

  @NEEDS_CLANG
  @pytest.mark.parametrize('operator', [False, True])
  def test_an_overlap_without_a_rule_stops_unless_told(
    self, tmp_path, capfd, operator
  ):
    # Given a move within UB to a part of its source, when it is launched as a
    # program or an operator, then it is refused; and without strict it runs.
    moves = (
      '  pipe_barrier(PIPE_ALL);\n'
      '  copy_ubuf_to_ubuf((__ubuf__ void*)32, (__ubuf__ void*)0, 0, 1, 2, 0,'
      ' 0);\n  pipe_barrier(PIPE_ALL);\n}\n'
    )
    if operator:
      code = tmp_path / 'moves/op_kernel/moves.cpp'
      code.parent.mkdir(parents=True)
      code.write_text(
        'struct Tiling { int32_t blocks; };\n'
        '__global__ void moves(__gm__ uint8_t* x, __gm__ uint8_t* tiling) {\n'
        '  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);\n'
        '  GET_TILING_DATA_WITH_STRUCT(Tiling, t, tiling);\n'
        '  copy_gm_to_ubuf((__ubuf__ void*)0, (__gm__ void*)x, 0, 1,'
        f' t.blocks, 0, 0);\n{moves}'
      )
      np.save(tmp_path / 'x.npy', np.ones(32, np.float32))
      launch = tmp_path / 'launch.json'
      launch.write_text(
        json.dumps(dict(arguments=['x.npy'], tiling=dict(blocks=4)))
      )
      words = [f'--op={tmp_path / "moves"}', f'--launch={launch}']
    else:
      source = tmp_path / 'moves.asc'
      source.write_text(
        '#include "acl/acl.h"\n__global__ __vector__ void moves() {\n'
        '  vector_dup((__ubuf__ float*)0, 1.0f, 1, 1, 1, 8, 0);\n'
        f'{moves}int main() {{ moves<<<1, nullptr, nullptr>>>(); }}\n'
      )
      words = [str(source), f'--work={tmp_path}']

    assert main.main(['twin', *words]) == cli.CANDIDATE_FAILED
    assert 'not published' in capfd.readouterr().err
    assert main.main(['twin', *words, '--strict=false']) == cli.PARITY

  @pytest.mark.parametrize('text', ['{"args": []}', '[]', '{'])
  def test_a_launch_file_that_is_none_is_named(self, tmp_path, capfd, text):
    op, launch = tmp_path / 'copy', tmp_path / 'launch.json'
    (op / 'op_kernel').mkdir(parents=True)
    (op / 'op_kernel/copy.cpp').write_text(
      'extern "C" __global__ __aicore__ void copy(GM_ADDR x) {}\n'
    )
    launch.write_text(text)

    code = main.main(['twin', f'--op={op}', f'--launch={launch}'])

    assert code == cli.WRONG_REQUEST
    message = capfd.readouterr().err
    assert 'launch: expected' in message and str(launch) in message


PRODUCT = tuple(
  itertools.product(
    ('tiny', 'small'),
    (1, 2, 4),
    ('f32', 'bf16'),
    ('combine', 'before_down'),
    ('row_block', 'expert'),
    ('in_order', 'seeded', 'late'),
  )
)


@pytest.mark.slow
@pytest.mark.parametrize('headers', HEADERS)
@pytest.mark.parametrize(
  'preset, ranks, dtype, placement, grain, mode', PRODUCT
)
def test_the_product(preset, ranks, dtype, placement, grain, mode, headers):
  arguments = f'--preset={preset} --ranks={ranks} --dtype={dtype} '
  arguments += (
    f'--placement={placement} --event_grain={grain} --twin_mode={mode}'
  )
  arguments = [*arguments.split(), *headers.split()]
  assert main.main(['check', TWIN, *arguments]) == cli.PARITY
