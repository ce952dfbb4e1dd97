"""Batches of prompts against one prompt at a time; tests of both frameworks.

And the best tokens against those of the implementations in transformers, which
`tools/golden/make_golden.py --greedy` put into `FILE`: see `golden_testing.py`.
"""

from collections.abc import Callable
import dataclasses
import json

import numpy as np

from hpmoe.models import generation
from hpmoe.models import golden_testing as golden
from hpmoe.models import sampling

# A golden configuration of each family.
FAMILIES = tuple(
  {golden.config(name).model_type: name for name in golden.CONFIGS}.values()
)
GREEDY = sampling.Sampling(temperature=0)
FILE = golden.FOLDER / 'greedy.json'
COUNT = 64
_COUNT = 5


def check_batch_is_one_at_a_time(name: str, stepper: Callable) -> None:
  """Holds prompts of 8 and 3 tokens to what each gives alone."""
  config = golden.config(name)
  tokens = golden.tokens(name, 0)
  prompts = [tokens[0].tolist(), tokens[1, :3].tolist()]
  params = golden.weights(name, 0)
  params = {n: value.astype(np.float32) for n, value in params.items()}
  model = stepper(params, config, 'framework')

  def alone(prompt):
    # In as much room as together, for which a step is compiled.
    count = _COUNT + len(prompts[0]) - len(prompt)
    (text,) = generation.generate(model, config, [prompt], count, GREEDY)
    return text[:_COUNT]

  together = generation.generate(model, config, prompts, _COUNT, GREEDY)
  assert together == [alone(prompt) for prompt in prompts]
  assert all(together)


def check_greedy_is_the_reference(name: str, stepper: Callable) -> None:
  """Holds the best tokens in float32 to those of the reference, all of them."""
  want = json.loads(FILE.read_text())[name]
  config = dataclasses.replace(
    golden.config(name), eos_token_id=(), max_position_embeddings=128
  )
  params = golden.weights(name, want['seed'])
  params = {n: value.astype(np.float32) for n, value in params.items()}
  model = stepper(params, config, golden.choose_layer(name))
  prompt = golden.tokens(name, want['seed'])[0].tolist()
  (text,) = generation.generate(model, config, [prompt], COUNT, GREEDY)
  assert len(want['tokens']) == COUNT
  assert text == want['tokens']
