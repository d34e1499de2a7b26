"""What a run says, so far or at its end, and what in it cannot be."""

from __future__ import annotations

import shlex
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakmeter.auditors import Finding, ThreatModel
from leakmeter.auditors.finding import RunWarning, WarningKind
from leakmeter.auditors.run_log import RoundLine
from leakmeter.auditors.verdict import sentences
from leakmeter.auditors.wording import Assumption
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.settings import AUTO
from leakmeter.fl_app.report.judge import advice, next_steps, noise_changes, so_far, verdict_of
from leakmeter.fl_app.report.page import first_screen, page
from leakmeter.fl_app.report.read import Rehearsal, Round, Run
from tests.fl_app.report.makers import CANARY, bound, conditional, finding, guarantee, one, run
from tests.fl_app.report.test_page import Page
from tests.helpers.fixtures import Patch

SERVER = replace(CANARY, observer="server", sees="round sum", holds="two updates")


def said(*found: Finding) -> list[str]:
    wrong = ": an assumption of one of them does not hold"
    ends = [sentences.ends(row) for row in verdict_of(run(*found)).rows]
    return [words for words in ends if words.endswith(wrong)]


def test_a_bound_above_its_guarantee_is_a_contradiction() -> None:
    # Whoever sees noised sums sees the models too, so two attackers are named.
    words = said(guarantee(1.0), bound(2.0))
    assert len(words) == 2
    assert said(guarantee(2.5), bound(2.0)) == []
    assert said(guarantee(1.0), conditional(2.0)) == []
    assert said(guarantee(1.0, delta=1e-3), bound(2.0)) == []  # another promise


def test_what_is_called_proven_never_shrinks_while_a_run_goes_on() -> None:
    """Bounds of single rounds go up and down; those of all rounds together are kept."""
    together = (Assumption.FAIR_COINS, Assumption.ALL_ROUNDS_TOGETHER)
    anytime, single = (0.0, 0.4, 0.9, 0.7, 0.0), (2.0, 2.4, 0.8, 2.3, 1.1)
    found: list[Finding] = []
    proven = []
    for i, (held, alone) in enumerate(zip(anytime, single, strict=True), start=1):
        found.append(bound(held, server_round=i, assumptions=together))
        found.append(bound(alone, server_round=i, threat_model=SERVER, adjacency="replace"))
        unfinished = replace(run(*found), is_finished=False)
        verdict = verdict_of(unfinished)
        assert verdict.confidence == pytest.approx(0.95)  # one bound, however many rounds
        proven.append(max(row.low for row in verdict.rows))
        [kept] = so_far(unfinished).values()
        assert [f.value for f in kept] == list(single[:i])  # those of earlier rounds as well
        words = first_screen(unfinished).striptags()
        # Once something is proven the server, who sees these models too, has that instead.
        assert (f"ε ≥ {alone:g} (round {i})" in words) == (proven[-1] == 0)
        assert verdict.is_pending == (proven[-1] == 0)
    assert proven == [0.0, 0.4, 0.9, 0.9, 0.9]
    assert so_far(run(*found)) == {}  # a finished run has its report
    estimated = replace(run(finding(kind="estimate", server_round=7)), is_finished=False)
    [part] = verdict_of(estimated).rows
    assert "this round (7)" in " ".join(sentences.findings_in_words(part))


def our_run(*found: Finding, **changes: object) -> Run:
    config = Config.from_mapping({"rounds": 6, "clients": 40, "sample": 10, **changes})
    return Run("demo", Path("/somewhere/demo"), config=config.to_mapping(), findings=found)


def settings(command: str) -> dict[str, str]:
    """Return the options of a command, which must be settings that go together."""
    words = shlex.split(command)[2:]
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given.pop("--out")
    kinds = {name: type(value) for name, value in Config().to_mapping().items()}
    typed = {k[2:]: v if v == AUTO else kinds[k[2:]](v) for k, v in given.items()}
    Config.from_mapping(typed)
    return given


def _noise_asked(leaking: Run) -> dict[str, str]:
    """Return the options of the step that adds noise."""
    return settings(next(s for s in next_steps(leaking) if "guarantee" in s.text).command)


@pytest.mark.parametrize(
    ("found", "changes", "noise"),
    [
        (bound(9.0, observer="outsider"), {}, "central"),
        (bound(9.0, observer="server", sees="round sum"), {}, "distributed"),
        (bound(9.0, observer="server", sees="round sum"), {"secagg": "off"}, "local"),
        (bound(9.0, observer="server"), {"noise": "central", "clip-norm": 2.0}, "distributed"),
    ],
)
def test_a_leak_gets_the_noise_that_its_attacker_does_not_see_through(
    found: Finding, changes: dict[str, object], noise: str
) -> None:
    given = _noise_asked(our_run(found, **changes))
    assert given["--noise"] == noise
    assert given["--target-epsilon"] == "8"
    assert given["--clip-norm"] == ("2" if changes.get("clip-norm") else AUTO)


def test_a_target_under_an_integer_law_gets_the_grid_or_the_law_that_it_needs() -> None:
    found = bound(9.0, observer="server", sees="round sum")
    small = {
        "noise": "distributed",
        "noise-distribution": "skellam",
        "secagg-bits": 8,
        "clip-norm": 1.0,
    }
    given = _noise_asked(our_run(found, **small))
    assert given["--noise-distribution"] == "skellam"
    assert int(given.get("--secagg-bits", Config.secagg_bits)) == Config.secagg_bits
    central = {**small, "noise": "central", "secagg": "off", "secagg-bits": 32}
    given = _noise_asked(our_run(found, **central))
    assert given["--noise"] == "local"
    assert given.get("--noise-distribution", "gaussian") == "gaussian"


@pytest.mark.parametrize(("guaranteed", "asked"), [(8.0, "4"), (1800.0, "8")])
def test_a_run_with_a_guarantee_is_asked_for_half_of_it_or_what_means_something(
    guaranteed: float, asked: str
) -> None:
    found = (bound(2.0), guarantee(guaranteed))
    steps = next_steps(our_run(*found, noise="central", **{"clip-norm": 1.0}))
    assert settings(steps[0].command)["--target-epsilon"] == asked


def test_noise_against_some_is_not_asked_to_halve_what_others_are_limited_to() -> None:
    seen = {"observer": "server", "sees": "updates"}
    limits = (guarantee(19.0, **seen), guarantee(1.0))  # an outsider sees their mean
    local = {"noise": "local", "secagg": "off", "clip-norm": 1.0}
    given = _noise_asked(our_run(bound(2.0, **seen), *limits, **local))
    assert given["--target-epsilon"] == "8"


def test_a_guarantee_against_another_attacker_is_halved_too() -> None:
    suspected = finding(kind="estimate", value=3.0, null_band=(0.0, 1.0))
    found = (suspected, guarantee(8.0, adjacency="add-remove"))
    noised = our_run(*found, noise="central", **{"clip-norm": 1.0, "target-epsilon": 8.0})
    assert _noise_asked(noised)["--target-epsilon"] == "4"


@pytest.mark.parametrize(
    ("noise", "settings", "accuracies", "without_noise", "free"),
    [
        ("central", {}, (0.2, 0.3), 0.9, 0.9),
        ("central", {"noise": "none"}, (0.8, 0.9), None, 0.9),
        ("central", {}, (0.3,), 0.9, None),  # fewer rounds than the run
        ("none", {"noise": "central"}, (0.2, 0.3), 0.9, None),
    ],
)
def test_the_price_of_noise_is_part_of_the_verdict_where_it_is_known(
    noise: str,
    settings: dict[str, str],
    accuracies: tuple[float, ...],
    without_noise: float | None,
    free: float | None,
) -> None:
    clip = {} if noise == "none" else {"clip-norm": 1.0}
    lines = tuple(RoundLine(n, 9, {"accuracy": 0.35}) for n in (1, 2))
    heard = Rehearsal(settings=settings, seed=0, accuracies=accuracies, without_noise=without_noise)
    made = our_run(bound(1.0), guarantee(8.0), noise=noise, **clip)
    verdict = verdict_of(replace(made, rounds=lines, rehearsals=(heard,)))
    assert verdict.without_noise == free
    costs = "The price is accuracy: 0.350, against 0.900 without noise and canaries."
    assert sentences.headline(verdict).endswith(costs) == (free is not None)
    assert verdict.to_json()["accuracy_without_noise"] == free


@pytest.mark.parametrize(
    ("noise", "is_first"), [("none", True), ("central", True), ("local", False)]
)
def test_updates_that_the_server_sees_come_first(noise: str, is_first: bool) -> None:
    clip = {} if noise == "none" else {"clip-norm": 1.0}
    steps = next_steps(our_run(bound(9.0), secagg="off", noise=noise, **clip))
    assert steps[0].text.startswith("Turn on secure aggregation") == is_first


def test_a_damaged_run_is_mended_before_anything_else() -> None:
    damage = RunWarning.of("non-finite-updates", 9, 9)
    steps = next_steps(replace(our_run(bound(9.0), lr=1e30), warnings=(damage,)))
    assert [step.text for step in steps] == ["Lower the clients' learning rate:"]
    assert "--lr" not in settings(steps[0].command)  # the default


def test_more_rounds_cost_a_larger_epsilon_or_more_noise() -> None:
    few = RunWarning.of("few-canaries", 3, 9)
    for target, cost in ((0.0, "ε grows with the rounds"), (8.0, "the same guarantee then needs")):
        noised = our_run(
            bound(0.0), noise="central", **{"clip-norm": 1.0, "target-epsilon": target}
        )
        steps = next_steps(replace(noised, warnings=(few,)))
        assert any(cost in step.text for step in steps)


def test_one_command_is_named_once() -> None:
    few = RunWarning.of("few-canaries", 3, 9)
    steps = next_steps(replace(our_run(bound(0.0)), warnings=(few,)))
    commands = [step.command for step in steps]
    assert commands[0].endswith("--out /somewhere/demo-longer")
    assert len(set(commands)) == len(commands)


def test_the_advice_to_release_less_repeats_no_number_and_says_that_it_proves_nothing() -> None:
    final = ThreatModel(observer="outsider", sees="final model", holds="canary", knows_cohort=True)
    advice = "Release only the final model; less is shown in it (no proof of less)."
    for often, is_said in ((1, True), (19, False)):  # clients that play more often leave more in it
        less = bound(0.0, threat_model=final, facts={"client_rounds": often})
        words = [step.text for step in next_steps(our_run(bound(9.0), less))]
        assert (advice in words) == is_said


def test_there_are_at_most_three_steps_and_the_first_command_is_compared() -> None:
    steps = next_steps(our_run(bound(9.0)))
    assert len(steps) <= 3
    assert steps[-1].command == "python run_sim.py report /somewhere/demo /somewhere/demo-central-8"


@pytest.mark.parametrize(
    ("below", "folder"), [("here", "runs/my demo"), ("home", "~/runs/my demo")]
)
def test_folders_are_named_as_their_user_may_type_them(
    below: str, folder: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    ours = replace(our_run(bound(9.0)), folder=tmp_path / below / "runs" / "my demo")
    [first, *_, compared] = next_steps(ours)
    assert shlex.split(first.command)[-1] == f"{folder}-central-8"
    unfinished = replace(ours, is_finished=False)
    for command in (first.command, compared.command, next_steps(unfinished)[0].command):
        words = subprocess.run(
            ["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        named = [Path(word) for word in words if "my demo" in word]
        assert named
        assert all((here / one).is_relative_to(tmp_path / below / "runs") for one in named)


@pytest.mark.parametrize(
    ("found", "changes", "accuracy", "first", "advised"),
    [
        ((), {"auditors": "none"}, 0.9, "Audit an ε", {"--auditors": "one-shot"}),
        (
            (finding(kind="diagnostic", quantity="clients", value=1.0),),
            {"auditors": "recorder,mine"},
            0.9,
            "Audit an ε",
            {"--auditors": "recorder,mine,one-shot"},
        ),
        ((bound(9.0),), {}, 0.12, "The model has learnt nothing", {"--rounds": "12"}),
        (
            (bound(0.0), guarantee(8.0)),
            {"noise": "distributed", "clip-norm": 1.0},
            0.096,
            "The model has learnt nothing",
            {"--model": "linear", "--target-epsilon": "2..32"},
        ),
        (
            (bound(0.0, observer="server"), guarantee(2.0, adjacency="replace")),
            {"noise": "central", "clip-norm": 1.0},
            0.9,
            "Play more canaries",
            {},
        ),
    ],
)
def test_what_makes_all_other_numbers_worthless_is_the_first_step(
    found: tuple[Finding, ...],
    changes: dict[str, Any],
    accuracy: float,
    first: str,
    advised: dict[str, str],
) -> None:
    ours = replace(our_run(*found, **changes), rounds=(Round(1, accuracy, 10, {}),))
    steps = next_steps(ours)
    assert steps[0].text.startswith(first)
    words = shlex.split(steps[0].command)
    assert all(words[words.index(name) + 1] == value for name, value in advised.items())
    covered = any(step.text.startswith("Let clients add the noise") for step in steps)
    assert covered == (changes.get("noise") == "central")


def test_a_card_advises_the_noise_of_the_next_steps_with_its_effect() -> None:
    ours = our_run(bound(9.0, observer="server", sees="round sum", adjacency="replace"))
    change = noise_changes(ours)
    assert change is not None
    heard = Rehearsal(settings=change, seed=0, accuracies=(0.088,), without_noise=0.94)
    for made, effect in ((ours, "not rehearsed"), (replace(ours, rehearsals=(heard,)), "0.088")):
        verdict = verdict_of(made)
        words = " ".join(advice(verdict.rows[0], made, verdict))
        assert "--target-epsilon 8 --target-adjacency replace (accuracy " in words
        assert effect in words


def test_a_page_prints_the_steps_of_the_terminal() -> None:
    ours = our_run(bound(9.0))
    said = Page(page([ours])).words
    assert all(step.command in said for step in next_steps(ours))


@pytest.mark.parametrize(
    ("stated", "advised"),
    [
        ({"target-epsilon": 0.05}, {"--target-epsilon": "8"}),
        ({}, {"--noise-multiplier": "0.3"}),
        ({"secagg": "off", "noise": "local"}, {"--noise-multiplier": "0.05"}),
    ],
)
def test_noise_that_drowns_the_updates_is_named_in_place_of_the_learning_rate(
    stated: dict[str, Any], advised: dict[str, str]
) -> None:
    noise = {"noise": "central", "clip-norm": 1.0, "noise-multiplier": 100.0, "lr": 0.3}
    damage = RunWarning.of("non-finite-updates", 5, 10)
    noised = replace(
        our_run(bound(0.0), **{**noise, **stated}),
        warnings=(damage,),
        parameters=17610,
        rounds=(Round(1, 0.1, 40, {}),),
    )
    [first, *_] = next_steps(noised)
    assert first.text.startswith("Too much noise: it is ")
    assert settings(first.command).items() >= advised.items()
    few = replace(noised, config={**noised.config, "noise-multiplier": 0.5, "noise": "central"})
    assert next_steps(few)[0].text.startswith("Lower the clients' learning rate")


def test_another_project_gets_words_and_no_command() -> None:
    steps = next_steps(replace(our_run(bound(9.0)), config={}))
    assert steps
    assert not any(step.command for step in steps)


def by_flower(*found: Finding, launch: str = "flwr run", **more: Any) -> Run:
    plain = our_run(*found)
    return replace(plain, config={**plain.config, "engine": "ray", "launch": launch}, **more)


def flower_settings(command: str) -> dict[str, Any]:
    """Return what a command of Flower's sets, which must go together."""
    words = shlex.split(command)
    given = dict(tomllib.loads(words[words.index("--run-config") + 1].replace(" ", "\n")))
    Config.from_mapping({k: v for k, v in given.items() if k not in ("out", "resume")})
    return given


def test_a_run_by_flower_is_made_again_by_flower() -> None:
    [noise, compared] = next_steps(by_flower(bound(9.0, observer="server", sees="round sum")))
    start = "flwr run . --federation-config 'num-supernodes=40' --run-config '"
    assert noise.command.startswith(start)
    given = flower_settings(noise.command)
    assert given["noise"] == "distributed"
    assert given["target-epsilon"] == 8.0
    assert given["out"] == "/somewhere/demo-distributed-8"
    assert not {"engine", "ray-address", "launch"} & set(given)
    assert compared.command.endswith("report /somewhere/demo /somewhere/demo-distributed-8")
    [first, *_] = next_steps(by_flower(bound(9.0), is_finished=False))
    assert flower_settings(first.command) == {"resume": "/somewhere/demo"}
    [first, *_] = next_steps(by_flower(bound(9.0), launch="deployment"))
    assert first.command.startswith("flwr run . --run-config ")  # it has nodes of its own


def test_a_guest_reads_python_and_no_option_of_ours() -> None:
    few = RunWarning.of("few-canaries", 2, 6)
    rounds = tuple(Round(n, None, 40, {}) for n in (1, 2, 3))
    guest = Run("g", Path("/g"), findings=(bound(0.0),), warnings=(few,), rounds=rounds)
    steps = next_steps(guest)
    assert steps[0].command == "OneShotCanaries(seats=8)"
    said = [word for step in steps for word in (step.text, step.command)]
    said += [one.text for one in guest.warnings]
    assert not any("--" in words or "run_sim" in words for words in said)


@pytest.mark.parametrize(
    ("made", "seats"),
    [
        (our_run(), "(--canary-seats)"),
        (by_flower(), "(canary-seats)"),
        (Run("guest", Path("/g")), "(OneShotCanaries(seats=…))"),
    ],
)
def test_warnings_are_in_the_language_of_who_made_the_run(made: Run, seats: str) -> None:
    warned = replace(made, warnings=(RunWarning.of("few-canaries", 2, 6),))
    assert f"more canary seats {seats}, or more rounds" in warned.warnings[0].text


@pytest.mark.parametrize("kind", ["abandoned-rounds", "dropouts", "blank-updates"])
def test_clients_that_failed_come_before_everything_else(kind: WarningKind) -> None:
    damage = RunWarning.of(kind, 1, 100)
    steps = next_steps(replace(our_run(bound(9.0)), warnings=(damage,)))
    assert steps[0].text.startswith("Find ")
    assert len({step.text for step in steps}) == len(steps)


def test_dropouts_that_were_asked_for_are_nobodys_failure() -> None:
    lost = RunWarning.of("dropouts", 9, 100)
    steps = next_steps(replace(our_run(bound(9.0), dropout=0.1), warnings=(lost,)))
    assert not any("did not answer" in step.text for step in steps)


SUM = ThreatModel(observer="server", sees="round sum", holds="two updates", knows_cohort=True)
MORE = "More clients per round"


def test_advice_names_what_helps_against_this_observer() -> None:
    busy = {"client_rounds": 1}
    final = bound(0.5, threat_model=replace(CANARY, sees="final model"), facts=busy)
    whole = run(bound(5.0), final, noise="none", sample=30)
    made = verdict_of(whole)
    todo = " ".join(advice(made.rows[0], whole, made)).replace("\N{NO-BREAK SPACE}", " ")
    assert "Release only the final model; less is shown in it (no proof of less)." in todo
    assert "--noise central" in todo
    assert "(--sample, now 30)" in todo
    _, server = one(bound(1.0, threat_model=SUM, adjacency="replace"), noise="none", secagg="off")
    assert "--noise distributed" in server
    assert "Turn secure aggregation on" in server
    updates = ThreatModel(observer="server", sees="updates", holds="canary", participations=1)
    for noise, words in (("none", ": --noise local --clip-norm auto"), (None, ".")):
        _, seen = one(bound(1.0, threat_model=updates, auditor="single-update"), noise=noise)
        assert f"or let each client clip and add enough noise itself{words}" in seen
        assert MORE not in seen  # a single update has nobody to hide among
    _, nothing = one(bound(0.0, threat_model=updates, auditor="single-update", cap=9.0))
    assert "give it more canaries" in nothing
    _, certain = one(bound(86.0, threat_model=updates, auditor="single-update", saturated=True))
    assert "give it more" not in certain  # there is nothing left to show
    _, noised = one(bound(1.0), noise="central", noise_multiplier=0.5)
    assert "More noise (--noise-multiplier, now 0.5) or fewer rounds" in noised
    _, single = one(bound(1.0, threat_model=SUM), noise="distributed", noise_multiplier=0.5)
    assert "More noise (--noise-multiplier, now 0.5)." in single
    _, record = one(bound(1.0, unit="record", observer="server"), noise="wfna", wfna_floor=0.1)
    assert "Raise the floor of the clients' noise (--wfna-floor, now 0.1)" in record


@pytest.mark.parametrize(("every", "final"), [(87.0, 27.0), (5.0, 4.8), (3.0, 3.0)])
def test_numbers_that_say_the_same_are_no_reason_to_release_less(
    every: float, final: float
) -> None:
    last = bound(final, threat_model=replace(CANARY, sees="final model"))
    whole = run(bound(every), last, noise="none")
    made = verdict_of(whole)
    assert "final model" not in " ".join(advice(made.rows[0], whole, made))


def test_a_floor_is_raised_only_where_noise_is_filled_up() -> None:
    _, said = one(bound(1.0, unit="record", auditor="membership"), noise="none", wfna_floor=0.0)
    assert "floor" not in said
    assert "--noise central" in said


@pytest.mark.parametrize(
    ("kind", "quantity"), [("lower_bound", "epsilon"), ("approximation", "mutual information")]
)
def test_more_clients_are_no_advice_where_one_data_set_is_partitioned(
    kind: Any, quantity: str
) -> None:
    about = {"kind": kind, "confidence": 0.95, "quantity": quantity}
    _, dealt = one(finding(threat_model=replace(SUM, game="partition"), **about))
    _, drawn = one(finding(threat_model=replace(SUM, game="independent"), **about))
    _, prose = one(finding(threat_model=replace(SUM, sees=None), **about))
    assert MORE not in dealt + prose
    assert f"{MORE} leave less of each in the sum." in drawn


@pytest.mark.parametrize(
    ("noise", "model", "helps"),
    [
        ("central", CANARY, False),  # a fixed multiplier gives the same ε for any cohort
        ("central", SUM, True),  # the server sees the sum before that noise
        ("distributed", CANARY, False),
        ("distributed", SUM, False),
        ("local", SUM, True),
        ("none", CANARY, True),
    ],
)
def test_more_clients_are_no_advice_under_noise_that_they_do_not_change(
    noise: str, model: ThreatModel, helps: bool
) -> None:
    _, said = one(bound(1.0, threat_model=model), noise=noise)
    assert (MORE in said) is helps


def test_noise_of_another_project_is_known_from_its_guarantee() -> None:
    _, said = one(bound(1.0), guarantee(3.0, facts={"noise": "central"}))
    assert MORE not in said
    _, other = one(bound(1.0))
    assert MORE in other


def test_settings_of_another_project_are_not_named() -> None:
    _, said = one(bound(1.0))
    assert "--" not in said
    own = Run("run", Path("/run"), config={"noise": 3, "sample": 9}, findings=(bound(1.0),))
    verdict = verdict_of(own)
    [row] = verdict.rows
    assert "--" not in " ".join(advice(row, own, verdict))
