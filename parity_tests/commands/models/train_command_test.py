"""`hpmoe train`: a model from nothing to text; extras that are missing."""

import json
import os
import subprocess
import sys

import pytest

from hpmoe.models.train import folder_testing
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main


@pytest.fixture(scope='module')
def config(tmp_path_factory) -> str:
  """Returns the path of the config of a model that is a second's work."""
  folder = tmp_path_factory.mktemp('config')
  return folder_testing.config(folder, 'mixtral_tiny')


@pytest.fixture(autouse=True)
def no_progress(monkeypatch):
  """A step that takes long on a busy machine says nothing of itself."""
  monkeypatch.setattr(cli, 'LINE_EVERY_S', float('inf'))


def _train(config, out, *options) -> int:
  sizes = ('--steps=2', '--batch=2', '--length=16', '--warmup=0')
  return main.main(
    ['train', f'--model={config}', f'--out={out}', *sizes, *options]
  )


class TestTrain:
  @pytest.mark.slow
  def test_trains_with_the_megakernel_and_writes_text(
    self, config, tmp_path, capsys
  ):
    # given a run of two steps
    out, report = tmp_path / 'run', tmp_path / 'report.json'
    assert _train(config, out, f'--json={report}') == cli.PARITY
    content = json.loads(report.read_text())
    assert len(content['losses']) == 2
    assert content['settings']['moe'] == 'host'
    output = capsys.readouterr().out
    assert 'bigram entropy' in output
    assert 'mean loss of the last 2 ' in output
    assert {p.name for p in out.iterdir()} == {
      *('states', 'model', 'metrics.jsonl'),
      *('loss.png', 'expert_load.png'),
    }
    # when its model goes on from a prompt
    command = ['generate', f'--from={out}/model', '--prompt=The ', '--tokens=3']
    assert main.main([*command, f'--json={report}']) == cli.PARITY
    # then
    (text,) = json.loads(report.read_text())['texts']
    assert len(text['tokens']) == 3 and text['end'] == 'tokens'
    assert capsys.readouterr().out == f'The {text["text"]}\n'

  @pytest.mark.slow
  def test_a_run_that_diverges_is_one_line(self, config, tmp_path, capsys):
    # given a rate at which the first step leaves no finite weight
    options = ('--learning_rate=1e38', '--clip=1e30', '--weight_decay=1e10')
    code = _train(config, tmp_path / 'run', *options)
    assert code == cli.CANDIDATE_FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert 'expected finite values' in line


_EXTRA = ('jinja2>=3.1', 'matplotlib>=3.8', 'optax>=0.2.4', 'tokenizers>=0.22')


@pytest.mark.parametrize(
  ('module', 'command'),
  [
    ('optax', 'train --steps=1 --out=run'),
    ('matplotlib', 'train --steps=1 --out=run'),
    ('tokenizers', 'train --steps=1 --out=run'),
    ('mindspore', 'train --framework=mindspore --steps=1 --out=run'),
    ('tokenizers', 'generate --from=run/model'),
    ('mindspore', 'generate --framework=mindspore --from=run/model'),
    ('mindspore', 'compare --right=mindspore:host'),
    ('jinja2', 'generate --chat --from=run/model'),
    ('matplotlib', 'timeline --png=t.png'),
    ('matplotlib', 'tune --png=t.png'),
    ('matplotlib', 'reproduce uniep --png=t.png'),
  ],
)
@pytest.mark.few(1)
def test_without_its_extra_a_command_says_how_to_install_it(
  module, command, tmp_path
):
  # Given an environment as `make parity` leaves it, when a command needs more,
  # then one line names the extra and installs it, before any work.
  text = (
    'import sys; sys.modules[sys.argv[1]] = None; '
    'from hpmoe.parity_tests.commands import main; '
    'sys.exit(main.main(sys.argv[2:]))'
  )
  process = subprocess.run(
    [sys.executable, '-c', text, module, *command.split()],
    cwd=tmp_path,
    env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    capture_output=True,
    text=True,
    check=False,
  )
  name = command.split()[0]
  extra = 'mindspore' if module == 'mindspore' else 'models'
  assert process.returncode == cli.WRONG_REQUEST, process.stderr
  (line,) = process.stderr.splitlines()
  assert line.startswith(
    f'hpmoe {name}: {module}: expected the extra `{extra}`, got none; '
    f'{sys.executable} -m pip install '
  )
  packages = ('mindspore',) if extra == 'mindspore' else _EXTRA
  assert all(package in line for package in packages)
  assert not list(tmp_path.iterdir())
