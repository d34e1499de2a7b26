"""The sample output in the README is what the default job prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
TOLERANCE = 0.01  # between machines; see docs/scaling-out.md


def sample() -> list[str]:
    """Return the lines of the README's sample, without those that stand for others."""
    [block] = re.findall(
        r"ends like this.*?```text\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    return [line.strip() for line in block.splitlines() if line.strip() and line.strip() != "..."]


def numbers(line: str) -> list[float]:
    return [float(word.replace(",", "")) for word in NUMBER.findall(line)]


def agrees(shown: str, printed: str) -> bool:
    """Whether two lines differ in the last digits of their numbers only."""
    if shown.endswith(" ..."):  # where the run's folder is left out
        shown = shown.removesuffix(" ...")
        printed = printed.split(" --seed ")[0]
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    pairs = zip(numbers(shown), numbers(printed), strict=True)
    return all(abs(a - b) <= TOLERANCE * max(abs(a), abs(b)) for a, b in pairs)


def test_a_number_that_is_off_by_more_than_one_per_cent_is_noticed() -> None:
    assert agrees("ε ≥ 1.67 at δ = 1e-05", "ε ≥ 1.66 at δ = 1e-05")
    assert not agrees("ε ≥ 1.67 at δ = 1e-05", "ε ≥ 1.7 at δ = 1e-05")
    assert not agrees("ε ≥ 1.67 at δ = 1e-05", "ε ≤ 1.67 at δ = 1e-05")


@pytest.mark.slow
def test_the_default_job_prints_the_readme_s_sample(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "run_sim.py"), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    printed = [line.strip() for line in done.stdout.splitlines()]
    missing = [line for line in sample() if not any(agrees(line, one) for one in printed)]
    assert len(sample()) >= 8
    start = next(i for i, line in enumerate(printed) if line.startswith("VERDICT"))
    assert len(printed) - start <= 25  # the verdict and what follows from it, on one screen
    assert not missing, f"the default job printed none of {missing} in:\n{done.stdout}"
