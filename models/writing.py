"""Text from tokens as they come, up to where it is to stop."""

from collections.abc import Callable, Sequence
from typing import Protocol

import tokenizers


class Streaming(Protocol):
  """A tokenizer of another library, as `checkpoint/vocabularies.py` has it."""

  def stream(self, prompt: Sequence[int]) -> Callable[[int], str]:
    """Returns a function of each next token: the text that it completes."""


Tokenizer = tokenizers.Tokenizer | Streaming


class Writer:
  """The text after one prompt.

  Attributes:
    text: what was returned so far.
    stopped: the stop string that came, or None.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    stops: Sequence[str] = (),
  ):
    """Begins after a prompt, which decides how its text is joined on."""
    self._stops = [s for s in stops if s]
    self._decode = _stream(tokenizer, prompt)
    self._pending = ''
    self.text = ''
    self.stopped: str | None = None

  def add(self, token: int) -> str:
    """Returns the text that is now certain: no part of a character or a stop.

    Nothing follows a stop string; special tokens are left out.
    """
    self._pending += self._decode(token)
    first_places = {
      s: place for s in self._stops if (place := self._pending.find(s)) >= 0
    }
    if first_places:
      self.stopped = min(first_places, key=lambda s: first_places[s])
      self._pending = self._pending[: first_places[self.stopped]]
    keep = (
      0
      if first_places
      else max(map(self._match_length, self._stops), default=0)
    )
    return self._let(len(self._pending) - keep)

  def end(self) -> str:
    """Returns the pending text; no stop string followed."""
    return self._let(len(self._pending))

  def _match_length(self, stop: str) -> int:
    """Returns how many characters of a stop string end the pending text."""
    lengths = range(min(len(stop) - 1, len(self._pending)), 0, -1)
    return next((n for n in lengths if self._pending.endswith(stop[:n])), 0)

  def _let(self, count: int) -> str:
    piece, self._pending = self._pending[:count], self._pending[count:]
    self.text += piece
    return piece


def _stream(
  tokenizer: Tokenizer, prompt: Sequence[int]
) -> Callable[[int], str]:
  """Returns a function of each next token: the text that it completes."""
  if not isinstance(tokenizer, tokenizers.Tokenizer):
    return tokenizer.stream(prompt)
  decoding = tokenizers.decoders.DecodeStream(
    ids=[*prompt], skip_special_tokens=True
  )
  return lambda token: decoding.step(tokenizer, token) or ''
