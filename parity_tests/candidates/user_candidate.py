"""A candidate of the user: a function, in a process of its own.

It is `pkg.module:function` with

    def function(
        inputs: dict[str, np.ndarray],    # tensors.INPUTS
        config: MoEConfig,
        policy: PrecisionPolicy,
    ) -> Mapping[str, np.ndarray]

It must return 'y' and may return any tensor of `tensors.PLAN` and `STAGES`,
under the shapes and dtypes of `tensors.FORWARD`; the more it returns, the
nearer to its cause a fault is found.  A function that cannot do every
`policy.activation` says so: `function.activations = ('swiglu',)`.  It runs in a
process of its own, so that one which crashes or hangs ends with a report; there
names are the user's: beside `hpmoe` nothing of ours is in the way.  What it
returns may be numpy's, JAX's, torch's or another framework's.

Its backward pass is an attribute, `function.backward`, that takes the same
arguments.  Its inputs are `passes.BACKWARD.reads(policy)`: `tensors.INPUTS`,
dy, and what the forward pass saved.  It must return 'dx' and may return any
tensor of `tensors.GRADS`.  One that computes again what the forward pass saved,
and did not return, says so: `function.backward.recomputes = True`.

Isolated replay calls neither, but the stages that they are made of: attributes
`function.stages` and `function.backward.stages`, a mapping from some names of
`tensors.STAGES`, or of `GRADS`, to

    def stage(
        tensors: dict[str, np.ndarray],   # see below
        config: MoEConfig,
        policy: PrecisionPolicy,
    ) -> np.ndarray

`tensors` holds the inputs of the pass, `tensors.PLAN`, and what the oracle's
stages before this one wrote, so that what one stage does wrong reaches no other
one.
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
from hpmoe.parity_tests.candidates import exchange
from hpmoe.parity_tests.candidates import locate
from hpmoe.parity_tests.candidates import processes
from hpmoe.parity_tests.case import answers
from hpmoe.parity_tests.case import codes
from hpmoe.parity_tests.case import flag_tables
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.case.layouts import projects
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision
from hpmoe.reference.contract import tensors

# glibc fills memory that `malloc` returns with the complement of this byte: a
# float32 or bfloat16 of it is 3.4e38, a float16 NaN, an int32 2.1e9.  Only the
# byte 0xff is NaN in all, and its complement, 0, switches the variable off.
_POISON = {'MALLOC_PERTURB_': str(0x80)}

_ROW_CODES = tuple(spec.name for spec in tensors.ROW_CODES)
# What the worker may leave word of.
KINDS = {
  'request': ValueError,
  'failed': candidates.CandidateError,
  'cannot': candidates.CannotJudge,
  'spoilt': candidates.InputsSpoilt,
}


FLAGS = flag_tables.read_flags(
  'function', layout=dict(choices=('', *projects.list_words()))
)


@dataclasses.dataclass(frozen=True)
class Subprocess(candidates.Candidate):
  """The user's function, in a process of its own.

  Attributes:
    name: `pkg.module:function`, or `FILE.py:function`.
    timeout_s: seconds after which it counts as hung.
    has_backward: whether it will have to run its backward pass too: one that
      lacks it is refused before its first run.
    checking: `poison`: memory that it allocates and never writes is not zero by
      luck, under glibc; `isolate`: its stages run, each on the oracle's
      tensors.
    layout: a word of `projects`: how its tensors are laid out; '': as ours.
  """

  can: ClassVar[candidates.Can] = candidates.Can(
    modes=('poison', 'isolate'),
    orders=None,
    parts=True,
    repeats=True,
    keeps=True,
    rounds=True,
    declares=True,
  )
  name: str
  timeout_s: float = 600.0
  has_backward: bool = False
  options: granularity.Options = granularity.Options()
  checking: checking_lib.Checking = checking_lib.Checking()
  layout: str = ''
  seconds: list[float] = candidates.noted(list)
  said: dict[str, bool] = candidates.noted(dict)

  def __post_init__(self):
    module, _, function = self._there[1].partition(':')
    parts = (*module.split('.'), *function.split('.'))
    if not all(part.isidentifier() for part in parts):
      raise ValueError(
        'candidate: expected pkg.module:function or FILE.py:function, got '
        f'{self.name!r}'
      )

  @property
  def recomputes(self) -> bool:
    """See `Candidate`; not of stages, each on what it is given."""
    return not self.checking.isolate and self.said.get('recomputes', False)

  @property
  def _there(self) -> tuple[str, str]:
    """The folder that its module is looked for in first, and its name there."""
    file, _, function = self.name.rpartition(':')
    if not file.endswith('.py'):
      return os.getcwd(), self.name
    path = pathlib.Path(file).absolute()
    return str(path.parent), f'{path.stem}:{function}'

  def ready(self, case, beside='') -> Self:
    """See `Candidate`."""
    super().ready(case, beside)
    refuse_layout(self.layout, case)
    locate.find_source(self.name)
    return dataclasses.replace(
      self, has_backward=passes.BACKWARD in case.passes
    )

  def run(
    self, config, policy, inputs, which=passes.FORWARD, given=None
  ) -> dict[str, np.ndarray]:
    """See `Candidate`; `given` are the oracle's plan and stages."""
    data = [{**inputs, **(given or {})}]
    return self.run_in_turn(config, policy, data, which)[0]

  def run_in_turn(
    self, config, policy, data, layer_pass
  ) -> list[dict[str, np.ndarray]]:
    """See `Candidate`: calls in one process, which may keep something."""
    laid_out = {
      id(arrays): projects.lay_out(self.layout, arrays, config)
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
        exchange.lend(job / f'inputs.{number}', arrays)
        for number, arrays in enumerate(sets)
      ]
      request = dict(
        candidate=self._there[1],
        is_backward=layer_pass.name == passes.BACKWARD.name,
        stages=layer_pass.stages,
        backward_stages=passes.BACKWARD.of_layer(config).stages,
        result=layer_pass.results[0],
        has_backward=self.has_backward,
        isolate=self.checking.isolate,
        config=dataclasses.asdict(config),
        policy=dataclasses.asdict(policy),
        path=[self._there[0], os.getcwd(), *sys.path],
        shared=shared,
        turns=turns,
      )
      (job / 'request.json').write_text(json.dumps(request))
      self._call(job, [row['file'] for rows in shared for row in rows.values()])
      answers = [exchange.load(job / f'outputs.{n}') for n in range(len(turns))]
      self.said.update(json.loads((job / 'said.json').read_text()))
    self.seconds.append(time.perf_counter() - start)
    needed = () if self.checking.isolate else layer_pass.results[:1]
    return [
      check_outputs(
        self.name,
        config,
        policy,
        restore_outputs(self.name, self.layout, outputs, config),
        layer_pass,
        needed,
      )
      for outputs in answers
    ]

  def _call(self, job: pathlib.Path, files: Sequence[int]) -> None:
    worker = pathlib.Path(__file__).with_name('candidate_worker.py')
    command = [sys.executable, str(worker), str(job)]
    env = os.environ | (_POISON if self.checking.poison else {})
    exit_codes = processes.call(
      job, {None: command}, env, self.timeout_s, files
    )
    code = exit_codes[None]
    told = job / 'error.json'
    if code is not None and told.exists():
      word = json.loads(told.read_text())
      raise KINDS[word['kind']](word['text'])
    if code == 0 and (job / 'outputs.0').exists():
      return
    how = 'expected an answer, got exit status 0 without one'
    if code != 0:
      how = processes.unlike_an_answer(code, self.timeout_s)
    raise candidates.CandidateError(f'{self.name}: {how}')


def refuse_layout(layout: str, case) -> None:
  """Refuses a layout of what comes as codes and scales.

  Raises:
    ValueError: it does, or there is no such layout.
  """
  projects.read_layouts(layout)
  for flag, form in (('weights', case.quantised), ('x_form', case.x_form)):
    if layout and form:
      raise ValueError(
        f'layout: expected none with {flag}={form}, which comes as codes, got '
        f'{layout!r}'
      )


def restore_outputs(
  name: str,
  layout: str,
  outputs: passes.Tensors,
  config: config_lib.MoEConfig,
) -> dict[str, np.ndarray]:
  """Returns a candidate's tensors as ours.

  Raises:
    ValueError: one is not laid out as was said.
  """
  try:
    return projects.restore(layout, outputs, config)
  except ValueError as error:
    raise ValueError(f'{name}: layout {layout}: {error}') from error


def check_outputs(
  name: str,
  config: config_lib.MoEConfig,
  policy: precision.PrecisionPolicy,
  outputs: passes.Tensors,
  which: passes.Pass,
  needed: Sequence[str],
) -> dict[str, np.ndarray]:
  """Returns the outputs if they are tensors of this pass.

  Rows beyond those that a rank received may be left out.

  Raises:
    ValueError: one that is needed is missing, a name is unknown, or a shape or
      dtype is not that of `tensors.SPECS`.
  """
  for key in needed:
    if key not in outputs:
      raise ValueError(f'{name}: expected {key!r}, got {sorted(outputs)}')
  if not outputs:
    raise ValueError(
      f'{name}: expected tensors of the {which.name} pass, such as '
      f'{which.results[0]!r}, got none'
    )
  given = {}
  names = which.list_outputs(policy)
  try:
    codes.check_row_parts(policy, {*outputs} & {*names})
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from error
  for key, value in outputs.items():
    if key not in names and key in _ROW_CODES:
      raise ValueError(
        f'{name}: {key}: expected --rows=FORM of what codes stand for beside '
        f'it, such as --rows={key.rpartition("_")[0]}=e4m3_1x128, got '
        f'{policy.rows or "none"}'
      )
    if key not in names:
      raise ValueError(
        f'{name}: expected tensors among {list(names)}, got {key!r}'
      )
    dims = which.find_shape(policy, key, **config.dims())
    given[key] = answers.with_rows(key, value, config.num_rows)
    if given[key].shape != dims or str(value.dtype) != policy.dtype(key):
      raise ValueError(
        f'{name}: {key}: expected {policy.dtype(key)} {list(dims)}, got '
        f'{value.dtype} {list(value.shape)}'
      )
  return given
