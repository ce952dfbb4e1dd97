"""All launches give the same bits, and one that does not is named."""

import dataclasses
import json
import shlex
import tracemalloc

import numpy as np
import pytest

from hpmoe.backend_ascend import _native
from hpmoe.backend_ascend.host.checks import coverage
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.ascend.determinism import interleavings
from hpmoe.parity_tests.ascend.determinism import interleavings_table
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.reference.contract import memory

PLAN = interleavings.Plan(
  tokens=13, interleavings=4, threads=(1, 2), layouts=((1, 1), (3, 5))
)
ONE = dataclasses.replace(
  PLAN, dtypes=('float32',), threads=(1,), layouts=((3, 5),)
)


@pytest.mark.parametrize(
  'placement, routing, dtype',
  [
    ('combine', 'zipf', 'bfloat16'),
    ('before_down', 'one_rank', 'float32'),
    ('combine', 'empty_experts', 'float32'),
    ('epilogue', 'empty_experts', 'float16'),
  ],
)
@pytest.mark.parametrize(
  'every_dtype', [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.few(2)
def test_every_interleaving_gives_the_bits_of_a_serial_run(
  placement, routing, dtype, every_dtype
):
  # Given both passes, dtypes, three granularities, two layouts,
  plan = dataclasses.replace(
    PLAN,
    placement=placement,
    routing=routing,
    dtypes=PLAN.dtypes if every_dtype else (dtype,),
  )
  steps = []

  # when interleavings are tried,
  table = interleavings.run(plan, steps.append)

  # then there is one digest of each tensor, and many schedules.
  launches = 4 * 2 * 2 * 3
  assert table.holds and len(steps) == plan.steps
  got = [(r.dtype, r.tensor, len(r.sha256), r.launches) for r in table.rows]
  assert got == [
    (dtype, tensor, 1, launches)
    for dtype in plan.dtypes
    for direction in interleavings.DIRECTIONS
    for which in passes.from_direction(direction)
    for tensor in which.results
  ]
  for seen in table.schedules:
    assert 1 < seen.orders <= launches
    assert 0 < seen.pairs_both <= seen.pairs
    assert 0 < seen.edges_last <= seen.edges
  told = interleavings_table.text(table)
  total = 2 * launches * len(plan.dtypes)
  assert f'bits are reproducible: {total} launches, 0 differing bits' in told


@pytest.mark.parametrize(
  'preset, schedules, text',
  [
    ('small:d_model=65536:d_ff=8192', 0, 'launch fits .* 1.1 GB'),
    ('tiny', 1 << 40, 'list of schedules of the forward pass .* 1099.5 GB'),
  ],
)
def test_a_layer_that_memory_cannot_follow_is_refused(
  monkeypatch, preset, schedules, text
):
  monkeypatch.setattr(memory, 'available', lambda: 1 << 30)
  monkeypatch.setattr(coverage, 'needed_bytes', lambda image: schedules)
  steps = []
  with pytest.raises(ValueError, match=text):
    interleavings.run(dataclasses.replace(ONE, preset=preset), steps.append)
  assert not steps


@pytest.mark.slow
def test_memory_is_told_before_it_is_taken():
  # Given an image of each granularity and layout,
  made = interleavings.make_inputs(ONE, 'float32')
  for which in (passes.FORWARD, passes.BACKWARD):
    for options in ONE.options():
      image = interleavings.compile_image(which, made, options)

      # when its schedules are prepared, with every signal that may be made,
      tracemalloc.start()
      coverage.Coverage(image)
      _, taken = tracemalloc.get_traced_memory()
      tracemalloc.stop()

      # then they took no more than was told, and not much less.
      told = coverage.needed_bytes(image)
      assert told / 4 < taken < told


def test_one_bit_of_one_launch_is_named(monkeypatch):
  # Given a runtime that flips one bit of y in the third interleaving, and an
  # order and an instruction set that are not those by default,
  right = runtime.run

  def run(image, inputs, **kwargs):
    launched = right(image, inputs, **kwargs)
    if kwargs['modes'].permute == 3 and 'y' in launched.outputs:
      launched.outputs['y'].view(np.uint16)[1, 2, 5] ^= 1
    return launched

  monkeypatch.setattr(runtime, 'run', run)

  # when interleavings are tried,
  how = dict(accumulation_orders=('even_odd_32',), isa=('portable',))
  table = interleavings.run(
    dataclasses.replace(ONE, dtypes=('bfloat16',), **how)
  )

  # then each of the three images shows it, and the first is named.
  row = table.rows[0]
  assert not table.holds
  assert (row.tensor, row.differing_bits, len(row.sha256)) == ('y', 3, 2)
  found = row.first_break
  assert (found.interleaving, found.late_puts) == (3, True)
  assert found.index == (1, 2, 5) and found.got != found.expected
  told = interleavings_table.text(table)
  assert (
    '--permute=3 --late_puts' in told and 'bits are NOT reproducible' in told
  )
  assert {'--accumulation_order=even_odd_32', '--isa=portable'} <= {
    *found.replay.split()
  }


def test_launches_are_those_of_the_plan(monkeypatch):
  # Given numbers of threads, two orders, of which one is bfloat16's, and
  # instruction sets that launches take in turn, then each order has rows of its
  # own, launches are of its images, every second one is late, and every second
  # pair is by the other instruction set.
  right, seen = runtime.run, []
  isas = _native.isas()[-2:]

  def run(image, inputs, **kwargs):
    modes = kwargs['modes']
    sums = image.policy.storage, image.policy.accumulation_order
    how = kwargs['threads'], modes.permute, modes.late_puts, kwargs['isa']
    seen.append((*sums, *how))
    return right(image, inputs, **kwargs)

  monkeypatch.setattr(runtime, 'run', run)
  table = interleavings.run(
    dataclasses.replace(
      ONE,
      dtypes=('float32', 'bfloat16'),
      accumulation_orders=('ascending', 'even_odd_32'),
      isa=tuple(isas),
      threads=(1, 3),
      interleavings=4,
      directions=('forward',),
      granularities=ONE.granularities[:1],
    )
  )
  sums = (
    ('float32', 'ascending'),
    ('bfloat16', 'ascending'),
    ('bfloat16', 'even_odd_32'),
  )
  assert seen == [
    (*one, threads, seed, seed % 2 == 1, isas[0 if seed < 2 else -1])
    for one in sums
    for threads in (1, 3)
    for seed in range(4)
  ]
  assert table.holds
  assert [row.dtype for row in table.rows] == [
    'float32',
    'bfloat16',
    'bfloat16 even_odd_32',
  ]


def test_a_task_that_does_not_wait_breaks_the_law(tmp_path, capsys):
  # Given a backend in which one task does not wait for what it reads,
  asked = '--fault=skipped_wait --tokens=13 --interleavings=4 --dtype=f32 '
  asked += (
    f'--threads=1 --direction=forward --json={tmp_path / "determinism.json"}'
  )

  # when interleavings are tried,
  code = main.main(['determinism', *asked.split()])

  # then late puts show it as bits that differ,
  report = json.loads((tmp_path / 'determinism.json').read_text())
  assert code == cli.NO_PARITY and report['verdict'] == 'fail'
  assert report['rows'][0]['differing_bits'] > 0
  assert 'bits are NOT reproducible' in capsys.readouterr().out

  # and the command that it gives shows that launch wrong.
  replay = report['rows'][0]['first_break']['replay']
  program, *arguments = shlex.split(replay)
  assert program == 'hpmoe' and '--fault=skipped_wait' in arguments
  assert main.main([*arguments, '--lane=bitwise']) == cli.NO_PARITY


@pytest.mark.slow
def test_what_only_the_fused_launch_does_is_in_the_replay(
  monkeypatch, tmp_path, capsys
):
  # Given a backend that is wrong where it makes results only,
  def spoilt(*arguments, of=runtime.run, **how):
    launched = of(*arguments, **how)
    if how['asked'] is not None:
      launched.outputs['y'][0, 0, 0] += 1
    return launched

  monkeypatch.setattr(runtime, 'run', spoilt)

  # when interleavings are tried, then it is broken,
  asked = '--tokens=13 --interleavings=2 --dtype=f32 --threads=1 --ranks=2 '
  asked += (
    f'--layout=3x5 --direction=forward --json={tmp_path / "determinism.json"}'
  )
  assert main.main(['determinism', *asked.split()]) == cli.NO_PARITY

  # and the command that it gives makes such a launch; without, all is right.
  report = json.loads((tmp_path / 'determinism.json').read_text())
  replay = report['rows'][0]['first_break']['replay']
  _, *arguments = shlex.split(replay)
  assert main.main(arguments) == cli.NO_PARITY
  arguments.remove('--fused')
  assert main.main(arguments) == cli.PARITY
  capsys.readouterr()


def test_a_fault_is_committed_in_the_passes_that_know_it():
  # Given a fault of the backward pass, when interleavings are tried on both,
  table = interleavings.run(dataclasses.replace(ONE, fault='weight_grad_twice'))

  # then its tensor alone breaks it, in a command that hpmoe check takes.
  broken = {row.tensor: row for row in table.rows if row.differing_bits}
  assert set(broken) == {'d_w_gate_up'}
  first = broken['d_w_gate_up'].first_break
  assert first is not None and 'None' not in first.replay
  assert '--direction=backward' in first.replay
