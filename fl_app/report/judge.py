"""What a run says, and what to do about it.

In this order: the verdict on a whole run, the command that makes it again, at most three next steps
with commands that can be copied, and advice about one row of the verdict.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.verdict import gate
from leakmeter.auditors.verdict.claim import Question, attacker, unsized
from leakmeter.auditors.verdict.labels import LEAKS
from leakmeter.auditors.verdict.lines import (
    MAX_STEPS,
    SLOWER,
    STEPPED,
    TARGET,
    NextStep,
    claim_step,
    failed_clients,
    fewer_releases,
    steps,
)
from leakmeter.auditors.verdict.result import AuditResult
from leakmeter.auditors.verdict.verdict import (
    Asked,
    Block,
    RoundsDone,
    Row,
    Verdict,
    costs_too_much,
    is_distorted,
    is_shown,
    judge,
)
from leakmeter.auditors.wording import (
    OBSERVED,
    aside,
    assignments,
    claim,
    counted,
    is_certain,
    is_epsilon,
    number,
    share,
    terms,
)
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import SCRIPT, ConfigError, kebab, program
from leakmeter.fl_app.config.settings import AUTO, NO_NOISE, NOISES, PLAYERS, RECORD_NOISES
from leakmeter.fl_app.report.read import FLOWER, LAUNCH, REPLAY_OF, Rehearsal, Run, read_run


def verdict_of(run: Run, also: Sequence[Asked] = ()) -> Verdict:
    """Return the verdict on a run; on an unfinished one, what holds so far.

    There, only bounds that hold at all rounds together are proven, so that what is proven never
    shrinks. A bound of one round is never shown for the run: see `so_far`.
    """
    told: Any = {"accuracy": run.accuracy, "claims": run.claims}
    told["without_noise"] = run.without_noise
    if run.is_finished:
        return judge(run.of_the_run, run.warnings, also=also, **told)
    largest: dict[tuple[str, Asked | None], Finding] = {}
    for f in sorted(run.findings, key=lambda f: f.value):
        if f.is_anytime:
            largest[f.auditor, _asked(f)] = f
    others = [f for f in _latest(run) if f.kind != "lower_bound"]
    alone = so_far(run)
    found = judge([*largest.values(), *others], run.warnings, also=(*also, *alone), **told)
    deltas = [found.delta, *(f.delta for one in alone.values() for f in one)]
    planned, noted = run.config.get("rounds"), run.config.get("delta")
    deltas.append(noted if isinstance(noted, float) else None)
    return replace(
        found,
        rows=tuple(replace(row, alone=alone.get(row.asked, ())) for row in found.rows),
        delta=next((one for one in deltas if one), None),
        progress=RoundsDone(len(run.rounds), planned if isinstance(planned, int) else None),
    )


def so_far(run: Run) -> dict[Asked, tuple[Finding, ...]]:
    """Return the bounds of single rounds of an unfinished run, by attacker and question.

    Each is about its round alone, at its own confidence: keeping the largest would break that. The
    bounds of the run are made at its end, from all rounds, and share its 5 %.
    """
    found: dict[Asked, tuple[Finding, ...]] = {}
    for f in () if run.is_finished else run.findings:
        asked = _asked(f)
        is_of_round = f.kind == "lower_bound" and not f.is_anytime and not f.is_conditional
        if is_of_round and is_epsilon(f) and asked is not None:
            found[asked] = (*found.get(asked, ()), f)
    return found


def _latest(run: Run) -> list[Finding]:
    """Return what each auditor found in the last round that it audited, in an unfinished run."""
    last = {f.auditor: f.server_round for f in run.findings}  # they are in the order of rounds
    return [f for f in run.findings if f.server_round == last[f.auditor] and not run.is_finished]


def _asked(finding: Finding) -> Asked | None:
    question = Question.of(finding)
    return None if question is None else (unsized(attacker(finding)), question)


def result_of(run: Run) -> AuditResult:
    """Return a run as the result that Python and the gate work with."""
    return AuditResult(
        verdict_of(run),
        run.of_the_run,
        run.failures,
        run.limitations,
        folder=run.folder,
        is_finished=run.is_finished,
    )


def gate_outcome(folder: Path, config: Config) -> tuple[list[str], int]:
    """Return lines about the limits that a run was started with, and its exit code.

    A run without limits passes, unless none of its rounds released anything.
    """
    result = result_of(read_run(folder))
    if config.fail_above or config.require_guarantee:
        asked = (config.fail_above or None, config.require_guarantee or None)
        found = gate.Gate.of(result, gate.GateLimits(*asked, config.against or None))
        return gate.lines(found), found.code
    for warning in result.verdict.warnings:
        if warning.kind == "abandoned-rounds" and warning.count == warning.total:
            code = gate.EXIT_CODES["unable"]
            return [f"All rounds were abandoned, so nothing was audited (exit code {code})."], code
    return [], 0


DEFAULTS = {kebab(spec.name): spec.default for spec in fields(Config)}
_OF_AUDITS = {kebab(spec.name) for spec in fields(Config) if spec.metadata["group"] == "audit"}
_OF_ENGINES = ("engine", "ray-address")  # which Flower's runtime is itself


def repeat_command(
    run: Run, changes: Mapping[str, Any] | None = None, *, out: str = "", called: str = SCRIPT
) -> str | None:
    """Return the command that makes a run again; None for a project of another kind.

    Every setting that differs from its default is named, so that it needs no file.

    Args:
        run: The run.
        changes: Settings to give other values; None is returned where they do not go together.
        out: Folder for the results; empty takes the usual one.
        called: How the program is called.
    """
    if not run.settings:
        return None
    noted = {k: value for k, value in run.settings.items() if k not in (REPLAY_OF, LAUNCH)}
    try:
        settings = Config.from_mapping({**noted, **(changes or {})}).to_mapping()
    except ConfigError:  # of another release, or changes that do not fit
        return None
    if run.spelling == "run-config":
        return _by_flower(run, settings, {"out": out} if out else {})
    words = [called]
    if (source := run.settings.get(REPLAY_OF)) is not None:  # which has all but the audit's
        words += ["replay", shlex.quote(str(source)), "--auditors", settings.pop("auditors")]
        settings = {name: value for name, value in settings.items() if name in _OF_AUDITS}
    return command_of(words, settings, out)


def command_of(words: Sequence[str], settings: Mapping[str, Any], out: str = "") -> str:
    """Return a command that begins with these words and names every setting that it must."""
    options = [word for name, value in _given(settings).items() for word in _option(name, value)]
    return " ".join([*words, *options, *(["--out", quote_path(out)] if out else [])])


def folder_to_type(folder: Path, *, is_whole: bool = False) -> str:
    """Return a folder as its user may type it: from here, from the home folder, or whole.

    Args:
        folder: The folder.
        is_whole: Whether the command runs elsewhere, as in Flower's runtime.
    """
    folder, here, home = folder.absolute(), Path.cwd(), Path.home()
    if folder.is_relative_to(here) and not is_whole:
        return str(folder.relative_to(here))
    # A page may be shown to others, who need not know what the home folder is called.
    return f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)


def quote_path(path: str) -> str:
    """Return a path for a shell, which expands a leading ~ only where it is not quoted.

    >>> quote_path("runs/my demo"), quote_path("~/runs/my demo")
    ("'runs/my demo'", "~/'runs/my demo'")
    """
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def resume_command(run: Run, called: str = SCRIPT) -> str:
    """Return the command that finishes an interrupted run."""
    folder = folder_to_type(run.folder, is_whole=True)
    if run.spelling == "run-config":
        return _by_flower(run, {}, {"resume": folder})
    return f"{called} --resume {quote_path(folder)}"


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a command must name; the seed is always worth a word."""
    is_calibrated = bool(settings.get("target-epsilon"))  # then the multiplier is found again
    if settings.get("clipping") == "measured" and not settings["clip-norm"]:
        settings = {**settings, "clip-norm": AUTO, "clipping": DEFAULTS["clipping"]}
    return {
        name: value
        for name, value in settings.items()
        if (value != DEFAULTS[name] or name == "seed")
        and not (name == "noise-multiplier" and is_calibrated)
    }


def _by_flower(run: Run, settings: Mapping[str, Any], more: Mapping[str, str]) -> str:
    """Return the command of Flower's that starts our app with these settings."""
    words = ["flwr run ."]
    if run.settings.get(LAUNCH) == FLOWER:  # a deployment has its SuperNodes
        nodes = settings.get("clients", run.settings.get("clients"))
        words.append(f"--federation-config 'num-supernodes={nodes}'")
    own = {k: v for k, v in _given(settings).items() if k not in _OF_ENGINES}
    return " ".join(
        [*words, "--run-config", shlex.quote(assignments("run-config", {**own, **more}))]
    )


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    shown = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else value
    return [f"--{name}", shlex.quote(str(shown))]


CLIP_NORM = AUTO  # like the target, where a search for better values begins
_DROWNED = 10.0  # times the longest mean update: noise that no learning rate makes up for
_SEARCHED = "2..32"  # targets of a sweep
_NO_TARGET = {"target-epsilon": 0.0, "target-adjacency": "zero-out"}  # a sweep has its own
_NOTHING = 0.05  # above a guess: so little may be chance
# Data with ten classes of about the same size.
_OF_TEN = ("digits", "mnist", "fashion-mnist", "emnist-digits", "cifar10")


def next_steps(run: Run) -> list[NextStep]:
    """Return what to do next, the most useful first; words alone for another project's run."""
    verdict = verdict_of(run)
    if not run.settings:
        cohorts = [one.num_clients for one in run.rounds]
        return steps(verdict, cohorts, run.spelling, parameters=run.parameters)
    # Two reasons may lead to one command: the first of them is enough.
    by_deed = {one.command or one.text: one for one in reversed(list(_steps(run, verdict)))}
    found = list(reversed(by_deed.values()))[:MAX_STEPS]
    compared = [] if is_distorted(run.warnings) else _compared(run, found)
    return [*found, *compared][:MAX_STEPS]


def _steps(run: Run, verdict: Verdict) -> Iterator[NextStep]:
    rows = verdict.rows
    if not (run.is_finished or run.is_running):
        yield NextStep("Finish the run:", resume_command(run, program()))
    yield from _repairs(run)
    if is_distorted(run.warnings):
        return  # what else it shows is not that of a sound run
    yield from map(claim_step, verdict.false_claims[:1])
    if run.is_finished:
        yield from _learning(run)
        yield from _audit(run, verdict)
    if run.settings.get("secagg") == "off" and run.settings.get("noise") in ("none", "central"):
        text = "Turn on secure aggregation; now the server sees every single update:"
        yield from _changed(run, text, {"secagg": "on", **_behind_masks(run)}, "secagg")
    found = _shown(verdict)
    if found:
        yield from _noise(run, verdict)
        yield from fewer_releases(rows)
    yield from _closer_look(run, rows)
    if not found and (_is_noise_wanted(verdict) or _is_server_open(run, verdict)):
        yield from _noise(run, verdict)
    if REPLAY_OF in run.settings and not all(math.isfinite(row.high) for row in rows):
        yield NextStep("Repeat the recorded run with noise: a replay trains nothing.")


def _is_server_open(run: Run, verdict: Verdict) -> bool:
    """Whether the server adds the noise and nothing is guaranteed against the server itself."""
    return run.settings.get("noise") == "central" and any(
        math.isinf(row.high) and row.attacker.observer != "outsider" for row in verdict.rows
    )


def _learning(run: Run) -> Iterator[NextStep]:
    """Yield that the model has learnt nothing: then nothing else is worth a run."""
    guess, accuracy, settings = _guess(run), run.accuracy, run.settings
    if guess is None or accuracy is None or accuracy > guess + _NOTHING:
        return
    said = (
        f"The model has learnt nothing: accuracy {share(accuracy)}, and a guess has "
        f"{number(guess, 2)}."
    )
    if settings.get("noise") == "none":
        yield from _changed(
            run, f"{said} Train longer:", {"rounds": 2 * int(settings["rounds"])}, "longer"
        )
        return
    everybody = int(settings["clients"]) - int(settings["canary-seats"])
    less = {"model": "linear", "sample": max(int(settings["sample"]), everybody)}
    words = " ".join(f"--{name} {value}" for name, value in less.items())
    named = f"{said} The noise is too much for it."
    if settings.get("noise") in RECORD_NOISES or REPLAY_OF in settings:
        yield NextStep(f"{named} A smaller model, or more clients per round, helps.")
        return
    asked = str(settings.get("target-adjacency", "zero-out"))
    less |= {"clip-norm": CLIP_NORM, "clipping": "measured", "noise-multiplier": 1.0}
    text = f"{named} See what ε costs with {words}:"
    yield from _swept(run, text, {**less, **_NO_TARGET}, asked)


def _guess(run: Run) -> float | None:
    """Return the accuracy of a guess among the classes of the data; None if it is not known."""
    name = run.settings.get("dataset")
    if name == "synthetic":
        return 1 / int(run.settings["synthetic-classes"])
    return 0.1 if name in _OF_TEN else None


def _audit(run: Run, verdict: Verdict) -> Iterator[NextStep]:
    """Yield an audit of an ε, where none was run: without one nothing can be shown."""
    if added := _missing(run, verdict):
        yield from _changed(run, "Audit an ε; now no test can show a leak:", added, "audited")


def _missing(run: Run, verdict: Verdict) -> dict[str, str]:
    """Return the auditors with one of an ε, where a run has none."""
    if any(row.is_tried for row in verdict.rows) or not run.is_finished:
        return {}
    names = [name.strip() for name in str(run.settings.get("auditors", "")).split(",")]
    # The noise of clients that hides records leaves a client open, and canaries replace clients.
    new = "record-likelihood-ratio" if run.settings.get("noise") in RECORD_NOISES else "one-shot"
    kept = [name for name in names if name not in ("", "none", new)]
    return {"auditors": ",".join([*kept, new])}


def _behind_masks(run: Run) -> dict[str, str]:
    """Return the auditors without that of single updates, which sees nothing behind masks."""
    names = [name.strip() for name in str(run.settings.get("auditors", "")).split(",")]
    if "single-update" not in names:
        return {}
    left = [name for name in names if name != "single-update"]
    return {"auditors": ",".join(left or ["one-shot"])}


def _repairs(run: Run) -> Iterator[NextStep]:
    """Yield what cures a damaged run."""
    kinds = {warning.kind for warning in run.warnings}
    asked = {"dropouts"} if run.settings.get("dropout") else set()  # they are simulated
    yield from failed_clients(kinds - asked)
    rate = run.settings.get("lr")
    if kinds & STEPPED and (times := _noise_on_mean(run)) > _DROWNED:
        text = f"Too much noise: it is {number(times, 2)} times as long as a mean update may be:"
        less: dict[str, Any] = {"target-epsilon": TARGET, "target-adjacency": "zero-out"}
        if not run.settings.get("target-epsilon"):
            less = {"noise-multiplier": float(f"{run.settings['noise-multiplier'] / times:.1g}")}
        yield from _changed(run, text, less, "less-noise")
    elif kinds & STEPPED and isinstance(rate, float):
        lower = min(float(f"{rate / 3:.2g}"), Config.lr)
        yield from _changed(run, f"{SLOWER}:", {"lr": lower}, "lower-lr")
    if "few-canaries" in kinds:
        yield from _more_canaries(run, "Play more canaries")


def _noise_on_mean(run: Run) -> float:
    """Return how many times as long as the longest mean update its noise is; 0 if none is known."""
    noise, settings = NOISES.get(str(run.settings.get("noise")), NO_NOISE), run.settings
    if noise.unit != "client" or not (run.parameters and run.rounds):
        return 0.0
    clients = max(one.num_clients for one in run.rounds)
    alone = noise.added_by == "clients" and not noise.needs_sums  # then each adds the whole of it
    shares = math.sqrt(clients) if alone else 1.0
    return float(settings["noise-multiplier"]) * shares * math.sqrt(run.parameters) / clients


def _noise(run: Run, verdict: Verdict) -> Iterator[NextStep]:
    """Yield the noise that helps against the attackers of a run, with what it does to the model."""
    asked = _leaking(verdict)
    if run.settings.get("noise") in RECORD_NOISES:
        floor = run.settings.get("wfna-floor")
        if isinstance(floor, float) and any(question.unit == "record" for _, question in asked):
            text = "Raise the floor of the clients' noise:"
            yield from _changed(run, text, {"wfna-floor": 4 * floor}, "more-noise")
        return
    change = _noise_settings(run, asked, verdict.rows)
    fits, target = str(change["noise"]), float(change["target-epsilon"])
    promise = f"ε ≤ {target:g} against {_who(fits)} ({_WORLDS[change['target-adjacency']]})"
    heard = next((one for one in run.rehearsals if dict(one.settings) == change), None)
    if heard is not None and is_ruined(heard):
        yield from _searched(run, promise, change, heard)
        return
    effect = "accuracy may drop a lot (not rehearsed)" if heard is None else _effect(run, heard)
    deed = "Add noise: guarantee"
    if run.settings.get("noise") == "central" and fits == "distributed":
        deed = "Let clients add the noise, so that the server is covered too: guarantee"
    text = f"{deed} {promise}; {effect}:"
    yield from _changed(run, text, {**change, **_missing(run, verdict)}, f"{fits}-{target:g}")


def noise_changes(run: Run) -> dict[str, Any] | None:
    """Return the settings of the noise that would be advised, to rehearse it; None if none is."""
    is_ours = run.settings and run.settings.get("noise") not in RECORD_NOISES
    if not is_ours or REPLAY_OF in run.settings or is_distorted(run.warnings):
        return None
    verdict = verdict_of(run)
    if not _is_noise_wanted(verdict):
        return None
    return _noise_settings(run, _leaking(verdict), verdict.rows)


def is_ruined(rehearsal: Rehearsal) -> bool:
    """Whether noise takes more of the accuracy than a guarantee is worth."""
    return costs_too_much(rehearsal.accuracy, rehearsal.without_noise)


def _is_noise_wanted(verdict: Verdict) -> bool:
    """Whether something is shown, or nothing is guaranteed at all."""
    return bool(_shown(verdict)) or all(math.isinf(row.high) for row in verdict.rows)


def _leaking(verdict: Verdict) -> list[tuple[ThreatModel, Question]]:
    """Return against whom noise is wanted: those who are shown something, otherwise everybody."""
    everybody = [(row.attacker, row.question) for row in verdict.rows]
    looked = [(block.attacker, Question("client", "zero-out")) for block in verdict.others]
    return _shown(verdict) or everybody or looked


def _shown(verdict: Verdict) -> list[tuple[ThreatModel, Question]]:
    """Return the attackers who are shown something, the worst first."""
    # An estimate against a guarantee that is small enough is no reason for a smaller one.
    leaks = (row for row in verdict.rows if row.severity in LEAKS)
    found = [(r.attacker, r.question) for r in leaks if r.low > 0 or r.high > TARGET]
    tests = (test for test in verdict.tests if is_shown(test))
    # A test is no ε: noise that hides which of two updates was sent hides what it found.
    return found + [(attacker(test), Question(test.unit, "replace")) for test in tests]


def _noise_settings(
    run: Run, asked: Sequence[tuple[ThreatModel, Question]], rows: Sequence[Row]
) -> dict[str, Any]:
    """Return the settings of noise that helps against these attackers."""
    settings = run.settings
    faces_server = any(model.observer != "outsider" for model, _ in asked)
    fits = _kind(settings, faces_server=faces_server)
    # The target is about the worst of the rows that this noise cures.
    helped = [one for one in asked if (one[0].observer != "outsider") == faces_server][:1]
    has_pairs = any(question.adjacency == "replace" for _, question in helped)
    cured = [row for row in rows if (row.attacker, row.question) in helped]
    has_norm = bool(settings.get("clip-norm")) and settings.get("clipping") == "fixed"
    return {
        "noise": fits,
        "clip-norm": settings["clip-norm"] if has_norm else CLIP_NORM,
        "clipping": "fixed" if has_norm else "measured",
        "target-epsilon": _target(cured, rows) if settings.get("noise") == fits else TARGET,
        "target-adjacency": "replace" if has_pairs else "zero-out",
        "noise-multiplier": 1.0,
        **_fitting_distribution(settings, fits),
    }


# What a guarantee for two worlds means to a reader.
_WORLDS: Mapping[str, str] = {
    "zero-out": "if an update was sent",
    "replace": "which of two updates was sent",
}


def _effect(run: Run, heard: Rehearsal) -> str:
    """Return what a rehearsal has shown."""
    played, planned = len(heard.accuracies), int(run.settings["rounds"])
    part = "" if played == planned else f" of {counted(played, 'round')}"
    free = heard.without_noise
    against = "" if free is None else f", against {share(free)} without noise"
    return f"accuracy {share(heard.accuracy)} in a rehearsal{part} without canaries{against}"


def _searched(
    run: Run, promise: str, change: Mapping[str, Any], heard: Rehearsal
) -> Iterator[NextStep]:
    """Yield that noise would ruin the model, and the sweep that finds a setting with both."""
    ratio = 1 / heard.signal_to_noise if heard.signal_to_noise else math.inf
    said = (
        f"Noise for {promise} would ruin this model: {_effect(run, heard)}. "
        f"It is {number(ratio, 2)} times the mean of {run.settings['sample']} updates."
    )
    if not heard.instead:
        yield NextStep(
            f"{said} More clients, a smaller model, fewer rounds or a public start help."
        )
        return
    words = " ".join(f"--{name} {value}" for name, value in heard.instead.items())
    text = f"{said} See what ε costs with {words}:"
    settings = {**change, **heard.instead, **_NO_TARGET}
    yield from _swept(run, text, settings, change["target-adjacency"])


def _swept(run: Run, text: str, settings: Mapping[str, Any], adjacency: str) -> Iterator[NextStep]:
    """Yield the sweep over targets for this adjacency, with these settings."""
    ours = {k: v for k, v in run.config.items() if k != LAUNCH}  # a sweep has a command of its own
    called, out = f"{program()} sweep", _beside(run, "sweep")
    command = repeat_command(replace(run, config=ours), settings, out=out, called=called)
    if command is not None:
        asked = f"--target-epsilon {_SEARCHED} --target-adjacency {adjacency}"
        yield NextStep(text, f"{command} {asked}")


def _who(noise: str) -> str:
    """Return against whom a noise helps."""
    kind = NOISES.get(noise, NO_NOISE)
    if kind.added_by != "clients":
        return "outsiders"
    return "outsiders and the server" if kind.needs_sums else "everybody"


def _fitting_distribution(settings: Mapping[str, Any], noise: str) -> dict[str, Any]:
    """Return what integer noise needs to reach a target: a sum, and bits for a fine grid."""
    if settings.get("noise-distribution", "gaussian") == "gaussian":
        return {}
    if not NOISES.get(noise, NO_NOISE).has_integers:
        return {"noise-distribution": "gaussian"}
    bits = int(settings.get("secagg-bits", Config.secagg_bits))
    return {"secagg-bits": max(bits, Config.secagg_bits)}


def _kind(settings: Mapping[str, Any], *, faces_server: bool) -> str:
    """Return the noise that these attackers do not see through."""
    if not faces_server:
        return str(settings["noise"]) if settings.get("noise") != "none" else "central"
    return "distributed" if settings.get("secagg") in ("on", "active") else "local"


def _target(cured: Sequence[Row], rows: Sequence[Row]) -> float:
    """Return half of what the noise of a run guarantees now, in one digit.

    That is against the attackers who are to see less, or where they are promised nothing, the
    smallest ε against anybody. At most the usual target: half of a guarantee that means nothing
    means nothing either.
    """
    given = [row.high for row in cured if math.isfinite(row.high)] or [row.high for row in rows]
    return min([TARGET, *(float(f"{high / 2:.1g}") for high in given)])


def _at_their_limit(row: Row) -> list[Finding]:
    """Return the bounds that have reached what they can show, or have shown nothing."""
    bounds = (f for f in row.findings if f.kind == "lower_bound" and not f.is_conditional)
    return [f for f in bounds if (f.saturated or f.value == 0) and not is_certain(f)]


def _closer_look(run: Run, rows: Sequence[Row]) -> Iterator[NextStep]:
    """Yield how the audit could show more, where it has reached its limit or shown nothing."""
    for row in rows:
        for f in _at_their_limit(row):
            if f.auditor == "likelihood-ratio":
                trials = 4 * int(run.settings["lrt-trials"])
                limit = f"its bound is at its limit of {number(f.cap or 0)}"
                why = limit if f.saturated else "it has shown nothing"
                text = f"Give the likelihood-ratio test more trials; {why}:"
                yield from _changed(run, text, {"lrt-trials": trials}, "more-trials")
            elif f.auditor in PLAYERS:
                yield from _more_canaries(
                    run, "Play more canaries, so that the audit can show more"
                )


def _more_canaries(run: Run, text: str) -> Iterator[NextStep]:
    """Yield twice as many: in more seats if there are clients for them, else each less often.

    More rounds give more canaries only if each plays once: as a rule one plays as often as a
    client, so in a longer run each plays more often.
    """
    seats, sample = int(run.settings["canary-seats"]), int(run.settings["sample"])
    if 2 * seats < sample and sample + 2 * seats <= int(run.settings["clients"]):
        yield from _changed(run, f"{text}:", {"canary-seats": 2 * seats}, "more-canaries")
        return
    played = [f.threat_model.participations or 1 for f in run.findings if f.auditor in PLAYERS]
    often = int(run.settings["canary-repetitions"]) or max(played, default=1)
    if often > 1:
        less = f"{text}, each in half as many rounds; less is then shown about each:"
        yield from _changed(run, less, {"canary-repetitions": often // 2}, "more-canaries")
        return
    # Whoever takes part more often is guaranteed less, unless more noise is calibrated to it.
    grows = "" if run.settings.get("noise") in (None, "none") else "; ε grows with the rounds"
    if grows and run.settings.get("target-epsilon"):
        grows = "; the same guarantee then needs more noise"
    rounds = 2 * int(run.settings["rounds"])
    yield from _changed(run, f"{text}, in more rounds{grows}:", {"rounds": rounds}, "longer")


def _changed(run: Run, text: str, changes: Mapping[str, Any], suffix: str) -> Iterator[NextStep]:
    """Yield the step with its command, if the settings go together."""
    if REPLAY_OF in run.settings:
        return  # a replay trains nothing, so nothing of the training can change
    out = _beside(run, suffix)
    command = repeat_command(run, changes, out=out, called=program())
    if command is not None:
        yield NextStep(text, command, out)


def _compared(run: Run, found: Sequence[NextStep]) -> Iterator[NextStep]:
    """Yield the command that sets the run against the first step's."""
    first = next(((i, one.out) for i, one in enumerate(found, 1) if one.out), None)
    if first is not None:
        here, there = quote_path(_folder(run)), quote_path(first[1])
        text = f"Compare this run with that of step {first[0]}, in ./report.html:"
        yield NextStep(text, f"{program()} report {here} {there}")


def _beside(run: Run, suffix: str) -> str:
    return f"{_folder(run)}-{suffix}"


def _folder(run: Run) -> str:
    # Flower runs the app in a folder of its own, so only a whole path would do.
    return folder_to_type(run.folder, is_whole=run.spelling == "run-config")


_MUCH = 10.0  # an upper bound beyond which little is promised
_START: Mapping[str, float | str] = {
    "clip-norm": CLIP_NORM,
    "target-epsilon": TARGET,
}  # to begin a search with
_MORE_CLIENTS = "More clients per round{} leave less of each in the sum."


def advice(part: Row | Block, run: Run, verdict: Verdict) -> list[str]:
    """Return sentences, the most useful first.

    Args:
        part: What to act on.
        run: Its run; settings are named only where the run notes them.
        verdict: On the run.
    """
    said = _of_row(part, run, verdict) if isinstance(part, Row) else _of_block(part, run)
    return list(dict.fromkeys(said))


def _of_row(row: Row, run: Run, verdict: Verdict) -> Iterator[str]:
    if row.severity in LEAKS:
        yield from _against(row, run, verdict)
        yield from _see_more(row, run)
    elif row.severity == "bounded":
        yield from _see_more(row, run)
        yield from _about_guarantee(row, run)
    elif row.is_audited:
        yield from _see_more(row, run)
        yield "To bound what any such attacker could learn, add noise and account for it."
    else:
        yield from _noise_for(row.attacker, run, row.question)


def _of_block(block: Block, run: Run) -> Iterator[str]:
    if any(f.quantity == "certain separation" and f.value > 0 for f in block.findings):
        # Where the others send the same in all draws, more of them hide nothing.
        yield from _noise_for(block.attacker, run)
    elif block.bits:
        if _hides_among_many(block.findings, block.attacker, run):
            yield _MORE_CLIENTS.format("")
        yield "Noise on updates or on their sum leaves less of each in it."
    elif any(f.kind == "guarantee" for f in block.findings):
        yield "Check that the assumptions hold where you deploy, and audit the sum itself."
    elif any(f.quantity in OBSERVED for f in block.findings):
        yield (
            "This number is observed and bounds nothing. For a lower bound against a server "
            "that sees the sum, add likelihood-ratio to the auditors."
        )
    else:
        yield "Give the audit more data: more clients, rounds, trials or canaries."


def _against(row: Row, run: Run, verdict: Verdict) -> Iterator[str]:
    """Yield what would make the leak smaller."""
    if row.attacker.sees == "all models":
        yield from (step.text for step in fewer_releases(verdict.rows))
    if row.question.unit == "record" and _is_filled(row, run):
        yield f"Raise the floor of the clients' noise{_now(run, 'wfna-floor')}."
        yield "Fewer rounds, or more clients in each, also leave less of a record in the sums."
        return
    yield from _noise_for(row.attacker, run, row.question)
    promised = [] if row.at_most is None else [row.at_most]
    if _hides_among_many([*row.findings, *promised], row.attacker, run):
        yield _MORE_CLIENTS.format(_now(run, "sample"))


def _is_filled(row: Row, run: Run) -> bool:
    """Whether clients fill up their noise, so that there is a floor to raise."""
    is_played = any(f.auditor == "record-likelihood-ratio" for f in row.findings)
    return run.settings.get("noise") in RECORD_NOISES or is_played


def _hides_among_many(findings: Sequence[Finding], model: ThreatModel, run: Run) -> bool:
    """Whether more clients hide one another.

    Where one known data set is partitioned among all clients, the others' updates make up for each
    other, and the more of the clients are in the sum, the less it moves without the target. Noise
    that is set against the clip norm of one client, by the server or shared by all clients, is the
    same for any number of them.
    """
    noises = {f.facts.get("noise") for f in findings if f.kind == "guarantee"}
    noises.add(run.settings.get("noise"))
    is_noised = "distributed" in noises or ("central" in noises and model.observer == "outsider")
    games = {f.threat_model.game for f in findings}
    is_sum = model.sees not in (None, "updates")  # a single update has nobody to hide among
    return is_sum and "partition" not in games and not is_noised


def _noise_for(attacker: ThreatModel, run: Run, question: Question | None = None) -> Iterator[str]:
    """Yield the noise that helps against this observer, for what it asks."""
    noise = run.settings.get("noise")
    inside = attacker.observer != "outsider"
    if noise in ("distributed", "local") or (noise == "central" and not inside):
        # A bound from the sum of one round, as the likelihood ratio's, is the same in fewer rounds.
        fewer = "" if attacker.participations is None else " or fewer rounds"
        name = "target-epsilon" if run.settings.get("target-epsilon") else "noise-multiplier"
        yield f"More noise{_now(run, name)}{fewer}."
    elif noise == "central":
        yield (
            "Noise that the server adds does not protect against the server: let the clients add "
            f"it ({_set(run, 'distributed')} under secure aggregation, or local)."
        )
    elif noise in RECORD_NOISES:
        yield (
            f"Noise {noise} protects single records; to hide a client, clip whole updates and add "
            f"noise to them ({_set(run, 'distributed')})."
        )
    elif attacker.sees == "updates":
        own = f": {_started(run, 'local', question)}" if noise is not None else ""
        yield (
            "Hide single updates by secure aggregation, or let each client clip and add enough "
            f"noise itself{own}."
        )
    elif inside:
        yield "Let clients clip and add noise before the sum" + (
            f": {_started(run, 'distributed', question)}."
            if noise is not None
            else ": secure aggregation hides single updates, not what their sum gives away."
        )
    else:
        yield "Clip updates and add noise before a mean is released" + (
            f": {_started(run, 'central', question)}. The report then also has an upper bound."
            if noise is not None
            else " (DP-FedAvg), and account for it."
        )
    if run.settings.get("secagg") == "off" and inside:
        yield "Turn secure aggregation on: the server sees every single update now."


def _see_more(row: Row, run: Run) -> Iterator[str]:
    """Yield how the audit could show more, where it has reached its limit or nothing."""
    for f in _at_their_limit(row):
        if f.cap == 0 and f.auditor in PLAYERS:
            fewer = f"a smaller δ{_now(run, 'delta')} or fewer canaries{_now(run, 'canary-seats')}"
            yield f"To let the audit show anything, use {fewer}."
            continue
        if f.auditor == "membership":
            yield f"A stronger attack has shadow models{_now(run, 'membership-shadows')}."
            continue
        what, setting = "trials", "lrt-trials" if f.auditor == "likelihood-ratio" else ""
        if f.auditor in PLAYERS:
            what, setting = "canaries", "canary-seats"
        hint = _now(run, setting) if setting else ""
        yield f"To let the audit show more, give it more {what}{hint}."


def _about_guarantee(row: Row, run: Run) -> Iterator[str]:
    assert row.at_most is not None
    yield f"A guarantee bounds this attacker: {claim(row.at_most)}{terms(row.at_most)}."
    if row.high > _MUCH:
        yield "An upper bound this large promises little. " + " ".join(
            _noise_for(row.attacker, run, row.question)
        )
    yield "It is valid as long as the assumptions in the table hold, and only for this observer."


def _now(run: Run, name: str) -> str:
    """Return what the maker of a run calls a setting, in brackets, with its value if noted."""
    value = run.settings.get(name)
    if value is None:
        return aside(name, run.spelling) if run.spelling in ("python", "audit") else ""
    return aside(name, run.spelling, f"{value:g}" if isinstance(value, float) else str(value))


def _started(run: Run, noise: str, question: Question | None) -> str:
    """Return the settings of a noise to begin with, and its effect: those of the next steps.

    Where these have rehearsed a noise that helps here as well, that one is named.
    """
    is_pair = question is not None and question.adjacency == "replace"
    change = noise_changes(run) or {}
    heard = next((one for one in run.rehearsals if dict(one.settings) == change), None)
    covers = noise in (change.get("noise"), "central")  # any noise helps against outsiders
    if heard is not None and covers and (change["target-adjacency"] == "replace" or not is_pair):
        named = {name: change[name] for name in (*_START, "target-adjacency")}
        return f"{_set(run, str(change['noise']), named)} ({_effect(run, heard)})"
    pair = {"target-adjacency": "replace"} if is_pair else {}
    return f"{_set(run, noise, {**_START, **pair})} (accuracy may drop a lot; not rehearsed)"


def _set(run: Run, noise: str, more: Mapping[str, float | str] | None = None) -> str:
    """Return a noise, with further settings, as the maker of the run would write them."""
    return assignments(run.spelling, {"noise": noise, **(more or {})})
