"""Parameters that a run leaves as they are, by the names that users type."""

from collections.abc import Iterable
import fnmatch

# Of Hugging Face's names, under which parameters stand.
GROUPS = {
  'embed': ('model.embed_tokens.*',),
  'head': ('lm_head.*',),
  'attention': ('*.self_attn.*',),
  'router': ('*.gate.*', '*.router.*'),
  'experts': ('*.experts.*',),
  'norms': ('*norm.weight',),
}


def names(parameters: Iterable[str], asked: str) -> frozenset[str]:
  """Returns the names of parameters that `asked` freezes.

  Args:
    parameters: names of all.
    asked: keys of `GROUPS` and patterns, such as `model.layers.0.*`, with
      commas between; '' for none.

  Raises:
    ValueError: one of them matches no parameter, or none is left to train.
  """
  known = list(parameters)
  frozen: set[str] = set()
  for word in filter(None, map(str.strip, asked.split(','))):
    patterns = GROUPS.get(word, (word,))
    found = [n for p in patterns for n in fnmatch.filter(known, p)]
    if not found:
      raise ValueError(
        f'freeze: expected one of {list(GROUPS)} that the model has, or a '
        f'pattern of its parameters such as {known[0]}, got {word!r}'
      )
    frozen.update(found)
  if frozen.issuperset(known):
    raise ValueError(f'freeze: expected a parameter left, got {asked!r}')
  return frozenset(frozen)
