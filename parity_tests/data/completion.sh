# bash, zsh: eval "$(hpmoe completion)"
[[ -n $ZSH_VERSION ]] && autoload -U +X bashcompinit && bashcompinit
_hpmoe() {
  local line=${COMP_LINE:0:COMP_POINT} command=${COMP_WORDS[1]}
  local word=${line##* } words= prefix=
  case $word in
    --*=*)
      # bash completes what follows '=' alone.
      [[ -n $ZSH_VERSION ]] && prefix=${word%%=*}=
      case $command${word%%=*} in
@values
        *) COMPREPLY=($(compgen -P "$prefix" -f -- "${word#*=}")); return ;;
      esac
      word=${word#*=} ;;
    *)
      compopt -o nospace 2>/dev/null
      case $command in
@options
        *) words='@commands' ;;
      esac
      (( COMP_CWORD == 1 )) && words='@commands' ;;
  esac
  COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$word"))
}
complete -F _hpmoe hpmoe
