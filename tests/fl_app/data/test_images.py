"""Image sets beyond MNIST: layouts, counts, parts of a whole, and files that are not theirs."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakmeter.auditors.rng import stream
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.data.dataset import FOLDER_VARIABLE, check_size, load
from tests.helpers.numbers import first_fast, idx
from tests.helpers.refusals import refuses

REAL = os.environ.get(FOLDER_VARIABLE)
needs_files = pytest.mark.skipif(not REAL, reason=f"{FOLDER_VARIABLE} names no data folder")
FASHION = Path(REAL or "") / "fashion-mnist" / "train-images-idx3-ubyte.gz"

PARTS = {
    "mnist": ("train", "t10k"),
    "fashion-mnist": ("train", "t10k"),
    "emnist-digits": ("emnist-digits-train", "emnist-digits-test"),
}
LAYOUTS = [
    ("mnist", "MNIST/raw"),
    ("mnist", "mnist"),
    ("fashion-mnist", "FashionMNIST/raw"),
    ("fashion-mnist", "fashion-mnist"),
    ("emnist-digits", "EMNIST/raw"),
    ("emnist-digits", "emnist"),
]


def write_idx(place: Path, parts: tuple[str, str], *, packed: bool = False) -> None:
    """Write three images of which only pixel (2, 5) is bright, in each part."""
    place.mkdir(parents=True)
    images = np.zeros((3, 28, 28), np.uint8)
    images[:, 2, 5] = 255
    for part in parts:
        files = {"images-idx3": images, "labels-idx1": np.array([0, 4, 9], np.uint8)}
        for kind, array in files.items():
            data = gzip.compress(idx(array)) if packed else idx(array)
            (place / f"{part}-{kind}-ubyte{'.gz' * packed}").write_bytes(data)


def pictures(count: int, seed: int) -> np.ndarray:
    return stream(seed, "pictures").integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)


def write_part(folder: Path, name: str = "cifar10_small.npz", **replaced: np.ndarray) -> Path:
    (folder / "cifar10").mkdir(parents=True)
    arrays = {
        "x_train": pictures(3, 0),
        "y_train": np.array([1, 2, 9], np.uint8),
        "x_test": pictures(2, 1),
        "y_test": np.array([0, 3], np.uint8),
    } | replaced
    np.savez(folder / "cifar10" / name, **{k: a for k, a in arrays.items() if a is not None})
    return folder / "cifar10" / name


def write_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write CIFAR-10's own files, ten pictures in each, and tell torchvision their digests."""
    from torchvision.datasets import CIFAR10

    place = folder / CIFAR10.base_folder
    place.mkdir(parents=True)
    digests = {}
    for i, name in enumerate([*(f"data_batch_{j}" for j in range(1, 6)), "test_batch"]):
        rows = pictures(10, i).transpose(0, 3, 1, 2).reshape(10, -1)  # all of red, green, blue
        data = pickle.dumps({"data": rows, "labels": [i] * 10})
        (place / name).write_bytes(data)
        digests[name] = hashlib.md5(data).hexdigest()
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (place / "batches.meta").write_bytes(meta)
    monkeypatch.setattr(CIFAR10, "train_list", [[n, d] for n, d in digests.items()][:5])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", digests["test_batch"]]])
    known = {**CIFAR10.meta, "md5": hashlib.md5(meta).hexdigest()}
    monkeypatch.setattr(CIFAR10, "meta", known)


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
@pytest.mark.parametrize("packed", [True, False])
def test_grey_images_are_read_from_either_layout(
    tmp_path: Path, name: str, layout: str, packed: bool
) -> None:
    write_idx(tmp_path / layout, PARTS[name], packed=packed)
    found = load(name, data_dir=tmp_path)
    assert (found.name, found.input_shape, found.num_classes) == (name, (28, 28), 10)
    # EMNIST's files hold rows for columns.
    bright = (5, 2) if name == "emnist-digits" else (2, 5)
    for x, y in ((found.train_x, found.train_y), (found.test_x, found.test_y)):
        assert (x[0][bright], x.sum(), x.dtype) == (1, 3, np.float32)
        assert (y.tolist(), y.dtype) == ([0, 4, 9], np.int64)


@pytest.mark.parametrize("name", ["fashion-mnist", "emnist-digits"])
def test_one_data_set_is_not_taken_for_another(tmp_path: Path, name: str) -> None:
    write_idx(tmp_path / "mnist", ("train", "t10k"))
    with pytest.raises(ConfigError, match=f"{name}: looked for"):
        load(name, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    first_fast(
        3,
        [
            ("mnist", "MNIST"),
            ("emnist-digits", "EMNIST"),
            ("cifar10", "CIFAR10"),
            ("fashion-mnist", "FashionMNIST"),
        ],
    ),
)
@pytest.mark.slow
def test_images_are_fetched_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    import torchvision.datasets as theirs

    def download(self: Any) -> None:
        if name == "cifar10":
            write_whole(Path(self.root), monkeypatch)
        else:
            write_idx(Path(self.raw_folder), PARTS[name])

    monkeypatch.setattr(getattr(theirs, kind), "download", download)
    with pytest.raises(ConfigError, match="--download"):
        load(name, data_dir=tmp_path)
    assert not list(tmp_path.iterdir())
    assert load(name, data_dir=tmp_path, download=True).num_train in (3, 50)


def test_fewer_records_than_published_are_a_subset_and_more_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="flwr"):
        check_size("them", (9, 5), (9, 5))
        assert not caplog.records
        check_size("them", (9, 4), (9, 5))
    assert "them: a subset: 9 and 4 of the 9 training and 5 test records" in caplog.text
    with refuses("them"):
        check_size("them", (10, 5), (9, 5))


def test_a_part_of_cifar10_is_read_and_called_a_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_part(tmp_path)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = load("cifar10", data_dir=tmp_path)
    assert (found.input_shape, found.num_classes, found.num_train) == ((3, 32, 32), 10, 3)
    assert (found.train_y.tolist(), found.test_y.tolist()) == ([1, 2, 9], [0, 3])
    assert (found.train_x.dtype, found.train_y.dtype) == (np.float32, np.int64)
    assert "a subset: 3 and 2 of the 50,000 training" in caplog.text
    # Colour c of pixel (row, column) stands at (c, row, column).
    assert found.train_x[1, 2, 30, 4] == np.float32(pictures(3, 0)[1, 30, 4, 2]) / np.float32(255)


@pytest.mark.slow
def test_cifar10_in_its_own_format_is_read_by_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path, monkeypatch)
    found = load("cifar10", data_dir=tmp_path)
    assert (found.num_train, len(found.test_x), found.input_shape) == (50, 10, (3, 32, 32))
    assert found.train_y.tolist() == np.repeat(range(5), 10).tolist()
    expected = pictures(10, 2)[7].transpose(2, 0, 1) / 255
    np.testing.assert_allclose(found.train_x[27], expected, rtol=1e-6)


def test_changed_files_of_cifar10_are_never_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path, monkeypatch)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(ConfigError, match="cifar-10-batches-py is damaged"):
        load("cifar10", data_dir=tmp_path)


def test_the_first_folder_that_has_cifar10_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "whole", monkeypatch)
    write_part(tmp_path / "part")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "whole"))
    assert load("cifar10", data_dir=tmp_path / "part").num_train == 3
    assert load("cifar10", data_dir=tmp_path / "part", download=True).num_train == 50
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "part"))
    assert load("cifar10", data_dir=tmp_path / "whole").num_train == 50
    write_part(tmp_path / "whole")
    assert load("cifar10", data_dir=tmp_path / "whole").num_train == 50


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"y_test": None}, "must contain x_train, .*y_test is not a file in the archive"),
        ({"x_train": np.zeros((3, 3, 32, 32), np.uint8)}, "must be bytes .* got 'uint8"),
        ({"x_test": np.zeros((2, 32, 32, 3))}, "must be bytes .* got 'float64"),
        ({"y_train": np.zeros((3, 1), np.uint8)}, "whole numbers .* got"),
        ({"y_train": np.array([1.0, 2.0, 3.0])}, "whole numbers .* got 'float64"),
        ({"y_train": np.array([1, 2])}, "got 3 records and 2 labels"),
        ({"y_train": np.array([1, 2, 10])}, r"labels must be in 0..9, got \(1, 10\)"),
        ({"y_train": np.array([{}, {}, {}])}, "cannot be read: Object arrays"),
    ],
)
def test_a_part_that_is_not_pictures_and_labels_is_refused(
    tmp_path: Path, replaced: dict[str, np.ndarray], message: str
) -> None:
    write_part(tmp_path, **replaced)
    with pytest.raises(ConfigError, match=message):
        load("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("keep", [0.5, 0.0])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_packed_file_that_was_cut_off_is_named(tmp_path: Path, name: str, keep: float) -> None:
    path = write_part(tmp_path)
    if name == "mnist":
        write_idx(tmp_path / "mnist", PARTS["mnist"], packed=True)
        path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))] or b"not packed")
    with pytest.raises(ConfigError, match=f"{path.name} .*cannot be read"):
        load(name, data_dir=tmp_path)


@pytest.mark.slow
@needs_files
def test_real_pictures_of_cifar10_are_known_by_their_labels() -> None:
    found = load("cifar10", data_dir=REAL)
    assert found.train_y[:9].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8]  # frog, truck, truck, deer...
    assert found.test_y[:4].tolist() == [3, 8, 8, 0]  # cat, ship, ship, plane
    assert found.num_train in (4_000, 50_000)
    blue = (
        found.train_x[found.train_y == 0][:, 2].mean()
        - found.train_x[found.train_y == 6][:, 2].mean()
    )
    assert blue > 0.1  # planes fly in the sky, frogs sit on the ground


@pytest.mark.slow
@pytest.mark.skipif(not FASHION.is_file(), reason=f"{FOLDER_VARIABLE} holds no fashion-mnist")
def test_full_fashion_mnist_is_complete() -> None:
    found = load("fashion-mnist", data_dir=REAL)
    assert (found.num_train, len(found.test_x)) == (60_000, 10_000)
    assert (np.bincount(found.train_y) == 6_000).all()
