"""Data sets: what they hold, where their files are looked for, and what is said when they lack."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from leakmeter.fl_app.config.field import ConfigError, option
from leakmeter.fl_app.config.settings import DATASETS
from leakmeter.fl_app.data import table
from leakmeter.fl_app.data.dataset import FOLDER_VARIABLE, Dataset, load
from tests.helpers.numbers import first_fast, idx
from tests.helpers.refusals import refuses

REAL = os.environ.get(FOLDER_VARIABLE)
needs_files = pytest.mark.skipif(not REAL, reason=f"{FOLDER_VARIABLE} names no data folder")

MNIST_FILES = [
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
]
WRITERS = "qmnist-train-labels-idx2-int"


@pytest.fixture(autouse=True)
def _no_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)


def write_mnist(place: Path, *, packed: bool, size: int = 28, labels: tuple[int, ...] = (3, 9)):
    """Write two training and two test images; their pixels are 0, 1, ... modulo 256."""
    place.mkdir(parents=True)
    images = (np.arange(2 * size * size) % 256).astype(np.uint8).reshape(2, size, size)
    for name in MNIST_FILES:
        content = idx(images if "images" in name else np.array(labels, np.uint8))
        if packed:
            (place / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (place / name).write_bytes(content)


def write_writers(folder: Path, classes: tuple[int, ...], columns: int = 8) -> None:
    """Write a table of 32-bit numbers as QMNIST has it; digit i was written by writer 7 + i % 2."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.zeros((len(classes), columns), ">i4")
    rows[:, 0] = classes
    if columns > 2:
        rows[:, 2] = 7 + np.arange(len(classes)) % 2
    content = bytes([0, 0, 12, 2]) + np.array(rows.shape, ">i4").tobytes() + rows.tobytes()
    (folder / f"{WRITERS}.gz").write_bytes(gzip.compress(content))


def same(one: Dataset, other: Dataset) -> bool:
    fields = ("train_x", "train_y", "test_x", "test_y")
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in fields)


def test_every_name_has_a_loader() -> None:
    for place in DATASETS.values():
        module, _, function = place.partition(":")
        assert callable(getattr(import_module(module), function))


def test_importing_the_module_imports_nothing_heavy() -> None:
    code = (
        "import sys, leakmeter.fl_app.data.dataset, leakmeter.fl_app.data.partition\n"
        "import leakmeter.fl_app.config.config\n"
        "print({'torch', 'torchvision', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_digits_are_scaled_and_split_by_class_whatever_the_seed() -> None:
    digits = load("digits")
    assert digits.num_train + len(digits.test_x) == 1797
    assert (digits.input_shape, digits.num_classes, digits.users) == ((8, 8), 10, None)
    assert (digits.train_x.dtype, digits.train_y.dtype) == (np.float32, np.int64)
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 1)
    share = np.bincount(digits.test_y) / np.bincount(np.r_[digits.train_y, digits.test_y])
    np.testing.assert_allclose(share, 0.2, atol=0.01)
    assert same(digits, load("digits", seed=1))


def test_synthetic_has_the_size_asked_for_and_follows_the_seed() -> None:
    sizes = {"synthetic_examples": 90, "synthetic_features": 7, "synthetic_classes": 3}
    task = load("synthetic", seed=4, **sizes)
    assert (task.num_train, task.input_shape, task.num_classes) == (90, (7,), 3)
    assert np.bincount(task.train_y).tolist() == [30, 30, 30]
    assert (task.train_x.dtype, task.train_y.dtype) == (np.float32, np.int64)
    assert same(task, load("synthetic", seed=4, **sizes))
    assert not same(task, load("synthetic", seed=5, **sizes))


def test_synthetic_classes_can_be_told_apart_but_not_perfectly() -> None:
    task = load("synthetic", synthetic_examples=4000)
    centres = np.stack([task.train_x[task.train_y == label].mean(axis=0) for label in range(10)])
    distances = np.linalg.norm(task.test_x[:, None] - centres, axis=2)
    accuracy = (distances.argmin(axis=1) == task.test_y).mean()
    assert 0.75 < accuracy < 0.99


@pytest.mark.parametrize(
    ("field", "value"),
    [("synthetic_examples", 9), ("synthetic_features", 0), ("synthetic_classes", 1)],
)
def test_synthetic_sizes_out_of_range_are_named(field: str, value: int) -> None:
    with refuses(option(field)):
        load("synthetic", **{field: value})


def test_folder_argument_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "a" / "mnist", packed=True, labels=(1, 2))
    write_mnist(tmp_path / "b" / "mnist", packed=True, labels=(3, 4))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "b"))
    assert load("mnist", data_dir=tmp_path / "a").train_y.tolist() == [1, 2]
    assert load("mnist").train_y.tolist() == [3, 4]
    assert load("mnist", data_dir=tmp_path / "empty").train_y.tolist() == [3, 4]


@pytest.mark.parametrize(("name", "file"), [("mnist", MNIST_FILES[3]), ("adult", "adult.test")])
def test_missing_files_name_the_files_the_folders_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "there"))
    write_mnist(tmp_path / "here" / "mnist", packed=False)
    (tmp_path / "here" / "mnist" / MNIST_FILES[3]).unlink()  # one is enough
    with pytest.raises(ConfigError) as caught:
        load(name, data_dir=tmp_path / "here")
    for part in (name, file, str(tmp_path / "here"), str(tmp_path / "there"), "--data-dir"):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "adult"])
def test_no_folder_at_all_says_how_to_name_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no data folder was named.*{FOLDER_VARIABLE}"):
        load(name, download=True)


def test_failed_download_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import MNIST

    def download(_: MNIST) -> None:
        raise RuntimeError("no route")

    monkeypatch.setattr(MNIST, "download", download)
    with pytest.raises(ConfigError, match=f"download into {tmp_path} failed: no route"):
        load("mnist", data_dir=tmp_path, download=True)


def test_absent_torchvision_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(ConfigError, match="pip install torchvision"):
        load("mnist", data_dir=tmp_path, download=True)
    write_mnist(tmp_path / "mnist", packed=True)
    before = sorted(tmp_path.rglob("*"))
    # Files that are there need none, and reading writes nothing.
    assert load("mnist", data_dir=tmp_path, download=True).num_train == 2
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "content"),
    [
        (f"mnist/{MNIST_FILES[0]}", b""),
        (f"mnist/{MNIST_FILES[0]}", b"\0\0\x0a\3" + bytes(12)),
        (f"mnist/{MNIST_FILES[0]}", b"\0\0\x08\1" + bytes(3)),
        (f"mnist/{MNIST_FILES[0]}", idx(np.zeros((2, 2), np.uint8))),
        (f"qmnist-writers/{WRITERS}", b"\0\0\x0c\2"),
    ],
)
def test_broken_idx_file_is_named(tmp_path: Path, place: str, content: bytes) -> None:
    write_mnist(tmp_path / "mnist", packed=False)
    (tmp_path / "qmnist-writers").mkdir()
    (tmp_path / place).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{place} is not a proper IDX file"):
        load("mnist", data_dir=tmp_path)


def test_images_of_another_size_and_odd_labels_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "a" / "mnist", packed=False, size=8)
    with pytest.raises(ConfigError, match=r"images of 28×28, got \(2, 8, 8\)"):
        load("mnist", data_dir=tmp_path / "a")
    write_mnist(tmp_path / "b" / "mnist", packed=False, labels=(3, 10))
    with refuses("mnist: training labels"):
        load("mnist", data_dir=tmp_path / "b")
    write_mnist(tmp_path / "c" / "mnist", packed=False, labels=(3,))
    with pytest.raises(ConfigError, match="got 2 records and 1 labels"):
        load("mnist", data_dir=tmp_path / "c")


@pytest.mark.parametrize("layout", ["qmnist-writers", "QMNIST/raw"])
def test_writers_of_mnist_are_its_users(tmp_path: Path, layout: str) -> None:
    write_mnist(tmp_path / "mnist", packed=True)
    write_writers(tmp_path / layout, (3, 9))
    mnist = load("mnist", data_dir=tmp_path)
    assert mnist.known_users().tolist() == [7, 8]
    assert mnist.known_users().dtype == np.int64


def test_mnist_without_writers_loads_and_says_which_file_lacks(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=True)
    mnist = load("mnist", data_dir=tmp_path)
    assert mnist.users is None
    with pytest.raises(ConfigError) as caught:
        mnist.known_users()
    for part in ("partition natural", f"qmnist-writers/ or QMNIST/raw/ with {WRITERS}", "by hand"):
        assert part in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_data_set_without_people_says_so() -> None:
    with pytest.raises(ConfigError, match=r"each record of synthetic: it does not say who"):
        load("synthetic").known_users()


@pytest.mark.parametrize(
    ("classes", "columns", "message"),
    [
        ((9, 3), 8, "the classes of 2 of 2 rows are not MNIST's: it belongs to other digits"),
        ((3, 8), 8, "the classes of 1 of 2 rows"),
        ((3, 9, 3), 8, "must be a row for each of 2 digits, got 3"),
        ((3, 9), 2, r"must be a table with the writer in column 2, got \(2, 2\)"),
    ],
)
def test_writers_of_other_digits_are_refused(
    tmp_path: Path, classes: tuple[int, ...], columns: int, message: str
) -> None:
    write_mnist(tmp_path / "mnist", packed=True)
    write_writers(tmp_path / "qmnist-writers", classes, columns)
    with pytest.raises(ConfigError, match=f"{WRITERS}.gz .*{message}"):
        load("mnist", data_dir=tmp_path)


def test_users_must_be_as_many_as_training_records() -> None:
    task = load("synthetic", synthetic_examples=20)
    with refuses("synthetic: users"):
        replace(task, users=np.arange(19))


@pytest.mark.slow
@needs_files
def test_full_mnist_is_complete_and_written_by_539_people() -> None:
    mnist = load("mnist", data_dir=REAL)
    writers, digits = np.unique(mnist.known_users(), return_counts=True)
    assert (len(writers), digits.min(), digits.max(), digits.sum()) == (539, 19, 131, 60_000)
    assert (mnist.train_x.shape, mnist.test_x.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert np.bincount(mnist.train_y)[:2].tolist() == [5923, 6742]
    assert (mnist.train_x.min(), mnist.train_x.max()) == (0, 1)


@needs_files
def test_adult_is_complete_and_encoded_by_its_training_levels() -> None:
    adult = load("adult", data_dir=REAL)
    assert (adult.train_x.shape, adult.test_x.shape) == ((30_162, 104), (15_060, 104))
    assert (adult.train_y.sum(), adult.test_y.sum()) == (7_508, 3_700)
    assert (adult.train_x.min(axis=0) == 0).all()
    assert (adult.train_x.max(axis=0) == 1).all()
    for x in (adult.train_x, adult.test_x):
        assert (x[:, 6:].sum(axis=1) == 8).all()
    # First row: age 39 on 17..90, and 13 years of education on 1..16.
    np.testing.assert_allclose(adult.train_x[0, [0, 2]], [22 / 73, 12 / 15], rtol=1e-6)


ROWS = "adult.data must have 30162 complete rows, 7508 .* got "


@needs_files
@pytest.mark.parametrize(
    ("part", "old", "new", "message"),
    first_fast(
        1,
        [
            ("test", b"25, Private", b"25, Retired", "has a level that .*adult.data lacks"),
            ("data", b"39, State-gov", b"39, Retired", "must give 104 features, got 105"),
            ("data", b"39, State-gov", b"?, State-gov", f"{ROWS}30161"),
            ("data", b"39, State-gov", b"x, State-gov", f"{ROWS}30161"),
            ("test", b"<=50K.", b">50K.", "adult.test .* 3700 .* got 15060 and 3701"),
            ("test", b"no such", b"", ""),  # plain files are as good as packed ones
        ],
    ),
)
def test_changed_adult_file_is_refused(
    tmp_path: Path, part: str, old: bytes, new: bytes, message: str
) -> None:
    (tmp_path / "adult").mkdir()
    for name in ("data", "test"):
        real = Path(REAL or "") / "adult" / f"adult.{name}.gz"
        content = gzip.decompress(real.read_bytes())
        content = content.replace(old, new, 1) if name == part else content
        (tmp_path / "adult" / f"adult.{name}").write_bytes(content)
    if not message:
        assert same(load("adult", data_dir=REAL), load("adult", data_dir=tmp_path))
        return
    with pytest.raises(ConfigError, match=message):
        load("adult", data_dir=tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello\n", b"1,2,3\n" * 40_000])
def test_adult_file_that_is_no_adult_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "adult").mkdir()
    for part in ("data", "test"):
        (tmp_path / "adult" / f"adult.{part}").write_bytes(content)
    with pytest.raises(ConfigError, match=f"{ROWS}0 and 0"):
        load("adult", data_dir=tmp_path)


def test_levels_of_adult_must_be_those_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "locate", lambda *_: [tmp_path / "adult.data"] * 2)
    rows = np.array([["1"] * 14 + ["<=50K"], ["2"] * 14 + [">50K"]])
    monkeypatch.setattr(table, "_rows", lambda *_: (rows, np.array([0, 1])))
    # Six numbers, and two levels of each of eight categories.
    with pytest.raises(ConfigError, match=r"adult.data must give 104 features, got 22"):
        load("adult", data_dir=tmp_path)
