"""For data-protection readers: each question has an answer, and none says more than its fields."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import Finding
from leakmeter.auditors.auditor import Schedule
from leakmeter.auditors.finding import Limitation, RunWarning
from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.verdict.claim import Claim
from leakmeter.auditors.verdict.sentences import headline
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.report.judge import verdict_of
from leakmeter.fl_app.report.read import Rehearsal, Run
from leakmeter.fl_app.report.summary import (
    NOT_SHOWN,
    answers,
    data_subjects,
    remarks,
    risks,
    summary,
    unaudited,
)
from leakmeter.fl_app.report.summary import guarantee as guaranteed
from tests.fl_app.report.makers import ANYONE, CANARY, bound, conditional, finding, guarantee, run
from tests.fl_app.report.test_browser import BROWSER, printed
from tests.fl_app.report.test_page import Page, foreign
from tests.helpers import paper
from tests.helpers.fixtures import Printed
from tests.helpers.numbers import first_fast
from tests.helpers.pages import check_policy

TOPICS = {
    *("Privacy parameters", "Unit of privacy", "Neighbouring data"),
    *("Trust and threats", "Mechanism", "Composition", "Utility and bias"),
    *("Implementation", "Data collection", "Access control"),
}
ASSUMED = (Assumption.REAL_GAUSSIAN, Assumption.MODELS_ONLY)
PROMISE = guarantee(8.0, rule="Gaussian mechanism composed", assumptions=ASSUMED)
SECURE_SUM = finding(
    kind="guarantee",
    quantity="honest clients in the smallest sum",
    value=17.0,
    adjacency=None,
    threat_model=replace(ANYONE, observer="server", sees="round sum", colluders=13),
)
PROTECTED = replace(
    run(bound(0.0, cap=9.0), PROMISE, SECURE_SUM, noise="central", clients=60),
    rounds=(RoundLine(1, 9, {"accuracy": 0.5}),),
    rehearsals=(Rehearsal(settings={}, seed=0, accuracies=(0.5,), without_noise=0.75),),
)
UNPROTECTED = run(bound(9.0), noise="none", clients=60)
FOREIGN = replace(run(bound(9.0)), config={"app": "their-app"})
EMPTY = run()
RUNS = {"protected": PROTECTED, "unprotected": UNPROTECTED, "foreign": FOREIGN, "empty": EMPTY}


def answered(one: Run) -> dict[str, str]:
    return {topic: said.replace("\N{NO-BREAK SPACE}", " ") for topic, _, said in answers(one)}


def states(one: Run) -> dict[str, str]:
    return {risk.name: risk.state for risk in risks(one)}


def test_a_protected_run_answers_from_its_fields() -> None:
    found = answered(PROTECTED)
    for topic, wanted in (
        ("Privacy parameters", "ε ≤ 8 (zero-out) at δ = 1e-05 for a client"),
        ("Privacy parameters", "1 / 60 clients = 0.0167"),
        ("Unit of privacy", "A client: one participant, with all its records."),
        ("Neighbouring data", "whether a client sent a given update (zero-out)"),
        ("Trust and threats", "Guaranteed against: anyone who sees every model; anyone"),
        ("Mechanism", "Gaussian mechanism composed. "),
        ("Mechanism", "does not confirm"),
        ("Composition", "at most 10 rounds of a client"),
        ("Composition", "Assumed: only models are released"),
        ("Utility and bias", "0.500"),
        ("Utility and bias", "0.500, against 0.750 without noise"),
        ("Implementation", "lowest bits of its float64 samples"),
        ("Data collection", "among at least 17 honest clients, if the server follows the protocol"),
        ("Data collection", "at most 13 clients collude"),
    ):
        assert wanted in found[topic]
        assert not found[topic].startswith(NOT_SHOWN)


@pytest.mark.parametrize("one", [UNPROTECTED, FOREIGN, EMPTY])
def test_what_no_field_says_is_not_shown(one: Run) -> None:
    asked = TOPICS - {"Trust and threats", "Data collection", "Utility and bias"}
    found = answered(one)
    assert all(found[topic].startswith(NOT_SHOWN) for topic in asked)
    assert all(NOT_SHOWN in words for topic, words in found.items() if topic != "Trust and threats")
    assert guaranteed(one)[0].startswith(NOT_SHOWN)
    # A project of another kind may add noise that the report does not know.
    assert ("adds no noise" in guaranteed(one)[0]) == (one is UNPROTECTED)


def test_what_no_report_can_say_is_never_shown() -> None:
    found = answered(PROTECTED)
    assert found["Access control"].startswith(NOT_SHOWN)
    for topic, words in (
        ("Utility and bias", "small groups"),
        ("Composition", "other releases"),
        ("Implementation", "timing"),
        ("Data collection", "collected"),
    ):
        assert words in found[topic].partition(f"{NOT_SHOWN}: ")[2]
    active = replace(SECURE_SUM.threat_model, conduct="active")
    said = answered(run(replace(SECURE_SUM, threat_model=active)))["Data collection"]
    assert "even if the server breaks the protocol and at most 13 clients collude" in said
    added = answered(run(PROMISE, noise="central", ledger="data.jsonl"))["Composition"]
    assert "A ledger adds up runs" in added
    assert NOT_SHOWN not in added


def test_a_refuted_guarantee_is_not_called_unrefuted() -> None:
    refuted = run(bound(9.0, threat_model=CANARY), guarantee(1.0), noise="central")
    said = answered(refuted)
    assert "The audit refutes the guarantee" in said["Mechanism"]
    assert "Guaranteed against" not in said["Trust and threats"]
    assert not any(risk.is_limited for risk in risks(refuted))
    assert "So nothing is limited for certain." in guaranteed(refuted)[-1]
    assert not any("whatever the attack" in words for words in guaranteed(refuted))


def test_a_large_guarantee_is_called_worthless_and_limits_no_risk() -> None:
    assert "practically nothing" in answered(run(guarantee(25.0)))["Privacy parameters"]
    assert "practically nothing" not in answered(run(guarantee(19.0)))["Privacy parameters"]
    large = run(bound(0.0), guarantee(970.0))
    assert not any(risk.is_limited for risk in risks(large))
    assert "practically nothing" in guaranteed(large)[0]
    assert not any("It limits" in words for words in guaranteed(large))
    assert all(risk.is_limited for risk in risks(run(bound(0.0), guarantee(20.0))))


def test_what_a_refutation_does_not_mean_is_never_shortened() -> None:
    longer = replace(bound(30.0), facts={"canary_times": 10.0})
    tested = replace(run(longer), claims=(Claim(10.0, 1e-5),))
    words = Page(summary(tested)).words
    assert "a claim that counts on such noise would be refuted wrongly." in words
    assert "test updates 10 times as long as clients' own. For shorter ones" in words


def test_every_guaranteed_epsilon_is_said_as_how_sure_an_attacker_may_become() -> None:
    """ε ≤ 19.2 was "limited by a guarantee", though it allows 99.9999996 %."""
    both = run(guarantee(8.0), guarantee(19.2, adjacency="replace"), sample=30, model="mlp")
    [_, means, *_] = guaranteed(both)
    assert "up to 99.97 % sure whether a client sent a given update (zero-out)" in means
    assert "up to 99.9999996 % sure which of two given updates a client sent (replace)" in means
    assert "“All findings”" in means  # where the assumptions are
    assert any("Model: mlp." in one and "Clients per round:" in one for one in data_subjects(both))


def test_a_claim_is_no_guarantee() -> None:
    said = answered(replace(FOREIGN, claims=(Claim(10.0, 1e-5),)))["Privacy parameters"]
    assert said.startswith(NOT_SHOWN)
    assert "Claimed by user: ε ≤ 10" in said


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ([bound(9.0)], "shown"),
        ([conditional(9.0)], "suspected"),
        ([finding(kind="estimate", value=9.0, null_band=(0.0, 1.0))], "suspected"),
        ([bound(0.0)], "nothing shown"),
        ([guarantee(8.0)], "not audited"),
        ([], "not audited"),
    ],
)
def test_the_state_of_a_risk_is_that_of_its_evidence(found: list[Finding], state: str) -> None:
    client = risks(run(*found))
    assert states(run(*found)) == {
        "Singling out": state,
        "Linkability": "not audited",
        "Inference": "not audited",
        "Reconstruction": "not audited",
    }
    of_records = [replace(f, unit="record") for f in found]
    assert states(run(*of_records))["Inference"] == state
    assert states(run(*of_records))["Singling out"] == "not audited"
    said = client[0].evidence
    assert ("not evidence of privacy" in said) == (state == "nothing shown")
    assert ("ε" in said) == (state == "shown")


def test_the_sheet_says_what_was_shown_of_whoever_was_audited() -> None:
    """A server that nobody audited was "shown" and "not audited" on the same sheet."""
    server = guarantee(float("inf"), threat_model=replace(ANYONE, observer="server"))
    one = run(bound(2.0), guarantee(8.0), server)
    assert "this attacker was not audited" in headline(verdict_of(one))
    assert risks(one)[0].evidence.startswith("Anyone who sees every model can be at least 88")


def test_nothing_shown_says_how_far_the_attacks_could_see() -> None:
    [said, *_] = risks(run(bound(0.0, cap=4.567)))
    assert said.evidence.endswith("They could have shown at most ε = 4.56.")
    server = replace(ANYONE, observer="server", sees="round sum")
    [said, *_] = risks(run(bound(0.0, cap=3.0), bound(0.0, cap=4.567, threat_model=server)))
    assert said.evidence.endswith("at most ε = 3 to 4.56, depending on the attacker.")


@pytest.mark.parametrize(
    ("quantity", "risk"),
    [
        ("originals recovered", "Reconstruction"),
        ("tokens recovered", "Reconstruction"),
        ("membership advantage", "Inference"),
        ("clients that stand out", "Singling out"),
    ],
)
def test_a_test_is_evidence_of_one_risk(quantity: str, risk: str) -> None:
    test = bound(0.5, quantity=quantity, adjacency=None, delta=None, unit="record")
    found = states(run(test))
    assert [name for name, state in found.items() if state == "shown"] == [risk]
    nothing = run(replace(test, value=0.0))
    assert states(nothing)[risk] == "nothing shown"
    assert not any("Observed" in one.evidence for one in risks(nothing))


def test_bits_are_no_proof_of_inference() -> None:
    bits = {"quantity": "mutual information", "adjacency": None, "delta": None}
    inference = risks(run(finding(kind="approximation", value=3.7, **bits)))[2]
    assert inference.state == "not audited"
    assert inference.evidence.startswith("No attack on records was tried. Measured in bits: part")
    whole = {**bits, "quantity": "mutual information of all coordinates"}
    both = [finding(kind="approximation", value=3.7, **bits)]
    both.append(finding(kind="approximation", value=1430.0, **whole))
    assert "≈ 3.7 (" in risks(run(*both))[2].evidence  # of a part of an update
    assert "all of an update ≈ 1,430 (" in risks(run(*both))[2].evidence
    assert "nothing guaranteed" in inference.evidence
    said = risks(run(guarantee(2.0, **bits)))[2].evidence.replace("\N{NO-BREAK SPACE}", " ")
    assert "all of an update not measured (" in said
    assert "≤ 2 guaranteed)" in said


def test_a_guarantee_for_records_does_not_limit_singling_out() -> None:
    def limited(one: Finding) -> list[bool]:
        return [risk.is_limited for risk in risks(run(bound(0.0), one))]

    assert limited(guarantee(8.0)) == [True] * 4
    assert limited(guarantee(8.0, unit="record")) == [False, True, True, True]
    assert limited(guarantee(float("inf"))) == [False] * 4


def test_whom_nothing_protects_against_is_named() -> None:
    server = replace(ANYONE, observer="server", sees="round sum")
    one = run(guarantee(8.0), bound(0.0, threat_model=server))
    assert (
        "Nothing is guaranteed against: a server that sees the sums of all rounds."
        in guaranteed(one)
    )
    words = "Must be trusted, because nothing is guaranteed against them: a server"
    assert words in answered(one)["Trust and threats"]
    assert not any("Nothing is" in words for words in guaranteed(run(guarantee(8.0))))


def test_what_was_not_audited_is_listed() -> None:
    assert "Attacks by the server or eavesdroppers on the network." in unaudited(run(bound(1.0)))
    wire = bound(1.0, threat_model=replace(CANARY, observer="wire"))
    server = bound(1.0, threat_model=replace(CANARY, observer="server", conduct="active"))
    record = bound(1.0, unit="record")
    assert unaudited(run(bound(1.0), wire, server, record)) == []
    noted = replace(
        run(bound(1.0)),
        failures=("one-shot failed in round 1",),
        limitations=tuple(Limitation("mine", f"{i} {'very ' * 40}long") for i in range(4)),
    )
    skipping = replace(run(), schedules=(Schedule("mine", 2, 5, (1, 3, 5)),))
    assert "Mine: 2 of 5 rounds." in unaudited(skipping)
    said = remarks(noted)
    assert unaudited(noted) == unaudited(run(bound(1.0)))
    assert "One-shot failed in round 1." in said
    assert said[-1] == "2 more remarks in the report."
    two = Limitation("mine", f"it has seen half. It holds {'very ' * 40}seldom")
    assert "Mine: it has seen half. …" in remarks(replace(run(bound(1.0)), limitations=(two,)))
    assert max(map(len, said)) < 150


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"dataset": "digits", "clients": 60}, "Data: digits. Clients: 60. Rounds: 0."),
        ({"app": "theirs"}, "Data: theirs. Clients: not stated."),
        ({}, "Data: not stated."),
    ],
)
def test_whose_data_is_said_as_far_as_it_is_known(config: dict[str, Any], words: str) -> None:
    said = data_subjects(replace(run(), config=config))
    assert said[0].startswith(words)
    assert "simulation" not in said[1]  # of a project whose words may mean something else
    assert "simulation" in data_subjects(PROTECTED)[1]
    deployed = replace(PROTECTED, config={**PROTECTED.config, "launch": "deployment"})
    assert "simulation" not in data_subjects(deployed)[1]


def test_a_guarantee_that_nobody_attacked_is_not_called_unrefuted() -> None:
    assert "No attack tested it." in answered(run(guarantee(8.0)))["Mechanism"]
    of_records = run(bound(0.0), guarantee(8.0, unit="record"))  # which no canary refutes
    assert "does not refute" not in answered(of_records)["Mechanism"]
    assert "does not refute" in answered(run(bound(0.0), guarantee(8.0)))["Mechanism"]


def test_a_guarantee_for_records_is_asked_about_records() -> None:
    server = replace(ANYONE, observer="server", sees="round sum")
    of_records = run(bound(3.0), guarantee(8.0, unit="record", threat_model=server), clients=60)
    found = answered(of_records)
    assert "1 / records" in found["Privacy parameters"]
    assert "clients" not in found["Privacy parameters"]
    assert "several clients" not in found["Unit of privacy"]
    # The same attackers are limited about records: only the other question is open.
    words = "Nothing is guaranteed about whether a client sent a given update, against: anyone"
    assert any(one.startswith(words) for one in guaranteed(of_records))
    assert "nothing is guaranteed against" not in found["Trust and threats"]
    assert "Nothing is guaranteed about this" in headline(verdict_of(of_records))


def test_what_was_seen_in_every_draw_is_evidence_of_singling_out() -> None:
    seen = finding(
        kind="diagnostic", quantity="certain separation", value=1.0, adjacency=None, delta=None
    )
    assert risks(run(seen))[0].state == "shown"
    assert "every draw" in risks(run(seen))[0].evidence
    assert risks(run(replace(seen, value=0.0)))[0].state == "nothing shown"
    span = replace(seen, quantity="share outside the span", value=0.9, null_band=(0.0, 0.5))
    assert risks(run(span))[0].state == "suspected"


LONG = "very " * 60
CROWDED = replace(
    RUNS["protected"],
    name=f"run {LONG}",
    findings=(
        *RUNS["protected"].findings,
        *(
            bound(float(i), threat_model=replace(CANARY, observer=who, sees=sees))
            for i, who in enumerate(("server", "wire"))
            for sees in ("updates", "round sum", "noised sum", "all models", "final model")
        ),
        guarantee(30.0, adjacency="replace", threat_model=replace(ANYONE, colluders=9)),
    ),
    warnings=tuple(RunWarning.of("clipped-coordinates", i, 100) for i in (1, 2, 3)),
    failures=(LONG, LONG, LONG),
    limitations=(Limitation("mine", LONG),),
    claims=(Claim(10.0, 1e-5),),
)


@pytest.mark.parametrize("name", RUNS)
def test_the_sheet_has_every_risk_and_an_answer_to_every_question(name: str) -> None:
    text = summary(RUNS[name])
    page = Page(text)
    assert page.open == []
    check_policy(text)
    assert "http:" not in text
    assert "https:" not in text
    words = page.words.replace("\N{NO-BREAK SPACE}", " ")
    found = answered(RUNS[name])
    assert set(found) == TOPICS
    for topic, question, _ in answers(RUNS[name]):
        said = found[topic]
        assert f"{topic}{question}{said}" in words
        assert said.endswith((".", "…"))
        assert not any(word in said for word in ("None", "nan", "  ", "{", "inf"))
    for risk in risks(RUNS[name]):
        assert f"{risk.name}{risk.question}" in words
        assert risk.evidence.replace("\N{NO-BREAK SPACE}", " ") in words
    assert "NIST SP 800-226" in words
    assert "WP 216" in words


def test_a_name_never_becomes_markup() -> None:
    name = "</style><script>alert(1)</script>"
    text = summary(replace(RUNS["foreign"], name=name, config={"app": name}))
    check_policy(text)
    assert "<script>alert" not in text


@pytest.mark.slow
@pytest.mark.skipif(
    BROWSER is None or shutil.which("pdftoppm") is None, reason="no Chromium or no poppler-utils"
)
@pytest.mark.parametrize("run", first_fast(1, [CROWDED, RUNS["protected"], RUNS["foreign"]]))
def test_it_is_one_sheet_of_paper(run: Run, tmp_path: Path) -> None:
    (tmp_path / "summary.html").write_text(summary(run))
    [sheet] = paper.texts(printed(tmp_path / "summary.html", tmp_path))
    assert "Access control" in sheet
    assert re.search(r"1 ?/ ?1\s*$", sheet)


def test_the_command_writes_it_into_the_folder_of_the_run_over_nothing_else(
    tmp_path: Path, capsys: Printed
) -> None:
    folder = foreign(tmp_path / "run", finding())
    sheet = folder / "summary.html"
    for _ in range(2):  # over an earlier one, too
        assert main(["report", "--summary", str(folder)]) == 0
        assert capsys.readouterr().out == f"summary: {sheet}\n"
    assert "Privacy summary of" in sheet.read_text()
    assert not (folder / "report.html").exists()
    sheet.write_text("mine")
    assert main(["report", "--summary", str(folder)]) == 2
    assert "summary.html must be a new file or an earlier page" in capsys.readouterr().err
    assert sheet.read_text() == "mine"


def test_the_sheet_names_a_distorted_run_and_a_limited_leak() -> None:
    broken = replace(RUNS["protected"], warnings=(RunWarning.of("clipped-coordinates", 60, 100),))
    assert '<p class="level">distorted run</p>' in summary(broken)
    limited = replace(RUNS["protected"], findings=(bound(0.04), guarantee(8.0)))
    assert '<p class="level">leak shown, limited by a guarantee</p>' in summary(limited)
    large = replace(RUNS["protected"], findings=(bound(0.04), guarantee(97.0)))
    assert '<p class="level">leak shown</p>' in summary(large)
    assert "none up to ε = 20" in summary(large)
    assert "none up to" not in summary(RUNS["foreign"])
