"""A run that msprobe dumps, in torch's Python."""

import json

from msprobe.pytorch import PrecisionDebugger


def dump_run(model, folder, run):
  """Dumps to FOLDER what the modules of a model read and return in a run.

  Args:
    model: of torch.
    folder: to write; FOLDER.json beside it is what msprobe is asked for.
    run: calls the model.

  Returns:
    What `run` does.
  """
  config = dict(
    task='tensor',
    dump_path=str(folder),
    rank=[],
    step=[],
    level='L0',
    tensor=dict(scope=[], list=[], data_mode=['all']),
  )
  with open(f'{folder}.json', 'w', encoding='utf-8') as file:
    json.dump(config, file)
  debugger = PrecisionDebugger(config_path=f'{folder}.json')
  debugger.start(model=model)
  result = run()
  debugger.stop()
  debugger.step()
  return result
