"""The checking modes of our runtime, as a check asks for them."""

import dataclasses

from hpmoe.parity_tests.case import flag_tables


@dataclasses.dataclass(frozen=True)
class Checking:
  """How a launch that is checked differs from a plain one.

  A kind of candidate has some of these modes: `Candidate.can`.

  Attributes:
    poison: buffers start as a NaN that no kernel writes; otherwise as zeros.
    permute: seed of an order among ready tasks, or None.
    late_puts: puts are delivered when nothing else can run.
    races: look for accesses that nothing orders, and beyond tiles; None: where
      tasks are ours, beyond tiles on real data.
    isolate: every task reads the oracle's tensors.
    start_at: a task; the oracle stands in for what is done before it starts.
    stop_after: a task; what it does not need is not run.
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
        'isolate: expected no start_at and no stop_after beside it: with '
        "both at one task, that task alone runs, on the oracle's tensors"
      )

  def asked(self) -> dict[str, object]:
    """Returns the modes that are not as in a plain check, by name."""
    plain = dataclasses.asdict(Checking())
    mine = dataclasses.asdict(self)
    return {name: mine[name] for name in mine if mine[name] != plain[name]}

  @property
  def replays(self) -> bool:
    """Whether some task reads what the oracle wrote."""
    return self.isolate or self.is_part

  @property
  def is_part(self) -> bool:
    """Whether some tasks are left out."""
    return self.start_at is not None or self.stop_after is not None


NAMES = tuple(field.name for field in dataclasses.fields(Checking))
# Each mode is one question that a launch, or a candidate, is asked.
FLAGS = flag_tables.read_flags('checking')
