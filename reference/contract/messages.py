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
    word: what came instead; '?' asks for all.
  """
  values = list(choices)
  text = ', '.join(map(repr, values))
  if len(text) <= _MOST_CHARS or word == '?':
    return text
  words = list(map(str, values))
  begins_alike = [w for w in words if word and w.startswith(str(word))]
  nearest = difflib.get_close_matches(str(word), words, _NEAREST, cutoff=0)
  nearest = list(dict.fromkeys([*begins_alike, *nearest]))[:_NEAREST]
  text = ', '.join(map(repr, nearest))
  return f'{text} (nearest of {len(words)})'
