"""Runs the device source on the twin until something is found.

Runs in a process of its own, in a tree with a planted change.  Prints one JSON
object: the launch that found it, how, and what was said; all empty if none did.
"""

from collections.abc import Callable, Iterator
import dataclasses
import json
import os
import sys

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import layout
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.backend_ascend.host.launch import runtime_testing
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

# Many small tiles on few cores, and chains of several links.
_FINE = dict(
  row_block=4, col_block=16, put_rows=3, token_block=3, chain_rows=8, num_aic=1,
  num_aiv=2,
)  # fmt: skip
_COARSE = dict(event_grain='expert', row_block=32, num_aic=2, num_aiv=4)
# A core puts rows one by one, sends others home, and puts further ones.
_MIXED = _FINE | dict(
  row_block=1, put_rows=1, num_aiv=1, order=granularity.Order(lead=0)
)  # fmt: skip
# A cube core cuts its tiles in two strips.
_WIDE = dict(
  row_block=128, col_block=256, weight_rows=128, num_aic=1, num_aiv=2
)
# A task has more rows than a vector core looks after at a time.
_HIGH = dict(row_block=160, col_block=16, num_aic=1, num_aiv=1)
_WEIGHTS, _ROWS = layout.QUANTISED[1]
_CODES = precision.PrecisionPolicy(
  'bfloat16', activation='absolute', quantised=_WEIGHTS, rows=_ROWS
)
# The headers that the device source is compiled against; '': our own.
_REAL = os.environ.get('HPMOE_ASC_DEVKIT', '')
_LATE = twin_runtime.Modes(order='late', include=_REAL)
_SEEDED = twin_runtime.Modes(order='seeded', seed=1, include=_REAL)


@dataclasses.dataclass(frozen=True)
class Case:
  """One launch: a layer, its inputs and the twin's modes."""

  name: str
  config: config_lib.MoEConfig
  policy: precision.PrecisionPolicy
  options: dict
  modes: twin_runtime.Modes
  routing: str = 'uniform'


def _config(ranks, tokens, d_model, d_ff) -> config_lib.MoEConfig:
  return config_lib.MoEConfig(
    num_ranks=ranks,
    num_tokens=tokens,
    num_experts=4 * ranks,
    top_k=2,
    d_model=d_model,
    d_ff=d_ff,
  )


def cases() -> Iterator[Case]:
  """Yields the launches, the cheapest first."""
  policy = precision.PrecisionPolicy
  small = _config(2, 13, 40, 24)
  # Few rows: what a core reads for a signal, no signal may follow.
  sparse = _config(3, 3, 40, 24)
  tall = _config(1, 140, 16, 16)
  # Deeper and wider than one stage of every memory.
  deep = _config(1, 70, 700, 300)
  wide = _config(1, 140, 300, 130)
  # Rows that the unified buffer does not hold whole, at each end.
  broad = [_config(2, 3, 25003, 5), _config(2, 3, 16, 9001)]
  for order in (_LATE, _SEEDED):
    for storage in ('bfloat16', 'float32'):
      for placement in ('combine', 'before_down'):
        kind = policy(
          storage=storage, placement=placement, activation='absolute'
        )
        title = f'{storage} {placement} {order.order}'
        yield Case(f'fine {title}', small, kind, _FINE, order)
        yield Case(f'coarse {title}', small, kind, _COARSE, order)
    for storage in ('bfloat16', 'float32'):
      kind = policy(storage=storage, activation='absolute')
      yield Case(f'deep {storage} {order.order}', deep, kind, _COARSE, order)
      title = f'wide {storage} {order.order}'
      yield Case(title, wide, kind, _WIDE, order, 'empty_experts')
    exact = policy(activation='absolute')
    early = policy(activation='absolute', placement='before_down')
    for relay in (False, True):
      title = f'{"relay" if relay else "rows"} {order.order}'
      mixed, high = (dict(o, relay=relay) for o in (_MIXED, _HIGH))
      yield Case(f'mixed {title}', sparse, exact, mixed, order)
      for kind in (exact, early):
        name = f'high {kind.placement} {title}'
        yield Case(name, tall, kind, high, order, 'empty_experts')
    yield from _code_cases(order, small, deep, wide, tall)
    # Its bits are the cube's and the vector unit's own: only order is judged.
    yield Case(f'swiglu {order.order}', small, policy(), _FINE, order)
  for config in broad:
    title = f'{config.d_model} x {config.d_ff}'
    kind = policy(activation='absolute')
    yield Case(f'broad {title}', config, kind, _COARSE, _LATE)
    yield Case(f'codes broad {title}', config, _CODES, _COARSE, _LATE)
  for routing in ('one_rank', 'empty_experts'):
    kind = policy(activation='absolute')
    yield Case(routing, small, kind, _FINE, _LATE, routing)


def _code_cases(order, small, deep, wide, tall) -> Iterator[Case]:
  """Yields the launches of int8 codes, which have a forward pass only."""
  for relay in (False, True):
    title = f'{"relay" if relay else "rows"} {order.order}'
    for name, options in (('fine', _FINE), ('mixed', _MIXED)):
      travel = dict(options, relay=relay)
      yield Case(f'codes {name} {title}', small, _CODES, travel, order)
  floats = dataclasses.replace(_CODES, storage='float32')
  yield Case(f'codes float32 {order.order}', small, floats, _FINE, order)
  yield Case(f'codes deep {order.order}', deep, _CODES, _COARSE, order)
  yield Case(f'codes wide {order.order}', wide, _CODES, _WIDE, order)
  high = dict(_HIGH, put_rows=160)
  early = dataclasses.replace(_CODES, placement='before_down')
  yield Case(f'codes high {order.order}', tall, early, high, order)


def find_difference(case: Case) -> dict | None:
  """Returns the finding of a case, or None."""
  has_codes = bool(case.policy.rows)
  for backward in (False,) if has_codes else (False, True):
    make: Callable[..., dict] = runtime_testing.make_inputs
    compiled = runtime_testing.compile_layer
    if has_codes:
      make = runtime_testing.make_code_inputs
    if backward:
      make = runtime_testing.make_grad_inputs
      compiled = runtime_testing.compile_grad
    inputs = make(case.config, case.policy, case.routing, exact=True)
    image = compiled(case.config, case.policy, **case.options)
    want = runtime.launch(image, inputs, threads=1)
    if case.policy.activation == 'swiglu':
      want = {}
    difference = _difference(image, inputs, case.modes, want)
    if difference is not None:
      pass_ = 'backward' if backward else 'forward'
      return dict(case=f'{case.name} {pass_}', **difference)
  return None


def _difference(image, inputs, modes, want) -> dict | None:
  try:
    outputs = twin_runtime.launch(image, inputs, modes=modes)
  except twin_runtime.TwinError as error:
    first = error.findings[0]
    return dict(how=first.kind, text=first.text, line=first.line)
  except runtime.WaitError as error:
    return dict(how='deadline', text=str(error), line=0)
  for name, tensor in want.items():
    bits = np.ascontiguousarray(tensor).view(np.uint8)
    if (bits != np.ascontiguousarray(outputs[name]).view(np.uint8)).any():
      return dict(how='wrong bits', text=f'in {name}', line=0)
  return None


def main() -> None:
  root = os.getcwd()
  if not twin_runtime.__file__.startswith(root):
    sys.exit(f'hpmoe: expected the one in {root}, got {twin_runtime.__file__}')
  if _REAL:
    try:
      twin_runtime.device_code(_REAL)
    except ValueError as error:  # no finding of the twin's
      print(json.dumps(dict(case='', how='', text=str(error), line=0)))
      return
  for case in cases():
    finding = find_difference(case)
    if finding is not None:
      print(json.dumps(finding), flush=True)
      return
  print(json.dumps(dict(case='', how='', text='', line=0)), flush=True)


if __name__ == '__main__':
  main()
