"""No unsafe schedule of a selection is accepted; the judge is judged, too."""

import numpy as np
import pytest

from benchmarks import unsafe_schedules
from hpmoe.backend_ascend.compiler import interpreter
from hpmoe.backend_ascend.compiler.proofs import proofs
from hpmoe.backend_ascend.compiler.taskflow import image as image_lib
from hpmoe.tools.docs import figures


@pytest.fixture(name='bases', scope='module')
def _bases():
  flows = unsafe_schedules.base_flows()
  return [(flow, unsafe_schedules.find_conflicts(flow)) for flow in flows]


def test_what_the_compiler_makes_is_right_and_proven(bases):
  for flow, conflicts in bases:
    assert unsafe_schedules.is_right(flow, conflicts)
    assert proofs.prove(image_lib.serialize(flow)).proved
    assert len(conflicts.writers) == len(flow.tasks) - 4  # but combine


def test_no_unsafe_schedule_is_accepted():
  counts = unsafe_schedules.count_schedules(48, seed=1)
  assert set(counts) == set(unsafe_schedules.CHANGES)
  for name, count in counts.items():
    assert count.right + count.unsafe == 12
    assert count.unsafe > 0, name
    assert count.accepted == 0, name
  assert not counts['waits dropped'].refusals
  assert counts['waits dropped'].right > 0


def test_proofs_that_accept_everything_are_found_out(monkeypatch):
  # Given proofs without rules, when schedules are counted, then each unsafe one
  # counts as accepted.
  report = proofs.ProofReport(0, 0, 0, 0, (), ())
  monkeypatch.setattr(proofs, 'prove', lambda image: report)
  for count in unsafe_schedules.count_schedules(16, seed=1).values():
    assert count.accepted == count.unsafe


def _outputs(flow, topk_ids, seed):
  """Returns y of an execution in a drawn order, or None if it deadlocks."""
  rng = np.random.default_rng(0)
  size = unsafe_schedules.CONFIG.dims()
  shapes = dict(x='RTD', topk_weights='RTK', w_gate_up='RLDG', w_down='RLFD')
  size['G'] = 2 * size['F']
  inputs = {
    name: rng.standard_normal([size[letter] for letter in letters])
    for name, letters in shapes.items()
  }
  inputs = {n: a.astype(np.float32) for n, a in inputs.items()}
  try:
    return interpreter.interpret(
      image_lib.serialize(flow),
      inputs | dict(topk_ids=topk_ids),
      np.random.default_rng(seed),
    )['y']
  except RuntimeError:
    return None


@pytest.mark.slow
def test_what_is_called_right_has_the_bits_of_any_order(bases):
  # Given changed schedules that are right in every interleaving, when they are
  # executed in drawn orders, then they end with the bits of the one unchanged.
  rng = np.random.default_rng(2)
  num_right = 0
  for index in range(24):
    base, conflicts = bases[index % len(bases)]
    flow = unsafe_schedules._copy(base)
    name = list(unsafe_schedules.CHANGES)[index // len(bases) % 4]
    unsafe_schedules.CHANGES[name](flow, rng)
    if not unsafe_schedules.is_right(flow, conflicts):
      continue
    num_right += 1
    for topk_ids in list(unsafe_schedules.routings())[::5]:
      expected = _outputs(base, topk_ids, 0)
      for seed in range(2):
        np.testing.assert_array_equal(
          _outputs(flow, topk_ids, seed), expected, name
        )
  assert num_right > 4


def test_the_page_has_no_unsafe_schedule_that_was_accepted():
  rows = figures.load('unsafe_schedules')['rows']
  assert [row[4] for row in rows] == ['0'] * len(unsafe_schedules.CHANGES)
  assert sum(int(row[1].replace(',', '')) for row in rows) == 10_000
