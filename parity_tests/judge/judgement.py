"""How a candidate is judged: lanes, records, sampling."""

import dataclasses

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards
from hpmoe.reference.contract import option_fields

# A sample is judged by golden values alone: the oracle computes whole tensors.
OF_SAMPLE = ('bitwise', 'bounded')


@dataclasses.dataclass(frozen=True)
class Judgement:
  """The lanes and records of a check, and how much they judge.

  Attributes:
    lanes: some of `verdicts.LANES`.
    standards: names of records for lane 'standard'.
    tiles: number of tiles of each stage to judge; None: all.
    repeat: runs of each pass on real data; None: two for a user's kernel if
      that is cheap, one for the megakernel.
    allow_nondeterministic: whether runs may differ; then each is judged.
    search_roundings: whether the roundings that explain a failure are searched
      for, which compiles the oracle under many policies.
  """

  lanes: tuple[str, ...] = option_fields.option(
    verdicts.LANES,
    '`all`, or some of exact, bitwise, bounded, standard. Lane exact calls '
    "the candidate with policy.activation 'absolute'.",
    flag='lane',
    typed=('all',),
    choices=('all', *verdicts.LANES),
  )
  standards: tuple[str, ...] = option_fields.option(
    standards.DEFAULT,
    'Acceptance rules of lane standard, some of '
    f'{", ".join(standards.STANDARDS)}. A rule judges only the tensors that '
    f'it is meant for. Default: {",".join(standards.DEFAULT)}.',
    flag='standard',
    typed=(),
  )
  tiles: int | None = option_fields.option(
    None,
    'Judge a sample, for shapes whose oracle takes too long: this many row '
    'blocks of each stage and those at the edges, and as many tokens of '
    'each rank from x to y; data movement and order are judged completely. '
    '--seed chooses the sample. Forward pass, lanes bitwise and bounded. '
    'Default: every tile.',
    minimum=1,
  )
  repeat: int | None = option_fields.option(
    None,
    'Number of runs of each pass on the same real data; their bits must '
    'agree. Default: 2 with a --candidate whose runs take a few seconds in '
    'all, else 1.',
    minimum=1,
  )
  allow_nondeterministic: bool = option_fields.option(
    False,
    'Runs may differ in bits; each run is judged, and all must pass.',
  )
  search_roundings: bool = option_fields.option(
    True,
    'After a failure, search for roundings that explain it; this may take '
    'a minute.',
  )

  def __post_init__(self):
    unknown = [lane for lane in self.lanes if lane not in verdicts.LANES]
    if unknown or not self.lanes:
      raise ValueError(
        f'lanes: expected some of {list(verdicts.LANES)}, got {[*self.lanes]}'
      )

  def refuse(
    self, case: case_lib.Case, candidate: candidates.Candidate
  ) -> None:
    """Refuses options that the case or the candidate does not allow.

    Raises:
      ValueError: a sample cannot judge the case, or a part of a pass would be
        repeated.
    """
    if self.repeat is not None and self.repeat < 1:
      raise ValueError(f'repeat: expected at least 1, got {self.repeat}')
    if self.repeat not in (None, 1) and candidate.checking.is_part:
      raise ValueError(
        'repeat: expected 1 with --start_at and --stop_after, got '
        f'{self.repeat}'
      )
    form = case.rows or case.recipe
    if form and self.lanes == ('exact',):
      raise ValueError(
        'lanes: expected some of bitwise, bounded, standard where rows become '
        f'{form}, for which no data are exact, got exact'
      )
    if self.tiles is None:
      return
    if self.tiles < 1:
      raise ValueError(f'tiles: expected at least 1, got {self.tiles}')
    if case.direction != 'forward' or candidate.checking.replays:
      raise ValueError(
        'tiles: expected --direction=forward without --isolate, --start_at '
        f'and --stop_after, got {case.direction} '
        f'{candidate.checking.find_non_default()}'
      )
    if set(self.lanes) != set(OF_SAMPLE):
      raise ValueError(
        f'tiles: expected --lane={",".join(OF_SAMPLE)}, got '
        f'{",".join(self.lanes)}'
      )


FLAGS = option_fields.list_options(Judgement)
