"""Charges of an open round, kept in the run's folder so that they survive the process.

Once the server asks for shares of masks (without a secure sum: for updates), it may learn what the
round releases. The charge is on disk before that. A process that is killed later leaves it there,
and the resumed run repeats the round:

- In a simulation, cohort, training, noise and rounding come from the run's seed, so the round makes
  the same release again. It is charged once. If other clients are in the sum the second time, both
  releases are charged.
- In a deployment, noise comes from the operating system, so the second release is another one. Both
  are charged.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from leakmeter.auditors.hook.chain import wrappers
from leakmeter.auditors.run_log import write_atomically
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.deployment import is_deployed, noise_seed
from leakmeter.fl_app.run.budget import Account

_log = logging.getLogger("flwr")

_FILE = "charges.json"


class Charges:
    """Keeps the charges of a chain of strategies.

    Args:
        config: Of the run.
        strategy: The chain, in its state after `rounds_done`.
        folder: Of the run.
        rounds_done: Rounds that are done and have a checkpoint.
        account: The run's entry in the ledger; None without one.
    """

    def __init__(
        self,
        config: Config,
        strategy: Strategy,
        folder: Path,
        rounds_done: int,
        account: Account | None,
    ) -> None:
        self._strategy, self._folder, self.account = strategy, folder, account
        self._done = rounds_done
        self._earlier = self._cut_off()
        for wrapper in wrappers(strategy):
            wrapper.before_release = self.keep
        if self._earlier is not None and noise_seed(config, is_deployed()) is None:
            self._take_over()

    def settle(self, server_round: int) -> None:
        """Note that a round is done: its checkpoint contains its cost."""
        self._done = server_round

    def keep(self) -> None:
        """Write the charges, including that of the open round, and update the ledger."""
        if self._earlier is not None and self._earlier != self._now():
            _log.warning(
                "round %d is played again with other clients than before the interruption: both "
                "releases are charged",
                self._done + 1,
            )
            self._take_over()
        self._earlier = None
        now = self._now()
        if any(one is not None for one in now):
            kept = {"server_round": self._done + 1, "charges": now}
            write_atomically(self._folder / _FILE, json.dumps(kept) + "\n")
        if self.account is not None:
            self.account.note(self._strategy, self._done + 1)

    def close(self) -> None:
        """Charge a round that was left open and has not been repeated."""
        if self._earlier is not None:
            self._take_over()

    def _take_over(self) -> None:
        """Charge what was open when the process ended, in addition to what is charged now."""
        assert self._earlier is not None
        self._restore(self._earlier)
        self._earlier = None

    def _restore(self, charges: list[Any]) -> None:
        for wrapper, charged in zip(wrappers(self._strategy), charges, strict=True):
            if charged is not None:
                wrapper.restore_charges(charged)

    def _now(self) -> list[Any]:
        """Return the charges of each wrapper in JSON types."""
        charged: list[Any] = [wrapper.charges() for wrapper in wrappers(self._strategy)]
        return list(json.loads(json.dumps(charged)))

    def _cut_off(self) -> list[Any] | None:
        """Return the charges, including those of a round that a process left open."""
        path = self._folder / _FILE
        if not path.exists():
            return None
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            number, charged = int(kept["server_round"]), list(kept["charges"])
        except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
            raise _broken(path, str(error)) from None
        if number <= self._done:
            return None
        self._check(path, charged)
        return charged

    def _check(self, path: Path, charged: list[Any]) -> None:
        """Raise if charges are not of this chain of strategies; they are left as they were."""
        before = self._now()
        if [one is None for one in charged] != [one is None for one in before]:
            paid = sum(one is not None for one in before)
            raise _broken(path, f"{paid} of {len(before)} strategies must have charges")
        try:
            for charges in (charged, before):
                self._restore(charges)
        except Exception as error:  # foreign content can make it anything
            raise _broken(path, f"{type(error).__name__}: {error}") from None


def _broken(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"--resume needs the charges of this run, but {path} is not whole: {reason}; restore it "
        "from a backup, or start a new run"
    )
