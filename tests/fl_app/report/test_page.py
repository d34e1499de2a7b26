"""The page about runs: complete, escaped, self-contained, for every kind of run."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.auditor import Due, Schedule
from leakmeter.auditors.finding import Limitation, RunWarning
from leakmeter.auditors.run_log import RoundLine, RunLog
from leakmeter.auditors.verdict.sentences import parts
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.report.curves import figures
from leakmeter.fl_app.report.judge import verdict_of
from leakmeter.fl_app.report.page import page
from leakmeter.fl_app.report.read import read_run
from tests.helpers import findings
from tests.helpers.files import report_in
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.pages import check_policy

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WFNA = [
    *("--dataset", "synthetic", "--synthetic-examples", "240", "--synthetic-features", "40"),
    *("--synthetic-classes", "3", "--model", "linear", "--clients", "12", "--sample", "6"),
    *("--rounds", "2", "--algorithm", "fedsgd", "--batch-size", "4", "--noise", "wfna"),
    *("--wfna-floor", "0.02", "--clip-norm", "1.0", "--canary-seats", "6", "--delta", "1e-3"),
    *("--auditors", "record-likelihood-ratio,one-shot", "--lrt-every", "0"),
]


class Page(HTMLParser):
    """Reads a page: identifiers, links, exact numbers in tables of findings, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.findings: list[list[str]] = []  # exact numbers of each row
        self.words = ""
        self._in_findings = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.tags.append((tag, values))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        if "id" in values:
            self.ids.append(values["id"] or "")
        self.links += [v or "" for k, v in attributes if k in ("href", "src")]
        if tag == "table" and values.get("class") == "findings":
            self._in_findings = len(self.open)
        if tag == "tr" and self._in_findings:
            self.findings.append([])
        if tag == "data" and self._in_findings:
            self.findings[-1].append(values["value"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if len(self.open) < self._in_findings:
            self._in_findings = 0

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            # Labels of a drawing stand apart, although nothing is between them.
            self.words += f"{data} " if "svg" in self.open else data

    def charts(self) -> list[str]:
        """Return the names of all charts."""
        return [a["id"] or "" for t, a in self.tags if t == "svg" and a.get("class") == "chart"]


def read(folder: Path) -> Page:
    return parsed((folder / "report.html").read_text())


def shown(folder: Path) -> Page:
    """Return the page of a folder, as `report` writes it."""
    return parsed(page([read_run(folder)]))


@cache  # several tests look at the same page
def parsed(text: str) -> Page:
    """Return a page that nobody changes."""
    return Page(text)


@pytest.fixture(scope="module")
def noised(panel: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with central noise, which has guarantees."""
    path = tmp_path_factory.mktemp("runs") / "noised"
    noise = ["--noise", "central", "--clip-norm", "1", "--lrt-every", "0", "--mi-every", "0"]
    assert main([*panel, *noise, "--rounds", "2", "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def filled(few_sums: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """A run with water filling."""
    path = tmp_path_factory.mktemp("runs") / "filled"
    assert main([*WFNA, "--out", str(path)]) == 0
    return path


finding = partial(
    findings.finding, value=1.5, delta=1e-5, adjacency="zero-out", null_band=(0.1, 0.5)
)


SEEN = ThreatModel(
    observer="outsider", sees="final model", holds="canary", knows_cohort=True, participations=1
)


def foreign(
    folder: Path,
    *findings: Finding,
    failures: Sequence[str] = (),
    limitations: Sequence[Limitation] = (),
    warnings: Sequence[RunWarning] = (),
    schedules: Sequence[Schedule] = (),
    **config: Any,
) -> Path:
    """Leave what `Audited(..., out=...)` leaves in any project."""
    record = RunLog(folder, config)
    record.add(RoundLine(1, 3, {"accuracy": 0.5}, (finding(server_round=1),)))
    record.finish(findings, failures, limitations, warnings, schedules=schedules)
    return folder


def first_screen(folder: Path) -> str:
    """Return the words of the first screen, without what is folded."""
    [first] = re.findall(r'<section class="first".*?</ol></section>', page([read_run(folder)]))
    return parsed(re.sub("<details.*?</details>", "", first) + "</div></section>").words


def test_each_epsilon_is_on_the_first_screen_once(tmp_path: Path) -> None:
    every = replace(SEEN, sees="all models")
    server = replace(SEEN, observer="server", sees="round sum")
    words = first_screen(
        foreign(
            tmp_path / "leak",
            finding(kind="lower_bound", value=85.3, confidence=0.95, threat_model=every),
            finding(kind="lower_bound", value=1.89, confidence=0.95, threat_model=server),
            finding(kind="lower_bound", value=0.5, confidence=0.95, threat_model=SEEN),
        )
    )
    assert [words.count(one) for one in ("≥\N{NO-BREAK SPACE}85", "≥ 85", "≥ 0.5")] == [1, 0, 1]
    assert "proven for: outsider, every model" in words  # the server sees these models too
    promise = {"kind": "guarantee", "value": 7.9, "threat_model": replace(SEEN, sees="noised sum")}
    weak = finding(kind="lower_bound", value=0.2, confidence=0.95, threat_model=every)
    words = first_screen(foreign(tmp_path / "bounded", finding(**promise), weak))
    assert (words.count("7.9"), words.count("0.2 ")) == (1, 1)
    assert words.count("guaranteed, as above") == 2
    # Of two guarantees in the headline, "as above" would not say which.
    more = finding(**promise | {"value": 19.2, "adjacency": "replace"})
    words = first_screen(foreign(tmp_path / "both", finding(**promise), more, weak))
    assert (words.count("guaranteed ε ≤ 7.9"), words.count("guaranteed ε ≤ 19.2")) == (1, 1)


def test_bits_are_folded_on_the_first_screen(tmp_path: Path) -> None:
    bits = finding(
        kind="approximation",
        quantity="mutual information",
        value=3.71,
        adjacency=None,
        threat_model=replace(SEEN, participations=19),
    )
    folder = foreign(tmp_path / "run", bits, finding())
    assert "3.71" not in first_screen(folder)
    [fold] = re.findall('<details class="bits" data-print>.*?</details>', page([read_run(folder)]))
    assert "1 figure</summary>" in fold
    assert "<td>≈ 3.71</td><td>no bound</td><td>model, sum of 19 rounds</td>" in fold


def test_the_first_screen_names_data_model_date_and_version(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "run", finding(), dataset="x-rays", model="resnet")
    os.utime(folder / "report.json", (0, 1_795_000_000))
    words = first_screen(folder)
    assert "Data and modelx-rays, resnet" in words
    assert "Date (UTC)2026-11-18 11:06" in words
    assert f"Made withleakmeter {version('leakmeter')}" in words
    assert "Data and modelnot stated" in first_screen(foreign(tmp_path / "other", finding()))


def numbers(value: Any) -> list[str]:
    """Return all single numbers of a finding as its row should carry them."""
    keys = ("server_round", "value", "delta", "confidence", "cap", "seed")
    found = [value[k] for k in keys if value[k] is not None]
    found += [*value["sample_sizes"].values(), *(value["null_band"] or [])]
    for fact in value["facts"].values():
        if isinstance(fact, int | float) and not isinstance(fact, bool):
            found.append(fact)
    return sorted(repr(float(x)) for x in found)


@pytest.mark.parametrize(
    ("kind", "charts"),
    [
        (
            "plain",
            "tradeoff-likelihood-ratio epsilon-likelihood-ratio cosines-in-the-final-model "
            "cosines-in-the-models-of-all-rounds rounds-one-shot-estimate "
            "rounds-likelihood-ratio-lower_bound information accuracy",
        ),
        (
            "filled",
            "tradeoff-record-likelihood-ratio epsilon-record-likelihood-ratio "
            "cosines-in-the-final-model cosines-in-the-models-of-all-rounds "
            "rounds-record-likelihood-ratio-lower_bound rounds-one-shot-estimate spectrum accuracy",
        ),
    ],
)
def test_every_figure_that_there_are_data_for_is_there(
    kind: str, charts: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    names = [f"figure-{i}-{name}" for i, name in enumerate(charts.split(), start=1)]
    # A line that is flat at its cap is a sentence.
    flat = [figure.name for figure in figures([read_run(folder)]) if figure.sentence]
    assert sorted(read(folder).charts()) == sorted(set(names) - set(flat))


@pytest.mark.parametrize("kind", ["plain", "noised", "filled"])
def test_a_page_fetches_nothing_and_has_every_number_of_every_finding_in_a_table(
    kind: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    page = read(folder)
    rows = [sorted(repr(float(x)) for x in row) for row in page.findings if row]
    assert sorted(rows) == sorted(numbers(f) for f in report_in(folder)["findings"])
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    text = (folder / "report.html").read_text()
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    check_policy(text)
    assert len(text) < 1_000_000
    for tag, values in page.tags:
        if tag == "table":
            assert page.tags[page.tags.index((tag, values)) + 1][0] == "caption"
        if tag == "th":
            assert values.get("scope") in ("col", "row", "rowgroup")


def test_every_attacker_has_a_card_with_what_to_do(plain: Path) -> None:
    page = read(plain)
    cards = parts(verdict_of(read_run(plain)))
    assert [t for t, _ in page.tags].count("article") == len(cards) > 1
    assert page.words.count("What to do") == len(cards) + 1  # the first screen, and each card
    for part in cards:
        assert part.attacker.sentence() in page.words


def test_a_guarantee_is_in_the_row_of_what_was_measured(noised: Path) -> None:
    page = read(noised)
    assert "All ε on one axis" in page.words
    assert "no finite ε is guaranteed" in page.words.lower()
    assert "Guarantee, accountant, at most 2 rounds per client: " in page.words
    uppers = [f["value"] for f in report_in(noised)["findings"] if f["kind"] == "guarantee"]
    data = [values.get("value") for tag, values in page.tags if tag == "data"]
    assert all(repr(float(value)) in data for value in uppers)


def test_a_conditional_bound_has_its_condition_in_tables(tmp_path: Path) -> None:
    stated = {"confidence": 0.95, "null_band": None}
    assumed = (Assumption.INDEPENDENT_SCORES,)
    bound = finding(kind="lower_bound", value=5.5, assumptions=assumed, **stated)
    folder = foreign(tmp_path / "run", bound)
    assert main(["report", str(folder), "--csv", str(tmp_path)]) == 0
    condition = f"if {Assumption.INDEPENDENT_SCORES.sentence}"
    assert f"lower bound{condition}5.5" in read(folder).words
    [row] = [r for r in csv.DictReader((tmp_path / "findings.csv").open()) if r["value"] == "5.5"]
    assert row["claim"].startswith(condition)
    assert row["conditional"] == "True"


def test_a_list_of_facts_does_not_end_with_a_semicolon(tmp_path: Path) -> None:
    facts = {"threshold": 2.5, "rejected": False}
    folder = foreign(tmp_path / "run", finding(sample_sizes={"in": 3, "out": 4}, facts=facts))
    small = re.findall(r"<small>(.*?)</small>", page([read_run(folder)]))
    words = [re.sub(r"<[^>]*>", "", one) for one in small]
    assert {"threshold: 2.5; rejected: no", "3 in; 4 out"} < set(words)


def test_damage_and_failures_are_at_the_top_and_limitations_are_no_attackers(
    tmp_path: Path,
) -> None:
    warning = RunWarning.of("clipped-coordinates", 72, 100)
    folder = foreign(
        tmp_path / "run",
        finding(),
        failures=["one-shot, round 1: ValueError: made up"],
        warnings=[warning],
        limitations=[Limitation("mine", "only 3 clients <take part>")],
    )
    words = shown(folder).words
    first = words[: words.index("Who can tell what")]
    for said in ("The run is distorted", warning.text, "as planned: one-shot, round 1: ValueErr"):
        assert said in first
    assert [t for t, _ in shown(folder).tags].count("article") == 1
    assert "Limits of this auditmine: only 3 clients <take part>" in words


def test_the_page_says_how_to_repeat_the_run(plain: Path, filled: Path) -> None:
    words = read(plain).words
    assert "python run_sim.py --dataset synthetic" in words
    for option in ("--synthetic-examples 120", "--model linear", "--lrt-every 2", "--lrt-fit 20"):
        assert option in words
    versions = report_in(plain)["versions"]
    assert {"python", "numpy", "flwr"} <= set(versions)
    assert all(release in words for release in versions.values())
    repeated = read(filled).words.split("The same seed gives the same findings")[1]
    start = repeated.index("python run_sim.py") + len("python run_sim.py")
    again = repeated[start:].split("Settings")[0].split()
    assert dict(zip(again[::2], again[1::2], strict=True))["--wfna-floor"] == "0.02"


def test_what_a_report_says_never_becomes_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script><b>&\"'"
    folder = foreign(
        tmp_path / "a<b>",
        finding(auditor=evil, rule=evil, quantity=evil, assumptions=(evil,)),
        finding(auditor=evil, facts={evil: evil}, sample_sizes={evil: 3}),
        limitations=[Limitation(evil, evil)],
        **{evil: evil},
    )
    seen = shown(folder)
    assert [t for t, _ in seen.tags].count("script") == 1
    assert "b" not in {t for t, _ in seen.tags}
    assert seen.words.count(evil) >= 6
    assert seen.open == []


def test_a_project_of_another_kind_gets_a_page(tmp_path: Path, capsys: Printed) -> None:
    folder = foreign(tmp_path / "mine", finding(), rounds=5, noise="much")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"page: {folder / 'report.html'}\n"
    page = read(folder)
    assert "anyone who sees the final model may tell whether a client sent a given" in page.words
    assert "This run is of another project" in page.words
    assert "--noise" not in page.words  # its settings are not ours


def test_an_unfinished_run_says_so_and_how_to_go_on(
    plain: Path, tmp_path: Path, capsys: Printed
) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(plain, folder)
    (folder / "report.json").unlink()
    (folder / "report.html").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:3]) + lines[3][:40])
    assert main(["report", str(folder)]) == 0
    page = read(folder)
    assert "This run is not finished: 3 whole rounds of 4." in page.words
    assert f"python run_sim.py --resume {folder}" in page.words
    assert "Made with" not in page.words  # the release is noted at the end
    assert "figure-1-tradeoff-likelihood-ratio" in page.charts()
    rows = [row for row in page.findings if row]
    assert len(rows) == sum(len(json.loads(line)["findings"]) for line in lines[:3])
    told = []
    for words in (["report", "--text", folder], ["list", tmp_path], ["gate", folder, "--claims"]):
        capsys.readouterr()
        main([str(word) for word in words])
        told.append(capsys.readouterr().out)
    assert told[0].startswith("VERDICT  Unfinished: 3 of 4 rounds.")
    assert "Unfinished: 3 of 4 rounds." in page.words
    assert "are in rounds.jsonl" in told[0]  # report.json is not there yet
    assert "not known yet" in told[1]
    assert "δ = 1e-05" in told[2]


def test_a_run_without_a_round_or_a_finding_has_a_page(tmp_path: Path) -> None:
    RunLog(tmp_path / "new", {})
    seen = shown(tmp_path / "new")
    assert "0 whole rounds" in seen.words
    assert "The auditors produced no findings; this is not evidence of privacy." in seen.words
    assert seen.charts() == []


def test_several_runs_stand_side_by_side(
    plain: Path, noised: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(plain), str(noised)]) == 0
    page = Page((tmp_path / "report.html").read_text())
    in_detail = page.words.index("Each attacker in detail: noise none")
    assert page.words.index("2 runs compared") < in_detail
    head = page.words[page.words.index("Runs side by side") :][:600]
    for word in ("noise none", "noise central", "clip-norm"):
        assert word in head
    assert "dataset" not in head  # the same in both
    charts = " ".join(page.charts())
    assert charts.count("tradeoff-likelihood-ratio") == 1  # overlaid
    assert charts.count("cosines-in-the-final-model") == 2  # one each
    assert "noise none: upper limits" in page.words
    assert len(page.ids) == len(set(page.ids))


def test_pictures_of_a_run_or_an_experiment_are_embedded(tmp_path: Path) -> None:
    folder = foreign(tmp_path / "run", finding())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rebuilt.png").write_bytes(PIXEL)
    (folder / "no-picture.png").write_bytes(b"text")
    assert main(["report", str(folder), "--pictures", str(tmp_path / "other")]) == 0
    page = read(folder)
    [(_, image)] = [(t, a) for t, a in page.tags if t == "img"]
    assert image["alt"] == "rebuilt (other)"
    assert base64.b64decode((image["src"] or "").split(",")[1]) == PIXEL
    assert "Reconstructions" in page.words


def test_csv_holds_the_same_numbers_and_the_page_is_the_same_again(
    plain: Path, tmp_path: Path
) -> None:
    out, again = tmp_path / "tables", tmp_path / "page.html"
    assert main(["report", str(plain), "--out", str(again), "--csv", str(out)]) == 0
    assert again.read_bytes() == (plain / "report.html").read_bytes()
    found, rounds, curves = (
        list(csv.DictReader((out / f"{name}.csv").open(newline="")))
        for name in ("findings", "rounds", "curves")
    )
    kept = report_in(plain)
    assert [float(row["value"]) for row in found] == [float(f["value"]) for f in kept["findings"]]
    assumptions = [json.loads(row["assumptions"]) for row in found]
    assert assumptions == [f["assumptions"] for f in kept["findings"]]
    accuracies = [line["accuracy"] for line in kept["rounds"]]
    assert [float(row["accuracy"]) for row in rounds] == accuracies
    assert [float(row["y"]) for row in curves if row["figure"] == "Accuracy"] == accuracies


def test_only_an_earlier_page_is_written_over(plain: Path, tmp_path: Path, capsys: Printed) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("precious")
    assert main(["report", str(plain), "--out", str(mine)]) == 2
    assert f"out must be a new file or an earlier page, got {mine}" in capsys.readouterr().err
    assert mine.read_text() == "precious"
    assert main(["report", str(plain), "--out", str(tmp_path)]) == 2
    assert main(["report", str(plain), "--pictures", str(tmp_path / "none")]) == 2


def test_a_page_that_fails_does_not_cost_the_run(
    tiny: list[str], tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    def broken(*_: Any) -> str:
        raise ArithmeticError("made up")

    monkeypatch.setattr("leakmeter.fl_app.report.page.page", broken)
    settings = [*tiny, "--rounds", "1", "--auditors", "none"]
    assert main([*settings, "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().out
    assert "no page was made, ArithmeticError: made up; all numbers are in report.json" in said
    assert report_in(tmp_path / "run")["rounds"]


def test_skipped_rounds_are_listed_with_the_setting_that_asks_for_it(tmp_path: Path) -> None:
    """A project of one's own has no flags, so it reads the argument."""
    plan = [Schedule.of("likelihood-ratio", Due(-1, 30)), Schedule.of("mine", Due(1, 30))]
    own = foreign(tmp_path / "own", finding(), schedules=plan)
    every = foreign(tmp_path / "all", finding())
    words = shown(own).words
    assert (
        "likelihood-ratio: audited rounds 1, 2, 4, 8, 16, 30 of 30; the others were skipped as "
        "every=-1 asks."
    ) in words
    assert "mine: audited" not in words
    assert "Rounds that were skipped" not in shown(every).words
