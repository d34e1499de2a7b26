"""All settings of a run in one table, and the values that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from leakmeter.fl_app.config.audit import AuditSettings
from leakmeter.fl_app.config.field import setting
from leakmeter.fl_app.config.names import ENGINES, RECORD_NOISES, USUAL_STEP
from leakmeter.fl_app.config.task_config import TaskConfig
from leakmeter.fl_app.config.training import TrainingSettings


@dataclass(frozen=True)
class RunSettings:
    """How the run itself is executed."""

    seed: int = setting(
        0, "random seed: the same seed gives the same report", group="run", low=0, high=2**31 - 1
    )
    engine: str = setting(
        "inline",
        "where clients run: in this process (inline), or in Flower's simulation on Ray (ray)",
        group="run",
        choices=ENGINES,
    )
    ray_address: str = setting(
        "",
        "Ray cluster to join with --engine ray: HOST:PORT, or auto for one on this machine "
        "(default: the environment variable RAY_ADDRESS, or a new local Ray)",
        group="run",
        metavar="HOST:PORT",
    )
    stop_above: float = setting(
        0.0,
        "end the run in order, with model and report, once an ε above this is proven; needs "
        "--bounds anytime; 0 = run all rounds",
        group="run",
        low=0,
    )


@dataclass(frozen=True)
class Settings(RunSettings, AuditSettings, TrainingSettings):  # fields come in reverse order
    """Every setting with its default, its help text and its range, as `Config` checks them.

    Every field is a string, a number or a truth value, as Flower allows.
    """

    @property
    def task(self) -> TaskConfig:
        """The settings that determine data, partition and model."""
        return TaskConfig(**{spec.name: getattr(self, spec.name) for spec in fields(TaskConfig)})

    @property
    def auditor_names(self) -> tuple[str, ...]:
        """The auditors' names in order, without blanks."""
        names = (name.strip() for name in self.auditors.split(","))
        return tuple(name for name in names if name and name != "none")

    @property
    def has_sums(self) -> bool:
        """Whether updates go into secure sums."""
        return self.secagg != "off"

    @property
    def hides_records(self) -> bool:
        """Whether clients add noise that protects single records."""
        return self.noise in RECORD_NOISES

    @property
    def game(self) -> str:
        """Game of the audits that resample updates."""
        if self.lrt_game != "auto":
            return self.lrt_game
        return "rerun" if self.partition == "natural" else "independent"

    @property
    def server_step(self) -> float:
        """Step length of the server's optimiser."""
        return self.server_lr or USUAL_STEP[self.server]

    @property
    def seats(self) -> int:
        """Canary seats per round; none without the auditor one-shot."""
        return self.canary_seats if "one-shot" in self.auditor_names else 0

    @property
    def cohort(self) -> int:
        """Clients per round: honest ones and canary seats."""
        return self.sample + self.seats
