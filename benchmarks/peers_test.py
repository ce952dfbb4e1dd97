"""Each peer computes the layer that float64 computes, in both passes."""

import json
import subprocess
import sys

import pytest

# In a process of its own, as each benchmark defines its flags.
_SERVE = """
import json, sys
import numpy as np
from benchmarks import peers
from hpmoe.reference.contract import config_testing

class Pipe(list):  # keeps what a peer sends, and asks for no times
  send = list.append
  recv = lambda self: ''

def swap(config, arrays):
  swapped = arrays | dict(w_gate_up=np.roll(arrays['w_gate_up'], 12, axis=2))
  return lambda pass_: peers.loop(swapped, pass_ == 'both')

peers.PEERS['swapped gate and up'] = swap
config = config_testing.make_config(r=1, t=24, e=4, k=2, d=16, f=12)
for request in sys.argv[1:]:
  name, dtype = request.split(':')
  peers.serve(pipe := Pipe(), name, config, dtype, 'zipf')
  print(json.dumps([request, peers._MOST_DIFFERENT, *pipe]))
"""


def _serve(*requests: str) -> dict[str, list]:
  """Returns the largest error that is right, and what each peer sends."""
  output = subprocess.run(
    [sys.executable, '-c', _SERVE, *requests],
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  return {
    name: messages for name, *messages in map(json.loads, output.splitlines())
  }


def test_peers_in_numpy_are_right_and_a_wrong_one_is_told():
  wrong, unable = 'swapped gate and up:f32', 'numpy loop:bf16'

  messages = _serve('ours, numpy:f32', 'numpy loop:f32', wrong, unable)

  limit, *errors = messages.pop(wrong)
  assert len(errors) == 2 and min(errors) > limit
  assert messages.pop(unable)[1:] == [
    'numpy loop: numpy has no products of bfloat16'
  ]
  for limit, *errors in messages.values():
    assert len(errors) == 2 and max(errors) < limit


@pytest.mark.slow
def test_peers_that_are_compiled_are_right():
  messages = _serve(
    'ours, JAX:f32', 'JAX capacity:f32', 'ours, even_odd_32:bf16'
  )

  for limit, *errors in messages.values():
    assert len(errors) == 2 and max(errors) < limit
