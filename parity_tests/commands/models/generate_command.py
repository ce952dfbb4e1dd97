"""`hpmoe generate`."""

import sys

from absl import flags

from hpmoe.parity_tests.commands import cli


def _define(f: flags.FlagValues) -> None:
  from hpmoe.models.jax import sampling as sampling_lib

  default = sampling_lib.Sampling()
  for name, value, text in (
    (
      'from',
      None,
      'Folder with weights in any format of hpmoe convert, config.json and '
      'tokenizer.json.',
    ),
    ('prompt', 'She ', 'Text to go on from.'),
    (
      'moe',
      'host',
      'Layer of routed experts: oracle, host (the megakernel), framework, or '
      'your pkg.module:function.',
    ),
  ):
    cli.option(f, name, text, value)
  cli.option(f, 'tokens', 'Maximum number of new tokens.', 200, int)
  cli.option(
    f, 'temperature', 'Divides the logits; 0 takes the best token.', 0.8, float
  )
  cli.option(
    f,
    'top_k',
    'Samples from the k most likely tokens; 0: all.',
    default.top_k,
    int,
  )
  cli.option(f, 'seed', 'Seed of the sampling.', default.seed, int)
  cli.define_weights_dtype(f)
  cli.define_json(f)


def _generate(f: flags.FlagValues) -> int:
  from hpmoe.models.checkpoint import convert
  from hpmoe.models.checkpoint import tokenizer as tokenizer_lib
  from hpmoe.models.jax import sampling as sampling_lib

  if f['from'].value is None:
    raise cli.UsageError('from: expected a folder, got none')
  cli.check_writable('json', f.json)
  sampling = sampling_lib.Sampling(f.temperature, f.top_k, f.seed)
  weights = convert.read(f['from'].value, f.dtype)
  tokenizer = tokenizer_lib.load(f['from'].value)
  prompt = tokenizer.encode(f.prompt).ids
  with cli.progress(len(weights.specs)) as step:
    params = weights.load(step)
  drawn: list[int] = []

  def noted():
    for token in sampling_lib.generate(
      params, weights.config, prompt, f.tokens, sampling, f.moe
    ):
      drawn.append(token)
      yield token

  pieces: list[str] = []
  with cli.launches_in_frameworks():
    for piece in tokenizer_lib.stream(tokenizer, noted()):
      if not pieces:  # nothing before the first token: an error is one line
        sys.stdout.write(f.prompt)
      pieces.append(piece)
      sys.stdout.write(piece)
      sys.stdout.flush()
  sys.stdout.write('\n')
  content = dict(prompt=f.prompt, text=''.join(pieces), tokens=drawn)
  cli.write_json(f.json, content)
  return cli.PARITY


COMMAND = cli.Command(
  'generate',
  'writes on from a prompt, with a trained model or a Hugging Face folder.',
  (
    'hpmoe generate --from=out/train/model --prompt="Anne "',
    'hpmoe generate --from=out/train/model --temperature=0 --moe=oracle',
    'hpmoe generate --from=Qwen3-30B-A3B --top_k=20 --seed=7 --dtype=bfloat16',
  ),
  _define,
  _generate,
  '0 written, 2 the request was wrong or the files are damaged, '
  '3 a launch ended early',
)
