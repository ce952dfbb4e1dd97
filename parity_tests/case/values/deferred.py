"""Tensors by name, of which large ones are drawn when they are first read.

So a check on exact data, which comes first, holds no real weights beside its
own.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

Arrays = dict[str, np.ndarray]


class DeferredArrays(Mapping[str, np.ndarray]):
  """Arrays by name; who makes a dict of it draws all."""

  def __init__(
    self,
    arrays: Mapping[str, np.ndarray],
    names: tuple[str, ...],
    draw: Callable[[], Arrays],
  ):
    """Takes the arrays that are there.

    Args:
      arrays: these.
      names: of the others.
      draw: returns the others.
    """
    self._arrays, self._names, self._draw = dict(arrays), names, draw

  def __getitem__(self, name: str) -> np.ndarray:
    if name in self._names and name not in self._arrays:
      self._arrays |= self._draw()
    return self._arrays[name]

  def __contains__(self, name: object) -> bool:
    return name in self._arrays or name in self._names

  def __iter__(self) -> Iterator[str]:
    return iter(dict.fromkeys((*self._arrays, *self._names)))

  def __len__(self) -> int:
    return len({*self._arrays, *self._names})

  def __or__(self, other: Mapping[str, np.ndarray]) -> Arrays:
    return {**self, **other}

  def convert(
    self, change: Callable[[Mapping[str, np.ndarray]], Arrays]
  ) -> 'DeferredArrays':
    """Returns changed arrays; those that are not drawn are so later."""
    return DeferredArrays(
      change(self._arrays), self._names, lambda: change(self._draw())
    )
