"""The cost of a check, estimated before it starts: seconds and bytes.

Seconds are for two idle cores, an order of magnitude; `benchmarks.real_layers`
measures them.
"""

import dataclasses

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.parity_tests.case import passes
from hpmoe.parity_tests.judge import judgement as judgement_lib
from hpmoe.reference.contract import memory

# Seconds to draw and widen a weight for each kind of data, and seconds of a
# product in oracle, golden and bounds.
_S_PER_WEIGHT = 2.5e-8
_S_PER_PRODUCT = 1e-9
# A shorter check prints no estimate.
_TOLD_FROM_S = 10.0


@dataclasses.dataclass(frozen=True)
class Price:
  """The cost of a check of a drawn layer.

  Attributes:
    seconds: estimated time.
    least_bytes: a lower bound of memory.
    share_of_weights: the share of weights in these bytes.
    in_sample: whether a sample of tiles is judged.
  """

  seconds: float
  least_bytes: int
  share_of_weights: float
  in_sample: bool

  def refuse(self) -> None:
    """Refuses a check that needs more memory than is available.

    Raises:
      ValueError: it does; names time, memory and the sizes that would help.
    """
    free = memory.available()
    if free is None or self.least_bytes <= free:
      return
    of_weights = self.share_of_weights > 0.5
    name = 'experts' if of_weights else 'tokens'
    helps = 'd_model, d_ff' if of_weights else 'capacity'
    sample = '' if self.in_sample else ', --tiles=8'
    raise ValueError(
      f'{name}: expected a layer whose check fits the memory available, '
      f'{free / 1e9:.1f} GB, got one that needs {self.least_bytes / 1e9:.1f} '
      f'GB or more, {self.share_of_weights:.0%} of it weights, and about '
      f'{self.duration}; smaller {name}, {helps}, --dtype=bf16{sample} help'
    )

  @property
  def duration(self) -> str:
    """The seconds in words."""
    if self.seconds < 90:
      return f'{self.seconds:.0f} s'
    if self.seconds < 5400:
      return f'{self.seconds / 60:.0f} min'
    return f'{self.seconds / 3600:.0f} h'

  def describe(self) -> str:
    """Returns a line with the estimate, or '' for a short check."""
    if self.seconds < _TOLD_FROM_S:
      return ''
    return f'about {self.duration} and {self.least_bytes / 1e9:.1f} GB'


def estimate(
  case: case_lib.Case, judgement: judgement_lib.Judgement
) -> Price | None:
  """Returns the cost of a check, or None if its inputs are not drawn."""
  if case.input is not None:
    return None
  config, policy = case.estimate_sizes()
  in_sample = judgement.tiles is not None
  # Of a sample, the oracle computes the sample.
  least_bytes = case.bytes_needed('launch' if in_sample else 'check')
  rows = config.num_ranks * config.num_tokens * config.top_k
  experts = min(config.num_experts, rows) if in_sample else config.num_experts
  weights = 3 * experts * config.d_model * config.d_ff
  of_weights = memory.weight_bytes(config, policy)
  if in_sample:
    # The oracle computes all experts, golden values only those with rows.
    least_bytes -= case.estimate_undrawn_bytes()
    of_weights -= case.estimate_undrawn_bytes()
  of_weights *= memory.COPIES['launch' if in_sample else 'check']
  # A backward pass has a gradient of each.
  of_weights *= len(passes.from_direction(case.direction))
  rows = min(rows, judgement.tiles) if judgement.tiles is not None else rows
  products = 3 * rows * config.d_model * config.d_ff
  kinds = 1 + 2 * ('exact' in judgement.lanes)
  seconds = kinds * weights * _S_PER_WEIGHT
  seconds += len(case.passes) * kinds * products * _S_PER_PRODUCT
  return Price(
    seconds, least_bytes, min(of_weights / least_bytes, 1.0), in_sample
  )
