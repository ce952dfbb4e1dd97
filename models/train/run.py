"""A training run on disk: steps, metrics, states to resume from, the model.

    folder/
      metrics.jsonl     one line for each step
      states/step-...   see `models/checkpoint/train_state.py`; each with the
                        metrics of the steps up to it, which resuming reads
      model/            at the end, a Hugging Face folder with a tokenizer
      *.png             see `plots.py`

What a run is at step n depends on its settings alone, whether it was stopped
and resumed or not.  A process that is killed at any time leaves a folder that
is resumed, or begun anew if it held no state yet.
"""

from collections.abc import Callable
import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import parameters as parameters_lib
from hpmoe.models.checkpoint import atomic_folder
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import train_state
from hpmoe.models.checkpoint import weights as weights_lib
from hpmoe.models.train import settings as settings_lib
from hpmoe.models.train import start as start_lib
from hpmoe.models.train import text as text_lib

_METRICS = 'metrics.jsonl'
_STATES = 'states'
MODEL = 'model'
LAST = 10  # steps whose mean loss is reported
_HELD_OUT_BATCHES = 8


@dataclasses.dataclass(frozen=True)
class Result:
  """What a run came to.

  Attributes:
    first: step that this process began with.
    losses: `[N]` of every step of the run, nats for each token.
    loads: `[N, M, E]` tokens of each expert of each layer with experts.
    held_out: mean loss on text that was not trained on, nats for each token.
    bigram: bigram entropy of the text that was trained on, likewise.
    moe_layers: `[M]` the layers' numbers.
    unit: what a token is called: byte or token.
  """

  first: int
  losses: np.ndarray
  loads: np.ndarray
  held_out: float
  bigram: float
  moe_layers: tuple[int, ...]
  unit: str

  @property
  def last(self) -> float:
    """Mean loss of the last steps."""
    return float(self.losses[-LAST:].mean())


def train(
  settings: settings_lib.Settings,
  folder: str | os.PathLike[str],
  steps: int,
  save_every: int = 100,
  resume: bool = False,
  report: Callable[[str], None] = lambda text: None,
  start: start_lib.Start | None = None,
) -> Result:
  """Trains until `steps` steps are done, and writes the folder.

  Args:
    settings: of the run.
    folder: made if it is not there.
    steps: of the whole run, those before resuming included.
    save_every: steps from one state to the next; the last is always written.
    resume: whether to go on from the folder's newest state; after the last
      step only the model is written.
    report: called with a line of text for each step.
    start: of these settings, if it has been read.

  Raises:
    ImportError: a package of the extra `models`, or `mindspore` for that
      framework, is missing; names it.
    OSError: a file cannot be read or written.
    ValueError: a setting is wrong, the text is too short, the folder holds
      another run, or there is nothing to resume.
  """
  if steps < 1 or save_every < 1:
    raise ValueError(
      f'steps: expected at least 1, got {min(steps, save_every)}'
    )
  root = pathlib.Path(folder)
  start = start or start_lib.from_settings(settings)
  config = start.config
  data = text_lib.read(settings.text, start.encoding)
  learnt, held_out = text_lib.split(data.tokens)
  for part in (learnt, held_out):
    text_lib.check_length(part, settings.length)
  trainer = _trainer(config, settings)
  run = _Run(root, settings, data.crc, start, steps)
  state, first, rows = run.begin(trainer, resume)
  for step in range(first, steps):
    batch = text_lib.batch(
      learnt, settings.length, settings.batch, settings.seed, step
    )
    state, metrics = trainer.step(state, batch)
    rows.append(_row(step, metrics))
    report(f'loss {rows[-1]["loss"]:.4f}')
    run.note(rows[-1])
    if (step + 1) % save_every == 0 or step + 1 == steps:
      run.save(state, rows)
  run.write_model(state)
  return Result(
    first,
    np.array([row['loss'] for row in rows]),
    np.array([row['loads'] for row in rows]),
    _held_out(trainer, state, held_out, settings),
    text_lib.bigram_entropy(learnt),
    config.moe_layers(),
    start.encoding.unit,
  )


def _trainer(config: config_lib.ModelConfig, settings: settings_lib.Settings):
  if settings.framework == 'jax':
    from hpmoe.models.train import jax_trainer

    return jax_trainer.trainer(config, settings)
  from hpmoe.models.mindspore import device
  from hpmoe.models.train import mindspore_trainer

  device.use(settings.device, settings.moe)
  return mindspore_trainer.Trainer(config, settings)


def _row(step: int, metrics: Any) -> dict[str, Any]:
  loss = float(metrics.loss)
  if not np.isfinite(loss):
    raise ValueError(
      f'learning_rate: expected one with finite losses, got {loss} at step '
      f'{step}'
    )
  return dict(
    step=step,
    loss=loss,
    unevenness=float(metrics.unevenness),
    loads=np.asarray(metrics.loads).tolist(),
  )


def _held_out(trainer, state, text, settings) -> float:
  """Returns the mean loss on the beginning of the held-out text."""
  size = min(settings.batch, (len(text) - 1) // settings.length)
  batches = text_lib.windows(text, settings.length, size)[:_HELD_OUT_BATCHES]
  losses = [float(trainer.loss(state.params, batch)) for batch in batches]
  return float(np.mean(losses))


@dataclasses.dataclass(frozen=True)
class _Run:
  """The files of a run."""

  root: pathlib.Path
  settings: settings_lib.Settings
  text_crc: int
  start: start_lib.Start
  steps: int

  def begin(self, trainer, resume: bool):
    """Returns (state, first step, rows of the steps before)."""
    newest = train_state.latest(self.root / _STATES)
    if resume and newest is None:
      raise ValueError(f'resume: expected a state in {self.root}, got none')
    if newest is None or not resume:
      if newest is not None:
        raise ValueError(
          f'out: expected --resume or a folder without a run, got {self.root}'
        )
      self.root.mkdir(parents=True, exist_ok=True)
      self._write_metrics([])
      return trainer.first(self.start.first()), 0, []
    header = train_state.header(newest)
    self._check_same(header)
    if header['step'] > self.steps:
      raise ValueError(
        f'steps: expected at least the {header["step"]} that are done, got '
        f'{self.steps}'
      )
    state, _ = train_state.load(newest, trainer.first(self._zeros()))
    rows = self._rows(newest / _METRICS, header['step'])
    self._write_metrics(rows)
    return state, header['step'], rows

  def _zeros(self) -> dict[str, np.ndarray]:
    shapes = parameters_lib.parameter_shapes(self.start.config)
    return {n: np.zeros(s.shape, s.dtype) for n, s in shapes.items()}

  def _check_same(self, header: dict[str, Any]) -> None:
    if odd := self.settings.differences(header['settings']):
      name = 'from' if odd[0] == 'source' else odd[0]
      raise ValueError(
        f'{name}: expected {header["settings"].get(odd[0])!r}, as the run '
        f'has it, got {getattr(self.settings, odd[0], None)!r}'
      )
    if header['text_crc'] != self.text_crc:
      raise ValueError('text: expected the one that the run has, got another')

  def _rows(self, path: pathlib.Path, count: int) -> list[dict[str, Any]]:
    if not path.is_file():
      raise ValueError(f'{path}: expected the metrics of its steps, got none')
    try:
      rows = [json.loads(line) for line in path.read_text().splitlines()]
    except ValueError as error:
      raise ValueError(f'{path}: expected JSON, got {error}') from error
    if [row.get('step') for row in rows] != list(range(count)):
      raise ValueError(f'{path}: expected steps 0 to {count - 1}, got others')
    return rows

  def _write_metrics(self, rows: list[dict[str, Any]]) -> None:
    for folder in (self.root, self.root / _STATES):
      atomic_folder.remove_unfinished(folder)
    atomic_folder.write_file(self.root / _METRICS, _lines(rows))

  def note(self, row: dict[str, Any]) -> None:
    atomic_folder.append(self.root / _METRICS, _lines([row]))

  def save(self, state, rows: list[dict[str, Any]]) -> None:
    header = dict(
      settings=dataclasses.asdict(self.settings), text_crc=self.text_crc
    )
    files = {_METRICS: _lines(rows)}
    train_state.save(self.root / _STATES, len(rows), state, header, files=files)

  def write_model(self, state) -> None:
    params = {name: np.asarray(p) for name, p in state.params.items()}
    start = self.start
    weights = weights_lib.of_parameters(start.config, params, start.files)
    if start.fields is not None:
      weights = dataclasses.replace(weights, fields=start.fields)
    if (self.root / MODEL).exists():
      atomic_folder.remove(self.root / MODEL)
    convert.write(self.root / MODEL, weights)


def _lines(rows: list[dict[str, Any]]) -> bytes:
  return ''.join(json.dumps(row) + '\n' for row in rows).encode()
