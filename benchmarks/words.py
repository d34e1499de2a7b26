"""How figures are written, on the terminal and on the page."""

from __future__ import annotations

from benchmarks.measure import Row, Skipped, Spread, Unit

_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def figure(value: float) -> str:
    """Return three digits, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def amount(value: float, unit: Unit) -> str:
    """Return a figure with its unit; short times in ms or µs."""
    step, name = _step(value, unit)
    return f"{figure(value / step)} {name}"


def spread(found: Spread) -> str:
    """Return a ratio or an exponent with its range."""
    if found.low == found.high:
        return figure(found.median)
    return f"{figure(found.median)} ({figure(found.low)} to {figure(found.high)})"


def amounts(found: Spread, unit: Unit) -> str:
    """Return an amount with its range, all in the unit of the median."""
    step, _ = _step(found.median, unit)
    if found.low == found.high:
        return amount(found.median, unit)
    low, high = figure(found.low / step), figure(found.high / step)
    return f"{amount(found.median, unit)} ({low} to {high})"


def _step(value: float, unit: Unit) -> tuple[float, str]:
    """Return what to divide by, and the unit then."""
    if unit not in ("CPU s", "wall s"):
        return 1.0, unit
    return next((step for step in _STEPS if abs(value) >= step[0]), _STEPS[-1])


def target(row: Row) -> str:
    """Return the target and whether it is met."""
    if row.target is None:
        return ""
    limit = (
        f"at least {figure(row.target)}" if row.ratio else f"at most {amount(row.target, row.unit)}"
    )
    return f"{limit}: {'met' if row.is_met else 'missed'}"


def clock(unit: Unit) -> str:
    """Return what kind of time it was, if it was time."""
    return {"CPU s": "CPU time", "wall s": "wall time"}.get(unit, "")


def line(row: Row | Skipped) -> str:
    """Return a row for the terminal, ratio first."""
    if isinstance(row, Skipped):
        return f"{row.case}: not measured ({row.reason})"
    if row.expected is not None:
        assert row.ratio is not None
        return f"{row.case}: exponent {spread(row.ratio)}, expected {row.expected:g}; {row.note}"
    parts = [f"ours {amounts(row.ours, row.unit)}"]
    if row.peer and row.theirs and row.ratio:
        parts = [
            f"{spread(row.ratio)} times",
            *parts,
            f"{row.peer} {amounts(row.theirs, row.unit)}",
        ]
    if row.memory is not None:
        parts.append(f"{figure(row.memory)} MB")
    parts += [part for part in (target(row), clock(row.unit), row.note) if part]
    return f"{row.case}: {'; '.join(parts)} [{row.repetitions}]"
