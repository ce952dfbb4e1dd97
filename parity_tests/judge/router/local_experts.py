"""One rank's view of a layer: some of its experts, and their part of y."""

import dataclasses

import numpy as np

from hpmoe.parity_tests.case import case as case_lib
from hpmoe.reference.contract import array_typing as at
from hpmoe.reference.contract import tensors


@dataclasses.dataclass(frozen=True)
class LocalExperts:
  """Experts that a kernel holds.

  Attributes:
    first: the first of them.
    count: how many.
    num_experts: E of the whole layer.
  """

  first: int
  count: int
  num_experts: int

  def __str__(self) -> str:
    last = self.first + self.count - 1
    return f'experts {self.first} to {last} of {self.num_experts}'

  @property
  def array(self) -> at.Int32[np.ndarray, '2']:
    """What the kernel gets."""
    return np.array([self.first, self.count], np.int32)

  def number(
    self, ids: at.Int[np.ndarray, 'R T K']
  ) -> at.Int32[np.ndarray, 'R T K']:
    """Returns ids by the kernel's own numbers; of other experts -1."""
    local = ids - self.first
    is_local = (ids >= 0) & (local >= 0) & (local < self.count)
    return np.where(is_local, local, tensors.UNUSED).astype(np.int32)

  def list_wrong_places(self) -> list['LocalExperts']:
    """Returns the places at which kernels take these experts to begin."""
    places = dict.fromkeys(
      (0, self.first - 1, self.first + 1, self.first + self.count)
    )
    return [
      dataclasses.replace(self, first=first)
      for first in places
      if first >= 0 and first != self.first
    ]

  def fields(self, case: case_lib.Case) -> dict[str, str]:
    """Returns the fields of the case of these experts alone."""
    name, *words = case.preset.split(':')
    words = [word for word in words if not word.startswith('experts=')]
    preset = ':'.join([name, *words, f'experts={self.count}'])
    return dict(preset=preset, local_experts='')


def read(case: case_lib.Case) -> LocalExperts | None:
  """Returns the experts of a case with `local_experts`; None: it has all.

  Raises:
    ValueError: there are no such experts, or it has several ranks or inputs of
      its own.
  """
  if not case.local_experts:
    return None
  text = case.local_experts
  first, colon, count = text.partition(':')
  if not (colon and first.isdecimal() and count.isdecimal()):
    raise ValueError(
      f'local_experts: expected FIRST:COUNT, such as 0:32, got {text!r}'
    )
  if case.ranks != 1:
    raise ValueError(
      f'ranks: expected 1 with --local_experts={text}, got {case.ranks}'
    )
  if case.input is not None:
    raise ValueError(
      'local_experts: expected none with --input, whose experts are those of '
      f'its weights, got {text}'
    )
  config, _ = case.estimate_sizes()
  experts = LocalExperts(int(first), int(count), config.num_experts)
  if experts.first + experts.count > config.num_experts:
    raise ValueError(
      f'local_experts: expected FIRST + COUNT of at most {config.num_experts}, '
      f'the experts of the layer, got {text}'
    )
  if experts.count < config.top_k:
    raise ValueError(
      f'local_experts: expected COUNT of at least K={config.top_k}, got {text}'
    )
  return experts
