"""What became of the mutants, as tables."""

from collections.abc import Mapping, Sequence

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
  'unit test',
)
# The check that a user types first: no flag but those of our own choosing.
DEFAULT = 'check'
SURVIVED = 'survived'
EQUIVALENT = 'equivalent'

Outcomes = Mapping[str, planting.Outcome]


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
  """Returns a line for every mutant that was found elsewhere than it is."""
  lines = []
  for mutant in mutants:
    outcome = outcomes.get(mutant.name)
    if outcome is None or not outcome.by or mutant.guard:
      continue
    if planting.located(mutant, outcome):
      continue
    lines.append(
      f'{mutant.name}: expected {mutant.stage}'
      f'{"".join(f" {n}={v}" for n, v in mutant.tile.items())}, got '
      f'{outcome.stage or outcome.text}'
    )
  return lines


def summary(mutants: Sequence[catalogue.Mutant], outcomes: Outcomes) -> str:
  """Returns who found how many, first and at all, and how many are located."""
  done = [m for m in mutants if m.name in outcomes]
  first = [verdict(m, outcomes[m.name]) for m in done]
  lines = [f'{"found by":<12}{"first":>6}{"at all":>8}']
  for finder in FINDERS:
    also = sum(finder in outcomes[m.name].by for m in done)
    if also:
      lines.append(f'{finder:<12}{first.count(finder):>6}{also:>8}')
  found = [m for m in done if outcomes[m.name].by]
  judged = [m for m in found if not m.guard]
  located = sum(planting.located(m, outcomes[m.name]) for m in judged)
  by_default = sum(outcomes[m.name].rung == DEFAULT for m in found)
  lines.append(
    f'{len(done)} planted, {len(found)} found, {located} of {len(judged)} '
    f'located, {first.count(SURVIVED)} survived, {first.count(EQUIVALENT)} '
    'equivalent'
  )
  lines.append(
    f'{by_default} of {len(judged)} found by `hpmoe check` without a flag'
  )
  return '\n'.join(lines)


def markdown(mutants: Sequence[catalogue.Mutant], outcomes: Outcomes) -> str:
  """Returns one line for each mutant, for docs/mutants.md."""
  lines = [
    '| mutant | imitates | found by | at | where |',
    '|---|---|---|---|---|',
  ]
  for mutant in mutants:
    outcome = outcomes.get(mutant.name)
    if outcome is None:
      continue
    if not outcome.by:
      by, where = verdict(mutant, outcome), mutant.equivalent
    else:
      by = ', '.join(outcome.by)
      where = outcome.stage or mutant.stage
      here = mutant.guard or planting.located(mutant, outcome)
      where += '' if here else ' (elsewhere)'
    cells = (mutant.name, mutant.imitates, by, outcome.rung, where)
    lines.append('| ' + ' | '.join(c.replace('|', '\\|') for c in cells) + ' |')
  return '\n'.join(lines)
