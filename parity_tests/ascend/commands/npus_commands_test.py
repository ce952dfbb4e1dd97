"""Several NPUs through `hpmoe`: a process for each, on the twin."""

import numpy as np
import pytest

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.npus import local_ranks
from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.device.standin import serve
from hpmoe.backend_ascend.device.twin_launch import _ascend_twin
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.parity_tests.ascend import npus_candidate
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

NPUS = ('check', '--backend=ascend_npus', '--preset=tiny')


class TestCheck:
  @pytest.mark.slow
  def test_two_ranks_pass_the_forward_lanes_of_exact_data(self, capsys):
    flags = ('--ranks=2', '--direction=forward', '--lane=exact,bitwise')
    assert main.main([*NPUS, *flags]) == cli.PARITY
    assert 'ascend_npus against the oracle' in capsys.readouterr().out

  @pytest.mark.slow
  @pytest.mark.parametrize(
    'flags',
    [
      '--ranks=1',
      '--ranks=2 --dtype=bf16 --twin_mode=late',
      '--ranks=4',
      '--ranks=4 --placement=before_down --chain_rows=8 --event_grain=expert',
      '--ranks=2 --relay --twin_mode=seeded --twin_seed=5',
    ],
  )
  def test_both_passes_in_all_lanes(self, flags):
    assert main.main([*NPUS, *flags.split()]) == cli.PARITY

  @pytest.mark.slow
  def test_what_was_built_for_npus_is_what_ranks_load(
    self, tmp_path, monkeypatch
  ):
    # Given a folder as `make ascend-npus` fills it, here of the stand-ins, and
    # devices that are there, when it is named, then ranks run on those.
    library = rehearsal.Rehearsal.library
    (tmp_path / npus_candidate.LIBRARY).symlink_to(library)
    (tmp_path / npus_candidate.KERNEL).touch()
    flags = ('--ranks=2', '--lane=exact,bounded', f'--npus={tmp_path}')
    with serve.DeviceServer(2) as devices:
      monkeypatch.setenv('HPMOE_BOARD', devices.board)
      assert main.main([*NPUS, *flags]) == cli.PARITY
      assert not devices.findings()


class TestCandidate:
  def test_says_what_the_twin_found_before_what_ranks_say(
    self, monkeypatch, capsys
  ):
    # Given a product that waits for none of its rows, when it is launched, then
    # the finding is told, with its line, not that cores did not end.
    start = npus_candidate._RankPool._start

    def start_wrong(pool, owner, image):
      products = image.tables['tasks']['kind'] == layout.Kind.GATE_UP
      wrong = _ascend_twin.Options(
        fault='skipped_wait', fault_task=int(np.flatnonzero(products)[0])
      )
      monkeypatch.setattr(twin_runtime, 'options', lambda *_: wrong)
      return start(pool, owner, image)

    monkeypatch.setattr(npus_candidate._RankPool, '_start', start_wrong)
    flags = ('--ranks=2', '--direction=forward', '--lane=exact')
    assert main.main([*NPUS, *flags]) == cli.CANDIDATE_FAILED
    line = capsys.readouterr().err.splitlines()[-1]
    assert 'which nobody has written' in line and 'in gate_up task' in line

  def test_says_which_ranks_failed(self, monkeypatch, capsys):
    # Given a launch that a rank does not survive, then the error of the ranks
    # is told: it is not one of this program.
    def run(*_):
      raise local_ranks.RanksError(
        'rank 1: expected an answer, got signal 9',
        [1],
        {0: RuntimeError('rank 1 ended')},
      )

    monkeypatch.setattr(local_ranks.LocalRanks, 'run', run)
    flags = ('--ranks=2', '--direction=forward', '--lane=exact')
    assert main.main([*NPUS, *flags]) == cli.CANDIDATE_FAILED
    assert 'rank 1: expected an answer' in capsys.readouterr().err
