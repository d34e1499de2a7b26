"""Settings that do not go together: the one that is refused, by the run that is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leakmeter.fl_app.config.config import Config
from tests.helpers.refusals import refuses

Changes = dict[str, Any]

SMALL: Changes = {
    "dataset": "synthetic",
    "synthetic_examples": 120,
    "model": "linear",
    "clients": 6,
    "sample": 3,
    "canary_seats": 2,
    "rounds": 4,
    "auditors": "one-shot",
}
ALONE: Changes = {**SMALL, "clients": 40, "sample": 10, "auditors": "none"}
CENTRAL: Changes = {"noise": "central", "clip_norm": 0.5}
SKELLAM: Changes = {"noise": "distributed", "clip_norm": 0.5, "noise_distribution": "skellam"}
WFNA: Changes = {"noise": "wfna", "wfna_floor": 0.02, "clip_norm": 1.0, "algorithm": "fedsgd"}
RECORDS: Changes = {**ALONE, "algorithm": "fedsgd", "wfna_floor": 0.02, "clip_norm": 1.0}
GD: Changes = {"noise": "record-gd", "algorithm": "gd", "epochs": 1}
SPAN: Changes = {"auditors": "span", "sample": 1, "secagg": "off"}
WHOLE: Changes = {"auditors": "transcript", "transcript_mode": "whole-runs"}
HIDDEN: Changes = {"auditors": "transcript", "transcript_cohorts": "hidden"}
CASE: Changes = {"mi_case": "independent"}
FEDSGD: Changes = {**CASE, "algorithm": "fedsgd"}
PLANTED: Changes = {**SMALL, "auditors": "planted-records", "planted_clients": 4}
GENERATED: Changes = {**SMALL, "clients": 10**6, "synthetic_per_client": 10}
ADAPTIVE: Changes = {"clipping": "adaptive"}

# The run, then how it is changed and which option is refused; all but these changes work.
RUNS: dict[str, tuple[Changes, list[tuple[Changes, str]]]] = {
    "the default job": (
        {},
        [
            ({"noise": "central"}, "--clip-norm"),
            ({"clip_norm": 1.0}, "--clip-norm"),
            ({"ledger": "x"}, "--ledger"),
            ({"budget": 1.0}, "--budget"),
            ({"over_budget": "ask"}, "--over-budget"),
            ({"noise": "local", "clip_norm": 1.0, "noise_multiplier": 0.0}, "--noise-multiplier"),
            ({"noise": "distributed", "clip_norm": 1.0, "secagg": "off"}, "--secagg"),
            ({"noise": "local", "clip_norm": 1.0, **ADAPTIVE}, "--clipping"),
            (ADAPTIVE, "--noise"),
            ({**CENTRAL, **ADAPTIVE, "noise_multiplier": 4.0}, "--noise-multiplier"),
            ({"participation": "once"}, "--rounds"),
            ({"canaries": 301}, "--canaries"),
            ({"canaries": 151, "canary_repetitions": 2}, "--canaries"),
            ({"auditors": "one-shot,mine,one-shot"}, "--auditors"),
            ({"auditors": "single-update", "canary_seats": 0}, "--canary-seats"),
            ({"auditors": "one-shot", "lrt_models": 2}, "--lrt-models"),
            ({"device": "gpu"}, "--device"),
            ({"dataset": "mnis"}, "--dataset"),
            (SPAN, "--sample"),
            ({**SPAN, "auditors": "transcript"}, "--sample"),
            ({"inversion_images": 0}, "--inversion-images"),
            ({"inversion_steps": 10**6}, "--inversion-steps"),
            ({"inversion_every": -2}, "--inversion-every"),
            ({"span_every": -2}, "--span-every"),
            ({"auditors": "membership", "membership_shadows": 1}, "--membership-shadows"),
            ({"membership_shadows": 257}, "--membership-shadows"),
            ({"membership_every": -2}, "--membership-every"),
            ({"auditors": "transcript", "lrt_game": "rerun"}, "--lrt-game"),
            ({"auditors": "transcript", "lrt_target": 60}, "--lrt-target"),
            ({"transcript_trials": 5}, "--transcript-trials"),
            ({**HIDDEN, "participation": "epochs"}, "--participation"),
            ({**WHOLE, "server": "fedadam"}, "--server"),
            ({**WHOLE, "server_lr": 0.5}, "--server-lr"),
            ({**WHOLE, "clip_aggregate": 1.0}, "--clip-aggregate"),
            ({**CENTRAL, "clip_aggregate": 1.0}, "--clip-aggregate"),
            (CASE, "--mi-case"),
            ({**FEDSGD, "auditors": "one-shot"}, "--mi-case"),
            ({**FEDSGD, "lrt_game": "partition"}, "--mi-case"),
            ({"mi_c0": 1.0}, "--mi-c0"),
            ({"mi_sigma": 0.5}, "--mi-sigma"),
            ({"mi_entropy": 2.0}, "--mi-entropy"),
            ({"colluders": 29}, "--colluders"),
        ],
    ),
    "a secure sum": (
        SMALL,
        [
            ({"secagg": "off", "colluders": 1}, "--colluders"),
            ({"secagg": "off", "secagg_bits": 16}, "--secagg-bits"),
            ({"secagg_neighbours": 5}, "--secagg-neighbours"),
            ({"secagg_neighbours": 6}, "--secagg-neighbours"),
            ({"secagg_neighbours": 4, "participation": "poisson"}, "--secagg-neighbours"),
            ({"secagg_threshold": 0.5}, "--secagg-threshold"),
            ({"secagg_bits": 65}, "--secagg-bits"),
            ({"colluders": 2}, "--colluders"),
            ({"dropout": 1.0}, "--dropout"),
        ],
    ),
    "a target": (
        {**ALONE, **CENTRAL, "target_epsilon": 2.0},
        [
            ({"noise": "none", "clip_norm": 0.0}, "--noise"),
            ({**ADAPTIVE, "sample": 30}, "--clipping"),
            ({"noise": "distributed", "dropout": 0.1}, "--dropout"),
            ({"target_epsilon": -1.0}, "--target-epsilon"),
            ({"target_epsilon": 1e6}, "--target-epsilon"),
            ({"target_adjacency": "replace", "target_epsilon": 0.0}, "--target-adjacency"),
            (
                {**ADAPTIVE, "target_adjacency": "replace", "secagg": "off", "sample": 30},
                "--target-adjacency",
            ),
        ],
    ),
    "integer noise": (
        {**ALONE, **SKELLAM},
        [
            ({"noise": "local"}, "--noise-distribution"),
            ({"noise": "none", "clip_norm": 0.0}, "--noise-distribution"),
            ({**CENTRAL, **ADAPTIVE, "noise_multiplier": 0.1}, "--noise-distribution"),
            ({"noise_distribution": "laplace"}, "--noise-distribution"),
        ],
    ),
    "filled records": (
        {**SMALL, **WFNA, "auditors": "record-likelihood-ratio,one-shot"},
        [
            ({"wfna_floor": 0.0}, "--wfna-floor"),
            ({"wfna_floor": -1.0}, "--wfna-floor"),
            ({"wfna_blocks": 0}, "--wfna-blocks"),
            ({"secagg": "off"}, "--secagg"),
            ({"algorithm": "gd"}, "--algorithm"),
            ({"batch_size": 0}, "--batch-size"),
            ({"clip_norm": 0.0}, "--clip-norm"),
            ({"ledger": "somewhere"}, "--ledger"),
            (ADAPTIVE, "--clipping"),
            ({"noise": "central"}, "--wfna-floor"),
            ({"noise": "central", "wfna_floor": 0.0}, "--noise"),
        ],
    ),
    "noise on records": (
        {**RECORDS, "noise": "record-sgd"},
        [
            ({"wfna_floor": 0.0}, "--wfna-floor"),
            ({"algorithm": "fedavg"}, "--algorithm"),
            ({"noise": "record-isotropic", "algorithm": "gd"}, "--algorithm"),
            ({"noise": "record-gd"}, "--algorithm"),
            ({**GD, "epochs": 2}, "--epochs"),
            ({"batch_size": 0}, "--batch-size"),
            ({**GD, "secagg": "off"}, "--secagg"),
            ({**GD, "wfna_blocks": 2}, "--wfna-blocks"),
            ({**GD, "ledger": "somewhere"}, "--ledger"),
            ({**GD, "target_epsilon": 1.0}, "--noise"),
            ({"auditors": "record-likelihood-ratio"}, "--noise"),
        ],
    ),
    "planted records": (
        PLANTED,
        [
            ({"auditors": "membership,planted-records"}, "--planted-generator"),
            ({"planted_clients": 7}, "--planted-clients"),
            ({"planted_decoys": 10}, "--planted-decoys"),
            ({"planted_generator": "texts"}, "--planted-generator"),
            ({"synthetic_per_client": 5}, "--synthetic-per-client"),
        ],
    ),
    "generated clients": (
        GENERATED,
        [
            ({"auditors": "likelihood-ratio", "lrt_game": "partition"}, "--lrt-game"),
            ({"auditors": "membership"}, "--synthetic-per-client"),
        ],
    ),
}


def rows() -> Iterator[Any]:
    """Yield the settings of each row, the option that is refused, and a name for both."""
    for run, (usual, cases) in RUNS.items():
        for changes, option in cases:
            words = " ".join(f"{name} {value}" for name, value in changes.items())
            yield pytest.param({**usual, **changes}, option, id=f"{run} with {words}")


@pytest.mark.parametrize("usual", [usual for usual, _ in RUNS.values()], ids=RUNS)
def test_the_runs_that_are_changed_work(usual: Changes) -> None:
    Config(**usual)


@pytest.mark.parametrize(("settings", "option"), list(rows()))
def test_settings_that_do_not_go_together_are_refused(settings: Changes, option: str) -> None:
    with refuses(option):
        Config(**settings)
