"""Dumps as msprobe lays them out, of a small model in numpy."""

import json
import pathlib
import types

import numpy as np
import pytest

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.dumps import dump_check
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.parity_tests.judge import check

_TOKENS, _EXPERTS, _TOP_K, _D, _F = 10, 4, 2, 16, 8


def _silu(gate):
  return gate / (1 + np.exp(-gate))


def _gelu(gate):
  inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
  return gate / 2 * (1 + np.tanh(inner))


def _compute_y(x, ids, weights, gate_up, down, lost_expert, form=_silu):
  y = np.zeros_like(x)
  for expert in range(_EXPERTS):
    token, slot = np.nonzero(ids == expert)
    if expert == lost_expert:
      continue
    gate, up = np.split(x[token] @ gate_up[expert].T, 2, axis=-1)
    activation = form(gate) * up
    rows = activation @ down[expert].T * weights[token, slot, None]
    np.add.at(y, token, rows)
  return y


_WEIGHTS = (
  'forward.0.parameters.gate_up_proj',
  'forward.0.parameters.down_proj',
)


def _make_config():
  return config_lib.from_hf(
    dict(
      model_type='qwen3_moe',
      vocab_size=16,
      hidden_size=_D,
      intermediate_size=_F,
      moe_intermediate_size=_F,
      num_hidden_layers=2,
      num_attention_heads=2,
      num_key_value_heads=2,
      head_dim=8,
      num_experts=_EXPERTS,
      num_experts_per_tok=_TOP_K,
      initializer_range=0.3,
      dtype='float32',
    )
  )


def _write_layer(
  folder, name, seed, lost_expert=None, lacking=(), slabs=None, form=_silu
):
  """Writes a call's tensors; returns what dump.json says of it."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(2, _TOKENS // 2, _D)).astype(np.float32)
  order = rng.permuted(np.tile(np.arange(_EXPERTS), (_TOKENS, 1)), axis=1)
  ids = order[:, :_TOP_K].astype(np.int64)
  weights = rng.random((_TOKENS, _TOP_K)).astype(np.float32)
  gate_up = rng.normal(size=(_EXPERTS, 2 * _F, _D)).astype(np.float32) / 4
  down = rng.normal(size=(_EXPERTS, _D, _F)).astype(np.float32) / 3
  if slabs is not None:
    gate_up, down = slabs
  y = _compute_y(
    x.reshape(-1, _D), ids, weights, gate_up, down, lost_expert, form
  ).reshape(x.shape)
  tensors = {
    'forward.0.input.0': x,
    'forward.0.input.1': ids,
    'forward.0.input.2': weights,
    'forward.0.parameters.gate_up_proj': gate_up,
    'forward.0.parameters.down_proj': down,
    'forward.0.output.0': y,
  }
  rows = []
  for key, array in tensors.items():
    if key in lacking:
      continue
    file = f'{name}.{key}.npy'
    np.save(folder / 'dump_tensor_data' / file, array)
    rows.append(dict(type='numpy.ndarray', data_name=file))
  return {f'{name}.forward.0': dict(input_args=rows)}


def _write_dump(top: pathlib.Path, *layers: dict, module='FooMoeExperts'):
  folder = top / 'step0' / 'rank0'
  (folder / 'dump_tensor_data').mkdir(parents=True)
  data: dict = {}
  for number, options in enumerate(layers):
    name = f'Module.model.layers.{number}.mlp.experts.{module}'
    data |= _write_layer(folder, name, number, **options)
  table = dict(task='tensor', level='L0', data=data)
  (folder / 'dump.json').write_text(json.dumps(table))
  return str(top)


class TestDump:
  def test_every_layer_is_found_and_a_lost_expert_named(self, tmp_path):
    # Given a dump of three layers, of which the second loses expert 2,
    dump = _write_dump(tmp_path, {}, dict(lost_expert=2), {})
    # when it is judged,
    rows = dump_check.check_dump(dump)
    # then each has a verdict, and the second fails at y.
    assert [row.verdict for row in rows] == ['pass', 'fail', 'pass']
    assert rows[0].call.name == 'step0/rank0 model.layers.0.mlp.experts call 0'
    failure = dump_check.find_first_failure(rows)
    assert failure is rows[1]
    assert failure.to_json()['first_failure'] == 'y'
    assert 'expert 2' in failure.to_json()['pattern']

  def test_experts_of_gemma_have_another_activation(self, tmp_path):
    for name, form, verdict in (('right', _gelu, 'pass'), ('b', _silu, 'fail')):
      dump = _write_dump(
        tmp_path / name, dict(form=form), module='Gemma4TextExperts'
      )
      (row,) = dump_check.check_dump(dump)
      assert row.verdict == verdict

  def test_what_a_dump_lacks_is_said_of_the_layer(self, tmp_path):
    dump = _write_dump(tmp_path, dict(lacking=('forward.0.input.1',)), {})
    rows = dump_check.check_dump(dump)
    assert [row.verdict for row in rows] == ['not judged', 'pass']
    assert rows[0].reason == 'the dump lacks topk_ids'

  def test_a_dump_without_weights_takes_those_of_a_folder(self, tmp_path):
    # Given a model's folder, and dumps of its two layers, the second of which
    # lost an expert,
    config = _make_config()
    params = init.init(config, 1)
    model = tmp_path / 'model'
    convert.write(model, weights_lib.of_parameters(config, params))
    layers = []
    for number, lost_expert in enumerate((None, 2)):
      prefix = f'model.layers.{number}.mlp.experts.'
      slabs = [params[f'{prefix}{n}'] for n in ('w_gate_up', 'w_down')]
      slabs = [np.asarray(s).swapaxes(1, 2) for s in slabs]
      layers.append(
        dict(slabs=slabs, lost_expert=lost_expert, lacking=_WEIGHTS)
      )
    dump = _write_dump(tmp_path / 'dump', *layers)
    # when it is judged without and with the folder,
    bare = dump_check.check_dump(dump)
    rows = dump_check.check_dump(dump, model=str(model))
    # then the folder's weights are the layers'.
    reason = 'the dump lacks w_gate_up, w_down'
    assert [row.reason for row in bare] == [reason] * 2
    assert [row.verdict for row in rows] == ['pass', 'fail'], rows

  def test_a_module_of_the_user_s_own_is_described(self, tmp_path):
    dump = _write_dump(tmp_path / 'dump', {}, module='FusedLayer')
    with pytest.raises(ValueError, match='expected modules of a class like'):
      dump_check.check_dump(dump)
    names = tmp_path / 'names.toml'
    table = pathlib.Path(dump_layers.__file__).with_name('modules.toml')
    names.write_text(table.read_text().replace(r"'\w*Experts'", "'FusedLayer'"))
    (row,) = dump_check.check_dump(dump, str(names))
    assert row.verdict == 'pass'

  @pytest.mark.parametrize(
    ('text', 'words'),
    [
      ('[a]\nx = 3', "expected module = 'CLASS'"),
      ("[a]\nmodule = 'A'\nz = ['forward.input.0', 'M D']", 'ROLE = '),
      ('[a', 'expected a TOML file'),
    ],
  )
  def test_a_wrong_file_of_names_is_refused(self, tmp_path, text, words):
    (tmp_path / 'names.toml').write_text(text)
    with pytest.raises(ValueError, match=words):
      dump_layers.read_kinds(str(tmp_path / 'names.toml'))


def test_the_first_policy_under_which_a_layer_passes_is_that_of_all(
  tmp_path, monkeypatch
):
  # Given a run in 16 bits that rounds by the second policy of its kind, and
  # whose first and last layers are wrong,
  tensors = {
    f'Module.model.layers.{n}.mlp.experts.FooExperts.forward.0.input.0': x
    for n, x in enumerate(np.zeros((4, 2, 8), np.float16))
  }
  np.savez(tmp_path / 'step0.npz', **tensors)
  attempts = []

  def judge(call, policy, limits, **_):
    layer = int(call.path.split('.')[2])
    attempts.append((layer, *policy, limits.search_roundings))
    is_right = policy == ('hf_qwen3_moe',) and layer not in (0, 3)
    report = types.SimpleNamespace(verdict='pass' if is_right else 'fail')
    return dump_check.Verdict(call, 'forward', report, policy=policy)

  monkeypatch.setattr(dump_check, '_judge_call', judge)
  # when it is judged,
  rows = dump_check.check_dump(str(tmp_path))
  # then each is tried until a layer passes, and causes are searched for once.
  assert [row.verdict for row in rows] == ['fail', 'pass', 'pass', 'fail']
  names = dump_layers.read_kinds()[1].policies
  assert attempts == [
    *((0, name, False) for name in names),
    (0, names[0], True),
    *((1, name, False) for name in names[:2]),
    (2, names[1], False),
    *((3, names[1], is_searched) for is_searched in (False, True)),
  ]


def test_words_of_a_verdict_are_those_that_it_was_judged_under(
  tmp_path, monkeypatch
):
  # Given a backward run whose routing weights and their gradient are in 16
  # bits,
  tensors = _read_layer(tmp_path / 'layer')
  name = next(iter(tensors)).partition('.forward')[0]
  places = {'input.0': 'output.0', 'output.0': 'input.0', 'output.1': 'input.2'}
  for place, forward in places.items():
    tensors[f'{name}.backward.0.{place}'] = tensors[
      f'{name}.forward.0.{forward}'
    ]
  halves = {
    n: a.astype(np.float16) for n, a in tensors.items() if a.dtype != int
  }
  _save_place(tmp_path / 'dump' / 'step0.npz', tensors | halves)
  cases = []

  def run(request):
    cases.append(request.case)
    return check.Report({}, (), 0.0)

  monkeypatch.setattr(check, 'run', run)
  # when it is judged, and once more under the words of its verdict,
  (row,) = dump_check.check_dump(str(tmp_path / 'dump'))
  (second_row,) = dump_check.check_dump(
    str(tmp_path / 'dump'), policy=row.policy
  )
  # then both times all of them were asked for.
  assert row.policy == (
    *('torch_grouped_mm', 'd_topk_weights=float16', 'd_weighted=storage'),
  )
  assert second_row.policy == row.policy
  assert {case.policy for case in cases} == {row.policy}


def _split_experts(tensors: dict, rank: int) -> dict:
  """Returns what a rank's dump has of a layer whose experts lie on two."""
  tokens, own = slice(5 * rank, 5 * rank + 5), slice(2 * rank, 2 * rank + 2)
  result = {}
  for name, array in tensors.items():
    rows = array if 'parameters' in name else array.reshape(-1, array.shape[-1])
    result[name] = rows[own if 'parameters' in name else tokens]
  return result


def _save_place(path: pathlib.Path, tensors: dict) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  np.savez(path, **tensors)


def _read_layer(top: pathlib.Path, **options) -> dict:
  """Returns the tensors of a layer, under their names."""
  folder = pathlib.Path(_write_dump(top, options)) / 'step0/rank0'
  files = sorted((folder / 'dump_tensor_data').iterdir())
  return {file.stem: np.load(file) for file in files}


class TestPlaces:
  @pytest.mark.parametrize('lost_expert', [None, 3])
  def test_experts_of_two_ranks_are_joined(self, tmp_path, lost_expert):
    # Given two steps, in each of which two ranks hold half of the experts,
    for step in (10, 2):
      tensors = _read_layer(tmp_path / f'{step}', lost_expert=lost_expert)
      for rank in (0, 1):
        path = tmp_path / 'dump' / f'step{step}' / f'rank{rank}.npz'
        _save_place(path, _split_experts(tensors, rank))
    # when the dump is judged,
    rows = dump_check.check_dump(str(tmp_path / 'dump'))
    # then the ranks of a step are a layer, and steps are in their order.
    places = [row.call.place for row in rows]
    assert places == ['step2/rank0+rank1', 'step10/rank0+rank1']
    verdict = 'pass' if lost_expert is None else 'fail'
    assert {row.verdict for row in rows} == {verdict}, rows[0].reason
    if lost_expert is not None:
      assert rows[0].to_json()['first_failure'] == 'y'

  def test_copies_of_experts_are_groups_of_their_own(self, tmp_path):
    # Given four ranks, of which 0 and 1 hold the first experts, 2 and 3 the
    # others, and the last group's second half of tokens is wrong,
    tensors = _read_layer(tmp_path / 'layer')
    for rank, part in enumerate((0, 0, 1, 1)):
      own = _split_experts(tensors, part)
      if rank == 3:
        own = {n: a * 2 if 'output' in n else a for n, a in own.items()}
      _save_place(tmp_path / 'dump' / f'rank{rank}.npz', own)
    rows = dump_check.check_dump(str(tmp_path / 'dump'))
    assert [row.call.place for row in rows] == ['rank0+rank2', 'rank1+rank3']
    assert [row.verdict for row in rows] == ['pass', 'fail']

  def test_ranks_that_read_the_same_tokens_are_read_once(self, tmp_path):
    tensors = _read_layer(tmp_path / 'layer')
    for rank in (0, 1):
      own = _split_experts(tensors, rank)
      whole = {n: a for n, a in tensors.items() if 'parameters' not in n}
      _save_place(tmp_path / 'dump' / f'rank{rank}.npz', own | whole)
    (row,) = dump_check.check_dump(str(tmp_path / 'dump'))
    assert row.verdict == 'pass'
    assert row.call.files['x'].read().shape == (_TOKENS, _D)

  def test_ranks_that_hold_all_experts_are_rows(self, tmp_path):
    # Given ranks that have all experts, of which the third has others,
    rng = np.random.default_rng(7)
    slabs = [
      rng.normal(size=shape).astype(np.float32) / 4
      for shape in ((_EXPERTS, 2 * _F, _D), (_EXPERTS, _D, _F))
    ]
    options = ({}, dict(lost_expert=1), dict(slabs=slabs))
    for rank, own in enumerate(options):
      tensors = _read_layer(tmp_path / f'{rank}', **own)
      _save_place(tmp_path / 'dump' / f'rank{rank}.npz', tensors)
    rows = dump_check.check_dump(str(tmp_path / 'dump'))
    assert [row.verdict for row in rows] == ['pass', 'fail', 'pass']
    assert [row.call.place for row in rows] == ['rank0', 'rank1', 'rank2']

  def test_some_layers_are_judged(self, tmp_path):
    dump = _write_dump(tmp_path, *({} for _ in range(4)))
    layers = dump_layers.parse_numbers('0,2:4')
    assert layers == {0, 2, 3}
    rows = dump_check.check_dump(dump, layers=layers)
    assert [dump_layers.find_number(row.call.path) for row in rows] == [0, 2, 3]
    with pytest.raises(ValueError, match='layers: expected numbers of MoE'):
      dump_check.check_dump(dump, layers=frozenset({7}))

  def test_what_msprobe_was_asked_for_is_no_dump(self, tmp_path):
    (tmp_path / 'dump.json').write_text('{"task": "tensor", "step": []}')
    refusal = r"which has a key data, got \['step', 'task'\]"
    with pytest.raises(ValueError, match=refusal):
      dump_check.check_dump(str(tmp_path))

  @pytest.mark.parametrize('text', ['', '3-5', '5:3', '4:4', 'x', '1,,2'])
  def test_other_texts_of_layers_are_refused(self, text):
    with pytest.raises(ValueError, match='layers: expected numbers and ranges'):
      dump_layers.parse_numbers(text)


class TestCommand:
  def test_one_call(self, tmp_path, capsys):
    assert main.main(['check', f'--dump={_write_dump(tmp_path, {})}']) == 0
    assert '\n1 call of MoE layers: 1 pass\n' in capsys.readouterr().out

  def test_a_row_for_each_call_and_the_failure(self, tmp_path, capsys):
    dump = _write_dump(tmp_path / 'dump', {}, dict(lost_expert=0))
    json_path = tmp_path / 'out.json'
    png_path = tmp_path / 'out.png'
    paths = [f'--json={json_path}', f'--png={png_path}']
    code = main.main(['check', f'--dump={dump}', *paths])
    text = capsys.readouterr().out
    assert code == cli.NO_PARITY
    assert '2 calls of MoE layers: 1 pass, 1 fail' in text
    assert 'first failure: y' in text
    calls = json.loads(json_path.read_text())['calls']
    assert [call['verdict'] for call in calls] == ['pass', 'fail']
    assert calls[0]['shares']['y'] < 1 < calls[1]['shares']['y']
    assert png_path.read_bytes()[1:4] == b'PNG'

  @pytest.mark.parametrize(
    ('words', 'text'),
    [
      (['--dump={}'], 'dump: expected a folder with a dump.json'),
      (['--dump={}', '--preset=tiny'], 'preset: expected'),
      (['--dump={}', '--dump_model={}'], 'dump_model: '),
      (['--dump_model={}'], 'dump_model: expected --dump with it'),
      (['--layers=1'], 'layers: expected --dump with it'),
    ],
  )
  @pytest.mark.few(3)
  def test_a_wrong_request_is_a_line(self, tmp_path, capsys, words, text):
    words = [word.format(tmp_path) for word in words]
    assert main.main(['check', *words]) == cli.WRONG_REQUEST
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert text in line and len(line) < 300
