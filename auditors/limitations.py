"""What an auditor cannot do in a given project: known before anybody trains, said in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

LIMIT: Final = "limit"  # the quantity of findings that only say what an auditor cannot do
THREAT_MODEL: Final = "nobody in particular: what this audit cannot see or show here"


class UnableError(ValueError):
    """An auditor can do nothing in this project. The text says why, and what to do."""


@dataclass(frozen=True)
class Project:
    """What is known of a run before its first training.

    Auditors are asked twice: when the run starts, and when the first round has chosen its clients.

    Attributes:
        dim: Float parameters of the model.
        num_rounds: Planned rounds.
        clients: Clients of the first round; None until they are chosen.
        seats: Those among them that play canaries.
        is_masked: Whether clients mask their updates, as far as one can see.
        has_client_noise: Whether clients are told to add noise, as far as one can see.
        noised_by: Strategies in the chain that add noise which is not known here.
        bent_by: Strategies in the chain whose optimiser scales every coordinate by itself.
    """

    dim: int
    num_rounds: int
    clients: int | None = None
    seats: int = 0
    is_masked: bool = False
    has_client_noise: bool = False
    noised_by: tuple[str, ...] = ()
    bent_by: tuple[str, ...] = ()

    @property
    def honest(self) -> int | None:
        """Clients of the first round that play no canary; None until they are chosen."""
        return None if self.clients is None else self.clients - self.seats


def sampler_limits(sampler: object, project: Project) -> Sequence[str]:
    """Return what a sampler says of itself, if it says anything.

    Raises:
        UnableError: It cannot draw updates in this project.
    """
    ask: Any = getattr(sampler, "limits", None)
    return () if ask is None else list(ask(project))


def check_noise_is_known(observer: str, project: Project) -> None:
    """Raise where an outsider's sum carries noise that is not known.

    Raises:
        UnableError: Without that noise in the trials, a bound for an outsider would be false.
    """
    if observer == "outsider" and project.noised_by:
        raise UnableError(
            "an outsider sees the sum with noise on it, and how much "
            f"{', '.join(project.noised_by)} adds is not known here: take observer='server', "
            "which judges the sum before it"
        )


def few_clients(project: Project, enough: int, then: str) -> list[str]:
    """Return a line that says how few honest clients there are, if they are fewer than `enough`."""
    if project.honest is None or project.honest >= enough:
        return []
    seats = f" beside {project.seats} canary seats" if project.seats else ""
    who = "client" if project.honest == 1 else "clients"
    return [f"round 1 has {project.honest} honest {who}{seats}: {then}"]
