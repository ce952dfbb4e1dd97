"""A request of a definition, a workload and a solution."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import quantised_inputs
from hpmoe.parity_tests.definitions import definition as definition_lib
from hpmoe.parity_tests.definitions import input_kinds as kinds_lib
from hpmoe.parity_tests.definitions import layer_inputs
from hpmoe.parity_tests.definitions import solution as solution_lib
from hpmoe.parity_tests.definitions import workload_inputs
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import verdicts
from hpmoe.parity_tests.judge.limits import standards

LANES = ('bounded', 'standard')
# What a benchmark's own rules say, beside the records of a check.
RECORDS = (
  'flashinfer_bench',
  'flashinfer_bench_lowbit',
  'flashinfer_contest',
  'flashinfer_fp8_test',
  'flashinfer_trtllm_gen_fp8',
  'aiter_atol_100',
)
# x, weights and sums are float32, and the output is bfloat16.
_POLICY = ('y=bfloat16',)
_TOKEN_ROLES = ('logits', 'x', 'x_scales', 'topk_weights')


@dataclasses.dataclass(frozen=True)
class SettledRouting:
  """A routing whose undecided tokens follow the solution.

  Attributes:
    routing: the routing.
    notes: a line for each token that could have been routed otherwise.
  """

  routing: layer_inputs.Routing
  notes: tuple[str, ...] = ()


def make_request(
  definition: str,
  solution: str,
  *,
  workload: str | None = None,
  tokens: int | None = None,
  policy: Sequence[str] = (),
  rows: str = '',
  seed: int = 0,
  python: str = '',
  device: str = 'cpu',
  timeout_s: float = 600.0,
) -> tuple[case_lib.Case, solution_lib.Solution]:
  """Returns the case and the candidate of a benchmark's files.

  Args:
    definition: its JSON file.
    solution: `reference`, FILE.py::function or a JSON file.
    workload: FILE.jsonl or FILE.jsonl:UUID; None: random inputs.
    tokens: T of random inputs.
    policy: where the solution rounds, beside its output; see `Case`.
    rows: what its GEMMs make of their rows, see `Case`.
    seed: of random inputs.
    python: the interpreter of the solution; '': this one.
    device: cpu or cuda.
    timeout_s: seconds that a run may take.

  Raises:
    ValueError: a file is wrong, or the definition cannot be judged.
    CandidateError: undecided tokens were to follow a solution that failed.
  """
  task = definition_lib.read_definition(definition)
  if (workload is None) == (tokens is None):
    raise ValueError(
      'workload: expected a workload or a number of tokens, got '
      f'{"neither" if workload is None else "both"}'
    )
  if workload is not None:
    work = definition_lib.read_workload(workload)
  else:
    assert tokens is not None
    work = definition_lib.make_workload(task, tokens)
  layer = make_layer(task, work, seed, is_random=workload is None)
  kind, inputs = layer.kind, dict(layer.inputs)
  candidate = solution_lib.Solution(
    task,
    definition_lib.read_solution(solution, task),
    inputs,
    {spec.name: task.shape(spec, work) or () for spec in task.outputs},
    tuple(
      name
      for role, name in kind.tensors.items()
      if role in _TOKEN_ROLES and isinstance(inputs[name], np.ndarray)
    ),
    python,
    device,
    timeout_s,
  )
  settled_routing = settle_routing(layer, candidate)
  case = case_lib.Case(
    input=layer.make_arrays(settled_routing.routing),
    dtype='float32',
    policy=tuple(dict.fromkeys((*_POLICY, *policy))),
    quantised=kind.weights,
    x_form=kind.x_form,
    rows=rows,
    weight_ulp=settled_routing.routing.weight_ulp,
    seed=seed,
  )
  notes = (
    describe(task, work, settled_routing),
    layer.describe_experts(settled_routing.routing),
    *settled_routing.notes,
  )
  return case, dataclasses.replace(candidate, notes=notes)


def make_layer(
  task: definition_lib.Definition,
  work: definition_lib.Workload,
  seed: int,
  is_random: bool,
) -> layer_inputs.Layer:
  """Returns the inputs of a workload, drawn, read or given as numbers.

  Args:
    task: the definition.
    work: the workload.
    seed: of random inputs.
    is_random: whether all inputs are random: then the rank may be chosen too.

  Raises:
    ValueError: the definition is of no kind that is judged, or inputs do not
      suit it.
  """
  kind = kinds_lib.find_kind(task)
  inputs = workload_inputs.make_inputs(task, work, seed)
  layer = layer_inputs.Layer.from_inputs(kind, task.name, inputs)
  return layer.move_to_busiest_rank() if is_random else layer


def separate_rules(report: check.Report) -> check.Report:
  """Returns a report that the benchmarks' own rules do not decide.

  What each of them says of the output is a line of its notes, and under
  `public_rules` of its JSON: they fail right outputs, and accept wrong ones.
  """
  rules: list[verdicts.Result] = []
  results: list[verdicts.Result] = []
  for result in report.results:
    is_public = result.lane == 'standard' and result.rule in RECORDS
    (rules if is_public else results).append(result)
  lines = [_describe_rule(rule) for rule in rules if rule.stage == 'y']
  config = dict(report.config)
  config['notes'] = [*config.get('notes', ()), *lines]
  config['standards'] = [n for n in config['standards'] if n not in RECORDS]
  config['public_rules'] = {
    rule.rule: dict(verdict=rule.verdict, why=rule.reason, **rule.values)
    for rule in rules
    if rule.stage == 'y'
  }
  return dataclasses.replace(report, config=config, results=tuple(results))


def _describe_rule(rule: verdicts.Result) -> str:
  says = {
    verdicts.PASS: 'accepts the output',
    verdicts.FAIL: f'refuses the output: {rule.reason}',
  }.get(rule.verdict, f'does not judge it: {rule.reason}')
  figures = ', '.join(f'{n} {v:.3g}' for n, v in rule.values.items())
  source = standards.get(rule.rule, 'bfloat16').version
  return f'rule {rule.rule} ({source}) {says} ({figures})'


def describe(
  task: definition_lib.Definition,
  work: definition_lib.Workload,
  settled_routing: SettledRouting,
) -> str:
  """Returns what was asked in a line."""
  undecided = len(settled_routing.routing.undecided)
  tokens = len(settled_routing.routing.ids)
  return (
    f'definition {task.name}, workload {work.uuid}: the output is judged under '
    f'the routing of {tokens} tokens, of which rounding '
    f'leaves {undecided or "none"} undecided'
  )


def settle_routing(
  layer: layer_inputs.Layer, candidate: solution_lib.Solution
) -> SettledRouting:
  """Returns the routing that a solution's output is judged under.

  Where rounding leaves the experts of a token open, that choice is taken which
  makes a row nearest to the solution's.
  """
  choice = layer.route()
  if not choice.undecided:
    return SettledRouting(choice)
  (output,) = candidate.compute().values()
  ids, notes = choice.ids.copy(), []
  for token, choices in choice.undecided.items():
    rows = [compute_row(layer, token, np.array(c)) for c in choices]
    distances = [
      float(np.abs(row - output[token].astype(np.float64)).max())
      for row in rows
    ]
    # An answer of NaN is as far from every choice.
    nearest = choices[int(np.argmin(np.nan_to_num(distances, nan=np.inf)))]
    if {*nearest} != {*ids[token].tolist()}:
      ids[token] = nearest
    notes.append(_describe_undecided(token, choices, nearest))
  settled_routing = dataclasses.replace(
    choice, ids=ids, weights=layer.weigh(ids)
  )
  return SettledRouting(settled_routing, tuple(notes))


def compute_row(
  layer: layer_inputs.Layer, token: int, ids: np.ndarray
) -> np.ndarray:
  """Returns `[D]` float64, what a token becomes with some experts `[K]`."""
  inputs = dict(layer.inputs)
  for role in ('logits', 'x'):
    name = layer.kind.tensors[role]
    inputs[name] = inputs[name][token : token + 1]
  name = layer.kind.tensors.get('x_scales', '')
  if name and np.ndim(inputs[name]):
    inputs[name] = inputs[name][:, token : token + 1]
  one_token = dataclasses.replace(layer, inputs=inputs)
  choice = layer_inputs.Routing(
    ids[None].astype(np.int32), one_token.weigh(ids[None]), {}, 0.0
  )
  arrays = one_token.make_arrays(choice)
  forms = quantised_inputs.make_forms(layer.kind.weights, layer.kind.x_form)
  forms = quantised_inputs.select_forms(forms, arrays)
  arrays |= quantised_inputs.compute_values(forms, arrays)
  x = arrays['x'][0, 0].astype(np.float64)
  row = np.zeros(arrays['w_down'].shape[-1])
  for expert, weight in zip(
    arrays['topk_ids'][0, 0], arrays['topk_weights'][0, 0]
  ):
    if expert >= 0:
      gate, up = np.split(x @ arrays['w_gate_up'][0, expert], 2)
      with np.errstate(over='ignore'):
        activation = gate / (1 + np.exp(-gate)) * up
      row += weight * (activation @ arrays['w_down'][0, expert])
  return row


def _describe_undecided(
  token: int, choices: list[tuple[int, ...]], nearest: tuple[int, ...]
) -> str:
  shared = {*choices[0]}.intersection(*choices[1:])
  open_experts = sorted({e for choice in choices for e in choice} - shared)
  taken_experts = sorted({*nearest} - shared)
  return (
    f'token {token}: undecided, as experts {open_experts} score within '
    f'rounding of each other; judged under {taken_experts}'
  )
