"""What tensors are called elsewhere, and how they are laid out: names.toml.

[tensors]                  # ours = theirs
y = "Module.mlp.MoE.forward.0.output.0"

[layouts]                  # see `layouts`
gate_up = "R N 2F, interleaved"

[drop]                     # what is not judged
names = ["bias", "Functional.*"]
"""

from collections.abc import Mapping
import dataclasses
import tomllib

from hpmoe.parity_tests.case.theirs import layouts as layouts_lib
from hpmoe.reference.contract import tensors


@dataclasses.dataclass(frozen=True)
class Names:
  """What tensors are called elsewhere.

  Attributes:
    tensors: their name for ours.
    layouts: how they lay it out.
    drop: names of theirs that are not judged, or patterns with *.

  """

  tensors: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layouts: Mapping[str, layouts_lib.Layout] = dataclasses.field(
    default_factory=dict
  )
  drop: tuple[str, ...] = ()


def read(path: str | None) -> Names:
  """Returns a map; None: names and layouts of ours.

  Raises:
    ValueError: the file cannot be read, or names a tensor that is none of ours.
  """
  if path is None:
    return Names()
  try:
    with open(path, 'rb') as file:
      held = tomllib.load(file)
    unknown = {*held} - {'tensors', 'layouts', 'drop'}
    if unknown:
      raise ValueError(
        f'expected [tensors], [layouts] and [drop], got {sorted(unknown)}'
      )
    strange = {*held.get('tensors', {})} - {*tensors.SPECS}
    if strange:
      raise ValueError(
        f'tensors: expected names of ours on the left, got {sorted(strange)}'
      )
    return Names(
      held.get('tensors', {}),
      layouts_lib.of(held.get('layouts', {})),
      tuple(held.get('drop', {}).get('names', ())),
    )
  except (OSError, ValueError) as error:
    raise ValueError(f'names: {path}: {error}') from error
