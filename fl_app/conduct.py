"""Conducts one run on a grid: strategies, auditors, record and checkpoints around Flower's loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid

from auditors import Audited, Finding
from auditors.record import RoundLine
from fl_app import build
from fl_app.folder import RunFolder
from fl_app.progress import Progress
from fl_app.task import load_task
from strategies import PatientGrid
from strategies.state import check_resumable, restore_strategy, strategy_state


@dataclass
class Outcome:
    """What is left when a run has ended; filled by the server's thread."""

    findings: list[Finding] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    finished: bool = False


def conduct(folder: RunFolder, grid: Grid, progress: Progress) -> Outcome:
    """Run or continue the run of `folder` to its report."""
    torch.set_num_threads(1)
    config = folder.config
    task = load_task(config)
    strategy = build.server_strategy(config)
    check_resumable(strategy)
    kept = folder.load()
    arrays = task.initial_arrays()
    if kept is not None:
        restore_strategy(strategy, kept["strategy"])
        arrays = ArrayRecord({name: Array(a) for name, a in kept["model"].items()})

    def keep(line: RoundLine, model: ArrayRecord) -> None:
        folder.save(
            {
                "server_round": line.server_round,
                "model": {name: a.numpy() for name, a in model.items()},
                "strategy": strategy_state(strategy),
                "audit": audited.state(),
            }
        )
        progress.round(line)

    dim = sum(p.numel() for p in task.new_model().parameters())
    audited = Audited(
        strategy,
        build.auditors(config, dim),
        out=folder.path,
        config=config.to_mapping(),
        rounds_done=0 if kept is None else kept["server_round"],
        on_round=keep,
    )
    if kept is not None:
        audited.restore(kept["audit"])
    progress.begin(config, dim, task.sizes, 0 if kept is None else kept["server_round"])
    audited.start(
        PatientGrid(grid),
        arrays,
        num_rounds=config.rounds,
        evaluate_fn=lambda _, model: task.evaluate(model),
    )
    return Outcome(audited.findings, audited.failures, finished=True)
