"""`hpmoe plan`: a ranking as text, data and picture, and wrong requests."""

import json

import pytest

from hpmoe.models import config as config_lib
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

_SMALL = (
  'plan',
  '--model=qwen3_moe_tiny',
  '--devices=8',
  '--sequence=256',
  '--micro_batch=1,2',
)


def test_a_ranking_as_text_data_and_picture(capsys, tmp_path):
  json_path, png = tmp_path / 'plan.json', tmp_path / 'plan.png'

  code = main.main((*_SMALL, f'--json={json_path}', f'--plot={png}', '--top=3'))

  assert code == cli.PARITY
  text = capsys.readouterr().out
  assert 'qwen3_moe_tiny: ' in text and '8 x ascend_a3' in text
  assert 'plan 1, average stage' in text
  # Of Qwen3-30B, the published model whose size is nearest.
  assert 'Qwen3-30B, 16 H100, 2.68 times the published tokens/s' in text
  assert 'Not ranked: plans 1 to 3; modelled ratios' in text
  assert png.read_bytes().startswith(b'\x89PNG')
  report = json.loads(json_path.read_text())
  assert len(report['ranked']) == 3
  first = report['ranked'][0]
  assert first['ranks'] == report['ranked'][-1]['ranks'] == [1, 3]
  assert report['accuracy']['resolution'] == pytest.approx(1.4, abs=0.01)
  rate = first['tokens_per_second']
  assert f'{rate:,.0f} ({rate / 2.676:,.0f})' in text
  assert first['seconds'] <= report['ranked'][1]['seconds']
  assert sum(report['first']['parts'].values()) == pytest.approx(
    first['seconds']
  )
  plan = first['plan']
  assert plan['tp'] * plan['pp'] * plan['dp'] == 8
  units = [unit for chunk in report['first']['chunks'] for unit in chunk]
  assert units.count('moe') == report['model']['layers']


def test_a_folder_sizes_of_ones_own_and_what_a_plan_may_be(capsys, tmp_path):
  # Given a model, when sizes stand beside it, then they hold.
  content = config_lib.load('deepseek_tiny').to_hf()
  (tmp_path / 'config.json').write_text(json.dumps(content))
  path = tmp_path / 'plan.json'
  request = f'plan --model={tmp_path} --devices=8 --json={path}'
  sizes = '--layers=6 --dense_layers=1 --d_model=256 --experts=16'
  choices = '--tp=2 --pp=2 --recompute=layer --nooffload --moe=operators'
  choices += ' --overlap=exchange,gradients'

  code = main.main(f'{request} {sizes} {choices}'.split())

  assert code == cli.PARITY
  lines = capsys.readouterr().out.splitlines()
  row = next(line for line in lines if line.startswith('1-10 ')).split()
  assert row[1:3] == ['2', '2'] and row[8:10] == ['layer', 'no']
  assert 'operator by operator' in lines[1]
  model = json.loads(path.read_text())['model']
  assert model['layers'] == 6 and model['dense'] == [0]
  assert model['hidden'] == 256 and model['experts'] == 16
