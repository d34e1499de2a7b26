"""`leakmeter run`, the default command: train, audit, and leave a folder with the results."""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter import __version__
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError, RayError, interrupted_code
from leakmeter.fl_app.config.field import kebab, number_or_text, read_toml
from leakmeter.fl_app.config.settings import PRESETS
from leakmeter.fl_app.job import settled
from leakmeter.fl_app.report import HOST, PORT

if TYPE_CHECKING:
    from leakmeter.fl_app.report.live import LiveServer
    from leakmeter.fl_app.run.folder import RunFolder

GROUPS = {
    "task": "Data and model",
    "federation": "Federation",
    "client": "Client",
    "privacy": "Protection",
    "audit": "Audit",
    "run": "Run",
}
# The settings that people use; `--help all` has the others too.
COMMON = frozenset(
    {
        *("dataset", "model", "partition", "clients", "sample", "rounds", "secagg"),
        *("epochs", "batch-size", "lr", "noise", "noise-multiplier", "target-epsilon", "clip-norm"),
        *("auditors", "delta", "claim", "seed", "engine", "device", "log", "fail-above"),
    }
)
RARE = frozenset({"verbose", "port", "host"})  # other options that few people use
_USAGE = """\
%(prog)s [--preset NAME] [--out DIR | --resume DIR] [settings]
       %(prog)s COMMAND ..."""
_DESCRIPTION = """\
Trains a model with simulated clients and measures what the training leaks.
The last lines are the verdict, the attackers (worst first) and what to do next;
a page in the run's folder has the rest.

commands:
  run         train and audit; the default, so you can leave the word out
  audit       audit a Flower app as it is, without a changed line
  check       run a Flower app with and without the audit, and compare
  self-audit  find out, as a client, what taking part reveals
  sweep       compare settings: accuracy against what is guaranteed
  list        list the runs in a folder, the newest first
  open        open the page of a run in the browser
  report      write a page about one run, or compare several
  gate        check a run against limits, with an exit code for pipelines
  reproduce   repeat a published table or figure
  replay      audit a recorded run again, without training
  watch       show a run in the browser during the run
  keys        make or check the keys of clients that sign (--secagg active)
  completion  print a script for your shell that completes what you type

`%(prog)s COMMAND --help` lists the options of a command;
`%(prog)s --help all` lists all settings and more examples.
"""
_EPILOG = """\
examples:
  %(prog)s
      the default job: 60 clients learn digits, four audits; results in runs/
  %(prog)s --preset quick
      the same in a third of the time, with canaries alone
  %(prog)s --out runs/demo --rounds 50
      longer, in a folder of your choice
  %(prog)s --config runs/demo/config.toml --seed 1
      the same settings with another seed
  %(prog)s --resume runs/demo
      resume an interrupted run; --resume runs takes the newest
  %(prog)s open
      the page of the newest run, in the browser
"""
MORE = """\
  %(prog)s --secagg off --noise local --clip-norm 1 --claim "8 server"
      check a claim: refuted, or how far the audit could have seen
  %(prog)s --fail-above 8
      for a pipeline: exit with code 3 if an ε above 8 is proven
  %(prog)s sweep --target-epsilon 1..32
      what accuracy each guarantee costs, on one page
  %(prog)s report runs/demo runs/other
      one page that compares both runs, ./report.html
  %(prog)s report --text runs/demo
      all details in the terminal
  %(prog)s reproduce --list
      all published tables and figures that can be repeated
  %(prog)s --out runs/kept --auditors one-shot,recorder
  %(prog)s replay runs/kept --auditors one-shot --delta 1e-6
      record a run, then audit it again with other auditors and settings
"""


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, made from the fields of `Config`."""
    parser.usage, parser.description, parser.epilog = _USAGE, _DESCRIPTION, _EPILOG + MORE
    parser.set_defaults(call=run, program=parser.prog, has_settings=True)
    parser.add_argument("--version", action="version", version=f"leakmeter {__version__}")
    add_preset(parser)
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="new or empty folder for the results (default: runs/<time>-<dataset>-<model>)",
    )
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="resume the run in this folder; of a folder of runs, the newest that is unfinished",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="show Flower's log and repeated warnings too"
    )
    parser.add_argument(
        "--live", action="store_true", help="show the page in the browser during the run"
    )
    add_address(parser)
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for spec in fields(Config):
        text = spec.metadata["help"]
        if type(spec.default) is not bool and spec.default != "":
            shown = f"{spec.default:g}" if isinstance(spec.default, float) else spec.default
            text += f" (default: {shown})"
        add_setting(groups[spec.metadata["group"]], spec, text)


def in_short(text: str) -> str:
    """Return an option's help without what comes after its first clause, but its default.

    >>> in_short("total ε; 0 = no limit (default: 0)")
    'total ε (default: 0)'
    """
    said, default, value = text.partition(" (default: ")
    return said.partition(";")[0] + default + value


def add_setting(group: argparse._ActionsContainer, spec: Field[Any], text: str) -> None:
    """Add the option of one setting; it is in the result only if the user gives it."""
    kind: Any = type(spec.default)
    meta = spec.metadata
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": kebab(spec.name)}
    if kind is bool:
        options |= {"action": argparse.BooleanOptionalAction}
    else:
        # Choices and ranges are checked by Config, so that TOML gets the same messages.
        names = "|".join(meta["choices"]) or meta["metavar"]
        read = kind if kind is str else partial(number_or_text, kind)
        options |= {"type": read, "metavar": names or {int: "N", float: "X"}[kind]}
        options |= {"action": "append"} if meta["several"] else {}
    group.add_argument(f"--{kebab(spec.name)}", help=text, **options)
    if meta["was"]:
        group.add_argument(f"--{meta['was']}", help=argparse.SUPPRESS, **options)


def add_preset(parser: argparse.ArgumentParser) -> None:
    """Add the option that names other defaults."""
    about = "; ".join(f"{name} = {preset.about}" for name, preset in PRESETS.items())
    parser.add_argument(
        "--preset",
        metavar="|".join(PRESETS),
        default="",
        help=f"other defaults, which --config and what you type replace: {about}",
    )


def add_address(parser: argparse._ActionsContainer) -> None:
    """Add the options that say where a page is served."""
    parser.add_argument(
        "--port",
        type=partial(number_or_text, int),
        metavar="N",
        help=f"port of the live page (default: {PORT} or the next)",
    )
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=HOST,
        help=f"address of the live page; anybody who reaches it can read it (default: {HOST}, "
        "this machine only)",
    )


def check_port(port: int | str | None) -> None:
    """Refuse a port that no machine has."""
    if isinstance(port, str) or (port is not None and not 0 <= port < 65536):
        raise ConfigError(f"--port must be from 0 (any free port) to 65535, got {port}")


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the user has typed, by kebab-case names."""
    known = {kebab(spec.name) for spec in fields(Config)}
    return {name: value for name, value in vars(arguments).items() if name in known}


def run(arguments: argparse.Namespace) -> int:
    """Run or resume, with progress, and print where the results are."""
    given = given_settings(arguments)
    check_port(arguments.port)
    config = _config(arguments, given)
    folder = _resumed(arguments) if config is None else None
    settings = config if folder is None else folder.config
    assert settings is not None
    # Importing torch and Flower takes seconds: what runs is on the screen before, and what can be
    # found wrong without them is.
    rounds, clients = counted(settings.rounds, "round"), counted(settings.clients, "client")
    what = f"leakmeter {__version__}: {settings.dataset}, {settings.model}, {clients}, {rounds}"
    doing = "starting" if folder is None else f"resuming {folder.path}"
    print(f"{what}; {doing} …", flush=True)
    with _uncollected():
        from leakmeter.fl_app.run.early import check_early
        from leakmeter.fl_app.run.folder import check_free

        if arguments.out and folder is None:
            check_free(Path(arguments.out))
        check_early(settings)
    with _port(arguments) as server:
        with _uncollected():
            prepared = _prepared(arguments, settings, folder)
        with _live(server, prepared):
            return _launch(prepared, arguments.program)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Import without garbage collection, which takes a fifth of the time and finds nothing."""
    if not gc.isenabled() or "torch" in sys.modules:  # a notebook's garbage stays collectable
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # modules stay to the end: no later collection looks at them
        gc.enable()


def _port(arguments: argparse.Namespace) -> AbstractContextManager[LiveServer | None]:
    """Return the server of the live page, if that was asked for; a busy port leaves no folder."""
    if arguments.live:
        from leakmeter.fl_app.report.live import open_server

        return open_server(arguments.host, arguments.port)
    if arguments.port is not None or arguments.host != HOST:
        raise ConfigError("--port and --host are for the live page only; add --live")
    return nullcontext()


def _live(server: LiveServer | None, folder: RunFolder) -> AbstractContextManager[object]:
    """Serve the page during the run."""
    if server is None:
        return nullcontext()
    from leakmeter.fl_app.report.live import serving

    print(f"live page: {server.url}", flush=True)
    return serving(server, folder.path)


def _resumed(arguments: argparse.Namespace) -> RunFolder:
    """Return the folder of the run to resume; a broken checkpoint is an error already now."""
    from leakmeter.fl_app.run.folder import RunFolder, named_run

    folder = RunFolder.open(named_run(Path(arguments.resume), "--resume", is_to_resume=True))
    folder.load()
    return folder


def _prepared(arguments: argparse.Namespace, config: Config, folder: RunFolder | None) -> RunFolder:
    """Return the folder to run in, once everything has been checked."""
    # Loaded before anything is planned: it shows that clients are simulated, and so that the
    # cohorts are those of the run's seed.
    from leakmeter.fl_app.engines import inline  # noqa: F401
    from leakmeter.fl_app.run import launch  # noqa: F401 - needed later, imported at once
    from leakmeter.fl_app.run.folder import default_path
    from leakmeter.fl_app.run.progress import set_flower_log
    from leakmeter.fl_app.run.run import new_run, preflight

    set_flower_log(verbose=arguments.verbose)  # after these imports: Flower sets its own level
    if folder is not None:
        preflight(folder.config, folder.path)
        return folder
    if config.measures_clip:
        print("measuring the clip norm in a rehearsal without noise …", flush=True)
    return new_run(config, Path(arguments.out or default_path(config, Path("runs"))))


def _config(arguments: argparse.Namespace, given: dict[str, Any]) -> Config | None:
    """Return the settings of a new run; None for one that is resumed, whose folder has them."""
    if arguments.resume is not None:
        more = {"config": arguments.config, "out": arguments.out, "preset": arguments.preset}
        names = sorted(given) + [name for name, value in more.items() if value]
        if names:
            raise ConfigError(
                f"--resume takes all settings from the folder; leave out --{', --'.join(names)}"
            )
        return None
    settings = read_toml(Path(arguments.config)) if arguments.config else {}
    config, words = settled({**settings, **given}, typed=given, preset=arguments.preset)
    if words:
        print(words, flush=True)
    return config


def _launch(folder: RunFolder, program: str) -> int:
    """Launch, and say how to resume a run that is cut short."""
    from leakmeter.auditors.verdict.gate import EXIT_CODES
    from leakmeter.fl_app.report.judge import gate_outcome
    from leakmeter.fl_app.run.launch import launch
    from leakmeter.fl_app.run.progress import Progress
    from leakmeter.fl_app.run.run import end

    progress = Progress()
    try:
        done = launch(folder, progress)
        has_page = end(done, progress)
    except ConfigError:
        raise
    except KeyboardInterrupt as stop:
        progress.stop()
        progress.say(f"interrupted; {_how_to_resume(folder, program)}")
        return interrupted_code(stop)
    except RayError:
        progress.stop()
        folder.discard()  # nothing has run, so the same command may use it again
        raise
    except BaseException as error:
        progress.stop()
        if isinstance(error, OSError) and (words := folder.explained(error)) is not None:
            print(f"error: {words}; {_how_to_resume(folder, program)}", file=sys.stderr)
            return 1
        progress.say(f"the run failed; {_how_to_resume(folder, program)}")
        raise
    if not (folder.path / "report.json").exists():
        progress.say(f"no report could be written; {_how_to_resume(folder, program)}")
        return 1
    said, code = gate_outcome(folder.path, folder.config)
    for line in said:
        progress.say(line)
    # What is proven is proven; else a run that is not whole has failed.
    is_whole = not done.failures and all(one.kind != "ended-early" for one in done.warnings)
    return code if code == EXIT_CODES["exceeded"] or (is_whole and has_page) else 1


def _how_to_resume(folder: RunFolder, program: str) -> str:
    """Return the command that resumes the run, or what is left to do without one."""
    path = shlex.quote(str(folder.path))
    if (folder.path / "report.json").exists():
        return f"the run itself is finished; write its page with: {program} report {path}"
    if not folder.checkpoint.exists():
        return f"no round was finished, so start again; the settings are in {path}"
    return f"resume with: {program} --resume {path}"
