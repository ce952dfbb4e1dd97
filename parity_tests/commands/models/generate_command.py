"""`hpmoe generate`."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import sys
import time
from typing import Any

from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import parser
from hpmoe.parity_tests.commands.models import dry_run
from hpmoe.reference.contract import option_fields

# What a framework compiles is ready after these tokens.
_UNTIMED = 2


@dataclasses.dataclass(frozen=True)
class _Options(dry_run.MindSporeOptions):
  """Options that set no field of another object."""

  source: str | None = option_fields.option(
    None,
    'Folder with weights in any format of hpmoe convert, config.json and '
    'tokenizer.json; without a tokenizer, tokens are bytes.',
    flag='from',
  )
  prompt: str = option_fields.option(
    'She ',
    'Text to continue.',
  )
  prompts: str | None = option_fields.option(
    None,
    'File of several prompts: one a line; in .jsonl, a text under `prompt` '
    'or, with --chat, a conversation under `messages`. Replaces --prompt.',
  )
  system: str | None = option_fields.option(
    None,
    'System message of --chat.',
  )
  moe: str = option_fields.option(
    'host',
    'Layer of routed experts: oracle (jax), host (the megakernel), '
    'framework, or your pkg.module:function. The default is framework for '
    'a model whose experts have biases (GPT-OSS).',
  )
  framework: str = option_fields.option(
    'jax',
    'Where the model runs.',
    choices=('jax', 'mindspore'),
  )
  chat: bool = option_fields.option(
    False,
    "Treat prompts as user messages, in the model's chat template.",
  )
  batch: int = option_fields.option(
    16,
    'Number of prompts that run together.',
    minimum=1,
  )
  tokens: int = option_fields.option(
    200,
    'Maximum number of new tokens.',
  )
  stop: tuple[str, ...] = option_fields.option(
    (),
    "Texts that end the output, in addition to the model's end tokens; \\n "
    'is a new line.',
  )


def _list_options() -> list[option_fields.Option]:
  from hpmoe.models import sampling

  return [*option_fields.list_options(_Options, sampling.Sampling)]


def _generate(f: parser.Values) -> int:
  from hpmoe.models import sampling as sampling_lib
  from hpmoe.models.checkpoint import convert
  from hpmoe.models.checkpoint import generation_config
  from hpmoe.models.checkpoint import tokenizer as tokenizer_lib

  if f['from'].value is None:
    raise cli.UsageError('from: expected a folder, got none')
  if dry_run.is_requested(f):
    if f.framework != 'mindspore':
      raise _without_mindspore(f)
    request = dict(
      model=f['from'].value, moe=f.moe, batch=f.batch, dtype=f.dtype
    )
    return dry_run.execute(f, 'generate', [request])
  # Report a missing package before any work.
  stepper = _stepper(f)
  if f.chat:
    import jinja2  # noqa: F401
  rows = option_fields.list_options(sampling_lib.Sampling)
  sampling = sampling_lib.Sampling(**cli.fields(f, rows))
  weights = convert.read(f['from'].value, f.dtype)
  tokenizer = tokenizer_lib.from_files(weights.extras)
  if cli.warn_of_bytes(f['from'].value, weights.config) and f.chat:
    raise ValueError('chat: expected a tokenizer.json, got none')
  prompts = _prompts(f, weights.extras)
  ids = [
    tokenizer.encode(p, add_special_tokens=not f.chat).ids for p in prompts
  ]
  config = generation_config.applied(weights.config, weights.extras)
  with cli.progress(len(weights.specs)) as step:
    params = weights.load(step)
  stops = [stop.replace(r'\n', '\n') for stop in f.stop]
  screen = _Screen([''] * len(prompts) if f.chat else prompts)
  is_launched = config.is_launched or f['moe'].present
  with cli.launches_in_frameworks():
    model = stepper(params, config, f.moe if is_launched else 'framework')
    texts: list[dict[str, Any]] = []
    for first in range(0, len(ids), f.batch):
      batch_ids = ids[first : first + f.batch]
      texts += _write_texts(
        model, config, tokenizer, batch_ids, f.tokens, sampling, stops, screen
      )
  text_rows = [dict(prompt=p, **text) for p, text in zip(prompts, texts)]
  print(screen.speed(), file=sys.stderr)
  cli.write_json(f.json, dict(texts=text_rows, tokens_per_second=screen.rate))
  return cli.PARITY


def _prompts(f: parser.Values, files: Mapping[str, bytes]) -> list[str]:
  """Returns the prompts for the model.

  Raises:
    ValueError: there is none, or the template refuses it.
  """
  if f.prompts is not None and f['prompt'].present:
    raise cli.UsageError('prompt: expected none with --prompts, got one')
  if f.system is not None and not f.chat:
    raise cli.UsageError('system: expected --chat with it, got none')
  prompts: list[Any] = [f.prompt] if f.prompts is None else _read(f.prompts)
  if not f.chat:
    if wrong := [p for p in prompts if not isinstance(p, str)]:
      raise cli.UsageError(f'chat: expected for messages, got none: {wrong[0]}')
    return prompts
  from hpmoe.models.checkpoint import chat

  begin = [dict(role='system', content=f.system)] if f.system else []
  return [
    chat.render(
      files,
      begin + ([dict(role='user', content=p)] if isinstance(p, str) else p),
    )
    for p in prompts
  ]


def _read(path: str) -> list[Any]:
  """Returns the prompts of a file: texts, or messages."""
  lines = pathlib.Path(path).read_text(encoding='utf-8').splitlines()
  prompts = [line for line in lines if line.strip()]
  if pathlib.Path(path).suffix == '.jsonl':
    prompts = [_of_line(path, line) for line in prompts]
  if not prompts:
    raise ValueError(f'prompts: expected some in {path}, got none')
  return prompts


def _of_line(path: str, line: str) -> Any:
  try:
    content = json.loads(line)
    return content['prompt'] if 'prompt' in content else content['messages']
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(
      f'prompts: expected objects with a prompt or messages in {path}, got '
      f'{line[:40]}'
    ) from error


def _without_mindspore(f: parser.Values) -> cli.UsageError:
  return cli.UsageError(
    f'device: expected --framework=mindspore with it, got {f.device}'
  )


def _stepper(f: parser.Values):
  if f.framework == 'jax':
    if f.device != 'cpu':
      raise _without_mindspore(f)
    from hpmoe.models.jax import stepper as of_jax

    return of_jax.Stepper
  from hpmoe.models.mindspore import device
  from hpmoe.models.mindspore import stepper as of_mindspore

  device.use(f.device, f.moe)
  return of_mindspore.Stepper


def _write_texts(
  model, config, tokenizer, prompts, count, sampling, stops, screen: '_Screen'
) -> list[dict[str, Any]]:
  """Generates and shows texts; returns text, tokens and end of each."""
  from hpmoe.models import generation
  from hpmoe.models import writing

  writers = [writing.Writer(tokenizer, prompt, stops) for prompt in prompts]
  first = screen.begin(len(prompts))

  def show_token(row: int, token: int | None) -> bool:
    if token is None:
      screen.end(first + row, writers[row].end())
    else:
      screen.add(first + row, writers[row].add(token))
    return writers[row].stopped is None

  texts = generation.generate(
    model, config, prompts, count, sampling, show_token
  )
  return [
    dict(text=writer.text, tokens=tokens, end=_end(writer, tokens, count))
    for writer, tokens in zip(writers, texts)
  ]


def _end(writer, tokens: Sequence[int], count: int) -> str:
  if writer.stopped is not None:
    return 'stop'
  return 'tokens' if len(tokens) == count else 'eos'


class _Screen:
  """Prints texts in order; the first unfinished one is printed as it grows."""

  def __init__(self, heads: Sequence[str]):
    self._heads = heads
    self._texts = [''] * len(heads)
    self._counts = [0] * len(heads)
    self._finished_texts: set[int] = set()
    self._num_begun = 0
    self._next = self._num_shown = 0  # a text, and its characters shown so far
    self._last: float | None = None
    self._num_timed, self._seconds = 0, 0.0

  def begin(self, count: int) -> int:
    """Begins `count` further texts; returns the number of the first."""
    first, self._num_begun = self._num_begun, self._num_begun + count
    self._last = None
    return first

  def add(self, number: int, piece: str) -> None:
    """Takes what came with a token."""
    self._count(number)
    self._texts[number] += piece
    self._flush()

  def end(self, number: int, piece: str) -> None:
    """Takes the last of a text."""
    self._texts[number] += piece
    self._finished_texts.add(number)
    self._flush()

  def _flush(self) -> None:
    while self._next < len(self._heads):
      number = self._next
      # Nothing before the first token: an error is one line.
      if self._texts[number] or number in self._finished_texts:
        text = self._heads[number] + self._texts[number]
        self._show(text[self._num_shown :])
        self._num_shown = len(text)
      if number not in self._finished_texts:
        return
      self._show('\n')
      self._next, self._num_shown = number + 1, 0

  def _show(self, text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

  def _count(self, number: int) -> None:
    self._counts[number] += 1
    now = time.perf_counter()
    if self._counts[number] > _UNTIMED and self._last is not None:
      self._num_timed += 1
      self._seconds += now - self._last
    self._last = now

  @property
  def rate(self) -> float | None:
    """Tokens a second, of all texts."""
    return self._num_timed / self._seconds if self._num_timed else None

  def speed(self) -> str:
    """Returns how many tokens there are, and how fast they came."""
    total = sum(self._counts)
    if self.rate is None:
      return f'{total} tokens'
    return (
      f'{total} tokens, {self.rate:.1f} a second from the {_UNTIMED + 1}rd on'
    )


COMMAND = cli.Command(
  'generate',
  _list_options,
  _generate,
)
