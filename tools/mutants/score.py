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
  found = planting.read(_OUTCOMES)
  return {one.mutant: one for one in found if one.mutant in names}


def write(mutants: Sequence[catalogue.Mutant], found: Outcomes) -> None:
  """Writes the catalogue's outcomes, and counts of them for docs/."""
  _OUTCOMES.unlink(missing_ok=True)
  for mutant in mutants:
    if mutant.name in found:
      planting.append(_OUTCOMES, found[mutant.name])
  figures.write(
    'mutants', COLUMNS, rows(mutants, found), [figures.run('make mutants')]
  )


def verdict(mutant: catalogue.Mutant, outcome: planting.Outcome) -> str:
  """Returns the first who found it, or that nobody did."""
  known = [one for one in FINDERS if one in outcome.by]
  if outcome.by:
    return (known or list(outcome.by))[0]
  return EQUIVALENT if mutant.equivalent else SURVIVED


def wrong(mutants: Sequence[catalogue.Mutant], outcomes: Outcomes) -> list[str]:
  """Returns a line for every mutant that did not end as it should."""
  lines = []
  for mutant in mutants:
    outcome = outcomes.get(mutant.name)
    if outcome is None:
      lines.append(f'{mutant.name}: expected an outcome, got none')
    elif not outcome.by and not mutant.equivalent:
      lines.append(f'{mutant.name}: survived: {mutant.imitates}')
    elif outcome.by and mutant.equivalent:
      lines.append(
        f'{mutant.name}: expected no difference ({mutant.equivalent}), got '
        f'{outcome.text} at {outcome.rung}'
      )
  return lines


def misplaced(
  mutants: Sequence[catalogue.Mutant], outcomes: Outcomes
) -> list[str]:
  """Returns a line for every mutant found elsewhere, without a reason."""
  lines = []
  for mutant in mutants:
    outcome = outcomes.get(mutant.name)
    if outcome is None or not outcome.by:
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
  tried = [m for m in mutants if m.name in outcomes]
  ends = {m.name: verdict(m, outcomes[m.name]) for m in tried}
  tested = [m for m in tried if planting.UNIT_TEST in outcomes[m.name].by]
  found = [m for m in tried if outcomes[m.name].by]
  first = [m for m in found if outcomes[m.name].rung == DEFAULT]
  away = [
    m
    for m in found
    if m not in tested and not planting.located(m, outcomes[m.name])
  ]
  survivors = [name for name, end in ends.items() if end == SURVIVED]
  return [
    kind.replace('_', ' '),
    len(mutants),
    len(mutants) - len(tried),
    len(first),
    len(found) - len(first) - len(tested),
    len(tested),
    list(ends.values()).count(EQUIVALENT),
    len(away),
    ', '.join(survivors) or 'none',
  ]
