"""All launches return the same bits, and one that does not is named."""

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
SINGLE = dataclasses.replace(
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
@pytest.mark.few(1)
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
  actual = [(r.dtype, r.tensor, len(r.sha256), r.launches) for r in table.rows]
  assert actual == [
    (dtype, tensor, 1, launches)
    for dtype in plan.dtypes
    for direction in interleavings.DIRECTIONS
    for layer_pass in passes.from_direction(direction)
    for tensor in layer_pass.results
  ]
  for schedules in table.schedules:
    assert 1 < schedules.orders <= launches
    assert 0 < schedules.pairs_both <= schedules.pairs
    assert 0 < schedules.edges_last <= schedules.edges
  text = interleavings_table.text(table)
  total = 2 * launches * len(plan.dtypes)
  assert f'bits are reproducible: {total} launches, 0 differing bits' in text


@pytest.mark.parametrize(
  'preset, schedules, text',
  [
    ('small:d_model=65536:d_ff=8192', 0, 'launch fits .* 1.1 GB'),
    ('tiny', 1 << 40, 'list of schedules of the forward pass .* 1099.5 GB'),
  ],
)
def test_a_layer_that_needs_too_much_memory_is_refused(
  monkeypatch, preset, schedules, text
):
  monkeypatch.setattr(memory, 'available', lambda: 1 << 30)
  monkeypatch.setattr(coverage, 'needed_bytes', lambda image: schedules)
  steps = []
  with pytest.raises(ValueError, match=text):
    interleavings.run(dataclasses.replace(SINGLE, preset=preset), steps.append)
  assert not steps


@pytest.mark.slow
def test_needed_memory_is_predicted():
  # Given an image of each granularity and layout,
  layer_inputs = interleavings.make_inputs(SINGLE, 'float32')
  for layer_pass in (passes.FORWARD, passes.BACKWARD):
    for options in SINGLE.options():
      image = interleavings.compile_image(layer_pass, layer_inputs, options)

      # when its schedules are prepared, with every signal that may be made,
      tracemalloc.start()
      coverage.Coverage(image)
      _, peak_bytes = tracemalloc.get_traced_memory()
      tracemalloc.stop()

      # then they took no more than predicted, and not much less.
      predicted_bytes = coverage.needed_bytes(image)
      assert predicted_bytes / 4 < peak_bytes < predicted_bytes


def test_one_bit_of_one_launch_is_named(monkeypatch):
  # Given a runtime that flips one bit of y in the third interleaving, and an
  # order and an instruction set that are not those by default,
  right = runtime.run

  def run(image, inputs, **kwargs):
    result = right(image, inputs, **kwargs)
    if kwargs['modes'].permute == 3 and 'y' in result.outputs:
      result.outputs['y'].view(np.uint16)[1, 2, 5] ^= 1
    return result

  monkeypatch.setattr(runtime, 'run', run)

  # when interleavings are tried,
  fields = dict(accumulation_orders=('even_odd_32',), isa=('portable',))
  table = interleavings.run(
    dataclasses.replace(SINGLE, dtypes=('bfloat16',), **fields)
  )

  # then each of the three images shows it, and the first is named.
  row = table.rows[0]
  assert not table.holds
  assert (row.tensor, row.differing_bits, len(row.sha256)) == ('y', 3, 2)
  first_break = row.first_break
  assert (first_break.interleaving, first_break.late_puts) == (3, True)
  assert (
    first_break.index == (1, 2, 5)
    and first_break.actual != first_break.expected
  )
  text = interleavings_table.text(table)
  assert (
    '--permute=3 --late_puts' in text and 'bits are NOT reproducible' in text
  )
  assert {'--accumulation_order=even_odd_32', '--isa=portable'} <= {
    *first_break.replay.split()
  }


def test_launches_are_those_of_the_plan(monkeypatch):
  # Given numbers of threads, two orders, of which one is bfloat16's, and
  # instruction sets that launches take in turn, then each order has rows of its
  # own, launches are of its images, every second one is late, and every second
  # pair is by the other instruction set.
  right, launches = runtime.run, []
  isas = _native.isas()[-2:]

  def run(image, inputs, **kwargs):
    modes = kwargs['modes']
    sums = image.policy.storage, image.policy.accumulation_order
    settings = kwargs['threads'], modes.permute, modes.late_puts, kwargs['isa']
    launches.append((*sums, *settings))
    return right(image, inputs, **kwargs)

  monkeypatch.setattr(runtime, 'run', run)
  table = interleavings.run(
    dataclasses.replace(
      SINGLE,
      dtypes=('float32', 'bfloat16'),
      accumulation_orders=('ascending', 'even_odd_32'),
      isa=tuple(isas),
      threads=(1, 3),
      interleavings=4,
      directions=('forward',),
      granularities=SINGLE.granularities[:1],
    )
  )
  sums = (
    ('float32', 'ascending'),
    ('bfloat16', 'ascending'),
    ('bfloat16', 'even_odd_32'),
  )
  assert launches == [
    (*order, threads, seed, seed % 2 == 1, isas[0 if seed < 2 else -1])
    for order in sums
    for threads in (1, 3)
    for seed in range(4)
  ]
  assert table.holds
  assert [row.dtype for row in table.rows] == [
    'float32',
    'bfloat16',
    'bfloat16 even_odd_32',
  ]


@pytest.mark.slow
def test_a_task_that_does_not_wait_breaks_the_law(tmp_path, capsys):
  # Given a backend in which one task does not wait for what it reads,
  request = '--fault=skipped_wait --tokens=13 --interleavings=4 --dtype=f32 '
  request += (
    f'--threads=1 --direction=forward --json={tmp_path / "determinism.json"}'
  )

  # when interleavings are tried,
  code = main.main(['determinism', *request.split()])

  # then late puts show it as bits that differ,
  report = json.loads((tmp_path / 'determinism.json').read_text())
  assert code == cli.NO_PARITY and report['verdict'] == 'fail'
  assert report['rows'][0]['differing_bits'] > 0
  assert 'bits are NOT reproducible' in capsys.readouterr().out

  # and the command that it gives shows that launch wrong.
  first_break = report['rows'][0]['first_break']
  assert first_break['got'] != first_break['expected']
  replay = first_break['replay']
  program, *arguments = shlex.split(replay)
  assert program == 'hpmoe' and '--fault=skipped_wait' in arguments
  assert main.main([*arguments, '--lane=bitwise']) == cli.NO_PARITY


@pytest.mark.slow
def test_what_only_the_fused_launch_does_is_in_the_replay(
  monkeypatch, tmp_path, capsys
):
  # Given a backend that is wrong where it makes results only,
  def spoilt(*arguments, original=runtime.run, **keywords):
    result = original(*arguments, **keywords)
    if keywords['names'] is not None:
      result.outputs['y'][0, 0, 0] += 1
    return result

  monkeypatch.setattr(runtime, 'run', spoilt)

  # when interleavings are tried, then it is broken,
  request = '--tokens=13 --interleavings=2 --dtype=f32 --threads=1 --ranks=2 '
  request += (
    f'--layout=3x5 --direction=forward --json={tmp_path / "determinism.json"}'
  )
  assert main.main(['determinism', *request.split()]) == cli.NO_PARITY

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
  table = interleavings.run(
    dataclasses.replace(SINGLE, fault='weight_grad_twice')
  )

  # then its tensor alone breaks it, in a command that hpmoe check takes.
  breaking_rows = {row.tensor: row for row in table.rows if row.differing_bits}
  assert set(breaking_rows) == {'d_w_gate_up'}
  first = breaking_rows['d_w_gate_up'].first_break
  assert first is not None and 'None' not in first.replay
  assert '--direction=backward' in first.replay
