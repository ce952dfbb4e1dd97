"""What became of the mutants, as tables."""

from collections.abc import Mapping, Sequence

from hpmoe.parity_tests.report import text_table
from hpmoe.tools.docs import figures
from hpmoe.tools.mutants import catalogue
from hpmoe.tools.mutants import planting

# Who found a mutant: what refuses a flow or stops a launch before lanes speak.
FINDERS = (
  'proof',
  'launch',
  'error',
  'exact',
  'bitwise',
  'bounded',
  'standard',
  'races',
  planting.UNIT_TEST,
)
# The check that a user types first: no flag but those of our own choosing.
DEFAULT = 'check'
SURVIVED = 'survived'
EQUIVALENT = 'equivalent'

COLUMNS = (
  'bugs of',
  'planted',
  'not tried',
  '`hpmoe check`',
  'with flags',
  'tests alone',
  'no effect',
  'found elsewhere',
  'survived',
)
_OUTCOMES = catalogue.DATA / 'outcomes.jsonl'

Outcomes = Mapping[str, planting.Outcome]


def outcomes(
  mutants: Sequence[catalogue.Mutant],
) -> dict[str, planting.Outcome]:
  """Returns the outcomes that the catalogue holds of its mutants."""
  names = {mutant.name for mutant in mutants}
  outcomes_read = planting.read(_OUTCOMES)
  return {
    outcome.mutant: outcome
    for outcome in outcomes_read
    if outcome.mutant in names
  }


def write(
  mutants: Sequence[catalogue.Mutant], outcomes_found: Outcomes
) -> None:
  """Writes the catalogue's outcomes, and counts of them for docs/."""
  _OUTCOMES.unlink(missing_ok=True)
  for mutant in mutants:
    if mutant.name in outcomes_found:
      planting.append(_OUTCOMES, outcomes_found[mutant.name])
  figures.write(
    'mutants',
    COLUMNS,
    rows(mutants, outcomes_found),
    [figures.run('make mutants')],
  )


def verdict(mutant: catalogue.Mutant, outcome: planting.Outcome) -> str:
  """Returns the first finder of a mutant, or that it survived."""
  known_finders = [finder for finder in FINDERS if finder in outcome.finders]
  if outcome.finders:
    return (known_finders or list(outcome.finders))[0]
  return EQUIVALENT if mutant.equivalent else SURVIVED


def wrong(mutants: Sequence[catalogue.Mutant], outcomes: Outcomes) -> list[str]:
  """Returns a line for every mutant that did not end as it should."""
  lines = []
  for mutant in mutants:
    outcome = outcomes.get(mutant.name)
    if outcome is None:
      lines.append(f'{mutant.name}: expected an outcome, got none')
    elif not outcome.finders and not mutant.equivalent:
      lines.append(f'{mutant.name}: survived: {mutant.imitates}')
    elif outcome.finders and mutant.equivalent:
      lines.append(
        f'{mutant.name}: expected no difference ({mutant.equivalent}), got '
        f'{outcome.text} at {outcome.check}'
      )
  return lines


def misplaced(
  mutants: Sequence[catalogue.Mutant], outcomes: Outcomes
) -> list[str]:
  """Returns a line for every mutant found elsewhere, without a reason."""
  lines = []
  for mutant in mutants:
    outcome = outcomes.get(mutant.name)
    if outcome is None or not outcome.finders:
      continue
    if mutant.elsewhere or planting.located(mutant, outcome):
      continue
    lines.append(
      f'{mutant.name}: expected {mutant.stage}'
      f'{"".join(f" {n}={v}" for n, v in mutant.tile.items())}, got '
      f'{outcome.stage or outcome.text}'
    )
  return lines


def table(mutants: Sequence[catalogue.Mutant], outcomes: Outcomes) -> str:
  """Returns how many of each kind ended how."""
  cells = [[*map(str, row)] for row in rows(mutants, outcomes)]
  return text_table.format_table(COLUMNS, cells)


def rows(
  mutants: Sequence[catalogue.Mutant], outcomes: Outcomes
) -> list[list[object]]:
  """Returns how many of each kind ended how, and the names of survivors."""
  kinds = [*dict.fromkeys(m.kind for m in mutants), 'all']
  return [
    _row(kind, [m for m in mutants if kind in (m.kind, 'all')], outcomes)
    for kind in kinds
  ]


def _row(
  kind: str, mutants: Sequence[catalogue.Mutant], outcomes: Outcomes
) -> list[object]:
  with_outcome = [m for m in mutants if m.name in outcomes]
  ends = {m.name: verdict(m, outcomes[m.name]) for m in with_outcome}
  tested = [
    m for m in with_outcome if planting.UNIT_TEST in outcomes[m.name].finders
  ]
  detected = [m for m in with_outcome if outcomes[m.name].finders]
  first = [m for m in detected if outcomes[m.name].check == DEFAULT]
  away = [
    m
    for m in detected
    if m not in tested and not planting.located(m, outcomes[m.name])
  ]
  survivors = [name for name, end in ends.items() if end == SURVIVED]
  return [
    kind.replace('_', ' '),
    len(mutants),
    len(mutants) - len(with_outcome),
    len(first),
    len(detected) - len(first) - len(tested),
    len(tested),
    list(ends.values()).count(EQUIVALENT),
    len(away),
    ', '.join(survivors) or 'none',
  ]
