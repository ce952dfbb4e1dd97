"""Parameters that a run leaves as they are, by the names that users type."""

from collections.abc import Iterable
import fnmatch

# Of Hugging Face's names, under which parameters stand.
GROUPS = {
  'embed': ('model.embed_tokens.*',),
  'head': ('lm_head.*',),
  'attention': ('*.self_attn.*', '*.linear_attn.*'),
  'router': ('*.gate.*', '*.router.*'),
  'experts': ('*.experts.*',),
  'norms': ('*norm.weight',),
}


def names(parameters: Iterable[str], patterns_text: str) -> frozenset[str]:
  """Returns the names of parameters that `patterns_text` freezes.

  Args:
    parameters: names of all.
    patterns_text: comma-separated keys of `GROUPS` and patterns, such as
      `model.layers.0.*`; '' for none.

  Raises:
    ValueError: one of them matches no parameter, or none is left to train.
  """
  all_names = list(parameters)
  frozen_names: set[str] = set()
  for word in filter(None, map(str.strip, patterns_text.split(','))):
    patterns = GROUPS.get(word, (word,))
    matches = [n for p in patterns for n in fnmatch.filter(all_names, p)]
    if not matches:
      raise ValueError(
        f'freeze: expected one of {list(GROUPS)} that the model has, or a '
        f'pattern of its parameters such as {all_names[0]}, got {word!r}'
      )
    frozen_names.update(matches)
  if frozen_names.issuperset(all_names):
    raise ValueError(
      f'freeze: expected a parameter left, got {patterns_text!r}'
    )
  return frozenset(frozen_names)
