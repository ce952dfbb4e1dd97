"""The checking modes of our runtime."""

import dataclasses

from hpmoe.parity_tests.case import flag_tables


@dataclasses.dataclass(frozen=True)
class Checking:
  """How a checked launch differs from a plain one.

  `Candidate.capabilities` lists the modes that a kind of candidate supports.

  Attributes:
    poison: buffers start as a NaN that no kernel writes; otherwise as zeros.
    permute: seed of a random order among ready tasks, or None.
    late_puts: puts are delivered when nothing else can run.
    races: look for unordered accesses, and for accesses outside a task's
      tiles; None: for the latter alone, on real data, if tasks are ours.
    isolate: every task reads the oracle's tensors.
    start_at: a task; the oracle's tensors replace the tasks before it.
    stop_after: a task; tasks that it does not need do not run.
  """

  poison: bool = True
  permute: int | None = None
  late_puts: bool = False
  races: bool | None = None
  isolate: bool = False
  start_at: str | None = None
  stop_after: str | None = None

  def __post_init__(self):
    if self.isolate and self.is_part:
      raise ValueError(
        'isolate: expected no start_at and no stop_after with it: with '
        "both at one task, that task alone runs, on the oracle's tensors"
      )

  def find_non_default(self) -> dict[str, object]:
    """Returns the modes whose value is not the default, by name."""
    plain = dataclasses.asdict(Checking())
    modes = dataclasses.asdict(self)
    return {name: modes[name] for name in modes if modes[name] != plain[name]}

  @property
  def replays(self) -> bool:
    """Whether some task reads the oracle's tensors."""
    return self.isolate or self.is_part

  @property
  def is_part(self) -> bool:
    """Whether some tasks are left out."""
    return self.start_at is not None or self.stop_after is not None


NAMES = tuple(field.name for field in dataclasses.fields(Checking))
FLAGS = flag_tables.read_flags('checking')
