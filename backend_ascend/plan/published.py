"""Public models whose training was told, as sizes."""

import dataclasses

from hpmoe.backend_ascend.plan import sizes

PANGU_ULTRA_MOE = sizes.Model(
  name='pangu_ultra_moe',  # arXiv 2505.04519, and its config.json
  layers=61,
  dense=(0, 1, 2),
  hidden=7680,
  vocabulary=153600,
  heads=128,
  kv_heads=128,
  qk_dim=192,
  v_dim=128,
  q_rank=1536,
  kv_rank=512,
  rope_dim=64,
  dense_width=18432,
  experts=256,
  top_k=8,
  expert_width=2048,
  shared_width=2048,
  mtp=1,
  sandwich=True,
)

DEEPSEEK_V3 = dataclasses.replace(
  PANGU_ULTRA_MOE,
  name='deepseek_v3',  # arXiv 2412.19437
  hidden=7168,
  vocabulary=129280,
  sandwich=False,
)

QWEN3_235B = sizes.Model(
  name='qwen3_235b_a22b',  # arXiv 2505.09388
  layers=94,
  hidden=4096,
  vocabulary=151936,
  heads=64,
  kv_heads=4,
  qk_dim=128,
  v_dim=128,
  experts=128,
  top_k=8,
  expert_width=1536,
)

QWEN3_30B = dataclasses.replace(
  QWEN3_235B,
  name='qwen3_30b_a3b',  # arXiv 2505.09388
  layers=48,
  hidden=2048,
  heads=32,
  expert_width=768,
)
