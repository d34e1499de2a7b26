"""The command line; imports nothing heavy before it knows what to do.

`leakmeter completion` prints a script that lets a shell complete commands, options and values. It
is written from the parser itself, so it needs no package and has every option of this release.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, fields
from textwrap import wrap
from typing import Any, NoReturn

from leakmeter.fl_app.cli import audit, commands, run, runs
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import (
    ConfigError,
    RayError,
    interrupted_code,
    kebab,
    nearest,
    program,
    unknown_name,
)
from leakmeter.fl_app.config.settings import AUDITOR_NAMES, LOGGERS

# Options for one thing with two names, by command.
_SISTERS = {"--seats": "--canary-seats", "--canary-seats": "--seats"}
_SHELLS = ("bash", "zsh", "fish")
# What an argument takes, by what the help calls it, where that is not a list of values itself.
_TAKES: dict[str, Callable[[], tuple[str, ...]]] = {
    "NAME": commands.experiments,
    "NAMES": lambda: AUDITOR_NAMES,
    "TOOLS": lambda: LOGGERS,
}
_COMPLETION = """\
Prints a script that completes commands, options and values with the tab key:
  bash   source <(leakmeter completion bash)    in ~/.bashrc
  zsh    source <(leakmeter completion zsh)     in ~/.zshrc, after compinit
  fish   leakmeter completion fish | source     in ~/.config/fish/config.fish
"""
_SETTINGS = frozenset(kebab(spec.name) for spec in fields(Config))
# Packages that a checkout lacks until it is installed.
_NEEDED = {"numpy", "scipy", "torch", "flwr", "ray", "sklearn", "rich", "dp_accounting", "jinja2"}
_NEEDED |= {"cryptography", "threadpoolctl"}


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Return what a terminal has no letters for in letters that it has, such as "eps >= 2"."""
    from leakmeter.auditors.wording import in_ascii

    assert isinstance(error, UnicodeEncodeError)
    return in_ascii(error.object[error.start : error.end]), error.end


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 done, 1 failed, 2 a user's mistake, 3 a limit is exceeded, 4 the audit
        cannot tell, 130 interrupted, 143 terminated.
    """
    codecs.register_error("leakmeter", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="leakmeter")
    # Small vectors on many threads cost more than they save, tenfold where cores are shared. These
    # are read when numpy is imported, which nothing has done yet; a user's own settings stay.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    # Torch then asks for large pages: the first touch of fresh memory costs a tenth.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # numpy asks for them unless told otherwise, and waits: a second for the images of MNIST where
    # memory is in pieces, against a seventh of it with small pages.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    try:
        words = _with_command(sys.argv[1:] if argv is None else argv)
        arguments = _parser().parse_args(words)
        with _terminable():
            code: int = arguments.call(arguments)
        return code
    except ConfigError as error:
        text = " ".join(str(error).splitlines())  # a name that was typed may have several lines
        print(f"error: {text}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        print(
            f"error: the package {error.name} is missing, so Leakmeter is not installed for this "
            f"Python ({sys.executable}). In the folder of the checkout: pip install -e .",
            file=sys.stderr,
        )
        return 2
    except RayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our lines has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as stop:  # before the run has begun
        return interrupted_code(stop)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let a command that is told to terminate, as containers and schedulers do, end in order."""

    def stop(number: int, _: Any) -> NoReturn:
        raise KeyboardInterrupt(number)

    is_main = threading.current_thread() is threading.main_thread()  # which alone takes signals
    before = signal.signal(signal.SIGTERM, stop) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _with_command(words: Sequence[str]) -> list[str]:
    """Return the words with a command in front: `run` is the default.

    So `run_sim.py --rounds 5` is `run_sim.py run --rounds 5`, and `--help` and `--version` are
    those of `run`. A command takes no option before its name, so a first word without a dash can
    only be a command.
    """
    first = words[0] if words else "--"
    if first.startswith("-"):
        return ["run", *words]
    if first not in _COMMANDS:
        hint = nearest(first, _COMMANDS) or f"; the commands are {', '.join(_COMMANDS)}"
        raise ConfigError(f"unknown command {first}{hint}")
    return list(words)


def _parser() -> _Parser:
    """Return the parser with one sub-parser for each command."""
    called = program()
    parser = _Parser(prog=called, add_help=False)
    parsers = parser.add_subparsers(required=True)
    for name, set_up in _COMMANDS.items():
        own = parsers.add_parser(
            name,
            prog=called if name == "run" else f"{called} {name}",
            formatter_class=_Help,
            allow_abbrev=False,
            add_help=False,
        )
        own.add_argument(
            *("-h", "--help"),
            action=_ShowHelp,
            nargs="?",
            const="",
            metavar="all",
            help="show this help, or with all every setting",
        )
        set_up(own)
    options = {name: tuple(_options(one)) for name, one in parsers.choices.items()}
    parsers.choices["completion"].set_defaults(options=options)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    """Breaks no line within an option or a name, so that all of them can be searched and copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Return an option with its values, in two lines where one would be too long."""
        text = super()._format_action_invocation(action)
        room = self._width - self._current_indent
        if len(text) <= room or "|" not in text[:room]:
            return text
        cut = text.rindex("|", 0, room) + 1
        return f"{text[:cut]}\n{' ' * (self._current_indent + 4)}{text[cut:]}"


class _ShortHelp(_Help):
    """Shows the settings that most people use, with the first clause about each."""

    def add_argument(self, action: argparse.Action) -> None:
        """Leave out other settings."""
        if action.dest in run.COMMON or action.dest not in _SETTINGS | run.RARE:
            short = copy(action)
            short.help = run.in_short(str(action.help))
            super().add_argument(short)


class _ShowHelp(argparse.Action):
    """Prints the help, and ends; with `all`, every setting of a command that has many."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> None:
        """Print it."""
        _, asked, *_ = given
        if asked not in ("", "all"):
            raise unknown_name("--help", asked, ("all",))
        shown = copy(parser)
        if parser.get_default("has_settings") and not asked:
            shown.formatter_class = _ShortHelp
            shown.epilog = str(parser.epilog).partition(run.MORE)[0]
        shown.print_help()
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Reports a mistake like any other wrong setting: in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the program."""
        text = message.removeprefix("argument ")
        raise ConfigError(f"{text}; see {self.prog} --help")

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Refuse what is not known here, where the options that could be meant are known."""
        found, unknown = super().parse_known_args(args, namespace)
        if not unknown:
            return found, unknown
        option = next((word.split("=")[0] for word in unknown if word.startswith("-")), None)
        if option is None:
            self.error(f"unexpected argument {unknown[0]}")
        given = next((word for word in unknown if word.startswith(option)), option)
        value = given.partition("=")[2] or next(iter(unknown[unknown.index(given) + 1 :]), "N")
        hint = self._sister(option, value, getattr(found, "path", None))
        hint = hint or nearest(option, self._option_string_actions)
        if not hint:
            self.error(f"unknown option {option}")
        raise ConfigError(f"unknown option {option}{hint}")

    def _sister(self, option: str, value: str, app: str | None) -> str:
        """Return what an option of another command is called here, to copy; or nothing."""
        known = self._option_string_actions
        if (here := _SISTERS.get(option)) in known:
            return f"; here it is {here} {value}"
        if option != "--rounds" or "--run-config" not in known:
            return ""
        from leakmeter.fl_app.audit_app.project import AppProject

        name = None
        with suppress(ConfigError):  # the option is the first mistake to name
            name = AppProject.read(app or "").rounds_name
        return f'; an app has its own setting: --run-config "{name or "num-server-rounds"}={value}"'


@dataclass(frozen=True)
class _Option:
    """One option: how it is written, what it does, and the values it takes, if these are names."""

    name: str
    help: str
    values: tuple[str, ...] = ()


_Options = Mapping[str, tuple[_Option, ...]]  # of each command


def _set_up_completion(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description = _COMPLETION
    parser.set_defaults(call=_completion)
    parser.add_argument("shell", metavar="|".join(_SHELLS), help="the shell to write it for")


def _options(parser: argparse.ArgumentParser) -> Iterator[_Option]:
    """Yield the options of a command."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        names = str(action.metavar or "")
        listed = tuple(name.strip() for name in names.split("|")) if "|" in names else ()
        values = _TAKES[names]() if names in _TAKES else listed
        for written in action.option_strings or ([""] if values else []):
            if written.startswith("--") or not written:
                yield _Option(written, action.help or "", values)


def _completion(arguments: argparse.Namespace) -> int:
    """Print the script."""
    if arguments.shell not in _SHELLS:
        raise unknown_name("shell", arguments.shell, _SHELLS)
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    print("\n".join(writers[arguments.shell](arguments.options)))
    return 0


def _bash(options: _Options) -> Iterator[str]:
    yield "_leakmeter() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '  local command="${COMP_WORDS[1]}" known=""'
    yield from _choose(options)
    yield '  [[ -n $known ]] && COMPREPLY=($(compgen -W "$known" -- "$word"))'
    yield "}"
    yield "complete -o default -o bashdefault -F _leakmeter leakmeter"


def _zsh(options: _Options) -> Iterator[str]:
    yield "_leakmeter() {"
    yield '  local word="${words[CURRENT]}" before="${words[CURRENT-1]}"'
    yield '  local command="${words[2]}" known=""'
    yield from _choose(options, first="$CURRENT -eq 2")
    yield "  if [[ -n $known ]]; then compadd -- ${=known}; else _files; fi"
    yield "}"
    yield "compdef _leakmeter leakmeter"


def _choose(options: _Options, first: str = "$COMP_CWORD -eq 1") -> Iterator[str]:
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


def _fish(options: _Options) -> Iterator[str]:
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


_COMMANDS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "run": run.set_up,
    "audit": audit.set_up_audit,
    "check": audit.set_up_check,
    "self-audit": commands.set_up_self_audit,
    "sweep": run.set_up_sweep,
    "list": runs.set_up_list,
    "open": runs.set_up_open,
    "report": runs.set_up_report,
    "gate": runs.set_up_gate,
    "reproduce": commands.set_up_reproduce,
    "replay": commands.set_up_replay,
    "watch": runs.set_up_watch,
    "keys": commands.set_up_keys,
    "completion": _set_up_completion,
}
