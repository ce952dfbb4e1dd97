"""A schedule file is read as it was written, or refused in one line."""

import dataclasses
import json

import pytest

from hpmoe.backend_ascend.compiler.orders import schedule_file
from hpmoe.backend_ascend.simulator.machines import machine as machine_lib
from hpmoe.reference.contract import config_testing
from hpmoe.reference.contract import granularity
from hpmoe.reference.contract import precision

CONFIG = config_testing.make_config(r=8, t=4096, e=64, k=8, d=7168, f=2048)
POLICY = precision.PrecisionPolicy(storage='bfloat16')
SCHEDULE = schedule_file.Schedule(
  CONFIG,
  'bfloat16',
  'combine',
  granularity.Options(
    row_block=128,
    col_block=256,
    chain_rows=2048,
    order=granularity.Order(lag=0.25, comm_share=0.25),
  ),
  machine='ascend_a3',
  routing=('balanced',),
  predicted_s=dict(forward=0.009, backward=0.018),
)


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'ep8.schedule'
  schedule_file.save(path, SCHEDULE)
  return path


def test_what_was_saved_is_loaded(path):
  assert schedule_file.load(path) == SCHEDULE
  # Another capacity is no other layer.
  for capacity in (None, 40000):
    config = dataclasses.replace(CONFIG, capacity=capacity)
    assert schedule_file.load_options(path, config, POLICY) == SCHEDULE.options


@pytest.mark.parametrize(
  'config, policy, message',
  [
    (dict(d_ff=1024), {}, 'd_ff 1024, got one of another layer, with 2048'),
    (dict(num_ranks=4), {}, 'num_ranks 4'),
    ({}, dict(storage='float32'), 'storage float32'),
    ({}, dict(placement='before_down'), 'placement before_down'),
  ],
)
def test_another_layer_is_refused(path, config, policy, message):
  with pytest.raises(ValueError, match=f'^schedule: expected one .*{message}'):
    schedule_file.load_options(
      path,
      dataclasses.replace(CONFIG, **config),
      dataclasses.replace(POLICY, **policy),
    )


def test_blocks_shrink_with_the_layer(path):
  # Given a layer with a 32nd of the width and a 64th of the tokens, when the
  # schedule is scaled to it, then it has as many blocks, in the same order.
  small = config_testing.make_config(r=8, t=64, e=64, k=8, d=224, f=64)
  scaled_options = schedule_file.load_options(
    path, small, precision.PrecisionPolicy(), scaled=True
  )
  assert (
    scaled_options.row_block,
    scaled_options.col_block,
    scaled_options.chain_rows,
  ) == (2, 8, 32)
  assert scaled_options.order == SCHEDULE.options.order
  assert scaled_options.num_aic == SCHEDULE.options.num_aic
  for config, options in ((CONFIG, SCHEDULE.options), (small, scaled_options)):
    rows = schedule_file._expert_rows(config)
    assert rows / options.row_block == 32
    assert config.d_ff / options.col_block == 8
  # Blocks do not grow.
  large = dataclasses.replace(CONFIG, num_tokens=8192, d_ff=4096)
  large_options = schedule_file.load_options(path, large, POLICY, scaled=True)
  assert large_options == SCHEDULE.options


@pytest.mark.parametrize(
  'tokens, row_block, vector_rows', [(2048, 96, 48), (96, 4, 2), (24, 1, 1)]
)
def test_vector_tiles_divide_the_row_blocks_that_shrank(
  tokens, row_block, vector_rows
):
  schedule = dataclasses.replace(
    SCHEDULE, options=granularity.Options(row_block=192, vector_rows=96)
  )
  small = dataclasses.replace(CONFIG, num_tokens=tokens)
  scaled_options = schedule_file.load_options(
    schedule, small, POLICY, scaled=True
  )
  assert (scaled_options.row_block, scaled_options.vector_rows) == (
    row_block,
    vector_rows,
  )


def edit_content(change):
  """Returns what changes the content of a file, checksum and all."""

  def damage(text: str) -> str:
    content = json.loads(text)
    change(content)
    content.pop('crc32')
    crc32 = schedule_file._checksum(content)
    return json.dumps(content | dict(crc32=crc32))

  return damage


@pytest.mark.parametrize(
  'damage, message',
  [
    (lambda text: text[:100], 'Expecting|Unterminated|delimiter'),
    (lambda text: text.replace('128', '129'), 'crc32: expected'),
    (lambda text: '[]', 'format: expected'),
    (lambda text: text.replace('schedule"', 'image"'), 'format: expected'),
    (lambda text: '\xff\xfe', 'decode|Expecting'),
    (edit_content(lambda c: c.update(version=2)), 'version: expected 1, got 2'),
    (edit_content(lambda c: c.pop('machine')), "'machine' is missing"),
    (edit_content(lambda c: c['options'].update(colour=1)), 'colour'),
    (
      edit_content(lambda c: c['options'].update(row_block=0)),
      'row_block: expected',
    ),
    (
      edit_content(lambda c: c['options']['order'].update(lag=-1)),
      'order.lag: expe',
    ),
    (edit_content(lambda c: c['layer'].pop('d_ff')), "'d_ff' is missing"),
  ],
)
def test_a_damaged_file_is_refused(path, damage, message):
  path.write_text(damage(path.read_text()), encoding='latin-1')
  with pytest.raises(ValueError, match=rf'^schedule: expected .*({message})'):
    schedule_file.load(path)


def test_what_is_no_file_is_an_os_error(tmp_path):
  with pytest.raises(OSError):
    schedule_file.load(tmp_path / 'none')


def test_a_list_of_other_figures_is_refused(tmp_path, monkeypatch):
  # Given a schedule of the list scheduler, when a figure of the machine that it
  # plans with is another than in the search, then it is refused in one line;
  # queues in turn rest on no figure.
  list_schedule = dataclasses.replace(
    SCHEDULE,
    options=dataclasses.replace(
      SCHEDULE.options, order=granularity.Order(policy='list')
    ),
  )
  path = tmp_path / 'listed.schedule'
  schedule_file.save(path, list_schedule)
  assert (
    schedule_file.load_options(path, CONFIG, POLICY) == list_schedule.options
  )
  machine = machine_lib.load('ascend_a3')
  faster_machine = machine.with_figures(hbm=2 * machine['hbm'])
  monkeypatch.setattr(machine_lib, 'load', lambda name: faster_machine)
  with pytest.raises(ValueError, match='^schedule: .* ascend_a3.*tune again$'):
    schedule_file.load_options(path, CONFIG, POLICY)
  in_turn = tmp_path / 'in_turn.schedule'
  schedule_file.save(in_turn, SCHEDULE)
  assert schedule_file.load_options(in_turn, CONFIG, POLICY) == SCHEDULE.options


def test_a_digest_is_of_links_too():
  machine = machine_lib.load('ascend_a3')
  fabric = dataclasses.replace(machine.fabric, routes=())
  other = dataclasses.replace(machine, fabric=fabric)
  assert machine.digest() != other.digest()
