"""Several NPUs as a candidate: each rank in a process of its own.

Their devices are the twin, unless --npus names what was built for real ones.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import pathlib
from typing import Self
import weakref

import numpy as np

from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.backend_ascend.device.npus import local_ranks
from hpmoe.backend_ascend.device.standin import rehearsal
from hpmoe.backend_ascend.device.twin_launch import twin_report
from hpmoe.backend_ascend.device.twin_launch import twin_runtime
from hpmoe.backend_ascend.host.launch import runtime
from hpmoe.parity_tests.ascend import image_launch
from hpmoe.parity_tests.ascend import twin_candidate
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.case import flag_tables

NAME = 'ascend_npus'
# What `make ascend-npus` leaves in its folder.
LIBRARY, KERNEL = 'libhpmoe_npus.so', 'hpmoe_megakernel.o'

FLAGS = flag_tables.read_flags('npus')


class _Held:
  """Ranks that wait for the next launch of the images that they know."""

  def __init__(self):
    self._stack = contextlib.ExitStack()
    self._known: image_lib.Image | None = None
    self.twin: rehearsal.Rehearsal | None = None
    self.ranks: local_ranks.LocalRanks | None = None

  def take(
    self, owner: 'Npus', image: image_lib.Image
  ) -> local_ranks.LocalRanks:
    """Returns ranks that can launch an image."""
    if self.ranks is None or self._known is not image:
      self.close()
      self.ranks = self._start(owner, image)
      self._known = image
    return self.ranks

  def _start(
    self, owner: 'Npus', image: image_lib.Image
  ) -> local_ranks.LocalRanks:
    num_ranks = image.config.num_ranks
    folder = pathlib.Path(owner.npus).absolute()
    library, kernel, environment = folder / LIBRARY, folder / KERNEL, {}
    if not owner.npus:
      options = twin_runtime.options(owner.twin)
      twin = self._stack.enter_context(rehearsal.Rehearsal(num_ranks, options))
      library, kernel, environment = twin.library, twin.kernel, twin.environment
      self.twin = twin
    return self._stack.enter_context(
      local_ranks.LocalRanks(
        num_ranks,
        [image],
        environment=environment,
        library=library,
        kernel=kernel,
        deadline_s=owner.deadline_s,
        poison=True,
      )
    )

  def close(self) -> None:
    """Ends the ranks, then their devices."""
    self.ranks = self.twin = None
    self._stack.close()


@dataclasses.dataclass(frozen=True)
class Npus(twin_candidate.Twin):
  """The image that the host would run, by the host program of NPUs.

  Attributes:
    npus: folder of what was built for NPUs; '': the twin is every device.
  """

  name: str = NAME
  npus: str = ''
  held: _Held = dataclasses.field(
    default_factory=_Held, init=False, compare=False, repr=False
  )

  def __post_init__(self):
    super().__post_init__()
    weakref.finalize(self, self.held.close)

  def ready(self, case, beside='') -> Self:
    """See `candidates.Candidate`."""
    if self.npus:
      if self.twin != twin_runtime.Modes():
        raise ValueError(
          f'npus: expected none beside modes of the twin, got {self.npus!r}'
        )
      for name in (LIBRARY, KERNEL):
        if not (pathlib.Path(self.npus) / name).is_file():
          raise ValueError(
            f'npus: expected a folder with {LIBRARY} and {KERNEL}, as `make '
            f'ascend-npus` fills it, got {self.npus!r}'
          )
    return super().ready(case, beside)

  @property
  def serial(self) -> Callable[..., dict[str, np.ndarray]] | None:
    """As the twin's; an NPU adds in an order that is not published."""
    return None if self.npus else super().serial

  def _launch(
    self, which, image, plan, inputs, fault, *, modes, asked, view
  ) -> dict[str, np.ndarray]:
    del fault, modes, asked
    try:
      outputs = self.held.take(self, image).run(image, inputs)
    except local_ranks.RanksError as error:
      raise self._failure(image, error) from error
    except RuntimeError as error:
      raise candidates.CandidateError(f'{self.name}: {error}') from error
    self._raise_findings(image)
    self.launches.append(
      image_launch.ImageLaunch(which, image=image, plan=plan, view=view)
    )
    return outputs

  def _raise_findings(self, image) -> None:
    """Raises what the twin found in its last launch."""
    twin = self.held.twin
    found = twin and twin.reports and twin.reports[-1]
    findings = twin_report.findings(image, found) if found else ()
    if findings:
      self.held.close()
      raise twin_candidate.TwinFailure(twin_runtime.TwinError(findings))

  def _failure(self, image, error) -> candidates.CandidateError:
    """Returns what ranks that failed say; no launch follows on theirs."""
    self._raise_findings(image)
    self.held.close()
    for said in error.said.values():
      if isinstance(said, runtime.WaitError):
        return candidates.CandidateError(str(error), said.diagnosis)
    return candidates.CandidateError(f'{self.name}: {error}')
