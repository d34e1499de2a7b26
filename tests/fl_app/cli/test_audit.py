"""`leakmeter audit`: an app as it is gets a verdict and a page, and no file of it changes."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from flwr.clientapp import ClientApp

from leakmeter.auditors import canary_mod
from leakmeter.auditors.hook import mods
from leakmeter.fl_app.audit_app import check, session, through_flower
from leakmeter.fl_app.audit_app.project import AppProject
from leakmeter.fl_app.audit_app.session import AppAudit, importing, loaded
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.engines import inline
from tests.helpers.apps import (
    CLIENT,
    FEDAVG,
    LEGACY_CLIENT,
    LEGACY_SERVER,
    OWN_LOOP,
    OWN_START,
    PYPROJECT,
    app_in,
)
from tests.helpers.files import report_in
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.project import ROOT

MODS = """
def outer(message, context, call_next):
    reply = call_next(message, context)
    reply.content["metrics"]["seen"] = seen(reply)
    return reply


def inner(message, context, call_next):
    reply = call_next(message, context)
    reply.content["metrics"]["inner"] = seen(reply)
    return reply


def seen(reply):
    # 1 where the arrays are a canary's: then they are not what the client has drawn.
    [arrays] = reply.content["arrays"].to_numpy_ndarrays()
    return float(arrays[0] != reply.content["metrics"]["drawn"])
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def largest(out: Path) -> float:
    found = report_in(out)["findings"]
    return max((f["value"] for f in found if f["kind"] == "lower_bound"), default=0.0)


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(FEDAVG, id="fedavg"),
        pytest.param(OWN_LOOP, id="loop"),
        pytest.param(OWN_START, id="start"),
    ],
)
def test_an_untouched_app_gets_a_number_and_a_page(
    server: str, tmp_path: Path, capsys: Printed
) -> None:
    app = app_in(tmp_path / "app", server=server)
    before = {path: path.read_bytes() for path in app.rglob("*") if path.is_file()}
    out = tmp_path / "out"
    code = main(["audit", str(app), "--out", str(out), "--run-config", "num-server-rounds=6"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert largest(out) > 1
    assert (out / "report.html").exists()
    # Of a loop in main that ends with a round, nobody knows the last model.
    assert len(report_in(out)["rounds"]) == (5 if server == OWN_LOOP else 6)
    assert {path: path.read_bytes() for path in app.rglob("*") if path.is_file()} == before
    assert "canary_mod, innermost" in said
    assert "VERDICT" in said
    assert "OneShotCanaries(" not in said  # advice that needs no changed line
    assert f"unchanged, SHA-256 {AppProject.read(app).digest()} before and after" in said
    assert not list(Path.cwd().iterdir())  # neither results nor the app's own files


def test_the_digest_notices_any_change_but_that_of_results(tmp_path: Path) -> None:
    app = AppProject.read(app_in(tmp_path / "app"))
    before = app.digest(app.path / "runs")
    (app.path / "runs").mkdir()
    (app.path / "runs" / "report.json").write_text("{}")
    assert app.digest(app.path / "runs") == before
    assert app.digest() != before
    (app.path / "tiny" / "more.py").write_text("")
    assert app.digest(app.path / "runs") != before


def test_an_app_that_rewrites_itself_is_named(tmp_path: Path, capsys: Printed) -> None:
    server = (
        f"{FEDAVG}    from pathlib import Path\n    Path(__file__).with_name('new.py').touch()\n"
    )
    main(["audit", str(app_in(tmp_path / "app", server=server)), "--out", str(tmp_path / "out")])
    assert "its files have CHANGED" in capsys.readouterr().out


def test_mods_of_the_app_are_around_ours(tmp_path: Path) -> None:
    client = CLIENT.replace("app = ClientApp()", f"{MODS}\napp = ClientApp(mods=[outer])")
    client = client.replace("@app.train()", "@app.train(mods=[inner])")
    out = tmp_path / "out"
    words = ["--out", str(out), "--clients", "4", "--seats", "1"]
    more = ["--run-config", "num-server-rounds=8"]
    assert main(["audit", str(app_in(tmp_path / "app", client)), *words, *more]) == 0
    shares = [one["metrics"] for one in report_in(out)["rounds"]]
    # One of four clients plays, and the mods on both levels of the app see its canary.
    assert {one["seen"] for one in shares} <= {0.0, 0.25}
    assert max(one["seen"] for one in shares) == 0.25
    assert [one["inner"] for one in shares] == [one["seen"] for one in shares]


def test_nothing_of_the_app_is_left_in_python(tmp_path: Path) -> None:
    first = app_in(tmp_path / "one", server=FEDAVG.replace("zeros(300)", "zeros(100)"))
    second = app_in(tmp_path / "two", server=FEDAVG + "\nmark = 2\n")
    before = ClientApp.train, ClientApp.__init__, list(sys.path), Path.cwd()
    for app in (first, second):
        with loaded(AppProject.read(app), ()) as found:
            assert found.noted.actions == ["default"]
            assert sys.modules["tiny.server_app"].__file__ == str(app / "tiny" / "server_app.py")
        assert not [name for name in sys.modules if name.partition(".")[0] == "tiny"]
    assert (ClientApp.train, ClientApp.__init__, sys.path, Path.cwd()) == before


def test_settings_are_flat_and_given_ones_win(tmp_path: Path) -> None:
    app = app_in(tmp_path)
    given = "train.lr=0.5 name='a b' num-server-rounds=7"
    found = AppProject.read(app, given)
    assert found.config == {"num-server-rounds": 7, "train.lr": 0.5, "name": "a b"}
    assert found.rounds == 7
    (app / "other.toml").write_text("train.lr = 0.25")
    assert AppProject.read(app, str(app / "other.toml")).config["train.lr"] == 0.25


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--run-config train.rl=1", "got train.rl; did you mean train.lr?"),
        ("--run-config 5", "must be pairs in TOML, separated by blanks, got '5'. Try --run-config"),
        ("--run-config name=x", "must be pairs in TOML"),
        ("--clients 1", "--clients must be at least 2, got 1. Try --clients 10."),
        ("--seats 5", "--seats must be auto or from 1 to 4, fewer than half of --clients 10"),
        ("--auditors oneshot", "got 'oneshot'; did you mean one-shot?"),
        ("--auditors one-shot,one-shot", "--auditors must be names that differ, got 'one-shot,one"),
        ("--node-config x", "--node-config must be pairs in TOML, separated by blanks"),
        ("--node-config partition-id=3", "--node-config must be settings other than"),
        ("--engine flwr --node-config x=1", "--node-config must be left out with --engine flwr"),
        ("--engine ray", "--engine must be one of inline, flwr, got 'ray'"),
    ],
)
def test_a_wrong_option_is_an_error_in_words(
    words: str, said: str, tmp_path: Path, capsys: Printed
) -> None:
    assert main(["audit", str(app_in(tmp_path / "app")), *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_an_app_is_an_error_with_a_suggestion(
    tmp_path: Path, capsys: Printed
) -> None:
    def refused(folder: Path) -> str:
        assert main(["audit", str(folder)]) == 2
        return capsys.readouterr().err

    other = app_in(tmp_path / "apps" / "audited")
    (other / "audit.py").write_text("import leakmeter\n")
    app = app_in(tmp_path / "apps" / "mine")
    assert f"Try {app}." in refused(tmp_path / "apps")
    assert "got no folder" in refused(tmp_path / "nowhere")
    said = refused(ROOT)
    assert "PATH must be an app's folder, not Leakmeter's" in said
    assert Path(re.findall(r"Try (\S+)\.", said)[0], "pyproject.toml").is_file()
    said = refused(app_in(tmp_path / "old", toml=PYPROJECT.replace("clientapp", "agentapp")))
    assert "clientapp in [tool.flwr.app.components] as module:attribute, got none. Add cl" in said
    assert "start_simulation" in said


def test_an_app_that_cannot_be_imported_shows_its_own_lines(
    tmp_path: Path, capsys: Printed
) -> None:
    app = app_in(tmp_path, "import no_such_package\n")
    assert main(["audit", str(app)]) == 2
    said = capsys.readouterr().err
    assert 'client_app.py", line 1, in <module>\n    import no_such_package' in said
    assert f"Install what the app needs: pip install -e {app}" in said
    assert "importlib" not in said


def test_what_was_audited_before_the_app_failed_is_kept(tmp_path: Path, capsys: Printed) -> None:
    app = app_in(tmp_path / "app", server=f"{FEDAVG}    raise ValueError('no disk')\n")
    out = tmp_path / "out"
    assert main(["audit", str(app), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "VERDICT" in printed.out
    assert len(report_in(out)["rounds"]) == 3
    assert "raise ValueError('no disk')" in printed.err
    assert "must run to its end, got ValueError: no disk. What was audited before" in printed.err
    assert main(["check", str(app)]) == 1  # which compares nothing
    assert "raise ValueError('no disk')" in capsys.readouterr().err


def test_clients_that_fail_show_their_own_lines(tmp_path: Path, capsys: Printed) -> None:
    client = CLIENT.replace(
        "def train(message, context):",
        "def train(message, context):\n    assert context.node_config['partition-id'] > 1, 'no'",
    )
    out = tmp_path / "out"
    main(["audit", str(app_in(tmp_path / "app", client)), "--out", str(out)])
    printed = capsys.readouterr()
    assert "dropouts" in {one["kind"] for one in report_in(out)["warnings"]}
    assert "Warning" in printed.out
    assert printed.err.count("Traceback of the app") == 1
    assert "assert context.node_config['partition-id'] > 1, 'no'" in printed.err
    assert re.search(r"got AssertionError: no \(client [01], the first to fail\)", printed.err)


NODES = CLIENT.replace(
    "def train(message, context):",
    "def train(message, context):\n"
    "    given = context.node_config\n"
    "    assert given['data'] == 'a b' and given['share'] == 0.5 and given['on'] is True\n"
    "    assert 0 <= given['partition-id'] < given['num-partitions'] == 10",
)


@pytest.mark.parametrize("command", ["audit", "check"])
def test_clients_get_what_their_nodes_are_configured_with(
    command: str, tmp_path: Path, capsys: Printed
) -> None:
    given = "data='a b' share=0.5 on=true"
    if command == "check":
        Path("nodes.toml").write_text(given.replace(" s", "\ns").replace(" o", "\no"))
        given = "nodes.toml"
    app, out = app_in(tmp_path / "app", NODES), tmp_path / "out"
    more = ["--out", str(out)] if command == "audit" else []
    assert main([command, str(app), "--node-config", given, *more]) == 0
    if more:
        assert report_in(out)["config"]["node-config.share"] == 0.5
        assert "dropouts" not in str(report_in(out)["warnings"])
        main(["audit", str(app), "--out", str(tmp_path / "without")])
        said = capsys.readouterr().err
        assert "got KeyError: 'data'" in said
        assert "give by --node-config." in said


WAITING = """
import time

from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < 13:
        time.sleep(0)
"""


@pytest.mark.parametrize(
    ("command", "server", "fix"),
    [
        ("audit", FEDAVG.replace("FedAvg(", "FedAvg(min_available_nodes=13, "), "Try --clients 13"),
        ("check", FEDAVG.replace("FedAvg(", "FedAvg(min_available_nodes=13, "), "Try --clients 13"),
        ("audit", WAITING, "is not known here: look where the app calls get_node_ids"),
    ],
)
def test_an_app_that_waits_for_more_clients_does_not_wait_forever(
    command: str, server: str, fix: str, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setattr(inline, "_PAUSE", 0.0)
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda _: None)
    assert main([command, str(app_in(tmp_path / "app", server=server))]) == 2
    assert not list((tmp_path / "here" / "runs").glob("*"))
    said = capsys.readouterr().err
    assert "the app waits for (min_available_nodes of its strategy), got 10" in said
    assert fix in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--canary-seats 3", "--seats 3"),
        ("--rounds 5", '--run-config "num-server-rounds=5"'),
        ("--rounds=5", '--run-config "num-server-rounds=5"'),
    ],
)
def test_an_option_of_a_run_is_named_as_an_audit_calls_it(
    options: str, said: str, tmp_path: Path, capsys: Printed
) -> None:
    assert main(["audit", str(app_in(tmp_path / "app")), *options.split()]) == 2
    assert said in capsys.readouterr().err


def test_an_app_of_the_legacy_api_gets_a_number(tmp_path: Path, capsys: Printed) -> None:
    app, out = app_in(tmp_path / "app", LEGACY_CLIENT, LEGACY_SERVER), tmp_path / "out"
    assert main(["audit", str(app), "--out", str(out), "--clients", "6"]) == 0
    assert largest(out) > 1
    assert [one["num_clients"] for one in report_in(out)["rounds"]] == [6, 6, 6]
    assert "app: unchanged" in capsys.readouterr().out
    # Flower's legacy loop adds replies in the order in which threads end, so later rounds differ.
    assert main(["check", str(app), "--run-config", "num-server-rounds=1"]) == 0
    assert "equal: " in capsys.readouterr().out


def test_thorough_adds_replays_which_leave_no_trace(tmp_path: Path, capsys: Printed) -> None:
    app, out = app_in(tmp_path / "app"), tmp_path / "out"
    words = ["--clients", "5", "--run-config", "num-server-rounds=1"]
    assert main(["audit", str(app), "--out", str(out), *words, "--thorough"]) == 0
    assert {f["auditor"] for f in report_in(out)["findings"]} >= {"likelihood-ratio", "one-shot"}
    words = ["--clients", "5", "--auditors", "one-shot,likelihood-ratio"]
    assert main(["check", str(app), *words]) == 0
    assert "equal: 14 trainings of honest clients" in capsys.readouterr().out


# `leakmeter check`: honest replies are equal with and without the audit, or the reason is told.


def moving(message: object, context: object, call_next: object) -> object:
    """A mod that draws from numpy's global generator, as no audit may."""
    import numpy as np

    np.random.normal()  # noqa: NPY002
    return mods.canary_mod(message, context, call_next)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "apps",
    [(CLIENT, FEDAVG), (CLIENT, OWN_LOOP)],
    ids=["fedavg", "loop"],
)
def test_an_app_on_a_global_generator_trains_as_without_the_audit(
    apps: tuple[str, str], tmp_path: Path, capsys: Printed
) -> None:
    assert main(["check", str(app_in(tmp_path, *apps))]) == 0
    said = capsys.readouterr().out
    assert "equal: " in said
    assert " 0 seats" not in said
    assert not (tmp_path / "runs").exists()


def test_an_audit_that_moves_a_generator_is_found(
    tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    for module in (check, session):
        monkeypatch.setattr(module, "MODS", (moving,))
    assert main(["check", str(app_in(tmp_path))]) == 3
    said = capsys.readouterr().out
    assert "different: " in said
    assert "arrays." in said
    assert "a generator that all code of the process shares" in said


@pytest.mark.parametrize(
    ("own", "theirs", "said"),
    [
        ("context, np.random)", "context, np.random.default_rng())", "cannot tell: "),
        ('"drawn": float(new[0])', '"seconds": __import__("time").perf_counter()', "training 1: m"),
    ],
    ids=["draws", "a metric"],
)
def test_an_app_with_draws_or_times_of_its_own_cannot_be_compared(
    own: str, theirs: str, said: str, tmp_path: Path, capsys: Printed
) -> None:
    assert main(["check", str(app_in(tmp_path, CLIENT.replace(own, theirs)))]) == 4
    assert said in capsys.readouterr().out


# `leakmeter audit --engine flwr`: the copy of an app, and one run through Flower's processes.


def planned(app: Path, out: Path) -> AppAudit:
    return AppAudit(AppProject.read(app), out, clients=4, seats=1)


def test_the_copy_differs_from_the_app_in_two_lines_and_a_package(tmp_path: Path) -> None:
    app = app_in(tmp_path / "app")
    theirs = {path.relative_to(app) for path in app.rglob("*") if path.is_file()}
    (app / "runs").mkdir()
    (app / "runs" / "report.json").write_text("{}")  # results in the app's own folder
    copy = through_flower.copied(planned(app, app / "runs"), tmp_path / "copy")
    ours = {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()}
    assert {path.parts[0] for path in ours - theirs} == {through_flower.PACKAGE}
    assert theirs <= ours
    before, after = ((one / "pyproject.toml").read_text().splitlines() for one in (app, copy))
    assert len([None for a, b in zip(before, after, strict=True) if a != b]) == 2
    components = tomllib.loads("\n".join(after))["tool"]["flwr"]["app"]["components"]
    assert components == {
        "serverapp": "leakmeter_audit.server_app:app",
        "clientapp": "leakmeter_audit.client_app:app",
    }


def test_a_list_of_files_to_bundle_gets_our_package(tmp_path: Path) -> None:
    toml = PYPROJECT.replace("[tool.flwr.app]", '[tool.flwr.app]\nfab-include = ["tiny/*.py"]')
    app = app_in(tmp_path / "app", toml=toml)
    copy = through_flower.copied(planned(app, tmp_path / "out"), tmp_path / "copy")
    found = tomllib.loads((copy / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert found["fab-include"] == ["leakmeter_audit/*.py", "tiny/*.py"]


@pytest.mark.parametrize("order", [("client", "server"), ("server", "client")])
def test_clients_have_our_mod_whichever_module_comes_first(
    order: tuple[str, str], tmp_path: Path, monkeypatch: Patch
) -> None:
    app = app_in(tmp_path / "app")
    audit = planned(app, tmp_path / "out")
    copy = through_flower.copied(audit, tmp_path / "copy")
    listed: list[Any] = []

    def train(*_: Any, mods: list[Any]) -> Any:
        listed.append(mods)
        return lambda function: function

    monkeypatch.setattr(ClientApp, "train", train)
    with (
        importing(copy, {"tiny", through_flower.PACKAGE}),
        patch.object(through_flower, "Legacy", wraps=through_flower.Legacy) as given,
    ):
        for kind in order:  # Flower's simulation imports both in one process
            found = import_module(f"{through_flower.PACKAGE}.{kind}_app").app
            assert type(found).__name__ == f"{kind.capitalize()}App"
    assert listed == [[canary_mod]]
    assert given.call_args.args == (audit,)  # the whole of it is in the copy


@pytest.mark.launch
def test_an_app_is_audited_through_flwr_run(tmp_path: Path, capsys: Printed) -> None:
    app, out = app_in(tmp_path / "app"), tmp_path / "out"
    words = ["--engine", "flwr", "--clients", "5", "--seats", "1", "--out", str(out)]
    more = ["--run-config", "num-server-rounds=4"]
    assert main(["audit", str(app), *words, *more]) == 0
    said = capsys.readouterr().out
    assert "VERDICT" in said
    assert "app: unchanged" in said
    report = report_in(out)
    assert [one["num_clients"] for one in report["rounds"]] == [5, 5, 5, 5]
