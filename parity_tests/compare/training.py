"""Two layers in one model under training: how the sides diverge, and why.

Both sides take the same steps of AdamW on the same batches, each from its own
weights.  In each step every MoE layer of the candidate's side is judged alone,
on its own inputs, which separates wrong layers from accumulated differences.

A third run predicts the divergence by rounding alone: the reference's side with
noise in each module's output.  The noise is as large as needed for its first
gradients to differ as much as the two sides' do; nothing is fitted to later
steps.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpmoe.models.train import settings as settings_lib
from hpmoe.parity_tests.candidates import candidates
from hpmoe.parity_tests.compare import side_results
from hpmoe.parity_tests.compare import subject as subject_lib

Arrays = Mapping[str, np.ndarray]
# Computes a step: model and batch, and noise by module.
Run = Callable[[subject_lib.Subject, Arrays], side_results.Raw]

# Settings of the steps, as of `hpmoe train`; biases of routers do not change.
SETTINGS = settings_lib.Settings()
# Factor by which noise grows if rounding hides it.
_LOUDER, _TRIES = 4.0, 12


@dataclasses.dataclass(frozen=True)
class Apart:
  """The distance of a side from the reference's in a step.

  Attributes:
    loss: the difference of losses, nats.
    modules: by module, the relative distance of its output.
    choices: tokens that are routed to other experts, over all layers.
  """

  loss: float
  modules: dict[str, float]
  choices: int


@dataclasses.dataclass(frozen=True)
class Step:
  """A step of both sides.

  Attributes:
    number: from 0.
    loss: of the reference's side, nats.
    measured: the distance of the candidate's side.
    predicted: the distance by rounding alone.
  """

  number: int
  loss: float
  measured: Apart
  predicted: Apart


def run(
  subject: subject_lib.Subject,
  steps: int,
  left: tuple[str, Run],
  right: tuple[str, Run],
  judge: Callable[[int, subject_lib.Subject, side_results.Raw], bool],
) -> tuple[Step, ...]:
  """Trains both sides, and the reference's with noise.

  Args:
    subject: model and text.
    steps: the most steps.
    left: the reference's side, by its name.
    right: the candidate's.
    judge: called with each step of the candidate's; False ends the run.

  Raises:
    candidates.CandidateError: a launch ended early, or a gradient is not
      finite.
  """
  sides = {'left': left, 'right': right, 'noise': left}
  states = {name: _SideState(subject) for name in sides}
  size, steps_done = 0.0, []
  for number in range(steps):
    subjects = {n: t.subject.at_step(number) for n, t in states.items()}
    raws = {n: sides[n][1](subjects[n], {}) for n in ('left', 'right')}
    if number == 0:
      size = _size(subjects['noise'], left[1], raws)
    raws['noise'] = raws['left']
    if size:
      noise = _noise(subject, number, size)
      raws['noise'] = left[1](subjects['noise'], noise)
    differences = [
      _apart(subject, raws['left'], raws[n]) for n in ('right', 'noise')
    ]
    steps_done.append(Step(number, float(raws['left'].loss), *differences))
    if not judge(number, subjects['right'], raws['right']):
      break
    for name, (title, _) in sides.items():
      states[name].update(f'{title}: step {number}', raws[name].grads)
  return tuple(steps_done)


class _SideState:
  """The weights of a side, and the moments of its optimizer."""

  def __init__(self, subject: subject_lib.Subject):
    # An extra, which only training needs.
    import optax

    from hpmoe.models.train import jax_trainer

    self.subject = subject
    optimizer = jax_trainer.optimizer(SETTINGS)
    self._moments: Any = optimizer.init(self._weights())

    def update_weights(grads, moments, weights):
      updates, moments = optimizer.update(grads, moments, weights)
      return optax.apply_updates(weights, updates), moments

    self._update_weights = jax.jit(update_weights)

  def _weights(self) -> dict[str, jax.Array]:
    params = self.subject.params
    return {n: jnp.asarray(params[n]) for n in self.subject.trainable}

  def update(self, title: str, grads: Arrays) -> None:
    for name, grad in grads.items():
      if not np.isfinite(grad.astype(np.float64)).all():
        raise candidates.CandidateError(
          f'{title}: expected a finite gradient of {name}, got others'
        )
    arrays = {n: jnp.asarray(grads[n]) for n in self.subject.trainable}
    weights, self._moments = self._update_weights(
      arrays, self._moments, self._weights()
    )
    params = dict(self.subject.params) | jax.tree.map(np.asarray, weights)
    self.subject = dataclasses.replace(self.subject, params=params)


def _size(
  subject: subject_lib.Subject, run_: Run, raws: Mapping[str, side_results.Raw]
) -> float:
  """Returns the noise that changes first gradients by the sides' distance."""
  target = _measure_difference(raws['left'].grads, raws['right'].grads)
  size = target
  for _ in range(_TRIES if target else 0):
    raw = run_(subject, _noise(subject, -1, size))
    if difference := _measure_difference(raws['left'].grads, raw.grads):
      # A difference this small is proportional to the noise.
      return size * target / difference
    size *= _LOUDER
  return size


def _noise(
  subject: subject_lib.Subject, number: int, size: float
) -> dict[str, np.ndarray]:
  """Returns noise of a module's length, over its root mean square."""
  random = np.random.default_rng([number + 1, subject.seed])
  shapes = subject.flow_shapes()
  return {
    n: (size * random.standard_normal(shape)).astype(np.float32)
    for n, shape in shapes.items()
  }


def _measure_difference(left_grads: Arrays, right_grads: Arrays) -> float:
  pairs = [
    (left_grads[n].astype(np.float64), right_grads[n].astype(np.float64))
    for n in left_grads
  ]
  far = sum(np.sum((a - b) ** 2) for a, b in pairs)
  return float(np.sqrt(far / sum(np.sum(a**2) for a, _ in pairs)))


def _apart(
  subject: subject_lib.Subject, bench: side_results.Raw, npu: side_results.Raw
) -> Apart:
  # The last state is that of the norm behind the last layer.
  last = subject.config.num_hidden_layers - 1
  names = ['model.embed_tokens', *(f'model.layers.{n}' for n in range(last))]
  names.append('model.norm')
  states = zip(names, bench.hidden_states, npu.hidden_states, strict=True)
  choices = sum(
    int((r['topk_ids'] != npu.routed[n]['topk_ids']).any(axis=-1).sum())
    for n, r in bench.routed.items()
  )
  return Apart(
    float(npu.loss) - float(bench.loss),
    {n: _measure_difference({n: a}, {n: b}) for n, a, b in states},
    choices,
  )
