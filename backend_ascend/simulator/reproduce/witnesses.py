"""The published systems that can be reproduced, by name."""

import importlib

from hpmoe.backend_ascend.simulator.reproduce import witness as witness_lib

_ROOM = 'hpmoe.backend_ascend.simulator.reproduce'
MODULES = {
  'hyperparallel-moe': f'{_ROOM}.hyperparallel',
  'pto-megamoe': f'{_ROOM}.pto_megamoe',
  'uniep': f'{_ROOM}.uniep',
  'pangu': f'{_ROOM}.pangu',
  'cais': f'{_ROOM}.cais',
  'dysharp': f'{_ROOM}.dysharp',
  'moe-hub': f'{_ROOM}.moe_hub',
}


def get(name: str) -> witness_lib.Witness:
  """Returns the witness of that name.

  Raises:
    ValueError: there is none; the text lists the known names.
  """
  if name not in MODULES:
    raise ValueError(f'witness: expected one of {list(MODULES)}, got {name!r}')
  return importlib.import_module(MODULES[name]).WITNESS
