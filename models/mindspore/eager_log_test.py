"""Operators in a log of MindSpore."""

from hpmoe.models.mindspore import eager_log

_RUN = 'RunOp name {} device CPU id 0 with {} shape'
_OPERAND = (
  'Update input edge kernel tensor from None to 0x1 shape:(2, 3) '
  'type:Tensor[{}] value:null dtype:{}'
)
_END = 'End update input device address for 1_1_{}true'


def _line(thread: str, message: str) -> str:
  return (
    f'[DEBUG] PYNATIVE(7,{thread},python):2026-01-02-03:04:05.678.901 '
    f'[mindspore/ccsrc/pynative/op.cc:1] Function] {message}\n'
  )


def _operator(thread: str, name: str, *dtypes: str) -> list[str]:
  operand_lines = (_OPERAND.format(dtype, dtype) for dtype in dtypes)
  return [
    _line(thread, line)
    for line in (
      _RUN.format(name, 'dynamic'),
      *operand_lines,
      _END.format(name),
    )
  ]


def test_operators_of_two_threads_between_each_other():
  # Given two threads whose lines alternate, and lines of no operator
  first = _operator('7f1', 'RsqrtGrad', 'Float32', 'Float32')
  second = _operator('7f2', 'SelectGrad', 'Float32', 'Int64')
  lines = [line for pair in zip(first, second) for line in pair]
  lines += ['AbstractTuple{\n', _line('7f1', 'Begin'), 'a warning\n']
  lines += first
  # When they are read, then each has its operands and count.
  log = eager_log.read(lines)
  assert log.emitted == {
    ('RsqrtGrad', ('float32', 'float32')): 2,
    ('SelectGrad', ('float32', 'int64')): 1,
  }
  assert log.ran == {'RsqrtGrad', 'SelectGrad'}


def test_an_operator_that_python_called_only_ran():
  log = eager_log.read([_line('7f1', _RUN.format('Sort', 'static'))])
  assert log.ran == {'Sort'} and not log.emitted
