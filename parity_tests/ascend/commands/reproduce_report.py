"""A reproduction as text, as data and as a plot."""

from collections.abc import Mapping, Sequence
import dataclasses

from hpmoe.backend_ascend.simulator.reproduce import fit
from hpmoe.backend_ascend.simulator.reproduce import null
from hpmoe.backend_ascend.simulator.reproduce import score as score_lib
from hpmoe.backend_ascend.simulator.reproduce import sensitivity
from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib
from hpmoe.parity_tests.report import json_fields
from hpmoe.parity_tests.report import text_table
from hpmoe.reference.contract import plot_style

# The text leaves out rows that change by less; JSON has all.
_SHOWN_CHANGE = 0.01


@dataclasses.dataclass(frozen=True)
class Reproduction:
  """The report of one run of a witness.

  Attributes:
    score: rows and errors.
    machines: the machines that it ran on, by name.
    effects: effects of assumed figures; empty without --sensitivity.
    refitted: other hypotheses; empty without --hypotheses.
    seconds: duration of the run.
  """

  score: score_lib.Score
  machines: witness_lib.Machines
  effects: tuple[sensitivity.Effect, ...]
  refitted: tuple[fit.Refitted, ...]
  seconds: float

  def content(self) -> dict:
    """Returns the report as plain data."""
    witness = self.score.witness
    return dict(
      witness=witness.name,
      about=witness.about,
      verdict=_verdict(self.score),
      seconds=round(self.seconds, 2),
      rows=[
        json_fields.rename_fields(s.row, summands='of')
        | dict(simulated=s.value, error=s.error)
        for s in self.score.rows
      ],
      held_out=[
        dataclasses.asdict(g) | dict(holds=g.holds, has_skill=g.has_skill)
        for g in self.score.groups
      ],
      audit=self._audit(),
      claims=[
        dict(text=t, holds=h, why=w, null_holds=t in self.score.trivial)
        for t, h, w in self.score.claims
      ],
      fitted=[
        dataclasses.asdict(fit) | dict(value=self._value_of(fit))
        for fit in self._fits()
      ],
      machines={
        name: {
          figure: dataclasses.asdict(content)
          for figure, content in machine.figures.items()
        }
        for name, machine in self.machines.items()
      },
      sensitivity=[
        json_fields.rename_fields(effect, refusal='refused')
        for effect in self.effects
      ],
      hypotheses=[
        dict(
          text=other.text,
          fitted=other.figures,
          rows={s.row.name: s.value for s in other.score.rows},
          held_out=[dataclasses.asdict(g) for g in other.score.groups],
        )
        if other.score
        else dict(text=other.text, refused=other.refusal)
        for other in self.refitted
      ],
      not_reproduced=[
        json_fields.rename_fields(gap, figure='what', reason='why')
        for gap in witness.gaps
      ],
    )

  def text(self) -> str:
    """Returns the tables that the command prints."""
    parts = [
      self.score.witness.about,
      _rows(self.score),
      _held_out(self.score),
      *_unknown(self.score),
      self._audit_line(),
      *self._claims(),
      *self._no_skill(),
      *self._lines(),
      self._fitted(),
      *self._sensitivity(),
      *self._hypotheses(),
      *self._gaps(),
      self._verdict_line(),
    ]
    return '\n\n'.join(parts)

  def _lines(self) -> list[str]:
    """Returns a line for each group without a goal and each failing claim."""
    lines = [
      f'WITHDRAWN {w.group}: {w.reason}' for w in self.score.witness.withdrawals
    ]
    lines += [
      f'CLAIM FAILS: {text}: {reason}'
      for text, reason in self.score.failing_claims
    ]
    return ['\n'.join(lines)] if lines else []

  def _verdict_line(self) -> str:
    goals = [g for g in self.score.groups if g.limit is not None]
    failing = [group.name for group in goals if not group.holds]
    result = (
      f'{_verdict(self.score).upper()}: {len(goals) - len(failing)} of '
      f'{len(goals)} goals hold'
      if goals
      else 'NO GOAL'
    )
    counts = {
      'withdrawn:': len(self.score.witness.withdrawals),
      'failing claims:': len(self.score.failing_claims),
    }
    return ', '.join(
      [
        result + (f', not {", ".join(failing)}' if failing else ''),
        *(f'{name} {count}' for name, count in counts.items() if count),
        f'{self.seconds:.1f} s',
      ]
    )

  def _audit(self) -> dict[str, object]:
    """Counts fitted and assumed figures, and the rows left as evidence.

    Figures are counted by their tags, not by the witness's own list of fits.
    """
    score, witness = self.score, self.score.witness
    figures = {
      (figure.source, name): figure.tag
      for machine in self.machines.values()
      for name, figure in machine.figures.items()
    }
    tags = list(figures.values())
    rows = [scored_row.row for scored_row in score.rows]
    return dict(
      fitted_figures=len(self._fits()),
      fitted_rows=len({name for fit in self._fits() for name in fit.rows}),
      fitted_elsewhere=tags.count('fitted') - len(self._fits()),
      assumed_figures=tags.count('assumed'),
      evidence=sum(g.rows for g in score.groups if g.limit is not None),
      without_goal=sum(g.rows for g in score.groups if g.limit is None),
      sums=sum(bool(row.summands) and not row.fitted for row in rows),
      seen=list(witness.informed),
    )

  def _audit_line(self) -> str:
    audit = self._audit()
    choices = '; '.join(self.score.witness.informed) or 'nothing'
    return (
      'audit: {fitted_figures} figures chosen by {fitted_rows} rows, '
      '{fitted_elsewhere} by those of others, {assumed_figures} assumed; '
      '{evidence} held-out rows count, {sums} are sums of others, '
      '{without_goal} have no goal; settled with held-out rows known: '
    ).format(**audit) + choices

  def _no_skill(self) -> list[str]:
    """Names the groups that a null predictor predicts as well, if any."""
    unskilled_groups = [
      group.name
      for group in self.score.groups
      if group.limit is not None and not group.has_skill
    ]
    if not unskilled_groups:
      return []
    nontrivial_claims = [
      text
      for text, holds, _ in self.score.claims
      if holds and text not in self.score.trivial
    ]
    return [
      f'NO SKILL in {", ".join(unskilled_groups)}: a null predictor errs as '
      f'little. Beyond it: {"; ".join(nontrivial_claims) or "nothing"}.'
    ]

  def _claims(self) -> list[str]:
    rows = [
      {
        'holds': _HOLDS[holds],
        'of a null predictor': _HOLDS[text in self.score.trivial],
        'published': text,
        'why not': reason,
      }
      for text, holds, reason in self.score.claims
    ]
    return _table(rows)

  def _fits(self) -> list[witness_lib.Fit]:
    """Returns the fits of figures that the machines have.

    A user's machine may have another fabric, whose figures have other names.
    """
    return [
      fit
      for fit in self.score.witness.fits
      if fit.figure in self.machines[fit.machine].figures
    ]

  def _value_of(self, fit: witness_lib.Fit) -> float:
    return self.machines[fit.machine].figures[fit.figure].value

  def _fitted(self) -> str:
    rows = [
      {
        'machine': fit.machine,
        'fitted figure': fit.figure,
        'value': f'{self._value_of(fit):.4g}',
        'to rows': '; '.join(fit.rows),
      }
      for fit in self._fits()
    ]
    return text_table.format_rows(rows) if rows else 'No figure was fitted.'

  def _sensitivity(self) -> list[str]:
    if not self.effects:
      return ['What each assumed figure decides: --sensitivity.']
    number = {s.row.name: str(n) for n, s in enumerate(self.score.rows, 1)}
    groups = [g.name for g in self.score.groups if g.limit is not None]
    changes_heading = (
      f'rows that move by {_SHOWN_CHANGE:.0%} or more: number and change in %'
    )
    return _table(
      [
        {
          'machine': effect.machine,
          'assumed figure': effect.figure,
          'changed': f'x {effect.factor:g}',
          **{f'{g} error': _percent(effect.errors.get(g)) for g in groups},
          changes_heading: _changes(effect, number),
        }
        for effect in self.effects
      ]
    )

  def _hypotheses(self) -> list[str]:
    def errors(other: fit.Refitted) -> dict[str, float | None]:
      groups = other.score.groups if other.score else ()
      values = {group.name: group.mean_error for group in groups}
      return {g.name: values.get(g.name) for g in self.score.groups}

    return _table(
      [
        {
          'other hypothesis': other.text,
          'fitted rows, worst': _percent(
            other.score and other.score.worst_fitted
          ),
          **{
            f'{name} error': _percent(error)
            for name, error in errors(other).items()
          },
          'fitted anew': ', '.join(
            f'{n} {v:.4g}' for n, v in other.figures.items()
          )
          or other.refusal,
        }
        for other in self.refitted
      ]
    )

  def _gaps(self) -> list[str]:
    rows = [
      {'cannot be reproduced': gap.figure, 'because': gap.reason}
      for gap in self.score.witness.gaps
    ]
    return _table(rows)

  def plot(self, path: str) -> None:
    """Writes simulated over published, row by row, as a PNG."""
    limited = {goal.group for goal in self.score.witness.goals}
    panels = [
      [s for s in self.score.rows if (s.row.group in limited) == has_goal]
      for has_goal in (True, False)
    ]
    panels = [rows for rows in panels if rows]
    heights = [len(rows) for rows in panels]
    figure = plot_style.figure(2 + 0.25 * sum(heights))
    figure.suptitle(f'{self.score.witness.name}: simulated and published')
    axes = figure.subplots(len(panels), height_ratios=heights, squeeze=False)
    for axis, rows in zip(axes[:, 0], panels):
      _draw(axis, rows)
    legends = [axis.get_legend_handles_labels() for axis in axes[:, 0]]
    handles = {n: h for of_axis in legends for h, n in zip(*of_axis)}
    figure.legend(
      handles.values(),
      handles.keys(),
      loc='outside upper right',
      ncols=len(handles),
    )
    plot_style.save(figure, path)


def _table(rows: Sequence[Mapping[str, object]]) -> list[str]:
  """Returns the table of the rows, if there are any."""
  return [text_table.format_rows(rows)] if rows else []


def _draw(axis, rows: Sequence[score_lib.ScoredRow]) -> None:
  """Draws a bar for each row."""
  for fitted, colour in zip((False, True), plot_style.COLOURS):
    indices = [i for i, s in enumerate(rows) if s.row.fitted == fitted]
    if indices:
      axis.barh(
        indices,
        [100 * rows[i].error for i in indices],
        color=colour,
        label='fitted' if fitted else 'held out',
      )
  axis.axvline(0, color='black', linewidth=1)
  axis.set_yticks(
    range(len(rows)),
    [f'{s.row.name}  {_value(s.row.published, s.row.unit)}' for s in rows],
  )
  axis.set_ylim(len(rows), -1)
  axis.set(xlabel='simulated over published, less 1, %')


_HOLDS = {True: 'yes', False: 'NO'}


def _holds(group: score_lib.Group) -> str:
  if group.withdrawal:
    return 'withdrawn'
  return '-' if group.limit is None else _HOLDS[group.holds]


def _verdict(score: score_lib.Score) -> str:
  """Returns 'pass', 'fail', or 'no goal' if no group has a goal."""
  if all(group.limit is None for group in score.groups):
    return 'no goal'
  return 'pass' if score.holds else 'fail'


def _percent(value: float | None) -> str:
  return '-' if value is None else f'{100 * value:.2f}%'


def _value(value: float, unit: str) -> str:
  return f'{value:.4g} {"" if unit == "1" else unit}'.rstrip()


def _rows(score: score_lib.Score) -> str:
  return text_table.format_rows(
    [
      {
        '#': n,
        'row': s.row.name,
        'unit': s.row.unit,
        'published': f'{s.row.published:.4g}',
        'simulated': f'{s.value:.4g}',
        'error': f'{100 * s.error:+.1f}%',
        'use': 'fitted'
        if s.row.fitted
        else 'sum'
        if s.row.summands
        else 'held out',
      }
      for n, s in enumerate(score.rows, 1)
    ]
  )


def _unknown(score: score_lib.Score) -> list[str]:
  """Names the rows of each group that a null predictor cannot predict.

  A line also gives our error on the group's other rows, on which alone the two
  are compared.
  """
  return [
    f'{group.name}: no {name} for '
    + (
      f'{"; ".join(rows)}; on the others ours is {group.beside[name]:.2%}'
      if name in group.beside
      else 'any row'
    )
    for group in score.groups
    for name, rows in group.unknown.items()
  ]


def _held_out(score: score_lib.Score) -> str:
  return text_table.format_rows(
    [
      {
        'held out': group.name,
        'rows': group.rows,
        'mean error': _percent(group.mean_error),
        **{name: _percent(group.nulls.get(name)) for name in null.NAMES},
        'skill': _HOLDS[group.has_skill] if group.nulls else '-',
        'goal': _percent(group.limit),
        'holds': _holds(group),
        'worst row': group.worst,
      }
      for group in score.groups
    ]
  )


def _changes(effect: sensitivity.Effect, number: dict[str, str]) -> str:
  if effect.changes is None:
    return effect.refusal
  changes = [
    f'{number[row]}: {100 * change:+.0f}'
    for row, change in effect.changes.items()
    if abs(change) >= _SHOWN_CHANGE
  ]
  return ', '.join(changes) or 'none'
