"""What tests of either side share: a model small enough to follow."""

import numpy as np

from hpmoe.models import config as config_lib
from hpmoe.models import init
from hpmoe.parity_tests.compare import side_results
from hpmoe.parity_tests.compare import subject as subject_lib


def subject() -> subject_lib.Subject:
  """Returns a Mixtral of two layers, whose tokens repeat."""
  fields = config_lib.load('mixtral_tiny').to_hf() | dict(
    vocab_size=24,
    hidden_size=32,
    intermediate_size=16,
    num_hidden_layers=2,
    head_dim=8,
    rms_norm_eps=0.0,
    tie_word_embeddings=False,
  )
  config = config_lib.from_hf(fields)
  tokens = np.arange(16, dtype=np.int32).reshape(1, 16) % 7
  return subject_lib.Subject('small', config, init.init(config), tokens)


def check(subject: subject_lib.Subject, raw: side_results.Raw) -> None:
  """Holds gradients between modules to those of parameters beside them."""
  names = [f'model.layers.{n}' for n in (0, 1)]
  assert set(raw.flows) == {'model.embed_tokens', *names, 'model.norm'}
  # A row of the embeddings gets what flows to each of its tokens.
  grad = np.zeros_like(raw.grads['model.embed_tokens.weight'], np.float64)
  rows = raw.flows['model.embed_tokens'].reshape(subject.tokens.size, -1)
  np.add.at(grad, subject.tokens.reshape(-1), rows)
  _close(raw.grads['model.embed_tokens.weight'], grad)
  # The last norm is its input, of length 1, times its weights, which are 1: its
  # gradient and what flows into it have the same sums with what it returned.
  flow, out = raw.flows['model.norm'], raw.hidden_states[-1]
  assert np.all(subject.params['model.norm.weight'] == 1)
  _close(raw.grads['model.norm.weight'], np.sum(flow * out, axis=(0, 1)))
  # In front of the norm a gradient is across: length is what it takes away.
  flow, out = (a.astype(np.float64) for a in (raw.flows[names[1]], out))
  across = np.abs(np.sum(flow * out, axis=-1))
  sizes = np.linalg.norm(flow, axis=-1) * np.linalg.norm(out, axis=-1)
  # The last token is asked for nothing.
  assert np.all((sizes > 0) == [True] * 15 + [False])
  # Some roundings of each of 32 terms.
  assert np.all(across <= 4 * 32 * 2.0**-24 * sizes)


def _close(actual: np.ndarray, desired: np.ndarray) -> None:
  # Sums of at most 16 terms, in two orders.
  bound = 32 * 2.0**-24 * np.max(np.abs(desired))
  np.testing.assert_allclose(actual, desired, rtol=0, atol=bound)
