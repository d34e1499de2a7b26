"""Settings: the same words everywhere, and a clear word about every wrong one."""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import tomllib
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from leakmeter.fl_app.cli import run
from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.config import Config, adapted_context, from_context
from leakmeter.fl_app.config.field import ConfigError, kebab, setting
from leakmeter.fl_app.config.settings import (
    ALGORITHMS,
    DATASETS,
    MODELS,
    PARTITIONS,
    SERVERS,
    TaskConfig,
)
from leakmeter.fl_app.run import early
from leakmeter.fl_app.run.run import preflight
from tests.helpers.numbers import few_or_many
from tests.helpers.project import ROOT
from tests.helpers.refusals import refuses

PYPROJECT = ROOT / "pyproject.toml"
SETTINGS = {kebab(spec.name): spec.default for spec in fields(Config)}


def test_settings_are_kebab_case_outside_and_snake_case_inside() -> None:
    config = Config.from_mapping({"batch-size": 5, "canary-seats": 3})
    assert (config.batch_size, config.canary_seats) == (5, 3)
    assert config.to_mapping()["batch-size"] == 5
    assert not any("_" in name for name in config.to_mapping())


def test_a_whole_number_serves_where_a_float_is_due() -> None:
    for config in (Config(lr=1), Config.from_mapping({"lr": 1})):
        assert type(config.lr) is float
        assert config == Config(lr=1.0)


positive = st.floats(0, 1e30, exclude_min=True)
# Characters that cannot be printed, lone surrogates among them, are refused.
text = st.text().filter(str.isprintable)


@given(
    data_dir=text,
    dataset=st.sampled_from(tuple(DATASETS)),
    model=st.sampled_from(tuple(MODELS)),
    partition=st.sampled_from(PARTITIONS),
    algorithm=st.sampled_from(tuple(ALGORITHMS)),
    server=st.sampled_from(tuple(SERVERS)),
    lr=positive,
    server_lr=positive,
    dirichlet=positive,
    delta=st.floats(0, 1, exclude_min=True, exclude_max=True),
    server_momentum=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**31 - 1),
    clients=st.integers(40, 10**6),
    download=st.booleans(),
)
def test_toml_gives_back_every_configuration(**values: Any) -> None:
    config = Config(**values)
    assert Config.from_mapping(tomllib.loads(config.to_toml())) == config


def test_a_toml_file_gives_back_the_configuration(tmp_path: Path) -> None:
    config = Config(seed=7, data_dir='C:\\dätä "x" 🎲', delta=1e-7, download=True)
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    assert Config.from_toml(tmp_path / "config.toml") == config


def test_toml_holds_every_setting() -> None:
    assert tomllib.loads(Config().to_toml()) == SETTINGS


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("dataset", "digits, adult, mnist, fashion-mnist, emnist-digits, cifar10, synthetic"),
        ("auditors", "one-shot, single-update, likelihood-ratio, mutual-information, mine, "),
    ],
)
def test_an_unknown_name_lists_the_known_ones(name: str, known: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping({name: "xyz"})
    assert str(caught.value).startswith(f"--{name} must be one of ")
    assert known in str(caught.value)
    assert str(caught.value).endswith(", got 'xyz'")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("synthetic-examples", 0, "--synthetic-examples must be at least 1, got 0"),
        ("dirichlet", 0.0, "--dirichlet must be above 0, got 0.0"),
        ("mi-target", 60, "--mi-target must be below --clients 60, got 60"),
        ("rounds", 0, "--rounds must be at least 1, got 0"),
        ("confidence", 1.0, "--confidence must be at least 0.5 and below 1, got 1.0"),
        ("server-momentum", 1.0, "--server-momentum must be at least 0 and below 1, got 1.0"),
        ("lr", -0.5, "--lr must be above 0, got -0.5"),
        ("lr", math.nan, "--lr must be finite and above 0, got nan"),
        ("lr", math.inf, "--lr must be finite and above 0, got inf"),
        ("canary-seats", 0, "--canary-seats must be at least 1 for the auditor one-shot, got 0"),
        ("canary-repetitions", 31, "--canary-repetitions must be at most --rounds 30, got 31"),
        ("delta", 0.0, "--delta must be above 0 and below 1, got 0.0"),
        ("delta", 1.0, "--delta must be above 0 and below 1, got 1.0"),
        ("seed", -1, "--seed must be at least 0 and at most 2147483647, got -1"),
        ("seed", 2**31, "--seed must be at least 0 and at most 2147483647, got 2147483648"),
        (
            "ray-address",
            "here:1",
            "--ray-address must be empty without --engine ray, got 'here:1'",
        ),
    ],
)
def test_a_number_out_of_range_names_field_range_value_and_one_that_works(
    name: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping({name: value})
    assert str(caught.value).startswith(message)
    tried = re.search(
        r"\. (?:Try|Add) --([a-z0-9-]+) (\S+?)(?: for [a-z ]+)?\.$", str(caught.value)
    )
    assert tried is not None, str(caught.value)
    kinds = {spec.name.replace("_", "-"): type(spec.default) for spec in fields(Config)}
    Config.from_mapping({name: value, tried[1]: kinds[tried[1]](tried[2])})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("clients", 60.0, "a whole number"),
        ("clients", "60", "a whole number"),
        ("clients", True, "a whole number"),
        ("lr", "0.1", "a number"),
        ("lr", True, "a number"),
        ("dataset", 1, "a text"),
        ("auditors", ["one-shot"], "a text"),
        ("download", 1, "true or false"),
        ("download", "yes", "true or false"),
        ("data-dir", "a\x00b", "printable text"),
        ("data-dir", "a\nb", "printable text"),
    ],
)
def test_a_wrong_type_is_refused_by_any_way_in(name: str, value: Any, kind: str) -> None:
    message = f"--{name} must be {kind}, got {value!r}"
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping({name: value})
    said = str(caught.value)
    assert said == message or said.startswith(f"{message}. Try --{name} ")
    with pytest.raises(ConfigError) as caught:
        Config(**{name.replace("-", "_"): value})
    assert str(caught.value) == said


def test_every_number_has_the_limits_that_it_states() -> None:
    for spec in fields(Config):
        low = spec.metadata["low"]
        if math.isfinite(low):
            with refuses(f"--{kebab(spec.name)}"):
                Config(**{spec.name: type(spec.default)(low - 1)})


def test_every_limit_is_allowed_up_to_its_edge() -> None:
    Config(seed=0)
    Config(seed=2**31 - 1, server_momentum=0, batch_size=0, canary_repetitions=30)
    Config(clients=40)
    Config(clients=30, auditors="none")


@pytest.mark.parametrize("clients", [39, 5])
def test_more_clients_in_a_round_than_in_all_is_refused(clients: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(clients=clients)
    wanted = (
        f"--sample plus --canary-seats must be at most --clients {clients}, got 30 + 10 = 40. "
        "Try --clients 40."
    )
    assert str(caught.value) == wanted


def test_canary_seats_are_empty_without_their_auditor() -> None:
    assert (Config().seats, Config().cohort) == (10, 40)
    alone = Config(auditors="none")
    assert (alone.seats, alone.cohort, alone.auditor_names) == (0, 30, ())


def test_auditors_are_separated_by_commas_and_blanks_do_not_count() -> None:
    assert Config(auditors=" one-shot , ").auditor_names == ("one-shot",)
    assert Config(auditors="").auditor_names == ()


def test_an_unknown_setting_suggests_the_nearest_or_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping({"batch_size": 8})
    assert str(caught.value) == "unknown setting batch_size; did you mean batch-size?"
    with pytest.raises(ConfigError, match="unknown setting xyz; known settings:") as caught:
        Config.from_mapping({"xyz": 8})
    assert all(name in str(caught.value) for name in SETTINGS)


def test_flowers_configuration_has_every_setting_with_the_same_default() -> None:
    app = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
    assert (app.pop("out"), app.pop("resume")) == ("", "")
    # The launch itself is the engine there, and its exit code is Flower's.
    not_there = {"engine", "ray-address", "fail-above", "require-guarantee", "against"}
    assert app == {k: v for k, v in SETTINGS.items() if k not in not_there}
    assert [type(v) for v in app.values()] == [type(SETTINGS[k]) for k in app]


def test_a_configuration_cannot_be_changed_but_replaced() -> None:
    config = Config()
    with pytest.raises(AttributeError):
        config.seed = 1  # type: ignore[misc]
    with pytest.raises(ConfigError):
        replace(config, sample=100)


def test_what_is_just_allowed_is_not_refused() -> None:
    Config(canaries=150, canary_repetitions=2)
    Config(participation="once", clients=120, rounds=3, canaries=30)
    Config(noise="central", clip_norm=1.0, clipping="adaptive", noise_multiplier=3.9)


def test_the_settings_of_a_task_are_those_of_the_run_and_have_its_defaults() -> None:
    assert Config().task == TaskConfig()
    config = Config(dataset="synthetic", clients=50, seed=3, dirichlet=2.0)
    assert config.task == TaskConfig(dataset="synthetic", clients=50, seed=3, dirichlet=2.0)
    own = {f.name: f.type for f in fields(TaskConfig) if f.name != "planted"}  # made from several
    assert own.items() <= {f.name: f.type for f in fields(Config)}.items()


@pytest.mark.parametrize(
    ("given", "adapted"),
    [
        ({"clients": 10, "sample": 5}, {"canary-seats": 5}),
        ({"clients": 10}, {"sample": 8, "canary-seats": 2}),
        ({"clients": 10, "canary-seats": 4}, {"sample": 6}),
        ({"clients": 20, "auditors": "none"}, {"sample": 20}),
        ({"sample": 100}, {"clients": 110}),
        ({"clients": 8, "sample": 2}, {"canary-seats": 6, "mine-draws": 10}),
        ({"participation": "once"}, {"rounds": 1}),
        ({"clients": 60, "sample": 30, "canary-seats": 10}, {}),
        ({"dataset": "synthetic", "clients": 6000}, {}),
        ({"dataset": "synthetic", "clients": 10**6}, {"synthetic-per-client": 100}),
        ({"dataset": "synthetic", "clients": 10**6, "synthetic-per-client": 7}, {}),
        ({"dataset": "synthetic", "clients": 10**6, "synthetic-examples": 5000}, {}),
        ({"clients": 10, "auditors": "single-update"}, {"sample": 8, "canary-seats": 2}),
    ],
)
def test_defaults_give_way_to_what_is_given_and_say_so(
    given: dict[str, Any], adapted: dict[str, int]
) -> None:
    config, words = Config.adapted(given)
    assert config.to_mapping() == {**SETTINGS, **given, **adapted}
    shown = [f"--{name} {value} (default {SETTINGS[name]})" for name, value in adapted.items()]
    assert words == ("adapted to your settings: " + ", ".join(shown) if adapted else "")


@pytest.mark.parametrize(
    "given",
    [
        {"clients": 10, "sample": 5, "canary-seats": 6},
        {"clients": 10, "sample": 10},
        {"clients": 10, "sample": 11, "auditors": "none"},
        {"participation": "once", "rounds": 2},
        {"sample": 2, "mine-draws": 8},
        {"clients": "ten", "sample": 5},
    ],
)
def test_what_is_given_never_gives_way(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Config.adapted(given)


def test_the_run_says_which_defaults_gave_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text('clients = 10\nauditors = "one-shot"\nmodel = "linear"\nrounds = 1\n')
    command = ["--config", str(file), "--sample", "5", "--out", str(tmp_path / "run")]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("adapted to your settings: --canary-seats 5 (")
    assert Config.from_toml(tmp_path / "run/config.toml").canary_seats == 5


def test_under_flower_a_value_that_equals_its_default_counts_as_not_given() -> None:
    run_config = {**SETTINGS, "clients": 10, "sample": 5}
    del run_config["engine"]
    context = Context(1, 0, {}, RecordDict(), run_config)
    assert from_context(context).canary_seats == 5
    assert adapted_context(context)[1] == "adapted to your settings: --canary-seats 5 (default 10)"


def test_an_earlier_name_is_taken_and_hidden() -> None:
    @dataclass(frozen=True)
    class Renamed(Config):
        warmth: int = setting(1, "how warm", group="run", was="heat")

    assert Renamed.from_mapping({"heat": 3}).warmth == 3
    assert "heat" not in Renamed.from_mapping({"heat": 3}).to_mapping()
    with pytest.raises(ConfigError, match="heat is the earlier name of warmth; leave one"):
        Renamed.from_mapping({"heat": 3, "warmth": 3})
    parser = argparse.ArgumentParser()
    for spec in fields(Renamed):
        run.add_setting(parser, spec, spec.metadata["help"])
    assert vars(parser.parse_args(["--heat", "5"])) == {"warmth": 5}
    assert "--heat" not in parser.format_help()


# Odd settings, by mapping and by file: refused in one line, or fit to run.


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


@pytest.mark.parametrize("count", few_or_many(100, 300))
def test_configurations_are_refused_in_one_line_or_fit_to_run(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "memory", lambda: 2**27)  # so that none of them takes gigabytes
    refused = []
    for number in range(count):
        try:
            preflight(Config.from_mapping(settings(number, tmp_path)))
        except ConfigError as error:
            refused.append(str(error))
    assert 0.1 * count < len(refused) < 0.95 * count
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
    words = ["--config", str(tmp_path / "odd.toml"), "--out", str(tmp_path / "out")]
    said = one_line(words, capsys)
    assert said.startswith("error: --") or "unknown setting" in said
    assert content != FILES["not utf-8"] or "--config must be a TOML file, got /" in said
    assert not (tmp_path / "out").exists()


def test_what_is_no_regular_file_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")  # which would be waited for without end
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    odd = ("/dev/zero", "a\0b", "x" * 5000)
    for path in (*(tmp_path / name for name in ("pipe", "loop", "missing", "")), *odd):
        assert "config must be a" in one_line(["--config", str(path)], capsys)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"\xef\xbb\xbfseed = 3\n")
    assert Config.from_toml(tmp_path / "c.toml").seed == 3


@pytest.mark.parametrize("option", ["--out", "--resume"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nobody-at-all/x", "must be a path that can be found"),
        ("a\0b", "must be a path without zero bytes"),
    ],
)
def test_a_folder_that_cannot_be_is_refused_in_one_line(
    option: str, path: str, words: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    small = [w for name, value in BASE.items() for w in (f"--{name}", str(value))]
    given = [option, path, *(small if option == "--out" else [])]
    assert f"{option[2:]} {words}" in one_line(given, capsys)
