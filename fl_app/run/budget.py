"""The privacy budget of a data set: asked before a run, charged while it goes on."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors import wording
from leakmeter.auditors.finding import Bound
from leakmeter.auditors.hook.chain import chain
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError, out_of_range
from leakmeter.strategies import Chosen, Masked, Noised
from leakmeter.strategies.accounting.ledger import Entry, Ledger, spent, spent_amplified

_log = logging.getLogger("flwr")

_RUN = "ledger-run"


def check_budget(config: Config, strategy: Strategy, folder: Path | None = None) -> None:
    """Raise, or warn if the user prefers, where the planned run would exceed the budget.

    `folder` is that of an interrupted run, whose own entry does not count twice.
    """
    if not config.ledger:
        return
    run = _run_name(folder) if folder else ""
    before = _entries(config, run)
    if any(e.seed == config.seed for e in before):
        raise out_of_range(
            "seed", "one that no run in the ledger has used: it names the noise", config.seed
        )
    planned = _planned(config, strategy, run or "planned")
    after = spent([*before, planned], config.delta)
    if not config.budget or after.value <= config.budget:
        return
    so_far = _epsilon(spent(before, config.delta)) if before else "nothing"
    words = (
        f"budget of ε = {config.budget:g} at δ = {config.delta:g} would be exceeded: {so_far} is "
        f"spent on {config.dataset}, {_epsilon(after)} after this run; take more noise or fewer "
        "rounds"
    )
    if config.over_budget == "refuse":
        raise ConfigError(words)
    _log.warning(words)


def charge(config: Config, strategy: Strategy, folder: Path) -> Bound | None:
    """Write what the run has released so far into the ledger; return ε of everything."""
    noised = next((s for s in chain(strategy) if isinstance(s, Noised)), None)
    assurance = noised.spending.assurance() if noised else None
    if not config.ledger or assurance is None:
        return None
    name = _run_name(folder)
    entry = Entry.of(assurance, run=name, data=config.dataset, seed=config.seed)
    Ledger(Path(config.ledger)).record(entry)
    return spent([*_entries(config, name), entry], config.delta)


def statement(config: Config) -> str:
    """Say in words what the ledger holds for the data set of this run."""
    entries = _entries(config, "")
    bound = spent(entries, config.delta)
    text = (
        f"ledger: {len(entries)} run(s) on {config.dataset}, {_epsilon(bound)} at "
        f"δ = {config.delta:g} for all released models together"
    )
    if (better := spent_amplified(entries, config.delta)) is not None:
        text += f" ({_epsilon(better)} against those who never learn who took part)"
    if config.budget and bound.value > config.budget:
        text += f"; this exceeds the budget of {config.budget:g}"
    return text


def _epsilon(bound: Bound) -> str:
    """Return ε with the sign of its kind: "≤" for a guarantee, which is rounded up, else "≈"."""
    sign = wording.SIGNS.get(bound.kind, "≈")
    return f"ε {sign} {wording.number(bound.value, kind=bound.kind)}"


def _planned(config: Config, strategy: Strategy, run: str) -> Entry:
    """Return the entry that a whole run without dropouts would leave; rounding is left out."""
    noised = next(s for s in chain(strategy) if isinstance(s, Noised))
    chosen = next(s for s in chain(strategy) if isinstance(s, Chosen))
    masked = next((s for s in chain(strategy) if isinstance(s, Masked)), None)
    cohorts = [chosen.cohort(number) for number in range(1, config.rounds + 1)]
    assurance = noised.planned(cohorts, masked.bearable if masked else lambda _: None)
    assert assurance is not None  # there is at least one round
    return Entry.of(assurance, run=run, data=config.dataset, seed=config.seed)


def _entries(config: Config, but: str) -> list[Entry]:
    try:
        return Ledger(Path(config.ledger)).entries(config.dataset, but=but)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ledger must be a readable ledger, got {config.ledger}: {error}") from (
            None
        )


def _run_name(folder: Path) -> str:
    """Return the run's own name, drawn once: a folder may be deleted and its path used again."""
    path = folder / _RUN
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()
