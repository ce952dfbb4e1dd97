r"""Times the cost of a fixed order where a fabric places or adds on arrival.

In modelled time.  A hub that assigns addresses on arrival is compared with
addresses that all ranks know before they send: by source, from counts of rows,
as in this project; or by token, from the experts of every token.  A switch that
adds on arrival is compared with one that adds in rank order, which needs more
room in its table and no more time.

Example:
  python -m benchmarks.determinism --keep
"""

from collections.abc import Sequence
import pathlib

from absl import app

from hpmoe.backend_ascend.simulator.reproduce import cais
from hpmoe.backend_ascend.simulator.reproduce import cais_systems
from hpmoe.backend_ascend.simulator.reproduce import dysharp
from hpmoe.backend_ascend.simulator.reproduce import moe_hub
from hpmoe.reference.contract import plot_style
from hpmoe.tools.docs import figures

COLUMNS = ('layer', 'as it comes, us', 'by source', 'by token', 'table')
PLOT = figures.ROOT / 'docs/plots/determinism.png'
_BAR_HEIGHT = 0.4
_COLOURS = dict(zip(('by source', 'by token'), plot_style.COLOURS))
_LABELS = {'by source': 'by source, or sums by rank', 'by token': 'by token'}
_DYSHARP_LAYERS = ('S-8', 'M-8', 'M-32')


def time_hub_layer(model: str) -> tuple[str, ...]:
  """Returns the row of a layer on MoE-Hub, by order of its rows."""
  machine = moe_hub.WITNESS.load()[moe_hub.MACHINE]
  layer = moe_hub.build_layer(model, moe_hub.TOKENS[-1])
  arrival, source, token = (
    moe_hub.moe_hub(layer, machine, moe_hub.Parts(order=order)).timing.total
    for order in ('arrival', 'source', 'token')
  )
  costs = (f'{seconds / arrival - 1:+.1%}' for seconds in (source, token))
  return (f'MoE-Hub, {model}', f'{1e6 * arrival:.0f}', *costs, '-')


def time_dysharp_layer(name: str) -> tuple[str, ...]:
  """Returns the row of a layer on DySHARP, where rows arrive by token."""
  machine = dysharp.WITNESS.load()[dysharp.MACHINE]
  arrival, source = (
    dysharp.dysharp(
      dysharp.LAYERS[name], machine, dysharp.Parts(by_source=by_source)
    ).total
    for by_source in (False, True)
  )
  cost = f'{source / arrival - 1:+.1%}'
  return (f'DySHARP, {name}', f'{1e6 * arrival:.0f}', cost, '-', '-')


def time_cais_layer(name: str) -> tuple[str, ...]:
  """Returns the row of a sub-layer of LLaMA-7B on CAIS: time and table size."""
  machine = cais.WITNESS.load()[cais.MACHINE]
  layer = cais.MODELS['LLaMA-7B'].sub_layers()[name]
  arrival, rank_order = (
    cais_systems.cais(layer, m)
    for m in (machine, machine.with_figures(rank_order=1))
  )
  return (
    f'CAIS, {name}',
    f'{1e6 * arrival.total:.0f}',
    f'{rank_order.total / arrival.total - 1:+.1%}',
    '-',
    f'{rank_order.sessions["peak"] / arrival.sessions["peak"]:.2f}x',
  )


def time_layers() -> list[tuple[str, ...]]:
  """Returns the rows of the table, cells as they are shown."""
  return [
    *(time_hub_layer(model) for model in moe_hub.MODELS),
    *(time_dysharp_layer(name) for name in _DYSHARP_LAYERS),
    time_cais_layer('L2'),
  ]


def plot_costs(rows: Sequence[Sequence[str]], path: pathlib.Path) -> None:
  """Draws a bar for each cost in the rows of the table.

  Raises:
    ImportError: matplotlib is missing.
  """
  drawing = plot_style.figure(4.5)
  axes = drawing.subplots()
  for number, (name, colour) in enumerate(_COLOURS.items()):
    cells = [row[COLUMNS.index(name)] for row in rows]
    costs = [0.0 if cell == '-' else float(cell.rstrip('%')) for cell in cells]
    places = [place + number * _BAR_HEIGHT for place in range(len(rows))]
    bars = axes.barh(
      places, costs, _BAR_HEIGHT, color=colour, label=_LABELS[name]
    )
    axes.bar_label(bars, [c.replace('-', '') for c in cells], padding=4)
  axes.set_yticks(range(len(rows)), [row[0] for row in rows])
  axes.invert_yaxis()
  axes.margins(x=0.12)
  axes.set_xlabel('longer than rows placed or added as they come, %')
  axes.legend()
  plot_style.save(drawing, path)


def main(argv):
  del argv
  rows = time_layers()
  for row in rows:
    print(*(cell.ljust(24) for cell in row))
  if figures.KEEP.value:
    run = figures.run('python -m benchmarks.determinism')
    run |= dict(processor=figures.ANY, load=figures.ANY)
    figures.write('determinism', COLUMNS, [list(row) for row in rows], [run])
    plot_costs(rows, PLOT)


if __name__ == '__main__':
  app.run(main)
