"""The checking modes of our runtime."""

import dataclasses

from hpmoe.reference.contract import option_fields


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

  poison: bool = option_fields.option(
    True,
    'Fill buffers with NaN before a launch; --nopoison: with zeros. With '
    '--candidate, fill memory that it allocates with garbage '
    '(MALLOC_PERTURB_ of glibc; no effect elsewhere).',
  )
  permute: int | None = option_fields.option(
    None,
    'Seed of the order in which ready tasks run. Default: the order of the '
    'queues.',
    minimum=0,
  )
  late_puts: bool = option_fields.option(
    False,
    'Deliver a put only when nothing else can run.',
  )
  races: bool | None = option_fields.option(
    None,
    'Detect unordered accesses with vector clocks, and writes outside a '
    "task's tile; either fails the check. Default: races in every launch "
    'of the megakernel with --launcher=threads, writes outside tiles in '
    'launches on real data. --races also prints a count of 0.',
  )
  isolate: bool = option_fields.option(
    False,
    "Each task reads the oracle's tensors, so that a fault does not "
    'spread; the report names the wrong tasks. Detects races too. With '
    "--candidate, each of its function.stages runs on the oracle's tensors.",
  )
  start_at: str | None = option_fields.option(
    None,
    "Start at this task: the oracle's tensors replace all earlier results. "
    "A task number, or a name such as 'gate_up rank=1 expert=3 row_block=0 "
    "col_block=2'.",
  )
  stop_after: str | None = option_fields.option(
    None,
    'Run only this task and the tasks that it depends on. A task number, '
    "or a name such as 'gate_up rank=1 expert=3 row_block=0 col_block=2'.",
  )

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
FLAGS = option_fields.list_options(Checking)
