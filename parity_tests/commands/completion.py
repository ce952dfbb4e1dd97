"""The words that bash and zsh complete a command line of `hpmoe` with."""

from collections.abc import Iterator, Mapping

from absl import flags

from hpmoe.parity_tests.case import flag as flag_lib
from hpmoe.parity_tests.commands import cli

_SCRIPT = """\
# bash, zsh: eval "$(hpmoe completion)"
[[ -n $ZSH_VERSION ]] && autoload -U +X bashcompinit && bashcompinit
_hpmoe() {{
  local line=${{COMP_LINE:0:COMP_POINT}} command=${{COMP_WORDS[1]}}
  local word=${{line##* }} words= prefix=
  case $word in
    --*=*)
      # bash completes what follows '=' alone.
      [[ -n $ZSH_VERSION ]] && prefix=${{word%%=*}}=
      case $command${{word%%=*}} in
{values}
        *) COMPREPLY=($(compgen -P "$prefix" -f -- "${{word#*=}}")); return ;;
      esac
      word=${{word#*=}} ;;
    *)
      compopt -o nospace 2>/dev/null
      case $command in
{options}
        *) words='{commands}' ;;
      esac
      (( COMP_CWORD == 1 )) && words='{commands}' ;;
  esac
  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$word"))
}}
complete -F _hpmoe hpmoe"""


def script(commands: Mapping[str, cli.Command]) -> str:
  """Returns what a shell evaluates."""
  values: dict[str, list[str]] = {}
  options = []
  for name, command in commands.items():
    known = command.flags()
    options.append(f"        {name}) words='{' '.join(_options(known))}' ;;")
    for flag, words in _choices(known):
      values.setdefault(words, []).append(f'{name}--{flag}')
  cases = [
    f"        {'|'.join(of)}) words='{words}' ;;"
    for words, of in values.items()
  ]
  return _SCRIPT.format(
    values='\n'.join(cases),
    options='\n'.join(options),
    commands=' '.join(commands),
  )


def _options(known: flags.FlagValues) -> Iterator[str]:
  for name in sorted(known):
    yield f'--{name}' if known[name].boolean else f'--{name}='


def _choices(known: flags.FlagValues) -> Iterator[tuple[str, str]]:
  """Yields flags that have only some values, and these."""
  for name in sorted(known):
    row = getattr(known[name].parser, 'row', None)
    if isinstance(row, flag_lib.Flag) and row.choices:
      yield name, ' '.join(word for word in row.choices if word)
