"""What to do about a verdict: what helps against this adversary, and how to see more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from leakmeter.auditors.finding import Finding
from leakmeter.auditors.wording import claim, is_epsilon, number, terms
from leakmeter.fl_app.report.judge.adversary import covers
from leakmeter.fl_app.report.judge.verdict import Verdict, leads
from leakmeter.fl_app.report.read.run import Run

_MUCH = 10.0  # an upper bound beyond which little is promised


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
        case "leak" | "hint":
            yield from _against(verdict, run, others)
            yield from _see_more(verdict, run)
        case "none":
            yield from _see_more(verdict, run)
            yield from _beside(verdict, run)
        case "model":
            if _hides_among_many(verdict.lead):
                yield "More clients in a round leave less of each in the sum."
            yield "Noise on updates or on their sum leaves less of each in it."
        case "bounded":
            yield from _about_guarantee(verdict.lead, run)
        case "open":
            yield from _noise_for(verdict.lead, run)
        case "silent":
            yield "Give the audit more to go on: more clients, rounds, trials or canaries."


def _against(verdict: Verdict, run: Run, others: Sequence[Verdict]) -> Iterator[str]:
    """Yield what would make the leak smaller."""
    lead = verdict.lead
    if lead.observer == "outsider" and "every round" in lead.threat_model:
        yield from _fewer_releases(lead, others)
    if lead.unit == "record" and _is_filled(lead, run):
        yield f"Raise the floor of the noise that clients fill up{_now(run, 'wfna-floor')}."
        yield "Fewer rounds, or more clients in each, also leave less of a record in the sums."
        return
    yield from _noise_for(lead, run)
    if _hides_among_many(lead):
        yield f"More clients in a round{_now(run, 'sample')} leave less of each in the sum."


def _is_filled(lead: Finding, run: Run) -> bool:
    """Whether clients fill up their noise, so that there is a floor to raise."""
    return run.settings.get("noise") == "wfna" or lead.auditor == "record-likelihood-ratio"


def _hides_among_many(lead: Finding) -> bool:
    """Whether more clients hide one another.

    Where one known data set is dealt to all clients, the others' updates make up for each other,
    and the more of the clients are in the sum, the less it moves without the target.
    """
    return "(game partition" not in lead.threat_model


def _fewer_releases(lead: Finding, others: Sequence[Verdict]) -> Iterator[str]:
    """Yield the advice not to release every model, if the final one shows less."""
    for other in others:
        final = other.lead
        same = (final.adjacency, final.unit, final.kind) == (lead.adjacency, lead.unit, lead.kind)
        if "final model" in final.threat_model and same and final.value < lead.value:
            yield (
                "Do not release the model of every round: in this audit the final model "
                f"alone shows {number(final.value, 3, final.kind)} instead of "
                f"{number(lead.value, 3, lead.kind)}."
            )


def _noise_for(lead: Finding, run: Run) -> Iterator[str]:
    """Yield the noise that helps against this observer."""
    noise = run.settings.get("noise")
    inside = lead.observer != "outsider"
    if noise in ("distributed", "local") or (noise == "central" and not inside):
        # A bound from the sum of one round, as the likelihood ratio's, is the same in fewer rounds.
        fewer = "" if "sum of a round" in lead.threat_model else " or fewer rounds"
        yield f"More noise{_now(run, 'noise-multiplier')}{fewer}."
    elif noise == "central":
        yield (
            "Noise that the server adds does not protect against the server: let the clients add "
            "it (--noise distributed under secure aggregation, or local)."
        )
    elif noise == "wfna":
        yield (
            "Water filling protects single records; to hide a client, clip whole updates and add "
            "noise to them (--noise distributed)."
        )
    elif inside:
        yield "Let clients clip and add noise before the sum" + (
            ": --noise distributed --clip-norm C --noise-multiplier Z."
            if noise is not None
            else ": secure aggregation hides single updates, not what their sum gives away."
        )
    else:
        yield "Clip updates and add noise to each mean before it is released" + (
            ": --noise central --clip-norm C --noise-multiplier Z. The report then has an upper "
            "bound beside this."
            if noise is not None
            else " (DP-FedAvg), and account for it."
        )
    if run.settings.get("secagg") == "off" and inside:
        yield "Turn secure aggregation on: the server sees every single update now."


def _see_more(verdict: Verdict, run: Run) -> Iterator[str]:
    """Yield how the audit could show more, where it has reached its limit or nothing."""
    for f in leads(verdict.findings):
        if f.kind != "lower_bound" or not (f.saturated or f.value == 0):
            continue
        setting = {"likelihood-ratio": "lrt-trials", "one-shot": "canary-seats"}.get(f.auditor)
        what = {"one-shot": "canaries"}.get(f.auditor, "trials")
        hint = _now(run, setting) if setting else ""
        yield f"To let the audit show more, give it more {what}{hint}."


def _beside(verdict: Verdict, run: Run) -> Iterator[str]:
    """Yield the upper bound for the same adversary, or how to get one."""
    upper = [f for f in run.of_the_run if covers(f, verdict.lead) and math.isfinite(f.value)]
    if upper:
        yield f"A guarantee bounds this adversary from above: {claim(upper[0])}{terms(upper[0])}."
    else:
        yield "To bound what any such adversary could learn, add noise and account for it."


def _about_guarantee(lead: Finding, run: Run) -> Iterator[str]:
    if not is_epsilon(lead):
        yield "Check that the assumptions hold where you deploy; audits of the sum stand beside it."
        return
    if lead.value > _MUCH:
        yield "An upper bound this large promises little. " + " ".join(_noise_for(lead, run))
    yield "It holds as long as the assumptions in the table do, for this observer only."


def _now(run: Run, setting: str) -> str:
    """Return the setting and its present value in brackets, if the run has noted it."""
    value = run.settings.get(setting)
    return "" if value is None else f" (--{setting}, now {value})"
