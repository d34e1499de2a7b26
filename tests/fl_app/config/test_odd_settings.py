"""Odd settings, by mapping and by file: refused in one line, or fit to run."""

from __future__ import annotations

import math
import os
import random
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, kebab
from leakmeter.fl_app.run import early
from leakmeter.fl_app.run.run import preflight

WHOLE = [0, 1, -1, 2, 3, 5, 100, 10**5, 10**6, 10**9, 10**20, -(10**20), 10**5000]
REAL = [0.5, 0.999, 1e-300, 5e-324, 1e9, 1e300, math.inf, -math.inf, math.nan]
TEXT = ["", "none", "x", "\0", "a\nb", "ä" * 5000, "~nobody-at-all/x", "/dev/null", "/"]
REST = [True, False, None, [], {}, [1, 2], {"a": 10**5000}]
BASE = {
    "dataset": "synthetic",
    "synthetic-examples": 60,
    "model": "linear",
    "clients": 6,
    "sample": 3,
    "canary-seats": 2,
    "rounds": 4,
}


def odd(spec: Field[Any], rng: random.Random) -> Any:
    """Return a value for a setting, most often one of its own kind."""
    choices = spec.metadata["choices"]
    own = {int: WHOLE, float: REAL + WHOLE, str: choices or TEXT, bool: [True, False]}
    return rng.choice(own[type(spec.default)] if rng.random() < 0.7 else WHOLE + REAL + TEXT + REST)


def settings(number: int, folder: Path) -> dict[str, Any]:
    """Return a small run with a few odd settings."""
    rng = random.Random(number)
    values: dict[str, Any] = dict(BASE)
    if number % 2:
        noise = rng.choice(["central", "distributed", "local"])
        values |= {"noise": noise, "clip-norm": 1.0, "ledger": str(folder / "ledger")}
    # Nothing from outside: no download, no cluster.
    able = [s for s in fields(Config) if s.name not in ("download", "ray_address")]
    for spec in rng.sample(able, rng.choice([1, 1, 2, 3, 6])):
        values[kebab(spec.name)] = odd(spec, rng)
    return values


def test_three_hundred_configurations_are_refused_in_one_line_or_fit_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "memory", lambda: 2**27)  # so that none of them takes gigabytes
    refused = []
    for number in range(300):
        try:
            preflight(Config.from_mapping(settings(number, tmp_path)))
        except ConfigError as error:
            refused.append(str(error))
    assert 30 < len(refused) < 270
    assert all(len(words.splitlines()) == 1 and len(words) < 2000 for words in refused)
    assert list(tmp_path.iterdir()) == []


FILES = {
    "nested": b"[run]\nseed = 1\n",
    "array": b"rounds = [1, 2]\n",
    "date": b"rounds = 1979-05-27\n",
    "time": b"rounds = 07:32:00\n",
    "infinity": b"lr = inf\n",
    "nan": b"delta = nan\n",
    "digits": b"rounds = " + b"9" * 5000 + b"\n",
    "hexadecimal": b"rounds = 0x" + b"f" * 5000 + b"\n",
    "hexadecimal float": b"lr = 0x" + b"f" * 5000 + b"\n",
    "hexadecimal inside": b"rounds = [0x" + b"f" * 5000 + b"]\n",
    "twice": b"rounds = 1\nrounds = 2\n",
    "byte order mark": b"\xef\xbb\xbfrounds = 0\n",
    "not utf-8": b'data-dir = "\xff\xfe"\n',
    "utf-16": "rounds = 3\n".encode("utf-16"),
    "deep array": b"rounds = " + b"[" * 50_000,
    "deep table": b"a = " + b"{a=" * 5000 + b"1" + b"}" * 5000,
    "zero byte": b"rounds = 1\0\n",
    "several lines": b'dataset = """a\nb"""\n',
    "long": b'data-dir = "' + b"a" * 100_000 + b'"\n',
    "large": b"#" * 2_000_000,
    "name of two lines": b'"a\\nb" = 1\n',
    "no such home": b'dataset = "mnist"\ndata-dir = "~nobody-at-all/x"\n',
}


def one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_an_odd_file_is_refused_in_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.toml").write_bytes(content)
    one_line(["--config", str(tmp_path / "odd.toml"), "--out", str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


def test_what_is_no_regular_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")  # which would be waited for without end
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "pipe", tmp_path / "loop", tmp_path, "/dev/zero", "a\0b", "x" * 5000):
        assert "config must be a" in one_line(["--config", str(path)], capsys)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbfseed = 3\n")
    assert Config.from_toml(tmp_path / "c.toml").seed == 3


@pytest.mark.parametrize("option", ["--out", "--resume"])
def test_a_folder_of_nobody_is_refused_in_one_line(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [w for name, value in BASE.items() for w in (f"--{name}", str(value))]
    words = [option, "~nobody-at-all/x", *(small if option == "--out" else [])]
    assert f"{option[2:]} must be a path that can be found" in one_line(words, capsys)


@pytest.mark.parametrize("option", ["--out", "--resume"])
def test_a_folder_with_a_zero_byte_is_refused_in_one_line(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [w for name, value in BASE.items() for w in (f"--{name}", str(value))]
    words = [option, "a\0b", *(small if option == "--out" else [])]
    assert f"{option[2:]} must be a path without zero bytes" in one_line(words, capsys)
