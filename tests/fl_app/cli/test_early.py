"""Mistakes are found before torch is imported, in one sentence, with the right code."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.data.dataset import dataset_of, dealt
from tests.helpers.fixtures import Patch, Printed
from tests.helpers.processes import run_copies
from tests.helpers.project import ROOT

_PROBE = """
import sys
from leakmeter.fl_app.cli.main import main
code = main(sys.argv[1:])
heavy = {"torch", "flwr", "ray"} & set(sys.modules)
print(f"code {code}, heavy {sorted(heavy)}")
"""


@pytest.fixture
def impostor() -> Iterator[int]:
    """A port at which something listens that is no Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]


def test_a_run_says_that_it_starts_before_anything_heavy_is_imported() -> None:
    probe = (
        "import os, sys\n"
        "class Screen:\n"
        "    def write(self, text):\n"
        "        heavy = {'torch', 'flwr', 'ray', 'scipy'} & set(sys.modules)\n"
        "        os.write(2, f'{text} {sorted(heavy)}'.encode())\n"
        "        os._exit(0)\n"
        "    def flush(self): pass\n"
        "sys.stdout = Screen()\n"
        "from leakmeter.fl_app.cli.main import main\n"
        "main([])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=env)
    assert re.fullmatch(r"leakmeter \S+: digits, mlp, .*; starting …\s* \[\]", done.stderr)


def test_a_mistake_that_needs_no_torch_is_found_without_it(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    lines = (
        *("--model cnn", "--out .", "--engine ray --ray-address 127.0.0.1:9"),
        *("watch mine", "replay nowhere --auditors mine"),
    )
    for done in run_copies(_PROBE, [line.split() for line in lines], "numpy", cwd=tmp_path):
        assert done.stdout.splitlines()[-1] == "code 2, heavy []", done
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def test_a_port_at_which_something_else_listens_is_no_cluster(
    impostor: int, capsys: Printed
) -> None:
    """Ray itself waits for minutes."""
    assert main(["--engine", "ray", "--ray-address", f"127.0.0.1:{impostor}"]) == 2
    said = capsys.readouterr().err
    assert f"got 127.0.0.1:{impostor}: something else answers there" in said
    assert "leave out --ray-address" in said


def test_the_cluster_of_the_environment_is_looked_for_as_well(
    monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert main(["--engine", "ray"]) == 2
    assert "RAY_ADDRESS must be where a Ray cluster listens" in capsys.readouterr().err


@pytest.mark.slow
def test_ray_that_does_not_start_is_one_sentence_with_a_way_out(
    tiny: list[str], tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    def broken(**_: Any) -> None:
        raise TimeoutError("the node\nis slow")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", broken)
    assert main([*tiny, "--engine", "ray", "--out", "run"]) == 1
    printed = capsys.readouterr()
    assert printed.err == (
        "error: Ray does not start (TimeoutError: the node). To run in this process: "
        "--engine inline\n"
    )
    assert "resume" not in printed.out
    assert not (tmp_path / "run").exists()  # so that the same command can be tried again


def test_an_old_python_gets_one_sentence() -> None:
    script = (
        "import sys, runpy; sys.version_info = (3, 10, 1); "
        f"runpy.run_path({str(ROOT / 'run_sim.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: Leakmeter needs Python 3.11 or newer, got 3.10; ")


def test_a_package_that_is_missing_is_one_sentence(monkeypatch: Patch, capsys: Printed) -> None:
    def missing(_: Any) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    with monkeypatch.context() as patch:
        patch.setattr("leakmeter.fl_app.run.early.check_early", missing)
        assert main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the package numpy is missing, so Leakmeter is not installed")
    assert said.endswith("pip install -e .\n")
    dataset_of.cache_clear()
    dealt.cache_clear()
    monkeypatch.setattr("leakmeter.fl_app.data.image.find_spec", lambda _: None)
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("error: the package sklearn is missing, so ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_completed(shell: str, capsys: Printed) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for option in ("rounds", "target-epsilon", "text", "scale", "no-download"):
        assert f"--{option}" in script or f"-l {option} " in script
    assert "fashion-mnist" in script  # values too


def test_bash_completes_options_and_values(capsys: Printed) -> None:
    assert main(["completion", "bash"]) == 0
    tried = (
        'try() { COMP_WORDS=(leakmeter "$@"); COMP_CWORD=$#; COMPREPLY=(); _leakmeter; '
        'echo "${COMPREPLY[*]}"; }\n'
        'try --ro; try --noise d; try report --te; try completion ""; try rep\n'
        'try reproduce mi-us; try --auditors tr; try keys ""\n'
    )
    done = subprocess.run(
        ["bash", "-c", capsys.readouterr().out + tried], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "--rounds",
        "distributed",
        "--text",
        "bash zsh fish",
        "report reproduce replay",
        "mi-users",
        "transcript",
        "new show list",
    ]
