"""The command line; imports nothing heavy before it knows what to do."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, NoReturn

from leakmeter.fl_app.cli import completion, keys, replay, report, reproduce, run, watch
from leakmeter.fl_app.config.errors import ConfigError, RayError, nearest

_COMMANDS = {
    "run": run,
    "report": report,
    "reproduce": reproduce,
    "replay": replay,
    "watch": watch,
    "keys": keys,
    "completion": completion,
}
# Packages that a checkout lacks until it is installed.
_NEEDED = {"numpy", "scipy", "torch", "flwr", "ray", "sklearn", "rich", "dp_accounting", "jinja2"}
_NEEDED |= {"cryptography", "threadpoolctl"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 done, 1 failed, 2 a user's mistake, 130 interrupted.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # some terminals have no ε: they show a "?"
            stream.reconfigure(errors="replace")
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
    except KeyboardInterrupt:  # before the run has begun
        return 130


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
    # How this program was called, for examples that can be copied.
    program = "leakmeter" if Path(sys.argv[0]).stem == "leakmeter" else "python run_sim.py"
    parser = _Parser(prog=program, add_help=False)
    commands = parser.add_subparsers(required=True)
    for name, command in _COMMANDS.items():
        command.set_up(
            commands.add_parser(
                name,
                prog=program if command is run else f"{program} {name}",
                formatter_class=_Help,
                allow_abbrev=False,
            )
        )
    commands.choices["completion"].set_defaults(options=completion.options_of(commands.choices))
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    """Breaks no line within an option or a name, so that all of them can be searched and copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


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
        hint = nearest(option, self._option_string_actions)
        if not hint:
            self.error(f"unknown option {option}")
        raise ConfigError(f"unknown option {option}{hint}")
