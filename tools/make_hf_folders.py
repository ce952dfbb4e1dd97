"""Makes the folders of models/checkpoint/testdata, with torch and transformers.

    python tools/make_hf_folders.py
    python tools/make_hf_folders.py --check FOLDER WRITTEN_FROM_IT

The second form loads both folders with transformers and compares their logits,
bit for bit. Neither library is one of the project's; README.md says which
versions made what is here.
"""

import argparse
import json
import pathlib
import shutil
from typing import Any

import safetensors.torch
import torch
import transformers
from transformers.integrations import mxfp4

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
  'gpt_oss': (
    transformers.GptOssConfig(
      **_COMMON
      | dict(
        hidden_size=32,
        intermediate_size=32,
        head_dim=6,
        num_local_experts=4,
        sliding_window=3,
      )
    ),
    torch.bfloat16,
    {},
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


def _quantise(folder: pathlib.Path) -> None:
  """Draws the experts of a folder in MXFP4; writes both forms of them.

  The folder gets what transformers makes of the codes, and the one beside it
  the codes, under the names of the published files.
  """
  (path,) = folder.glob('*.safetensors')
  plain = safetensors.torch.load_file(path)
  coded: dict[str, torch.Tensor] = {}
  for name in [n for n in plain if n.endswith(('gate_up_proj', 'down_proj'))]:
    experts, inputs, outputs = plain[name].shape
    size = (experts, outputs, inputs // 32)
    blocks = torch.randint(0, 256, (*size, 16), dtype=torch.uint8)
    scales = torch.randint(118, 125, size, dtype=torch.uint8)
    coded |= {f'{name}_blocks': blocks, f'{name}_scales': scales}
    values = mxfp4.convert_moe_packed_tensors(blocks, scales)
    assert values.shape == plain[name].shape
    plain[name] = values.contiguous()
  kept = {n: t for n, t in plain.items() if f'{n}_blocks' not in coded}
  beside = folder.with_name(f'{folder.name}_mxfp4')
  shutil.rmtree(beside, ignore_errors=True)
  shutil.copytree(folder, beside)
  fields = json.loads((beside / 'config.json').read_text())
  fields['quantization_config'] = {'quant_method': 'mxfp4'}
  (beside / 'config.json').write_text(json.dumps(fields, indent=2) + '\n')
  for where, tensors in ((folder, plain), (beside, kept | coded)):
    safetensors.torch.save_file(tensors, where / path.name, {'format': 'pt'})


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
  _quantise(_HERE / 'gpt_oss')


if __name__ == '__main__':
  main()
