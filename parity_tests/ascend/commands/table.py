"""The commands of the Ascend backend, by the groups of `hpmoe --help`.

The distribution offers `COMMANDS` as an entry point of `hpmoe.commands`.
"""

from hpmoe.parity_tests.ascend.commands import compile_command
from hpmoe.parity_tests.ascend.commands import counts_command
from hpmoe.parity_tests.ascend.commands import determinism_command
from hpmoe.parity_tests.ascend.commands import faults_command
from hpmoe.parity_tests.ascend.commands import plan_command
from hpmoe.parity_tests.ascend.commands import reproduce_command
from hpmoe.parity_tests.ascend.commands import sweep_command
from hpmoe.parity_tests.ascend.commands import timeline_command
from hpmoe.parity_tests.ascend.commands import tune_command
from hpmoe.parity_tests.ascend.commands import twin_command

COMMANDS = {
  'verify': (determinism_command.COMMAND, sweep_command.COMMAND),
  'find the cause, and test the checks': (faults_command.COMMAND,),
  'schedule and simulate': (
    compile_command.COMMAND,
    timeline_command.COMMAND,
    tune_command.COMMAND,
    plan_command.COMMAND,
    reproduce_command.COMMAND,
    counts_command.COMMAND,
    twin_command.COMMAND,
  ),
}
