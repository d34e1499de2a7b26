"""The commands that train: `leakmeter run`, the default one, and `leakmeter sweep`."""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import Field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakmeter import __version__
from leakmeter.auditors.wording import counted
from leakmeter.fl_app.config.config import Config, preset_line, preset_settings
from leakmeter.fl_app.config.field import (
    ConfigError,
    RayError,
    interrupted_code,
    kebab,
    number_or_text,
    program,
    read_toml,
)
from leakmeter.fl_app.config.settings import PRESETS
from leakmeter.fl_app.job import settled
from leakmeter.fl_app.report import HOST, NAME, PORT
from leakmeter.fl_app.sweep.points import REFUSED, SweepPlan, plan_of, setting_name, typed_value

if TYPE_CHECKING:
    from leakmeter.fl_app.report.live import LiveServer
    from leakmeter.fl_app.run.folder import RunFolder
    from leakmeter.fl_app.sweep.sweep import SweepFolder

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
_SWEEP_USAGE = """\
%(prog)s --over NAME=V1,V2 [--seeds N] [settings]
       %(prog)s --resume DIR"""
_SWEEP = """\
Compares settings: how accurate the model becomes, and what is guaranteed. Every
combination of the values is a point. First all points are rehearsed without
auditors, then those on the frontier are audited. A page, a table and JSON in
the sweep's folder have the numbers, and a command for every point.

All settings of a run can be given; those that are not differ from a run in
  --noise distributed (local with --secagg off), --clip-norm auto,
  --auditors one-shot
"""
_SWEEP_MORE = """\
exit codes:
  0  all points have run
  1  an audit failed
  2  a wrong option or folder, or points that cannot run

examples:
  %(prog)s --target-epsilon 1..32
      from strong to weak noise: 1, 2, 4, 8, 16 and 32
  %(prog)s --over rounds=20,40 --over sample=30,60 --seeds 3
      four points, each with three seeds
  %(prog)s --noise central --against outsider --rounds 10..80
      guarantees against whoever sees the models only
  %(prog)s --resume runs/sweep
      continue where a sweep stopped; points that are there are read
"""
_AGAINST = (
    "attackers that guarantees are compared for: server, outsider or wire, or one with what it "
    "sees, such as outsider/noised-sum (default: all against whom a point guarantees something)"
)


def set_up(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, made from the fields of `Config`."""
    parser.usage, parser.description, parser.epilog = _USAGE, _DESCRIPTION, _EPILOG + MORE
    parser.set_defaults(call=run, has_settings=True)
    parser.add_argument("--version", action="version", version=f"leakmeter {__version__}")
    _add_start(
        parser,
        "new or empty folder for the results (default: runs/<time>-<dataset>-<model>)",
        "resume the run in this folder; of a folder of runs, the newest that is unfinished",
    )
    parser.add_argument(
        "--live", action="store_true", help="show the page in the browser during the run"
    )
    add_address(parser)
    _add_settings(parser, with_default)


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


def with_default(spec: Field[Any]) -> str:
    """Return a setting's help with its default."""
    if type(spec.default) is bool or spec.default == "":
        return str(spec.metadata["help"])
    usual = f"{spec.default:g}" if isinstance(spec.default, float) else spec.default
    usual = spec.metadata["zero"] or usual if spec.default == 0 else usual
    return f"{spec.metadata['help']} (default: {usual})"


def _add_settings(parser: argparse.ArgumentParser, help_of: Callable[[Field[Any]], str]) -> None:
    """Add all settings of a run, in groups."""
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for spec in fields(Config):
        add_setting(groups[spec.metadata["group"]], spec, help_of(spec))


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option that shows Flower's log."""
    words = "show Flower's log and repeated warnings too"
    parser.add_argument("--verbose", action="store_true", help=words)


def _add_start(parser: argparse.ArgumentParser, out: str, resume: str) -> None:
    """Add where settings come from, where results go, and what is resumed."""
    about = "; ".join(f"{name} = {preset.about}" for name, preset in PRESETS.items())
    parser.add_argument(
        "--preset",
        metavar="|".join(PRESETS),
        default="",
        help=f"other defaults, which --config and what you type replace: {about}",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of the settings below")
    parser.add_argument("--out", metavar="DIR", help=out)
    parser.add_argument("--resume", metavar="DIR", help=resume)
    add_verbose(parser)


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


def typed_settings(arguments: argparse.Namespace, owner: type[Any] = Config) -> dict[str, Any]:
    """Return the settings that the user has typed, by kebab-case names; `owner` has them."""
    known = {kebab(spec.name) for spec in fields(owner)}
    return {name: value for name, value in vars(arguments).items() if name in known}


def run(arguments: argparse.Namespace) -> int:
    """Run or resume, with progress, and print where the results are."""
    given = typed_settings(arguments)
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
            return _launch(prepared)


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


def _check_resume_alone(
    arguments: argparse.Namespace, more: Mapping[str, object] | None = None
) -> None:
    """Refuse settings beside `--resume`; `more` are other options that the folder answers."""
    more = {**(more or {}), **{name: vars(arguments)[name] for name in ("config", "out", "preset")}}
    names = [*typed_settings(arguments), *(name for name, value in more.items() if value)]
    if names:
        listed = ", --".join(sorted(names))
        raise ConfigError(f"--resume takes all settings from the folder; leave out --{listed}")


def _config(arguments: argparse.Namespace, given: dict[str, Any]) -> Config | None:
    """Return the settings of a new run; None for one that is resumed, whose folder has them."""
    if arguments.resume is not None:
        _check_resume_alone(arguments)
        return None
    settings = read_toml(Path(arguments.config)) if arguments.config else {}
    config, words = settled({**settings, **given}, typed=given, preset=arguments.preset)
    if words:
        print(words, flush=True)
    return config


def _launch(folder: RunFolder) -> int:
    """Launch, and say how to resume a run that is cut short."""
    from leakmeter.auditors.verdict.gate import EXIT_CODES
    from leakmeter.fl_app.report.judge import gate_outcome
    from leakmeter.fl_app.run.launch import launch
    from leakmeter.fl_app.run.progress import Progress
    from leakmeter.fl_app.run.run import end, is_warned_of

    progress = Progress()
    try:
        done = launch(folder, progress)
        is_done = end(done, progress)
    except ConfigError:
        raise
    except KeyboardInterrupt as stop:
        progress.stop()
        progress.say(f"interrupted; {_how_to_resume(folder)}")
        return interrupted_code(stop)
    except RayError:
        progress.stop()
        folder.discard()  # nothing has run, so the same command may use it again
        raise
    except BaseException as error:
        progress.stop()
        if isinstance(error, OSError) and (words := folder.explained(error)) is not None:
            print(f"error: {words}; {_how_to_resume(folder)}", file=sys.stderr)
            return 1
        progress.say(f"the run failed; {_how_to_resume(folder)}")
        raise
    if not (folder.path / "report.json").exists():
        progress.say(f"no report could be written; {_how_to_resume(folder)}")
        return 1
    said, code = gate_outcome(folder.path, folder.config)
    for line in said:
        progress.say(line)
    # What is proven is proven; else a run that is not whole has failed.
    is_whole = is_done and not is_warned_of("ended-early", done.warnings)
    return code if code == EXIT_CODES["exceeded"] or is_whole else 1


def _how_to_resume(folder: RunFolder) -> str:
    """Return the command that resumes the run, or what is left to do without one."""
    path = shlex.quote(str(folder.path))
    if (folder.path / "report.json").exists():
        return f"the run itself is finished; write its page with: {program()} report {path}"
    return f"resume with: {program()} --resume {path}"


def set_up_sweep(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command, and those of a run."""
    parser.usage, parser.description, parser.epilog = _SWEEP_USAGE, _SWEEP, _SWEEP_MORE
    parser.set_defaults(call=_sweep, has_settings=True)
    parser.add_argument(
        "--over",
        metavar="NAME=V1,V2",
        action="append",
        default=[],
        help="a setting and its values, or a range such as target-epsilon=1..32, whose values "
        "about double; can be repeated. Numbers can also be given so themselves: "
        "--target-epsilon 1..32",
    )
    parser.add_argument(
        "--seeds",
        metavar="N",
        type=partial(number_or_text, int),
        default=1,
        help="runs of each point, with the seed and the next ones; the first is audited "
        "(default: 1)",
    )
    parser.add_argument(
        "--skip-refused",
        action="store_true",
        help="leave out points whose settings do not go together, rather than refusing all",
    )
    _add_start(
        parser,
        "new or empty folder for the sweep (default: runs/<time>-sweep)",
        "continue the sweep in this folder",
    )

    def help_of(spec: Field[Any]) -> str:
        if kebab(spec.name) in REFUSED:
            return argparse.SUPPRESS
        return _AGAINST if spec.name == "against" else str(spec.metadata["help"])

    _add_settings(parser, help_of)


def _sweep(arguments: argparse.Namespace) -> int:
    """Check all points, run the sweep, and print what came of it."""
    folder = None if arguments.resume is None else _opened(arguments)
    plan = _plan(arguments) if folder is None else folder.plan
    points, refused = plan.points()
    out = _out(arguments) if folder is None else folder.path
    axes = "; ".join(
        f"{axis.name} {', '.join(map(typed_value, axis.values))}" for axis in plan.axes
    )
    seeds = f", {counted(plan.seeds, 'seed')} each" if plan.seeds > 1 else ""
    count = counted(len(points), "point")
    print(f"leakmeter {__version__}: {count} ({axes}){seeds}; checking …", flush=True)
    from leakmeter.auditors.verdict.lines import Ending
    from leakmeter.fl_app.engines import inline  # noqa: F401 - clients are simulated
    from leakmeter.fl_app.run.progress import Progress, set_flower_log
    from leakmeter.fl_app.sweep.results import TABLE
    from leakmeter.fl_app.sweep.sweep import SweepFolder, check_points, run_sweep

    set_flower_log(verbose=arguments.verbose)  # after these imports: Flower sets its own level
    points, more = check_points(plan, points)
    folder = folder or SweepFolder.create(out, plan)
    progress = Progress()
    try:
        results = run_sweep(folder, points, [*refused, *more], progress)
    except ConfigError:
        raise
    except BaseException as error:
        progress.stop()
        how = f"resume with: {program()} sweep --resume {shlex.quote(str(folder.path))}"
        if isinstance(error, KeyboardInterrupt):
            progress.say(f"interrupted; {how}")
            return interrupted_code(error)
        if isinstance(error, OSError):
            wrong = f"{folder.path} must be writable, got: {error.strerror}"
            print(f"error: {wrong}; free some space there, then {how}", file=sys.stderr)
            return 1
        progress.say(f"the sweep failed; {how}")
        raise
    progress.say("")
    for line in results.lines(progress.fitted(Ending())):
        progress.say(line)
    progress.say(f"page: {folder.path / NAME}")
    progress.say(f"table: {folder.path / TABLE}")
    return int(any(one.audit is not None and one.audit.failures for one in results.points))


def _plan(arguments: argparse.Namespace) -> SweepPlan:
    """Return the plan of a new sweep."""
    preset = preset_settings(arguments.preset)
    settings = preset | (read_toml(Path(arguments.config)) if arguments.config else {})
    for text in arguments.over:  # what is typed replaces what is in the file
        settings.pop(setting_name(text), None)
    given = {**settings, **typed_settings(arguments)}
    if preset:
        left = {name: value for name, value in preset.items() if given.get(name) == value}
        print(preset_line(arguments.preset, left))
    return plan_of(
        given, arguments.over, seeds=arguments.seeds, skips_refused=arguments.skip_refused
    )


def _opened(arguments: argparse.Namespace) -> SweepFolder:
    """Return the sweep to continue, which has its settings."""
    more = {"over": arguments.over, "seeds": arguments.seeds != 1}
    _check_resume_alone(arguments, {**more, "skip-refused": arguments.skip_refused})
    from leakmeter.fl_app.sweep.sweep import SweepFolder

    return SweepFolder.open(Path(arguments.resume))


def _out(arguments: argparse.Namespace) -> Path:
    """Return the folder of a new sweep, if one may begin there."""
    from leakmeter.fl_app.run.folder import check_free, free_path

    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    out = Path(arguments.out) if arguments.out else free_path(Path("runs") / f"{stamp}-sweep")
    check_free(out)
    return out
