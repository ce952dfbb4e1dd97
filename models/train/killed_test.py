"""A run that is killed at any touch of the disk goes on to the same bits."""

import subprocess
import sys

import pytest

from hpmoe.models.train import folder_testing

# Trains 4 steps and, resumed, 6; its steps are a sum of NumPy's, so that a
# process is a fork. Counts the touches of the disk, then kills so many runs,
# each at another touch, spread over all. Whoever comes next resumes, or begins
# anew if there is no state; a kill may come while resuming too.
_KILLS = """
import builtins, collections, io, os, pathlib, signal, sys
import numpy as np
from hpmoe.models.train import run, settings as settings_lib
from hpmoe.models.checkpoint import train_state

root, config, kills = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
settings = settings_lib.Settings(model=config, batch=2, length=16)
State = collections.namedtuple('State', 'params moments')
Metrics = collections.namedtuple('Metrics', 'loss unevenness loads')

class Trainer:
  def first(self, params):
    return State(params, np.zeros(3))
  def step(self, state, batch):
    moments = state.moments + batch.sum()
    params = {k: v + v.dtype.type(0.5) for k, v in state.params.items()}
    loads = np.zeros((1, 8), np.int32)
    return State(params, moments), Metrics(moments[0] / 7, 1.0, loads)
  def loss(self, params, batch):
    return 1.0

run._trainer = lambda config, settings: Trainer()
TOUCHES = 'os.rename', 'os.remove', 'os.rmdir', 'os.mkdir'
touches, deadly = 0, None

def touch():
  global touches
  touches += 1
  if touches == deadly:
    os.kill(os.getpid(), signal.SIGKILL)

def opening(real):
  # After it: what is written in place is empty by then.
  def opened(file, mode='r', *args, **options):
    out = real(file, mode, *args, **options)
    if set(mode) & set('wax+'):
      touch()
    return out
  return opened

def train(folder, at=None):
  global deadly
  deadly = at
  sys.addaudithook(lambda event, _: touch() if event in TOUCHES else None)
  io.open, builtins.open = opening(io.open), opening(builtins.open)
  begun = train_state.latest(folder / 'states') is not None
  if not begun:
    run.train(settings, folder, 4, save_every=2)
  run.train(settings, folder, 6, save_every=2, resume=True)
  return touches

def forked(function, *args):
  read, write = os.pipe()
  child = os.fork()
  if not child:
    os.write(write, str(function(*args)).encode())
    os._exit(0)
  os.close(write)
  status = os.waitpid(child, 0)[1]
  assert status in (0, signal.SIGKILL), status
  said = os.read(read, 99)
  os.close(read)
  return int(said) if said else None

def files(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in folder.rglob('*')
    # An older state may stay, where a kill came before it was removed.
    if path.is_file() and path.parent.name != 'step-00000002'
  }

total = forked(train, root / 'straight')
want = files(root / 'straight')
for n in range(kills):
  folder, at = root / str(n), 1 + (n * total + total // 2) // kills
  assert forked(train, folder, at) is None, at
  # Whoever resumes is killed too, at its first touches or later.
  forked(train, folder, 1 + n)
  assert forked(train, folder) is not None
  got = files(folder)
  assert got == want, (at, set(got) ^ set(want))
print(total)
"""


@pytest.mark.parametrize('kills', [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_ends_in_the_same_bits(kills, tmp_path):
  # given a model of one layer
  config = folder_testing.config(tmp_path, 'mixtral_tiny')
  # when, then
  command = (sys.executable, '-c', _KILLS, tmp_path, config, str(kills))
  ran = subprocess.run(command, capture_output=True, text=True, check=False)
  assert not ran.returncode, ran.stderr[-2000:]
  assert int(ran.stdout) > 30
