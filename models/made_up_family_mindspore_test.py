"""A family that nobody has is one row: read, drawn, computed, written."""

import functools

import jax
import jax.numpy as jnp
import mindspore as ms
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import families
from hpmoe.models import init
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.models.jax import decoder as jax_decoder
from hpmoe.models.mindspore import decoder as mindspore_decoder
from hpmoe.models.mindspore import device
from hpmoe.models.mindspore import model_testing

# All that one is: compressed keys with a softmax, sandwich norms, names of its
# own, and experts of every token behind a gate.
_ROW = families.Family(
  architecture='MadeUpForCausalLM',
  attention='mla',
  router='softmax',
  block='experts_block',
  experts=('opens', 'rises', 'falls'),
  shared='everyones',
  shared_gate='everyones_gate',
  renamed={'num_experts': 'how_many_experts'},
  fixed={'colour': 'red'},
  defaults=families.FAMILIES['pangu_ultra_moe'].defaults
  | dict(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=40,
    moe_intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    num_experts=None,
    num_experts_per_tok=3,
    q_lora_rank=12,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=12,
    sandwich_norm=True,
    first_k_dense_replace=1,
    num_nextn_predict_layers=0,
    initializer_range=0.25,
  ),
)


def test_a_family_is_one_row_for_both_frameworks(monkeypatch, tmp_path):
  # Given nothing but the row.
  monkeypatch.setitem(families.FAMILIES, 'made_up', _ROW)
  file = {'model_type': 'made_up', 'how_many_experts': 8, 'colour': 'red'}
  config = config_lib.from_hf(file)
  params = init.init(config, 0, 'float32')
  tokens = np.arange(16, dtype=np.int32).reshape(2, 8)
  # When both frameworks compute it, and a folder of it is written and read.
  device.use('cpu', 'host')
  wide = {n: np.asarray(v, np.float64) for n, v in params.items()}
  narrow = {n: jnp.asarray(v) for n, v in wide.items()}
  run = functools.partial(jax_decoder.forward, config=config, moe='framework')
  jax_logits, _ = jax.jit(run)(narrow, tokens=tokens)
  mindspore_logits, _ = mindspore_decoder.forward(
    model_testing.tensors(wide, 'float64'),
    config,
    ms.Tensor(tokens),
    moe='framework',
  )
  weights = weights_lib.of_parameters(config, params, {})
  convert.write(tmp_path / 'folder', weights)
  copy = convert.read(tmp_path / 'folder')
  (tensors,) = (tmp_path / 'folder').glob('*.safetensors')
  # Then the logits are the same, and the model.
  assert jax_logits.dtype == np.float64
  np.testing.assert_allclose(
    mindspore_logits.asnumpy(), jax_logits, rtol=0, atol=1e-12
  )
  assert copy.fields['how_many_experts'] == 8
  assert (
    b'layers.1.experts_block.experts.7.rises.weight' in tensors.read_bytes()
  )
  for name, value in copy.load().items():
    np.testing.assert_array_equal(value, params[name])
