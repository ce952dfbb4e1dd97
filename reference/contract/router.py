"""The one table of routing rules: how logits become experts and weights.

A row of router_rules.toml is one published rule.  With logits `[..., E]`, a
bias `[E]` and K:

    logits  z, or z + bias where the bias is one of the logits
    scores  s = softmax(logits), sigmoid(logits), or the logits themselves
    choice  c = s, or s + bias where the bias is one of the choice; the logits
            themselves where s is their softmax, which has the same order
    groups  E is cut into `groups` equal parts; a group's score is the sum of
            its two largest c, or of its only one; experts outside of the
            `top_groups` best groups are out of the question
    ids     the K largest c, a tie to the lower id, from the largest on
    weights s of those, over their sum (and epsilon) if they are renormalised,
            times scale; or the softmax of their K logits alone

`reference/routing.py` computes it; `judge/limits/router_limits.py` says which
choices rounding allows.
"""

import dataclasses
import pathlib
import tomllib
from typing import Any

from hpmoe.reference.contract import messages

SCORES = ('softmax', 'sigmoid', 'none')
BIASES = ('', 'choice', 'logits')
DTYPES = ('float32', 'bfloat16', 'float16')
# Experts of a group whose scores are added to be the group's.
GROUP_TERMS = 2


@dataclasses.dataclass(frozen=True)
class Rule:
  """How one published router scores and chooses.

  Attributes:
    name: in flags and reports.
    source: whose it is.
    scores: of `SCORES`.
    bias: of `BIASES`: what a bias is added to.
    of_chosen: whether scores are computed of the chosen logits alone.
    grouped: whether experts are chosen in the best groups alone.
    renormalise: whether weights are divided by their sum.
    epsilon: added to that sum.
  """

  name: str
  source: str
  scores: str
  bias: str = ''
  of_chosen: bool = False
  grouped: bool = False
  renormalise: bool = False
  epsilon: float = 0.0

  def __post_init__(self):
    for name, values in (('scores', SCORES), ('bias', BIASES)):
      if getattr(self, name) not in values:
        raise ValueError(
          f'{name}: expected one of {values}, got {getattr(self, name)!r}'
        )


RULES = {
  name: Rule(name, **row)
  for name, row in tomllib.loads(
    pathlib.Path(__file__).with_name('router_rules.toml').read_text('utf-8')
  ).items()
}


@dataclasses.dataclass(frozen=True)
class Router:
  """A rule with its numbers.

  Attributes:
    rule: its name, of `RULES`.
    top_k: K.
    groups: groups of experts; 1 where the rule has none.
    top_groups: groups that are kept.
    scale: factor of all weights.
    dtype: in which a kernel may compute scores; the oracle computes them in
      the dtype of its logits.

  Raises:
    ValueError: a field is not as above; names it.
  """

  rule: str
  top_k: int
  groups: int = 1
  top_groups: int = 1
  scale: float = 1.0
  dtype: str = 'float32'

  def __post_init__(self):
    if self.dtype not in DTYPES:
      raise ValueError(f'dtype: expected one of {DTYPES}, got {self.dtype!r}')
    if self.rule not in RULES:
      raise ValueError(f'rule: {messages.refuse_choice(RULES, self.rule)}')
    if self.top_k < 1:
      raise ValueError(f'top_k: expected a positive integer, got {self.top_k}')
    if not 1 <= self.top_groups <= self.groups:
      raise ValueError(
        f'top_groups: expected 1 to groups={self.groups}, got {self.top_groups}'
      )
    if self.groups > 1 and not self.table.grouped:
      raise ValueError(
        f'groups: expected 1 with rule {self.rule}, got {self.groups}'
      )

  @property
  def table(self) -> Rule:
    """The row of the rule."""
    return RULES[self.rule]

  def check(self, num_experts: int) -> None:
    """Refuses a number of experts that the rule cannot be applied to.

    Raises:
      ValueError: groups are uneven or too small, or K is too large.
    """
    if num_experts % self.groups:
      raise ValueError(
        f'groups: expected a divisor of E={num_experts}, got {self.groups}'
      )
    size = num_experts // self.groups
    if self.top_k > self.top_groups * size:
      raise ValueError(
        f'top_k: expected at most {self.top_groups * size}, the experts of '
        f'{self.top_groups} groups, got {self.top_k}'
      )


# Numbers of `parse_router`, with what makes one of a word.
_NUMBERS = dict(top_k=int, groups=int, top_groups=int, scale=float, dtype=str)


def parse_router(text: str, top_k: int = 0) -> Router:
  """Returns the router of a text such as `deepseek_v3:groups=8:top_groups=4`.

  Args:
    text: a rule of `RULES`, then with a colon each `top_k`, `groups`,
      `top_groups`, `scale` and `dtype`, as `Router` has them.
    top_k: K where the text does not say it; 0: it must.

  Raises:
    ValueError: the rule or a number is unknown; names it.
  """
  rule, *words = text.split(':')
  numbers: dict[str, Any] = {'top_k': top_k}
  for word in words:
    name, _, value = word.partition('=')
    try:
      numbers[name] = _NUMBERS[name](value)
    except (KeyError, ValueError):
      raise ValueError(
        f'router: expected RULE:NAME=NUMBER with some of {[*_NUMBERS]}, got '
        f'{word!r} in {text!r}'
      ) from None
  try:
    return Router(rule, **numbers)
  except ValueError as error:
    location = f' (in {text!r})' if words else ''
    raise ValueError(f'router: {error}{location}') from None
