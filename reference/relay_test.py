"""Relayed rows against a loop that sends them one by one."""

import jax
import numpy as np
import pytest

from hpmoe.reference import relay
from hpmoe.reference import test_util
from hpmoe.reference.contract import config_testing

# R, T, E, K, D, F: K = E, one expert, one rank, T no multiple of anything.
CONFIGS = {
  'ragged': config_testing.make_config(r=2, t=7, e=8, k=3, d=2, f=1),
  'k_is_e': config_testing.make_config(r=2, t=3, e=4, k=4, d=2, f=1),
  'one_expert': config_testing.make_config(r=1, t=3, e=1, k=1, d=2, f=1),
  'one_rank': config_testing.make_config(r=1, t=5, e=4, k=2, d=2, f=1),
}


@pytest.mark.parametrize('unused', (0.0, 0.3))
@pytest.mark.parametrize('name', CONFIGS)
def test_every_token_has_one_row_on_each_rank_of_its_experts(name, unused):
  # Given a routing, when a loop appends to each expert, source ranks and tokens
  # ascending, those tokens that have no lower expert on its rank, then these
  # are the relayed rows, counts and addresses.
  config = CONFIGS[name]
  rng = test_util.generator('relay/' + name)
  r, t, k, e, n, d = (config.dims()[letter] for letter in 'RTKEND')
  local = config.experts_per_rank
  ids = test_util.random_ids(config, rng, unused=unused)
  x = rng.normal(size=(r, t, d)).astype(np.float32)
  expected = np.zeros((r, n, d), np.float32)
  counts = np.zeros((r, e), np.int32)
  rows = np.full((r, t, k), -1, np.int32)
  for owner in range(r):
    row = 0
    for expert in range(owner * local, (owner + 1) * local):
      for source, token in np.ndindex(r, t):
        local_experts = ids[source, token][ids[source, token] // local == owner]
        if local_experts.size and local_experts.min() == expert:
          expected[owner, row] = x[source, token]
          counts[source, expert] += 1
          rows[source, token, list(ids[source, token]).index(expert)] = row
          row += 1
  plan = jax.jit(relay.plan, static_argnums=0)(config, ids)
  np.testing.assert_array_equal(plan.counts, counts)
  np.testing.assert_array_equal(plan.row_of_slot, rows)
  relayed = jax.jit(relay.relayed, static_argnums=0)(config, ids, x)
  np.testing.assert_array_equal(relayed, expected)
