"""Public models whose training was told, as sizes."""

import pathlib
import tomllib

from hpmoe.backend_ascend.simulator.plan import decoder_sizes

_TEXT = pathlib.Path(__file__).with_suffix('.toml').read_text()
MODELS = {
  name: decoder_sizes.Model(
    name=name, **fields | dict(dense=tuple(fields.get('dense', ())))
  )
  for name, fields in tomllib.loads(_TEXT).items()
}
PANGU_ULTRA_MOE, DEEPSEEK_V3, QWEN3_235B, QWEN3_30B = MODELS.values()
