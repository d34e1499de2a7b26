"""`leakmeter gate`: whether a run keeps its limits, as an exit code and for a pipeline's tools."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter.fl_app.cli.run import add_setting
from leakmeter.fl_app.config.errors import ConfigError, nearest, shown_name, unknown_name
from leakmeter.fl_app.config.field import checked, expanded, kebab, read_toml, setting

if TYPE_CHECKING:
    from leakmeter.auditors.verdict.gate import Limits

_DESCRIPTION = """\
Checks whether a finished run keeps its limits, for a pipeline. An audit that
shows nothing passes only if it could have shown more than the limit. Limits can
also be in [tool.leakmeter.gate] of pyproject.toml in the current folder;
options on the command line win.
"""
_EPILOG = """\
exit codes:
  0  the run keeps its limits
  1  the program failed
  2  a wrong option, file or folder
  3  a limit is exceeded, or a privacy claim about the run is refuted
  4  the audit cannot tell: the run is distorted, incomplete, or no audit could
     have shown more than the limit

examples:
  %(prog)s runs/demo --max-epsilon 8 --against outsider
      fail if an ε above 8 is proven for whoever sees the models
  %(prog)s runs/demo --require-guarantee 8 --min-accuracy 0.8
      fail unless ε ≤ 8 is guaranteed against every attacker of the run
  %(prog)s runs/demo --claims
      fail if a claim about the run is refuted, or was not tested
  %(prog)s runs/demo --claims --format junit --output gate.xml
      write a file that test reports show
"""
_FILE, _TABLE = Path("pyproject.toml"), "tool.leakmeter.gate"
_FORMATS = ("text", "junit", "sarif", "markdown", "json")


@dataclass(frozen=True)
class _Options:
    """The limits as options. A default is only the value that an error suggests."""

    max_epsilon: float = setting(
        8.0,
        "no ε above this may be proven, and the audit must have been able to prove one",
        group="gate",
        low=0,
        metavar="E",
    )
    against: str = setting(
        "outsider",
        "attackers that --max-epsilon, --require-guarantee and --claims are about: server, "
        "outsider or wire, or one with what it sees, such as server/round-sum (default: all "
        "attackers of the run)",
        group="gate",
        metavar="ATTACKER",
    )
    require_guarantee: float = setting(
        8.0,
        "an ε of at most this must be guaranteed against these attackers",
        group="gate",
        low=0,
        metavar="E",
    )
    no_reconstruction: bool = setting(
        False, "a reconstruction test must have been played and found nothing", group="gate"
    )
    min_accuracy: float = setting(
        0.8, "least accuracy of the last model", group="gate", low=0, high=1, metavar="A"
    )
    claims: bool = setting(
        False,
        "each privacy claim about the run must have been tested and not refuted",
        group="gate",
    )


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.set_defaults(call=_gate)
    parser.add_argument("run", metavar="DIR", help="folder of a finished run")
    limits = parser.add_argument_group("Limits")
    for spec in fields(_Options):
        if spec.type == "bool":  # no second option that turns it off
            flags: dict[str, Any] = {"action": "store_true", "default": argparse.SUPPRESS}
            name = kebab(spec.name)
            limits.add_argument(f"--{name}", dest=name, help=spec.metadata["help"], **flags)
        else:
            add_setting(limits, spec, spec.metadata["help"])
    parser.add_argument(
        "--format",
        metavar="|".join(_FORMATS),
        default="text",
        help="how to write what came of it (default: text)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write, replaced if there; the text is printed as well (default: print)",
    )


def _gate(arguments: argparse.Namespace) -> int:
    """Check the limits, print or write what came of them, and return the exit code."""
    if arguments.format not in _FORMATS:
        raise unknown_name("--format", arguments.format, _FORMATS)
    known = {kebab(spec.name) for spec in fields(_Options)}
    given = {name: value for name, value in vars(arguments).items() if name in known}
    asked = _checked({**_from_file(_FILE, known), **given})
    from leakmeter.auditors.verdict.gate import Gate, lines
    from leakmeter.fl_app.report.export import FORMATS
    from leakmeter.fl_app.report.judge import result_of
    from leakmeter.fl_app.report.read import read_run

    limits = _limits(asked)
    gate = Gate.of(result_of(read_run(Path(arguments.run))), limits)
    text = FORMATS[arguments.format](gate)
    if not arguments.output:
        print(text, end="")
        return gate.code
    path = expanded("--output", arguments.output)
    _write(path, text)
    print("\n".join(lines(gate)))
    print(f"{arguments.format}: {path}")
    return gate.code


def _limits(asked: Mapping[str, Any]) -> Limits:
    """Return the limits; raise if there are none, or if nobody attacks under this name."""
    from leakmeter.auditors.verdict.gate import ALLOWED, ATTACKERS, Limits

    if asked.get("against") not in (None, *ATTACKERS):
        raise unknown_name("--against", asked["against"], ATTACKERS, allowed=ALLOWED)
    limits = Limits(**asked)
    if limits.is_empty:
        raise ConfigError(
            "gate needs a limit, one of --max-epsilon, --require-guarantee, --no-reconstruction, "
            f"--min-accuracy and --claims, here or in [{_TABLE}] of {_FILE}, got none. Try "
            "--max-epsilon 8."
        )
    return limits


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits by their Python names; raise for a wrong type or range."""
    specs = {kebab(spec.name): spec for spec in fields(_Options)}
    return {specs[name].name: checked(specs[name], value) for name, value in values.items()}


def _from_file(path: Path, known: Iterable[str]) -> dict[str, Any]:
    """Return the limits in the project's file; none where there is no file or no table."""
    if not path.is_file():
        return {}
    table: Any = read_toml(path, "the limits' file")
    for name in _TABLE.split("."):
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [{_TABLE}] must be a table, got {name} = {table!r}")
    for name in table:
        if name not in known:
            hint = nearest(name, known) or f"; known limits: {', '.join(sorted(known))}"
            raise ConfigError(f"{path}: unknown limit {shown_name(name)} in [{_TABLE}]{hint}")
    return dict(table)


def _write(path: Path, text: str) -> None:
    from leakmeter.auditors.run_log import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(
            f"--output must be a file that can be written, got {path}: {error.strerror}. "
            "Try --output gate.txt."
        ) from None
