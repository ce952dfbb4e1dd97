"""Training state: every bit back, the last good one after a kill."""

import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hpmoe.models.checkpoint import train_state

# For n = 1, 2, ...: saves step 1, then is killed at its n-th touch of the disk
# while saving step 2. Ends with the first n that it survives, and prints it.
_KILLED = """
import os, pathlib, signal, sys
import numpy as np
from hpmoe.models.checkpoint import train_state

TOUCHES = 'open', 'os.rename', 'os.remove', 'os.rmdir', 'os.mkdir'
tree = {str(n): np.full((64, 64), n, np.float32) for n in range(3)}

def save(folder, deadly):
  train_state.save(folder, 1, tree, keep=1)
  touches = 0

  def touch(event, arguments):
    nonlocal touches
    touches += event in TOUCHES
    if event in TOUCHES and touches == deadly:
      os.kill(os.getpid(), signal.SIGKILL)

  sys.addaudithook(touch)
  train_state.save(folder, 2, {k: v + 10 for k, v in tree.items()}, keep=1)

deadly, status = 0, None
while status != 0:
  deadly += 1
  child = os.fork()
  if not child:
    save(pathlib.Path(sys.argv[1]) / str(deadly), deadly)
    os._exit(0)
  status = os.waitpid(child, 0)[1]
  assert status in (0, signal.SIGKILL), status
print(deadly)
"""
TREE = {str(n): np.zeros((64, 64), np.float32) for n in range(3)}


class State(NamedTuple):
  params: dict
  moments: tuple
  key: np.ndarray


def _state(seed) -> State:
  rng = np.random.default_rng(seed)
  bits = rng.integers(0, 2**32, (3, 5), np.uint32)
  return State(
    {'a.weight': bits.view(np.float32), 'b': bits.view(jnp.bfloat16)},
    (jnp.int32(7), {'nested': [bits.astype(bool), np.zeros((0, 2))]}),
    bits[0],
  )


class TestRoundTrip:
  def test_every_bit(self, tmp_path, seed):
    # given a state of every kind of leaf; its floats are any bits, NaNs too
    state = _state(seed)
    # when
    folder = train_state.save(tmp_path, 3, state, {'place': 12, 'text': 'x'})
    actual, header = train_state.load(folder, state)
    # then
    assert header == {'step': 3, 'place': 12, 'text': 'x'}
    assert jax.tree.structure(actual) == jax.tree.structure(state)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(state)):
      assert (a.dtype, a.shape) == (b.dtype, b.shape)
      assert a.tobytes() == np.asarray(b).tobytes()

  def test_the_newest_stay(self, tmp_path):
    for step in (1, 9, 10, 100_000_000):
      train_state.save(tmp_path, step, TREE, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ['step-00000010', 'step-100000000']
    assert train_state.latest(tmp_path).name == 'step-100000000'

  def test_nothing_yet(self, tmp_path):
    assert train_state.latest(tmp_path / 'no') is None


class TestRefuses:
  def test_a_step_that_is_there(self, tmp_path):
    train_state.save(tmp_path, 1, TREE)
    with pytest.raises(ValueError, match='expected nothing there yet'):
      train_state.save(tmp_path, 1, TREE)

  def test_keeping_none(self, tmp_path):
    with pytest.raises(ValueError, match='keep: expected at least 1, got 0'):
      train_state.save(tmp_path, 1, TREE, keep=0)

  @pytest.mark.parametrize(
    'like, text',
    [
      ({**TREE, 'x': TREE['0']}, r"such as \['x'\], missing"),
      ({'0': TREE['0']}, r"2 leaves .* such as \['1'\], unexpected"),
      ({**TREE, '1': np.zeros(3, np.float32)}, r"\['1'\]: expected \[3\]"),
      ({**TREE, '1': np.zeros((64, 64), np.int32)}, r'of int32, got .*float32'),
    ],
  )
  def test_another_run(self, tmp_path, like, text):
    folder = train_state.save(tmp_path, 1, TREE)
    with pytest.raises(ValueError, match=text):
      train_state.load(folder, like)

  @pytest.mark.parametrize('cut', [0, 4, 100, -1])
  def test_a_truncated_file(self, tmp_path, cut):
    folder = train_state.save(tmp_path, 1, TREE)
    file = folder / 'state.safetensors'
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ValueError, match='state.safetensors: expected'):
      train_state.load(folder, TREE)

  def test_an_error_while_saving_leaves_no_trace(self, tmp_path):
    train_state.save(tmp_path, 1, TREE)
    with pytest.raises(KeyError):
      train_state.save(tmp_path, 2, {'a': np.zeros(2, np.complex64)})
    assert [p.name for p in tmp_path.iterdir()] == ['step-00000001']


class TestKilled:
  def test_at_any_touch_of_the_disk(self, tmp_path):
    # given writers, each killed at another touch of the disk
    ran = subprocess.run(
      [sys.executable, '-c', _KILLED, str(tmp_path)],
      stdout=subprocess.PIPE,
      check=True,
    )
    survived = int(ran.stdout)
    assert survived > 5
    steps = set()
    for deadly in range(1, survived + 1):
      # then what each left is whole: the old state or the new one
      folder = tmp_path / str(deadly)
      state, header = train_state.load(train_state.latest(folder), TREE)
      steps.add(header['step'])
      for n in range(3):
        value = n + {1: 0, 2: 10}[header['step']]
        np.testing.assert_array_equal(state[str(n)], value)
      # and the next writer clears up and goes on
      train_state.save(folder, 3, TREE, keep=1)
      assert [p.name for p in folder.iterdir()] == ['step-00000003']
    assert steps == {1, 2}
