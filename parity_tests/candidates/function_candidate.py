"""A candidate that is a function of the user, run in its own process.

`function_worker.py` is that process: it imports the function and calls it.  The
function is `pkg.module:function` with

    def function(
        inputs: dict[str, np.ndarray],    # tensors.INPUTS
        config: MoEConfig,
        policy: PrecisionPolicy,
    ) -> Mapping[str, np.ndarray]

It must return 'y' and may return any tensor of `tensors.PLAN` and `STAGES`,
with the shapes and dtypes of `tensors.FORWARD`; the more it returns, the
closer to its cause a fault is located.  A function that lacks some
`policy.activation` declares those it has: `function.activations = ('swiglu',)`.
It runs in its own process, so that a crash or a hang ends with a report; that
process imports no module of ours whose top-level name is not `hpmoe`, so the
user's modules may have any other name.  Returned tensors may be of numpy, JAX,
torch or another framework.

Its backward pass is an attribute, `function.backward`, that takes the same
arguments.  Its inputs are `passes.BACKWARD.reads(policy)`: `tensors.INPUTS`,
dy, and the tensors that the forward pass saved.  It must return 'dx' and may
return any tensor of `tensors.GRADS`.  A backward pass that recomputes tensors
which the forward pass saved, but did not return, says so:
`function.backward.recomputes = True`.

Isolated replay calls neither function, but their stages: attributes
`function.stages` and `function.backward.stages` map some names of
`tensors.STAGES`, or of `GRADS`, to

    def stage(
        tensors: dict[str, np.ndarray],   # see below
        config: MoEConfig,
        policy: PrecisionPolicy,
    ) -> np.ndarray

`tensors` holds the inputs of the pass, `tensors.PLAN`, and the outputs of the
oracle's stages before this one, so that an error of one stage reaches no other.
"""

from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import ClassVar, Self

import numpy as np

from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.candidates import checking as checking_lib
from hpmoe.parity_tests.candidates import find_function
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.candidates import tensor_transfer
from hpmoe.parity_tests.case import answers
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.case.layouts import project_layouts
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import messages
from hpmoe.reference.contract import option_fields
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import storage
from hpmoe.reference.contract import tensors

# glibc fills memory that `malloc` returns with the complement of this byte: a
# float32 or bfloat16 of it is 3.4e38, a float16 NaN, an int32 2.1e9.  Only the
# byte 0xff is NaN in all, and its complement, 0, switches the variable off.
_POISON = {'MALLOC_PERTURB_': str(0x80)}

_ROW_CODES = tuple(
  spec.name for spec in tensors.ROW_CODES + tensors.TOKEN_CODES
)
# The kinds of errors that the worker may report.
KINDS = {
  'request': ValueError,
  'failed': candidates.CandidateError,
  'cannot': candidates.CannotJudge,
  'spoilt': candidates.InputsSpoilt,
}


@dataclasses.dataclass(frozen=True)
class Subprocess(candidates.Candidate):
  """The user's function, in a process of its own.

  Attributes:
    name: `pkg.module:function`, or `FILE.py:function`.
    timeout_s: seconds after which it counts as hung.
    has_backward: whether its backward pass will run too: a function that lacks
      one is refused before its first run.
    checking: `poison`: glibc fills memory that it allocates, so that memory it
      never writes is not zero by luck; `isolate`: its stages run, each on the
      oracle's tensors.
    layout: a layout's name in `project_layouts`; '': ours.
  """

  capabilities: ClassVar[candidates.Capabilities] = candidates.Capabilities(
    modes=('poison', 'isolate'),
    orders=None,
    parts=True,
    repeats=True,
    keeps=True,
    rounds=True,
    declares=True,
  )
  name: str = option_fields.option(
    dataclasses.MISSING,
    'Your kernel, pkg.module:function or FILE.py:function, in place of the '
    'megakernel: function(inputs, config, policy) returns a dict of '
    'tensors with y; see docs/contract.md.',
    flag='candidate',
  )
  timeout_s: float = option_fields.option(
    600.0,
    'Maximum seconds of a call of --candidate or --command, or of a --shard.',
    flag='timeout',
    kind=option_fields.parse_seconds,
  )
  has_backward: bool = False
  options: granularity.Options = granularity.Options()
  checking: checking_lib.Checking = checking_lib.Checking()
  layout: str = option_fields.option(
    '',
    'Project whose layout the tensors of --candidate or --command have, '
    'for example `vllm`: w_gate_up is [E, 2F, D]; see docs/contract.md. '
    "Default: the contract's layout.",
    choices=('', *project_layouts.list_words()),
  )
  seconds: list[float] = candidates.noted(list)
  notes: dict[str, bool] = candidates.noted(dict)

  def __post_init__(self):
    module, _, function = self._module_location[1].partition(':')
    parts = (*module.split('.'), *function.split('.'))
    if not all(part.isidentifier() for part in parts):
      raise ValueError(
        'candidate: expected pkg.module:function or FILE.py:function, got '
        f'{self.name!r}'
      )

  @property
  def recomputes(self) -> bool:
    """See `Candidate`; False under `isolate`, which calls the stages."""
    return not self.checking.isolate and self.notes.get('recomputes', False)

  @property
  def _module_location(self) -> tuple[str, str]:
    """The folder that is searched first for its module, and its name there."""
    file, _, function = self.name.rpartition(':')
    if not file.endswith('.py'):
      return os.getcwd(), self.name
    path = pathlib.Path(file).absolute()
    return str(path.parent), f'{path.stem}:{function}'

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    project_layouts.read_layouts(self.layout)
    find_function.find_source(self.name)
    return dataclasses.replace(
      self, has_backward=passes.BACKWARD in case.passes
    )

  def run(
    self, config, policy, inputs, layer_pass=passes.FORWARD, oracle_tensors=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`."""
    data = [{**inputs, **(oracle_tensors or {})}]
    return self.run_in_turn(config, policy, data, layer_pass)[0]

  def run_in_turn(
    self, config, policy, data, layer_pass
  ) -> list[dict[str, np.ndarray]]:
    """See `Candidate`: all calls in one process, which may keep state."""
    laid_out = {
      id(arrays): project_layouts.lay_out(self.layout, arrays, config, policy)
      for arrays in data
    }
    data = [laid_out[id(arrays)] for arrays in data]
    sets = list({id(arrays): arrays for arrays in data}.values())
    turns = [
      next(n for n, other in enumerate(sets) if other is arrays)
      for arrays in data
    ]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix='hpmoe-') as folder:
      job = pathlib.Path(folder)
      shared = [
        tensor_transfer.lend(job / f'inputs.{number}', arrays)
        for number, arrays in enumerate(sets)
      ]
      request = dict(
        candidate=self._module_location[1],
        is_backward=layer_pass.name == passes.BACKWARD.name,
        stages=layer_pass.stages,
        backward_stages=passes.BACKWARD.of_layer(config).stages,
        result=layer_pass.results[0],
        has_backward=self.has_backward,
        isolate=self.checking.isolate,
        config=dataclasses.asdict(config),
        policy=dataclasses.asdict(policy),
        path=[self._module_location[0], os.getcwd(), *sys.path],
        shared=shared,
        turns=turns,
      )
      (job / 'request.json').write_text(json.dumps(request))
      self._call(job, [row['file'] for rows in shared for row in rows.values()])
      answers = [
        tensor_transfer.load(job / f'outputs.{n}') for n in range(len(turns))
      ]
      self.notes.update(json.loads((job / 'notes.json').read_text()))
    self.seconds.append(time.perf_counter() - start)
    required = () if self.checking.isolate else layer_pass.results[:1]
    return [
      check_outputs(
        self.name,
        config,
        policy,
        restore_outputs(self.name, self.layout, outputs, config, policy),
        layer_pass,
        required,
      )
      for outputs in answers
    ]

  def _call(self, job: pathlib.Path, files: Sequence[int]) -> None:
    worker = pathlib.Path(__file__).with_name('function_worker.py')
    command = [sys.executable, str(worker), str(job)]
    env = os.environ | (_POISON if self.checking.poison else {})
    exit_codes = processes.call(
      job, {None: command}, env, self.timeout_s, files
    )
    code = exit_codes[None]
    error_file = job / 'error.json'
    if code is not None and error_file.exists():
      word = json.loads(error_file.read_text())
      raise KINDS[word['kind']](word['text'])
    if code == 0 and (job / 'outputs.0').exists():
      return
    ending = 'expected an answer, got exit status 0 without one'
    if code != 0:
      ending = processes.describe_ending(code, self.timeout_s)
    raise candidates.CandidateError(f'{self.name}: {ending}')


def restore_outputs(
  name: str,
  layout: str,
  outputs: passes.Tensors,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
) -> dict[str, np.ndarray]:
  """Returns a candidate's tensors in our layouts.

  Raises:
    ValueError: a tensor does not have the layout.
  """
  try:
    return project_layouts.restore(layout, outputs, config, policy)
  except ValueError as error:
    raise ValueError(f'{name}: layout {layout}: {error}') from error


def check_outputs(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  outputs: passes.Tensors,
  layer_pass: passes.Pass,
  required: Sequence[str],
) -> dict[str, np.ndarray]:
  """Returns the outputs if they are tensors of this pass.

  Rows beyond those that a rank received may be left out.

  Args:
    name: of the candidate.
    config: sizes.
    policy: precision.
    outputs: tensors by name.
    layer_pass: the pass.
    required: names that must be among the outputs.

  Raises:
    ValueError: a required tensor is missing, a name is unknown, or a shape or
      dtype is not that of `tensors.SPECS`.
  """
  for key in required:
    if key not in outputs:
      raise ValueError(f'{name}: expected {key!r}, got {sorted(outputs)}')
  if not outputs:
    raise ValueError(
      f'{name}: expected tensors of the {layer_pass.name} pass, such as '
      f'{layer_pass.results[0]!r}, got none'
    )
  stacked = {}
  names = layer_pass.list_outputs(policy)
  try:
    quantised_inputs.check_row_parts(policy, {*outputs} & {*names})
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from error
  for key, value in outputs.items():
    if key not in names and key in _ROW_CODES:
      raise ValueError(
        f'{name}: {key}: expected --rows=FORM, the form of these codes, '
        f'such as --rows={_name_rows(key)}=e4m3_1x128, got '
        f'{policy.rows or "none"}'
      )
    if key not in names:
      expected = messages.refuse_choice(names, key, quantity='tensors among')
      raise ValueError(f'{name}: {expected}')
    dims = layer_pass.find_shape(policy, key, **config.dims())
    stacked[key] = answers.with_rows(key, value, config.num_rows)
    if stacked[key].shape != dims or str(value.dtype) != policy.dtype(key):
      advice = _advise_dtype(policy, key, str(value.dtype))
      raise ValueError(
        f'{name}: {key}: expected {policy.dtype(key)} {list(dims)}, got '
        f'{value.dtype} {list(value.shape)}{advice}'
      )
  return stacked


def _name_rows(part: str) -> str:
  """Returns the rows whose form codes or scales have."""
  name = part.rpartition('_')[0]
  return 'expert_in' if name == 'x' else name


def _advise_dtype(
  policy: precision.PrecisionPolicy, tensor: str, dtype: str
) -> str:
  """Returns how to declare that a kernel stores a tensor in `dtype`, or ''."""
  is_point = tensor in {point.name for point in precision.TENSORS}
  is_dtype = dtype in storage.FORMATS and dtype != policy.dtype(tensor)
  if not (is_point and is_dtype):
    return ''
  return f'; --policy={tensor}={dtype} declares that dtype'
