"""What became of the mutants, as tables."""

from collections.abc import Mapping, Sequence
import pathlib
import string

from hpmoe.tools import import_graph
from hpmoe.tools.mutants import catalogue
from hpmoe.tools.mutants import outcomes as log_lib
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

DOCS = import_graph.ROOT / 'docs/mutants.md'
_PAGE = pathlib.Path(__file__).with_name('page.md')
_OUTCOMES = catalogue.DATA / 'outcomes.jsonl'

Outcomes = Mapping[str, planting.Outcome]


def outcomes(
  mutants: Sequence[catalogue.Mutant],
) -> dict[str, planting.Outcome]:
  """Returns the outcomes that the catalogue holds of its mutants."""
  names = {mutant.name for mutant in mutants}
  found = (
    planting.Outcome(**fields | dict(by=tuple(fields['by'])))
    for fields in log_lib.read(_OUTCOMES)
  )
  return {one.mutant: one for one in found if one.mutant in names}


def write(mutants: Sequence[catalogue.Mutant], found: Outcomes) -> None:
  """Writes the catalogue's outcomes, and docs/mutants.md of them."""
  _OUTCOMES.unlink(missing_ok=True)
  for mutant in mutants:
    if mutant.name in found:
      log_lib.append(_OUTCOMES, found[mutant.name])
  DOCS.write_text(page(mutants, found), 'utf-8')


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
  judged = [m for m in found if not _by_test(outcomes[m.name])]
  located = sum(planting.located(m, outcomes[m.name]) for m in judged)
  by_default = sum(outcomes[m.name].rung == DEFAULT for m in found)
  lines.append(
    f'{len(done)} planted, {len(found)} found, {located} of {len(judged)} '
    f'located, {first.count(SURVIVED)} survived, {first.count(EQUIVALENT)} '
    'equivalent'
  )
  lines.append(
    f'{by_default} found by `hpmoe check` without a flag, '
    f'{len(judged) - by_default} by further checks, '
    f'{len(found) - len(judged)} by tests of the suite only'
  )
  return '\n'.join(lines)


def markdown(mutants: Sequence[catalogue.Mutant], outcomes: Outcomes) -> str:
  """Returns a heading and a table for each end, for docs/mutants.md."""
  done = [m for m in mutants if m.name in outcomes]
  tested = [m for m in done if _by_test(outcomes[m.name])]
  found = [m for m in done if outcomes[m.name].by and m not in tested]
  default = [m for m in found if outcomes[m.name].rung == DEFAULT]
  further = [m for m in found if outcomes[m.name].rung != DEFAULT]
  rest = [m for m in done if m not in found]
  tables = (
    (
      'Found by `hpmoe check` without a flag',
      ('mutant', 'imitates', 'found by', 'where'),
      [_row(m, outcomes[m.name]) for m in default],
    ),
    (
      'Found by further checks only',
      ('mutant', 'imitates', 'found by', 'where', 'by the check'),
      [(*_row(m, outcomes[m.name]), outcomes[m.name].rung) for m in further],
    ),
    (
      'Found elsewhere than they are',
      ('mutant', 'it is at', 'why it is found elsewhere'),
      [
        (m.name, m.stage, m.elsewhere or 'not known')
        for m in found
        if not planting.located(m, outcomes[m.name])
      ],
    ),
    (
      'Survived',
      ('mutant', 'imitates'),
      [
        (m.name, m.imitates)
        for m in rest
        if verdict(m, outcomes[m.name]) == SURVIVED
      ],
    ),
    (
      'Without effect',
      ('mutant', 'imitates', 'why no output can change'),
      [(m.name, m.imitates, m.equivalent) for m in rest if m.equivalent],
    ),
    (
      'Found by tests of the suite only',
      ('mutant', 'imitates', 'test'),
      [(m.name, m.imitates, f'`{outcomes[m.name].rung}`') for m in tested],
    ),
  )
  return '\n\n'.join(_table(*one) for one in tables if one[-1])


def page(mutants: Sequence[catalogue.Mutant], outcomes: Outcomes) -> str:
  """Returns docs/mutants.md."""
  done = [m for m in mutants if m.name in outcomes]
  dates = sorted({outcomes[m.name].date for m in done})
  left = [f'`{m.name}`' for m in mutants if m.name not in outcomes]
  template = string.Template(_PAGE.read_text('utf-8'))
  return template.substitute(
    planted=len(mutants),
    done=len(done) if left else 'All',
    dates=' to '.join(dict.fromkeys([dates[0], dates[-1]])) if dates else '',
    summary=summary(done, outcomes),
    left=f'Not yet tried: {", ".join(left)}.' if left else 'None is left.',
    tables=markdown(done, outcomes),
  )


def _by_test(outcome: planting.Outcome) -> bool:
  return planting.UNIT_TEST in outcome.by


def _row(mutant: catalogue.Mutant, outcome: planting.Outcome) -> tuple:
  where = outcome.stage or mutant.stage
  if not planting.located(mutant, outcome):
    where = f'{outcome.stage or "a message"} (elsewhere)'
  return mutant.name, mutant.imitates, ', '.join(outcome.by), where


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]):
  line = lambda cells: f'| {" | ".join(cells)} |'
  escaped = [[c.replace('|', '\\|') for c in cells] for cells in rows]
  lines = [line(head), line(['---'] * len(head)), *map(line, escaped)]
  return f'## {title}: {len(rows)}\n\n' + '\n'.join(lines)
