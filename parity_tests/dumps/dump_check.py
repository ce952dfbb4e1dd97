"""Judges every call of every MoE layer that a dump holds."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import tempfile
from typing import Any

import numpy as np

from hpmoe.parity_tests.candidates import outputs as outputs_lib
from hpmoe.parity_tests.capture import capture
from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import read_case
from hpmoe.parity_tests.dumps import dump_layers
from hpmoe.parity_tests.dumps import dump_routing
from hpmoe.parity_tests.dumps import dump_weights
from hpmoe.parity_tests.dumps import joined_ranks
from hpmoe.parity_tests.judge import check
from hpmoe.parity_tests.judge import judgement
from hpmoe.parity_tests.judge import request as request_lib
from hpmoe.parity_tests.judge import verdicts
from hpmoe.reference.contract import policies
from hpmoe.reference.contract import router as router_lib

LANES = ('bounded', 'standard')
Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What came of one call of a layer.

  Attributes:
    call: the call.
    direction: the passes that were judged; '': none.
    report: of the check; None: it could not be judged.
    reason: why not, in a line.
    policy: all words under which it was judged: given as `policy`, they give
      the same verdict.
  """

  call: dump_layers.LayerCall
  direction: str = ''
  report: check.Report | None = None
  reason: str = ''
  policy: tuple[str, ...] = ()

  @property
  def verdict(self) -> str:
    """'pass', 'fail' or 'not judged'."""
    if self.report is None:
      return verdicts.NOT_JUDGED
    return self.report.verdict

  @property
  def shares(self) -> dict[str, float]:
    """The largest error of each tensor over its rounding bound."""
    results = () if self.report is None else self.report.results
    shares: dict[str, float] = {}
    for result in results:
      if result.lane == 'bounded' and result.shares:
        share = max(float(grid.max(initial=0.0)) for grid in result.shares)
        shares[result.stage] = max(share, shares.get(result.stage, 0.0))
    return shares

  def to_json(self) -> dict[str, Any]:
    """Returns the row as plain data."""
    failure = None if self.report is None else self.report.first_failure
    return dict(
      layer=self.call.path,
      place=self.call.place,
      call=self.call.call,
      module=self.call.kind.label,
      direction=self.direction,
      verdict=self.verdict,
      reason=self.reason,
      policy=list(self.policy),
      first_failure=None if failure is None else failure.stage,
      pattern='' if failure is None else failure.pattern,
      shares=self.shares,
    )


def check_dump(
  folder: str,
  names: str | None = None,
  *,
  model: str | None = None,
  policy: Sequence[str] = (),
  router: str = '',
  layers: frozenset[int] | None = None,
  lanes: Sequence[str] = LANES,
  progress: Progress = lambda step: None,
) -> tuple[Verdict, ...]:
  """Returns the verdict of each call of each MoE layer in a dump.

  Args:
    folder: of the dump, of msprobe with task "tensor" and level L0 or mix.
    names: a TOML file of modules beside those that are known.
    model: a folder of the run's model, for a dump without weights.
    policy: where the layers round, see `Case`; (): as their kind does; if it
      has several ways, the first under which a layer passes.
    router: of modules that route by themselves, see `router.parse_router`.
    layers: numbers of layers that are judged; None: all.
    lanes: some of `LANES`.
    progress: called with the name of each layer before it is judged.

  Raises:
    ValueError: the folder is no dump, or holds no MoE layer that is known.
  """
  kinds = dump_layers.read_kinds(names)
  rule = router_lib.parse_router(router) if router else None
  weights = None if model is None else dump_weights.open_model(model)
  calls = joined_ranks.join(dump_layers.find_calls(folder, kinds))
  if layers is not None:
    calls = [c for c in calls if dump_layers.find_number(c.path) in layers]
  if not calls:
    if layers is not None:
      raise ValueError(
        f'layers: expected numbers of MoE layers that {folder} holds, got '
        f'{sorted(layers)}'
      )
    classes = [k.module for k in kinds if k.module.isidentifier()]
    raise ValueError(
      f'dump: expected modules of a class like {" or ".join(classes[:2])} in '
      f'{folder}, got none; describe yours in a file of --names (level L1 of '
      'msprobe holds no modules: dump with L0 or mix)'
    )
  judge = functools.partial(_judge_call, weights=weights, router=rule)
  policy_by_kind: dict[str, str] = {}
  rows = []
  for call in calls:
    progress(call.name)
    words = tuple(policy) or call.kind.policy
    own = call.kind.policies if _is_narrow(call) and not words else ()
    choices = (
      [policy_by_kind[call.kind.label]]
      if call.kind.label in policy_by_kind
      else own
    )
    row = _try_policies(judge, call, choices, tuple(lanes))
    if row is not None:
      policy_by_kind[call.kind.label] = row.policy[0]
    else:
      words = words or tuple(choices[:1])
      row = judge(call, words, judgement.Judgement(tuple(lanes)))
    rows.append(row)
  return tuple(rows)


def _is_narrow(call: dump_layers.LayerCall) -> bool:
  """Returns whether a layer computes in 16 bits."""
  return 'x' in call.files and call.files['x'].read().dtype.itemsize == 2


def _try_policies(
  judge: Callable[..., Verdict],
  call: dump_layers.LayerCall,
  names: Sequence[str],
  lanes: tuple[str, ...],
) -> Verdict | None:
  """Returns the first row of a policy under which a layer passes, or None."""
  quick = judgement.Judgement(lanes, search_roundings=False)
  rows = (judge(call, (name,), quick) for name in names)
  return next((row for row in rows if row.verdict == verdicts.PASS), None)


def _judge_call(
  call: dump_layers.LayerCall,
  policy: tuple[str, ...],
  limits: judgement.Judgement,
  *,
  weights: dump_weights.Weights | None,
  router: router_lib.Router | None,
) -> Verdict:
  try:
    complete_call = dump_routing.complete(call, router)
  except ValueError as error:
    return Verdict(call, reason=str(error)[:200])
  call = complete_call.call
  in_model = () if weights is None else dump_weights.ROLES
  lacking = [role for role in call.lacking if role not in in_model]
  if lacking:
    return Verdict(call, reason=f'the dump lacks {", ".join(lacking)}')
  direction = 'both' if call.has_backward else 'forward'
  policy = (*policy, *_find_stored_words(call, policy))
  with tempfile.TemporaryDirectory(prefix='hpmoe-') as folder:
    try:
      _write_call(call, folder, weights)
      case = case_lib.Case(
        direction,
        input=f'{folder}/inputs.safetensors',
        policy=policy,
        activation=call.kind.activation,
        weight_ulp=complete_call.weight_ulp,
      )
      candidate = outputs_lib.Outputs(folder)
      report = check.run(request_lib.Request(case, candidate, limits))
    except ValueError as error:
      reason = str(error).replace(f'{folder}/', '')
      return Verdict(call, reason=reason[:200])
  report = dataclasses.replace(report, config={**report.config, 'command': ''})
  return Verdict(call, direction, report, policy=policy)


def _write_call(
  call: dump_layers.LayerCall,
  folder: str,
  weights: dump_weights.Weights | None,
) -> None:
  """Writes a call as `capture` does: what it read, and what it computed."""

  def read(role: str) -> np.ndarray:
    if role in call.files or weights is None:
      return _read_tensor(call, role)
    x = _read_tensor(call, 'x')
    return dump_weights.read_role(weights, call.path, role, x)

  read_roles = (*dump_layers.INPUTS, *(['dy'] if call.has_backward else []))
  computed_roles = [
    role
    for role in ('y', *(dump_layers.GRADS if call.has_backward else ()))
    if role in call.files
  ]
  layouts = {**dump_routing.LAYOUTS, **call.kind.layouts}
  if weights is not None:
    model_layouts = dump_weights.LAYOUTS
    layouts |= {r: n for r, n in model_layouts.items() if r not in call.files}
  inputs, outputs = (
    {role: read(role) for role in roles}
    for roles in (read_roles, computed_roles)
  )
  capture.write_folder(folder, inputs, outputs, layouts)


def _find_stored_words(
  call: dump_layers.LayerCall, policy: tuple[str, ...]
) -> tuple[str, ...]:
  """Returns words for a gradient of routing weights that is in 16 bits.

  It is in float32 unless the weights are in 16 bits; where rows are multiplied
  by weights of 16 bits, so are the products of that gradient.  Points that the
  policy names stay as it says.
  """
  role = 'd_topk_weights'
  if not call.has_backward or role not in call.files:
    return ()
  dtype = read_case.as_numpy(call.files[role].read()).dtype
  if dtype.itemsize != 2:
    return ()
  points = policies.fields(policy).get('points', ())
  point_names = {point.partition('=')[0] for point in points}
  words = {role: dtype.name}
  if 'routing_weight' in point_names:
    words['d_weighted'] = 'storage'
  return tuple(
    f'{n}={word}' for n, word in words.items() if n not in point_names
  )


def _read_tensor(call: dump_layers.LayerCall, role: str) -> np.ndarray:
  return np.ascontiguousarray(call.files[role].read())


def find_first_failure(rows: Sequence[Verdict]) -> Verdict | None:
  """Returns the first call that fails, or None."""
  failures = (row for row in rows if row.verdict == verdicts.FAIL)
  return next(failures, None)
