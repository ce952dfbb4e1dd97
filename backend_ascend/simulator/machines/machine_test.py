"""Machine files: every figure has its tag; what is wrong is one line."""

import copy
import math
import pathlib
import tomllib

import pytest

from hpmoe.backend_ascend.simulator.machines import machine as machine_lib

FOLDER = pathlib.Path(machine_lib.__file__).parent
_HBM = """base = 'ascend_a3'
[figures]
hbm = {{ value = 2e12, unit = 'B/s', tag = 'assumed'{} }}"""
_SECOND = dict(value=1, unit='s', tag='assumed', source='x')


@pytest.fixture(name='data')
def _data():
  return tomllib.loads((FOLDER / 'ascend_a3.toml').read_text())


class TestFiles:
  @pytest.mark.parametrize('name', machine_lib.names())
  def test_every_machine_loads_under_its_name(self, name):
    machine = machine_lib.load(name)
    assert machine.name == name
    assert set(machine_lib.UNITS) <= set(machine.figures)
    assert not machine.changed_figures


class TestBase:
  """A file that says only what differs from another machine."""

  def load(self, tmp_path, text):
    path = tmp_path / 'mine.toml'
    path.write_text(f"name = 'mine'\nabout = 'x'\n{text}")
    return machine_lib.load(str(path))

  def test_what_it_does_not_say_is_the_base(self, tmp_path):
    base = machine_lib.load('ascend_a3')
    machine = self.load(tmp_path, _HBM.format(", source = 'x'"))
    assert machine.name == 'mine' and machine['hbm'] == 2e12
    assert machine.figures == dict(base.figures) | {
      'hbm': machine.figures['hbm']
    }
    assert machine.fabric.links(4) == base.fabric.links(4)

  def test_its_name_is_its_files_and_its_base_is_known(self, tmp_path):
    # Given files with and without a name, when loaded, then each has its own
    # name, and what ships below it is said.
    unnamed = tmp_path / 'other.toml'
    unnamed.write_text("base = 'ascend_a3_pto'")
    other = machine_lib.load(str(unnamed))
    renamed = self.load(tmp_path, "base = 'hopper'")
    assert (other.name, other.shipped) == ('other', 'ascend_a3_pto')
    assert (renamed.name, renamed.shipped) == ('mine', 'hopper')
    assert machine_lib.load('ascend_a3_pto').shipped == 'ascend_a3_pto'

  def test_a_figure_is_replaced_whole(self, tmp_path):
    with pytest.raises(ValueError, match="'hbm': expected 'source', got none"):
      self.load(tmp_path, _HBM.format(''))

  def test_an_unknown_base(self, tmp_path):
    with pytest.raises(
      ValueError, match="base: expected another of .*, got 'x"
    ):
      self.load(tmp_path, "base = 'x'")


class TestRefusals:
  @pytest.mark.parametrize('name', ['tpu', 'tpu.toml', '../machine', ''])
  def test_an_unknown_machine(self, name):
    with pytest.raises(
      ValueError, match='machine: expected one of .*ascend_a3'
    ):
      machine_lib.load(name)

  def test_no_toml(self, tmp_path):
    path = tmp_path / 'mine.toml'
    path.write_text('name = ')
    with pytest.raises(ValueError, match='mine.toml: expected TOML'):
      machine_lib.load(str(path))

  @pytest.mark.parametrize(
    'way, value, message',
    [
      *(
        (f'figures.hbm.{key}', None, f"'hbm': expected {key!r}, got none")
        for key in ('value', 'unit', 'tag', 'source')
      ),
      # Of the engine, and of the fabric.
      *(
        (f'figures.{name}', None, f'expected a figure {name!r}, got none')
        for name in ('poll', 'bus_link')
      ),
      ('figures.hbm.tag', 'guessed', "'hbm': expected a tag of"),
      ('figures.hbm.unit', 'GB/s', "'hbm': expected unit 'B/s', got 'GB/s'"),
      ('figures.hbm.source', ' ', "'hbm': expected a source, got ' '"),
      ('figures.hbm.value', 'fast', "'hbm': expected a number, got 'fast'"),
      ('figures.hbm.value', True, "'hbm': expected a number, got True"),
      ('figures.hbm.value', 0, "'hbm': expected more than 0, got 0"),
      ('figures.cube_efficiency.value', 1.5, 'expected at most 1 in mine'),
      ('figures.hbm.value', math.nan, "'hbm': expected more than 0, got nan"),
      ('figures.hbm.value', math.inf, "'hbm': expected more than 0, got inf"),
      ('figures.poll.value', -1e-9, 'expected at least 0, got -1e-09'),
      ('figures.warp', _SECOND, "got 'warp'"),
      ('fabric.routes.0.links', ['wire'], "got 'wire'"),
      ('fabric.links.egress.end', 'middle', "got 'middle'"),
    ],
  )
  def test_what_a_file_may_not_say(self, data, way, value, message):
    *steps, last = way.split('.')
    table = data
    for step in steps:
      table = table[int(step) if step.isdigit() else step]
    table[last] = value
    if value is None:
      del table[last]
    with pytest.raises(ValueError) as error:
      machine_lib.parse(data, 'mine')
    (line,) = str(error.value).splitlines()
    assert line.startswith(('mine: ', 'cube_efficiency: ')) and message in line


class TestWithFigures:
  def test_changes_a_copy_and_says_so(self):
    machine = machine_lib.load('ascend_a3')
    other = machine.with_figures(hbm=1e12, bus_link=1e11)
    assert (other['hbm'], machine['hbm']) == (1e12, 1.4e12)
    assert other.changed_figures == ('bus_link', 'hbm')
    assert other.fabric.links(2)[-1].capacity == 1e11
    # It refuses what a file may not say.
    with pytest.raises(ValueError, match="got 'warp'"):
      machine.with_figures(warp=1)
    with pytest.raises(ValueError, match="'hbm': expected more than 0"):
      machine.with_figures(hbm=0)


class TestFabric:
  def test_routes_from_near_to_far(self):
    fabric = machine_lib.load('ascend_a3').fabric
    links = fabric.links(32)

    def names(source, destination):
      route = fabric.route(source, destination, 32)
      return [links[i].name for i in route.links], route.latency

    assert names(3, 3) == ([], 0)
    assert names(2, 3) == (['die_out 2', 'die_in 3'], 218e-9)
    assert names(1, 2) == (['egress 1', 'ingress 2'], 929e-9)
    assert names(1, 31) == (['egress 1', 'ingress 31'], 2500e-9)

  def test_ranks_share_a_link_of_their_node(self, data):
    data = copy.deepcopy(data)
    data['fabric']['links']['uplink'] = dict(
      owner='node', end='source', capacity='bus_link', factor='whole'
    )
    data['fabric']['routes'][-1]['links'].insert(1, 'uplink')
    fabric = machine_lib.parse(data, 'mine').fabric
    links = fabric.links(32)
    assert [link.name for link in links[-2:]] == ['uplink 0', 'uplink 1']
    for source, uplink in ((0, 'uplink 0'), (15, 'uplink 0'), (16, 'uplink 1')):
      route = fabric.route(source, 31 - source, 32)
      assert links[route.links[1]].name == uplink


def test_at_its_peak_no_share_is_fitted():
  # Given a machine with fitted shares and a fitted rate, when taken at its
  # peak, then shares are 1, and what is known otherwise stays.
  machine = machine_lib.load('ascend_a3_pto')
  assert machine.figures['bus_link'].tag == 'fitted'
  peak = machine.at_peak()
  for name, figure in machine.figures.items():
    share = figure.tag == 'fitted' and figure.unit == '1'
    assert peak[name] == (1 if share else machine[name])
  assert machine['collective'] != peak['collective'] == 1
