"""A new distribution or mechanism is one file: the wrapper, the mods and the accountant take it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from leakmeter.auditors.noise import DISTRIBUTIONS
from leakmeter.clients import NoiseMod
from leakmeter.strategies import Central, Local, Noised
from leakmeter.strategies.accounting.accountant import Release, unamplified
from leakmeter.strategies.accounting.assurance import Charge, Exposure
from leakmeter.strategies.accounting.ledger import Entry, Ledger, spent
from leakmeter.strategies.protection.mechanism import (
    ClientNoise,
    Clip,
    FixedClip,
    Mechanism,
    Summed,
)
from tests.strategies.protection import test_noised as noisy
from tests.strategies.protection.laplace import Laplace

pytestmark = pytest.mark.usefixtures("flower_task")

DELTA = 1e-5


@pytest.fixture
def laplace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DISTRIBUTIONS, "laplace", Laplace())


class Unknown:
    """Has the fields of a mechanism, and is none."""

    noise_multiplier = 1.0
    distribution = "gaussian"


def test_what_is_no_mechanism_or_distribution_is_refused() -> None:
    class Free(Mechanism):
        def order(self, clip: Clip) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match="abstract"):
        Free()  # type: ignore[abstract]
    for noise in (Unknown(), "central", None, Central, 1.0):
        with pytest.raises(TypeError, match=r"must be a Mechanism, such as Central\(1.0\), got"):
            Noised(FedAvg(), noise=noise, clipping=FixedClip(1.0))
    with pytest.raises(ValueError, match="distribution must be one of gaussian, skellam"):
        Local(1.0, "laplace")


@pytest.mark.usefixtures("laplace")
def test_a_distribution_in_one_file_passes_clients_accountant_and_findings(tmp_path: Any) -> None:
    strategy = noisy.make(Local(8.0, "laplace"))
    mods = (noisy.MODS[0], NoiseMod(seed=noisy.SEED, min_noise_std=8.0))
    noisy.run(strategy, 2, noisy.grid(update=noisy.nothing, mods=mods))
    added = strategy.facts().noised * 10
    # Six clients' noise: variance 6·16², and heavier tails than a Gaussian's.
    assert np.var(added) == pytest.approx(6 * 16.0**2, rel=0.5)
    found = {f.observer: f for f in strategy.findings() if f.adjacency == "zero-out"}
    assert set(found) == {"server", "wire", "outsider"}
    assert found["server"].facts["distribution"] == "laplace"
    releases = strategy.guarantees().single
    again = unamplified(releases, DELTA, participations=2, adjacency="zero-out")
    # Basic composition of ε = √d·√2/8 a round; Rényi DP is below it.
    basic = 2 * math.sqrt(noisy.DIM) * math.sqrt(2) / 8.0
    assert again.value == found["server"].value <= basic
    other = noisy.make(Local(8.0, "laplace"))
    other.restore(strategy.state())
    assert other.findings() == strategy.findings()
    entry = strategy.guarantees().entry(run="a", data="digits", seed=None)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.record(entry)
    assert ledger.entries("digits") == [entry]
    assert spent([entry], DELTA).value >= found["outsider"].value


@pytest.mark.usefixtures("laplace")
def test_central_laplace_noise_is_drawn_and_priced() -> None:
    strategy = noisy.make(Central(4.0, "laplace"))
    noisy.run(strategy, 1, noisy.grid(update=noisy.nothing))
    kurtosis = float(np.mean(strategy.facts().noised ** 4) / np.var(strategy.facts().noised) ** 2)
    assert kurtosis > 3.5  # 6 for Laplace noise, 3 for Gaussian
    assert math.isfinite(min(f.value for f in strategy.findings()))


@dataclass(frozen=True)
class Twofold(ClientNoise):
    """Clients and the server both add Gaussian noise; only the clients' counts for the server."""

    own_share: ClassVar[int] = 1
    exposures: ClassVar[tuple[Exposure, ...]] = (
        Exposure("server", "updates", "own"),
        Exposure("outsider", "noised sum"),
    )

    noise_multiplier: float
    distribution: str = "gaussian"

    def share_std(self, clip: Clip) -> float:
        return self.noise_multiplier * clip.norm

    def server_std(self, clip: Clip) -> float:
        return self.noise_multiplier * clip.norm

    def cost(self, summed: Summed) -> Charge:
        return Charge(self._of_clients(summed), summed.contributors)


def test_a_mechanism_in_one_file_runs_both_halves_and_is_accounted_for() -> None:
    strategy = noisy.make(Twofold(3.0))
    noisy.run(strategy, 1, noisy.grid(update=noisy.nothing))
    assert strategy.facts().noise_std == pytest.approx(math.hypot(6.0, 6.0 * math.sqrt(6)) / 10)
    assert np.std(strategy.facts().noised) == pytest.approx(strategy.facts().noise_std, rel=0.2)
    observers: Mapping[str, float] = {
        f.observer: f.value for f in strategy.findings() if f.adjacency == "zero-out"
    }
    assert observers["outsider"] < observers["server"] < math.inf
    assert strategy.findings()[0].facts["noise"] == "twofold"


@dataclass(frozen=True)
class Hushed(ClientNoise):
    """The server adds half the noise that was asked for."""

    exposures: ClassVar[tuple[Exposure, ...]] = (Exposure("outsider", "noised sum"),)

    noise_multiplier: float
    distribution: str = "gaussian"

    def server_std(self, clip: Clip) -> float:
        return self.noise_multiplier * clip.norm / 2

    def cost(self, summed: Summed) -> Charge:
        return Charge(Release(self.server_std(summed.clip), summed.clip.norm), summed.contributors)


def test_noise_of_the_server_alone_is_never_counted_once_for_each_client() -> None:
    strategy, known = noisy.make(Hushed(6.0)), noisy.make(Central(3.0))
    for one in (strategy, known):
        noisy.run(one, 1, noisy.grid(update=noisy.nothing))
    promised, proven = (
        {(f.observer, f.adjacency): f.value for f in one.findings()} for one in (strategy, known)
    )
    assert promised["outsider", "replace"] == pytest.approx(proven["outsider", "replace"])


def test_the_ledger_refuses_what_nobody_can_price() -> None:
    known = Entry("a", "digits", None, "zero-out", 1, (Release(1.0, 1.0),)).to_json()
    known["releases"][0]["distribution"] = "laplace"
    with pytest.raises(ValueError, match="distribution must be one of"):
        Entry.from_json(known)
