"""Makes the folders of models/checkpoint/testdata, with torch and transformers.

    python tools/make_hf_folders.py
    python tools/make_hf_folders.py --check FOLDER WRITTEN_FROM_IT

The second form loads both folders with transformers and compares their logits,
bit for bit. Neither library is one of the project's; README.md says which
versions made what is here.
"""

import argparse
import pathlib
import shutil
from typing import Any

import torch
import transformers

_HERE = pathlib.Path(__file__).parents[1] / 'models/checkpoint/testdata'
_COMMON = dict(
  vocab_size=48,
  hidden_size=16,
  intermediate_size=24,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  num_experts_per_tok=2,
  max_position_embeddings=64,
)
_FOLDERS: dict[str, Any] = {
  'deepseek_v3': (
    transformers.DeepseekV3Config(
      **_COMMON
      | dict(
        num_key_value_heads=4,
        moe_intermediate_size=8,
        n_routed_experts=4,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=6,
      )
    ),
    torch.bfloat16,
    dict(max_shard_size='4KB'),
  ),
  'qwen3_moe': (
    transformers.Qwen3MoeConfig(
      **_COMMON,
      moe_intermediate_size=8,
      num_experts=4,
      head_dim=6,
      tie_word_embeddings=True,
    ),
    torch.float32,
    {},
  ),
  'mixtral': (
    transformers.MixtralConfig(**_COMMON, num_local_experts=4),
    torch.float32,
    {},
  ),
  # The weights of `mixtral`, as newer transformers holds them in memory.
  'mixtral_stacked': (
    transformers.MixtralConfig(**_COMMON, num_local_experts=4),
    torch.float32,
    dict(save_original_format=False),
  ),
}


def _model(config, dtype):
  torch.manual_seed(8)
  model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
  with torch.no_grad():
    for tensor in model.state_dict().values():
      tensor.copy_(torch.randn(tensor.shape) * 0.3)
    for name, buffer in model.named_buffers():
      if name.endswith('e_score_correction_bias'):
        buffer.data = buffer.float()  # as from_pretrained keeps it
  return model.eval()


def _logits(folder):
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype='auto'
  )
  with torch.no_grad():
    return model.eval()(torch.arange(20)[None] % 48).logits


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--check', nargs=2)
  check = parser.parse_args().check
  if check:
    same = torch.equal(*map(_logits, check))
    print('logits: the same bits' if same else 'logits: other bits')
    raise SystemExit(not same)
  for name, (config, dtype, options) in _FOLDERS.items():
    shutil.rmtree(_HERE / name, ignore_errors=True)
    _model(config, dtype).save_pretrained(_HERE / name, **options)


if __name__ == '__main__':
  main()
