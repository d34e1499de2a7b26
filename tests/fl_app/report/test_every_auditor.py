"""Real findings of every auditor and wrapper, printed everywhere: each sentence is a true one."""

from __future__ import annotations

import csv
import inspect
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from rich.console import Console

from leakmeter.auditors import (
    Critics,
    Finding,
    Inversion,
    LikelihoodRatio,
    Membership,
    MutualInformation,
    NeuralInformation,
    OneShotCanaries,
    SingleUpdates,
    wording,
)
from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import Auditor, RoundFacts, RoundView
from leakmeter.auditors.canary_draws import canary_vector
from leakmeter.auditors.finding import Limitation, RunWarning, ThreatModel
from leakmeter.auditors.information.draws import DrawPlan
from leakmeter.auditors.likelihood_ratio.game import SampleBudget
from leakmeter.auditors.likelihood_ratio.span import SpanCondition
from leakmeter.auditors.likelihood_ratio.transcript_runs import Mode, Transcripts, prove
from leakmeter.auditors.reconstruction.attack import Attack
from leakmeter.auditors.reconstruction.inversion import RoundImages
from leakmeter.auditors.records.game import RecordBudget, RecordCase, RecordLikelihoodRatio
from leakmeter.auditors.replay_log import AggregateRecorder
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.verdict.claim import covers
from leakmeter.auditors.verdict.lines import details
from leakmeter.auditors.verdict.verdict import Block, Row, Verdict
from leakmeter.auditors.wording import Assumption, claim, condition, quantity, value
from leakmeter.clients.protection.gradients import Gradients
from leakmeter.fl_app.report.curves import figures
from leakmeter.fl_app.report.export import write_csv
from leakmeter.fl_app.report.judge import _of_block, _of_row, advice, verdict_of
from leakmeter.fl_app.report.page import page
from leakmeter.fl_app.report.read import Run
from leakmeter.fl_app.run.progress import Progress
from leakmeter.strategies.accounting.accountant import Release
from leakmeter.strategies.accounting.assurance import Assurance
from leakmeter.strategies.accounting.rdp import Contribution, RecordRelease, finding_of, guarantee
from leakmeter.strategies.protection.mechanism import Central, Distributed, Local
from leakmeter.strategies.secure_sum.masked import Tally
from leakmeter.strategies.secure_sum.topology import Risks
from tests.auditors.conftest import GaussianSampler
from tests.fl_app.report.test_page import Page
from tests.helpers.fixtures import Patch

DIM, CLIENTS, ROUNDS, DELTA = 120, 6, 2, 1e-5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Return a run with all findings that there are, and one with fewer rounds per client."""
    pytest.importorskip("torch")  # for critics
    sampler = GaussianSampler(np.eye(DIM)[:, :20])
    auditors: list[Auditor] = [
        OneShotCanaries(seats=20, delta=DELTA),
        SingleUpdates(seats=20, delta=DELTA),
        LikelihoodRatio(sampler, budget=SampleBudget(fit=200, candidates=5, pilot=10, trials=60)),
        MutualInformation(sampler, plan=DrawPlan(draws=40, rank=3)),
        NeuralInformation(sampler, plan=DrawPlan(draws=40, rank=3), critics=Critics(steps=1)),
        RecordLikelihoodRatio(_case, budget=RecordBudget(pairs=2, pilot=20, trials=100)),
        Membership(lambda model: (model[:30] ** 2, model[:30] ** 2 + 3.0), delta=DELTA),
        SpanCondition(),
        Inversion(_net, _images, rate=1.0, seek=2, every=1, attack=Attack(steps=2)),
        AggregateRecorder(tmp_path_factory.mktemp("kept")),
    ]
    found = (*(f for one in auditors for f in _played(one)), *_transcripts())
    small = replace(_run("small", found, 1), config={"rounds": 1})
    return [_run("large", found, ROUNDS), small]


def _run(name: str, found: Sequence[Finding], participations: int) -> Run:
    return Run(name, Path("/" + name), findings=(*found, *_promised(participations)))


def _played(auditor: Auditor) -> Iterator[Finding]:
    """Yield what an auditor says of rounds of Gaussian updates with canaries."""
    auditor.begin(DIM, ROUNDS)
    rng, model = stream(0, "real"), np.zeros(DIM)
    for server_round in range(1, ROUNDS + 1):
        truth = {c: np.r_[rng.standard_normal(20), np.zeros(DIM - 20)] for c in range(CLIENTS)}
        orders = auditor.instruct(server_round, range(20))
        shown = [canary_vector(o.seed, o.id, DIM) for o in orders.values() if o.included]
        mean = np.mean(list(truth.values()), axis=0)
        released = model + mean / 10 + np.sum([3 * s for s in shown], axis=0)
        facts = RoundFacts(aggregate=mean, num_clients=CLIENTS, total_weight=float(CLIENTS))
        weights = dict.fromkeys(truth, 1.0)
        yield from auditor.observe(
            RoundView(
                server_round,
                model,
                dict(truth),
                released,
                facts,
                truth,
                truth_weights=weights,
                instructed=orders,
            )
        )
        model = released
    yield from auditor.report()


def _transcripts() -> Iterator[Finding]:
    """Yield what the transcript audit says of both kinds of trials."""
    rng = stream(0, "transcripts")
    rounds = [
        Transcripts(rng.standard_normal((80, 1)) + 1.0, rng.standard_normal((80, 1)))
        for _ in range(ROUNDS)
    ]
    for mode in get_args(Mode):
        for knows in (True, False):
            attacker = ThreatModel(
                observer="server",
                sees="frozen sums" if mode == "frozen-models" else "round sum",
                holds="two data sets",
                knows_cohort=knows,
                game="independent",
            )
            for server_round in (ROUNDS, None):
                claims = Claims("transcript", attacker, DELTA, server_round=server_round, seed=0)
                yield prove(claims, rounds, target=0, pilot=20)


def _case(_: RoundView) -> RecordCase:
    rows = stream(0, "gradients").standard_normal((7, 9))
    return RecordCase((Gradients.of(rows),), records=5, batch=2, floor=0.05, rest=0.1)


def _net(model: Floats) -> Any:
    import torch

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(14, 8))
    torch.nn.utils.vector_to_parameters(torch.from_numpy(model).float(), net.parameters())
    return net


def _images(_: RoundView) -> RoundImages:
    images = stream(0, "images").random((30, 2, 7))
    return RoundImages(images[:5], images[5:], steps=2.0)


def _promised(participations: int) -> Iterator[Finding]:
    """Yield all guarantees."""
    releases = (Release(2.0, 1.0, sampling="fixed", cohort=5, population=500),) * ROUNDS
    for noise in (Central(2.0), Distributed(2.0, 3), Local(2.0)):
        single = (Release(2.0, 1.0),) * ROUNDS
        yield from Assurance(noise, releases, participations, single=single).findings(DELTA)
    weak = (Release(0.05, 1.0),) * ROUNDS  # promises practically nothing
    yield from Assurance(Central(0.05), weak, participations).findings(DELTA)
    member = Contribution(1e-3, 10.0, 32, 1200)
    filled = guarantee([RecordRelease((member,) * 50, "water-filling")] * ROUNDS, DELTA)
    yield replace(finding_of(filled, participations=ROUNDS), auditor="water-filling")
    counts = dict.fromkeys((f.name for f in fields(Tally)), 9)
    own = {"colluders": 1, "exposure": 0.01, "dropped": {"train": 2}}
    yield from Tally(**{**counts, **own}).findings(Risks())


def parts(verdict: Verdict) -> list[Row | Block]:
    """Return all that a card may be about."""
    return [*verdict.rows, *verdict.others]


@pytest.fixture(scope="module")
def said(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what page, terminal, advice and CSV say, in ordinary spaces."""
    said = {}
    for run in runs:
        file = io.StringIO()
        console = Console(file=file, width=10_000, highlight=False, soft_wrap=True)
        made = verdict_of(run)
        Progress(console).summary(made, [])
        full = " ".join(details(made))
        said[f"terminal of {run.name}"] = " ".join(f"{file.getvalue()} {full}".split())
        for i, part in enumerate(parts(made)):
            head = [sentences.ends(part)] if isinstance(part, Row) else []
            about = [
                *sentences.findings_in_words(part),
                *sentences.reliability(part),
                *advice(part, run, made),
            ]
            said[f"part {i} of {run.name}"] = " ".join([*head, *about])
        said[f"page of {run.name}"] = Page(page([run])).words
    said["comparison"] = Page(page(runs)).words
    for path in write_csv(runs, tmp_path_factory.mktemp("tables")):
        said[path.name] = path.read_text()
    return {name: re.sub(r"\s+", " ", words) for name, words in said.items()}


def test_every_kind_of_finding_is_there(runs: list[Run]) -> None:
    found = runs[0].findings
    assert {f.kind for f in found} == {
        *("guarantee", "lower_bound", "estimate", "approximation", "diagnostic")
    }
    assert {f.auditor for f in found} >= {
        *("one-shot", "likelihood-ratio", "mutual-information", "record-likelihood-ratio"),
        *("mine", "membership", "span", "inversion", "transcript"),
        *("accountant", "water-filling", "secure-sum"),
    }
    verdict = verdict_of(runs[0])
    assert {row.severity for row in verdict.rows} == {"refuted", "shown", "suspected", "bounded"}
    assert any(row.conditional for row in verdict.rows)
    assert any(block.bits for block in verdict.others)


def test_no_sentence_shows_how_it_was_made(said: dict[str, str]) -> None:
    names = [str(a) for a in Assumption]
    for where, words in said.items():
        if not where.endswith(".csv"):
            assert not re.search(r"\bNone\b|\bnan\b|ThreatModel|Finding\(", words), where
            assert not [name for name in names if name in words], where
            assert not re.search(r"\.\.(?!\.)|\. \.|: \.|\( |  |,,|;;|: :", words), where
        assert "tell apart" not in words, where


def test_every_epsilon_has_the_sign_of_its_kind(runs: list[Run], said: dict[str, str]) -> None:
    """A number with another sign, or with none, would be read as another kind."""
    by_sign = {
        sign: {value(f) for run in runs for f in run.findings if f.kind in kinds}
        for sign, kinds in {
            "≥": ["lower_bound"],
            "≤": ["guarantee"],
            "≈": ["estimate", "approximation"],
        }.items()
    }
    for where, words in said.items():
        for sign, number in re.findall(r"ε ([≥≤≈]) ([\d.,e+-]*\d|∞)", words):
            assert number in by_sign[sign], (where, sign, number)


def test_every_claim_of_a_leading_number_is_the_same_everywhere(
    runs: list[Run], said: dict[str, str], tmp_path: Path
) -> None:
    write_csv(runs, tmp_path)
    rows = list(csv.DictReader((tmp_path / "findings.csv").open(newline="")))
    every = [(run, f) for run in runs for f in run.findings]
    plain = [claim(f).replace("\N{NO-BREAK SPACE}", " ") for _, f in every]
    assert [row["claim"][: len(p)] for row, p in zip(rows, plain, strict=True)] == plain
    for run in runs:
        for part in parts(verdict_of(run)):
            for f in sentences.numbers_of(part):
                words = re.sub(r"\s+", " ", claim(f))
                assert words in said[f"terminal of {run.name}"]
                page_of = said[f"page of {run.name}"]
                assert words[1:] in page_of  # with a capital at its beginning, or without


def test_a_conditional_bound_is_never_without_its_condition(
    runs: list[Run], said: dict[str, str]
) -> None:
    bounds = [f for run in runs for f in run.findings if f.kind == "lower_bound"]
    unconditional = {value(f) for f in bounds if not f.is_conditional}
    others = [f for f in bounds if value(f) not in unconditional]
    assert others
    for where, words in said.items():
        for f in others:
            for found in re.finditer(rf"ε ≥ {re.escape(value(f))}(?![\d.])", words):
                before = words[: found.start()].lower()
                # Since the last other number, or the beginning of the sentence.
                assert condition(f).lower() in re.split(r"[≥≤≈]|\. ", before)[-1], where


def test_runs_of_different_size_line_up(runs: list[Run]) -> None:
    keys = [{row.asked for row in verdict_of(run).rows} for run in runs]
    assert keys[0] == keys[1]
    names = {quantity(f.quantity) for f in runs[0].findings}
    assert names <= {quantity(f.quantity) for f in runs[1].findings}


# Of the functions that return words, those that print numbers or make identifiers.
_NUMBERS = {"number", "value", "percent", "counted", "sureness", "slug", "plain_spaces"}


@pytest.mark.slow
def test_no_decision_depends_on_words(runs: list[Run], monkeypatch: Patch) -> None:
    """Whatever the sentences say, the same is compared, grouped, judged, advised and drawn."""
    limit = Limitation("mine", "Secure aggregation is off.")
    damage = RunWarning.of("clipped-coordinates", 50, 100)
    told = [replace(run, limitations=(limit,), warnings=(damage,)) for run in runs]
    before = _decisions(told)
    _silence(monkeypatch)
    assert told[0].findings[0].threat_model.sentence() == "x"
    mute = [
        replace(
            run,
            findings=tuple(replace(f, rule="x") for f in run.findings),
            limitations=(replace(limit, text="x"),),
            warnings=(replace(damage, text="x"),),
        )
        for run in told
    ]
    after = _decisions(mute)
    for name in before:
        assert after[name] == before[name], name


def _silence(monkeypatch: Patch) -> None:
    """Make every function that words something say "x", wherever it was imported."""
    for name in wording.Assumption:
        monkeypatch.setitem(wording._TABLE, name, ("x", wording._TABLE[name][1]))
    of_wording = inspect.getmembers(wording, inspect.isfunction)
    talks = [
        f
        for name, f in of_wording
        if f.__annotations__.get("return") == "str" and name not in _NUMBERS
    ]
    assert {wording.attacker, wording.claim, wording.condition} <= set(talks)
    ours = [m for name, m in sys.modules.items() if name.startswith("leakmeter.")]
    for module in ours:
        for name, one in list(vars(module).items()):
            if inspect.isfunction(one) and one in talks:
                monkeypatch.setattr(module, name, lambda *_, **__: "x")


def _decisions(runs: Sequence[Run]) -> dict[str, Any]:
    """Return all that is decided about runs, without a word."""
    made = [verdict_of(run) for run in runs]
    both = list(zip(runs, made, strict=True))
    return {
        "covers": [[[covers(a, b) for b in r.findings] for a in r.findings] for r in runs],
        "rows": [[_row(row, run) for row in verdict.rows] for run, verdict in both],
        "others": [
            [(block.attacker, _places(run, block.findings)) for block in verdict.others]
            for run, verdict in both
        ],
        "headline": [
            (v.headline[0], v.rows.index(v.headline[1]) if v.headline[1] else None) for v in made
        ],
        "told": [
            [_places(run, sentences.numbers_of(part)) for part in parts(verdict)]
            for run, verdict in both
        ],
        "advice": [
            [[words[:9] for words in _advised(part, run, verdict)] for part in parts(verdict)]
            for run, verdict in both
        ],
        "surprises": [[len(list(sentences.surprises(p))) for p in parts(v)] for v in made],
        "damage": [verdict.is_distorted for verdict in made],
        "figures": [(f.name, len(f.series)) for f in figures(runs)],
        "page": [(name, len(Page(page([run])).ids)) for run in runs for name in (run.name,)],
    }


def _row(row: Row, run: Run) -> tuple[Any, ...]:
    """Return a row, with its findings by their places in the report."""
    ends = [f for f in (row.shown, row.at_most) if f is not None]
    return row.asked, row.severity, row.cap, _places(run, row.findings), _places(run, ends)


def _places(run: Run, found: Sequence[Finding]) -> list[int]:
    return [next(i for i, f in enumerate(run.findings) if f is one) for one in found]


def _advised(part: Row | Block, run: Run, verdict: Verdict) -> list[str]:
    """Return all advice, also where silenced words make two of them alike."""
    rows = _of_row(part, run, verdict) if isinstance(part, Row) else _of_block(part, run)
    return list(rows)
