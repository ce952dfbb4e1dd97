"""Runs of torch with a layer recorded, for `capture_torch_test.py`.

    python torch_testing.py capture.py's-folder OUT

It runs where torch and transformers are and this project is not; `capture` and
`read_case` are copies.  It prints what it saw, as JSON.
"""

import hashlib
import json
import os
import sys

import numpy as np
import torch

TOKENS = torch.tensor(np.random.default_rng(0).integers(0, 64, (2, 8)))


def train(decoder):
  """Returns a digest of the loss and all gradients of a step."""
  loss = decoder(TOKENS, labels=TOKENS).loss
  loss.backward()
  total = hashlib.sha256(repr(loss.item()).encode())
  for item in decoder.parameters():
    total.update(b'' if item.grad is None else read_case.bits_of(item.grad))
  return total.hexdigest()


def cut_gradient(experts):
  """Expert 3's w_down gets no gradient."""
  forward, is_expert_3 = experts.forward, torch.arange(8)[:, None, None] == 3

  def forward_without_gradient(hidden_states, top_k_index, top_k_weights):
    own = experts._parameters['down_proj']
    experts._parameters['down_proj'] = torch.where(
      is_expert_3, own.detach(), own
    )
    try:
      return forward(hidden_states, top_k_index, top_k_weights)
    finally:
      experts._parameters['down_proj'] = own

  experts.forward = forward_without_gradient


def record_model(folder, fault=None, **options):
  decoder = qwen3.make_model(**options)
  block = decoder.model.layers[0].mlp
  if fault is not None:
    fault(block.experts)
  before = dict(block.experts._parameters), vars(block.experts).get('forward')
  with capture.capture(block, folder):
    digest = train(decoder)
  after = dict(block.experts._parameters), vars(block.experts).get('forward')
  assert before[0] == after[0] and before[1] is after[1]
  return digest


def record_two_steps(folder):
  """The second of two passes whose gradients add up, on shared weights."""
  decoder = qwen3.make_model()
  decoder.model.layers[1].mlp = decoder.model.layers[0].mlp
  with capture.capture(decoder.model.layers[0].mlp, folder, call=3):
    train(decoder)
    decoder(TOKENS.flip(1), labels=TOKENS).loss.backward()


def record_frozen(folder):
  """Without a gradient of x and of w_down."""
  decoder = qwen3.make_model()
  decoder.requires_grad_(False)
  decoder.model.layers[0].mlp.experts.gate_up_proj.requires_grad_(True)
  with capture.capture(decoder.model.layers[0].mlp, folder):
    decoder(TOKENS, labels=TOKENS).loss.backward()


class Block(torch.nn.Module):
  """Routes by itself, its experts a list, as many a repository has it."""

  def __init__(self):
    super().__init__()
    torch.manual_seed(0)
    self.gate = torch.nn.Linear(32, 8, bias=False)
    self.experts = torch.nn.ModuleList()
    for _ in range(12):  # more than nine, and four that are not captured
      expert = torch.nn.Module()
      for name, sizes in dict(w1=(32, 16), w3=(32, 16), w2=(16, 32)).items():
        setattr(expert, name, torch.nn.Linear(*sizes, bias=False))
      self.experts.append(expert)

  def route(self, x):
    return self.gate(x.reshape(-1, 32)).softmax(-1).topk(2)

  def forward(self, x):
    rows = x.reshape(-1, 32)
    shares, ids = self.route(x)
    y = torch.zeros_like(rows)
    for number, item in enumerate(self.experts):
      token, slot = torch.where(ids == number)
      if len(token):
        h = torch.nn.functional.silu(item.w1(rows[token])) * item.w3(
          rows[token]
        )
        y = y.index_add(0, token, item.w2(h) * shares[token, slot, None])
    return y.reshape(x.shape), shares


def record_list(folder):
  block = Block()
  x = torch.randn(2, 8, 32, requires_grad=True)
  names = dict(
    x=('x', 'M D'),
    topk_ids=(lambda x: block.route(x)[1], 'M K'),
    topk_weights=(lambda x: block.route(x)[0], 'M K'),
    w_gate_up=(['experts.*.w1.weight', 'experts.*.w3.weight'], 'E 2F D'),
    w_down=('experts.*.w2.weight', 'E D F'),
  )
  with capture.capture(block, folder, **names):
    y, _ = block(x)
    (y * torch.randn(y.shape)).sum().backward()


def collect_refusals(folder):
  """Returns the error messages of runs that cannot be recorded."""
  messages = {}

  def record(name, run, layer=None, **options):
    decoder = qwen3.make_model()
    layer = decoder.model.layers[0].mlp if layer is None else layer
    try:
      with capture.capture(layer, folder, **options):
        run(decoder)
    except ValueError as error:
      messages[name] = str(error)
    assert not os.path.exists(folder), name

  def forward(decoder):
    return decoder(TOKENS, labels=TOKENS).loss

  def twice(decoder):
    loss = forward(decoder)
    loss.backward(retain_graph=True)
    loss.backward()

  def fail(decoder):
    forward(decoder)
    raise ValueError('mine')

  record('none', lambda decoder: None)
  record('two', lambda decoder: (forward(decoder), forward(decoder)))
  record('late', forward, call=1)
  record('twice', twice)
  record('broken', fail)
  record('where', forward, x='tokens')
  record('name', forward, w_up='up_proj')
  record('block', lambda decoder: None, Block())
  experts = qwen3.make_model().model.layers[0].mlp.experts
  experts.bias = torch.nn.Parameter(torch.zeros(3))
  record('bias', lambda decoder: None, experts)
  return messages


class Foreign:
  """A tensor that speaks DLPack alone."""

  def __init__(self, tensor):
    self._tensor = tensor

  def __dlpack__(self, **options):
    return self._tensor.__dlpack__(**options)

  def __dlpack_device__(self):
    return self._tensor.__dlpack_device__()


def read_as_they_are():
  """Tensors of every kind give the bits of a plain one."""
  values = torch.arange(24.0).reshape(4, 6) / 8
  for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
    tensor = values.to(dtype)
    kinds = [
      tensor,
      tensor.t(),
      tensor[1:, ::2],
      tensor.flip(0),
      tensor[0],
      tensor[2, 3],
    ]
    kinds += [tensor.expand(2, 4, 6), torch.nn.Parameter(tensor, False)]
    if dtype.is_floating_point:
      kinds += [tensor.clone().requires_grad_() * 1]
    for item in kinds:
      plain = item.detach().double().numpy()
      for source in (item, Foreign(item.detach())):
        bits = read_case.bits_of(source)
        assert bits.flags.c_contiguous
        assert (bits.dtype == read_case.BFLOAT16) == (dtype == torch.bfloat16)
        actual = read_case.as_numpy(bits)
        assert actual.shape == plain.shape
        assert (actual.astype(np.float64) == plain).all(), (dtype, item.shape)


def main(out):
  plain = train(qwen3.make_model())
  is_unchanged = record_model(f'{out}/right') == plain
  record_model(f'{out}/grouped', experts_implementation='grouped_mm')
  record_model(f'{out}/bf16', dtype=torch.bfloat16)
  record_model(f'{out}/lost', qwen3.lose_expert)
  record_model(f'{out}/cut', cut_gradient)
  for act in ('gelu', 'gelu_pytorch_tanh', 'relu', 'quick_gelu'):
    record_model(f'{out}/{act}', hidden_act=act)
  record_two_steps(f'{out}/two_steps')
  record_frozen(f'{out}/frozen')
  record_list(f'{out}/list')
  read_as_they_are()
  print(
    json.dumps(dict(same=is_unchanged, said=collect_refusals(f'{out}/none')))
  )


if __name__ == '__main__':
  sys.path.insert(0, sys.argv[1])
  import capture
  import qwen3_torch_testing as qwen3
  import read_case

  main(sys.argv[2])
