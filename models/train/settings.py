"""What decides a training run; two runs of the same settings give one model."""

import dataclasses
from typing import Any

FRAMEWORKS = ('jax', 'mindspore')
DEVICES = ('cpu', 'ascend')
# Of Adam's two averages, in each framework.
BETAS = (0.9, 0.95)


@dataclasses.dataclass(frozen=True)
class Settings:
  """Everything that the bits of a run depend on, but not for how long it runs.

  Attributes:
    model: name of a configuration, or path of a config.json.
    source: folder of weights to go on from, instead; None for none.
    freeze: parameters that stay as they are, see `frozen.names`.
    framework: one of `FRAMEWORKS`.
    device: one of `DEVICES`; `ascend` in MindSpore alone.
    moe: the layer of routed experts, see `models/routed.py`.
    ranks: R that the layer's tokens and experts are divided among.
    text: file or folder, see `text.documents`; None for the one that ships.
    batch: sequences of a step.
    length: tokens of a sequence.
    seed: of the first weights and of the order of the text.
    learning_rate: of AdamW, after the warm-up.
    warmup: steps in which it rises to that.
    weight_decay: of matrices.
    clip: most length of a gradient over all parameters.
    bias_rate: step of a router's bias, 0.001 in DeepSeek-V3.

  Raises:
    ValueError: a setting is out of its range; names it.
  """

  model: str = 'deepseek_tiny'
  source: str | None = None
  freeze: str = ''
  framework: str = 'jax'
  device: str = 'cpu'
  moe: str = 'host'
  ranks: int = 1
  text: str | None = None
  batch: int = 16
  length: int = 128
  seed: int = 0
  learning_rate: float = 3e-3
  warmup: int = 20
  weight_decay: float = 0.1
  clip: float = 1.0
  bias_rate: float = 0.001

  def __post_init__(self):
    if self.framework not in FRAMEWORKS:
      raise ValueError(
        f'framework: expected one of {list(FRAMEWORKS)}, got {self.framework!r}'
      )
    devices = DEVICES[: 1 + (self.framework == 'mindspore')]
    if self.device not in devices:
      raise ValueError(
        f'device: expected one of {list(devices)} with framework '
        f'{self.framework}, got {self.device!r}'
      )
    for name in ('ranks', 'batch', 'length'):
      if getattr(self, name) < 1:
        raise ValueError(
          f'{name}: expected a positive integer, got {getattr(self, name)}'
        )
    for name in (
      'learning_rate',
      'warmup',
      'weight_decay',
      'clip',
      'bias_rate',
    ):
      if not getattr(self, name) >= 0:
        raise ValueError(
          f'{name}: expected at least 0, got {getattr(self, name)}'
        )

  def differences(self, other: dict[str, Any]) -> list[str]:
    """Returns the names of settings that differ from those of another run."""
    own_fields = dataclasses.asdict(self)
    # Of a run that is older than a setting, it has the default.
    old = dataclasses.asdict(Settings()) | other
    return [
      n for n in sorted({*own_fields, *old}) if own_fields.get(n) != old[n]
    ]
