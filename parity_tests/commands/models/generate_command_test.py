"""`hpmoe generate`: one prompt or many, chats, and where a text stops."""

import dataclasses
import json

import pytest

from hpmoe.models import config as config_lib
from hpmoe.models.checkpoint import convert
from hpmoe.models.checkpoint import model_testing
from hpmoe.models.train import folder_testing
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

_TEMPLATE = '{% for m in messages %}{{ m.content }} said {% endfor %}'


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> str:
  """Returns the folder of a model whose words are real, with a template."""
  root = tmp_path_factory.mktemp('model')
  weights = convert.read(folder_testing.write(root / 'plain'))
  files = dict(
    weights.extras,
    **{
      'tokenizer_config.json': json.dumps(
        dict(chat_template=_TEMPLATE)
      ).encode()
    },
  )
  convert.write(root / 'chat', dataclasses.replace(weights, extras=files))
  return str(root / 'chat')


def _generated(folder, tmp_path, *options) -> list[dict]:
  out = tmp_path / 'out.json'
  sizes = ('--tokens=4', '--temperature=0', '--moe=framework', f'--json={out}')
  command = ('generate', f'--from={folder}', *sizes, *options)
  assert main.main(command) == cli.PARITY
  return json.loads(out.read_text())['texts']


class TestGenerate:
  @pytest.mark.slow
  def test_many_prompts_are_each_alone(self, folder, tmp_path, capsys):
    # given three prompts of other lengths, two at once
    prompts = ['She ', 'Anne was very much', 'the']
    (tmp_path / 'prompts.txt').write_text('\n'.join(prompts))
    # when
    rows = _generated(
      folder, tmp_path, f'--prompts={tmp_path}/prompts.txt', '--batch=2'
    )
    output = capsys.readouterr()
    # then
    assert [row['prompt'] for row in rows] == prompts
    assert output.out == ''.join(f'{o["prompt"]}{o["text"]}\n' for o in rows)
    assert '12 tokens, ' in output.err and ' a second' in output.err
    for prompt, row in zip(prompts, rows):
      assert _generated(folder, tmp_path, f'--prompt={prompt}') == [row]

  @pytest.mark.slow
  def test_a_chat_is_in_the_template_of_the_model(
    self, folder, tmp_path, capsys
  ):
    (row,) = _generated(folder, tmp_path, '--chat', '--prompt=Anne')
    assert row['prompt'] == 'Anne said '
    assert capsys.readouterr().out == f'{row["text"]}\n'
    message = dict(messages=[dict(role='user', content='She')])
    (tmp_path / 'asked.jsonl').write_text(json.dumps(message))
    (row,) = _generated(
      folder, tmp_path, '--chat', f'--prompts={tmp_path}/asked.jsonl'
    )
    assert row['prompt'] == 'She said '

  def test_bytes_in_place_of_a_lost_tokenizer_are_said(
    self, folder, tmp_path, capsys
  ):
    # given a model of words whose tokenizer.json is lost
    weights = convert.read(folder)
    files = {**weights.extras}
    del files['tokenizer.json']
    bytes_model = dataclasses.replace(weights, extras=files)
    convert.write(tmp_path / 'lost', bytes_model)
    # when, then
    _generated(tmp_path / 'lost', tmp_path, '--prompt=Anne')
    assert 'no tokenizer.json: text is read as bytes' in capsys.readouterr().err
    command = ('generate', f'--from={tmp_path}/lost', '--chat', '--prompt=a')
    assert main.main(command) == cli.WRONG_REQUEST
    assert 'expected a tokenizer.json, got none' in capsys.readouterr().err

  @pytest.mark.parametrize(
    ('command', 'wrong'),
    [('train', '--text=no.txt'), ('compare', '--right=jax:no')],
  )
  def test_others_say_so_before_they_compute(
    self, tmp_path, capsys, command, wrong
  ):
    # given a model of words without tokenizer.json
    fields = config_lib.load('mixtral_tiny').to_hf() | dict(vocab_size=300)
    config = tmp_path / 'config.json'
    config.write_text(json.dumps(fields))
    options = (f'--model={config}', f'--out={tmp_path}/out', wrong)
    # when, then
    assert main.main((command, *options)) == cli.WRONG_REQUEST
    warning = (
      f'{config}: its vocabulary has 300 tokens, and no tokenizer.json: '
    )
    assert warning in capsys.readouterr().err

  @pytest.mark.slow
  def test_a_model_with_biases_of_experts_needs_no_option(self, tmp_path):
    out = tmp_path / 'out.json'
    command = f'--from={model_testing.TESTDATA}/gpt_oss --tokens=2'
    options = (*command.split(), '--prompt=\x01\x02', f'--json={out}')
    assert main.main(('generate', *options)) == cli.PARITY
    assert len(json.loads(out.read_text())['texts'][0]['tokens']) > 0

  @pytest.mark.slow
  def test_ends_before_a_stop_string(self, folder, tmp_path):
    (whole,) = _generated(folder, tmp_path, '--prompt=Anne was')
    stop = whole['text'][2:4].replace('\n', '\\n')
    (row,) = _generated(
      folder, tmp_path, '--prompt=Anne was', f'--stop=@@,{stop}'
    )
    assert row['end'] == 'stop'
    assert whole['text'].startswith(row['text'])
    assert len(row['text']) <= 2
