"""What the settings of every auditor have in common: they check and build their auditor."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from leakmeter.fl_app.config.errors import out_of_range
from leakmeter.fl_app.config.field import setting

if TYPE_CHECKING:
    from leakmeter.auditors import Auditor
    from leakmeter.fl_app.build.audit import AuditRun
    from leakmeter.fl_app.config.settings import Settings

audit_setting = partial(setting, group="audit")
EVERY: Final = (
    "1 = every round, N = every N-th, 0 = first only, -1 = rounds 1, 2, 4, 8, ... and the last"
)
EVERY_NTH: Final = (
    "N = every N-th, 0 = round 1 only, -1 = rounds 1, 2, 4, 8, … and the last"  # for 0 as default
)


class AuditorSettings:
    """An auditor by name. Fields are its settings, methods say what it needs and how it is built.

    Settings modules are imported by `--help`, so they import nothing heavy at the top. `Config`
    inherits the fields of all auditors; the methods are called on the auditor's own class and take
    the settings of the whole run.

    Attributes:
        auditor: The name that a user types.
        short_name: What rounds and papers call it; suggested to whoever types it.
        bets: Whether it has bounds that hold after every round (`--bounds anytime`).
        resamples: Whether it resamples sums of updates, in the game of `--lrt-game`.
        needs_images: Whether it works with image data sets only.
        lacks: Why it cannot run in a deployment; empty if it can.
    """

    auditor: ClassVar[str]
    short_name: ClassVar[str] = ""
    bets: ClassVar[bool] = False
    resamples: ClassVar[bool] = False
    needs_images: ClassVar[bool] = False
    lacks: ClassVar[str] = "resamples the clients' data, which the server does not have"

    @classmethod
    def is_in(cls, config: Settings) -> bool:
        """Whether a run has this auditor."""
        return cls.auditor in config.auditor_names

    @classmethod
    def check(cls, config: Settings) -> None:
        """Raise if the auditor cannot work in this run, or its settings are for nothing."""

    @classmethod
    def memory(cls, config: Settings, dim: int, features: int) -> tuple[int, str]:
        """Return the bytes that it needs beyond a round's updates, and the settings to lower.

        Args:
            config: The settings of the run.
            dim: Number of parameters of the model.
            features: Numbers in one record.
        """
        return 0, ""

    @classmethod
    @abstractmethod
    def make(cls, run: AuditRun) -> Auditor:
        """Return the auditor. What it needs of the run is found in `run`."""


def check_sample(auditor: str, config: Settings) -> None:
    """Require a client to attack and another to hide it."""
    if config.sample < 2:
        allowed, fix = f"at least 2 for the auditor {auditor}", "Try --sample 2"
        raise out_of_range("--sample", allowed, config.sample, fix=fix)


def check_target(name: str, target: int, clients: int, everybody: str) -> None:
    """Require a client that exists; `everybody` says what -1 stands for."""
    if target >= clients:
        fix = f"Try {name} -1 for {everybody}"
        raise out_of_range(name, f"below --clients {clients}", target, fix=fix)
