"""Ranks in processes, the host program of NPUs, and the twin as their devices.

Two ranks here; `make sweep` has four, and `hpmoe check --backend=ascend_npus`
judges what is computed.
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from hpmoe.backend_ascend.device.npus import comms
from hpmoe.backend_ascend.device.npus import local_ranks
from hpmoe.backend_ascend.device.npus import native
from hpmoe.backend_ascend.device.npus import npu_launch
from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.device.standin import serve
from hpmoe.backend_ascend.device.twin_launch import _ascend_twin
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing as testing
from hpmoe.backend_ascend.host.ranks import rank_runtime
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

# On exact data every order of addition gives the host's bits.
POLICY = precision.PrecisionPolicy('float32', activation='absolute')
# Two blocks of cores; rows, columns and depths that no tile divides.
TILES = dict(num_aic=2, num_aiv=3, row_block=8, col_block=16, chain_rows=8)


def _case(direction='forward', ranks=2, **tiles):
  """Returns an image and its inputs, of exact data."""
  config = config_lib.MoEConfig(
    num_ranks=ranks, num_tokens=13, num_experts=4, top_k=2, d_model=24, d_ff=20
  )
  forward = direction == 'forward'
  compile_ = testing.compile_layer if forward else testing.compile_grad
  inputs = testing.make_inputs if forward else testing.make_grad_inputs
  image = compile_(config, POLICY, **(TILES | tiles))
  return image, inputs(config, POLICY, exact=True)


@contextlib.contextmanager
def _start_ranks(ranks, images, drill='', twin_options=None, **launch_options):
  """Yields a rehearsal, and ranks on it."""
  with rehearsal.Rehearsal(ranks, twin_options) as twin:
    environment = twin.environment | {'HPMOE_BOARD_DRILL': drill}
    options = dict(
      library=twin.library, kernel=twin.kernel, poison=True, deadline_s=20.0
    )
    with local_ranks.LocalRanks(
      ranks, images, environment=environment, **(options | launch_options)
    ) as rank_group:
      yield twin, rank_group


def _texts(twin) -> list[str]:
  return [error.text for report in twin.reports for error in report.errors]


class TestBits:
  @pytest.mark.parametrize(
    'ranks', [1, 2, pytest.param(4, marks=pytest.mark.slow)]
  )
  def test_are_those_of_the_host_launch_however_often(self, ranks):
    # Given both passes in one session, when each is launched twice, in turn,
    # then the twin finds nothing and every tensor has the host's bits.
    cases = [_case(direction, ranks) for direction in ('forward', 'backward')]
    expected_outputs = [runtime.launch(*case) for case in cases]
    with _start_ranks(ranks, [image for image, _ in cases]) as (
      twin,
      rank_group,
    ):
      for case, expected in [*zip(cases, expected_outputs)] * 2:
        actual = rank_group.run(*case)
        assert not testing.differing(actual, expected), _texts(twin)
    assert not _texts(twin)
    assert twin.ran == [list(range(ranks))] * 4

  @pytest.mark.parametrize(
    'mode', ['late', pytest.param('seeded', marks=pytest.mark.slow)]
  )
  def test_are_the_same_in_every_order(self, mode):
    image, inputs = _case()
    options = _ascend_twin.Options(mode=mode, seed=3)
    with _start_ranks(2, [image], twin_options=options) as (twin, rank_group):
      actual = rank_group.run(image, inputs)
    assert not _texts(twin)
    assert not testing.differing(actual, runtime.launch(image, inputs))


def _slow(*values):
  return pytest.param(*values, marks=pytest.mark.slow)


def _failure(run, *arguments) -> local_ranks.RanksError:
  with pytest.raises(local_ranks.RanksError) as error:
    run(*arguments)
  return error.value


class TestRanksThatFail:
  """Rank 1 does, and rank 0 says so by itself."""

  SILENT = 'rank 1: expected word within 2 s, got none'
  NO_KERNEL = (
    f'{SILENT}; rank 0: deadline: waited for rank 1 to start its kernel'
  )

  @pytest.mark.parametrize(
    'drill, launches, message',
    [
      # It comes, and starts no kernel, the first time or the second; it does
      # not come; its kernel ends with it; its kernel has ended.
      ('aclrtLaunchKernelWithConfig kill', 1, NO_KERNEL),
      _slow('aclrtLaunchKernelWithConfig kill 2', 2, NO_KERNEL),
      _slow('aclshmem_putmem kill', 1, SILENT),
      _slow('aclrtSynchronizeStreamWithTimeout kill', 1, SILENT),
      _slow('the_end_of_a_kernel kill', 1, SILENT),
    ],
  )
  def test_one_that_is_killed_is_named(self, drill, launches, message):
    image, inputs = _case()
    with _start_ranks(2, [image], f'1 {drill}', deadline_s=2.0) as (
      _,
      rank_group,
    ):
      for _ in range(launches - 1):
        rank_group.run(image, inputs)
      error = _failure(rank_group.run, image, inputs)
    assert error.ranks == error.errors[0].ranks == (1,)
    assert 'rank 1: expected an answer, got signal 9' in str(error)
    assert str(error.errors[0]).startswith(message)

  @pytest.mark.slow
  def test_one_that_never_starts_is_named(self):
    image, _ = _case()
    drill = '1 aclshmemx_init_attr kill'
    start = _start_ranks(2, [image], drill, start_s=1.0)
    with pytest.raises(local_ranks.RanksError) as error, start:
      pass
    assert error.value.ranks == (1,)
    message = str(error.value.errors[0])
    assert 'not all of 2 ranks came within 1 s' in message

  def test_one_that_is_absent_is_named_at_once(self):
    image, inputs = _case()
    with _start_ranks(2, [image]) as (_, rank_group):
      rank_group.processes[1].kill()
      error = _failure(rank_group.run, image, inputs)
    assert str(error.errors[0]) == 'rank 1 ended' and error.ranks == (1,)

  @pytest.mark.slow
  def test_one_that_is_late_but_in_time_is_waited_for(self):
    image, inputs = _case()
    drill = '1 aclrtLaunchKernelWithConfig 0.3'
    with _start_ranks(2, [image], drill) as (twin, rank_group):
      actual = rank_group.run(image, inputs)
    assert not testing.differing(actual, runtime.launch(image, inputs))
    assert twin.ran == [[0, 1]]

  @pytest.mark.slow
  def test_one_that_is_late_is_named_and_goes_no_further(self):
    image, inputs = _case()
    drill = '1 aclshmem_putmem 2'
    with _start_ranks(2, [image], drill, deadline_s=1.0) as (twin, rank_group):
      error = _failure(rank_group.run, image, inputs)
    assert str(error.errors[0]) == 'rank 1: expected word within 1 s, got none'
    assert str(error.errors[1]) == 'rank 0 gave up'
    assert not twin.ran

  def test_a_signal_that_is_lost_is_diagnosed(self):
    # Given a put of rank 1 that does not signal, then rank 0 names the task
    # that waits, its event, how far that is, and the put.
    image, inputs = _case()
    fault = _a_put_across(image)
    options = _ascend_twin.Options(fault='missing_signal', fault_task=fault)
    with _start_ranks(2, [image], twin_options=options, deadline_s=5.0) as (
      _,
      rank_group,
    ):
      error = _failure(rank_group.run, image, inputs)
    wait_error = error.errors[0]
    assert isinstance(wait_error, runtime.WaitError)
    diagnosis = wait_error.diagnosis
    assert diagnosis.actual < diagnosis.expected and diagnosis.task.rank == 0
    assert fault in [suspect.index for suspect in diagnosis.suspects]
    assert 'rank 0: deadline: ' in diagnosis.text

  def test_inputs_that_do_not_suit_are_refused_on_every_rank(self):
    image, inputs = _case()
    with _start_ranks(2, [image]) as (twin, rank_group):
      requests = rank_group.scatter(image, inputs)
      requests[1][1]['inputs']['topk_ids'][0, 0] = 99
      with pytest.raises(local_ranks.RanksError, match='rank 1: topk_ids'):
        rank_group.gather(requests)
    assert not twin.ran


def _a_put_across(image) -> int:
  """Returns a dispatch of rank 1 to rank 0."""
  tasks = image.tables['tasks']
  puts = np.flatnonzero(
    (tasks['kind'] == 0) & (tasks['rank'] == 1) & (tasks['peer'] == 0)
  )
  return int(puts[0])


class _FakeComm:
  """A Comm of rank 0 of 2 that makes up the hello of rank 1."""

  rank, num_ranks = 0, 2

  def __init__(self, **changes):
    self._changes = changes

  def allgather(self, value):
    other = native.Hello.from_buffer_copy(value)
    for name, change in (dict(rank=1, device=1) | self._changes).items():
      setattr(other, name, change)
    return [value, bytes(other)]


A2 = dict(HPMOE_BOARD_SOC='Ascend910B1')
IN_A_POD = dict(HPMOE_BOARD_POD='7')


@pytest.fixture(scope='module')
def board(tmp_path_factory) -> str:
  """Returns the devices of another process; this process is a rank."""
  path = str(tmp_path_factory.mktemp('npus') / 'board')
  module = _ascend_twin.__name__
  make = f'import {module} as twin; twin.Board({path!r}, 2)'
  subprocess.run([sys.executable, '-c', make], check=True)
  return path


FAR, SHMEM = rank_runtime.RankError, npu_launch.DeviceError
LATE = 'not all of 2 ranks'


class TestHellos:
  @pytest.mark.parametrize(
    'environment, changes, error, message',
    [
      # Out of reach, though a pointer would be there for each.
      (A2, dict(in_groups=1, device=8), FAR, 'in the same group of 8 devices'),
      (A2, dict(in_groups=1, server=1), FAR, 'same server and in the same'),
      ({}, dict(server=1), FAR, 'same server or in the same super pod'),
      (IN_A_POD, dict(server=1, pod=8), FAR, 'got rank 1: device 1 of another'),
      # Within reach: it is SHMEM that misses a rank that comes no further.
      _slow(A2, dict(in_groups=1, device=7), SHMEM, LATE),
      _slow({}, dict(device=8), SHMEM, LATE),
      _slow(IN_A_POD, dict(server=1, pod=7), SHMEM, LATE),
      # SHMEM's own message names no rank, and malloc compares nothing.
      ({}, dict(heap_bytes=4096), ValueError, 'heap_bytes: .*, got 4096 on ra'),
      ({}, dict(num_ranks=3), ValueError, 'rank 1 of 2, got rank 1 of 3'),
    ],
  )
  def test_say_who_is_out_of_reach_or_of_another_session(
    self, board, environment, changes, error, message
  ):
    image, _ = _case()
    twin = rehearsal.Rehearsal
    options = dict(library=twin.library, kernel=twin.kernel, start_s=1.0)
    with pytest.MonkeyPatch.context() as patch:
      for name, value in (dict(HPMOE_BOARD=board) | environment).items():
        patch.setenv(name, value)
      with pytest.raises(error, match=message) as error_info:
        npu_launch.Launch([image], _FakeComm(**changes), **options)
    assert error is not FAR or error_info.value.ranks == (1,)


class TestDevice:
  def test_refuses_more_blocks_than_it_has(self):
    # Given 25 cube cores, where the chip has 24, then no launch is tried.
    image, inputs = _case(ranks=1, num_aic=25, num_aiv=4)
    with _start_ranks(1, [image]) as (twin, rank_group):
      error = _failure(rank_group.run, image, inputs)
    assert 'expected at most 24 blocks of 1 and 2, got 25' in str(error)
    assert not twin.ran

  def test_without_a_kernel_says_so(self):
    image, _ = _case(ranks=1)
    start = _start_ranks(1, [image], kernel=os.path.abspath('nofile.o'))
    with pytest.raises(local_ranks.RanksError, match='nofile.o'), start:
      pass

  def test_uses_tensors_on_the_device_where_they_are(self, monkeypatch):
    # Given inputs and results in memory that a framework allocated, when
    # launched, then results are made there, those that puts write too; an
    # address in the middle of a line is refused.
    image, inputs = _case(ranks=1)
    twin, result_names = rehearsal.Rehearsal, ('expert_in', 'gate_up', 'y')
    expected = runtime.launch(image, inputs)
    host_tensors = {n: a[0] for n, a in inputs.items() if n != 'topk_ids'}
    host_tensors |= {
      name: np.zeros_like(expected[name][0]) for name in result_names
    }
    with serve.DeviceServer(1) as devices:
      monkeypatch.setenv('HPMOE_BOARD', devices.board)
      launch = npu_launch.Launch(
        [image], comms.NoComm(), library=twin.library, kernel=twin.kernel
      )
      slabs = {
        name: self._on_device(array) for name, array in host_tensors.items()
      }
      launch.run_at(image, inputs['topk_ids'][0], slabs)
      actual = {
        name: np.zeros_like(host_tensors[name]) for name in result_names
      }
      for name, array in actual.items():
        ctypes.memmove(array.ctypes.data, slabs[name].address, array.nbytes)
      odd = dataclasses.replace(slabs['x'], address=slabs['x'].address + 4)
      with pytest.raises(ValueError, match='x: expected memory of 64-byte'):
        launch.run_at(image, inputs['topk_ids'][0], slabs | dict(x=odd))
      launch.close()
      assert not devices.findings()
    assert not testing.differing(
      actual, {name: expected[name][0] for name in result_names}
    )

  @staticmethod
  def _on_device(array: np.ndarray) -> npu_launch.Slab:
    acl, address = (
      ctypes.CDLL(str(rehearsal.Rehearsal.library)),
      ctypes.c_void_p(),
    )
    size = ctypes.c_size_t(array.nbytes)
    assert acl.aclrtMalloc(ctypes.byref(address), size, 0) == 0
    host, in_ = ctypes.c_void_p(array.ctypes.data), 1
    assert acl.aclrtMemcpy(address, size, host, size, in_) == 0
    return npu_launch.Slab(address.value, array.nbytes, on_device=True)

  def test_without_its_library_says_how_to_make_it(self):
    image, _ = _case(ranks=1)
    with pytest.raises(RuntimeError, match='make ascend-npus'):
      npu_launch.Launch([image], _FakeComm(), library='/no/lib.so', kernel='/k')


@pytest.mark.parametrize('stop_signal', [None, signal.SIGTERM])
def test_devices_leave_no_file_whoever_is_told_to_end(stop_signal):
  # given devices in a process of their own
  with serve.DeviceServer(1) as devices:
    folder = pathlib.Path(devices.board).parent
    assert folder.is_dir()
    # when all of a group are told to end, or who started it fails
    if stop_signal:
      devices._process.send_signal(stop_signal)
  # then
  assert not folder.exists()
