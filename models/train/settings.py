"""What decides a training run; two runs of the same settings give one model."""

import dataclasses
from typing import Any

from hpmoe.reference.contract import option_fields

FRAMEWORKS = ('jax', 'mindspore')
DEVICES = ('cpu', 'ascend')
# Of Adam's two averages, in each framework.
BETAS = (0.9, 0.95)


def _name_models() -> str:
  from hpmoe.models import config

  return ', '.join(config.names())


def _name_groups() -> str:
  from hpmoe.models.train import frozen

  return ', '.join(frozen.GROUPS)


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

  model: str = option_fields.option(
    'deepseek_tiny',
    lambda: (
      'Configuration, or path of a config.json, whose folder may have a '
      f'tokenizer.json. One of {_name_models()}.'
    ),
  )
  source: str | None = option_fields.option(
    None,
    'Folder of weights to start from, in any format of hpmoe convert, with '
    'its tokenizer; trained in float32. Replaces --model.',
    flag='from',
  )
  freeze: str = option_fields.option(
    '',
    lambda: (
      f'Parameters that are not trained: some of {_name_groups()}, or '
      'patterns of names such as model.layers.0.*'
    ),
  )
  framework: str = option_fields.option(
    'jax',
    'Where the model runs: jax or mindspore.',
  )
  device: str = option_fields.option(
    'cpu',
    'Where MindSpore computes: cpu, or ascend: an NPU, with --moe=ascend '
    '(the megakernel) or framework; untested.',
  )
  moe: str = option_fields.option(
    'host',
    'Layer of routed experts: oracle, host (the megakernel), ascend (the '
    "megakernel on an NPU, with --device=ascend), framework (the framework's "
    'own operators), or your pkg.module:function.',
  )
  ranks: int = option_fields.option(
    1,
    'Number of expert-parallel ranks of the MoE layers.',
  )
  text: str | None = option_fields.option(
    None,
    'Training text: a file, or a folder of .txt and .jsonl with one text a '
    'line. Default: the included text.',
  )
  batch: int = option_fields.option(
    16,
    'Sequences of a step.',
  )
  length: int = option_fields.option(
    128,
    'Tokens of a sequence; bytes, without a tokenizer.',
  )
  seed: int = option_fields.option(
    0,
    'Seed of the initial weights and of the order of the text.',
  )
  learning_rate: float = option_fields.option(
    3e-3,
    'Peak learning rate of AdamW.',
  )
  warmup: int = option_fields.option(
    20,
    'Number of steps over which the learning rate rises to its peak.',
  )
  weight_decay: float = option_fields.option(
    0.1,
    'Weight decay of AdamW, for matrices only.',
  )
  clip: float = option_fields.option(
    1.0,
    'Maximum global gradient norm.',
  )
  bias_rate: float = option_fields.option(
    0.001,
    "Change of a router's bias in each step, which balances the load.",
  )

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
