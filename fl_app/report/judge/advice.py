"""What to do about one row of a verdict: what helps against this attacker, and how to see more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.verdict.steps import LEAKS, TARGET, fewer_releases
from leakmeter.auditors.verdict.verdict import Block, Row, Verdict
from leakmeter.auditors.wording import OBSERVED, aside, assigned, claim, is_certain, terms
from leakmeter.fl_app.config.settings import PLAYERS
from leakmeter.fl_app.config.tables import RECORD_NOISES
from leakmeter.fl_app.report.judge.next_steps import CLIP_NORM
from leakmeter.fl_app.report.read import Run

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
        yield from _noise_for(row.attacker, run)


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
    yield from _noise_for(row.attacker, run)
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


def _noise_for(attacker: ThreatModel, run: Run) -> Iterator[str]:
    """Yield the noise that helps against this observer."""
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
        own = f": {_set(run, 'local', _START)}" if noise is not None else ""
        yield (
            "Hide single updates by secure aggregation, or let each client clip and add enough "
            f"noise itself{own}."
        )
    elif inside:
        yield "Let clients clip and add noise before the sum" + (
            f": {_set(run, 'distributed', _START)}."
            if noise is not None
            else ": secure aggregation hides single updates, not what their sum gives away."
        )
    else:
        yield "Clip updates and add noise to each mean before it is released" + (
            f": {_set(run, 'central', _START)}. The report then also has an upper bound."
            if noise is not None
            else " (DP-FedAvg), and account for it."
        )
    if run.settings.get("secagg") == "off" and inside:
        yield "Turn secure aggregation on: the server sees every single update now."


def _see_more(row: Row, run: Run) -> Iterator[str]:
    """Yield how the audit could show more, where it has reached its limit or nothing."""
    for f in row.findings:
        is_bound = f.kind == "lower_bound" and not f.is_conditional
        if not is_bound or not (f.saturated or f.value == 0) or is_certain(f):
            continue
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
            _noise_for(row.attacker, run)
        )
    yield "It is valid as long as the assumptions in the table hold, and only for this observer."


def _now(run: Run, name: str) -> str:
    """Return what the maker of a run calls a setting, in brackets, with its value if noted."""
    value = run.settings.get(name)
    if value is None:
        return aside(name, run.spelling) if run.spelling in ("python", "audit") else ""
    return aside(name, run.spelling, f"{value:g}" if isinstance(value, float) else str(value))


def _set(run: Run, noise: str, more: Mapping[str, float | str] | None = None) -> str:
    """Return a noise, with further settings, as the maker of the run would write them."""
    return assigned(run.spelling, {"noise": noise, **(more or {})})
