"""`hpmoe check --frontend=mindspore`."""

from unittest import mock

import mindspore as ms
import pytest

from hpmoe.backend_ascend.frontends import mindspore_layer
from hpmoe.parity_tests.ascend import front_end
from hpmoe.parity_tests.ascend import operator_testing
from hpmoe.parity_tests.commands import cli
from hpmoe.parity_tests.commands import main

TINY = ('--preset=tiny', '--ranks=2')


@pytest.fixture(autouse=True)
def _as_it_was():
  yield
  ms.set_context(pynative_synchronize=False)


@pytest.mark.few(4)
class TestOperator(operator_testing.OperatorTests):
  candidate = front_end.FrontEnd('mindspore', operator_testing.OPTIONS)


def test_the_layer_is_judged_in_every_lane(capsys):
  code = main.main(['check', *TINY, '--frontend=mindspore'])
  output = capsys.readouterr().out
  assert code == cli.PARITY, output
  assert output.startswith('mindspore_layer against the oracle')
  for name in ('y', 'dx', 'd_w_down', 'd_w_gate_up', 'd_topk_weights'):
    assert f'\n{name} ' in output


def test_gradients_that_are_silently_zero_are_found(capsys):
  # Given: what MindSpore gives where it finds no gradient.
  class Cell(mindspore_layer.MoELayer):
    def construct(self, *inputs):
      return ms.ops.stop_gradient(super().construct(*inputs))

  # When.
  with mock.patch.object(mindspore_layer, 'MoELayer', Cell):
    code = main.main(['check', *TINY, '--frontend=mindspore', '--lane=exact'])
  # Then.
  lines = capsys.readouterr().out.splitlines()
  assert code == cli.NO_PARITY
  marks = {
    n: line for line in lines for n in ('y', 'dx') if line.split()[:1] == [n]
  }
  assert '✓' in marks['y'] and '✕' in marks['dx']
