"""What does not fit is refused before any memory is taken."""

import pytest

from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import memory
from hpmoe.reference.contract import precision

SIZES = dict(num_ranks=2, num_experts=4, top_k=2, d_model=8, d_ff=4)
BFLOAT16 = precision.PrecisionPolicy('bfloat16')


def test_bytes_are_those_of_every_tensor():
  config = config_lib.MoEConfig(num_tokens=3, **SIZES, capacity=5)
  # Of 2 bytes: x and y, weights, rows of D, 2F, F and D, slots; of 4: routing.
  storage_bytes = 2 * 3 * 8 * 2 + 4 * 8 * 8 + 4 * 4 * 8
  storage_bytes += 2 * 5 * (8 + 8 + 4 + 8) + 2 * 3 * 2 * 8
  rest = 3 * (2 * 3 * 2) + 2 * (2 * 4)
  launch_bytes = 2 * storage_bytes + 4 * rest
  assert (
    memory.bytes_needed(config, BFLOAT16, 'forward', 'launch') == launch_bytes
  )
  assert memory.bytes_needed(config, BFLOAT16, 'forward') == 2 * launch_bytes
  both_passes = memory.bytes_needed(config, BFLOAT16, 'both', 'launch')
  assert both_passes > memory.bytes_needed(
    config, BFLOAT16, 'forward', 'launch'
  )


def test_unrounded_tensors_count_as_what_they_are():
  config = config_lib.MoEConfig(num_tokens=3, **SIZES, capacity=5)
  policy = precision.PrecisionPolicy('bfloat16', points=('gate_up=f32',))
  unrounded = memory.bytes_needed(config, policy, 'forward', 'launch')
  fewer = memory.bytes_needed(config, BFLOAT16, 'forward', 'launch')
  assert unrounded - fewer == 2 * 5 * 8 * 2


@pytest.mark.parametrize(
  ('sizes', 'match'),
  [
    (dict(num_tokens=2**31), r'^num_tokens: .* got 8589934592$'),
    (dict(num_tokens=2**28, num_ranks=4), r'^num_tokens: .* R \* T \* K'),
    (dict(d_model=2**31), '^d_model: expected D of at most 2147483647'),
    (dict(d_ff=2**30), r'^d_ff: expected 2 \* F of at most'),
    (dict(capacity=2**31), '^capacity: expected N of at most'),
    (dict(num_ranks=2**16, num_experts=2**16), r'^num_experts: .* R \* E'),
  ],
)
def test_sizes_past_int32_are_refused_at_once(sizes, match):
  with pytest.raises(ValueError, match=match):
    config_lib.MoEConfig(**({'num_tokens': 3} | SIZES | sizes))


def test_available_is_read_or_unknown(tmp_path):
  file = tmp_path / 'meminfo'
  file.write_text('MemTotal: 9 kB\nMemAvailable:    7 kB\n')
  assert memory.available(file) == 7 * 1024
  file.write_text('MemTotal: 9 kB\n')
  assert memory.available(file) is None
  assert memory.available(tmp_path / 'none') is None


def test_sizes_have_names():
  with pytest.raises(TypeError, match='positional'):
    config_lib.MoEConfig(2, 3, 4, 2, 8, 4)  # type: ignore[misc]
