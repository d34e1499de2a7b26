"""What to do next about a run: at most three steps, with commands that can be copied."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leakmeter.auditors.finding import ThreatModel, Unit
from leakmeter.auditors.verdict import steps as general
from leakmeter.auditors.verdict.order import attacker
from leakmeter.auditors.verdict.steps import LEAKS, MAX_STEPS, Step
from leakmeter.auditors.verdict.verdict import Row, Verdict, is_distorted, is_shown
from leakmeter.auditors.wording import is_certain, number
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.settings import PLAYERS
from leakmeter.fl_app.config.tables import NO_NOISE, NOISES, RECORD_NOISES
from leakmeter.fl_app.report.judge.command import again, program, resumed
from leakmeter.fl_app.report.judge.of_run import verdict_of
from leakmeter.fl_app.report.read import REPLAY_OF, Run

# A guarantee that is often asked for, and a clip norm to start from: both are where a search for
# better values begins, and the command says so by naming them.
TARGET, CLIP_NORM = 8.0, 1.0


def next_steps(run: Run, *, is_public: bool = False) -> list[Step]:
    """Return what to do next, the most useful first; words alone for another project's run.

    Args:
        run: The run.
        is_public: Whether others may read it: then only the last part of the run's path is named.
    """
    if is_public:
        run = replace(run, folder=Path(run.folder.name))
    verdict = verdict_of(run)
    if not run.settings:
        return general.steps(verdict, [one.num_clients for one in run.rounds], run.spelling)
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
    leaks = [row for row in rows if row.severity in LEAKS]
    found = [(row.attacker, row.question.unit) for row in leaks]
    found += [(attacker(test), test.unit) for test in verdict.tests if is_shown(test)]
    if found:
        yield from _noise(run, found, rows)
        yield from general.fewer_releases(rows)
        yield from _crowd(run, leaks)
    yield from _closer_look(run, rows)
    if not found and all(math.isinf(row.high) for row in rows):
        yield from _noise(run, [(row.attacker, row.question.unit) for row in rows], rows)


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
    if kinds & general.STEPPED and isinstance(rate, float):
        lower = min(float(f"{rate / 3:.2g}"), Config.lr)
        yield from _changed(run, f"{general.SLOWER}:", {"lr": lower}, "lower-lr")
    if "few-canaries" in kinds:
        twice = 2 * int(run.settings["rounds"])
        yield from _changed(run, "Play more canaries:", {"rounds": twice}, "longer")


def _noise(
    run: Run, leaks: Sequence[tuple[ThreatModel, Unit]], rows: Sequence[Row]
) -> Iterator[Step]:
    """Yield the noise that helps against these attackers, with an ε to guarantee."""
    settings = run.settings
    noise = settings.get("noise")
    if noise in RECORD_NOISES:
        floor = settings.get("wfna-floor")
        if isinstance(floor, float) and any(unit == "record" for _, unit in leaks):
            text = "Raise the floor of the clients' noise:"
            yield from _changed(run, text, {"wfna-floor": 4 * floor}, "more-noise")
        return
    faces_server = any(model.observer != "outsider" for model, _ in leaks)
    fits = _kind(settings, faces_server=faces_server)
    clip = settings.get("clip-norm") or CLIP_NORM
    target = _target(rows) if noise == fits else TARGET
    change = {
        "noise": fits,
        "clip-norm": clip,
        "clipping": "fixed",
        "target-epsilon": target,
        "noise-multiplier": 1.0,
        **_fitting_distribution(settings, fits),
    }
    text = f"Add noise: guarantee ε ≤ {target:g} against {_who(fits)}; accuracy will drop:"
    yield from _changed(run, text, change, f"{fits}-{target:g}")


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
    """Return half of the smallest ε that is guaranteed now against anybody, in one digit."""
    finite = [row.high for row in rows if math.isfinite(row.high)]
    return float(f"{min(finite) / 2:.1g}") if finite else TARGET


def _crowd(run: Run, leaks: Sequence[Row]) -> Iterator[Step]:
    """Yield more clients per round, where they hide one another."""
    sample, clients = int(run.settings["sample"]), int(run.settings["clients"])
    games = {f.threat_model.game for row in leaks for f in row.findings if f.observer == "server"}
    hidden = games - {None, "partition"}
    if not hidden or run.settings.get("noise") not in (None, "none"):
        return
    text = f"Hide each client among more ({sample} per round now):"
    change = {"sample": 2 * sample, "clients": max(clients, 2 * (clients - sample) + 2 * sample)}
    yield from _changed(run, text, change, "more-clients")


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
                rounds = 2 * int(run.settings["rounds"])
                text = "Play more canaries, so that the audit can show more:"
                yield from _changed(run, text, {"rounds": rounds}, "longer")


def _changed(run: Run, text: str, changes: Mapping[str, Any], suffix: str) -> Iterator[Step]:
    """Yield the step with its command, if the settings go together."""
    if REPLAY_OF in run.settings:
        return  # a replay trains nothing, so nothing of the training can change
    out = _beside(run, suffix)
    if run.spelling == "run-config" and not Path(out).is_absolute():
        out = ""  # Flower runs the app in a folder of its own
    command = again(run, changes, out=out, called=program())
    if command is not None:
        yield Step(text, command, out)


def _compared(run: Run, found: Sequence[Step]) -> Iterator[Step]:
    """Yield the command that sets the run against the first step's."""
    first = next((one.out for one in found if one.out), None)
    if first is not None:
        here, there = shlex.quote(_short(run)), shlex.quote(first)
        yield Step("Compare both runs:", f"{program()} report {here} {there}")


def _beside(run: Run, suffix: str) -> str:
    return f"{_short(run)}-{suffix}"


def _short(run: Run) -> str:
    """Return the folder, from here if it is below."""
    here = Path.cwd()
    return str(run.folder.relative_to(here) if run.folder.is_relative_to(here) else run.folder)
