"""The layer as others run it on this CPU, beside ours: `make bench-peers`.

Every peer runs in a process of its own.  Each must first give the result of
float64; then, round by round, every peer runs each pass once, in an order that
is drawn anew.

On a machine that others use as well, peers whose threads wait for each other by
spinning lose more than the rest.  There `--cores=1 --clock=processor` is fair:
one thread each, and the time that it ran.

Exit code 0: all were timed; 1: a peer's result is not the right one.
"""

from collections.abc import Sequence
import multiprocessing
import os
import random
import statistics
import sys
import time

from absl import app
from absl import flags
import ml_dtypes
import numpy as np

from hpmoe.parity_tests.case import routings
from hpmoe.reference.contract import config as config_lib
from hpmoe.reference.contract import precision

_CASES = flags.DEFINE_list(
  'cases',
  ['f32:balanced', 'f32:zipf', 'bf16:balanced', 'bf16:zipf'],
  'Dtypes and routings.',
)
_SIZES = flags.DEFINE_list('sizes', [1024, 8, 2, 256, 512], 'T, E, K, D, F.')
_CORES = flags.DEFINE_integer('cores', None, 'That peers see; all if none.')
_CLOCK = flags.DEFINE_enum(
  'clock', 'wall', ('wall', 'processor'), 'Which seconds are told.'
)
_ROUNDS = flags.DEFINE_integer('rounds', 15, 'Of every case.')

Arrays = dict[str, np.ndarray]
PASSES = ('forward', 'both')
_LEAVES = ('x', 'topk_weights', 'w_gate_up', 'w_down')
# DeepGEMM's rule for a result (its tests, calc_diff): how far a tensor is from
# parallel to the right one, 1 - 2 <a, g> / (<a, a> + <g, g>).
_MOST_DIFFERENT = 1e-3
# For so long after a call some libraries' threads spin, waiting for the next
# one: nothing else is timed meanwhile.
_SPIN_S = 0.25


def make(config: config_lib.MoEConfig, dtype: str, routing: str) -> Arrays:
  """Returns x and dy `[T, D]`, weights `[E, ...]`, ids and weights `[T, K]`."""
  rng = np.random.default_rng(0)
  kinds = {'f32': np.float32, 'bf16': ml_dtypes.bfloat16}

  def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    values = rng.standard_normal(shape, np.float32) * np.float32(scale)
    return values.astype(kinds[dtype])

  c = config
  routed = routings.make(routing, c, 0)
  weights = routed.topk_weights[0]
  return dict(
    x=normal(c.num_tokens, c.d_model),
    dy=normal(c.num_tokens, c.d_model),
    topk_ids=routed.topk_ids[0],
    topk_weights=weights / weights.sum(axis=-1, keepdims=True),
    w_gate_up=normal(
      c.num_experts, c.d_model, 2 * c.d_ff, scale=c.d_model**-0.5
    ),
    w_down=normal(c.num_experts, c.d_ff, c.d_model, scale=c.d_ff**-0.5),
  )


def loop(a: Arrays, with_grads: bool) -> Arrays:
  """Computes the layer, an expert after the other, in the dtype of arrays."""
  x, dy, ids, weights = a['x'], a['dy'], a['topk_ids'], a['topk_weights']
  names = ('x', 'topk_weights', 'w_gate_up', 'w_down') if with_grads else ()
  out = dict(y=np.zeros_like(x))
  out |= {'dx' if n == 'x' else f'd_{n}': np.zeros_like(a[n]) for n in names}
  for e in np.unique(ids):
    tokens, slots = np.nonzero(ids == e)
    rows, weight = x[tokens], weights[tokens, slots][:, None]
    gate, up = np.split(rows @ a['w_gate_up'][e], 2, axis=1)
    share = 1 / (1 + np.exp(-gate))
    hidden = gate * share * up
    row = hidden @ a['w_down'][e]
    out['y'][tokens] += weight * row  # a token is there at most once
    if with_grads:
      d_out = dy[tokens]
      out['d_topk_weights'][tokens, slots] = (row * d_out).sum(axis=1)
      out['d_w_down'][e] = hidden.T @ (weight * d_out)
      d_hidden = (weight * d_out) @ a['w_down'][e].T
      d_gate = d_hidden * up * share * (1 + gate * (1 - share))
      d_both = np.concatenate([d_gate, d_hidden * gate * share], axis=1)
      out['d_w_gate_up'][e] = rows.T @ d_both
      out['dx'][tokens] += d_both @ a['w_gate_up'][e].T
  return out


def numpy_loop(config, arrays: Arrays):
  if arrays['x'].dtype != np.float32:
    raise ValueError('numpy has no products of bfloat16')
  return lambda pass_: loop(arrays, pass_ == 'both')


def megakernel(config, arrays: Arrays, order: str = 'ascending'):
  """The megakernel on NumPy arrays; images and output buffers are reused."""
  from hpmoe.backend_ascend.compiler import compiler
  from hpmoe.backend_ascend.frontends import layer_call
  from hpmoe.backend_ascend.host.launch import runtime
  from hpmoe.reference.contract import granularity

  policy = precision.PrecisionPolicy(
    storage=arrays['x'].dtype.name, accumulation_order=order
  )
  forward, backward = (
    runtime.Launch(
      lower(config, policy, granularity.host_options(config)).image
    )
    for lower in (compiler.compile_forward, compiler.compile_backward)
  )
  inputs = {name: a[None] for name, a in arrays.items() if name != 'dy'}
  buffers: dict[str, Arrays] = {}

  def launch(name: str, image, arrays_in, names=None) -> Arrays:
    buffers[name] = image.run(arrays_in, names, out=buffers.get(name)).outputs
    return buffers[name]

  def run(pass_: str) -> Arrays:
    if pass_ == 'forward':
      return {'y': launch('forward', forward, inputs)['y'][0]}
    saved_arrays = launch(
      'kept', forward, inputs, ('y', *layer_call.list_saved(policy))
    )
    available = inputs | saved_arrays | dict(dy=arrays['dy'][None])
    read = ('dy', *layer_call.gradient_inputs(policy))
    grads = launch('backward', backward, {n: available[n] for n in read})
    outputs = dict(y=saved_arrays['y']) | grads
    return {name: array[0] for name, array in outputs.items()}

  return run


def ours_even_odd(config, arrays: Arrays):
  """Sums of bfloat16 in the order of AMX, which computes them where it is."""
  if arrays['x'].dtype == np.float32:
    raise ValueError('an order of bfloat16')
  return megakernel(config, arrays, 'even_odd_32')


def _of_jax(arrays: Arrays, layer):
  """Runs `layer(ids, x, weights, w_gate_up, w_down)`, compiled with jit."""
  import jax

  ids, dy = arrays['topk_ids'], arrays['dy']
  leaves = [jax.numpy.asarray(arrays[name]) for name in _LEAVES]

  def with_grads(dy, *leaves):
    y, pull = jax.vjp(lambda *moving: layer(ids, *moving), *leaves)
    return y, *pull(dy)

  forward = jax.jit(lambda *leaves: (layer(ids, *leaves),))
  forward_backward = jax.jit(with_grads)

  def run(pass_: str) -> Arrays:
    results = (
      forward(*leaves) if pass_ == 'forward' else forward_backward(dy, *leaves)
    )
    names = ('y', 'dx', *(f'd_{name}' for name in _LEAVES[1:]))
    return dict(zip(names, jax.block_until_ready(results), strict=False))

  return run


def ours_jax(config, arrays: Arrays):
  from hpmoe.backend_ascend.frontends import jax_layer

  policy = precision.PrecisionPolicy(storage=arrays['x'].dtype.name)

  def layer(ids, x, *weights):
    inputs = (a[None] for a in (x, ids, *weights))
    return jax_layer.layer(config, policy, *inputs)[0]

  return _of_jax(arrays, layer)


def jax_capacity(config, arrays: Arrays):
  """Experts of one capacity, the smallest for the routing, as in GShard."""
  import jax
  import jax.numpy as jnp

  capacity = int(np.bincount(arrays['topk_ids'].reshape(-1)).max())

  def layer(ids, x, weights, w_gate_up, w_down):
    num_experts, _, d_model = w_down.shape
    flat = ids.reshape(-1)
    one_hot = jax.nn.one_hot(flat, num_experts, dtype=jnp.int32)
    before = jnp.cumsum(one_hot, axis=0) - 1
    place = jnp.take_along_axis(before, flat[:, None], axis=1)[:, 0]
    expert_rows = jnp.zeros((num_experts, capacity, d_model), x.dtype)
    expert_rows = expert_rows.at[flat, place].set(
      jnp.repeat(x, ids.shape[1], axis=0)
    )
    gate_up = jnp.einsum('ecd,edf->ecf', expert_rows, w_gate_up)
    gate, up = jnp.split(gate_up, 2, axis=-1)
    out = jnp.einsum('ecf,efd->ecd', jax.nn.silu(gate) * up, w_down)
    slot_rows = out[flat, place].reshape(*ids.shape, d_model)
    return jnp.sum(slot_rows * weights[..., None].astype(x.dtype), axis=1)

  return _of_jax(arrays, layer)


def torch_grouped(config, arrays: Arrays):
  """Rows sorted by expert, then torch.nn.functional.grouped_mm."""
  import torch

  def tensor(a: np.ndarray) -> torch.Tensor:
    if a.dtype == ml_dtypes.bfloat16:
      return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)

  leaves = {name: tensor(arrays[name]).requires_grad_() for name in _LEAVES}
  flat = tensor(arrays['topk_ids']).long().reshape(-1)
  dy, mm = tensor(arrays['dy']), torch.nn.functional.grouped_mm

  def layer() -> torch.Tensor:
    x, weights, w_gate_up, w_down = leaves.values()
    order = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=len(w_down)).cumsum(0).int()
    token = order // config.top_k
    gate, up = mm(x[token], w_gate_up, offs=ends).chunk(2, dim=-1)
    rows = mm(torch.nn.functional.silu(gate) * up, w_down, offs=ends)
    rows = rows * weights.reshape(-1)[order, None].to(rows.dtype)
    return torch.zeros_like(x).index_add(0, token, rows)

  def run(pass_: str) -> Arrays:
    if pass_ == 'forward':
      with torch.no_grad():
        return dict(y=layer().float().numpy())
    for leaf in leaves.values():
      leaf.grad = None
    y = layer()
    y.backward(dy)
    grads = {n: leaf.grad.float().numpy() for n, leaf in leaves.items()}
    named_grads = {
      'dx' if n == 'x' else f'd_{n}': grad for n, grad in grads.items()
    }
    return dict(y=y.detach().float().numpy()) | named_grads

  return run


PEERS = {
  'ours, numpy': megakernel,
  'ours, JAX': ours_jax,
  'ours, even_odd_32': ours_even_odd,
  'torch grouped_mm': torch_grouped,
  'JAX capacity': jax_capacity,
  'numpy loop': numpy_loop,
}


def _difference(actual, right: np.ndarray) -> float:
  a, g = (np.asarray(v, np.float64).reshape(-1) for v in (actual, right))
  if a.shape != g.shape or not np.isfinite(a).all():
    return float('inf')
  return float(1 - 2 * (a @ g) / (a @ a + g @ g))


def serve(pipe, name: str, config, dtype: str, routing: str) -> None:
  """Sends the error of each pass, then the seconds of each requested pass."""
  arrays = make(config, dtype, routing)
  wide = {
    n: a if n == 'topk_ids' else a.astype(np.float64) for n, a in arrays.items()
  }
  try:
    run = PEERS[name](config, arrays)
    right = loop(wide, with_grads=True)
    for pass_ in PASSES:
      outputs = run(pass_)
      expected = right if pass_ == 'both' else ('y',)
      pipe.send(max(_difference(outputs[n], right[n]) for n in expected))
  except (ImportError, ValueError) as error:
    pipe.send(f'{name}: {error}')
    return
  while pass_ := pipe.recv():
    wall, processor = time.perf_counter(), time.process_time()
    run(pass_)
    pipe.send(
      dict(
        wall=time.perf_counter() - wall,
        processor=time.process_time() - processor,
      )
    )


def run_case(config, dtype: str, routing: str) -> bool:
  """Prints the milliseconds of each peer; returns whether all are right."""
  context = multiprocessing.get_context('spawn')
  todo, is_right = [], True
  for name in PEERS:
    pipe, end = context.Pipe()
    args = (end, name, config, dtype, routing)
    context.Process(target=serve, args=args, daemon=True).start()
    for pass_ in PASSES:
      apart = pipe.recv()
      if isinstance(apart, str):
        print(apart)
        break
      if not apart < _MOST_DIFFERENT:
        print(f'{name}: {pass_}: WRONG: {apart}')
        is_right = False
      todo.append((name, pass_, pipe))
  seconds: dict[tuple[str, str], list[float]] = {}
  order = random.Random(0)
  for _ in range(_ROUNDS.value):
    order.shuffle(todo)
    for name, pass_, pipe in todo:
      pipe.send(pass_)
      took = pipe.recv()[_CLOCK.value]
      seconds.setdefault((pass_, name), []).append(took)
      time.sleep(_SPIN_S)
  for _, pass_, pipe in todo:
    if pass_ == PASSES[0]:
      pipe.send('')
  for (pass_, name), samples in sorted(seconds.items(), reverse=True):
    median = 1e3 * statistics.median(samples)
    print(f'{dtype} {routing:8} {pass_:7} {name:17} {median:8.1f} ms')
  return is_right


def main(argv: Sequence[str]) -> None:
  if argv[1:]:
    raise app.UsageError(f'expected flags only, got {argv[1:]}')
  if _CORES.value:  # peers inherit it
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: _CORES.value])
  tokens, experts, top_k, d_model, d_ff = map(int, _SIZES.value)
  config = config_lib.MoEConfig(
    num_ranks=1,
    num_tokens=tokens,
    num_experts=experts,
    top_k=top_k,
    d_model=d_model,
    d_ff=d_ff,
  )
  right = [run_case(config, *case.split(':')) for case in _CASES.value]
  sys.exit(0 if all(right) else 1)


if __name__ == '__main__':
  app.run(main)
