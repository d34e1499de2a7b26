"""Attacks on records and images, and the span, asked for by name: run, shown, resumed, refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakmeter.auditors import RoundView
from leakmeter.auditors.auditor import Canary, RoundFacts
from leakmeter.auditors.reconstruction.inversion import Inversion
from leakmeter.auditors.verdict.labels import short_name
from leakmeter.fl_app.build import audit as simulated_records
from leakmeter.fl_app.build.audit import AuditRun, SimulatedRecords, auditors
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.deployment import check_deployed
from leakmeter.fl_app.run.early import check_early
from leakmeter.fl_app.task import load_task
from tests.helpers.refusals import refuses
from tests.helpers.runs import cut_off, resumed, run_with

_SMALL: dict[str, Any] = {
    "dataset": "digits",
    "model": "linear",
    "clients": 12,
    "sample": 4,
    "rounds": 3,
    "algorithm": "fedsgd",
    "batch_size": 2,
}
_FILLED = {"noise": "wfna", "wfna_floor": 0.02, "clip_norm": 1.0, "delta": 1e-3, "lrt_every": 0}
_FEW = {
    "dataset": "synthetic",
    "synthetic_examples": 60,
    "synthetic_features": 6,
    "synthetic_classes": 2,
    "sample": 3,
}
NAMES: dict[str, dict[str, Any]] = {
    "membership": {"membership_every": 2, "membership_shadows": 2},
    "inversion": {"inversion_every": 1, "inversion_images": 3, "inversion_steps": 5},
    "span": {"span_every": -1},
    "transcript": {"lrt_fit": 40, "transcript_trials": 20},
    "record-likelihood-ratio": {**_FEW, **_FILLED},
}


def config_of(name: str, **changes: Any) -> Config:
    return Config(**{**_SMALL, "auditors": name, **NAMES[name], **changes})


_LONG = {"record-likelihood-ratio": pytest.mark.slow}  # it draws thousands of gradients


@pytest.mark.parametrize("name", [pytest.param(n, marks=_LONG.get(n, ())) for n in NAMES])
def test_an_auditor_asked_for_by_name_is_shown_everywhere_and_resumes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run_with(tmp_path / "whole", **vars(config_of(name)))
    own = [f for f in report["findings"] if f["auditor"] == name]
    assert {f["server_round"] is None for f in own} == {True, False}
    rounds, _ = capsys.readouterr().out.split("VERDICT")
    assert f"{short_name(name)} " in rounds.split("round 1/3")[1]  # in the line of a round
    assert main(["report", "--text", str(tmp_path / "whole")]) == 0
    assert f"{name}: " in capsys.readouterr().out
    page = (tmp_path / "whole/report.html").read_text()
    assert name in page
    cut_off(tmp_path / "cut", config_of(name), 1)
    resumed(tmp_path / "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def files(folder: Path) -> dict[str, bytes]:
    """Return the report and the pictures of a run."""
    paths = [folder / "report.json", *sorted(folder.glob("inversion/*"))]
    return {path.name: path.read_bytes() for path in paths}


def test_pictures_of_a_run_are_on_its_page_with_captions(tmp_path: Path) -> None:
    run_with(tmp_path / "run", **vars(config_of("inversion", rounds=2)))
    assert sorted(files(tmp_path / "run"))[1:] == ["round-000001.png", "round-000002.png"]
    page = (tmp_path / "run/report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "run: Round 2. Top: images reconstructed from the sum" in page


def test_images_of_a_round_are_those_whose_gradient_is_in_its_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients' own batches: else a PSNR would be compared with the wrong originals."""
    views: list[RoundView] = []
    observe = Inversion.observe

    def keep(self: Inversion, view: RoundView) -> Sequence[Any]:
        views.append(view)
        return observe(self, view)

    monkeypatch.setattr(Inversion, "observe", keep)
    run_with(tmp_path / "run", **vars(config_of("inversion", rounds=2)))
    config = Config.from_toml(tmp_path / "run/config.toml")
    known, data = _records(config), load_task(config).dataset
    for view in views:
        rows = known.trained(view)
        assert len(rows) == config.sample * config.batch_size
        net = known.at(view.sent)
        x, y = torch.from_numpy(data.train_x[rows]), torch.from_numpy(data.train_y[rows])
        loss = torch.nn.functional.cross_entropy(net(x), y)
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        gradient = torch.cat([s.reshape(-1) for s in slopes]).numpy()
        assert view.facts.aggregate is not None
        # Equal up to the rounding of the secure sum.
        assert np.allclose(-view.facts.aggregate / config.lr, gradient, atol=1e-3)
        images = known.images(view)
        assert np.array_equal(images.originals, data.train_x[rows])
        assert len(images.strangers) == data.num_train - len(rows) + len(data.test_y)


def _records(config: Config) -> SimulatedRecords:
    return AuditRun(config).records


def _view(config: Config, **more: Any) -> RoundView:
    zero = np.zeros(load_task(config).dim)
    return RoundView(1, zero, {}, zero, RoundFacts(), **more)


def test_only_records_of_honest_clients_that_answered_have_trained() -> None:
    config = config_of("membership", algorithm="fedavg")
    known, parts = _records(config), load_task(config).parts
    first, second, *others = known.cohort_of(1)
    seat = {first: Canary(0, 0)}
    rows = known.trained(_view(config, instructed=seat))
    assert sorted(rows) == sorted(np.concatenate([parts[c] for c in (second, *others)]))
    answered = {c: np.zeros(1) for c in (first, *others)}  # the second has dropped out
    seen = RoundView(1, np.zeros(1), answered, np.zeros(1), RoundFacts(), instructed=seat)
    assert sorted(known.trained(seen)) == sorted(np.concatenate([parts[c] for c in others]))
    assert not len(known.trained(_view(config, instructed=dict.fromkeys(known.cohort_of(1)))))


def test_losses_are_those_of_records_that_will_train_and_of_the_test_part() -> None:
    config = config_of("membership", membership_shadows=0, algorithm="fedavg", rounds=1)
    known, task = _records(config), load_task(config)
    model = np.concatenate([p.detach().numpy().reshape(-1) for p in task.initial.parameters()])
    ins, outs = known.losses(model.astype(np.float64))
    data, used = task.dataset, known.trained(_view(config))
    x, y = (torch.from_numpy(a[used]) for a in (data.train_x, data.train_y))
    expected = torch.nn.functional.cross_entropy(task.initial(x), y, reduction="none")
    assert np.allclose(sorted(ins), sorted(expected.detach().numpy()), atol=1e-6)
    assert len(outs) == len(data.test_y)


def test_a_test_record_counts_with_the_client_of_a_record_of_its_label() -> None:
    config = config_of("membership", algorithm="fedavg", rounds=6)
    known, task = _records(config), load_task(config)
    first = known.cohort_of(1)[0]
    alone = RoundView(1, np.zeros(1), {first: np.zeros(1)}, np.zeros(1), RoundFacts())
    trained, asked = known.used(alone)
    members = len(known._members)
    own = np.isin(known._members, task.parts[first])
    assert np.array_equal(trained, np.flatnonzero(own))
    ins, outs = asked[asked < members], asked[asked >= members] - members
    assert np.array_equal(ins, np.flatnonzero(own))
    labels = task.dataset.train_y[known._members]
    assert np.array_equal(labels[known._partners], known._held_out[1])
    assert np.array_equal(outs, np.flatnonzero(own[known._partners]))


def test_records_take_part_in_as_many_rounds_as_they_did(tmp_path: Path) -> None:
    config = config_of("membership", participation="epochs", algorithm="fedavg", batch_size=8)
    # Three rounds of four clients: each of twelve once.
    report = run_with(tmp_path / "run", **vars(config))
    [last] = [f for f in report["findings"] if f["auditor"] == "membership" and f["confidence"]][
        -1:
    ]
    assert last["threat_model"]["participations"] == 1
    assert (last["unit"], last["threat_model"]["observer"]) == ("record", "outsider")
    assert last["conditional"]
    assert last["sample_sizes"]["in"] == load_task(config).dataset.num_train


def test_shadow_models_need_test_records() -> None:
    config = config_of("membership", **{**_FEW, "synthetic_examples": 60, "clients": 4})
    with refuses("--membership-shadows"):
        auditors(config, 14)


def test_shadow_models_never_see_a_record_that_is_compared() -> None:
    config = config_of("membership")
    known, data = _records(config), load_task(config).dataset
    own, held_out = simulated_records._test_records(config)
    assert not set(own) & set(held_out)
    assert len(own) + len(held_out) == len(data.test_y)
    shadows = known.shadows()
    assert np.array_equal(known._held_out[0], data.test_x[held_out])
    assert shadows.confidences.shape == (2, len(known._members) + len(held_out))
    assert shadows.was_in is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("membership", "needs the records"),
        ("inversion", "compares images"),
        ("span", "needs the clients' plain updates"),
    ],
)
def test_a_deployment_refuses_them_with_the_reason(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/flwr-serverapp"])
    with refuses("--auditors") as refused:
        check_deployed(Config(auditors=name))
    assert f"{name} {why}" in str(refused.value)


def test_a_search_for_images_needs_images() -> None:
    with refuses("--dataset"):
        check_early(Config(auditors="inversion", dataset="synthetic"))
