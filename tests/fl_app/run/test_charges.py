"""What a round may have released is charged, however the round or the process ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message

from leakmeter.auditors.hook import wire
from leakmeter.clients import MaskMod
from leakmeter.fl_app import client_app
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.run import run as run_module
from leakmeter.strategies.accounting.ledger import Ledger
from tests.helpers.reports import comparable

NOISE = ["--noise", "distributed", "--secagg", "on", "--clip-norm", "1", "--noise-multiplier", "2"]
Happens = Callable[[str, int, Context, Message], Message]


@pytest.fixture
def clients_that(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Happens | None], None]]:
    """Return a function that makes every client do something else with a stage's reply."""
    honest = MaskMod.__call__

    def do(happens: Happens | None) -> None:
        def call(self: MaskMod, message: Message, context: Context, call_next: Any) -> Message:
            order = wire.config(message.content, wire.MASK)
            reply = honest(self, message, context, call_next)
            if order is None or happens is None:
                return reply
            return happens(str(order["stage"]), wire.get_int(order, "round"), context, reply)

        monkeypatch.setattr(MaskMod, "__call__", call)

    yield do
    client_app._policies.cache_clear()


def settings(tiny: list[str], tmp_path: Path, *more: str) -> list[str]:
    places = ["--ledger", str(tmp_path / "ledger.jsonl"), "--out", str(tmp_path / "run")]
    return [*tiny, *NOISE, "--auditors", "none", "--canary-seats", "0", *places, *more]


def spent_by(tmp_path: Path) -> tuple[int, int]:
    """Return releases and most participations in the ledger."""
    [entry] = Ledger(tmp_path / "ledger.jsonl").entries("synthetic")
    return len(entry.releases), entry.participations


def counted_twice(stage: str, _round: int, context: Context, reply: Message) -> Message:
    """Lie about the number of contributors, under the masks."""
    if stage == "train" and int(context.node_config["partition-id"]) in (0, 1, 2, 3, 4, 5):
        vector = reply.content["arrays"]["masked"].numpy().copy()
        vector[210] += np.asarray(1).astype(vector.dtype)
        reply.content["arrays"] = ArrayRecord({"masked": Array(vector)})
    return reply


def test_a_run_of_rejected_sums_ends_in_order_and_is_charged(
    tiny: list[str], tmp_path: Path, clients_that: Any, capsys: Any
) -> None:
    clients_that(counted_twice)
    assert main(settings(tiny, tmp_path, "--rounds", "9")) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "The run ended 6 of 9 rounds early: three secure sums in a row" in said
    assert "NEXT 1. Find the client that lies" in said
    assert spent_by(tmp_path)[0] == 3
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    warned = {w["kind"]: (w["count"], w["total"]) for w in report["warnings"]}
    assert warned["ended-early"] == (6, 9)
    assert warned["rejected-sums"] == (3, 3)
    assert [line["server_round"] for line in report["rounds"]] == [1, 2, 3]
    [most] = {
        f["facts"]["most rounds of a client"]
        for f in report["findings"]
        if f["auditor"] == "accountant"
    }
    assert most == spent_by(tmp_path)[1]
    assert main(["--resume", str(tmp_path / "run")]) == 2  # it has its report


def test_a_run_of_rejected_sums_that_dies_before_its_report_opens_no_further_one(
    tiny: list[str], tmp_path: Path, clients_that: Any
) -> None:
    clients_that(counted_twice)
    assert main(settings(tiny, tmp_path, "--rounds", "9")) == 1
    path = tmp_path / "run" / "report.json"
    first = comparable(path)
    path.unlink()
    clients_that(None)  # nobody lies any more
    assert main(["--resume", str(tmp_path / "run")]) == 1
    assert comparable(path) == first
    assert spent_by(tmp_path)[0] == 3


def cut_off(stage: str, number: int, _context: Context, reply: Message) -> Message:
    """End the process in round 3, when some share was given."""
    if (stage, number) == ("unmask", 3):
        raise KeyboardInterrupt
    return reply


def test_in_a_simulation_a_round_that_is_played_again_is_the_same_release(
    tiny: list[str], tmp_path: Path, clients_that: Any
) -> None:
    clients_that(cut_off)
    assert main(settings(tiny, tmp_path)) == 130
    assert spent_by(tmp_path)[0] == 3  # round 3 was open
    clients_that(None)
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert spent_by(tmp_path)[0] == 4


def test_in_a_deployment_a_round_that_is_played_again_is_charged_twice(
    tiny: list[str], tmp_path: Path, clients_that: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "is_deployed", lambda: True)
    clients_that(cut_off)
    assert main(settings(tiny, tmp_path)) == 130
    before = spent_by(tmp_path)
    assert main(["--resume", str(tmp_path / "run")]) == 130  # and once more
    clients_that(None)
    assert main(["--resume", str(tmp_path / "run")]) == 0
    releases, most = spent_by(tmp_path)
    assert releases == 4 + 2
    assert most > before[1]


def test_a_round_that_is_played_again_with_other_clients_is_charged_twice(
    tiny: list[str], tmp_path: Path, clients_that: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clients_that(cut_off)
    whole = ["--clients", "6", "--sample", "5"]
    assert main(settings(tiny, tmp_path, *whole)) == 130
    lost: list[int] = []

    def one_is_gone(stage: str, number: int, context: Context, reply: Message) -> Message:
        client = int(context.node_config["partition-id"])
        if (stage, number) == ("train", 3) and (not lost or client in lost):
            lost.append(client)
            raise RuntimeError("gone")
        return reply

    clients_that(one_is_gone)
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert "both releases are charged" in caplog.text
    assert spent_by(tmp_path)[0] == 4 + 1


def test_charges_that_are_damaged_are_a_mistake_with_its_file(
    tiny: list[str], tmp_path: Path, clients_that: Any, capsys: Any
) -> None:
    clients_that(cut_off)
    assert main(settings(tiny, tmp_path)) == 130
    path = tmp_path / "run" / "charges.json"
    clients_that(None)
    whole = json.loads(path.read_text())
    noise = next(i for i, one in enumerate(whole["charges"]) if one is not None)
    other = {**whole["charges"][noise], "charges": [{"release": {"noise_std": "much"}}]}
    for broken in (
        '{"server_round": 3',
        json.dumps({"server_round": 3, "charges": [1, 2]}),
        json.dumps({**whole, "charges": whole["charges"][1:]}),
        json.dumps({**whole, "charges": [{"times": 3}] * len(whole["charges"])}),
        json.dumps({**whole, "charges": [*whole["charges"][:noise], other, None][:3]}),
        "[" * 100_000,
    ):
        path.write_text(broken)
        assert main(["--resume", str(tmp_path / "run")]) == 2
        assert "charges.json is not whole" in capsys.readouterr().err
    path.write_text(json.dumps(whole))
    assert main(["--resume", str(tmp_path / "run")]) == 0


def test_one_client_that_silences_a_whole_round_ends_no_deployment(
    tiny: list[str], tmp_path: Path, clients_that: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def silence(stage: str, number: int, context: Context, reply: Message) -> Message:
        """Send boxes that do not open, so that all peers refuse, and then fail."""
        if number != 2 or not is_first(number, context):
            return reply
        if stage == "train":
            raise RuntimeError("gone")
        order = reply.content.get(wire.MASK)
        if stage == "shares" and order is not None:
            order["boxes"] = bytes(len(order["boxes"]))
        return reply

    taking_part: dict[int, set[int]] = {}

    def is_first(number: int, context: Context) -> bool:
        """Whether a client is the first one of a round that was asked."""
        known = taking_part.setdefault(number, set())
        known.add(int(context.node_id))
        return context.node_id == min(known)

    monkeypatch.setattr(run_module, "is_deployed", lambda: True)
    clients_that(silence)
    assert main(settings(tiny, tmp_path)) == 0
    assert "no client answered in round 2; the model stays as it was" in caplog.text
