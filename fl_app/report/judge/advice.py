"""What to do about a verdict: what helps against this attacker, and how to see more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.judge.verdict import Verdict
from leakmeter.auditors.wording import OBSERVED, claim, is_certain, is_epsilon, signed, terms
from leakmeter.fl_app.config.tables import RECORD_NOISES
from leakmeter.fl_app.report.judge.next_steps import CLIP_NORM, TARGET
from leakmeter.fl_app.report.read import Run

_CLEARLY = 0.5  # a difference of two ε that is worth an advice
_MUCH = 10.0  # an upper bound beyond which little is promised
_START = f"--clip-norm {CLIP_NORM:g} --target-epsilon {TARGET:g}"  # to begin a search with
_MORE_CLIENTS = "More clients per round{} leave less of each in the sum."


def advice(verdict: Verdict, run: Run, others: Sequence[Verdict]) -> list[str]:
    """Return sentences, the most useful first.

    Args:
        verdict: The one to act on.
        run: Its run; settings are named only where the run notes them.
        others: All verdicts of the run.
    """
    return list(dict.fromkeys(_sentences(verdict, run, others)))


def _sentences(verdict: Verdict, run: Run, others: Sequence[Verdict]) -> Iterator[str]:
    match verdict.level:
        case "leak" | "conditional" | "hint":
            yield from _against(verdict, run, others)
            yield from _see_more(verdict, run)
        case "seen":  # where the others send the same in all draws, more of them hide nothing
            yield from _noise_for(verdict.lead, run)
        case "none" | "unable":
            yield from _see_more(verdict, run)
            yield from _beside(verdict)
        case "model":
            if _hides_among_many(verdict, run):
                yield _MORE_CLIENTS.format("")
            yield "Noise on updates or on their sum leaves less of each in it."
        case "bounded":
            yield from _about_guarantee(verdict.lead, run)
        case "count":
            yield "Check that the assumptions hold where you deploy, and audit the sum itself."
        case "open":
            yield from _noise_for(verdict.lead, run)
        case "silent" if verdict.lead.quantity in OBSERVED:
            yield (
                "This number is observed and bounds nothing. For a lower bound against a server "
                "that sees the sum, add likelihood-ratio to the auditors."
            )
        case "silent":
            yield "Give the audit more data: more clients, rounds, trials or canaries."


def _against(verdict: Verdict, run: Run, others: Sequence[Verdict]) -> Iterator[str]:
    """Yield what would make the leak smaller."""
    lead = verdict.lead
    if lead.threat_model.sees == "all models":
        yield from _fewer_releases(lead, others)
    if lead.unit == "record" and _is_filled(lead, run):
        yield f"Raise the floor of the clients' noise{_now(run, 'wfna-floor')}."
        yield "Fewer rounds, or more clients in each, also leave less of a record in the sums."
        return
    yield from _noise_for(lead, run)
    if _hides_among_many(verdict, run):
        yield _MORE_CLIENTS.format(_now(run, "sample"))


def _is_filled(lead: Finding, run: Run) -> bool:
    """Whether clients fill up their noise, so that there is a floor to raise."""
    return run.settings.get("noise") in RECORD_NOISES or lead.auditor == "record-likelihood-ratio"


def _hides_among_many(verdict: Verdict, run: Run) -> bool:
    """Whether more clients hide one another.

    Where one known data set is partitioned among all clients, the others' updates make up for each
    other, and the more of the clients are in the sum, the less it moves without the target. Noise
    that is set against the clip norm of one client, by the server or shared by all clients, is the
    same for any number of them.
    """
    model = verdict.lead.threat_model
    noises = [run.settings.get("noise"), *(g.facts.get("noise") for g in verdict.group.guarantees)]
    is_noised = "distributed" in noises or ("central" in noises and model.observer == "outsider")
    is_known = model.sees is not None  # else the game may be the one above
    return is_known and model.game != "partition" and not is_noised


def _fewer_releases(lead: Finding, others: Sequence[Verdict]) -> Iterator[str]:
    """Yield the advice not to release every model, if the final one clearly shows less."""
    for other in others:
        final = other.lead
        same = all(
            getattr(final, name) == getattr(lead, name)
            for name in ("adjacency", "unit", "kind", "quantity", "delta", "is_conditional")
        )
        # Beyond certainty a smaller number means nothing; close ones may differ by chance.
        is_less = not is_certain(final) and lead.value - final.value > _CLEARLY
        if final.threat_model.sees == "final model" and same and is_less:
            yield (
                "Consider releasing only the final model: this audit shows more in the models of "
                f"all rounds ({signed(lead)}) than in the final one ({signed(final)}); a smaller "
                "lower bound proves nothing about the final model."
            )


def _noise_for(lead: Finding, run: Run) -> Iterator[str]:
    """Yield the noise that helps against this observer."""
    noise = run.settings.get("noise")
    inside = lead.observer != "outsider"
    if noise in ("distributed", "local") or (noise == "central" and not inside):
        # A bound from the sum of one round, as the likelihood ratio's, is the same in fewer rounds.
        fewer = "" if lead.threat_model.participations is None else " or fewer rounds"
        name = "target-epsilon" if run.settings.get("target-epsilon") else "noise-multiplier"
        yield f"More noise{_now(run, name)}{fewer}."
    elif noise == "central":
        yield (
            "Noise that the server adds does not protect against the server: let the clients add "
            "it (--noise distributed under secure aggregation, or local)."
        )
    elif noise in RECORD_NOISES:
        yield (
            f"Noise {noise} protects single records; to hide a client, clip whole updates and add "
            "noise to them (--noise distributed)."
        )
    elif inside:
        yield "Let clients clip and add noise before the sum" + (
            f": --noise distributed {_START}."
            if noise is not None
            else ": secure aggregation hides single updates, not what their sum gives away."
        )
    else:
        yield "Clip updates and add noise to each mean before it is released" + (
            f": --noise central {_START}. The report then also has an upper bound."
            if noise is not None
            else " (DP-FedAvg), and account for it."
        )
    if run.settings.get("secagg") == "off" and inside:
        yield "Turn secure aggregation on: the server sees every single update now."


def _see_more(verdict: Verdict, run: Run) -> Iterator[str]:
    """Yield how the audit could show more, where it has reached its limit or nothing."""
    for f in verdict.group.leads:
        if f.kind != "lower_bound" or not (f.saturated or f.value == 0):
            continue
        if f.cap == 0 and f.auditor == "one-shot":
            fewer = f"a smaller δ{_now(run, 'delta')} or fewer canaries{_now(run, 'canary-seats')}"
            yield f"To let the audit show anything, use {fewer}."
            continue
        if f.auditor == "membership":
            yield f"A stronger attack has shadow models{_now(run, 'membership-shadows')}."
            continue
        setting = {"likelihood-ratio": "lrt-trials", "one-shot": "canary-seats"}.get(f.auditor)
        what = {"one-shot": "canaries"}.get(f.auditor, "trials")
        hint = _now(run, setting) if setting else ""
        yield f"To let the audit show more, give it more {what}{hint}."


def _beside(verdict: Verdict) -> Iterator[str]:
    """Yield the upper bound for the same attacker, or how to get one."""
    upper = verdict.group.above(verdict.lead)
    if upper is not None and math.isfinite(upper.value):
        yield f"A guarantee bounds this attacker from above: {claim(upper)}{terms(upper)}."
    else:
        yield "To bound what any such attacker could learn, add noise and account for it."


def _about_guarantee(lead: Finding, run: Run) -> Iterator[str]:
    if is_epsilon(lead) and lead.value > _MUCH:
        yield "An upper bound this large promises little. " + " ".join(_noise_for(lead, run))
    yield "It is valid as long as the assumptions in the table hold, and only for this observer."


def _now(run: Run, setting: str) -> str:
    """Return the setting and its present value in brackets, if the run has noted it."""
    value = run.settings.get(setting)
    shown = f"{value:g}" if isinstance(value, float) else value
    return "" if value is None else f" (--{setting}, now {shown})"
