"""Multi-head latent attention: keys and values from one compressed vector.

Source: arXiv 2412.19437, section 2.1.1, and the published code of DeepSeek-V3.
"""

import mindspore as ms
from mindspore import ops as ms_ops

from hpmoe.models import config as config_lib
from hpmoe.models.mindspore import attention as attention_lib
from hpmoe.models.mindspore import cache as cache_lib
from hpmoe.models.mindspore import ops
from hpmoe.models.mindspore import rope as rope_lib
from hpmoe.reference.contract import array_typing as at


def attention(
  config: config_lib.ModelConfig,
  params: ops.Params,
  x: at.Float[ms.Tensor, 'B S D'],
  seen: attention_lib.Seen,
  entries: cache_lib.Entries | None,
) -> tuple[at.Float[ms.Tensor, 'B S D'], cache_lib.Entries]:
  """Returns `[B, S, D]` and the layer's compressed entries, these tokens' too.

  Args:
    config: sizes and options.
    params: those of `self_attn`.
    x: `[B, S, D]`, normalised.
    seen: of these tokens.
    entries: of the tokens before; None for none.
  """
  held = _compress(config, params, x, seen)
  if entries is not None:
    held = cache_lib.append(entries, held, seen.length)
  queries = _queries(config, params, x, seen)
  keys, values = _expand(config, params, held)
  scale = config.qk_head_dim**-0.5
  scale *= rope_lib.softmax_factor(config.rope_scaling)
  out = attention_lib.attend(queries, keys, values, seen.mask, scale)
  return ops.linear(params, 'o_proj', out), held


def _parts(
  x: at.Float[ms.Tensor, '*batch X'], width: int
) -> tuple[ms.Tensor, ms.Tensor]:
  """Returns the first `width` of the last axis, and the rest."""
  # The gradient of a slice has no bfloat16 on a CPU.
  values = x.astype(ops.wide(x.dtype))
  first, rest = values[..., :width], values[..., width:]
  return first.astype(x.dtype), rest.astype(x.dtype)


def _queries(
  config: config_lib.ModelConfig,
  params: ops.Params,
  x: at.Float[ms.Tensor, 'B S D'],
  seen: attention_lib.Seen,
) -> at.Float[ms.Tensor, 'B S H X']:
  if config.q_lora_rank is None:
    queries = ops.linear(params, 'q_proj', x)
  else:
    low = ops.linear(params, 'q_a_proj', x)
    eps = config.family.latent_eps
    low = ops.rms_norm(low, params['q_a_layernorm.weight'], eps)
    queries = ops.linear(params, 'q_b_proj', low)
  queries = queries.reshape(*x.shape[:2], -1, config.qk_head_dim)
  plain, turning = _parts(queries, config.qk_nope_head_dim)
  turned = rope_lib.rotate(turning, seen.rope, config.rope_interleave)
  return ms_ops.cat((plain, turned), -1)


def _compress(
  config: config_lib.ModelConfig,
  params: ops.Params,
  x: at.Float[ms.Tensor, 'B S D'],
  seen: attention_lib.Seen,
) -> cache_lib.Entries:
  both = ops.linear(params, 'kv_a_proj_with_mqa', x)
  compressed, turning = _parts(both, config.kv_lora_rank)
  norm = params['kv_a_layernorm.weight']
  turned = rope_lib.rotate(
    turning.expand_dims(2), seen.rope, config.rope_interleave
  )
  return {
    'compressed': ops.rms_norm(compressed, norm, config.family.latent_eps),
    'rotated': turned.reshape(turning.shape),
  }


def _expand(
  config: config_lib.ModelConfig, params: ops.Params, held: cache_lib.Entries
) -> tuple[at.Float[ms.Tensor, 'B C H X'], at.Float[ms.Tensor, 'B C H Y']]:
  """Returns keys and values of every head."""
  heads = config.num_attention_heads
  both = ops.linear(params, 'kv_b_proj', held['compressed'])
  both = both.reshape(*both.shape[:2], heads, -1)
  plain, values = _parts(both, config.qk_nope_head_dim)
  rotated = held['rotated'].expand_dims(2)
  wide = ops.wide(rotated.dtype)
  shape = (*plain.shape[:3], rotated.shape[-1])
  rotated = ms_ops.broadcast_to(rotated.astype(wide), shape)
  return ms_ops.cat((plain, rotated.astype(plain.dtype)), -1), values
