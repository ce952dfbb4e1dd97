"""A decoder on two processes of an msrun job is the decoder on one.

This file is also the program of each process: it writes what it computes.
"""

import sys

import mindspore as ms
from mindspore import communication
import numpy as np
import pytest

from hpmoe.backend_ascend.frontends import msrun_testing
from hpmoe.models import golden_testing as golden
from hpmoe.models import parameters
from hpmoe.models.mindspore import decoder
from hpmoe.models.mindspore import model_testing
from hpmoe.models.mindspore import ops
from hpmoe.models.mindspore import parallel

CASES = [
  ('deepseek_groups', 'float32'),
  ('deepseek_halves', 'float32'),
  ('qwen3_plain', 'float32'),
  ('mixtral_plain', 'float32'),
  ('mixtral_plain', 'bfloat16'),
]


def main(folder: str) -> None:
  ms.set_device('CPU')
  ms.set_context(pynative_synchronize=True)
  communication.init('mccl')
  rank = communication.get_rank()
  for name, dtype in CASES:
    params = parallel.own(golden.weights(name, 0))
    params = model_testing.tensors(params, dtype)
    tokens = ms.Tensor(golden.tokens(name, 0)[rank : rank + 1])
    config = golden.config(name)
    loss, grads = parallel.loss_and_grads(params, config, tokens)
    results = dict(
      grads, loss=loss, logits=parallel.logits(params, config, tokens)
    )
    _save(f'{folder}/{name}.{dtype}.{rank}.npz', results)
  for wrong in (
    lambda: parallel.own({'mlp.experts.w_down': np.zeros((3, 2, 2))}),
    lambda: decoder.forward(params, config, tokens, shards=2, moe='framework'),
  ):
    try:
      wrong()
    except ValueError as error:
      print('refused:', error)


def on_one(name: str, dtype: str) -> dict[str, ms.Tensor]:
  """Returns loss, logits and gradients, which one process computes."""
  config, params, tokens = model_testing.model(name, dtype)
  names = golden.list_trained(params)

  def loss(*values):
    merged_params = params | dict(zip(names, values, strict=True))
    out, _ = decoder.forward(merged_params, config, tokens, ranks=2)
    return decoder.next_token_loss(out, tokens), out

  values = [params[n] for n in names]
  places = tuple(range(len(values)))
  (value, out), grads = ms.value_and_grad(loss, places, has_aux=True)(*values)
  return dict(zip(names, grads), loss=value, logits=out)


def _save(path: str, results: dict[str, ms.Tensor]) -> None:
  arrays = {n: ops.to_numpy(value) for n, value in results.items()}
  np.savez(path, **{n: a.astype(np.float32) for n, a in arrays.items()})


def differences(actual: list, want: dict) -> dict[str, float]:
  """Returns largest differences, of gradients over their mean square's root."""
  out = {}
  for name, value in want.items():
    value = ops.to_numpy(value).astype(np.float32)
    parts = [part[name] for part in actual]
    if name != 'logits' and not parameters.is_of_experts(name):
      np.testing.assert_array_equal(*parts, name)
      parts = parts[:1]
    whole = np.concatenate([p.reshape(-1) for p in parts])
    far = float(np.max(np.abs(whole - value.reshape(-1))))
    assert np.any(value != 0), name
    out[name] = far / float(np.sqrt(np.mean(np.square(value))))
  return out


# Of what is repeated, a gradient is a sum over tokens: here in two parts, there
# in one.  A chain of a hundred roundings; a lost part is of order 1.
ORDER = {'float32': 100 * 2.0**-24, 'bfloat16': 100 * 2.0**-9}


def has_the_same_bits(name: str) -> bool:
  """Whether a tensor has no sum over both processes' tokens."""
  in_order = ('logits', 'model.embed_tokens.weight')
  return name in in_order or parameters.is_of_experts(name)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
  program = f'import sys\nfrom {__name__} import main\nmain(sys.argv[1])\n'
  logs = msrun_testing.run(program, tmp_path)
  for message in ('divides 3 experts, got 2', "for 2 shards, got 'framework'"):
    assert logs.count(message) == 2, logs
  ms.set_device('CPU')
  for name, dtype in CASES:
    actual = [
      dict(np.load(tmp_path / f'{name}.{dtype}.{r}.npz')) for r in (0, 1)
    ]
    distances = differences(actual, on_one(name, dtype))
    print(name, dtype, max(distances.items(), key=lambda item: item[1]))
    for tensor, far in distances.items():
      bound = 0 if has_the_same_bits(tensor) else ORDER[dtype]
      assert far <= bound, (name, dtype, tensor, far)


if __name__ == '__main__':
  main(sys.argv[1])
