"""Keeps what each round released, so that auditors can look at a finished run again."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors._types import Vector
from leakmeter.auditors.auditor import Auditor, Canary, RoundFacts, RoundView
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.run_log import write_atomically

_VECTORS = ("aggregate", "noised")  # fields of RoundFacts that are vectors
_KEPT = frozenset({"server_round", "sent", "released", "facts", "instructed", "sends", "sign"})
_FILES = "round-*.npz"


class AggregateRecorder(Auditor):
    """Writes model, aggregate and facts of every round to a folder; see `replay`.

    Single replies and plain updates are not kept: they would be as large as all clients together.

    Args:
        folder: Where to; one file a round. A round that is run again replaces its file, and a
            first round whatever else a former run has left.
    """

    name = "recorder"
    reads = frozenset({"sent", "released", "facts"})

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._rounds = 0

    def begin(self, dim: int, num_rounds: int) -> None:
        """Note what the auditors of a replay will be told."""
        self._folder.mkdir(parents=True, exist_ok=True)
        about = {"dim": dim, "num_rounds": num_rounds, "first_round": self.first_round}
        plan = json.dumps(about)
        write_atomically(self._folder / "plan.json", plan)

    def observe(self, view: RoundView) -> Sequence[Finding]:
        """Write the round."""
        if view.server_round == 1:  # one log per run: rounds that are left are another's
            for old in self._folder.glob(_FILES):
                old.unlink()
            self._rounds = 0
        facts = {k: v for k, v in vars(view.facts).items() if k not in _VECTORS}
        orders = {str(client): asdict(order) for client, order in view.instructed.items()}
        vectors = {
            "sent": view.sent,
            "released": view.released,
            "aggregate": view.facts.aggregate,
            "noised": view.facts.noised,
        }
        about = {
            "server_round": view.server_round,
            "facts": facts,
            "instructed": orders,
            "sends": view.sends,
            "sign": view.sign,
        }
        buffer = io.BytesIO()
        packed: dict[str, Any] = {k: _short(v) for k, v in vectors.items() if v is not None}
        np.savez(buffer, about=np.array(json.dumps(about, default=_number)), **packed)
        write_atomically(_path(self._folder, view.server_round), buffer.getvalue())
        self._rounds += 1
        return ()

    def report(self) -> Sequence[Finding]:
        """Say how many rounds are kept."""
        return [
            Finding(
                value=float(self._rounds),
                kind="diagnostic",
                rule="rounds kept for a replay",
                auditor=self.name,
                quantity="rounds recorded",
                threat_model=ThreatModel(observer="server", sees=None),
            )
        ]

    def state(self) -> dict[str, Any]:
        """Return how many rounds are kept; the rounds themselves are on disk."""
        return {"rounds": self._rounds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state` returned."""
        self._rounds = int(state["rounds"])


def replay(folder: str | Path, auditors: Sequence[Auditor]) -> list[Finding]:
    """Show a recorded run to auditors and return what they would have found in it.

    An auditor with the settings it had in the run finds the same. Canaries cannot be played in
    hindsight: an auditor that plays some sees those that were played under its own seed.

    Raises:
        ValueError: If an auditor reads what was not kept, or rounds are missing in the folder.
    """
    folder = Path(folder)
    for auditor in auditors:
        if missing := auditor.reads - _KEPT:
            raise ValueError(f"{auditor.name} must read only {sorted(_KEPT)}, reads {missing}")
    try:
        plan = json.loads((folder / "plan.json").read_text())
        dim, num_rounds = int(plan["dim"]), int(plan["num_rounds"])
        first_round = int(plan.get("first_round", 1))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"folder must hold plan.json of a recorder, got {folder}") from error
    # A strategy's own loop may have gone on for longer than planned.
    kept = len(list(folder.glob(_FILES)))
    paths = [_path(folder, r) for r in range(1, max(num_rounds, kept) + 1)]
    for path in paths:
        if not path.exists():
            raise ValueError(f"folder must hold all {len(paths)} rounds, lacks {path.name}")
    for auditor in auditors:
        auditor.first_round = first_round
        auditor.begin(dim, num_rounds)
    findings: list[Finding] = []
    for path in paths:
        view = _read(path)
        for auditor in auditors:
            findings += auditor.observe(view)
    for auditor in auditors:
        findings += auditor.report()
    return findings


def _read(path: Path) -> RoundView:
    """Return a round as it was seen, without what was not kept."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Vector] = {
                name: file[name].astype(np.float64) for name in file.files if name != "about"
            }
            about = json.loads(str(file["about"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be a round of a recorder, got {error!r}") from error
    facts: dict[str, Any] = about["facts"] | {k: arrays[k] for k in _VECTORS if k in arrays}
    return RoundView(
        server_round=about["server_round"],
        sent=arrays["sent"],
        replies={},
        released=arrays["released"],
        facts=RoundFacts(**facts),
        instructed={int(c): Canary(**order) for c, order in about["instructed"].items()},
        sends=about.get("sends", "models"),
        sign=int(about.get("sign", 1)),
    )


def _number(value: Any) -> Any:
    """Return a number of numpy's as one that JSON knows."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"facts must be numbers, text or known vectors, got {type(value).__name__}")


def _short(vector: Vector) -> NDArray[np.floating]:
    """Return the vector in four bytes a number where that loses nothing, as for a model's."""
    with np.errstate(over="ignore"):
        short = vector.astype(np.float32)
    return short if np.array_equal(short, vector) else vector


def _path(folder: Path, server_round: int) -> Path:
    return folder / f"round-{server_round:06d}.npz"
