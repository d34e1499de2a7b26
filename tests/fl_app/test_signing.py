"""Where clients and server of the app have their keys from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from leakmeter.clients.secure_sum.signing import Identity
from leakmeter.fl_app.build.strategy import participation
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.fl_app.deployment import client_keys, own_threshold, server_keys

ON, ACTIVE = Config(), Config(secagg="active")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAKMETER_IDENTITY", "LEAKMETER_TRUSTED"):
        monkeypatch.delenv(name, raising=False)


def context(**node: Any) -> Context:
    return Context(
        run_id=1,
        node_id=1,
        node_config={"partition-id": 4, **node},
        state=RecordDict(),
        run_config={},
    )


def test_simulated_keys_are_the_same_everywhere_and_differ_between_clients_and_seeds() -> None:
    assert client_keys(ON, False, context()) is None
    keys = client_keys(ACTIVE, False, context())
    assert keys is not None
    identity, trusted = keys
    again = client_keys(ACTIVE, False, context())
    assert again is not None
    assert again[0].public == identity.public
    assert identity.folder is None
    assert len(trusted) == ACTIVE.clients
    assert identity.public in trusted
    assert server_keys(ACTIVE, False) == trusted
    other = client_keys(Config(secagg="active", seed=99), False, context())
    assert other is not None
    assert other[0].public not in trusted


@pytest.mark.parametrize("pattern", ["fixed", "poisson"])
def test_of_many_clients_the_keys_of_those_that_rounds_ask_are_listed(pattern: str) -> None:
    of = {"dataset": "synthetic", "synthetic_per_client": 10, "participation": pattern}
    many = Config(secagg="active", clients=10**6, sample=5, canary_seats=1, rounds=2, **of)
    trusted = server_keys(many, False)
    assert trusted is not None
    chosen = participation(many)
    asked = {c for number in (1, 2) for c in chosen.cohort(many.seed, number, many.clients)}
    assert asked
    for client in (*asked, 0, 1, 2):  # a list has three keys, even if nobody is asked
        keys = client_keys(many, False, context(**{"partition-id": client}))
        assert keys is not None
        assert keys[0].public in trusted
        assert keys[1] is trusted
    assert len(trusted) == len({*asked, 0, 1, 2})


def test_a_deployed_client_has_its_keys_from_its_node_or_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Identity.create(tmp_path / "key")
    trusted = tmp_path / "trusted.txt"
    others = [Identity.create(tmp_path / name).line for name in ("second", "third")]
    trusted.write_text("\n".join([own.line, *others]))
    here = context(identity=str(tmp_path / "key"), trusted=str(trusted))
    # Also where the run's configuration, which comes from elsewhere, says nothing of signatures.
    for config in (ON, ACTIVE):
        keys = client_keys(config, True, here)
        assert keys is not None
        assert keys[0].public == own.public
        assert keys[0].folder == tmp_path / "key"
    monkeypatch.setenv("LEAKMETER_IDENTITY", str(tmp_path / "key" / "identity.pem"))
    monkeypatch.setenv("LEAKMETER_TRUSTED", str(trusted))
    assert client_keys(ACTIVE, True, context()) is not None
    assert server_keys(ACTIVE, True) is not None


def test_missing_and_too_few_keys_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_keys(ON, True, context()) is None
    assert server_keys(ON, True) is None
    for here in (context(), context(identity=str(tmp_path))):
        with pytest.raises(ConfigError, match=r"needs LEAKMETER_IDENTITY and LEAKMETER_TRUSTED"):
            client_keys(ACTIVE, True, here)
    with pytest.raises(ConfigError, match=r"LEAKMETER_TRUSTED.*or take secagg on"):
        server_keys(ACTIVE, True)
    monkeypatch.setenv("LEAKMETER_TRUSTED", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="cannot be read"):
        server_keys(ACTIVE, True)
    with pytest.raises(ConfigError, match="cannot be read"):
        client_keys(ACTIVE, True, context(identity=str(tmp_path / "k"), trusted=str(tmp_path)))
    trusted = tmp_path / "trusted.txt"
    lines = [Identity.create(tmp_path / name).line for name in ("own", "second")]
    trusted.write_text("\n".join(lines))
    monkeypatch.setenv("LEAKMETER_TRUSTED", str(trusted))
    words = r"trusted must have the public keys of at least 3 clients.* got 2\. .*keys show DIR"
    with pytest.raises(ConfigError, match=f"LEAKMETER_TRUSTED: {words}"):
        server_keys(ACTIVE, True)
    with pytest.raises(ConfigError, match=words):
        client_keys(ACTIVE, True, context(identity=str(tmp_path / "own")))


def test_the_owner_of_a_deployed_client_may_insist_on_a_threshold() -> None:
    assert own_threshold(context(**{"min-threshold": 7}), True) == 7
    assert own_threshold(context(**{"min-threshold": 7}), False) is None
    assert own_threshold(context(), True) is None
    for wrong in (1, 2.5, "many", True):
        with pytest.raises(ConfigError, match="min-threshold in --node-config must be a whole"):
            own_threshold(context(**{"min-threshold": wrong}), True)
