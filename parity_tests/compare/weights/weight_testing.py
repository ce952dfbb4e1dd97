"""Small folders of weights, and conversions of them that are wrong."""

from collections.abc import Callable, Mapping
import json
import pathlib
import shutil
from typing import Any

import ml_dtypes
import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import safetensors_file
from hpmoe.models.checkpoint import weights as weights_lib

Tensors = dict[str, np.ndarray]
FILE = 'model.safetensors'
_SIZES = dict(
  vocab_size=48,
  hidden_size=32,
  intermediate_size=24,
  moe_intermediate_size=16,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  head_dim=8,
  num_experts_per_tok=2,
  dtype='float32',
)
_FAMILIES = {
  'qwen3_moe': dict(model_type='qwen3_moe', num_experts=8),
  'qwen2_moe': dict(
    model_type='qwen2_moe', num_experts=8, shared_expert_intermediate_size=16
  ),
  'deepseek_v3': dict(
    model_type='deepseek_v3',
    n_routed_experts=8,
    n_group=2,
    topk_group=1,
    first_k_dense_replace=1,
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
    num_nextn_predict_layers=0,
  ),
  'qwen3_next': dict(
    model_type='qwen3_next',
    num_experts=8,
    shared_expert_intermediate_size=16,
    full_attention_interval=2,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
  ),
  # A layer with a window, then one with heads of its own and no values.
  'gemma4_text': dict(
    model_type='gemma4_text',
    num_experts=8,
    num_experts_per_tok=None,
    top_k_experts=2,
    enable_moe_block=True,
    hidden_size_per_layer_input=0,
    sliding_window=3,
    layer_types=['sliding_attention', 'full_attention'],
    global_head_dim=16,
    attention_k_eq_v=True,
    num_global_key_value_heads=1,
    tie_word_embeddings=False,
    final_logit_softcapping=None,
  ),
}


def make_config(family: str, **changes) -> config_lib.ModelConfig:
  """Returns the configuration of a model of two layers."""
  fields = _SIZES | _FAMILIES[family] | changes
  return config_lib.from_hf({k: v for k, v in fields.items() if v is not None})


def write_folder(
  path: pathlib.Path, family: str = 'qwen3_moe', **changes
) -> pathlib.Path:
  """Writes a model whose norms and biases are not 1 and 0; returns its path."""
  config = make_config(family, **changes)
  rng = np.random.default_rng(3)
  params = {}
  for name, array in init.init(config, 1).items():
    noise = rng.normal(size=array.shape) * 0.1
    params[name] = (np.asarray(array) + noise).astype(np.float32)
  convert.write(path, weights_lib.of_parameters(config, params))
  return path


def write_changed(
  left: pathlib.Path,
  right: pathlib.Path,
  change: Callable[[Tensors], Tensors | None],
  **fields,
) -> pathlib.Path:
  """Writes a folder's tensors as `change` leaves or returns them."""
  shutil.copytree(left, right)
  tensors = read_tensors(right / FILE)
  _write_tensors(right / FILE, change(tensors) or tensors)
  _write_fields(right / 'config.json', fields)
  return right


def read_tensors(path: pathlib.Path) -> Tensors:
  index, _ = safetensors_file.read_index(path)
  return {name: entry.read() for name, entry in index.items()}


def _write_tensors(path: pathlib.Path, tensors: Tensors) -> None:
  path.unlink()
  safetensors_file.write(path, tensors, tensors.__getitem__, {'format': 'pt'})


def _write_fields(path: pathlib.Path, fields: Mapping[str, Any]) -> None:
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def stack_experts(tensors: Tensors, layer: int) -> Tensors:
  """Returns tensors with a layer's experts as transformers 5 stacks them."""
  prefix = f'model.layers.{layer}.mlp.experts.'
  rest = {n: a for n, a in tensors.items() if not n.startswith(prefix)}
  count = len([n for n in tensors if n.startswith(prefix)]) // 3

  def stack(last: str) -> np.ndarray:
    names = (f'{prefix}{e}.{last}.weight' for e in range(count))
    return np.stack([tensors[name] for name in names])

  gate_up = np.concatenate([stack('gate_proj'), stack('up_proj')], axis=1)
  return rest | {
    f'{prefix}gate_up_proj': gate_up,
    f'{prefix}down_proj': stack('down_proj'),
  }


def write_quantised(left: pathlib.Path, right: pathlib.Path) -> pathlib.Path:
  """Writes experts in float8, a scale for each block of 8 x 8."""

  def change(tensors: Tensors) -> Tensors:
    quantised: Tensors = {}
    for name, array in tensors.items():
      if '.experts.' not in name:
        quantised[name] = array
        continue
      rows, columns = (n // 8 for n in array.shape)
      blocks = np.abs(array).reshape(rows, 8, columns, 8).max(axis=(1, 3))
      scales = (blocks / 448).astype(np.float32)
      codes = array / np.kron(scales, np.ones((8, 8), np.float32))
      quantised[name] = codes.astype(ml_dtypes.float8_e4m3fn)
      quantised[f'{name}_scale_inv'] = scales
    return quantised

  options = dict(quant_method='fp8', weight_block_size=[8, 8])
  shutil.copytree(left, right)
  _write_tensors(right / FILE, change(read_tensors(right / FILE)))
  _write_fields(right / 'config.json', dict(quantization_config=options))
  return right


def drop_scales(tensors: Tensors) -> Tensors:
  """Returns codes in bfloat16, as a conversion without scales writes them."""
  return {
    name: array.astype(ml_dtypes.bfloat16)
    if array.dtype == ml_dtypes.float8_e4m3fn
    else array
    for name, array in tensors.items()
    if not name.endswith('_scale_inv')
  }
