"""Schedule files: what `hpmoe tune` found, for whoever compiles the layer.

JSON of one object.  It says for which layer it is, so that it is not taken for
another one's by mistake, and what was predicted of it on which machine.  Queues
of policy 'list' are planned anew where the layer is compiled, with the costs of
a machine that ships: its figures must be those that the search had.
"""

from collections.abc import Mapping
import dataclasses
import json
import os
import pathlib
from typing import Any
import zlib

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

FORMAT = 'hpmoe-schedule'
VERSION = 1

_SIZES = ('num_ranks', 'num_tokens', 'num_experts', 'top_k', 'd_model', 'd_ff')
_POLICY = ('storage', 'placement')


@dataclasses.dataclass(frozen=True)
class Schedule:
  """A schedule of one layer.

  Attributes:
    config: the layer's sizes; its capacity is not the schedule's.
    storage: storage dtype, as policies call it.
    placement: where the routing weight multiplies.
    options: granularity, cores and order of both passes.
    machine: on which it was tuned.
    routing: the cases it was tuned for.
    predicted_s: seconds by pass, as simulated there; empty: not simulated.
    figures: digest of those that policy 'list' planned with; '': not known.
  """

  config: config_lib.MoEConfig
  storage: str
  placement: str
  options: granularity.Options
  machine: str = ''
  routing: tuple[str, ...] = ()
  predicted_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
  figures: str = ''

  def layer(self) -> dict[str, Any]:
    """Returns what must be another layer's, too, for it to be of use there."""
    return {n: getattr(self.config, n) for n in _SIZES} | {
      n: getattr(self, n) for n in _POLICY
    }

  def options_for(
    self, config: config_lib.MoEConfig, policy: precision.PrecisionPolicy
  ) -> granularity.Options:
    """Returns the options for the layer that it is of.

    Raises:
      ValueError: it is of another layer, and names the first size that differs;
        or policy 'list' would plan with other figures.
    """
    for name, tuned_value in self.layer().items():
      layer_value = getattr(policy if name in _POLICY else config, name)
      if layer_value != tuned_value:
        raise ValueError(
          f'schedule: expected one of this layer, with {name} {layer_value}, '
          f'got one of another layer, with {tuned_value}'
        )
    now = figures_of(self.options)
    if self.figures and self.figures != now:
      raise ValueError(
        f'schedule: expected figures {self.figures} of machine '
        f'{self.options.order.machine}, which it was listed with, got {now}: '
        'tune again'
      )
    return self.options

  def scaled(
    self, config: config_lib.MoEConfig, policy: precision.PrecisionPolicy
  ) -> 'Schedule':
    """Returns the same schedule for a layer of other sizes.

    Blocks shrink with what they cut, so that a smaller layer has about as many
    tasks in the same order; for a larger layer they stay as they are.
    """
    tuned_config, options = self.config, self.options
    tokens = config.num_tokens / tuned_config.num_tokens
    rows = _expert_rows(config) / _expert_rows(tuned_config)
    cols = config.d_ff / tuned_config.d_ff
    sizes: dict[str, float] = dict(
      row_block=rows,
      col_block=cols,
      put_rows=tokens,
      token_block=tokens,
      chain_rows=rows,
      weight_rows=cols,
      expert_capacity=rows,
    )
    shrunk: dict[str, Any] = {
      name: _shrunk(getattr(options, name), factor)
      for name, factor in sizes.items()
    }
    shrunk['vector_rows'] = _divisor(options, shrunk['row_block'])
    return dataclasses.replace(
      self,
      config=config,
      storage=policy.storage,
      placement=policy.placement,
      options=dataclasses.replace(options, **shrunk),
      predicted_s={},
    )


def figures_of(options: granularity.Options) -> str:
  """Returns the digest of the figures that options plan with; '': none."""
  if options.order.policy != 'list':
    return ''
  return machine_lib.load(options.order.machine).digest()


def _expert_rows(config: config_lib.MoEConfig) -> float:
  """Returns rows of an expert under balanced routing."""
  rows = config.num_ranks * config.num_tokens * config.top_k
  return rows / config.num_experts


def _shrunk(size: int | None, factor: float) -> int | None:
  return size if size is None else max(1, round(size * min(1, factor)))


def _divisor(options: granularity.Options, row_block: int) -> int | None:
  """Returns `vector_rows` of smaller row blocks: about as many of them."""
  if options.vector_rows is None:
    return None
  tiles = options.row_block // options.vector_rows
  return max(
    rows
    for rows in range(1, row_block + 1)
    if row_block % rows == 0 and (rows == 1 or rows * tiles <= row_block)
  )


def load_options(
  source: 'Schedule | str | os.PathLike',
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  scaled: bool = False,
) -> granularity.Options:
  """Returns the options that a schedule, or the file of one, has for a layer.

  Args:
    source: a schedule, or where `save` put it.
    config: sizes of the layer.
    policy: its precision policy.
    scaled: whether a schedule of another layer is scaled to this one.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is damaged, or of another layer.
  """
  schedule = source if isinstance(source, Schedule) else load(source)
  if scaled:
    schedule = schedule.scaled(config, policy)
  return schedule.options_for(config, policy)


def save(path: str | os.PathLike, schedule: Schedule) -> None:
  """Writes a schedule to a file.

  Raises:
    OSError: the file cannot be written.
  """
  content = dict(
    format=FORMAT,
    version=VERSION,
    layer=schedule.layer(),
    options=dataclasses.asdict(schedule.options),
    machine=schedule.machine,
    routing=list(schedule.routing),
    predicted_s=dict(schedule.predicted_s),
    figures=schedule.figures or figures_of(schedule.options),
  )
  content['crc32'] = _checksum(content)
  pathlib.Path(path).write_text(json.dumps(content, indent=2) + '\n')


def load(path: str | os.PathLike) -> Schedule:
  """Returns the schedule in a file.

  Raises:
    OSError: the file cannot be read.
    ValueError: it is no schedule, of another version, or damaged.
  """
  try:
    return _parse(json.loads(pathlib.Path(path).read_bytes()))
  except (ValueError, TypeError, KeyError, RecursionError) as error:
    message = (
      f'{error} is missing' if isinstance(error, KeyError) else str(error)
    )
    raise ValueError(
      f'schedule: expected a schedule file, got {os.fspath(path)}: {message}'
    ) from error


def _parse(content: Any) -> Schedule:
  if not isinstance(content, dict) or content.get('format') != FORMAT:
    raise ValueError(f'format: expected {FORMAT!r}')
  if content.get('version') != VERSION:
    raise ValueError(
      f'version: expected {VERSION}, got {content.get("version")!r}'
    )
  stored_crc = content.pop('crc32', None)
  if stored_crc != _checksum(content):
    raise ValueError(
      f'crc32: expected {_checksum(content)!r}, got {stored_crc!r}: damaged, '
      'or changed by hand'
    )
  layer = content['layer']
  fields = dict(content['options'])
  order = granularity.Order(**fields.pop('order'))
  return Schedule(
    config=config_lib.MoEConfig(**{name: layer[name] for name in _SIZES}),
    storage=layer['storage'],
    placement=layer['placement'],
    options=granularity.Options(**fields, order=order),
    machine=content['machine'],
    routing=tuple(content['routing']),
    predicted_s=content['predicted_s'],
    figures=content.get('figures', ''),
  )


def _checksum(content: Mapping[str, Any]) -> str:
  text = json.dumps(content, sort_keys=True, separators=(',', ':'))
  return f'{zlib.crc32(text.encode()):08x}'
