"""Builds the auditors of a run from its configuration, each by the name that a user types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Literal, cast

from leakmeter.auditors import Auditor, MutualInformation, NeuralInformation, OneShotCanaries
from leakmeter.auditors._types import Vector, Watch
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information import UpdateEntropy
from leakmeter.auditors.sampling.sampler import RoundSampler
from leakmeter.fl_app.build.records import SimulatedRecords
from leakmeter.fl_app.build.resampling import each_round, entropy_of, other_initial
from leakmeter.fl_app.build.strategy import participation
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.audits.canaries import OneShotSettings
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.deployment import cohort_seed, is_deployed
from leakmeter.fl_app.task import Task, load_task
from leakmeter.strategies import Participation


@dataclass(frozen=True)
class AuditRun:
    """What auditors of one run are built from: its settings, and what follows from them.

    Attributes:
        config: The settings.
    """

    config: Config

    @property
    def is_deployed(self) -> bool:
        """Whether clients are real machines."""
        return is_deployed()

    @property
    def task(self) -> Task:
        """Data, partition and model."""
        return load_task(self.config)

    @property
    def observer(self) -> Literal["server", "outsider"]:
        """Whom a sum is shown to: whoever sees it after the noise of the server."""
        return "outsider" if self.config.noise_kind.added_by == "server" else "server"

    @property
    def game(self) -> Game:
        """What audits of sums resample."""
        return cast(Game, self.config.game)

    @property
    def game_without_pair(self) -> Game:
        """The game of an audit without a pair of updates whose records could be held out."""
        return "independent" if self.game == "independent-held-out" else self.game

    @property
    def anytime_confidence(self) -> float | Anytime:
        """Confidence of auditors that may have bounds after every round."""
        level = self.config.confidence
        return Anytime(level) if self.config.bounds == "anytime" else level

    @property
    def least_batch(self) -> int:
        """Records of the smallest batch of any client: with it a bound holds for all."""
        least = self.task.sizes.smallest
        return min(self.config.batch_size or least, least)

    @cached_property
    def records(self) -> SimulatedRecords:
        """What a simulation knows of the records that trained."""
        return SimulatedRecords(self.config, self.cohort_of)

    @cached_property
    def _patterns(self) -> tuple[Participation, int]:
        return participation(self.config), cohort_seed(self.config)

    def cohort_of(self, server_round: int) -> list[int]:
        """Return the clients that a round asks."""
        pattern, seed = self._patterns
        return pattern.cohort(seed, server_round, self.config.clients)

    def one_client(self, target: int) -> int | None:
        """Return the client of a setting; None where it leaves the choice to the audit."""
        return None if target < 0 else target

    @cached_property
    def _samplers(self) -> Callable[[Game], RoundSampler]:
        return cache(partial(each_round, self.config))

    def sampler(self, game: Game) -> RoundSampler:
        """Return what draws updates in a game; auditors of one run that play it share it."""
        return self._samplers(game)

    def entropy_of(self, client: int) -> UpdateEntropy | None:
        """Return the entropy of a client's update, where it is known."""
        return entropy_of(self.config, client)

    def other_initial(self, index: int) -> Vector:
        """Return another initial model, as the run draws its own."""
        return other_initial(self.config, index)


def auditors(config: Config, dim: int, watch: Watch | None = None) -> list[Auditor]:
    """Return the auditors by name; what they cannot do with this model is an error now.

    Args:
        config: Says which, and how they are set.
        dim: Number of parameters of the model.
        watch: Told which stage of a long audit is how far.
    """
    run = AuditRun(config)
    made = [AUDITORS[name].make(run) for name in dict.fromkeys(config.auditor_names)]
    _share_draws(made)
    for auditor in made:
        auditor.watch = watch
        try:
            auditor.begin(dim, config.rounds)
        except ValueError as error:
            raise ConfigError(f"auditor {auditor.name}: {error}") from None
    return made


def one_shot(config: Config, include: Literal["coin", "all"] = "coin") -> OneShotCanaries:
    """Return the canaries of a run alone."""
    return OneShotSettings.canaries_of(AuditRun(config), include)


def _share_draws(made: Sequence[Auditor]) -> None:
    """Let the audits of information draw once: they have the same sampler and the same seed."""
    drawing = next((one.drawing for one in made if isinstance(one, MutualInformation)), None)
    for one in made:
        if isinstance(one, NeuralInformation) and drawing is not None:
            one.drawing = drawing
