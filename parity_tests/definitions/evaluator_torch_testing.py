"""FlashInfer-Bench's own package on files of this project, in torch's Python.

Run as: python evaluator_torch_testing.py FOLDER

FOLDER holds definition.json, workloads.jsonl, solution.json, a set of traces in
traces/, and outputs.npz with bits of bfloat16: `golden` and `outputs`.  What
the package says is written to verdicts.json.
"""

import hashlib
import json
import pathlib
import sys
import types

from flashinfer_bench import data
from flashinfer_bench.bench import config as config_lib
from flashinfer_bench.bench import evaluators
from flashinfer_bench.bench import utils
from flashinfer_bench.compile import BuilderRegistry
import numpy as np
import torch

# Its evaluators wait for a GPU after each call.
torch.cuda.synchronize = lambda device=None: None

# The evaluator and options that a record stands for.
RULES = {
  'flashinfer_bench': (evaluators.DefaultEvaluator, {}),
  'flashinfer_bench_lowbit': (evaluators.LowBitEvaluator, {}),
  'flashinfer_contest': (
    evaluators.LowBitEvaluator,
    dict(atol=1.0, rtol=0.3, required_matched_ratio=0.9),
  ),
}


class Answer:
  """Stands for a built solution that returns one output."""

  metadata = types.SimpleNamespace(destination_passing_style=False)

  def __init__(self, output):
    self._output = output

  def __call__(self, *inputs):
    del inputs
    return self._output


def judge(definition, solution, inputs, golden, rule):
  """Returns whether an evaluator accepts what a solution returns."""
  evaluator, options = RULES[rule]
  _, failure = evaluator.check_correctness(
    definition,
    solution,
    [inputs],
    [[golden]],
    config_lib.BenchmarkConfig(**options),
    None,
    'cpu',
  )
  return failure is None


def digest_inputs(root):
  """Returns a digest of each input of the only workload in a set of traces."""
  traces = data.TraceSet.from_path(str(root))
  ((name, (trace,)),) = traces.workloads.items()
  definition = traces.definitions[name]
  tensors = utils.load_safetensors(definition, trace.workload, root)
  inputs = utils.gen_inputs(definition, trace.workload, 'cpu', tensors)
  digests = {}
  for name, value in zip(definition.inputs, inputs):
    if isinstance(value, torch.Tensor):
      value = hashlib.sha256(
        value.contiguous().view(torch.uint8).numpy().tobytes()
      ).hexdigest()
    digests[name] = value
  return digests


def main():
  folder = pathlib.Path(sys.argv[1])
  definition = data.load_json_file(data.Definition, folder / 'definition.json')
  (trace,) = data.load_jsonl_file(data.Trace, folder / 'workloads.jsonl')
  solution = data.load_json_file(data.Solution, folder / 'solution.json')
  arrays = np.load(folder / 'outputs.npz')
  golden, *outputs = (
    torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    for bits in (arrays['golden'], *arrays['outputs'])
  )
  inputs = utils.gen_inputs(definition, trace.workload, 'cpu')
  registry = BuilderRegistry.get_instance()
  right = registry.build_reference(definition)(*inputs)
  kernel = registry.build(definition, solution)
  table = dict(
    evaluator=evaluators.resolve_evaluator(definition).__name__,
    inputs=digest_inputs(folder / 'traces'),
    shapes=definition.get_input_shapes(trace.workload.axes),
    rules={
      rule: [
        judge(definition, Answer(output), inputs, golden, rule)
        for output in outputs
      ]
      for rule in RULES
    },
    solution=judge(definition, kernel, inputs, right, 'flashinfer_bench'),
  )
  (folder / 'verdicts.json').write_text(json.dumps(table))


if __name__ == '__main__':
  main()
