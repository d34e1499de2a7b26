"""The golden runs: their commands, and what of their reports is compared."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
HASHES: Final = HERE / "hashes.json"
RENAMES: Final = HERE / "renames.json"
SECTIONS: Final = ("findings", "rounds", "schedules")

_SMALL: Final = "--clients 24 --sample 12 --canary-seats 4 --rounds 2"
_LIGHT: Final = f"{_SMALL} --auditors one-shot"
RUNS: Final[Mapping[str, str]] = {
    "default": _SMALL,
    "fedsgd": f"{_SMALL} --algorithm fedsgd --server fedadam --partition dirichlet",
    "fedprox": (
        f"{_LIGHT},likelihood-ratio,mutual-information --algorithm fedprox --server fedavgm "
        "--mi-over-rounds 20"
    ),
    "gd": f"{_LIGHT},mutual-information --algorithm gd --lrt-game partition",
    "central": f"{_LIGHT},likelihood-ratio,mutual-information,mine --noise central --clip-norm 1",
    "skellam": (
        f"{_LIGHT},likelihood-ratio --noise distributed --noise-distribution skellam --clip-norm 1 "
        "--target-epsilon 8"
    ),
    "wfna": (
        f"{_LIGHT},record-likelihood-ratio --model linear --noise wfna --wfna-floor 0.01 "
        "--clip-norm 1"
    ),
    "transcript": f"{_SMALL} --auditors transcript --transcript-trials 40 --model linear",
    "records": (
        "--clients 24 --sample 3 --rounds 2 --auditors membership,inversion,span "
        "--algorithm fedsgd --batch-size 1 --inversion-images 3 --inversion-steps 40 "
        "--membership-shadows 2"
    ),
    "active": f"{_LIGHT} --secagg active --dropout 0.02 --model linear",
    "anytime": (
        f"{_LIGHT},likelihood-ratio --bounds anytime --delta 1e-6 --canary-repetitions 2 "
        "--participation epochs"
    ),
    "local": f"{_LIGHT},likelihood-ratio --noise local --clip-norm 1 --secagg off --model linear",
}


def machine() -> str:
    """Return the class of machines on which equal arithmetic gives equal bits."""
    import numpy as np
    import scipy
    import torch

    kernels = torch.backends.cpu.get_cpu_capability()
    packages = f"numpy {np.__version__}, scipy {scipy.__version__}, torch {torch.__version__}"
    return f"{platform.system()} {platform.machine()} {kernels}; {packages}"


def run(name: str, folder: Path) -> Path:
    """Make one golden run in this process; return its folder."""
    from leakmeter.fl_app.cli.main import main

    out = folder / name
    code = main([*RUNS[name].split(), "--out", str(out)])
    assert code == 0, f"the golden run {name} ended with exit code {code}"
    return out


def compared(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a report that are compared, in the words of the recorded ones."""
    old = json.loads(RENAMES.read_text(encoding="utf-8"))
    return {section: _renamed(report[section], old) for section in SECTIONS}


def canonical(sections: Any) -> str:
    """Return a value as text that is equal where all numbers are equal to the last bit."""
    return json.dumps(sections, sort_keys=True, indent=1, allow_nan=False)


def hashes(report: Mapping[str, Any]) -> dict[str, str]:
    """Return one hash for each compared section."""
    found = compared(report)
    return {
        name: hashlib.sha256(canonical(value).encode()).hexdigest() for name, value in found.items()
    }


def _renamed(value: Any, old: Mapping[str, str]) -> Any:
    """Return a value with every key, and every text that is a name, as it was recorded."""
    if isinstance(value, dict):
        return {old.get(key, key): _renamed(one, old) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, old) for one in value]
    return old.get(value, value) if isinstance(value, str) else value
