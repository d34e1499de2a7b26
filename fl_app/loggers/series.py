"""What every logger writes: named numbers of a round, the verdict in words, and the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from leakmeter.auditors.callback import RunEnd
from leakmeter.auditors.finding import Finding, RunWarning
from leakmeter.auditors.judge.summary import summary
from leakmeter.auditors.run_log import RoundLine

_PREFIX = "leakmeter"


def tool(module: str, extra: str) -> Any:
    """Return a tool's module; if it is missing, say how to install it.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this logger needs {extra}, which cannot be imported ({error}); "
            f'install it with pip install "leakmeter[{extra}]"'
        ) from error


def of_round(line: RoundLine, warnings: Sequence[RunWarning]) -> dict[str, float]:
    """Return a round's metrics, findings and warnings by name."""
    metrics = {f"{_PREFIX}/{name}": value for name, value in line.metrics.items()}
    clients = {f"{_PREFIX}/clients": float(line.num_clients)}
    return _finite(metrics | clients | _found("round", line.findings) | _shares(warnings))


def of_run(end: RunEnd) -> dict[str, float]:
    """Return the findings about the whole run, and its warnings, by name."""
    return _finite(_found("run", end.findings) | _shares(end.warnings))


def verdict(end: RunEnd) -> str:
    """Return the verdict and the attackers, as a terminal shows them."""
    return "\n".join(summary(end.findings, end.failures, end.warnings))


def with_page(end: RunEnd, keep: Callable[[Path], object]) -> None:
    """Call `keep` with the page of the run as a file; without a run folder there is no page."""
    if end.folder is None:
        return
    from leakmeter.fl_app.report import NAME
    from leakmeter.fl_app.report.html.page import page
    from leakmeter.fl_app.report.read.run import read_runs

    with TemporaryDirectory() as folder:
        path = Path(folder) / NAME
        path.write_text(page(read_runs([end.folder])), encoding="utf-8")
        keep(path)


def _found(scope: str, findings: Iterable[Finding]) -> dict[str, float]:
    """Return value and null band of each finding.

    The name says how strong a number is and about which attacker, so that an estimate never passes
    for a bound. Of several findings with one name, the later ones are numbered.
    """
    said: dict[str, float] = {}
    for finding in findings:
        name = first = _name(scope, finding)
        count = 1
        while name in said:
            count += 1
            name = f"{first}.{count}"
        said[name] = float(finding.value)
        if finding.null_band is not None:
            low, high = finding.null_band
            said |= {f"{name}.null-low": float(low), f"{name}.null-high": float(high)}
    return said


def _name(scope: str, finding: Finding) -> str:
    model = finding.threat_model
    strength = "conditional-" if finding.is_conditional else "anytime-" * finding.is_anytime
    kind = strength + finding.kind
    parts = (finding.auditor, finding.quantity, kind, model.observer, model.sees or "unknown view")
    return f"{_PREFIX} {scope}/" + ".".join(part.replace("/", "-") for part in parts)


def _shares(warnings: Sequence[RunWarning]) -> dict[str, float]:
    return {f"{_PREFIX} warnings/{warning.kind}": warning.value for warning in warnings}


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that every tool can draw; report.json has the infinite ones."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
