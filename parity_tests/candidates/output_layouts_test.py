"""Outputs from elsewhere, in layouts of their own."""

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import outputs_testing
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import failure_text

LAYOUTS = layout_text.parse_all(
  dict(
    gate_up='R N 2F, interleaved',
    y='M D',
    d_w_gate_up='E 2F D, up_gate',
    d_topk_weights='R S',
  )
)


def _save_laid_out(out, case, data, tensors, layouts=LAYOUTS):
  """Saves each rank's tensors as layouts say."""
  layer_inputs = outputs_testing.make_inputs(data)
  layer = layer_inputs.config.dims(), layer_inputs.arrays['topk_ids']
  user_tensors = {
    n: layouts[n].split(a, *layer) if n in layouts else a
    for n, a in tensors.items()
  }
  outputs_testing.save_per_rank(out, case, data, user_tensors)


def test_layouts_are_undone_before_the_verdict(tmp_path):
  # given: a kernel that swaps gate and up of one expert, in its own layout.
  case = outputs_testing.export(tmp_path / 'case', True, LAYOUTS)
  for data in case.data:
    tensors = outputs_testing.compute(
      trial.Kernel(), outputs_testing.make_inputs(data)
    )
    tensors['gate_up'][1, :3] = np.roll(tensors['gate_up'][1, :3], 16, axis=-1)
    _save_laid_out(tmp_path / 'out', case, data, tensors)

  report = outputs_testing.check_outputs(case, tmp_path / 'out')

  assert report.verdict == verdicts.FAIL
  first = report.first_failure
  assert (first.stage, first.rank, first.row_block) == ('gate_up', 1, 0)


def _by_arrival(rows: np.ndarray, ids: np.ndarray, seed: int):
  """Returns rows `[R, N, ...]` in no order, with the slot of each."""
  tiling = trial.tiling(
    outputs_testing.make_inputs('real').config, dict(topk_ids=ids)
  )
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
@pytest.mark.few(3)
def test_a_layout_that_is_not_declared_is_named(tmp_path, name, lane):
  # given: outputs in a layout of which --names says nothing; D = 2F = 32.
  case = outputs_testing.export(tmp_path / 'case')
  direction = 'backward' if name.startswith('d_') else 'forward'
  for number, (text, message) in enumerate(_UNDECLARED_LAYOUTS[name]):
    out = tmp_path / str(number)
    for data in case.data if lane == 'exact' else ['real']:
      layer_inputs = outputs_testing.make_inputs(data)
      tensor = outputs_testing.compute(trial.Kernel(), layer_inputs)[name]
      if text == 'swapped':
        user_tensor = tensor[::-1]
      else:
        layer = layer_inputs.config.dims(), layer_inputs.arrays['topk_ids']
        user_tensor = layout_text.parse(name, text).apply(tensor, *layer).copy()
      if not message:
        user_tensor[:] = user_tensor[..., ::-1]
      outputs_testing.save_whole(out, case, data, {name: user_tensor})

    report = outputs_testing.check_outputs(case, out, direction)

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
  case, out = outputs_testing.export(tmp_path / 'case'), tmp_path / 'out'
  layout, data = layout_text.parse(name, text), lane
  layer_inputs = outputs_testing.make_inputs(data)
  right = outputs_testing.compute(trial.Kernel(), layer_inputs)[name]
  wrong = right.copy()
  wrong[index] = 4096
  layer = layer_inputs.config.dims(), layer_inputs.arrays['topk_ids']
  user_tensor = layout.apply(wrong, *layer)
  outputs_testing.save_whole(out, case, data, {name: user_tensor})
  if lane == 'exact':  # real data are always judged
    good = outputs_testing.compute(
      trial.Kernel(), outputs_testing.make_inputs('real')
    )[name]
    outputs_testing.save_whole(
      out, case, 'real', {name: layout.apply(good, *layer)}
    )

  direction = 'backward' if name.startswith('d') else 'forward'
  report = outputs_testing.check_outputs(
    case, out, direction, f'[layouts]\n{name} = "{text}"\n'
  )

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
  case, out = outputs_testing.export(tmp_path / 'case'), tmp_path / 'out'
  text = 'R N 2F, up_gate, pad F 24'
  wrong = outputs_testing.compute(
    trial.Kernel(), outputs_testing.make_inputs('real')
  )['gate_up']
  wrong[1, 3, 21] = 4096
  layouts = {'gate_up': layout_text.parse('gate_up', text)}
  _save_laid_out(out, case, 'real', {'gate_up': wrong}, layouts)

  names = f'[layouts]\ngate_up = "{text}"\n'
  first = outputs_testing.check_outputs(case, out, names=names).first_failure

  file, place = first.location.split(' gate_up[', 1)
  assert file == f'{out}/real.rank1.safetensors'
  file_tensor = read_case.as_numpy(read_case.read(file)[0]['gate_up'])
  assert file_tensor[tuple(map(int, place.split(']')[0].split(', ')))] == 4096


@pytest.mark.parametrize('text', ('R N 2F, order ids', 'M K 2F'))
def test_one_rank_of_rows_in_their_order(tmp_path, text):
  case, out = outputs_testing.export(tmp_path / 'case'), tmp_path / 'out'
  layer_inputs = outputs_testing.make_inputs('real')
  right = outputs_testing.compute(trial.Kernel(), layer_inputs)['gate_up']
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
      outputs_testing.check_outputs(case, out, names=names)
  else:
    assert (
      outputs_testing.check_outputs(case, out, names=names).verdict
      == verdicts.PASS
    )
    # What the other rank saved is not there for a backward pass.
    with pytest.raises(ValueError, match='direction: expected forward or back'):
      outputs_testing.check_outputs(case, out, 'both', names)
