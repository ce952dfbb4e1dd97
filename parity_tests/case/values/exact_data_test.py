"""Exact data: any order gives the same bits, and a fault changes them."""

import dataclasses
import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.parity_tests.cache import cache_folder
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import tiles
from hpmoe.parity_tests.case.values import exact_data
from hpmoe.parity_tests.case.values import exact_limits
from hpmoe.parity_tests.case.values import exact_proof
from hpmoe.parity_tests.judge import oracle as oracle_lib
from hpmoe.parity_tests.judge import trial_testing as trial
from hpmoe.parity_tests.judge.limits import golden_grad
from hpmoe.reference import layer
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import halved_testing
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import stable_random
from hpmoe.reference.contract import tensors
from hpmoe.reference.contract.precision import PrecisionPolicy

_TINY = presets.config(presets.get('tiny'), 2)
_SHARED = dataclasses.replace(_TINY, d_shared=12)
_EACH_STORAGE = pytest.mark.parametrize('storage', list(exact_limits.STORAGE))
# Every dtype and every placement, and one of each pair at least: an oracle is
# dear to compile.  `make sweep` runs the others.
_SOME_PAIRS = pytest.mark.parametrize(
  'storage, placement',
  halved_testing.halved(
    exact_limits.STORAGE, ['combine', 'before_down', 'input']
  ),
)
_AWKWARD = pytest.mark.parametrize(
  'sizes',
  [
    pytest.param(dict(r=1, t=1, e=2, k=1, d=32, f=16), id='one_row'),
    pytest.param(dict(r=2, t=5, e=8, k=8, d=32, f=16), id='k_equals_e'),
    pytest.param(dict(r=1, t=7, e=6, k=3, d=33, f=17), id='odd_widths'),
    pytest.param(dict(r=1, t=2, e=2, k=1, d=8192, f=16), id='wide_model'),
    pytest.param(dict(r=1, t=2, e=2, k=2, d=16, f=4096), id='wide_expert'),
    pytest.param(
      dict(r=1, t=300, e=2, k=2, d=10, f=4), id='more_rows_than_a_chunk'
    ),
  ],
)
_PLACES = pytest.mark.parametrize(
  'placement', ['combine', 'before_down', 'input']
)


def _policy(storage='float32', placement='combine'):
  return PrecisionPolicy(
    storage=storage, placement=placement, activation='absolute'
  )


def _make(config=_TINY, policy=None, routing='balanced', **options):
  routed = routings.make(routing, config)
  return exact_data.make(
    config, policy or _policy(), routed.topk_ids, **options
  )


def _run(config, policy, arrays, seed=0):
  """Returns y `[R T, D]`; products are added one by one in some order."""

  def gemm(a, b):
    order = stable_random.permutation(seed, len(b))
    return trial.ascending(a[:, order], b[order])

  y = trial.Kernel(gemm).forward(config, policy, arrays)['y']
  return y.reshape(-1, config.d_model).astype(np.float32)


class TestAnyOrder:
  @_EACH_STORAGE
  @_PLACES
  def test_permuted_sums_change_no_bit(self, storage, placement):
    policy = _policy(storage, placement)
    arrays, _ = _make(policy=policy)
    first, second = (_run(_TINY, policy, arrays, seed) for seed in (1, 2))
    assert first.any()
    assert first.tobytes() == second.tobytes()

  def test_permuted_sums_change_bits_of_other_data(self):
    # given: the same data, but x no longer integer.
    arrays, _ = _make()
    arrays['x'] = arrays['x'] * np.float32(1 / 3)
    first, second = (_run(_TINY, _policy(), arrays, seed) for seed in (1, 2))
    assert first.tobytes() != second.tobytes()

  @_SOME_PAIRS
  @pytest.mark.few(1)
  def test_oracle_gives_the_bits_of_the_serial_loop(self, storage, placement):
    policy = _policy(storage, placement)
    arrays, _ = _make(policy=policy)
    inputs = {name: jnp.asarray(array) for name, array in arrays.items()}
    y = np.asarray(layer.forward(_TINY, policy, **inputs)['y'], np.float32)
    expected = _run(_TINY, policy, arrays)
    assert y.reshape(expected.shape).tobytes() == expected.tobytes()


def _sums_of_row(x, dy, weight, w_gate_up, w_down, b_gate_up=0, b_down=0):
  """Returns the sums |a| |b| of one row of an expert, by stage."""
  gate, up = np.split(x @ w_gate_up + b_gate_up, 2)
  activation, d_out = abs(gate) * up, dy * weight
  out, grad = activation @ w_down + b_down, w_down @ d_out
  d_gate_up = np.concatenate([grad * np.sign(gate) * up, grad * abs(gate)])
  return dict(
    gate_up=abs(x) @ abs(w_gate_up) + abs(b_gate_up),
    activation=abs(activation),
    expert_out=abs(activation) @ abs(w_down) + abs(b_down),
    y=abs(out) * weight,
    d_expert_out=abs(d_out),
    d_topk_weights=abs(dy) @ abs(out),
    d_activation=abs(w_down) @ abs(d_out),
    d_w_down=abs(np.outer(activation, d_out)),
    d_gate_up=abs(d_gate_up),
    d_expert_in=abs(w_gate_up) @ abs(d_gate_up),
    d_w_gate_up=abs(np.outer(x, d_gate_up)),
    dx=abs(w_gate_up @ d_gate_up),
    d_b_gate_up=abs(d_gate_up),
    d_b_down=abs(d_out),
  )


def _largest_sums(arrays) -> dict[str, float]:
  """Returns the largest sum of each stage, by loops over tokens and slots."""
  v = {name: a.astype(np.float64) for name, a in arrays.items()}
  shared = {r: n for n, r in tensors.AS_ROUTED.items() if 'shared' in n}
  sums: dict = {}
  for rank, token in np.ndindex(arrays['topk_ids'].shape[:2]):
    rows = [('w_shared_', rank, 1.0)]
    for slot, expert in enumerate(arrays['topk_ids'][rank, token]):
      place = divmod(int(expert), _ROOMY.experts_per_rank)
      rows.append(('w_', place, v['topk_weights'][rank, token, slot]))
    for number, (prefix, place, weight) in enumerate(rows):
      names = [f'{prefix}gate_up', f'{prefix}down']
      names += ['b_gate_up', 'b_down'] if number else []
      weights = [v[name][place] for name in names]
      row = v['x'][rank, token], v['dy'][rank, token], weight
      for stage, value in _sums_of_row(*row, *weights).items():
        # Added up are rows of an expert, and those of a token.
        group = (rank, token) if stage in ('y', 'dx') else (rank, token, number)
        group = place if stage[:4] in ('d_w_', 'd_b_') else group
        if number == 0 and stage not in ('y', 'dx'):
          stage = shared.get(stage, f'none of shared {stage}')
        sums[stage, group] = sums.get((stage, group), 0) + value
  return {
    stage: max(
      value.max()
      for (sum_stage, _), value in sums.items()
      if sum_stage == stage
    )
    for stage, _ in sums
  }


class TestProve:
  @_EACH_STORAGE
  def test_bounds_are_the_largest_sums(self, monkeypatch, storage):
    # given: experts of several chunks, and shared ones; float32 bounds by a
    # second, slow way; narrow ones of the forward pass within the rounding of
    # two stages.
    monkeypatch.setattr(exact_proof, 'CHUNK_ROWS', 4)
    config = dataclasses.replace(_ROOMY, d_shared=12, bias=True)
    arrays, proof = _make(config, _policy(storage), 'hot', backward=True)
    largest = _largest_sums(arrays)
    assert proof.keys() <= largest.keys()
    for stage, bound in proof.items():
      if storage == 'float32':
        assert bound == largest[stage], stage
      elif not stage.startswith('d'):
        assert abs(bound - largest[stage]) <= 0.03 * bound, stage

  @pytest.mark.parametrize(
    ('storage', 'tensor', 'factor', 'stage', 'error', 'message'),
    [
      *(
        (storage, *row, exact_limits.ExactnessError, r'column \d')
        for storage in ('float32', 'bfloat16')
        for row in (
          ('w_gate_up', 2**17, 'gate_up'),
          ('w_gate_up', 2**6, 'activation'),
          ('w_down', 2**11, 'expert_out'),
          ('topk_weights', 2**8, 'y'),
          ('w_shared_down', 2**11, 'shared experts: expert_out'),
        )
      ),
      *(
        (
          'float16',
          *row,
          exact_limits.OverflowsError,
          'float16.* at most 65504',
        )
        for row in (
          ('w_gate_up', 2**10, 'gate_up'),
          ('w_gate_up', 2**5, 'activation'),
          ('w_down', 2**6, 'expert_out'),
          ('topk_weights', 2**6, 'y'),
        )
      ),
    ],
  )
  def test_larger_amplitude_is_refused_at_its_stage(
    self, storage, tensor, factor, stage, error, message
  ):
    policy = _policy(storage)
    arrays, _ = _make(_SHARED, policy)
    with pytest.raises(error, match=f'^{stage}: .*{message}'):
      exact_proof.prove(_SHARED, policy, _enlarged(arrays, tensor, factor))

  def test_float16_has_smaller_integers(self):
    wide, narrow = (_make(policy=_policy(s))[0] for s in ('float32', 'float16'))
    assert abs(narrow['x']).max() < abs(wide['x']).max() == exact_data.X_MAX

  @pytest.mark.parametrize(
    'name', ['x', 'topk_weights', 'w_gate_up', 'w_down', 'dy']
  )
  def test_fraction_is_refused(self, name):
    arrays, _ = _make_grad()
    place = (1,) + (0,) * (arrays[name].ndim - 1)
    arrays[name][place] += np.float32(0.5)
    with pytest.raises(
      exact_limits.ExactnessError, match=rf'^{name}: .*at \[1, 0'
    ):
      exact_proof.prove(_ROOMY, _policy(), arrays)

  @pytest.mark.parametrize('value', [2**24 - 1, 2**24])
  def test_limit_itself_is_refused(self, value):
    config, arrays = _scalars('float32', gate=value)
    del arrays['dy']
    if value < exact_limits.LIMIT:
      proof = exact_proof.prove(config, _policy(), arrays)
      assert set(proof.values()) == {value}
    else:
      with pytest.raises(
        exact_limits.ExactnessError, match='gate_up.*16777216'
      ):
        exact_proof.prove(config, _policy(), arrays)

  @pytest.mark.parametrize(
    'policy',
    [
      PrecisionPolicy(),
      PrecisionPolicy(storage='float64', activation='absolute'),
      PrecisionPolicy(accumulate='float64', activation='absolute'),
    ],
  )
  def test_policy_that_is_not_exact(self, policy):
    with pytest.raises(ValueError, match='in the exact lane, got'):
      _make(policy=policy)


class TestDiscriminating:
  @_EACH_STORAGE
  def test_each_fault_changes_most_of_the_rows_it_meets(self, storage):
    policy = _policy(storage)
    arrays, _ = _make(policy=policy)
    good = _run(_TINY, policy, arrays)
    ids = arrays['topk_ids'].reshape(-1, _TINY.top_k)
    ff, tokens = _TINY.d_ff, np.arange(_TINY.num_tokens)
    columns = np.arange(2 * ff)
    # What takes whose place, and how many tokens meet it.
    for name, place, source, num_tokens in (
      ('w_gate_up', (0, [0, 1]), (0, [1, 0]), (ids < 2).any(-1).sum()),
      ('x', (0, [2, 3]), (0, [3, 2]), 2),
      ('x', (1, 5), (1, 4), 1),
      ('x', (slice(None), tokens), (slice(None), tokens - 1), 32),
      ('topk_weights', (0, 0, 1), None, 1),
      ('topk_weights', (0, 0, [0, 1]), (0, 0, [1, 0]), 1),
      ('w_gate_up', (..., columns), (..., columns - ff), 32),
    ):
      spoilt = arrays | {name: arrays[name].copy()}
      spoilt[name][place] = 0 if source is None else arrays[name][source]
      differ = good != _run(_TINY, policy, spoilt)
      hit = differ.any(-1)
      assert hit.sum() == num_tokens, (name, place)
      assert differ[hit].mean() > 0.8, (name, place)

  @pytest.mark.parametrize('name', presets.RUNS_HERE)
  def test_every_column_of_x_and_activation_is_read(self, name):
    arrays, _ = _make(presets.config(presets.get(name), 1, 2))
    assert (arrays['w_gate_up'] != 0).any(-1).all()
    assert (arrays['w_down'] != 0).any(-1).all()

  @pytest.mark.parametrize('backward', (False, True))
  def test_tokens_that_cannot_be_told_apart_are_refused(self, backward):
    config = config_testing.make_config(r=1, t=17, e=2, k=1, d=1, f=4)
    ids = routings.make('balanced', config).topk_ids
    with pytest.raises(exact_limits.ExactnessError, match='17 distinct rows'):
      exact_data.make(config, _policy(), ids, backward=backward)

  def test_experts_that_cannot_be_told_apart_are_refused(self):
    config = config_testing.make_config(r=1, t=4, e=64, k=1, d=8, f=1)
    with pytest.raises(
      exact_limits.ExactnessError, match='64 distinct experts'
    ):
      _make(config)


class TestAwkward:
  @_AWKWARD
  @_EACH_STORAGE
  def test_proof_holds(self, sizes, storage):
    for placement, backward in itertools.product(
      ('combine', 'before_down'), (False, True)
    ):
      config, policy = (
        config_testing.make_config(**sizes),
        _policy(storage, placement),
      )
      arrays, proof = _make(config, policy, backward=backward)
      assert arrays['x'].dtype == exact_limits.STORAGE[storage]
      assert all(0 < bound < 2**24 for bound in proof.values())


class TestProved:
  def test_once_for_the_same_bits(self, tmp_path, monkeypatch):
    # given: a folder, and proofs that are counted.
    proofs_made = []
    prove = exact_proof.prove

    @functools.wraps(prove)
    def count_and_prove(*args):
      proofs_made.append(args)
      return prove(*args)

    monkeypatch.setattr(exact_proof, 'prove', count_and_prove)
    other_policy = _policy(placement='before_down')
    with cache_folder.activate(tmp_path):
      # when: data are drawn twice; then: the second ones are not proved anew.
      proofs = [_make()[1] for _ in range(2)]
      assert proofs[0] == proofs[1] and len(proofs_made) == 1
      # when: anything else decides their bits; then: they are.
      changes = (dict(seed=1), dict(policy=other_policy), dict(routing='hot'))
      for count, options in enumerate(changes, start=2):
        _make(**options)
        assert len(proofs_made) == count, options

  def test_what_is_refused_is_refused_again(self, tmp_path):
    with cache_folder.activate(tmp_path):
      for _ in range(2):
        with pytest.raises(exact_limits.ExactnessError, match='activation: '):
          _make(x_max=1023)


# tiny with a capacity that holds every routing, so that it is compiled once.
_ROOMY = presets.config(presets.get('tiny'), 2, 13, 56)
_PAIRS = pytest.mark.parametrize(
  ('storage', 'placement'),
  [('float32', 'before_down'), ('bfloat16', 'combine')],
)


def _make_grad(config=_ROOMY, policy=None, routing='hot'):
  return _make(config, policy, routing, backward=True)


def _enlarged(arrays, name, factor):
  wide = arrays[name].astype(np.float32) * factor
  return {**arrays, name: wide.astype(arrays[name].dtype)}


def _backward(policy, routing):
  """Returns (arrays, forward, gradients, tiling)."""
  arrays, _ = _make_grad(policy=policy, routing=routing)
  oracle = oracle_lib.Oracle(_ROOMY, policy, arrays)
  forward = {**arrays, **oracle.forward()}
  names = ('counts', 'row_of_slot', 'topk_ids')
  tiling = tiles.Tiling(_ROOMY, *(forward[name] for name in names))
  return forward, oracle.backward(forward, arrays['dy']), tiling


# Layers of one column, all ones but for what is said: which sum is 2^24 first.
_REACHES_LIMIT = {
  'd_expert_out': dict(dy=2**24),
  'd_activation': dict(dy=2**12, down=2**12),
  'd_topk_weights': dict(dy=2**12, x=2**6),
  'd_gate_up': dict(dy=2**12, gate=2**12, up=0),
  # Gate and up columns meet.
  'd_expert_in': dict(dy=2**23),
  'd_w_down': dict(dy=2**23, down=0, tokens=2),
  'd_w_gate_up': dict(dy=2**23, up=0, tokens=2),
  'dx': dict(dy=2**22, top_k=2),
}


def _scalars(storage, x=1, gate=1, up=1, down=1, dy=1, tokens=1, top_k=1):
  """Returns a layer of D = F = 1 whose experts are alike."""
  dtype = exact_limits.STORAGE[storage]
  ids = np.tile(np.arange(top_k, dtype=np.int32), (1, tokens, 1))
  config = config_testing.make_config(r=1, t=tokens, e=top_k, k=top_k, d=1, f=1)
  return config, {
    'x': np.full((1, tokens, 1), x, dtype),
    'topk_ids': ids,
    'topk_weights': np.ones(ids.shape, np.float32),
    'w_gate_up': np.tile(np.array([gate, up], dtype), (1, top_k, 1, 1)),
    'w_down': np.full((1, top_k, 1, 1), down, dtype),
    'dy': np.full((1, tokens, 1), dy, dtype),
  }


class TestGrad:
  @_PAIRS
  @pytest.mark.parametrize('routing', ['hot', 'empty_experts', 'one_rank'])
  @pytest.mark.few(1)
  def test_oracle_equals_float64_in_every_gradient(
    self, storage, placement, routing
  ):
    # given: both passes by the oracle, in float32.
    policy = _policy(storage, placement)
    forward, grads, tiling = _backward(policy, routing)
    # when: each stage is computed in float64 from what was stored before it;
    # then: rounded once to storage it is the same value.
    golden = golden_grad.GoldenGrad(tiling, policy, forward, grads)
    for name, rank in np.ndindex(len(tensors.GRADS), _ROOMY.num_ranks):
      name = tensors.GRADS[name]
      actual = tiling.rows(name, grads[name], rank)
      value = golden.rows(name, rank, 0, len(actual)).value
      assert np.abs(value).max(initial=0) < exact_limits.LIMIT
      assert (value == np.rint(value)).all()
      value = value.astype(np.float32).astype(actual.dtype)
      np.testing.assert_array_equal(actual, value, err_msg=name)

  @_PAIRS
  def test_few_gradients_are_zero(self, storage, placement):
    forward, grads, tiling = _backward(_policy(storage, placement), 'hot')
    has_rows = forward['counts'].sum(axis=0) > 0
    for name, value in grads.items():
      if name.startswith('d_w_'):
        rows = value.reshape(-1, *value.shape[2:])[has_rows]
      else:
        rows = np.concatenate([tiling.rows(name, value, r) for r in (0, 1)])
      assert (rows != 0).mean() > 0.99, name

  @_EACH_STORAGE
  @_PLACES
  def test_bounds_are_not_below_what_is_stored(self, storage, placement):
    policy = _policy(storage, placement)
    arrays, proof = _make_grad(policy=policy)
    assert all(0 < bound < 2**24 for bound in proof.values())
    del arrays['dy']
    forward = exact_proof.prove(_ROOMY, policy, arrays)
    assert forward.items() <= proof.items()

  @pytest.mark.parametrize('stage', _REACHES_LIMIT)
  @pytest.mark.parametrize('storage', ['float32', 'bfloat16'])
  def test_limit_is_refused_at_its_stage(self, storage, stage):
    config, arrays = _scalars(storage, **_REACHES_LIMIT[stage])
    # given: a quarter of dy passes; when: one sum is 2^24; then: it is named.
    exact_proof.prove(config, _policy(storage), _enlarged(arrays, 'dy', 1 / 4))
    location = 'token 0' if stage == 'dx' else r'expert 0, row \d+'
    with pytest.raises(
      exact_limits.ExactnessError, match=rf'^{stage}: .*16777216 at {location}'
    ):
      exact_proof.prove(config, _policy(storage), arrays)

  @pytest.mark.parametrize('name', ['x', 'dy'])
  def test_rows_are_odd_and_of_full_rank(self, name):
    config = presets.config(presets.get('small'), 4)
    arrays, _ = _make_grad(config, routing='zipf')
    rows = arrays[name].reshape(-1, config.d_model)
    assert (rows % 2 == 1).all()
    assert np.linalg.matrix_rank(rows) == config.d_model

  @pytest.mark.parametrize('name', presets.RUNS_HERE)
  @_PAIRS
  @pytest.mark.few(4)
  def test_every_preset_passes_with_a_hot_expert(
    self, name, storage, placement
  ):
    config = presets.config(presets.get(name), 8)
    arrays, _ = _make_grad(config, _policy(storage, placement))
    assert arrays['dy'].dtype == exact_limits.STORAGE[storage]
    assert np.abs(arrays['x'].astype(np.float32)).max() >= 3


@pytest.mark.parametrize('kind', ['exact', 'real', 'wide'])
def test_shared_experts_have_one_set_of_weights(kind):
  # Given a layer with shared experts, of which every rank holds a copy,
  case = case_lib.Case(preset='tiny', ranks=4, d_shared=24)
  real_inputs = case.make()
  inputs = real_inputs
  if kind != 'real':
    inputs = case.data(real_inputs, kind)
  # then a kernel may read the copy of any rank.
  for name in ('w_shared_gate_up', 'w_shared_down'):
    weights = inputs.arrays[name]
    assert (weights == weights[:1]).all(), name
