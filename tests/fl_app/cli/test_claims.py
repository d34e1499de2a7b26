"""Claims on every launch: how they get in, that they stay, and that mistakes are named."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

import leakmeter
from leakmeter.auditors import Claim
from leakmeter.auditors.verdict.claim import claims_of
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config, from_context
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.report.judge import verdict_of
from leakmeter.fl_app.report.read import read_run
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from tests.docs_blocks import blocks, commands
from tests.fl_app.cli.test_main import refused
from tests.helpers.apps import CLIENT, FEDAVG, LEGACY_CLIENT, LEGACY_SERVER, PYPROJECT, app_in
from tests.helpers.files import report_in
from tests.helpers.fixtures import Printed
from tests.helpers.project import ROOT
from tests.helpers.runs import Dying

LOCAL = """
from flwr.{client}.mod import LocalDpMod

local = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
"""
CLAIMS = "1e-9@1e-5 server run; 100@1e-5 outsider round"


def texts(folder: Path) -> list[str]:
    return [str(claim) for claim in read_run(folder).claims]


# Settings.


@pytest.mark.parametrize("name", ["claim", "claims"])
def test_a_run_takes_claims_as_one_text_as_texts_and_as_values(name: str) -> None:
    wanted = [Claim(2, 1e-6, "outsider", "round"), Claim(8)]
    texts = ["2@1e-6 outsider round", "8@1e-5 server run"]
    for given in ("2@1e-6 outsider round; 8", texts, wanted):
        assert list(claims_of(Config.from_mapping({name: given}).claim)) == wanted
    usual = {k: v for k, v in Config().to_mapping().items() if k != "engine"}
    context = Context(1, 0, {}, RecordDict(), {**usual, "claim": "3; 4 outsider"})
    assert from_context(context).claim == "3; 4 outsider"  # under Flower, too


@pytest.mark.parametrize("wrong", ["ten", "3 sever", "-1", "3@1"])
def test_a_wrong_claim_is_refused_on_every_launch_before_any_work(
    wrong: str, capsys: Printed
) -> None:
    allowed = "--claim must be ε@δ with one of server, outsider, wire and round or run, got"
    said = refused(["--claim", wrong], capsys)
    assert f"{allowed} {wrong!r}" in said
    assert 'Try "10@1e-5 server round".' in said
    with pytest.raises(ConfigError, match="--claim must be"):
        leakmeter.run(claims=[wrong])
    app = app_in(Path("app"))
    said = refused(["audit", str(app), "--claim", "3", "--claim", wrong], capsys)
    assert f"{allowed} {wrong!r}" in said
    assert not Path("runs").exists()


def test_claims_in_the_apps_own_file_are_checked_with_its_name(capsys: Printed) -> None:
    for wrong, why in (
        ('claims = ["3 sever"]', "pyproject.toml: claims must be ε@δ with"),
        ("claims = 3", 'must list claims in [tool.leakmeter] as texts, got 3. Try claims = ["10@'),
    ):
        app = app_in(Path("app"), toml=f"{PYPROJECT}\n[tool.leakmeter]\n{wrong}\n")
        assert why in refused(["audit", str(app)], capsys)


# A run of our own.


@pytest.fixture(scope="module")
def kept(tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recorded run with claims."""
    path = tmp_path_factory.mktemp("runs") / "kept"
    claims = [word for one in CLAIMS.split("; ") for word in ("--claim", one)]
    recorded = ["--auditors", "one-shot,recorder", "--secagg", "off"]
    assert main([*tiny, *recorded, *claims, "--out", str(path)]) == 0
    return path


def test_a_run_keeps_its_claims_and_judges_them_wherever_it_is_read(
    kept: Path, tmp_path: Path, capsys: Printed
) -> None:
    assert texts(kept) == ["1e-09@1e-05 server run", "100@1e-05 outsider round"]
    found = report_in(kept)
    first, second = found["verdict"]["claims"]
    assert (first["refuted"], second["refuted"]) == (True, False)
    assert found["verdict"]["headline"] == "claim"
    run = read_run(kept)
    assert [one.to_json() for one in verdict_of(run).claims] == [first, second]
    assert main(["report", str(kept), "--csv", str(tmp_path / "csv")]) == 0
    assert main(["report", "--text", str(kept)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "VERDICT A claim is refuted: ε ≤ 1e-09 per run" in printed
    assert "The user claims ε ≤ 100 at δ = 1e-05 per round against outsiders" in printed
    rows = list(csv.DictReader((tmp_path / "csv" / "claims.csv").open(newline="")))
    assert [row["refuted"] for row in rows] == ["True", "False"]
    assert [float(row["shown"]) for row in rows] == [first["shown"], second["shown"]]
    page = (kept / "report.html").read_text()
    assert page.index("What is claimed") < page.index("Who can tell what")
    assert "NOT REFUTED, which does not confirm it" in page


def test_a_table_computes_no_formula_of_a_strangers_report(kept: Path, tmp_path: Path) -> None:
    strange = Path(shutil.copytree(kept, tmp_path / "strange"))
    values, formula = report_in(strange), '=HYPERLINK("http://x","<b>")'
    values["claims"][0]["source"] = formula
    (strange / "report.json").write_text(json.dumps(values))
    assert main(["report", str(strange), "--csv", str(tmp_path / "csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "csv" / "claims.csv").open(newline="")))
    assert rows[0]["source"] == f"'{formula}"
    assert formula not in (strange / "report.html").read_text()


def test_an_earlier_release_had_no_claims_and_an_unfinished_run_has_those_of_its_settings(
    kept: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(kept, tmp_path / "old"))
    values = report_in(old)
    del values["claims"]
    (old / "report.json").write_text(json.dumps(values))
    assert read_run(old).claims == ()
    (old / "report.json").unlink()
    assert texts(old) == texts(kept)


def test_a_replay_judges_the_claims_of_the_run_or_other_ones(kept: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    assert main(["replay", str(kept), "--out", str(same)]) == 0
    assert report_in(same)["verdict"]["claims"] == report_in(kept)["verdict"]["claims"]
    assert main(["replay", str(kept), "--claim", "7 wire", "--out", str(other)]) == 0
    assert texts(other) == ["7@1e-05 wire run"]


def test_a_resumed_run_has_the_report_that_it_would_have_had(
    tiny_config: Config, tmp_path: Path
) -> None:
    config = replace(tiny_config, claim=CLAIMS)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    launch(RunFolder.create(whole, config), Progress())
    with pytest.raises(KeyboardInterrupt):
        launch(RunFolder.create(cut, config), Dying(2))
    launch(RunFolder.open(cut), Progress())
    assert report_in(cut)["claims"] == report_in(whole)["claims"] != []
    assert report_in(cut)["verdict"] == report_in(whole)["verdict"]


def test_python_gets_the_claims_of_its_run_with_the_result(tiny_config: Config) -> None:
    usual = Config().to_mapping()
    own = {k: v for k, v in tiny_config.to_mapping().items() if v != usual[k]}
    settings = {name.replace("-", "_"): value for name, value in own.items()}
    result = leakmeter.run(**settings, claims=[Claim(1e-9, against="outsider"), Claim(100)])
    false, true = result.verdict.claims
    assert (false.claim, true.claim) == (Claim(1e-9, against="outsider"), Claim(100))
    assert (false.is_refuted, true.is_refuted) == (True, False)
    with pytest.raises(AssertionError, match="claims: exceeded"):
        leakmeter.assert_private(result, claims=True)


def test_the_gate_ends_with_3_where_a_claim_is_refuted_and_4_where_none_was_tested(
    kept: Path, tmp_path: Path, capsys: Printed
) -> None:
    assert main(["gate", str(kept), "--claims"]) == 3
    assert main(["gate", str(kept), "--max-epsilon", "1000"]) == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "exceeded claims: The user claims ε ≤ 1e-09" in said
    silent = Path(shutil.copytree(kept, tmp_path / "silent"))
    (silent / "report.json").write_text(json.dumps({**report_in(silent), "claims": []}))
    assert main(["gate", str(silent), "--claims"]) == 4
    assert main(["gate", str(kept), "--claims", "--format", "sarif"]) == 3
    assert '"ruleId": "claims"' in capsys.readouterr().out


# Apps that nobody has changed.


@pytest.mark.parametrize("kind", ["message", "legacy"])
def test_an_untouched_app_with_local_noise_has_its_claim_refuted(
    kind: str, tmp_path: Path, capsys: Printed
) -> None:
    if kind == "legacy":
        mods = LEGACY_CLIENT.replace("ClientApp(client_fn", "ClientApp(mods=[local], client_fn")
        parts = {"client": LOCAL.format(client="client") + mods, "server": LEGACY_SERVER}
    else:
        mods = CLIENT.replace("@app.train()", "@app.train(mods=[local])")
        parts = {"client": LOCAL.format(client="clientapp") + mods, "server": FEDAVG}
    toml = f'{PYPROJECT}\n[tool.leakmeter]\nclaims = ["30 outsider"]\n'
    app, out = app_in(tmp_path / "app", toml=toml, **parts), tmp_path / "out"
    words = ["--claim", "10@1e-5 server round", "--run-config", "num-server-rounds=8"]
    assert main(["audit", str(app), "--out", str(out), *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    # Known before anybody trains, since the app's own list of mods is.
    assert printed.index("LocalDpMod claims ε ≤ 10") < printed.index("round 1/8")
    assert "its parameters deliver ε = 2.1e+08" in printed
    found = {one["source"]: one for one in report_in(out)["verdict"]["claims"]}
    assert set(found) == {"user", "LocalDpMod"}
    assert found["LocalDpMod"]["refuted"]
    assert sorted(texts(out)) == sorted(
        ["30@1e-05 outsider run", "10@1e-05 server round", "10@1e-05 server round"]
    )
    assert "REFUTED" in printed


@pytest.mark.slow
def test_the_page_on_checking_a_claim_can_be_followed_literally(
    tmp_path: Path, capsys: Printed
) -> None:
    """Its copy of an app, its lines and its command give its words; the app draws other numbers."""
    page = blocks(ROOT / "docs" / "check-a-claim.md")
    copy = shutil.copytree(ROOT / "examples" / "logistic_sklearn" / "before", tmp_path / "copy")
    client = copy / "logistic_sklearn" / "client_app.py"
    lines = next(one.text for one in page if "LocalDpMod(" in one.text)
    text = client.read_text().replace("app = ClientApp()\n", f"app = ClientApp()\n{lines}")
    client.write_text(text.replace("@app.train()", "@app.train(mods=[noise])"))
    [words] = commands(next(one.text for one in page if "audit copy" in one.text))
    assert main(words[1:]) == 0
    printed, said = (
        re.sub(r"ε ≥ \d+|9[5-9][.\d]* %", "N", " ".join(one.split()))
        for one in (capsys.readouterr().out, next(b.text for b in page if "VERDICT" in b.text))
    )
    assert said in printed
    assert main(["gate", "runs/claimed", "--claims"]) == 3
