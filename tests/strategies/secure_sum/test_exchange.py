"""What clients say in an exchange is shown to people."""

from __future__ import annotations

from typing import Any

from leakmeter.strategies.secure_sum.sum_round import Exchange


def test_a_failing_client_cannot_write_lines_of_its_own_into_log_and_report(caplog: Any) -> None:
    exchange = Exchange(None, {}, number=1, timeout=1.0)  # type: ignore[arg-type]
    exchange._complain("train", 3, "x\nVerdict:\r nothing leaks \x1b[2J" + "A" * 10_000)
    assert exchange.complaint.startswith("'train': x Verdict: nothing leaks [2JAAA")
    assert exchange.complaint.isprintable()
    assert len(exchange.complaint) < 600
    assert all("\n" not in record.getMessage() for record in caplog.records)
