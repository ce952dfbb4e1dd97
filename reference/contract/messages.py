"""Parts of error messages."""

from collections.abc import Iterable
import difflib

# Of longer lists, a message has the words that are nearest to what came.
_MOST_CHARS = 220
_NEAREST = 6


def name_choices(choices: Iterable[object], word: object) -> str:
  """Returns the choices in quotes: all, or the nearest where they are many.

  Args:
    choices: what is allowed, in the order of its table.
    word: what came instead.
  """
  values = list(choices)
  text = ', '.join(map(repr, values))
  if len(text) <= _MOST_CHARS:
    return text
  words = list(map(str, values))
  nearest = difflib.get_close_matches(str(word), words, _NEAREST, cutoff=0)
  text = ', '.join(map(repr, nearest))
  return f'{text} (nearest of {len(words)})'
