"""How a configuration becomes strategies and auditors."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi

from leakmeter.auditors import (
    Audited,
    MutualInformation,
    NeuralInformation,
    OneShotCanaries,
    RoundView,
)
from leakmeter.auditors.audited_round import Claims
from leakmeter.auditors.auditor import RoundFacts, share_confidence
from leakmeter.auditors.finding import ThreatModel
from leakmeter.auditors.hook.wrapper import chain
from leakmeter.auditors.information.theory import UpdateEntropy, update_entropy
from leakmeter.auditors.likelihood_ratio.auditor import AttackedRound, ConstantRound
from leakmeter.auditors.verdict.claim import attacker, covers, is_weaker
from leakmeter.auditors.verdict.verdict import judge
from leakmeter.fl_app import build
from leakmeter.fl_app.build.audit import AuditRun
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.client_app import client_app_of
from leakmeter.fl_app.config import settings
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, kebab
from leakmeter.fl_app.config.settings import NOISES
from leakmeter.fl_app.engines.inline import InlineGrid
from leakmeter.fl_app.task import load_task
from leakmeter.strategies import Central, Chosen, Distributed, Masked, Noised, RecordNoise


def test_the_chain_of_strategies_has_every_seam_in_its_place() -> None:
    kinds = [type(held) for held in chain(build.server_strategy(Config()))]
    assert kinds == [Masked, Chosen, FedAvg]
    noised = Config(noise="central", clip_norm=1.0)
    kinds = [type(held) for held in chain(build.server_strategy(noised))]
    assert kinds == [Masked, Noised, Chosen, FedAvg]
    kinds = [type(held) for held in chain(build.server_strategy(replace(noised, secagg="off")))]
    assert kinds == [Noised, Chosen, FedAvg]


def gaussian(config: Config) -> Central:
    """Return noise that ignores a setting."""
    return Central(config.noise_multiplier)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"added_by": "clients"}, "Central that added_by is 'server', got 'clients'"),
        (
            {"make": f"{__name__}:gaussian"},
            "distribution is 'gaussian', got 'skellam'",
        ),
        ({"needs_sums": "weak"}, "Central that needs_sums is False, got True"),
        ({"unit": "record"}, "Central that unit is 'client', got 'record'"),
    ],
)
def test_a_row_that_contradicts_its_mechanism_is_refused(
    row: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(noise="central", clip_norm=1.0, noise_distribution="skellam")
    monkeypatch.setattr(settings, "NOISES", {"central": replace(NOISES["central"], **row)})
    with pytest.raises(TypeError, match=reason):
        build.server_strategy(config)


def test_auditors_are_made_by_name_once_each() -> None:
    config = Config(auditors="one-shot", canaries=20, canary_repetitions=2, delta=1e-6)
    [auditor] = build.auditors(config, 210)
    assert isinstance(auditor, OneShotCanaries)
    assert (auditor.seats, auditor.canaries, auditor.repetitions) == (10, 20, 2)
    assert (auditor.delta, auditor.seed) == (1e-6, 0)
    assert build.auditors(Config(auditors="none"), 210) == []


def test_mutual_information_takes_its_settings() -> None:
    config = Config(auditors="mutual-information", mi_every=3, mi_target=4, mi_draws=9, mi_rank=5)
    [auditor] = build.auditors(config, 210)
    assert isinstance(auditor, MutualInformation)
    assert (auditor.every, auditor.target, auditor.observer) == (3, 4, "server")
    assert (auditor.plan.draws, auditor.plan.rank) == (9, 5)
    noised = replace(config, mi_target=-1, mi_rank=0, noise="central", clip_norm=1.0)
    [auditor] = build.auditors(noised, 210)
    assert (auditor.target, auditor.plan.rank, auditor.observer) == (None, None, "outsider")


def test_mine_takes_its_settings_and_shares_the_draws_of_mutual_information() -> None:
    config = Config(
        auditors="mutual-information,mine",
        mine_every=-1,
        mine_draws=9,
        mine_critics=3,
        mine_steps=2,
        mi_rank=5,
        seed=4,
    )
    information, mine = build.auditors(config, 210)
    assert isinstance(mine, NeuralInformation)
    assert (mine.every, mine.plan.draws, mine.plan.rank, mine.seed) == (-1, 9, 5, 4)
    assert (mine.critics.count, mine.critics.steps) == (3, 2)
    assert mine.drawing is information.drawing
    [alone] = build.auditors(replace(config, auditors="mine", mi_rank=0), 210)
    assert alone.plan.rank == 8


def limit_of(config: Config, client: int = 0) -> UpdateEntropy | None:
    """Return what limits mutual information in a run."""
    [auditor] = build.auditors(replace(config, auditors="mutual-information"), 210)
    assert isinstance(auditor, MutualInformation)
    assert auditor.theory.limit is not None
    return auditor.theory.limit(client)


def test_records_and_batches_limit_what_an_update_can_reveal(tiny_config: Config) -> None:
    records, epochs = len(load_task(tiny_config).dataset.train_y), tiny_config.epochs
    # 20 records a client, in batches of 8, 8 and 4.
    one = epochs * (math.lgamma(21) - 2 * math.lgamma(9) - math.lgamma(5))
    chosen = math.log(math.comb(records, 20))
    rerun = replace(tiny_config, lrt_game="rerun")
    assert limit_of(rerun).over(3) == pytest.approx(3 * one)
    for game in ("partition", "independent"):
        drawn = replace(tiny_config, lrt_game=game)
        assert limit_of(drawn).over(1) == pytest.approx(chosen + one)
        assert limit_of(drawn).over(3) == pytest.approx(chosen + 3 * one)
        assert limit_of(replace(drawn, algorithm="gd")).over(3) == pytest.approx(chosen)
    assert limit_of(replace(rerun, algorithm="gd")).over(3) == 0
    batch = replace(rerun, algorithm="fedsgd")
    assert limit_of(batch).over(1) == pytest.approx(math.log(math.comb(20, 8)))
    batch = replace(batch, lrt_game="independent")
    assert limit_of(batch).over(1) == pytest.approx(math.log(math.comb(records, 8)))


def test_clients_draw_shares_of_the_size_that_the_game_gives_them() -> None:
    config = Config()  # 1,433 records: clients 0 to 52 hold 24 of them, the others 23
    even = update_entropy(1433, 24, [8, 8, 8], epochs=2)
    odd = update_entropy(1433, 23, [8, 8, 7], epochs=2)
    assert [limit_of(config, c) for c in (0, 59)] == [even, even]
    dealt = replace(config, lrt_game="partition")
    assert [limit_of(dealt, c) for c in (0, 59)] == [even, odd]


def test_nothing_limits_an_update_where_more_than_records_is_random(tiny_config: Config) -> None:
    skewed = replace(tiny_config, partition="dirichlet-labels", dirichlet=5.0)
    skewed = replace(skewed, lrt_game="independent")
    assert limit_of(skewed) is None
    of_equal_size = replace(skewed, partition="dirichlet")
    assert limit_of(of_equal_size) == limit_of(replace(of_equal_size, partition="iid"))
    assert limit_of(replace(skewed, lrt_game="rerun")) is not None
    clipped = replace(tiny_config, clip_norm=1.0, noise="central")
    assert limit_of(clipped) is not None
    for noise in ("local", "distributed"):
        assert limit_of(replace(clipped, noise=noise)) is None
    filled = {"noise": "wfna", "wfna_floor": 0.02, "algorithm": "fedsgd", "lrt_game": "rerun"}
    assert AuditRun(replace(clipped, **filled)).entropy_of(0) is None


def test_the_default_job_prints_no_impossible_bits() -> None:
    """428 bits for a round and 7,707 for the run were printed, where 239 and 1,365 are random."""
    config = Config(auditors="mutual-information", rounds=2, mi_draws=4, mi_rank=2)
    task = load_task(config)
    [auditor] = build.auditors(config, task.dim)
    model = np.concatenate([p.detach().numpy().ravel() for p in task.initial.parameters()])
    sent = model.astype(np.float64)
    facts = RoundFacts(num_clients=30, total_weight=720.0)
    rng = np.random.default_rng(0)
    for server_round in (1, 2):
        clients = sorted(rng.choice(60, 30, replace=False).tolist())
        view = RoundView(server_round, sent, dict.fromkeys(clients, sent), sent, facts)
        measured, whole = auditor.observe(view)
        assert measured.value < 1
        assert whole.value == whole.cap == pytest.approx(238.6, abs=0.1)
        assert whole.saturated
    measured, whole = auditor.report()
    rounds = whole.threat_model.participations
    assert rounds is not None
    assert 1 <= rounds <= 2
    assert whole.value == whole.cap == pytest.approx(172.3 + 66.3 * rounds, abs=1)
    assert whole.saturated
    assert measured.value < 10


def test_a_model_too_small_for_canaries_is_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match=r"auditor one-shot: .* at least 100 parameters"):
        build.auditors(Config(), 99)


def test_water_filling_is_masked_and_the_server_counts_on_what_the_clients_do(
    tiny_config: Config,
) -> None:
    noise = {"noise": "wfna", "wfna_floor": 0.02, "clip_norm": 0.7, "algorithm": "fedsgd"}
    config = replace(tiny_config, auditors="none", **noise)
    masked, filled, *inner = chain(build.server_strategy(config))
    assert [type(held) for held in (masked, filled, *inner)] == [Masked, Noised, Chosen, FedAvg]
    assert isinstance(filled.mechanism, RecordNoise)
    room = 0.7 + 10 * math.sqrt(max(0.02, 0.7**2 / config.batch_size))
    assert filled.mechanism.clip_range == pytest.approx(config.lr * room)


def test_the_sampler_weighs_and_clips_as_the_runs_clients_do(tiny_config: Config) -> None:
    view = RoundView(1, np.zeros(210), {}, np.zeros(210), RoundFacts())
    assert AuditRun(tiny_config).sampler_of("independent", view).scale == 20.0
    noised = replace(tiny_config, noise="central", clip_norm=0.1)
    # The accounting knows no other weight.
    assert AuditRun(noised).sampler_of("independent", view).scale == 1.0


def test_only_the_attack_on_a_pair_holds_its_records_out(tiny_config: Config) -> None:
    names = "likelihood-ratio,mutual-information"
    config = replace(tiny_config, auditors=names, lrt_game="independent-held-out")
    view = RoundView(1, np.zeros(210), {}, np.zeros(210), RoundFacts())
    games = {a.name: a.sampler(view).game for a in build.auditors(config, 210)}
    assert games == {
        "likelihood-ratio": "independent-held-out",
        "mutual-information": "independent",
    }


@pytest.mark.usefixtures("flower_task")
def test_canaries_that_play_more_often_than_any_client_have_their_price(
    tiny_config: Config,
) -> None:
    # Once printed ε ≥ 206.8 beside ε ≤ 91.8: the price of one participation, against canaries of
    # five. Their price is 344.5; 91.8 is still that of a client, and covers no canary.
    config = replace(
        tiny_config,
        synthetic_examples=240,
        clients=110,
        canary_seats=8,
        rounds=10,
        auditors="one-shot",
        participation="once",
        canary_repetitions=5,
        noise="central",
        noise_multiplier=0.1,
        clip_norm=1.0,
        secagg="off",
    )
    start = ArrayRecord(load_task(config).new_model().state_dict())
    audited = Audited(build.server_strategy(config), build.auditors(config, 210))
    audited.start(InlineGrid(client_app_of(config), config.clients), start, num_rounds=10)
    assert audited.failures == []
    found = [f for f in audited.findings() if f.server_round is None and f.quantity == "epsilon"]
    own, guarantee = [
        f
        for f in found
        if (f.kind, f.adjacency, f.observer) == ("guarantee", "zero-out", "outsider")
    ]
    assert guarantee.value == pytest.approx(344.5, abs=0.05)
    assert guarantee.threat_model.participations == 5
    assert own.value == pytest.approx(91.8, abs=0.05)
    assert own.threat_model.participations == 1
    shown = [f for f in found if f.auditor == "one-shot" and f.kind == "lower_bound"]
    assert shown
    assert all(is_weaker(attacker(f), attacker(guarantee)) for f in shown)
    assert all(f.value <= guarantee.value for f in shown)
    proven = [f for f in shown if not f.is_conditional]
    assert proven
    assert all(covers(guarantee, f) and not covers(own, f) for f in proven)
    rows = judge(found).rows
    assert all(r.at_most == guarantee for r in rows if any(f in proven for f in r.findings))
    assert any(own in row.findings for row in rows)


def test_distributed_noise_reaches_its_target_without_dropouts_and_colluders(
    tiny_config: Config,
) -> None:
    # Forty clients, threshold 27, of which 13 may collude: 14 shares make the target.
    config = replace(
        tiny_config,
        clients=60,
        sample=38,
        noise="distributed",
        noise_multiplier=2.0,
        clip_norm=1.0,
    )
    strategy = build.server_strategy(config)
    [noised] = [one for one in chain(strategy) if isinstance(one, Noised)]
    noise = noised.mechanism
    assert noise == Distributed(2.0, min_honest=14)
    [masked] = [one for one in chain(strategy) if isinstance(one, Masked)]
    assert masked.bearable(40) == 13
    planned = noised.planned([range(40)], masked.bearable)
    assert planned is not None
    assert planned.colluders == 13
    assert planned.releases[0].noise_std == pytest.approx(2.0 * (27 / 14) ** 0.5)


@pytest.mark.parametrize("name", [name for name, owner in AUDITORS.items() if owner.every])
def test_an_auditor_names_the_option_that_makes_it_audit_fewer_rounds(
    name: str, tiny_config: Config
) -> None:
    """A log line once told people to type --…-every."""
    option = AUDITORS[name].every
    assert option in {spec.name for spec in fields(Config)}
    if name in ("likelihood-ratio", "mutual-information", "mine", "span"):
        [made] = build.auditors(replace(tiny_config, auditors=name, mine_draws=10), 210)
        assert made.fewer == f"--{kebab(option)} -1"


def test_every_auditor_that_skips_rounds_says_by_which_setting() -> None:
    named = {owner.every for owner in AUDITORS.values()} - {""}
    assert named == {spec.name for spec in fields(Config) if spec.name.endswith("_every")}


# --confidence reaches every lower bound, and every sentence about one.


def test_a_lower_bound_has_the_confidence_that_was_asked_for(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--auditors", "one-shot,likelihood-ratio", "--confidence", "0.8", "--rounds", "2"]
    assert main([*tiny, *more, "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run/report.json").read_text())
    lines = (tmp_path / "run/rounds.jsonl").read_text().splitlines()
    found = [*report["findings"], *(f for one in lines for f in json.loads(one)["findings"])]
    bounds = [f for f in found if f["kind"] == "lower_bound"]
    assert {f["auditor"] for f in bounds} == {"one-shot", "likelihood-ratio"}
    # Three bounds of the run share the failures: two of the canaries, one of the trials.
    assert [f["confidence"] for f in bounds] == pytest.approx([1 - 0.2 / 3] * len(bounds))
    assert report["verdict"]["confidence"] == pytest.approx(0.8)
    page = (tmp_path / "run/report.html").read_text()
    for text in (capsys.readouterr().out, page):
        assert "95 % confidence" not in text
        assert "80 % confidence" in text


def test_all_bounds_of_a_run_share_its_confidence_once(tiny_config: Config) -> None:
    config = replace(tiny_config, auditors="one-shot,likelihood-ratio", noise="none")
    made = build.auditors(config, 210)
    share_confidence(made)  # the hook does so again
    assert sum(one.num_bounds * (1 - one.confidence) for one in made) == pytest.approx(0.05)


def test_the_rule_of_three_is_one_of_its_confidence() -> None:
    for confidence, times in ((0.95, 3.0), (0.99, 4.7), (0.5, 0.7)):
        claims = Claims(
            "x", ThreatModel(observer="server", sees="round sum"), confidence=confidence
        )
        where = AttackedRound(1, "rerun", target=0, others=3)
        facts = ConstantRound(where, 100, is_rounded=False).finding(claims).facts
        assert facts["largest chance"] == pytest.approx(times / 100)
        assert (1 - times / 100) ** 100 <= 1 - confidence


ADAM = {"server_beta1": 0.5, "server_beta2": 0.9, "server_tau": 0.1}
MOMENTS = {"beta_1": 0.5, "beta_2": 0.9, "tau": 0.1}


@pytest.mark.parametrize(
    ("kind", "given", "taken"),
    [
        (FedAvg, {}, {}),
        (FedAvgM, {}, {"server_learning_rate": 1.0, "server_momentum": 0.9}),
        (
            FedAvgM,
            {"server_lr": 0.7, "server_momentum": 0.4},
            {"server_learning_rate": 0.7, "server_momentum": 0.4},
        ),
        (FedAdam, ADAM, {**MOMENTS, "eta": 0.1}),
        (FedYogi, {**ADAM, "server_lr": 0.03}, {**MOMENTS, "eta": 0.03}),
    ],
)
def test_the_server_takes_its_settings(
    kind: type, given: dict[str, Any], taken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    *_, inner = chain(build.server_strategy(Config(server=kind.__name__.lower(), **given)))
    assert type(inner) is kind
    assert {name: getattr(inner, name) for name in taken} == taken
    assert inner.fraction_evaluate == 0.0
    assert caplog.text == ""  # nothing about federated evaluation, which is off on purpose
