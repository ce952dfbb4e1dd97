"""Several NPUs as a candidate: each rank in a process of its own.

Each device is the twin, unless --npus names a folder built for real NPUs.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import pathlib
from typing import ClassVar, Self
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
from hpmoe.reference.contract import option_fields

NAME = 'ascend_npus'
# What `make ascend-npus` leaves in its folder.
LIBRARY, KERNEL = 'libhpmoe_npus.so', 'hpmoe_megakernel.o'


class _RankPool:
  """Processes of ranks that keep an image loaded for the next launch."""

  def __init__(self):
    self._stack = contextlib.ExitStack()
    self._image: image_lib.Image | None = None
    self.twin: rehearsal.Rehearsal | None = None
    self.ranks: local_ranks.LocalRanks | None = None

  def take(
    self, owner: 'Npus', image: image_lib.Image
  ) -> local_ranks.LocalRanks:
    """Returns ranks that have the image loaded, started if need be."""
    if self.ranks is None or self._image is not image:
      self.close()
      self.ranks = self._start(owner, image)
      self._image = image
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
  """Launches on NPUs the image that the host would run.

  Attributes:
    npus: folder with the library and kernel built for NPUs; '': each device is
      the twin.
    rank_pool: the ranks' processes.
  """

  # NPUs are not given scales of codes.
  capabilities: ClassVar[candidates.Capabilities] = dataclasses.replace(
    twin_candidate.Twin.capabilities, forms=()
  )
  name: str = NAME
  npus: str = option_fields.option(
    '',
    'The folder that `make ascend-npus` wrote; the ranks then run on NPUs '
    'of this server. Default: ranks run on the twin.',
  )
  rank_pool: _RankPool = dataclasses.field(
    default_factory=_RankPool, init=False, compare=False, repr=False
  )

  def __post_init__(self):
    super().__post_init__()
    weakref.finalize(self, self.rank_pool.close)

  def ready(self, case, beside='') -> Self:
    """See `candidates.Candidate`."""
    if self.npus:
      if self.twin != twin_runtime.Modes():
        raise ValueError(
          f'npus: expected none with modes of the twin, got {self.npus!r}'
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
    """As the twin's; None on NPUs, whose order of additions is unknown."""
    return None if self.npus else super().serial

  def _launch(
    self, layer_pass, image, plan, inputs, fault, *, modes, output_names, view
  ) -> dict[str, np.ndarray]:
    del fault, modes, output_names
    try:
      outputs = self.rank_pool.take(self, image).run(image, inputs)
    except local_ranks.RanksError as error:
      raise self._failure(image, error) from error
    except RuntimeError as error:
      raise candidates.CandidateError(f'{self.name}: {error}') from error
    self._raise_findings(image)
    self.launches.append(
      image_launch.ImageLaunch(layer_pass, image=image, plan=plan, view=view)
    )
    return outputs

  def _raise_findings(self, image) -> None:
    """Raises what the twin found in its last launch."""
    twin = self.rank_pool.twin
    report = twin and twin.reports and twin.reports[-1]
    findings = twin_report.findings(image, report) if report else ()
    if findings:
      self.rank_pool.close()
      raise twin_candidate.TwinFailure(twin_runtime.TwinError(findings))

  def _failure(
    self, image: image_lib.Image, error: local_ranks.RanksError
  ) -> candidates.CandidateError:
    """Returns the error of ranks that failed, whose processes it ends."""
    self._raise_findings(image)
    self.rank_pool.close()
    for rank_error in error.errors.values():
      if isinstance(rank_error, runtime.WaitError):
        return candidates.CandidateError(str(error), rank_error.diagnosis)
    return candidates.CandidateError(f'{self.name}: {error}')
