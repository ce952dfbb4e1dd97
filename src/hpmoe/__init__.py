"""Is a fused mixture-of-experts kernel right?  `docs/api.md` shows each name.

A name is loaded when it is first used: the import takes neither JAX nor time.
In a checkout this folder holds links to the folders beside it, so that
`hpmoe.reference` means the same to pytest, type checkers, editors and Bazel; an
installed package holds the folders themselves.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from hpmoe.backend_ascend.compiler.compiler import Compiled
  from hpmoe.backend_ascend.compiler.compiler import compile
  from hpmoe.backend_ascend.host.launch.runtime import Launch
  from hpmoe.backend_ascend.simulator.machines.machine import Machine
  from hpmoe.backend_ascend.simulator.machines.machine import load as machine
  from hpmoe.backend_ascend.simulator.simulate import simulate
  from hpmoe.reference.contract.granularity import Options
  from hpmoe.parity_tests.api import Report
  from hpmoe.parity_tests.api import assert_parity
  from hpmoe.parity_tests.api import check
  from hpmoe.parity_tests.candidates.candidates import CandidateError
  from hpmoe.parity_tests.capture.capture import capture
  from hpmoe.parity_tests.case.case import Case
  from hpmoe.reference.contract.checks import check_inputs
  from hpmoe.reference.contract.config import MoEConfig
  from hpmoe.reference.contract.precision import PrecisionPolicy
  from hpmoe.reference.differentiable import layer
  from hpmoe.reference.layer import forward
  from hpmoe.reference.layer_grad import backward
  from hpmoe.reference.routing import sigmoid_group_topk
  from hpmoe.reference.routing import softmax_topk
  from hpmoe.reference.sharded_layer import layer_of_shard

# Name -> (module, what it is called there); the imports above, once more.
_HOMES = {
  'Case': ('parity_tests.case.case', 'Case'),
  'CandidateError': ('parity_tests.candidates.candidates', 'CandidateError'),
  'Compiled': ('backend_ascend.compiler.compiler', 'Compiled'),
  'Launch': ('backend_ascend.host.launch.runtime', 'Launch'),
  'Machine': ('backend_ascend.simulator.machines.machine', 'Machine'),
  'MoEConfig': ('reference.contract.config', 'MoEConfig'),
  'Options': ('reference.contract.granularity', 'Options'),
  'PrecisionPolicy': ('reference.contract.precision', 'PrecisionPolicy'),
  'Report': ('parity_tests.api', 'Report'),
  'assert_parity': ('parity_tests.api', 'assert_parity'),
  'backward': ('reference.layer_grad', 'backward'),
  'capture': ('parity_tests.capture.capture', 'capture'),
  'check': ('parity_tests.api', 'check'),
  'check_inputs': ('reference.contract.checks', 'check_inputs'),
  'compile': ('backend_ascend.compiler.compiler', 'compile'),
  'forward': ('reference.layer', 'forward'),
  'layer': ('reference.differentiable', 'layer'),
  'layer_of_shard': ('reference.sharded_layer', 'layer_of_shard'),
  'machine': ('backend_ascend.simulator.machines.machine', 'load'),
  'sigmoid_group_topk': ('reference.routing', 'sigmoid_group_topk'),
  'simulate': ('backend_ascend.simulator.simulate', 'simulate'),
  'softmax_topk': ('reference.routing', 'softmax_topk'),
}

__all__ = [
  'CandidateError',
  'Case',
  'Compiled',
  'Launch',
  'Machine',
  'MoEConfig',
  'Options',
  'PrecisionPolicy',
  'Report',
  'assert_parity',
  'backward',
  'capture',
  'check',
  'check_inputs',
  'compile',
  'forward',
  'layer',
  'layer_of_shard',
  'machine',
  'sigmoid_group_topk',
  'simulate',
  'softmax_topk',
]


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module, attribute = _HOMES[name]
  try:
    loaded = importlib.import_module(f'{__name__}.{module}')
  except ModuleNotFoundError as error:
    if error.name != f'{__name__}.backend_ascend':
      raise
    from hpmoe.parity_tests import plugins

    text = plugins.explain_missing(f'hpmoe.{name}')
    raise ModuleNotFoundError(text, name=error.name) from error
  value = getattr(loaded, attribute)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return __all__
