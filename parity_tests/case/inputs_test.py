"""Inputs: valid for every preset, and of order one."""

import ml_dtypes
import numpy as np
import pytest

from hpmoe.parity_tests.case import inputs
from hpmoe.parity_tests.case import routings
from hpmoe.parity_tests.case import text_router
from hpmoe.reference.contract import checks
from hpmoe.reference.contract import presets
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

_TINY = presets.get('tiny')
_ODD = presets.get('odd')


def _tiny(**options):
  return inputs.make_inputs(_TINY, **{'ranks': 2, **options})


class TestMakeInputs:
  @pytest.mark.parametrize('routing', inputs.ROUTINGS)
  def test_every_routing_gives_valid_inputs(self, routing):
    for dtype in storage.KERNEL_FORMATS:
      real = _tiny(routing=routing, dtype=dtype)
      assert set(real.arrays) == {*tensors.INPUTS, 'dy'}
      assert real.routing == routing
      for layer_inputs in (real, inputs.with_data(real, 'exact', False, 0)):
        checks.check_inputs(
          layer_inputs.config, layer_inputs.policy, layer_inputs.arrays
        )
        assert layer_inputs.policy.storage == dtype
        activation = dict(real='swiglu', exact='absolute')[layer_inputs.data]
        assert layer_inputs.policy.activation == activation

  def test_plain_features_and_all_sums_are_of_order_one(self):
    # given: the layer of some tokens in float64, expert 0 for all of them.
    layer_inputs = inputs.make_inputs(presets.get('small'), 1, routing='hot')
    x = layer_inputs.arrays['x'][0].astype(np.float64)
    gate, up = np.split(x @ layer_inputs.arrays['w_gate_up'][0, 0], 2, axis=-1)
    with np.errstate(over='ignore'):
      activation = gate / (1 + np.exp(-gate)) * up
    out = activation @ layer_inputs.arrays['w_down'][0, 0]
    plain = np.arange(gate.shape[1]) % 4 == 0
    even = np.arange(x.shape[1]) % 2 == 0
    stages = (x[:, even], gate[:, plain], up[:, plain], out[:, even])
    for stage in stages:
      assert 0.25 < np.sqrt((stage**2).mean()) < 2

  @pytest.mark.parametrize('name', presets.RUNS_HERE)
  def test_gates_are_tiny_and_saturating(self, name):
    # exp(-gate) overflows, vanishes and is 1 within rounding, all in one layer.
    layer_inputs = inputs.make_inputs(presets.get(name), 2, routing='balanced')
    tokens = layer_inputs.arrays['x'].reshape(-1, layer_inputs.config.d_model)
    width = layer_inputs.config.d_ff
    gate = tokens @ layer_inputs.arrays['w_gate_up'][0, 0][:, :width]
    assert gate.min() < -100 and gate.max() > 100
    assert np.abs(gate[:, np.abs(gate).max(axis=0) < 1e-4]).size

  @pytest.mark.parametrize('ranks', [1, 4])
  @pytest.mark.parametrize('routing', ('text', *routings.GENERATORS))
  def test_odd_starves_two_experts_and_nothing_divides_it(self, ranks, routing):
    layer_inputs = inputs.make_inputs(_ODD, ranks, routing=routing)
    rows = np.bincount(layer_inputs.arrays['topk_ids'].ravel(), minlength=24)
    assert (rows[1], rows[-1]) == (0, 1)
    config = layer_inputs.config
    sizes = (config.num_tokens, config.d_model, config.d_ff, config.num_rows)
    assert all(size % 2 for size in sizes)
    assert min(sizes[1:]) > 256 or ranks > 1

  def test_layer_does_not_depend_on_the_number_of_ranks(self):
    single_rank = inputs.make_inputs(_TINY, 1, tokens=32)
    four_ranks = inputs.make_inputs(_TINY, 4, tokens=8)
    for name in (*tensors.INPUTS, 'dy'):
      flat = [
        layer_inputs.arrays[name].reshape(
          -1, *layer_inputs.arrays[name].shape[2:]
        )
        for layer_inputs in (single_rank, four_ranks)
      ]
      assert flat[0].tobytes() == flat[1].tobytes(), name

  def test_seed_moves_all_values_and_no_shape(self):
    first, second = _tiny(seed=1), _tiny(seed=2)
    for name, array in first.arrays.items():
      assert (array != second.arrays[name]).any()

  def test_bfloat16_is_the_float32_data_rounded(self):
    in_float32, in_bfloat16 = _tiny(), _tiny(dtype='bfloat16')
    for name in ('x', 'w_gate_up', 'w_down'):
      rounded = in_float32.arrays[name].astype(ml_dtypes.bfloat16)
      share = (rounded == in_bfloat16.arrays[name]).mean()
      # Weights round once, from float64; a subnormal of float32 rounds to 0.
      assert share > (0.99 if name == 'x' else 0.999)

  def test_capacity_is_tight_or_as_given_and_overflow_is_refused(self):
    layer_inputs = _tiny(routing='one_rank')
    max_rows = np.bincount(layer_inputs.arrays['topk_ids'].ravel() // 4).max()
    assert max_rows == 64
    assert layer_inputs.config.capacity == 80
    assert _tiny(capacity=100).config.capacity == 100
    with pytest.raises(ValueError, match='capacity: expected at least 64'):
      _tiny(routing='one_rank', capacity=63)

  def test_text_of_the_user_is_read_and_named(self, tmp_path):
    (tmp_path / 'mine.txt').write_bytes(b'Quite another text. ' * 9)
    layer_inputs = _tiny(text=tmp_path / 'mine.txt')
    assert 'mine.txt' in layer_inputs.facts['text']
    assert (layer_inputs.arrays['x'] != _tiny().arrays['x']).any()
    assert _tiny().facts['text'] == text_router.DEFAULT_TEXT.name

  def test_routing_of_a_file_stays(self, tmp_path):
    # Neither starved nor odd: ids of few experts, and weights of its own.
    layer_inputs = inputs.make_inputs(_ODD, 1, routing='hot')
    ids = np.tile(np.arange(3, dtype=np.int32), (1, _ODD.num_tokens, 1))
    weights = routings.spread_weights(layer_inputs.config, 3)
    arrays = dict(topk_ids=ids, topk_weights=weights)
    path = tmp_path / 'mine.npz'
    np.savez(path, **arrays)
    read = inputs.make_inputs(_ODD, 1, routing=str(path))
    for name, array in arrays.items():
      np.testing.assert_array_equal(read.arrays[name], array)

  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      ({'dtype': 'float8'}, "dtype: .*got 'float8'"),
      ({'routing': 'zip'}, "routing: .*'zipf'.*got 'zip'"),
      ({'routing': 'absent.npz'}, 'absent.npz: expected a readable'),
      ({'text': 'absent.txt'}, 'text: .*absent.txt'),
      ({'placement': 'nowhere'}, "placement: .*got 'nowhere'"),
      ({'tokens': 0}, 'num_tokens: .*got 0'),
      ({'capacity': 0}, 'capacity: .*got 0'),
      ({'ranks': 3}, 'num_ranks: .*divisor.*got 3'),
    ],
  )
  def test_bad_request(self, options, message):
    with pytest.raises(ValueError, match=message) as error_info:
      _tiny(**options)
    assert '\n' not in str(error_info.value)
