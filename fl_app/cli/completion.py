"""`leakmeter completion`: a script that lets a shell complete commands, options and their values.

It is written from the parser itself, so it needs no package and has every option of this release.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from leakmeter.fl_app.cli.reproduce import experiments
from leakmeter.fl_app.config.errors import unknown_name
from leakmeter.fl_app.config.settings import AUDITOR_NAMES

SHELLS = ("bash", "zsh", "fish")
# What an argument takes, by what the help calls it, where that is not a list of values itself.
_TAKES: dict[str, Callable[[], tuple[str, ...]]] = {
    "NAME": experiments,
    "NAMES": lambda: AUDITOR_NAMES,
}
_DESCRIPTION = """\
Prints a script that completes commands, options and values with the tab key:
  bash   source <(leakmeter completion bash)    in ~/.bashrc
  zsh    source <(leakmeter completion zsh)     in ~/.zshrc, after compinit
  fish   leakmeter completion fish | source     in ~/.config/fish/config.fish
"""


@dataclass(frozen=True)
class Option:
    """One option: how it is written, what it does, and the values it takes, if these are names."""

    name: str
    help: str
    values: tuple[str, ...] = ()


Options = Mapping[str, tuple[Option, ...]]  # of each command


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _DESCRIPTION
    parser.set_defaults(call=completion)
    parser.add_argument("shell", metavar="|".join(SHELLS), help="the shell to write it for")


def options_of(commands: Mapping[str, argparse.ArgumentParser]) -> Options:
    """Return the options of each command."""
    return {name: tuple(_options(parser)) for name, parser in commands.items()}


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        names = str(action.metavar or "")
        listed = tuple(name.strip() for name in names.split("|")) if "|" in names else ()
        values = _TAKES[names]() if names in _TAKES else listed
        for written in action.option_strings or ([""] if values else []):
            if written.startswith("--") or not written:
                yield Option(written, action.help or "", values)


def completion(arguments: argparse.Namespace) -> int:
    """Print the script."""
    if arguments.shell not in SHELLS:
        raise unknown_name("shell", arguments.shell, SHELLS)
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    print("\n".join(writers[arguments.shell](arguments.options)))
    return 0


def _bash(options: Options) -> Iterator[str]:
    yield "_leakmeter() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '  local command="${COMP_WORDS[1]}" known=""'
    yield from _choose(options)
    yield '  [[ -n $known ]] && COMPREPLY=($(compgen -W "$known" -- "$word"))'
    yield "}"
    yield "complete -o default -o bashdefault -F _leakmeter leakmeter"


def _zsh(options: Options) -> Iterator[str]:
    yield "_leakmeter() {"
    yield '  local word="${words[CURRENT]}" before="${words[CURRENT-1]}"'
    yield '  local command="${words[2]}" known=""'
    yield from _choose(options, first="$CURRENT -eq 2")
    yield "  if [[ -n $known ]]; then compadd -- ${=known}; else _files; fi"
    yield "}"
    yield "compdef _leakmeter leakmeter"


def _choose(options: Options, first: str = "$COMP_CWORD -eq 1") -> Iterator[str]:
    """Yield the lines, the same in both shells, that set `known` to the words that fit."""
    yield f'  case "$command" in {"|".join(options)}) ;; *) command=run ;; esac'
    yield '  case "$command:$before" in'
    for command, some in options.items():
        for one in some:
            if one.values:
                # A first argument comes after the command itself.
                after = one.name or command
                yield f'    {command}:{after}) known="{" ".join(one.values)}" ;;'
    yield "  esac"
    yield '  if [[ -z $known && $word == -* ]]; then case "$command" in'
    for command, some in options.items():
        yield f'    {command}) known="{" ".join(one.name for one in some if one.name)}" ;;'
    yield "  esac; fi"
    yield f'  [[ -z $known && $word != -* && {first} ]] && known="{" ".join(options)}"'


def _fish(options: Options) -> Iterator[str]:
    names = " ".join(options)
    others = " ".join(name for name in options if name != "run")
    yield "complete -c leakmeter -n __fish_use_subcommand -f -a " + _quoted(names)
    for command, some in options.items():
        seen = f"__fish_seen_subcommand_from {command}"
        when = f"not __fish_seen_subcommand_from {others}" if command == "run" else seen
        for one in some:
            written = f" -l {one.name.removeprefix('--')}" if one.name else " -f"
            values = f" -x -a {_quoted(' '.join(one.values))}" if one.values and one.name else ""
            values = f" -a {_quoted(' '.join(one.values))}" if not one.name else values
            about = f" -d {_quoted(one.help)}" if one.name else ""
            yield f"complete -c leakmeter -n {_quoted(when)}{written}{values}{about}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
