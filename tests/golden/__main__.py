"""Run `python -m tests.golden FOLDER [NAME ...]`: what is compared of each run, as JSON to diff.

With `--record` the hashes are written too. Do that in a commit of its own that lists what changed.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from tests.golden.runs import HASHES, RUNS, canonical, compared, hashes, machine, run


def main() -> None:
    """Make golden runs and write what is compared of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # before anything imports numpy: sums on one thread are repeatable
    # OpenBLAS picks its kernels by the processor's name, torch by its instructions: with the same
    # AVX512, some AMD machines get those for Haswell, and other last bits.
    processor = Path("/proc/cpuinfo")
    if processor.exists() and "avx512f" in processor.read_text(encoding="utf-8"):
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    recorded = json.loads(HASHES.read_text(encoding="utf-8"))
    found = recorded.setdefault(machine(), {})
    for name in arguments.names or RUNS:
        report = json.loads((run(name, arguments.folder) / "report.json").read_text("utf-8"))
        text = canonical(compared(report))
        (arguments.folder / f"{name}.json").write_text(text, encoding="utf-8")
        now = hashes(report)
        print(f"golden {name}: {'equal' if now == found.get(name) else 'DIFFERENT'}", flush=True)
        found[name] = now
    if arguments.record:
        HASHES.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


main()
