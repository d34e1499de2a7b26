"""`--device`: one round of every path on a stand-in, what auto takes, and what is refused."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from flwr.serverapp import ServerApp
from torch.nn.utils import parameters_to_vector

import leakmeter
from leakmeter.clients.sampler import CohortSampler, Listed
from leakmeter.fl_app.build.audit import AuditRun, sampler_for
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.engines import cluster
from leakmeter.fl_app.engines.cluster import RayExecutor
from leakmeter.fl_app.run.launch import _checker, _run_ray
from leakmeter.fl_app.task import Task, device_line, device_of, load_task, update_rule
from tests.fl_app.engines.test_ray_executor import StandIn as StandInRay
from tests.fl_app.test_server_app import run as run_apps
from tests.helpers.apps import FEDAVG, app_in
from tests.helpers.numbers import first_fast
from tests.helpers.processes import run_python
from tests.helpers.refusals import refuses
from tests.helpers.runs import replies_of, report_of, train_order
from tests.helpers.stand_in import DEVICE, MixedError, StandIn

# Wherever a run asks which device it has.
ASKING = ("task", "client_app", "build.audit", "run.run")
LACKS = "--device must be one that torch finds on this machine (cpu), got 'cuda'. Try --device auto"
ONE_ROUND = {
    "dataset": "synthetic",
    "synthetic_examples": 120,
    "clients": 6,
    "sample": 3,
    "canary_seats": 2,
    "rounds": 1,
    "epochs": 1,
    "lrt_fit": 20,
    "lrt_candidates": 4,
    "lrt_trials": 20,
    "mine_critics": 2,
    "mine_steps": 2,
}
DRAWS = ("rand", "normal", "uniform", "bernoulli", "multinomial", "exponential")
SUMS = {"auditors": "one-shot,likelihood-ratio,mutual-information,mine"}
# Settings of each path, and an operation that shows that it was taken on the device. The first
# three are fast.
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("baddbmm_", {"model": "mlp", **SUMS}),
    "images": (
        "dot",
        {
            "dataset": "digits",
            "auditors": "inversion",
            "algorithm": "fedsgd",
            "batch_size": 1,
            "inversion_images": 2,
            "inversion_steps": 4,
        },
    ),
    "filled": (
        "_log_softmax_backward_data",
        {
            "model": "linear",
            "algorithm": "fedsgd",
            "auditors": "record-likelihood-ratio",
            "noise": "wfna",
            "clip_norm": 1.0,
            "wfna_floor": 0.01,
        },
    ),
    "linear": ("lerp_.Scalar", {"model": "linear", **SUMS}),
    "generated": ("baddbmm_", {"model": "mlp", "synthetic_per_client": 20, **SUMS}),
    "slp": ("threshold_backward", {"model": "slp", "auditors": "mutual-information"}),
    "alone": ("bmm", {"auditors": "none", "secagg": "off", "partition": "dirichlet-labels"}),
    "shadows": (
        "baddbmm_",
        {"dataset": "digits", "auditors": "membership", "membership_shadows": 2},
    ),
}


@contextmanager
def everywhere(place: Any) -> Iterator[None]:
    """Let a run find this device whatever it asks for."""
    with ExitStack() as stack:
        for name in ASKING:
            stack.enter_context(patch(f"leakmeter.fl_app.{name}.device_of", lambda _: place))
        # Settings know the names of real devices only.
        real = patch("leakmeter.fl_app.run.launch.device_of", torch.device)
        stack.enter_context(real)
        yield


def report(folder: Path, **settings: Any) -> dict[str, Any]:
    """Make a run and return what it found, with the settings that it notes."""
    leakmeter.run(out=folder, **{**ONE_ROUND, **settings})
    found = report_of(folder)
    return {name: found[name] for name in ("findings", "rounds", "schedules", "failures", "config")}


@pytest.mark.usefixtures("short_page", "few_sums")
@pytest.mark.parametrize("path", first_fast(1, PATHS))
def test_a_round_on_another_device_has_the_numbers_of_the_cpu(
    path: str, device: StandIn, tmp_path: Path
) -> None:
    done, settings = PATHS[path]
    here = report(tmp_path / "here", **settings)
    assert not device.operations
    with everywhere(DEVICE):
        there = report(tmp_path / "there", device="cuda", **settings)
    assert (here.pop("config")["device"], there.pop("config")["device"]) == ("cpu", DEVICE.type)
    assert there == here
    assert here["failures"] == []
    assert device.operations[done] > 0
    # All draws are made on the CPU and moved, so that every device has the same.
    assert not [one for one in device.operations if any(word in one for word in DRAWS)]


@pytest.mark.usefixtures("device", "short_page")
def test_a_client_whose_data_stay_behind_is_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = Task.records

    with everywhere(DEVICE), patch.object(Task, "records", lambda task, _: records(task)):
        report(tmp_path / "run", device="cuda", auditors="none", secagg="off")
    assert "client apps failed, the first with MixedError: aten::" in caplog.text


# What auto takes, and what is refused.


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The GPUs that torch finds."""
    there: set[str] = set()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in there)
    return there


def test_auto_takes_cuda_then_mps_then_the_cpu_and_says_so(gpus: set[str]) -> None:
    assert device_of("auto").type == "cpu"
    assert device_line("auto") == "device    cpu: auto finds neither cuda nor mps"
    gpus.add("mps")
    assert device_of("auto").type == "mps"
    assert device_line("auto") == device_line("mps") == "device    mps"
    gpus.add("cuda")
    assert device_of("auto").type == "cuda"
    assert (device_of("cpu").type, device_line("cpu")) == ("cpu", "")


def test_a_device_that_is_not_there_is_refused_with_those_that_are(gpus: set[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        device_of("cuda")
    assert str(refused.value) == f"{LACKS}."
    gpus.add("cuda")
    with refuses("--device"):
        device_of("mps")


@pytest.mark.usefixtures("gpus", "short_page")
def test_auto_says_in_one_line_that_it_takes_the_cpu(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for number, words in enumerate(([], ["--device", "auto"])):
        out = tmp_path / str(number)
        assert main([*tiny, *words, "--out", str(out)]) == 0
        said = [line for line in capsys.readouterr().out.splitlines() if "device" in line]
        assert said == (["device    cpu: auto finds neither cuda nor mps"] if number == 1 else [])
        kept = report_of(out)
        assert kept["config"]["device"] == "cpu"  # what was used; config.toml has what was asked
        found.append((kept["findings"], kept["rounds"]))
    assert found[0] == found[1]
    assert 'device = "auto"' in (out / "config.toml").read_text()


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("launch", ["flag", "file", "python", "flower"])
def test_every_launch_refuses_a_missing_device_before_any_work(
    launch: str, tiny_config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "run", tmp_path / "settings.toml"
    file.write_text('device = "cuda"\n')
    if launch in ("flag", "file"):
        words = ["--device", "cuda"] if launch == "flag" else ["--config", str(file)]
        assert main([*words, "--out", str(out)]) == 2
        assert LACKS in capsys.readouterr().err
    elif launch == "python":
        with pytest.raises(ConfigError) as refused:
            leakmeter.run(out=out, device="cuda")
        assert LACKS in str(refused.value)
    else:
        config = Config.from_mapping({**tiny_config.to_mapping(), "device": "cuda"})
        with pytest.raises(ConfigError) as refused:
            run_apps(config, out=str(out))
        assert LACKS in str(refused.value)
    assert not out.exists()


@pytest.mark.usefixtures("gpus")
def test_a_replay_may_have_another_device(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main([*tiny, "--auditors", "one-shot,recorder", "--out", run]) == 0
    assert main(["replay", run, "--device", "cuda"]) == 2
    assert LACKS in capsys.readouterr().err
    assert main(["replay", run, "--device", "auto"]) == 0
    assert capsys.readouterr().out.count("device    cpu: auto finds neither") == 1
    again = report_of(Path(f"{run}-replay"))
    assert again["config"]["device"] == "cpu"


# Machines of a cluster and of a deployment.


@pytest.mark.usefixtures("gpus")
def test_a_client_without_the_device_says_that_its_machine_cannot_run_it(
    tiny_config: Config,
) -> None:
    config = Config.from_mapping({**tiny_config.to_mapping(), "device": "cuda", "secagg": "off"})
    [reply] = replies_of(config, (0, train_order(config)))
    assert "this machine cannot run the client: node " in reply.error.reason
    assert f"device: {LACKS}. Flower's simulation hides GPUs unless" in reply.error.reason
    # And so says a node of a cluster, before anybody trains.
    settings = tiny_config.to_mapping()
    assert _checker()(settings) == ""
    assert _checker()({**settings, "device": "cuda"}) == f"{LACKS}."


@pytest.mark.parametrize(
    ("resources", "share"),
    [
        ({"CPU": 8.0, "GPU": 1.0}, 0.125),
        ({"CPU": 3.0, "GPU": 1.0}, 0.3333),  # 0.33333 would not fit three times in Ray's units
        ({"CPU": 2.0, "GPU": 4.0}, 1.0),
        ({"CPU": 4.0}, 0.0),
    ],
)
def test_clients_share_the_gpus_of_a_cluster_equally(
    resources: dict[str, float], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(cluster_resources=lambda: resources))
    assert cluster.gpu_share() == share
    assert share * resources["CPU"] <= resources.get("GPU", 0.0)


@pytest.mark.parametrize(("name", "share"), [("cuda", 0.25), ("mps", 0.0)])
def test_under_ray_only_clients_on_cuda_claim_a_share_of_a_gpu(
    name: str, share: float, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("flwr.simulation.run_simulation", lambda **how: asked.append(how))
    monkeypatch.setattr("leakmeter.fl_app.engines.cluster.use_steady_pool", lambda: None)
    monkeypatch.setattr(cluster, "prepare", lambda: None)
    monkeypatch.setattr(cluster, "join", lambda _: True)
    monkeypatch.setattr(cluster, "gpu_share", lambda: 0.25)
    _run_ray(ServerApp(), None, replace(tiny_config, engine="ray", device=name))
    resources = asked[0]["backend_config"]["client_resources"]
    assert resources == {"num_cpus": 1, "num_gpus": share}


RAY_WITH_A_GPU = """
import os, ray
from leakmeter.fl_app.engines.cluster import _GPUS_SEEN

class Worker:
    def sees(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")

ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
for options in ({}, {"runtime_env": {"env_vars": _GPUS_SEEN}}):
    worker = ray.remote(num_cpus=0)(Worker).options(**options).remote()
    print("sees", ray.get(worker.sees.remote()))
"""


@pytest.mark.slow
def test_a_worker_of_the_auditors_sees_gpus_that_ray_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # as in Flower's own launches
    said = run_python("-W", "ignore", "-c", RAY_WITH_A_GPU)
    hidden, seen = (line.removeprefix("sees") for line in said.splitlines() if "sees" in line)
    assert (hidden.strip(), seen.strip()) == ("", "None")


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("generated", [0, 20])
def test_work_that_was_sent_to_ray_is_done_on_the_device(
    generated: int, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_config = replace(tiny_config, synthetic_per_client=generated)
    ray, task, found = StandInRay(), load_task(tiny_config), []
    monkeypatch.setitem(sys.modules, "ray", ray)
    start = parameters_to_vector(task.initial.parameters()).detach().numpy()
    for place in ("cpu", DEVICE):
        of = sampler_for(task, tiny_config.task, update_rule(tiny_config), "rerun", device=place)
        executor = RayExecutor(of.data)
        # A worker that claims no GPU sees them all, also in a Ray that Flower has started.
        assert ("runtime_env" in executor._options) == (place == DEVICE)
        found.append(np.concatenate(list(of.through(executor).sums(start, [0, 2], 9, ("a",)))))
    np.testing.assert_array_equal(*found)


def test_records_move_to_a_device_once(device: StandIn, tiny_config: Config) -> None:
    task = load_task(tiny_config)
    task._moved.pop(DEVICE.type, None)
    first = task.records(DEVICE)
    moves = device.operations["_to_copy"]
    assert task.records(torch.device(DEVICE.type, 0)) is first  # what a model there says it is on
    assert device.operations["_to_copy"] == moves == 2
    here = task.records()
    assert isinstance(here, Listed)
    assert here.x.data_ptr() == task.dataset.train_x.ctypes.data  # no copy on the CPU


@pytest.mark.usefixtures("device")
def test_generated_records_move_to_a_device_when_they_are_made(tiny_config: Config) -> None:
    task = load_task(replace(tiny_config, synthetic_per_client=20))
    parts = [task.parts[client] for client in (4, 1)]
    (*here, places), (*there, moved) = (task.records(to).among(parts) for to in ("cpu", DEVICE))
    np.testing.assert_array_equal(places, moved)
    for one, other in zip(here, there, strict=True):
        assert (one.device.type, other.device) == ("cpu", DEVICE)
        assert torch.equal(one, other.cpu())


def test_other_devices_take_one_thread(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(*_: Any, threads: int, **__: Any) -> CohortSampler:
        asked.append(threads)
        raise MixedError

    monkeypatch.setattr("leakmeter.fl_app.build.audit.sampler_for", noted)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    for place in ("cpu", DEVICE):
        monkeypatch.setattr(
            "leakmeter.fl_app.build.audit.device_of", lambda _, p=place: torch.device(p)
        )
        with pytest.raises(MixedError):
            AuditRun(tiny_config).sampler_of(
                "rerun", SimpleNamespace(facts=SimpleNamespace(clip_norm=1.0))
            )
    assert asked == [3, 1]


# An app that is audited as it is.

CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    place = torch.device(context.run_config["name"])
    net = torch.nn.Linear(300, 1, bias=False).to(place)
    [sent] = message.content["arrays"].to_numpy_ndarrays()
    net.load_state_dict({"weight": torch.from_numpy(sent).float()[None]})
    x = torch.randn(8, 300).to(place)
    loss = (net(x) - 1).square().mean()
    [slope] = torch.autograd.grad(loss, [net.weight])
    new = (net.weight - 0.1 * slope).detach().cpu().numpy()[0].astype("float64")
    metrics = MetricRecord({"num-examples": 8, "loss": loss.item()})
    content = RecordDict({"arrays": ArrayRecord([new]), "metrics": metrics})
    return Message(content, reply_to=message)
"""


def test_an_app_that_is_audited_as_it_is_keeps_its_own_device(
    device: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = app_in(tmp_path / "app", server=FEDAVG, client=CLIENT)
    found = []
    for place in ("cpu", DEVICE.type):
        torch.manual_seed(0)
        random.seed(0)  # from which Flower draws the cohorts
        out = tmp_path / place
        assert main(["audit", str(app), "--run-config", f'name="{place}"', "--out", str(out)]) == 0
        kept = report_of(out)
        found.append((kept["findings"], kept["rounds"]))
        assert (device.operations["mm"] > 0) == (place == DEVICE.type)
    assert found[0] == found[1]
    assert any(one["auditor"] == "one-shot" for one in found[0][0])
