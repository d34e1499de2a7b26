"""What to do next about a run: at most three steps, with commands that can be copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leakmeter.auditors.finding import ThreatModel
from leakmeter.auditors.verdict import steps as general
from leakmeter.auditors.verdict.order import Question, attacker
from leakmeter.auditors.verdict.steps import LEAKS, MAX_STEPS, TARGET, Step
from leakmeter.auditors.verdict.verdict import Row, Verdict, is_distorted, is_shown
from leakmeter.auditors.wording import counted, is_certain, number, share
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.settings import AUTO, PLAYERS
from leakmeter.fl_app.config.tables import NO_NOISE, NOISES, RECORD_NOISES
from leakmeter.fl_app.report.judge.command import again, program, quoted, resumed, typed
from leakmeter.fl_app.report.judge.of_run import verdict_of
from leakmeter.fl_app.report.read import LAUNCH, REPLAY_OF, Rehearsal, Run

CLIP_NORM = AUTO  # like the target, where a search for better values begins
_DROWNED = 10.0  # times the longest mean update: noise that no learning rate makes up for
_RUINED = 0.1  # of accuracy: a model that loses more is not worth its guarantee
_SEARCHED = "2..32"  # targets of a sweep


def next_steps(run: Run) -> list[Step]:
    """Return what to do next, the most useful first; words alone for another project's run."""
    verdict = verdict_of(run)
    if not run.settings:
        cohorts = [one.num_clients for one in run.rounds]
        return general.steps(verdict, cohorts, run.spelling, parameters=run.parameters)
    # Two reasons may lead to one command: the first of them is enough.
    by_deed = {one.command or one.text: one for one in reversed(list(_steps(run, verdict)))}
    found = list(reversed(by_deed.values()))[:MAX_STEPS]
    compared = [] if is_distorted(run.warnings) else _compared(run, found)
    return [*found, *compared][:MAX_STEPS]


def _steps(run: Run, verdict: Verdict) -> Iterator[Step]:
    rows = verdict.rows
    if not (run.is_finished or run.is_running):
        yield Step("Finish the run:", resumed(run, program()))
    yield from _repairs(run)
    if is_distorted(run.warnings):
        return  # what else it shows is not that of a sound run
    yield from map(general.corrected, verdict.false_claims[:1])
    if run.settings.get("secagg") == "off" and run.settings.get("noise") in ("none", "central"):
        text = "Turn on secure aggregation; now the server sees every single update:"
        yield from _changed(run, text, {"secagg": "on", **_behind_masks(run)}, "secagg")
    found = _shown(verdict)
    if found:
        yield from _noise(run, verdict)
        yield from general.fewer_releases(rows)
    yield from _closer_look(run, rows)
    if not found and _is_noise_wanted(verdict):
        yield from _noise(run, verdict)


def _behind_masks(run: Run) -> dict[str, str]:
    """Return the auditors without that of single updates, which sees nothing behind masks."""
    names = [name.strip() for name in str(run.settings.get("auditors", "")).split(",")]
    if "single-update" not in names:
        return {}
    left = [name for name in names if name != "single-update"]
    return {"auditors": ",".join(left or ["one-shot"])}


def _repairs(run: Run) -> Iterator[Step]:
    """Yield what cures a damaged run."""
    kinds = {warning.kind for warning in run.warnings}
    asked = {"dropouts"} if run.settings.get("dropout") else set()  # they are simulated
    yield from general.failed_clients(kinds - asked)
    rate = run.settings.get("lr")
    if kinds & general.STEPPED and (times := _noise_on_mean(run)) > _DROWNED:
        text = f"Too much noise: it is {number(times, 2)} times as long as a mean update may be:"
        less: dict[str, Any] = {"target-epsilon": TARGET, "target-adjacency": "zero-out"}
        if not run.settings.get("target-epsilon"):
            less = {"noise-multiplier": float(f"{run.settings['noise-multiplier'] / times:.1g}")}
        yield from _changed(run, text, less, "less-noise")
    elif kinds & general.STEPPED and isinstance(rate, float):
        lower = min(float(f"{rate / 3:.2g}"), Config.lr)
        yield from _changed(run, f"{general.SLOWER}:", {"lr": lower}, "lower-lr")
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


def _noise(run: Run, verdict: Verdict) -> Iterator[Step]:
    """Yield the noise that helps against the attackers of a run, with what it does to the model."""
    asked = _asked(verdict)
    if run.settings.get("noise") in RECORD_NOISES:
        floor = run.settings.get("wfna-floor")
        if isinstance(floor, float) and any(question.unit == "record" for _, question in asked):
            text = "Raise the floor of the clients' noise:"
            yield from _changed(run, text, {"wfna-floor": 4 * floor}, "more-noise")
        return
    change = _noise_for(run, asked, verdict.rows)
    fits, target = str(change["noise"]), float(change["target-epsilon"])
    promise = f"ε ≤ {target:g} against {_who(fits)} ({_WORLDS[change['target-adjacency']]})"
    heard = next((one for one in run.rehearsals if dict(one.settings) == change), None)
    if heard is not None and is_ruined(heard):
        yield from _searched(run, promise, change, heard)
        return
    effect = "accuracy will drop" if heard is None else _effect(run, heard)
    text = f"Add noise: guarantee {promise}; {effect}:"
    yield from _changed(run, text, change, f"{fits}-{target:g}")


def noise_changes(run: Run) -> dict[str, Any] | None:
    """Return the settings of the noise that would be advised, to rehearse it; None if none is."""
    is_ours = run.settings and run.settings.get("noise") not in RECORD_NOISES
    if not is_ours or REPLAY_OF in run.settings or is_distorted(run.warnings):
        return None
    verdict = verdict_of(run)
    if not _is_noise_wanted(verdict):
        return None
    return _noise_for(run, _asked(verdict), verdict.rows)


def is_ruined(rehearsal: Rehearsal) -> bool:
    """Whether noise takes more of the accuracy than a guarantee is worth."""
    before = rehearsal.without_noise
    return before is not None and before - rehearsal.accuracy > _RUINED


def _is_noise_wanted(verdict: Verdict) -> bool:
    """Whether something is shown, or nothing is guaranteed at all."""
    return bool(_shown(verdict)) or all(math.isinf(row.high) for row in verdict.rows)


def _asked(verdict: Verdict) -> list[tuple[ThreatModel, Question]]:
    """Return against whom noise is wanted: those who are shown something, otherwise everybody."""
    return _shown(verdict) or [(row.attacker, row.question) for row in verdict.rows]


def _shown(verdict: Verdict) -> list[tuple[ThreatModel, Question]]:
    """Return the attackers who are shown something, the worst first."""
    found = [(row.attacker, row.question) for row in verdict.rows if row.severity in LEAKS]
    tests = (test for test in verdict.tests if is_shown(test))
    # A test is no ε: noise that hides which of two updates was sent hides what it found.
    return found + [(attacker(test), Question(test.unit, "replace")) for test in tests]


def _noise_for(
    run: Run, asked: Sequence[tuple[ThreatModel, Question]], rows: Sequence[Row]
) -> dict[str, Any]:
    """Return the settings of noise that helps against these attackers."""
    settings = run.settings
    faces_server = any(model.observer != "outsider" for model, _ in asked)
    fits = _kind(settings, faces_server=faces_server)
    # The target is about the worst of the rows that this noise cures.
    cured = [
        question for model, question in asked if (model.observer != "outsider") == faces_server
    ]
    has_pairs = any(question.adjacency == "replace" for question in cured[:1])
    has_norm = bool(settings.get("clip-norm")) and settings.get("clipping") == "fixed"
    return {
        "noise": fits,
        "clip-norm": settings["clip-norm"] if has_norm else CLIP_NORM,
        "clipping": "fixed" if has_norm else "measured",
        "target-epsilon": _target(rows) if settings.get("noise") == fits else TARGET,
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
    before = "" if heard.without_noise is None else f"{share(heard.without_noise)} → "
    return (
        f"accuracy {before}{share(heard.accuracy)} in a rehearsal{part} (this run without audits)"
    )


def _searched(
    run: Run, promise: str, change: Mapping[str, Any], heard: Rehearsal
) -> Iterator[Step]:
    """Yield that noise would ruin the model, and the sweep that finds a setting with both."""
    ratio = 1 / heard.signal_to_noise if heard.signal_to_noise else math.inf
    said = (
        f"Noise for {promise} would ruin this model: {_effect(run, heard)}. "
        f"{run.settings['sample']} clients per round are too few: the noise is {number(ratio, 2)} "
        "times their mean update."
    )
    if not heard.instead:
        yield Step(f"{said} More clients, a smaller model, fewer rounds or a public start help.")
        return
    settings = {**change, **heard.instead, "target-epsilon": 0.0, "target-adjacency": "zero-out"}
    ours = {k: v for k, v in run.config.items() if k != LAUNCH}  # a sweep has a command of its own
    called, out = f"{program()} sweep", _beside(run, "sweep")
    command = again(replace(run, config=ours), settings, out=out, called=called)
    if command is not None:
        asked = f"--target-epsilon {_SEARCHED} --target-adjacency {change['target-adjacency']}"
        words = " ".join(f"--{name} {value}" for name, value in heard.instead.items())
        yield Step(f"{said} See what ε costs with {words}:", f"{command} {asked}")


def _who(noise: str) -> str:
    """Return against whom a noise helps."""
    kind = NOISES.get(noise, NO_NOISE)
    if kind.added_by != "clients":
        return "outsiders"
    return "the server too" if kind.needs_sums else "everybody"


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


def _target(rows: Sequence[Row]) -> float:
    """Return half of the smallest ε that is guaranteed now against anybody, in one digit.

    At most the usual target: half of a guarantee that means nothing means nothing either.
    """
    return min([TARGET, *(float(f"{row.high / 2:.1g}") for row in rows)])


def _closer_look(run: Run, rows: Sequence[Row]) -> Iterator[Step]:
    """Yield how the audit could show more, where it has reached its limit or shown nothing."""
    for row in rows:
        for f in row.findings:
            is_bound = f.kind == "lower_bound" and not f.is_conditional
            if not is_bound or not (f.saturated or f.value == 0) or is_certain(f):
                continue
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


def _more_canaries(run: Run, text: str) -> Iterator[Step]:
    """Yield twice as many, in more seats if there are clients for them, else in more rounds."""
    seats, sample = int(run.settings["canary-seats"]), int(run.settings["sample"])
    if 2 * seats < sample and sample + 2 * seats <= int(run.settings["clients"]):
        yield from _changed(run, f"{text}:", {"canary-seats": 2 * seats}, "more-canaries")
        return
    # Whoever takes part more often is guaranteed less, unless more noise is calibrated to it.
    grows = "" if run.settings.get("noise") in (None, "none") else "; ε grows with the rounds"
    if grows and run.settings.get("target-epsilon"):
        grows = "; the same guarantee then needs more noise"
    rounds = 2 * int(run.settings["rounds"])
    yield from _changed(run, f"{text}, in more rounds{grows}:", {"rounds": rounds}, "longer")


def _changed(run: Run, text: str, changes: Mapping[str, Any], suffix: str) -> Iterator[Step]:
    """Yield the step with its command, if the settings go together."""
    if REPLAY_OF in run.settings:
        return  # a replay trains nothing, so nothing of the training can change
    out = _beside(run, suffix)
    command = again(run, changes, out=out, called=program())
    if command is not None:
        yield Step(text, command, out)


def _compared(run: Run, found: Sequence[Step]) -> Iterator[Step]:
    """Yield the command that sets the run against the first step's."""
    first = next((one.out for one in found if one.out), None)
    if first is not None:
        here, there = quoted(_folder(run)), quoted(first)
        yield Step("Compare both runs:", f"{program()} report {here} {there}")


def _beside(run: Run, suffix: str) -> str:
    return f"{_folder(run)}-{suffix}"


def _folder(run: Run) -> str:
    # Flower runs the app in a folder of its own, so only a whole path would do.
    return typed(run.folder, is_whole=run.spelling == "run-config")
