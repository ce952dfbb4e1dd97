"""What a sample's README says is taken as it stands."""

from hpmoe.tools import twin_samples

_README = """\
|Atlas A2|
  SCENARIO_NUM=3  # which
  cmake -DSCENARIO_NUM=$SCENARIO_NUM -DCMAKE_ASC_ARCHITECTURES=dav-2201 ..;make
  cmake -DOTHER=1 ..
  python3 ../scripts/gen_data.py -scenarioNum=$SCENARIO_NUM   # data
  ./demo
  python3 ../scripts/verify_result.py output/output.bin output/golden.bin
"""


class TestSamples:
  def _folder(self, root, name, readme):
    folder = root / 'examples/01_simd_cpp_api/03_basic_api' / name
    folder.mkdir(parents=True)
    (folder / 'README.md').write_text(readme)
    (folder / 'CMakeLists.txt').write_text('')
    (folder / 'kernel.asc').write_text('')

  def test_commands_and_macros_are_those_of_the_readme(self, tmp_path):
    self._folder(tmp_path, 'add', _README)

    (sample,) = twin_samples.samples(tmp_path)

    assert sample.defines == ('-DSCENARIO_NUM=3',)
    assert sample.before == ('python3 ../scripts/gen_data.py -scenarioNum=3',)
    assert sample.after[0].startswith('python3 ../scripts/verify_result.py')

  def test_those_of_other_chips_and_of_the_advanced_api_are_left_out(
    self, tmp_path
  ):
    self._folder(tmp_path, 'reg_add', _README.replace('A2', '950'))
    self._folder(tmp_path, 'matmul_advanced_api', _README)

    assert not list(twin_samples.samples(tmp_path))


def test_a_call_that_is_not_reported_has_its_reason_or_none_is_known():
  row = 'room/09_utils/gm_by_pass_dcache'
  findings = {
    '42: A();': 'right',
    '41: B();': 'hazard: x',
    '50: C();': 'right: inserted',
  }

  reasons = twin_samples.silent(row, findings)

  assert reasons['42: A();'].startswith('redundant')
  assert reasons['50: C();'] == 'inserted' and len(reasons) == 2
  assert twin_samples.silent('add', findings)['42: A();'] == 'not explained'
