"""Two engines' runs of one model: where they part, and why."""

import json
import pathlib

import ml_dtypes
import numpy as np
import pytest

from hpmoe.models import golden_testing as golden
from hpmoe.parity_tests.agreement import agreement
from hpmoe.parity_tests.agreement import agreement_report
from hpmoe.parity_tests.agreement import agreement_testing as testing
from hpmoe.parity_tests.agreement import choices as choices_lib
from hpmoe.parity_tests.agreement import replay
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main
from hpmoe.parity_tests.compare import run_testing
from hpmoe.parity_tests.compare import scores as scores_lib

LAYER = testing.LAYER
GATE, EXPERTS = f'{LAYER}.mlp.gate', f'{LAYER}.mlp.experts'


@pytest.fixture(scope='module')
def top(tmp_path_factory) -> pathlib.Path:
  """Returns a folder with a model."""
  folder = tmp_path_factory.mktemp('agreement')
  testing.write_model(folder / 'model')
  return folder


@pytest.fixture(scope='module')
def left(top) -> testing.Tensors:
  """Returns a run in float32."""
  return testing.compute_run(top / 'model')


@pytest.fixture(scope='module')
def right(top) -> testing.Tensors:
  """Returns a run in bfloat16."""
  return testing.compute_run(top / 'model', 'bfloat16')


def _compare(folder, left, right, calls=(24,), **options):
  paths = [folder / side / 'run.safetensors' for side in ('left', 'right')]
  return agreement.compare(
    testing.write_file(paths[0], left),
    testing.write_file(paths[1], right, calls),
    agreement.Options(**options),
  )


def _list_faults(result: agreement.Result) -> list[str]:
  return [f'{layer}: {text}' for _, layer, text in result.faults]


class TestRoundedRuns:
  @pytest.mark.slow
  def test_rounding_explains_other_experts(self, tmp_path, left, right):
    result = _compare(tmp_path, left, right)
    assert result.verdict == 'pass', _list_faults(result)
    assert result.rule == 'softmax'
    reasons = [reason for row in result.rows for reason in row.choices.reasons]
    assert reasons and {*reasons} <= {choices_lib.TIE, choices_lib.UPSTREAM}
    ids = [
      [
        np.sort(side[f'model.layers.{n}.mlp.experts', 'input.1'])
        for n in (0, 1)
      ]
      for side in (left, right)
    ]
    for number, row in enumerate(result.rows):
      is_other = (ids[0][number] != ids[1][number]).any(-1)
      assert np.array_equal(row.choices.is_other, is_other)
      assert row.choices.near_ties is not None
      assert row.choices.near_ties < 0.2 * row.tokens
      assert row.alone <= 1

  def test_a_right_run_with_more_bits_than_the_left(
    self, tmp_path, left, right
  ):
    # Given the float32 run as the candidate, with its own weights or none,
    names = {EXPERTS, f'{LAYER.replace("1", "0")}.mlp.experts'}
    bare_run = {
      key: array
      for key, array in left.items()
      if key[0] not in names or 'parameters' not in key[1]
    }
    assert len(bare_run) < len(left)
    for candidate in (left, bare_run):
      # then its experts are right.
      result = _compare(tmp_path, right, candidate)
      assert result.verdict == 'pass', _list_faults(result)
      assert all(row.alone <= 1 for row in result.rows)

  def test_narrow_weights_of_both_leave_the_limit_of_y(self, tmp_path, top):
    # Given runs in float32 with the same weights in bfloat16,
    def round_weights(params):
      for name, array in params.items():
        wide = np.asarray(array)
        params[name] = wide.astype(ml_dtypes.bfloat16).astype(wide.dtype)

    run = testing.compute_run(top / 'model', change=round_weights)
    run = {
      key: array.astype(ml_dtypes.bfloat16) if 'parameters' in key[1] else array
      for key, array in run.items()
    }
    key = EXPERTS, 'output.0'
    scaled_run = run | {key: run[key] * np.float32(1.001)}
    # then an error that bfloat16 would explain is one.
    assert _compare(tmp_path, run, run).verdict == 'pass'
    result = _compare(tmp_path, run, scaled_run)
    assert f'{LAYER}.mlp: experts: ' in ' '.join(_list_faults(result))

  @pytest.mark.slow
  def test_the_first_other_expert_is_placed(self, tmp_path, left, right):
    result = _compare(tmp_path, left, right)
    (place,) = result.places
    row = place.first
    assert row is not None and row.first is not None
    ids = [s[f'{row.name}.experts', 'input.1'] for s in (left, right)]
    token, slot = row.first.token, row.first.slot
    assert ids[0][token, slot] not in ids[1][token]
    assert {*ids[0][token, :slot]} <= {*ids[1][token]}
    text = agreement_report.format_tables(result)
    sequence, position = divmod(token, testing.TOKENS.shape[1])
    assert f'sequence {sequence}, token {position}, slot {slot}: left' in text

  def test_log_probabilities_are_those_of_the_logits(
    self, tmp_path, left, right
  ):
    (place,) = _compare(tmp_path, left, right).places
    logits = [s['lm_head', 'output.0'].astype(float) for s in (left, right)]
    logs = [
      (s - np.log(np.exp(s).sum(-1, keepdims=True)))[:, :-1] for s in logits
    ]
    targets = testing.TOKENS[:, 1:, None]
    apart = np.subtract(*(np.take_along_axis(s, targets, -1) for s in logs))
    shares = place.shares
    assert shares is not None and shares.tokens == targets.size
    assert shares.mean == pytest.approx(np.abs(apart).mean())
    assert shares.most_ratio == pytest.approx(np.exp(-apart).max())
    expected = scores_lib.measure(
      testing.TOKENS.astype(np.int32), 4, *(lambda t, s=s: s for s in logits)
    )
    assert shares.divergence == pytest.approx(expected.divergence)
    # The last bits are those of another order of sums.
    sizes = np.abs(apart[..., 0])
    assert shares.largest == pytest.approx(sizes.max())
    sequence, position = np.unravel_index(sizes.argmax(), sizes.shape)
    assert place.rows.name(shares.place) == (
      f'sequence {sequence}, token {position + 1}'
    )

  @pytest.mark.parametrize('calls', [(20, 1, 1, 1, 1), (10, 14), (22, 1)])
  def test_calls_that_cut_the_tokens_otherwise(
    self, tmp_path, left, right, calls
  ):
    # Given an engine that prefills, and then decodes, perhaps not all tokens,
    whole = _compare(tmp_path / 'whole', left, right)
    cut = _compare(tmp_path / 'cut', left, right, calls)
    # then the tokens of both are compared.
    length = sum(calls)
    present = np.arange(testing.TOKENS.size) % testing.TOKENS.shape[1] < length
    for row, expected in zip(cut.rows, whole.rows, strict=True):
      is_other = expected.choices.is_other[present]
      assert np.array_equal(row.choices.is_other, is_other)
    assert cut.verdict == 'pass'

  @pytest.mark.slow
  def test_groups_and_a_bias_are_those_of_the_model(self, tmp_path):
    # Given runs of a DeepSeek-V3, whose bias no dump has,
    model = testing.write_model(tmp_path / 'model', 'deepseek_v3')
    runs = [
      testing.compute_run(model, dtype) for dtype in ('float32', 'bfloat16')
    ]
    options = dict(model=str(model), layers=frozenset({1}))
    # when the model is named, then its rule is the router's,
    result = _compare(tmp_path, *runs, **options)
    rule = 'deepseek_v3:groups=2:top_groups=1:scale=2.5'
    assert result.rule == rule
    # whose scores this run has in bfloat16.
    (fault,) = _list_faults(result)
    assert '--router=RULE:dtype=bfloat16' in fault
    narrow = f'{rule}:dtype=bfloat16'
    result = _compare(tmp_path, *runs, router=narrow, **options)
    assert result.verdict == 'pass', _list_faults(result)
    bare = _compare(tmp_path / 'bare', *runs)
    assert bare.verdict == 'not judged' and 'a bias or groups' in bare.reason

  @pytest.mark.slow
  def test_a_model_that_runs_here_stands_for_a_dump(
    self, top, tmp_path, left, right
  ):
    folder = testing.write_file(tmp_path / 'right' / 'a.safetensors', right)
    own = agreement.compare(
      f'model:{top}/model', folder, agreement.Options(dtype='float32')
    )
    expected = _compare(tmp_path, left, right)
    for row, other in zip(own.rows, expected.rows, strict=True):
      assert np.array_equal(row.choices.is_other, other.choices.is_other)
      assert row.y_replayed == pytest.approx(other.y_replayed, rel=1e-3)


class TestReplay:
  def test_of_a_run_with_other_ids_rounding_is_left(self, tmp_path, left):
    # Given a run whose second layer sends 30 tokens to other experts,
    other = dict(left)
    ids = left[EXPERTS, 'input.1'].copy()
    for token in range(30):
      ids[token, 1] = next(e for e in range(8) if e not in ids[token])
    slabs = [testing.read_weight(left, r) for r in ('w_gate_up', 'w_down')]
    logits = left[GATE, 'output.0'].reshape(-1, 8).astype(float)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    weights = np.take_along_axis(shares, ids, -1)
    x = left[EXPERTS, 'input.0'].reshape(-1, 32)
    y, _ = replay.compute_y(x, ids, weights, *slabs)
    shape = left[EXPERTS, 'output.0'].shape
    other |= {
      (EXPERTS, 'input.1'): ids,
      (EXPERTS, 'input.2'): weights.astype(np.float32),
      (EXPERTS, 'output.0'): y.astype(np.float32).reshape(shape),
    }
    # when its layer is compared,
    row = _compare(tmp_path, left, other).rows[1]
    # then the left's routing makes of it what the left has.
    assert int(row.choices.is_other.sum()) == 30
    assert row.y_apart > 0.1
    assert row.y_replayed < 1e-6
    assert row.choices.count(choices_lib.UNEXPLAINED) >= 29

  def test_of_a_whole_model_the_decoder_is_told_the_ids(
    self, top, tmp_path, left
  ):
    # Given two runs, of which the second chooses otherwise in layer 1,
    def change(params):
      gate = params[f'{GATE}.weight']
      gate[[0, 1]] = gate[[1, 0]]

    other = testing.compute_run(top / 'model', change=change)
    # when the decoder replays the routing of both,
    result = _compare(tmp_path, left, other, model=str(top / 'model'))
    whole = result.places[0].replay
    # then routing makes all of the difference, but that the second weighs its
    # experts by the scores of is_other.
    assert whole is not None
    assert whole.runs > 0.01
    assert whole.rest < 0.75 * whole.runs
    equal = _compare(tmp_path / 'same', left, left, model=str(top / 'model'))
    assert equal.places[0].replay is not None
    assert equal.places[0].replay.routing == 0


def _exchange_rows(params):
  gate = params[f'{GATE}.weight']
  gate[[0, 1]] = gate[[1, 0]]


def _change_router(params):
  params[f'{GATE}.weight'][5] *= 1.5


def _exchange_experts(params):
  for role in ('w_gate_up', 'w_down'):
    slabs = params[f'{EXPERTS}.{role}']
    slabs[[3, 4]] = slabs[[4, 3]]


def _exchange_both(params):
  _exchange_experts(params)
  gate = params[f'{GATE}.weight']
  gate[[3, 4]] = gate[[4, 3]]


def _scale_norm(params):
  params[f'{LAYER}.post_attention_layernorm.weight'] *= 1.3


WRONG_WEIGHTS = {
  'rows': (_exchange_rows, f'{LAYER}.mlp: router weights: rows 0 and 1 are'),
  'router': (
    _change_router,
    f'{LAYER}.mlp: router weights: rows 5 of 8 differ, relative distance 0.5',
  ),
  'experts': (
    _exchange_experts,
    f'{LAYER}.mlp: expert weights: experts 3 and 4 are exchanged, but the '
    'router is not',
  ),
  'norm': (_scale_norm, f'{LAYER}.mlp: its input differs by 0.'),
}


class TestWrongRuns:
  @pytest.mark.parametrize('name', WRONG_WEIGHTS)
  def test_a_wrong_weight_is_named(self, top, tmp_path, left, name):
    change, text = WRONG_WEIGHTS[name]
    wrong = testing.compute_run(top / 'model', 'bfloat16', change)
    result = _compare(tmp_path, left, wrong)
    assert result.verdict == 'fail'
    assert _list_faults(result)[0].startswith(text)

  def test_experts_and_router_in_another_order_are_right(
    self, top, tmp_path, left, right
  ):
    other = testing.compute_run(top / 'model', 'bfloat16', _exchange_both)
    result = _compare(tmp_path, left, other)
    assert result.verdict == 'pass', _list_faults(result)
    assert result.rows[1].notes[0] == (
      'rows 3 and 4 are exchanged, alike in experts and router'
    )
    expected = _compare(tmp_path / 'same', left, right)
    assert np.array_equal(
      result.rows[1].choices.is_other, expected.rows[1].choices.is_other
    )

  def test_experts_that_no_dump_holds_are_wrong_by_their_y(
    self, top, tmp_path, left
  ):
    wrong = testing.compute_run(top / 'model', 'bfloat16', _exchange_experts)
    runs = [
      {s: a for s, a in run.items() if not s[1].startswith('parameters')}
      for run in (left, wrong)
    ]
    bare = _compare(tmp_path / 'bare', *runs)
    assert bare.verdict == 'pass'
    assert any('no weights of all experts' in n for n in bare.rows[1].notes)
    result = _compare(tmp_path, *runs, model=str(top / 'model'))
    (fault,) = _list_faults(result)
    assert fault.startswith(f"{LAYER}.mlp: experts: right's y differs by")

  @pytest.mark.parametrize('side', ['left', 'right'])
  def test_a_choice_of_other_scores_is_named(self, tmp_path, left, side):
    # Given a run of which token 40 of layer 1 takes its worst expert,
    wrong = dict(left)
    ids = left[EXPERTS, 'input.1'].copy()
    logits = left[GATE, 'output.0'].reshape(-1, 8)
    ids[40, 1] = logits[40].argmin()
    wrong[EXPERTS, 'input.1'] = ids
    sides = (wrong, left) if side == 'left' else (left, wrong)
    # when they are compared, then the token, its slot and the scores are named.
    result = _compare(tmp_path, *sides, router='softmax')
    row = result.rows[1]
    assert row.choices.reasons == (choices_lib.UNEXPLAINED,)
    assert row.first is not None
    assert (row.first.token, row.first.slot) == (40, 1)
    fault = _list_faults(result)[0]
    assert f'router of {side}: ignores its own logits in 1 tokens' in fault
    assert f'token 40: chose expert {ids[40, 1]}' in fault

  def test_logits_of_something_else_are_named(self, tmp_path, left):
    wrong = dict(left)
    logits = left[GATE, 'output.0'].copy()
    logits[..., 6] += np.float32(1e-3)
    wrong[GATE, 'output.0'] = logits
    faults = _list_faults(_compare(tmp_path, left, wrong))
    assert "its logits do not follow from the router's input" in faults[0]
    assert 'token 0, expert 6' in faults[0]

  def test_without_scores_nothing_is_explained(self, tmp_path, left, right):
    runs = [
      {s: a for s, a in run.items() if '.gate' not in s[0]}
      for run in (left, right)
    ]
    result = _compare(tmp_path, *runs)
    assert result.verdict == 'not judged'
    text = agreement_report.conclude(result)
    assert 'the dump lacks router logits' in text

  def test_other_tokens_are_refused(self, tmp_path, left):
    other = dict(left)
    tokens = testing.TOKENS.copy()
    tokens[2, 5] += 1
    other['model.embed_tokens', 'input.0'] = tokens
    with pytest.raises(ValueError, match='token 5 of sequence 2'):
      _compare(tmp_path, left, other)


class TestCommand:
  def test_a_table_a_picture_and_the_rows(self, tmp_path, capsys, left, right):
    # Given runs of two steps and ranks, in msprobe's tree and in files,
    for step in ('step2', 'step10'):
      run_testing.write_dump(tmp_path / 'left' / step, left)
      path = tmp_path / 'right' / f'{step}.rank0.safetensors'
      testing.write_file(path, right)
    folders = [f'dump:{tmp_path}/{side}' for side in ('left', 'right')]
    paths = [tmp_path / name for name in ('out.json', 'out.png')]
    # when they are compared,
    words = [f'--left={folders[0]}', f'--right={folders[1]}', '--layers=1']
    words += [f'--json={paths[0]}', f'--png={paths[1]}']
    assert main.main(['compare', *words]) == cli.PARITY
    # then steps are paired by number, and one layer of each is there.
    text = capsys.readouterr().out
    assert text.index('step2.rank0: 96 tokens') < text.index('step10.rank0:')
    assert 'pass: rounding explains the difference' in text
    assert 'model.layers.0' not in text
    report = json.loads(paths[0].read_text())
    assert [len(place['layers']) for place in report['places']] == [1, 1]
    assert report['places'][0]['log_probabilities']['tokens'] == 92
    assert paths[1].read_bytes()[1:4] == b'PNG'

  @pytest.mark.parametrize(
    ('words', 'text'),
    [
      (['--right=jax:host'], 'right: expected dump:DIR with --left=dump:'),
      (['--right=dump:{}/no'], 'right: expected a folder with a dump.json'),
      (['--right=dump:{}/r', '--steps=3'], 'steps: expected none'),
      (['--right=dump:{}/r', '--layers=5-8'], 'layers: expected numbers'),
      (['--right=dump:{}/r', '--layers=7'], 'layers: expected some of 0, 1'),
      (['--right=dump:{}/r', '--dtype=bfloat16'], 'dtype: expected none'),
      (['--right=dump:{}/r', '--router=x'], 'router: rule: expected one of'),
      (['--right=dump:{}/r', '--model={}'], 'model: '),
    ],
  )
  def test_a_wrong_request_is_a_line(self, tmp_path, capsys, left, words, text):
    testing.write_file(tmp_path / 'r' / 'run.safetensors', left)
    words = [word.format(tmp_path) for word in words]
    line = ['compare', f'--left=dump:{tmp_path}/r', *words]
    assert main.main(line) == cli.WRONG_REQUEST
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert text in line and len(line) < 300


@pytest.mark.parametrize(
  'family, reason',
  [
    ('ernie_plain', 'adds a bias to softmax'),
    ('gemma_plain', 'has a norm and factors'),
    ('qwen3_plain', ''),
  ],
)
def test_a_model_whose_rule_is_none_here(family, reason):
  config = golden.config(family)
  router, message = agreement.find_model_router(config)
  assert (router is None) == bool(reason) and reason in message
