"""Outputs from elsewhere are judged as the kernel itself would be."""

from collections.abc import Callable
import dataclasses
import functools
import pathlib

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import in_process
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.explain import bugs_testing
from hpmoe.parity_tests.judge import bench as bench_lib
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import failure_text
from hpmoe.parity_tests.report import report_text
from hpmoe.reference.contract import presets

CASE = case_lib.Case('both', 'tiny', ranks=2, dtype='bfloat16')
LAYOUTS = layout_text.parse_all(
  dict(
    gate_up='R N 2F, interleaved',
    y='M D',
    d_w_gate_up='E 2F D, up_gate',
    d_topk_weights='R S',
  )
)


@functools.cache
def _make_inputs(data: str, case: case_lib.Case = CASE):
  return bench_lib.Bench(case, keep=True).read_by(case.passes, data)


def _all_made(case: case_lib.Case = CASE) -> dict:
  return {data: _make_inputs(data, case) for data in inputs_lib.DATA}


@functools.cache
def _figures_in_place(kernel) -> list[dict]:
  return _figures(check.run(check.Request(CASE, _in_place(kernel))))


def _export(path, per_rank=False, layouts=None) -> folder.Folder:
  return folder_writer.write(path, 'both', _all_made(), per_rank, layouts)


def _compute(kernel, layer_inputs) -> dict[str, np.ndarray]:
  """Returns the tensors of both passes."""
  forward = kernel.forward(
    layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
  )
  read = {**layer_inputs.arrays, **forward}
  return forward | kernel.backward(
    layer_inputs.config, layer_inputs.policy, read
  )


def _in_place(kernel) -> in_process.Function:
  function = bugs_testing.function(kernel.forward, kernel.backward)
  return in_process.Function(function)


def _check(
  case: folder.Folder, out, direction='forward', names=None
) -> check.Report:
  """Checks a folder of outputs, under the names of a text."""
  path = pathlib.Path(out).with_name('names.toml')
  if names is not None:
    path.write_text(names)
  candidate = outputs.Outputs(str(out), None if names is None else str(path))
  case_spec = case_lib.Case.from_folder(case.path, direction)
  return check.run(check.Request(case_spec, candidate))


def _list_passed(report: check.Report) -> set[str]:
  return {r.stage for r in report.results if r.verdict == verdicts.PASS}


def _figures(report: check.Report) -> list[dict]:
  """Returns a report's figures of tensors, without the candidate's name."""
  rows = [dataclasses.asdict(r) for r in report.results]
  for row in rows:
    for name in ('grids', 'shares'):
      row[name] = [array.tolist() for array in row[name]]
    row['experts'] = [experts.tolist() for experts in row['experts']]
    if row['failure']:
      row['failure'] |= dict(replay='', hint='', location='')
  return rows


def _save_whole(out, case, data, tensors):
  read_case.write(str(out), read_case.load(case.path), data, tensors)


def _save_per_rank(out, case, data, tensors):
  case_data = read_case.load(case.path)
  for rank in range(CASE.ranks):
    rank_tensors = {name: array[rank] for name, array in tensors.items()}
    read_case.write(str(out), case_data, data, rank_tensors, rank)


def _save_npy(out, case, data, tensors):
  (out / data).mkdir(parents=True)
  for name, array in tensors.items():
    np.save(out / data / f'{name}.npy', array)  # bfloat16 as bare bytes


def _save_npz_widened(out, case, data, tensors):
  out.mkdir(exist_ok=True)
  wide = {name: array.astype(np.float64) for name, array in tensors.items()}
  np.savez(out / f'{data}.npz', **wide)


def _save_without_padding(out, case, data, tensors):
  """Saves each rank's valid rows alone."""
  tiling = trial.tiling(_make_inputs(data).config, _make_inputs(data).arrays)
  case_data = read_case.load(case.path)
  for rank in range(CASE.ranks):
    rank_tensors = {}
    for name, array in tensors.items():
      rows = (
        tiling.num_valid(rank)
        if array.shape[1] == tiling.config.num_rows
        else None
      )
      rank_tensors[name] = array[rank, :rows] if rows else array[rank]
    read_case.write(str(out), case_data, data, rank_tensors, rank)


def _save_with_more_padding(out, case, data, tensors):
  rows = _make_inputs(data).config.num_rows
  padded = {
    name: np.pad(a, [(0, 0), (0, 7)] + [(0, 0)] * (a.ndim - 2))
    if a.shape[1] == rows
    else a
    for name, a in tensors.items()
  }
  _save_whole(out, case, data, padded)


SAVES: tuple[Callable, ...] = (
  _save_whole,
  _save_per_rank,
  _save_npy,
  _save_npz_widened,
  _save_without_padding,
  _save_with_more_padding,
)


@pytest.mark.parametrize(
  'kernel', (trial.Kernel(), trial.Kernel(silu=1.01)), ids=('right', 'wrong')
)
@pytest.mark.parametrize('save', SAVES, ids=lambda f: f.__name__)
@pytest.mark.few(1)
def test_the_verdict_is_as_in_place(tmp_path, save, kernel):
  # given: what a kernel computed of each kind of data, in files.
  case = _export(tmp_path / 'case')
  for data in case.data:
    save(tmp_path / 'out', case, data, _compute(kernel, _make_inputs(data)))

  report = _check(case, tmp_path / 'out', 'both')

  assert _figures(report) == _figures_in_place(kernel)
  right = kernel == trial.Kernel()
  assert report.verdict == (verdicts.PASS if right else verdicts.FAIL)
  if not right:
    assert report.first_failure.stage == 'activation'


def _save_laid_out(out, case, data, tensors, layouts=LAYOUTS):
  """Saves each rank's tensors as layouts say."""
  layer_inputs = _make_inputs(data)
  layer = layer_inputs.config.dims(), layer_inputs.arrays['topk_ids']
  user_tensors = {
    n: layouts[n].split(a, *layer) if n in layouts else a
    for n, a in tensors.items()
  }
  _save_per_rank(out, case, data, user_tensors)


def test_layouts_are_undone_before_the_verdict(tmp_path):
  # given: a kernel that swaps gate and up of one expert, in its own layout.
  case = _export(tmp_path / 'case', True, LAYOUTS)
  for data in case.data:
    tensors = _compute(trial.Kernel(), _make_inputs(data))
    tensors['gate_up'][1, :3] = np.roll(tensors['gate_up'][1, :3], 16, axis=-1)
    _save_laid_out(tmp_path / 'out', case, data, tensors)

  report = _check(case, tmp_path / 'out')

  assert report.verdict == verdicts.FAIL
  first = report.first_failure
  assert (first.stage, first.rank, first.row_block) == ('gate_up', 1, 0)


def _by_arrival(rows: np.ndarray, ids: np.ndarray, seed: int):
  """Returns rows `[R, N, ...]` in no order, with the slot of each."""
  tiling = trial.tiling(_make_inputs('real').config, dict(topk_ids=ids))
  slots = np.full(rows.shape[:2], -1)
  shuffled = np.ones_like(rows)  # padding holds anything
  rng = np.random.default_rng(seed)
  for rank, rank_slots in enumerate(tiling.slot_of_row):
    place = rng.permutation(rows.shape[1])[: len(rank_slots)]
    slots[rank, place], shuffled[rank, place] = (
      rank_slots,
      rows[rank, : len(rank_slots)],
    )
  return shuffled, slots


_UNDECLARED_LAYOUTS = {
  'gate_up': (
    ('R N 2F, interleaved', "layout 'R N 2F, interleaved': is it declared"),
    ('R N 2F, up_gate', "layout 'R N 2F, up_gate': is it declared"),
    ('R N 2F, by_source', "layout 'R N 2F, by_source': is it declared"),
    ('R N 2F', ''),
  ),
  'd_w_gate_up': (('R L 2F D', "layout 'R L 2F D': is it declared"),),
  'expert_in': (
    ('R N D, by_source', "layout 'R N D, by_source': is it declared"),
  ),
  'y': (('swapped', 'rank 1 0 where 0 1 should be'),),
}


@pytest.mark.parametrize('lane', ('exact', 'real'))
@pytest.mark.parametrize('name', _UNDECLARED_LAYOUTS)
def test_a_layout_that_is_not_declared_is_named(tmp_path, name, lane):
  # given: outputs in a layout of which --names says nothing; D = 2F = 32.
  case = _export(tmp_path / 'case')
  direction = 'backward' if name.startswith('d_') else 'forward'
  for number, (text, message) in enumerate(_UNDECLARED_LAYOUTS[name]):
    out = tmp_path / str(number)
    for data in case.data if lane == 'exact' else ['real']:
      layer_inputs = _make_inputs(data)
      tensor = _compute(trial.Kernel(), layer_inputs)[name]
      if text == 'swapped':
        user_tensor = tensor[::-1]
      else:
        layer = layer_inputs.config.dims(), layer_inputs.arrays['topk_ids']
        user_tensor = layout_text.parse(name, text).apply(tensor, *layer).copy()
      if not message:
        user_tensor[:] = user_tensor[..., ::-1]
      _save_whole(out, case, data, {name: user_tensor})

    report = _check(case, out, direction)

    patterns = {
      (r.lane, r.rule): r.failure.pattern
      for r in report.results
      if r.failure and r.stage == name and r.lane != 'standard'
      if r.failure.bad_rows
    }
    assert {lane_name for lane_name, _ in patterns} & {
      lane,
      'bounded',
      'bitwise',
    }
    for words in patterns.values():
      assert words.startswith('right if read with ' + message) == bool(
        message
      ), words


# A wrong element of each layout; `layouts_test` has all elements.
_WRONG_ELEMENTS = (
  ('gate_up', 'R N 2F, interleaved', (1, 3, 21)),
  ('gate_up', 'R N 2F, by_source', (1, 3, 21)),
  ('gate_up', 'M K 2F', (1, 3, 21)),
  ('y', 'M D, pad M 40', (1, 3, 5)),
  ('y', 'D T R, float32', (1, 3, 5)),
  ('returned', 'A D, pad D 48', (1, 3, 1, 5)),
  ('d_w_gate_up', 'E 2F D, up_gate, pad F 24', (1, 1, 9, 21)),
  ('d_w_gate_up', 'R L D 2F, interleaved, pad L 5', (1, 1, 9, 21)),
  ('d_w_down', 'E D F, experts 0 1 2 3 4 5 6 7 5 -1', (1, 1, 9, 7)),
  ('d_w_down', 'F E D, experts 7 6 5 4 3 2 1 0', (1, 1, 9, 7)),
  ('d_topk_weights', 'R S, pad S 48, zeros', (1, 3, 1)),
)


@pytest.mark.parametrize(
  ('name', 'text', 'index', 'lane'),
  [(*row, ('exact', 'real')[i % 2]) for i, row in enumerate(_WRONG_ELEMENTS)],
)
@pytest.mark.few(2)
def test_a_bug_of_any_tensor_is_told_in_their_coordinates(
  tmp_path, name, text, index, lane
):
  case, out = _export(tmp_path / 'case'), tmp_path / 'out'
  layout, data = layout_text.parse(name, text), lane
  layer_inputs = _make_inputs(data)
  right = _compute(trial.Kernel(), layer_inputs)[name]
  wrong = right.copy()
  wrong[index] = 4096
  layer = layer_inputs.config.dims(), layer_inputs.arrays['topk_ids']
  user_tensor = layout.apply(wrong, *layer)
  _save_whole(out, case, data, {name: user_tensor})
  if lane == 'exact':  # real data are always judged
    good = _compute(trial.Kernel(), _make_inputs('real'))[name]
    _save_whole(out, case, 'real', {name: layout.apply(good, *layer)})

  direction = 'backward' if name.startswith('d') else 'forward'
  report = _check(case, out, direction, f'[layouts]\n{name} = "{text}"\n')

  apart = np.argwhere(user_tensor != layout.apply(right, *layer)).tolist()
  first = report.first_failure
  assert (first.stage, first.rank, first.index) == (name, 1, index)
  assert (first.lane == 'exact') == (lane == 'exact')
  file, place = first.location.split(f' {name}[', 1)
  assert file == f'{out}/{data}.safetensors'
  place_index = [[*map(int, place.split(']')[0].split(', '))]]
  assert place_index == apart[:1]
  assert f'; tile: {file} {name}[' in place
  if text == 'R N 2F, interleaved':
    begin, end = (
      trial.tiling(layer_inputs.config, layer_inputs.arrays)
      .cut(name, 1)
      .starts[:2]
    )
    assert place.endswith(f'[1, {begin}:{end}, 0:32]')
  words = failure_text.format_location(report)
  assert f'theirs    {first.location}' in words


def test_a_bug_is_told_in_the_file_of_its_rank(tmp_path):
  case, out = _export(tmp_path / 'case'), tmp_path / 'out'
  text = 'R N 2F, up_gate, pad F 24'
  wrong = _compute(trial.Kernel(), _make_inputs('real'))['gate_up']
  wrong[1, 3, 21] = 4096
  layouts = {'gate_up': layout_text.parse('gate_up', text)}
  _save_laid_out(out, case, 'real', {'gate_up': wrong}, layouts)

  names = f'[layouts]\ngate_up = "{text}"\n'
  first = _check(case, out, names=names).first_failure

  file, place = first.location.split(' gate_up[', 1)
  assert file == f'{out}/real.rank1.safetensors'
  file_tensor = read_case.as_numpy(read_case.read(file)[0]['gate_up'])
  assert file_tensor[tuple(map(int, place.split(']')[0].split(', ')))] == 4096


@pytest.mark.parametrize('text', ('R N 2F, order ids', 'M K 2F'))
def test_one_rank_of_rows_in_their_order(tmp_path, text):
  case, out = _export(tmp_path / 'case'), tmp_path / 'out'
  layer_inputs = _make_inputs('real')
  right = _compute(trial.Kernel(), layer_inputs)['gate_up']
  rows, ids = _by_arrival(right, layer_inputs.arrays['topk_ids'], 3)
  rank_tensors = dict(gate_up=rows[1], ids=ids[1])
  if 'M K' in text:
    rank_tensors = dict(gate_up=np.zeros((16, 2, 32), right.dtype))
  read_case.write(
    str(out), read_case.load(case.path), 'real', rank_tensors, rank=1
  )
  names = f'[layouts]\ngate_up = "{text}"\n'
  if 'M K' in text:
    with pytest.raises(ValueError, match='gate_up: expected all ranks with'):
      _check(case, out, names=names)
  else:
    assert _check(case, out, names=names).verdict == verdicts.PASS
    # What the other rank saved is not there for a backward pass.
    with pytest.raises(ValueError, match='direction: expected forward or back'):
      _check(case, out, 'both', names)


def test_a_tensor_of_all_ranks_beside_files_of_each(tmp_path):
  case, out = _export(tmp_path / 'case'), tmp_path / 'out'
  right = _compute(trial.Kernel(), _make_inputs('real'))
  _save_whole(out, case, 'real', {'y': right['y']})
  stages = {n: right[n] for n in ('gate_up', 'activation')}
  _save_per_rank(out, case, 'real', stages)

  report = _check(case, out)

  assert _list_passed(report) == {'gate_up', 'activation', 'y', 'layer'}
  _save_whole(out, case, 'real', {'gate_up': right['gate_up']})
  with pytest.raises(ValueError, match='gate_up of all ranks or of each'):
    _check(case, out)


CASE4 = case_lib.Case('forward', 'tiny', ranks=4, dtype='bfloat16')


@pytest.mark.parametrize(
  ('names', 'bad'),
  [
    (None, None),
    (None, 1),
    (('y',), 0),
    (('y',), 3),
    (('gate_up', 'y'), 0),
    (('gate_up', 'y'), 1),
  ],
)
def test_missing_ranks_are_not_judged(tmp_path, names, bad):
  # given: outputs of ranks 0 and 2, one of which may be wrong, as may others.
  inputs_by_data = _all_made(CASE4)
  case = folder_writer.write(tmp_path / 'case', 'forward', inputs_by_data)
  case_data = read_case.load(case.path)
  for data, layer_inputs in inputs_by_data.items():
    tensors = trial.Kernel().forward(
      layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
    )
    if bad is not None:
      # what a rank's experts compute is wrong, and with it all that follows.
      tensors['gate_up'][bad, 0, 5] *= -4
      wrong = trial.Kernel(silu=1.5).forward(
        layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
      )
      tensors['y'][bad, 3] = wrong['y'][bad, 3] * 2
    for rank in (0, 2):
      rank_tensors = {
        n: a[rank] for n, a in tensors.items() if not names or n in names
      }
      read_case.write(
        str(tmp_path / 'out'), case_data, data, rank_tensors, rank
      )

  report = _check(case, tmp_path / 'out')

  is_seen = bad == 0
  assert report.verdict == (verdicts.FAIL if is_seen else verdicts.PASS)
  if is_seen:
    assert report.first_failure.rank == 0
  for result in report.results:
    for rank in (1, 3):
      assert not any(grid.size for grid in result.grids[rank : rank + 1])
  assert 'ranks 0, 2 of 4' in report_text.format_summary(report)
  assert is_seen or {'layer', 'y'} <= _list_passed(report)


_RETURNED_NAMES = {
  'forward': (('expert_out', 'y'), ('returned',), ('activation', 'returned')),
  'backward': (('d_expert_in', 'dx'), ('d_w_down', 'd_topk_weights'), ()),
}


@pytest.mark.parametrize('direction', _RETURNED_NAMES)
@pytest.mark.parametrize(
  ('dtype', 'placement'),
  [('float32', 'before_down'), ('bfloat16', 'combine')],
)
@pytest.mark.few(2)
def test_right_ranks_pass_whatever_they_return(
  tmp_path, dtype, placement, direction
):
  # given: rank 1 of a kernel that sums in another order than the oracle.
  case_spec = case_lib.Case(
    direction, 'tiny', ranks=2, dtype=dtype, placement=placement
  )
  inputs_by_data = _all_made(case_spec)
  case = folder_writer.write(tmp_path / 'case', direction, inputs_by_data)
  for number, names in enumerate(_RETURNED_NAMES[direction]):
    out = tmp_path / str(number)
    for data, layer_inputs in inputs_by_data.items():
      run = getattr(trial.Kernel(trial.pairwise), direction)
      tensors = run(
        layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
      )
      rank_tensors = {
        n: a[1] for n, a in tensors.items() if n in names or not names
      }
      read_case.write(
        str(out), read_case.load(case.path), data, rank_tensors, rank=1
      )

    report = _check(case, out, direction)

    assert report.verdict == verdicts.PASS, names


def test_files_of_bytes_are_described(tmp_path):
  # given: of each rank its rows that hold something, as bytes after a header.
  case, out = _export(tmp_path / 'case'), tmp_path / 'out'
  tiling = trial.tiling(
    _make_inputs('real').config, _make_inputs('real').arrays
  )
  names = """
[tensors]
gate_up = "g"
[raw.g]
file = "gate_up.bin"
dtype = "bfloat16"
shape = [-1, 32]
offset = 16
[raw.y]
file = "y.bin"
dtype = "float32"
shape = [16, 32]
order = "F"
"""
  for data in case.data:
    tensors = _compute(trial.Kernel(), _make_inputs(data))
    for rank in range(CASE.ranks):
      rank_folder = out / f'{data}.rank{rank}'
      rank_folder.mkdir(parents=True)
      rows = tensors['gate_up'][rank, : tiling.num_valid(rank)]
      (rank_folder / 'gate_up.bin').write_bytes(b'x' * 16 + rows.tobytes())
      y = tensors['y'][rank].astype(np.float32)
      (rank_folder / 'y.bin').write_bytes(y.tobytes('F'))
  report = _check(case, out, names=names)

  assert _list_passed(report) == {'gate_up', 'y', 'layer'}
  assert report.verdict == verdicts.PASS
  short = out / 'real.rank1' / 'y.bin'
  short.write_bytes(short.read_bytes()[:-1])
  with pytest.raises(ValueError, match=r'y.bin: .* \[16, 32\].*got 2047 bytes'):
    _check(case, out, names=names)


def _export_tensors(tmp_path, **tensors) -> tuple[folder.Folder, pathlib.Path]:
  """Returns a case, and a folder with some tensors of real data."""
  case = _export(tmp_path / 'case')
  right = _compute(trial.Kernel(), _make_inputs('real'))
  out = tmp_path / 'out'
  selected = {n: right[n] if a is None else a for n, a in tensors.items()}
  _save_whole(out, case, 'real', selected)
  return case, out


def test_one_tensor_that_is_no_result_is_judged(tmp_path):
  case, out = _export_tensors(tmp_path, gate_up=None)
  report = _check(case, out)
  assert _list_passed(report) == {'gate_up'}
  assert report.verdict == verdicts.PASS
  unseen = {r.stage for r in report.results if r.lane == 'exact'}
  assert unseen == {'y'}  # nothing was computed from exact data


def test_names_of_others_are_mapped(tmp_path):
  case, out = _export(tmp_path / 'case'), tmp_path / 'out'
  out.mkdir()
  right = _compute(trial.Kernel(), _make_inputs('real'))
  np.savez(out / 'real.npz', **{'moe.out': right['y'], 'moe.bias': np.ones(3)})
  name_table, drop_table = (
    '[tensors]\ny = "moe.out"\n',
    '[drop]\nnames = ["*.bias"]\n',
  )
  for names, message in (
    (name_table + drop_table, ''),
    (name_table + 'gate_up = "moe.gone"\n' + drop_table, ''),
    (None, "--names, got 'moe.out'"),
    (name_table, "--names, got 'moe.bias'"),
    ('[drop]\nnames = ["moe.*"]\n', "such as 'y', got none"),
  ):
    if not message:
      assert _check(case, out, names=names).verdict == verdicts.PASS
      continue
    with pytest.raises(ValueError, match=message):
      _check(case, out, names=names)


@pytest.mark.parametrize(
  ('name', 'array', 'message'),
  [
    ('y', np.zeros((2, 16, 31)), r'y: expected \[R T D\] = \[2, 16, 32\], got'),
    ('y', np.full((2, 16, 32), 1.001), 'values of bfloat16, got float64'),
    ('y', np.zeros((2, 16, 32), bool), 'y: expected bfloat16, got bool'),
    ('y', np.zeros((2, 16, 32), int), 'y: expected bfloat16, got int64'),
    ('expert_in', np.ones((2, 99, 32)), r'expert_in: expected at most \d+ row'),
  ],
)
def test_a_tensor_that_cannot_be_it_is_refused(tmp_path, name, array, message):
  case, out = _export_tensors(tmp_path, **{name: array})
  with pytest.raises(ValueError, match=message):
    _check(case, out)


@pytest.mark.parametrize('weights', ('bfloat16', 'float32'))
def test_routing_weights_in_bfloat16_are_those_of_the_oracle(tmp_path, weights):
  # given: a kernel that rounds its routing weights to bfloat16.
  case_spec = dataclasses.replace(CASE, direction='forward', weights=weights)
  inputs_by_data = _all_made(case_spec)
  layouts = layout_text.parse_all(dict(topk_weights=f'M K, {weights}'))
  case = folder_writer.write(
    tmp_path / 'case', 'forward', inputs_by_data, layouts=layouts
  )
  for data in case.data:
    layer_inputs = case.inputs(data)
    kernel = trial.Kernel(round_weights=True)
    computed = kernel.forward(
      layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
    )
    _save_whole(tmp_path / 'out', case, data, {'y': computed['y']})

  asked_case = case_lib.Case.from_folder(case.path, 'forward')
  report = numpy_testing.check_unexplained(
    check.Request(asked_case, outputs.Outputs(str(tmp_path / 'out')))
  )

  narrow = weights == 'bfloat16'
  assert (report.verdict == verdicts.PASS) == narrow
  assert ('topk_weights' in case.facts) == narrow


@pytest.mark.parametrize('suffix', ['.safetensors', '.npz'])
def test_a_file_of_inputs_takes_the_place_of_a_case(tmp_path, suffix):
  # Given a file of inputs, and what was computed from it,
  config = dataclasses.replace(presets.get('tiny'), d_ff=24)
  layer_inputs = inputs_lib.make_inputs(config, 2)
  path = str(tmp_path / f'inputs{suffix}')
  if suffix == '.npz':
    np.savez(path, **layer_inputs.arrays)
  else:
    input_files.save_safetensors(path, layer_inputs.arrays)
  case = case_lib.Case('both', input=path)
  digest = read_case.digest(tensor_files.read(pathlib.Path(path))[0])
  candidate = outputs.Outputs(str(tmp_path))
  for digest_of_case in (digest, '0' * 64):
    answer = {'y': layer_inputs.arrays['x'], 'dx': layer_inputs.arrays['x']}
    read_case.save(
      str(tmp_path / 'real.safetensors'), answer, {'case': digest_of_case}
    )
    ready = candidate.ready(case)
    run = functools.partial(ready.run, layer_inputs.config, layer_inputs.policy)
    # when it is asked for, then it is there; of other inputs there is none,
    if digest_of_case == digest:
      assert {*run(layer_inputs.arrays)} == {'y'}
      with pytest.raises(candidates.CannotJudge, match='only real data'):
        run(layer_inputs.arrays | dict(x=layer_inputs.arrays['x'] + 1))
    # what was computed from others is refused,
    else:
      with pytest.raises(ValueError, match='got those of 000000000000'):
        run(layer_inputs.arrays)
  # and so are a backward pass on what the oracle saved, and outputs alone.
  with pytest.raises(ValueError, match='direction: expected both or forward'):
    candidate.ready(dataclasses.replace(case, direction='backward'))
  with pytest.raises(ValueError, match='outputs: expected --case or --input'):
    candidate.ready(CASE)


def test_a_case_of_real_data_alone_is_judged_in_the_other_lanes(tmp_path):
  # Given: a folder whose writer had no exact data, such as a capture.
  case = folder_writer.write(
    tmp_path / 'case', 'both', {'real': _make_inputs('real')}
  )
  _save_whole(
    tmp_path / 'out',
    case,
    'real',
    _compute(trial.Kernel(), _make_inputs('real')),
  )
  # When.
  report = _check(case, tmp_path / 'out', 'both')
  # Then.
  exact = [r for r in report.results if r.lane == 'exact']
  assert {(r.stage, r.verdict) for r in exact} == {
    ('y', verdicts.NOT_JUDGED),
    ('dx', verdicts.NOT_JUDGED),
  }
  assert {r.reason for r in exact} == {
    f'the case has no {data} data (hpmoe export writes it)'
    for data in ('exact', 'wide')
  }
  assert report.verdict == verdicts.PASS
  assert 'lane exact: the case has no exact' in report_text.format_notes(report)


def test_a_file_for_which_no_exact_data_can_be_is_judged_in_the_others():
  # Given: so few columns that no two experts differ in lane exact.
  rng = np.random.default_rng(0)
  shapes = dict(x=(1, 8, 1), w_gate_up=(1, 4, 1, 2), w_down=(1, 4, 1, 1))
  arrays = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
  arrays['topk_ids'] = np.tile(np.arange(4, dtype=np.int32), (1, 8, 1))
  arrays['topk_weights'] = rng.random((1, 8, 4), np.float32)
  # When.
  request = check.Request(
    case_lib.Case(input=arrays), _in_place(trial.Kernel())
  )
  report = check.run(request)
  # Then.
  assert report.verdict == verdicts.PASS
  whys = [r.reason for r in report.results if r.lane == 'exact']
  assert 'w_down: expected 4 distinct experts, got 2' in whys


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (
      '[tensors]\nz = "a"',
      r"expected the contract's names on the left, got \['z'\]",
    ),
    ('[renames]\ny = "a"', r"expected \[tensors\].*got \['renames'\]"),
    ('[layouts]\ny = "D F"', 'y: expected axes of'),
    ('[raw.y]\nfile = "y"', "missing 2 required .*'dtype' and 'shape'"),
    (
      '[raw.y]\nfile = "y"\ndtype = "f5"\nshape = [1]',
      "dtype: expected a name, got data type 'f5'",
    ),
    (
      '[raw.y]\nfile = "y"\ndtype = "float8_e4m3fn"\nshape = [-1, -1]',
      'shape: expected integers, at most one -1',
    ),
    ('tensors', 'names.toml'),
  ],
)
def test_a_wrong_map_is_refused_first(tmp_path, text, message):
  case, out = _export_tensors(tmp_path, y=None)
  with pytest.raises(
    ValueError, match=f'names: .*names.toml: .*{message}|{message}'
  ):
    _check(case, out, names=text)


def _list_failed(report: check.Report) -> set[str]:
  return {r.stage for r in report.results if r.verdict == verdicts.FAIL}


def _run_by_read_case(tmp_path, recomputes: bool) -> check.Report:
  """Runs a kernel whose activation is wrong and which returns no `returned`."""
  kernel, drawn_layer = trial.Kernel(), _make_inputs('real')

  def layer(inputs, config, policy):
    del config, policy
    outputs = kernel.forward(drawn_layer.config, drawn_layer.policy, inputs)
    return dict(y=outputs['y'], activation=outputs['activation'] * 2)

  def backward(inputs, config, policy):
    del config, policy
    return kernel.backward(drawn_layer.config, drawn_layer.policy, inputs)

  layer.backward, layer.activations = backward, ('swiglu',)
  backward.recomputes = recomputes
  case = _export(tmp_path / 'case')
  read_case.run(read_case.load(case.path), layer, str(tmp_path / 'out'))
  return _check(case, tmp_path / 'out', 'both')


def test_a_backward_pass_that_read_case_called_is_judged_on_what_it_read(
  tmp_path,
):
  # when: it reads the rows that the case holds, as its own were not returned
  report = _run_by_read_case(tmp_path, recomputes=False)

  assert report.config['recomputes'] is False
  assert report.first_failure.stage == 'activation'
  assert 'd_topk_weights' not in _list_failed(report)


def test_a_backward_pass_that_computes_again_is_judged_on_its_own_rows(
  tmp_path,
):
  report = _run_by_read_case(tmp_path, recomputes=True)

  assert report.config['recomputes'] is True
  assert 'd_topk_weights' in _list_failed(report)


def test_a_function_without_a_backward_pass_is_refused_before_it_runs(tmp_path):
  case = read_case.load(_export(tmp_path / 'case').path)
  with pytest.raises(ValueError, match='function: expected its backward pass'):
    read_case.run(case, lambda *arguments: 1 / 0, str(tmp_path / 'out'))
  assert not (tmp_path / 'out').exists()
