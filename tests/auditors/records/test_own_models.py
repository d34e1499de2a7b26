"""What a client finds out by itself, from the models that it was sent."""

from __future__ import annotations

import io
import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from leakmeter import keep_models
from leakmeter.auditors.records.own_models import Arrays, self_audit
from leakmeter.auditors.rng import stream
from leakmeter.fl_app.cli.main import main

MEMBERS, DIM = 100, 150


@pytest.fixture(autouse=True)
def _in_a_task(flower_task: None) -> None:
    """Flower makes messages only inside a task."""


def records() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs with labels that mean nothing, so that only memory helps."""
    rng = stream(0, "own records")
    return rng.standard_normal((2 * MEMBERS, DIM)), np.sign(rng.standard_normal(2 * MEMBERS))


def losses(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of a logistic regression; the second half is held back."""
    x, y = records()
    each = np.logaddexp(0, -y * (x @ arrays["w"]))
    return each[:MEMBERS], each[MEMBERS:]


def trained(steps: int) -> np.ndarray:
    """Return weights after gradient steps on the members."""
    x, y = (part[:MEMBERS] for part in records())
    w = np.zeros(DIM)
    for _ in range(steps):
        w += x.T @ (y / (1 + np.exp(y * (x @ w)))) / MEMBERS
    return w


def message(w: np.ndarray, kind: str = "train") -> Message:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "config": ConfigRecord()})
    return Message(content, dst_node_id=1, message_type=kind)


def play(folder: Path, *messages: Message) -> None:
    mod = keep_models(folder)
    for one in messages:
        reply = mod(
            one, Context(1, 1, {}, RecordDict(), {}), lambda m, _: Message(RecordDict(), reply_to=m)
        )
        assert not reply.has_error()


def test_models_are_kept_once_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    weights = [trained(steps) for steps in (0, 1, 2)]
    play(
        tmp_path / "models",
        message(weights[0]),
        message(weights[1], "evaluate"),
        message(weights[1], "train.own"),
        message(weights[2], "query"),
        message(weights[2]),
    )
    [run] = (tmp_path / "models").iterdir()
    files = sorted(run.iterdir())
    assert [file.name for file in files] == [f"model-{i:06d}.npz" for i in (1, 2, 3)]
    for file, w in zip(files, weights, strict=True):
        assert np.array_equal(np.load(file)["w"], w)


def test_a_model_that_cannot_be_kept_stops_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").write_text("a file in the way")
    with caplog.at_level(logging.WARNING, logger="flwr"):
        play(tmp_path / "models", message(trained(0)))
        empty = Message(RecordDict(), dst_node_id=1, message_type="train")
        play(tmp_path / "others", empty)
    assert sum("is not kept" in record.message for record in caplog.records) == 2


def test_a_client_whose_records_were_learnt_by_heart_finds_out(tmp_path: Path) -> None:
    play(tmp_path, *(message(trained(steps)) for steps in (0, 20, 200)))
    told, last, every = self_audit(tmp_path, losses, alike=True)
    assert told.quantity == "membership advantage"
    assert told.value > 0.3
    assert not told.is_conditional
    assert last.value > 1
    assert every.value > 1
    assert {f.unit for f in (told, last, every)} == {"record"}
    assert every.threat_model.participations == 2
    assert self_audit(tmp_path, losses)[0].is_conditional


def test_a_model_that_has_not_learnt_them_shows_nothing(tmp_path: Path) -> None:
    rng = stream(1, "strangers")
    play(tmp_path, *(message(rng.standard_normal(DIM) / 10) for _ in range(4)))
    assert [f.value for f in self_audit(tmp_path, losses, alike=True)] == [0, 0, 0]


def test_files_that_are_no_models_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must contain at least 2 models .* got 0"):
        self_audit(tmp_path, losses)
    for number, w in ((1, trained(0)), (2, np.array([{}], dtype=object))):  # would run code
        np.savez(tmp_path / f"model-{number:06d}.npz", w=w)
    with pytest.raises(ValueError, match=r"model-000002.npz must be a model"):
        self_audit(tmp_path, losses)


def npy(shape: str, body: bytes = b"", kind: str = "<f8") -> bytes:
    """Return a file of one array that says this shape of itself."""
    said = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said.encode() + body


def npz(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


WHOLE = npz("w.npy", npy("(150,)", bytes(1200)))
PLAIN = b"\x14\x00\x00\x00\x08\x00"  # of each entry: no password, packed as usual


@pytest.mark.parametrize(
    "content",
    [
        npz("w.npy", npy("(1000000, 1000000, 100)")),  # more than any memory
        npz("w.npy", b"no array"),
        npz("w.txt", b"no array"),
        npz("w.npy", npy("(150,)", bytes(150), "|S1")),
        WHOLE.replace(PLAIN, b"\x14\x00\x01\x00\x08\x00"),  # with a password
        WHOLE.replace(PLAIN, b"\x14\x00\x00\x00\x63\x00"),  # packed in no known way
        WHOLE[:40] + b"\xff" * 20 + WHOLE[60:],
        npy("(150,)", bytes(1200)),  # one array without an archive
        b"PK\x05\x06" + bytes(18),  # an empty archive
        b"PK\x03\x04 broken",
        b"",
    ],
    ids=[
        "huge",
        "words",
        "text",
        "letters",
        "locked",
        "unknown",
        "broken",
        "bare",
        "empty",
        "cut",
        "nothing",
    ],
)
def test_files_that_lie_are_named(content: bytes, tmp_path: Path) -> None:
    for number, kept in enumerate((WHOLE, WHOLE, content), start=1):
        (tmp_path / f"model-{number:06d}.npz").write_bytes(kept)
    with pytest.raises(ValueError, match=r"model-000003.npz must be a model.*Leave it out"):
        self_audit(tmp_path, losses)


def test_models_of_other_shapes_and_changing_records_are_named(tmp_path: Path) -> None:
    for number, size in enumerate((DIM, DIM, 7), start=1):
        np.savez(tmp_path / f"model-{number:06d}.npz", w=np.zeros(size))
    with pytest.raises(ValueError, match=r"model-000003.npz must have the same arrays as .*1.npz"):
        self_audit(tmp_path, losses)
    np.savez(tmp_path / "model-000003.npz", w=np.ones(DIM))

    def changing(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(50 + int(arrays["w"][0])), np.ones(50)

    with pytest.raises(ValueError, match=r"losses of the same records at every model"):
        self_audit(tmp_path, changing)


def test_the_command_prints_the_verdict_and_the_details(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(tmp_path, *(message(trained(steps)) for steps in (0, 20, 200)))
    name = f"{__name__}:losses"
    assert main(["self-audit", str(tmp_path), "--losses", name, "--drawn-by-lot"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("VERDICT")
    assert "Nothing has been sent" in said
    assert "if a record was used" in said


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("losses", "must be MODULE:FUNCTION"),
        ("no_such_module:losses", "No module named 'no_such_module'"),
        ("math:losses", "has no attribute 'losses'"),
        ("math:pi", "must name a function"),
    ],
)
def test_a_function_that_is_none_is_named(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["self-audit", str(tmp_path), "--losses", name]) == 2
    assert why in capsys.readouterr().err


def test_models_of_two_runs_are_not_mixed_and_a_diverged_one_is_left_out(tmp_path: Path) -> None:
    play(tmp_path, *(message(trained(steps)) for steps in (0, 20)), message(np.full(DIM, np.nan)))
    [run] = tmp_path.iterdir()
    assert len(list(run.iterdir())) == 2
    np.savez(run / "model-000003.npz", w=np.full(DIM, np.inf))  # of another hand
    assert len(self_audit(tmp_path, losses)) == 3
    (tmp_path / "run-2").mkdir()
    with pytest.raises(ValueError, match="models of one run, got 2: name one of its folders"):
        self_audit(tmp_path, losses)


def test_arrays_of_any_name_are_kept_and_losses_may_be_tensors(tmp_path: Path) -> None:
    import torch

    for w in (trained(0), trained(20)):
        content = RecordDict({"arrays": ArrayRecord({"file": Array(w)})})
        play(tmp_path, Message(content, dst_node_id=1, message_type="train"))

    def tensors(arrays: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
        ins, outs = losses({"w": arrays["file"]})
        return torch.from_numpy(ins), torch.from_numpy(outs)

    assert len(self_audit(tmp_path, tensors)) == 3
    with pytest.raises(ValueError, match="losses must return two lists"):
        self_audit(tmp_path, lambda _: [1.0, 2.0, 3.0])  # type: ignore[arg-type, return-value]
