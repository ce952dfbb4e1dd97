r"""What a fixed order costs on fabrics that place and add rows as they come.

In modelled time.  A hub that gives addresses on arrival is set beside addresses
that all ranks know before they send: by source, from counts of rows, as this
project has them; or by token, from the experts of every token.  A switch that
adds as it comes is set beside one that adds in the order of ranks, which takes
room and no time.

Example:
  python -m benchmarks.determinism --keep --png=docs/plots/determinism.png
"""

from collections.abc import Sequence

from absl import app
from absl import flags

from hpmoe.backend_ascend.simulator import style
from hpmoe.backend_ascend.simulator.reproduce import cais
from hpmoe.backend_ascend.simulator.reproduce import cais_flows
from hpmoe.backend_ascend.simulator.reproduce import dysharp
from hpmoe.backend_ascend.simulator.reproduce import dysharp_flows
from hpmoe.backend_ascend.simulator.reproduce import moe_hub
from hpmoe.backend_ascend.simulator.reproduce import moe_hub_flows
from hpmoe.tools.docs import figures

_PNG = flags.DEFINE_string('png', None, 'Draw it here.')
_ORDERS = ('source', 'token')


def of_hub() -> list[tuple[str, ...]]:
  """Returns rows of layers on MoE-Hub, s over those of arrival."""
  machine = moe_hub.WITNESS.load()[moe_hub.MACHINE]
  rows = []
  for name in moe_hub.MODELS:
    layer = moe_hub.layer(name, moe_hub.TOKENS[-1])
    took = {
      order: moe_hub_flows.moe_hub(
        layer, machine, moe_hub_flows.Parts(order=order)
      ).timed.total
      for order in ('arrival', *_ORDERS)
    }
    more = [f'{took[o] / took["arrival"] - 1:+.1%}' for o in _ORDERS]
    more.append('-')
    rows.append((f'MoE-Hub, {name}', f'{1e6 * took["arrival"]:.0f}', *more))
  return rows


def of_lists() -> list[tuple[str, ...]]:
  """Returns rows of layers on DySHARP; what comes does so token by token."""
  machine = dysharp.WITNESS.load()[dysharp.MACHINE]
  rows = []
  for name in ('S-8', 'M-8', 'M-32'):
    free, fixed = (
      dysharp_flows.dysharp(
        dysharp.LAYERS[name], machine, dysharp_flows.Parts(by_source=by)
      ).total
      for by in (False, True)
    )
    more = f'{fixed / free - 1:+.1%}'
    rows.append((f'DySHARP, {name}', f'{1e6 * free:.0f}', more, '-', '-'))
  return rows


def of_switch() -> list[tuple[str, ...]]:
  """Returns the sub-layers of LLaMA-7B on CAIS: time, and room for sums."""
  machine = cais.WITNESS.load()[cais.MACHINE]
  ordered = machine.with_figures(rank_order=1)
  rows = []
  for name in ('L2',):
    layer = cais.MODELS['LLaMA-7B'].sub_layers()[name]
    free, fixed = (cais_flows.cais(layer, m) for m in (machine, ordered))
    room = fixed.sessions['peak'] / free.sessions['peak']
    rows.append(
      (
        f'CAIS, {name}',
        f'{1e6 * free.total:.0f}',
        f'{fixed.total / free.total - 1:+.1%}',
        '-',
        f'{room:.2f}x',
      )
    )
  return rows


def draw(path: str, rows: Sequence[tuple[str, ...]]) -> None:
  """Draws what each fixed order costs: a bar where there is such an order."""
  made = style.figure(5)
  axes = made.subplots()
  labels = 'by source, or sums by rank', 'by token'
  for number, label in enumerate(labels):
    costs = [float(row[2 + number].strip('%-') or 0) for row in rows]
    where = [at + 0.4 * number for at in range(len(rows))]
    colour = style.COLOURS[number]
    bars = axes.barh(where, costs, 0.4, color=colour, label=label)
    told = [row[2 + number].replace('-', '') for row in rows]
    axes.bar_label(bars, told, padding=3)
  axes.set_yticks([at + 0.2 for at in range(len(rows))], [r[0] for r in rows])
  axes.invert_yaxis()
  axes.margins(x=0.12)
  axes.set_xlabel('longer than rows placed or added as they come, %')
  axes.legend()
  style.save(made, path)


def main(argv):
  del argv
  rows = [*of_hub(), *of_lists(), *of_switch()]
  for row in rows:
    print(*(cell.ljust(28) for cell in row))
  if _PNG.value:
    draw(_PNG.value, rows)
  if figures.KEEP.value:
    columns = ['layer', 'as it comes, us', 'by source', 'by token', 'table']
    ran = figures.run('python -m benchmarks.determinism')
    ran |= dict(processor=figures.ANY, load=figures.ANY)
    figures.write('determinism', columns, [list(row) for row in rows], [ran])


if __name__ == '__main__':
  app.run(main)
