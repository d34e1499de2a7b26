"""`leakmeter keys`: keys are made once, lists are checked, and mistakes are named."""

from __future__ import annotations

import errno
import os
import stat
from io import BytesIO
from pathlib import Path

import pytest

from leakmeter.clients.secure_sum.signing import Identity, TrustedKeys
from leakmeter.fl_app.cli.main import main
from tests.fl_app.cli.test_main import refused
from tests.helpers.fixtures import Patch, Printed


def test_a_new_key_is_the_owners_alone_and_its_line_is_printed(
    tmp_path: Path, capsys: Printed
) -> None:
    folder = tmp_path / "keys"
    assert main(["keys", "new", str(folder), "--name", "ward 3"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert TrustedKeys.of([line]).names == {Identity.load(folder).public: "ward 3"}
    assert stat.S_IMODE((folder / "identity.pem").stat().st_mode) == 0o600


def test_a_key_that_exists_is_kept_and_its_line_is_printed_again(
    tmp_path: Path, capsys: Printed
) -> None:
    folder = tmp_path / "keys"
    assert main(["keys", "new", str(folder)]) == 0
    line, before = capsys.readouterr().out, (folder / "identity.pem").read_bytes()
    assert main(["keys", "new", str(folder)]) == 0
    said = capsys.readouterr()
    assert said.out == line
    assert "exists and is not overwritten" in said.err
    assert (folder / "identity.pem").read_bytes() == before
    (folder / "identity.pem").write_text("half of a key")
    assert "must be an unencrypted PEM key" in refused(["keys", "new", str(folder)], capsys)


def test_the_line_of_a_key_is_shown_with_any_name(tmp_path: Path, capsys: Printed) -> None:
    line = Identity.create(tmp_path / "k").line
    for given in (tmp_path / "k", tmp_path / "k" / "identity.pem"):
        assert main(["keys", "show", str(given)]) == 0
        assert capsys.readouterr().out == f"{line}\n"
    assert main(["keys", "show", str(tmp_path / "k"), "--name", "ward 3"]) == 0
    assert capsys.readouterr().out == f"{line} ward 3\n"
    missing = refused(["keys", "show", str(tmp_path / "none")], capsys)
    assert "cannot be read" in missing
    assert "leakmeter keys new DIR" in missing


def test_a_full_disk_leaves_no_half_of_a_key(
    tmp_path: Path, capsys: Printed, monkeypatch: Patch
) -> None:
    class Full(BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(file: int, _: str) -> BytesIO:
        os.close(file)
        return Full()

    (tmp_path / "k").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr("os.fdopen", full)
        assert "No space left" in refused(["keys", "new", str(tmp_path / "k")], capsys)
    assert main(["keys", "new", str(tmp_path / "k")]) == 0


def test_a_list_is_checked_and_counted(tmp_path: Path, capsys: Printed) -> None:
    lines = [Identity.create(tmp_path / str(i)).line for i in range(3)]
    path = tmp_path / "trusted.txt"
    path.write_text("\n".join(lines))
    assert main(["keys", "list", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [*lines, "3 clients"]
    path.write_text(lines[0])
    assert main(["keys", "list", str(path)]) == 0
    assert "1 client; a secure sum needs at least 3 clients" in capsys.readouterr().out
    path.write_text("")
    assert main(["keys", "list", str(path)]) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["list", "nonsense"], "line 1: a public line must be"),
        (["list", "missing"], "cannot be read"),
        (["list", "twice"], "twice"),
        (["new", ""], "got an empty name"),
        (["show", ""], "got an empty name"),
        *(
            (["new", "k", "--name", name], "--name must be")
            for name in ("a\nb", " a", "x" * 101, "\x1b")
        ),
    ],
)
def test_a_mistake_is_named_and_leaves_nothing(
    words: list[str], reason: str, tmp_path: Path, capsys: Printed
) -> None:
    line = Identity.create(tmp_path / "a").line
    (tmp_path / "twice").write_text(f"{line} one\n{line} two\n")
    (tmp_path / "nonsense").write_text("nonsense")
    assert reason in refused(["keys", *words], capsys)


def test_help_says_what_the_three_actions_are(capsys: Printed) -> None:
    with pytest.raises(SystemExit):
        main(["keys", "--help"])
    said = capsys.readouterr().out
    assert " keys new ~" in said or " keys new " in said
    assert " keys show " in said
    assert " keys list " in said
    assert "keys --help" in refused(["keys"], capsys)
