"""The megakernel: through numpy, and through the JAX front end."""

import dataclasses
import importlib.metadata

import numpy as np

from benchmarks.peers import jax_peers
from benchmarks.peers import peer
from hpmoe.backend_ascend import compiler
from hpmoe.backend_ascend.frontends import jax_layer
from hpmoe.backend_ascend.frontends import layer_call
from hpmoe.backend_ascend.kernels.host.launch import runtime
from hpmoe.backend_ascend.taskflow import flow
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision


def _layer(arrays) -> tuple[config_lib.MoEConfig, precision.PrecisionPolicy]:
  (num_tokens, top_k), shape = arrays['topk_ids'].shape, arrays['w_down'].shape
  num_experts, d_ff, d_model = shape
  config = config_lib.MoEConfig(
    num_ranks=1,
    num_tokens=num_tokens,
    num_experts=num_experts,
    top_k=top_k,
    d_model=d_model,
    d_ff=d_ff,
  )
  return config, precision.PrecisionPolicy(storage=arrays['x'].dtype.name)


def _versions() -> dict[str, str]:
  name = 'hyperparallel-moe'
  try:
    return {name: importlib.metadata.version(name)}
  except importlib.metadata.PackageNotFoundError:
    return {name: 'of the tree'}


class Numpy(peer.Peer):
  """Arrays of numpy; images are loaded, and arrays for results made, once."""

  order = 'ascending'  # of sums

  def __init__(self, arrays):
    super().__init__(arrays)
    config, policy = _layer(arrays)
    policy = dataclasses.replace(policy, accumulation_order=self.order)
    options = flow.host_options(config)
    self._kept = layer_call.kept(policy)
    self._read = layer_call.gradient_inputs(policy)
    self._images = [
      runtime.Launch(lower(config, policy, options).image)
      for lower in (compiler.compile_forward, compiler.compile_backward)
    ]
    self._inputs = {n: a[None] for n, a in arrays.items() if n != 'dy'}
    self._held: dict[str, dict] = {}

  def _launch(self, name: str, image: int, inputs, asked=None):
    """Makes what is asked for where the first launch of that name made it."""
    held = self._held.get(name)
    made = self._images[image].run(inputs, asked, out=held).outputs
    self._held[name] = made
    return made

  def forward(self):
    return self._launch('forward', 0, self._inputs)

  def both(self):
    out = self._launch('kept', 0, self._inputs, ('y', *self._kept))
    known = self._inputs | out
    saved = {n: known[n] for n in self._read}
    dy = dict(dy=self.arrays['dy'][None])
    grads = self._launch('backward', 1, saved | dy)
    return dict(y=out['y']) | grads

  def results(self, out):
    return {name: np.asarray(a)[0] for name, a in out.items()}

  @staticmethod
  def versions():
    return _versions()


class EvenOdd(Numpy):
  """Sums of bfloat16 in the order of AMX, which computes them where it is."""

  order = 'even_odd_32'

  def __init__(self, arrays):
    if arrays['x'].dtype.name != 'bfloat16':
      raise peer.CannotRun('an order of bfloat16')
    super().__init__(arrays)


class Jax(jax_peers._Jax):
  """The layer as a JAX function, compiled with jit."""

  def __init__(self, arrays):
    self._layer = _layer(arrays)
    super().__init__(arrays)

  def layer(self, ids, x, weights, w_gate_up, w_down):
    config, policy = self._layer
    inputs = (x, ids, weights, w_gate_up, w_down)
    return jax_layer.layer(config, policy, *(a[None] for a in inputs))[0]

  @staticmethod
  def versions():
    return _versions() | jax_peers._Jax.versions()
