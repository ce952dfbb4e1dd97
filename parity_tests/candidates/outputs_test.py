"""Outputs from elsewhere are judged as the kernel itself would be."""

from collections.abc import Callable
import dataclasses
import functools
import pathlib

import numpy as np
import pytest

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import outputs
from hpmoe.parity_tests.candidates import outputs_testing
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import folder
from hpmoe.parity_tests.case import folder_writer
from hpmoe.parity_tests.case import input_files
from hpmoe.parity_tests.case import inputs as inputs_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.case import tensor_files
from hpmoe.parity_tests.case.layouts import layout_text
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import numpy_testing
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.report import report_text
from hpmoe.reference.contract import presets


@functools.cache
def _figures_in_place(kernel) -> list[dict]:
  return outputs_testing.list_figures(
    check.run(
      check.Request(outputs_testing.CASE, outputs_testing.run_in_place(kernel))
    )
  )


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
  tiling = trial.tiling(
    outputs_testing.make_inputs(data).config,
    outputs_testing.make_inputs(data).arrays,
  )
  case_data = read_case.load(case.path)
  for rank in range(outputs_testing.CASE.ranks):
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
  rows = outputs_testing.make_inputs(data).config.num_rows
  padded = {
    name: np.pad(a, [(0, 0), (0, 7)] + [(0, 0)] * (a.ndim - 2))
    if a.shape[1] == rows
    else a
    for name, a in tensors.items()
  }
  outputs_testing.save_whole(out, case, data, padded)


SAVES: tuple[Callable, ...] = (
  outputs_testing.save_whole,
  outputs_testing.save_per_rank,
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
  case = outputs_testing.export(tmp_path / 'case')
  for data in case.data:
    save(
      tmp_path / 'out',
      case,
      data,
      outputs_testing.compute(kernel, outputs_testing.make_inputs(data)),
    )

  report = outputs_testing.check_outputs(case, tmp_path / 'out', 'both')

  assert outputs_testing.list_figures(report) == _figures_in_place(kernel)
  right = kernel == trial.Kernel()
  assert report.verdict == (verdicts.PASS if right else verdicts.FAIL)
  if not right:
    assert report.first_failure.stage == 'activation'


def test_a_tensor_of_all_ranks_beside_files_of_each(tmp_path):
  case, out = outputs_testing.export(tmp_path / 'case'), tmp_path / 'out'
  right = outputs_testing.compute(
    trial.Kernel(), outputs_testing.make_inputs('real')
  )
  outputs_testing.save_whole(out, case, 'real', {'y': right['y']})
  stages = {n: right[n] for n in ('gate_up', 'activation')}
  outputs_testing.save_per_rank(out, case, 'real', stages)

  report = outputs_testing.check_outputs(case, out)

  assert outputs_testing.list_passed(report) == {
    'gate_up',
    'activation',
    'y',
    'layer',
  }
  outputs_testing.save_whole(out, case, 'real', {'gate_up': right['gate_up']})
  with pytest.raises(ValueError, match='gate_up of all ranks or of each'):
    outputs_testing.check_outputs(case, out)


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
@pytest.mark.few(3)
def test_missing_ranks_are_not_judged(tmp_path, names, bad):
  # given: outputs of ranks 0 and 2, one of which may be wrong, as may others.
  inputs_by_data = outputs_testing.make_all_inputs(CASE4)
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

  report = outputs_testing.check_outputs(case, tmp_path / 'out')

  is_seen = bad == 0
  assert report.verdict == (verdicts.FAIL if is_seen else verdicts.PASS)
  if is_seen:
    assert report.first_failure.rank == 0
  for result in report.results:
    for rank in (1, 3):
      assert not any(grid.size for grid in result.grids[rank : rank + 1])
  assert 'ranks 0, 2 of 4' in report_text.format_summary(report)
  assert is_seen or {'layer', 'y'} <= outputs_testing.list_passed(report)


_RETURNED_NAMES = {
  'forward': (('expert_out', 'y'), ('returned',), ('activation', 'returned')),
  'backward': (('d_expert_in', 'dx'), ('d_w_down', 'd_topk_weights'), ()),
}


@pytest.mark.parametrize('direction', _RETURNED_NAMES)
@pytest.mark.parametrize(
  ('dtype', 'placement'),
  [('float32', 'before_down'), ('bfloat16', 'combine')],
)
@pytest.mark.few(1)
def test_right_ranks_pass_whatever_they_return(
  tmp_path, dtype, placement, direction
):
  # given: rank 1 of a kernel that sums in another order than the oracle.
  case_spec = case_lib.Case(
    direction, 'tiny', ranks=2, dtype=dtype, placement=placement
  )
  inputs_by_data = outputs_testing.make_all_inputs(case_spec)
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

    report = outputs_testing.check_outputs(case, out, direction)

    assert report.verdict == verdicts.PASS, names


def test_files_of_bytes_are_described(tmp_path):
  # given: of each rank its rows that hold something, as bytes after a header.
  case, out = outputs_testing.export(tmp_path / 'case'), tmp_path / 'out'
  tiling = trial.tiling(
    outputs_testing.make_inputs('real').config,
    outputs_testing.make_inputs('real').arrays,
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
    tensors = outputs_testing.compute(
      trial.Kernel(), outputs_testing.make_inputs(data)
    )
    for rank in range(outputs_testing.CASE.ranks):
      rank_folder = out / f'{data}.rank{rank}'
      rank_folder.mkdir(parents=True)
      rows = tensors['gate_up'][rank, : tiling.num_valid(rank)]
      (rank_folder / 'gate_up.bin').write_bytes(b'x' * 16 + rows.tobytes())
      y = tensors['y'][rank].astype(np.float32)
      (rank_folder / 'y.bin').write_bytes(y.tobytes('F'))
  report = outputs_testing.check_outputs(case, out, names=names)

  assert outputs_testing.list_passed(report) == {'gate_up', 'y', 'layer'}
  assert report.verdict == verdicts.PASS
  short = out / 'real.rank1' / 'y.bin'
  short.write_bytes(short.read_bytes()[:-1])
  with pytest.raises(ValueError, match=r'y.bin: .* \[16, 32\].*got 2047 bytes'):
    outputs_testing.check_outputs(case, out, names=names)


def _export_tensors(tmp_path, **tensors) -> tuple[folder.Folder, pathlib.Path]:
  """Returns a case, and a folder with some tensors of real data."""
  case = outputs_testing.export(tmp_path / 'case')
  right = outputs_testing.compute(
    trial.Kernel(), outputs_testing.make_inputs('real')
  )
  out = tmp_path / 'out'
  selected = {n: right[n] if a is None else a for n, a in tensors.items()}
  outputs_testing.save_whole(out, case, 'real', selected)
  return case, out


def test_one_tensor_that_is_no_result_is_judged(tmp_path):
  case, out = _export_tensors(tmp_path, gate_up=None)
  report = outputs_testing.check_outputs(case, out)
  assert outputs_testing.list_passed(report) == {'gate_up'}
  assert report.verdict == verdicts.PASS
  unseen = {r.stage for r in report.results if r.lane == 'exact'}
  assert unseen == {'y'}  # nothing was computed from exact data


def test_names_of_others_are_mapped(tmp_path):
  case, out = outputs_testing.export(tmp_path / 'case'), tmp_path / 'out'
  out.mkdir()
  right = outputs_testing.compute(
    trial.Kernel(), outputs_testing.make_inputs('real')
  )
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
      assert (
        outputs_testing.check_outputs(case, out, names=names).verdict
        == verdicts.PASS
      )
      continue
    with pytest.raises(ValueError, match=message):
      outputs_testing.check_outputs(case, out, names=names)


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
    outputs_testing.check_outputs(case, out)


@pytest.mark.parametrize('weights', ('bfloat16', 'float32'))
def test_routing_weights_in_bfloat16_are_those_of_the_oracle(tmp_path, weights):
  # given: a kernel that rounds its routing weights to bfloat16.
  case_spec = dataclasses.replace(
    outputs_testing.CASE, direction='forward', weights=weights
  )
  inputs_by_data = outputs_testing.make_all_inputs(case_spec)
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
    outputs_testing.save_whole(
      tmp_path / 'out', case, data, {'y': computed['y']}
    )

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
    candidate.ready(outputs_testing.CASE)


def test_a_case_of_real_data_alone_is_judged_in_the_other_lanes(tmp_path):
  # Given: a folder whose writer had no exact data, such as a capture.
  case = folder_writer.write(
    tmp_path / 'case', 'both', {'real': outputs_testing.make_inputs('real')}
  )
  outputs_testing.save_whole(
    tmp_path / 'out',
    case,
    'real',
    outputs_testing.compute(
      trial.Kernel(), outputs_testing.make_inputs('real')
    ),
  )
  # When.
  report = outputs_testing.check_outputs(case, tmp_path / 'out', 'both')
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
    case_lib.Case(input=arrays), outputs_testing.run_in_place(trial.Kernel())
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
    outputs_testing.check_outputs(case, out, names=text)


def _list_failed(report: check.Report) -> set[str]:
  return {r.stage for r in report.results if r.verdict == verdicts.FAIL}


def _run_by_read_case(tmp_path, recomputes: bool) -> check.Report:
  """Runs a kernel whose activation is wrong and which returns no `returned`."""
  kernel, drawn_layer = trial.Kernel(), outputs_testing.make_inputs('real')

  def layer(inputs, config, policy):
    del config, policy
    outputs = kernel.forward(drawn_layer.config, drawn_layer.policy, inputs)
    return dict(y=outputs['y'], activation=outputs['activation'] * 2)

  def backward(inputs, config, policy):
    del config, policy
    return kernel.backward(drawn_layer.config, drawn_layer.policy, inputs)

  layer.backward, layer.activations = backward, ('swiglu',)
  backward.recomputes = recomputes
  case = outputs_testing.export(tmp_path / 'case')
  read_case.run(read_case.load(case.path), layer, str(tmp_path / 'out'))
  return outputs_testing.check_outputs(case, tmp_path / 'out', 'both')


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
  case = read_case.load(outputs_testing.export(tmp_path / 'case').path)
  with pytest.raises(ValueError, match='function: expected its backward pass'):
    read_case.run(case, lambda *arguments: 1 / 0, str(tmp_path / 'out'))
  assert not (tmp_path / 'out').exists()
