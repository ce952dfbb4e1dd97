"""Text from tokens as they come, up to where it is to stop."""

from collections.abc import Sequence

import tokenizers


class Writer:
  """The text after one prompt.

  Attributes:
    text: what was returned so far.
    stopped: the stop string that came, or None.
  """

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    prompt: Sequence[int],
    stops: Sequence[str] = (),
  ):
    """Begins after a prompt, which decides how its text is joined on."""
    self._tokenizer, self._stops = tokenizer, [s for s in stops if s]
    self._decoding = tokenizers.decoders.DecodeStream(
      ids=[*prompt], skip_special_tokens=True
    )
    self._held = ''
    self.text = ''
    self.stopped: str | None = None

  def add(self, token: int) -> str:
    """Returns what text there is now: whole characters, no part of a stop.

    After a stop string nothing comes; special tokens are left out.
    """
    self._held += self._decoding.step(self._tokenizer, token) or ''
    found = {s: at for s in self._stops if (at := self._held.find(s)) >= 0}
    if found:
      self.stopped = min(found, key=lambda s: found[s])
      self._held = self._held[: found[self.stopped]]
    keep = 0 if found else max(map(self._begun, self._stops), default=0)
    return self._let(len(self._held) - keep)

  def end(self) -> str:
    """Returns what was held back, as no stop string came of it."""
    return self._let(len(self._held))

  def _begun(self, stop: str) -> int:
    """Returns how much of a stop string stands at the end."""
    lengths = range(min(len(stop) - 1, len(self._held)), 0, -1)
    return next((n for n in lengths if self._held.endswith(stop[:n])), 0)

  def _let(self, count: int) -> str:
    piece, self._held = self._held[:count], self._held[count:]
    self.text += piece
    return piece
