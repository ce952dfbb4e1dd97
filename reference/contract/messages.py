"""Parts of error messages."""

from collections.abc import Iterable
import difflib

# Of longer lists, a message has the words that are nearest to what came.
_MOST_CHARS = 220
_NEAREST = 6
# Words that are less alike than this are near only if as long, or nearly so.
_ALIKE = 0.7
# Of an error of the user's code, a message has so much.
_MOST_OF_ERROR = 100


class ChoiceError(ValueError):
  """A word is no choice.

  Attributes:
    choices: what is allowed.
  """

  def __init__(self, expected: str, choices: Iterable[object]):
    super().__init__(expected)
    self.choices = [*choices]


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


def suggest(choices: Iterable[object], word: object) -> str:
  """Returns the end of a message that names the choice a word is near to.

  Args:
    choices: what is allowed.
    word: what came instead.

  Returns:
    Text to append, such as ": did you mean 'vllm'?"; '' if no choice is near.
  """
  words, typed = [str(c) for c in choices if str(c)], str(word)
  near = [
    w
    for w in difflib.get_close_matches(typed, words, _NEAREST)
    if abs(len(w) - len(typed)) <= 1
    or difflib.SequenceMatcher(None, w, typed).ratio() >= _ALIKE
  ]
  longer = [w for w in words if typed and w.startswith(typed)]
  if not near and len(longer) == 1:
    near = longer
  return f': did you mean {near[0]!r}?' if near else ''


def refuse_choice(
  choices: Iterable[object],
  word: object,
  *,
  quantity: str = 'one of',
  beside: str = '',
  typed: object = None,
) -> str:
  """Returns what was expected and what came, for a word that is no choice.

  Args:
    choices: what is allowed, in the order of its table.
    word: what came instead.
    quantity: 'one of', 'some of' or 'tensors among'.
    beside: what else is allowed, after the choices.
    typed: what the user typed, which holds the word; None: the word.
  """
  values = list(choices)
  came = word if typed is None else typed
  return (
    f'expected {quantity} {name_choices(values, word)}{beside}, got '
    f'{came!r}{suggest(values, word)}'
  )


def cut_line(text: object) -> str:
  """Returns the first line of a text of the user's code, cut if it is long."""
  lines = str(text).strip().splitlines() or ['']
  is_whole = len(lines) == 1 and len(lines[0]) <= _MOST_OF_ERROR
  return lines[0][:_MOST_OF_ERROR].rstrip() + ' ...' * (not is_whole)


def describe_error(error: BaseException) -> str:
  """Returns an error of the user's code with its type, in one short line."""
  text = cut_line(error)
  is_whole = text == str(error).strip()
  return repr(error) if is_whole else f'{type(error).__name__}: {text}'
