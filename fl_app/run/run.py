"""One run on a grid: checks before it, strategies, auditors, run log and checkpoints, its end."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from threadpoolctl import threadpool_limits

from leakmeter.auditors import Audited, Auditor, StopAbove
from leakmeter.auditors.auditor import DamagedError
from leakmeter.auditors.codec import plain
from leakmeter.auditors.finding import Limitation, RunWarning
from leakmeter.auditors.hook.wrapper import link, wrappers
from leakmeter.auditors.run_log import RoundLine, write_atomically
from leakmeter.auditors.verdict.lines import Ending
from leakmeter.auditors.verdict.verdict import WITHOUT_NOISE
from leakmeter.auditors.wording import counted
from leakmeter.fl_app import build
from leakmeter.fl_app.build.strategy import calibrated
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, program
from leakmeter.fl_app.deployment import is_deployed, noise_seed
from leakmeter.fl_app.report.judge import next_steps, verdict_of
from leakmeter.fl_app.report.page import leave_page
from leakmeter.fl_app.report.read import LAUNCH, Run, read_run, spelling_of
from leakmeter.fl_app.run.budget import LedgerAccount, check_budget, reserve
from leakmeter.fl_app.run.early import check_early
from leakmeter.fl_app.run.folder import Checkpoint, RunFolder
from leakmeter.fl_app.run.progress import Progress
from leakmeter.fl_app.run.rehearsal import rehearsed_advice, with_clip_norm
from leakmeter.fl_app.task import Task, device_line, device_of, load_task, record_rule
from leakmeter.loggers import loggers_of
from leakmeter.strategies import Chosen, Masked
from leakmeter.strategies.flower import (
    PatientGrid,
    check_resumable,
    restore_strategy,
    strategy_state,
)

_log = logging.getLogger("flwr")

_CHARGES = "charges.json"
_OPEN = (
    "Secure aggregation is off: the server sees every update itself. This audit measures what sums "
    "and models reveal; the auditor single-update measures what it sees."
)
_CLIPS = (
    "The server clips the mean update after it has seen it: audits of sums judge the sum before "
    "clipping. Only outsiders see the clipped mean. Clipping the mean alone guarantees nothing."
)

_MEASURED = (
    "The clip norm {} was measured on the clients' data, without noise. The guarantees hold for a "
    "run with this norm; they do not cover what the choice of the norm reveals. The option "
    "--clipping adaptive follows the norms at a price that is counted."
)
_NO_THEOREM = (
    "The noise wfna with the algorithm {} takes {} local steps, and no theorem covers more than "
    "one: this run guarantees nothing (ε = ∞). Use the algorithm fedsgd for a guarantee."
)


def preflight(config: Config, folder: Path | None = None) -> Config:
    """Load the data, build model and auditors; raise ConfigError on what cannot work.

    `folder` is that of an interrupted run, which has its clip norm and noise multiplier. For a new
    run the configuration is returned with a clip norm that is measured in a rehearsal, and with the
    multiplier that its target asks for.
    """
    device_of(config.device)
    check_early(config)  # before the calibration, which plans all rounds many times
    if folder is None:
        config = calibrated(with_clip_norm(config)[0])
    build.auditors(config, load_task(config).dim)
    check_budget(config, build.server_strategy(config), folder)
    return config


def new_run(config: Config, out: Path) -> RunFolder:
    """Check everything, then return the folder of a new run, with the rehearsal if one was run."""
    ready = preflight(config)
    _, rehearsal = with_clip_norm(config)  # known by now
    folder = RunFolder.create(out, ready)
    if rehearsal is not None:
        folder.keep(rehearsal)
    return folder


def run_on(
    grid: Grid,
    folder: RunFolder,
    progress: Progress,
    auditors: Sequence[Auditor] | None = None,
    *,
    launch: str = "",
    sums: type[Masked] = Masked,
) -> Run:
    """Run or continue the run of `folder` on the clients of `grid`, to its report.

    `auditors` replace those that the configuration names. `launch` is noted with the settings, so
    that advice is in the words of whoever started the run; empty for our own command line. `sums`
    makes secure sums. No other process can write to the folder meanwhile.
    """
    use_one_thread()
    config = folder.config
    noted = {**config.to_mapping(), "device": device_of(config.device).type}
    noted |= {LAUNCH: launch} if launch else {}
    with folder.locked():
        task, strategy = load_task(config), build.server_strategy(config, sums)
        check_resumable(strategy)
        kept = folder.load()
        rounds_done = 0 if kept is None else kept.server_round
        arrays = _first_arrays(folder, strategy, task, kept)
        account = reserve(config, strategy, folder.path)
        charges = Charges(config, strategy, folder.path, rounds_done, account)
        if auditors is None:
            auditors = build.auditors(config, task.dim, progress.audit)
        audited = _audited(folder, strategy, auditors, progress, kept, charges, noted)
        if words := device_line(config.device):
            progress.say(words)
        progress.begin(config, task.dim, task.sizes, rounds_done)
        if words := _no_theorem(config):
            progress.say(f"Warning: {words}")
        try:
            audited.start(
                PatientGrid(grid, is_simulated=not is_deployed()),
                arrays,
                num_rounds=config.rounds,
                evaluate_fn=lambda _, model: task.evaluate(model),
            )
        except DamagedError as error:
            raise ConfigError(f"--resume needs the files of the run: {error}") from None
        finally:  # what was released counts, however the run ends
            charges.close()
            if account is not None:
                progress.say(account.close(strategy))
    heard = read_run(folder.path).rehearsals
    return replace(so_far(audited, folder, noted), rehearsals=heard)


def so_far(audited: Audited, folder: RunFolder, noted: Mapping[str, Any]) -> Run:
    """Return what is known of a run, whether or not it has its report."""
    return Run(
        name=folder.path.name,
        folder=folder.path,
        config=noted,
        findings=tuple(audited.findings()),
        failures=tuple(audited.failures),
        limitations=tuple(audited.limitations),
        warnings=tuple(audited.warnings),
        claims=audited.audit.claims,
        rounds=read_run(folder.path).rounds,
    )


def use_one_thread() -> None:
    """Compute on one thread, so that sums have the same last bits in every launch."""
    torch.set_num_threads(1)
    threadpool_limits(limits=1)  # Flower's launches import numpy before its variables are set


def _first_arrays(
    folder: RunFolder, strategy: Strategy, task: Task, kept: Checkpoint | None
) -> ArrayRecord:
    """Return the model to start from, and restore the strategy's state that belongs to it."""
    if kept is None:
        folder.start_over()
        return task.initial_arrays()
    initial = {name: a.numpy() for name, a in task.initial_arrays().items()}
    shapes = [{k: a.shape for k, a in model.items()} for model in (kept.model, initial)]
    if shapes[0] != shapes[1]:
        raise folder.foreign(f"the model has arrays of shapes {shapes[0]}, not {shapes[1]}")
    with folder.taking_up("the strategy's state"):
        restore_strategy(strategy, kept.strategy)
    return ArrayRecord({name: Array(a) for name, a in kept.model.items()})


def _audited(
    folder: RunFolder,
    strategy: Strategy,
    auditors: Sequence[Auditor],
    progress: Progress,
    kept: Checkpoint | None,
    charges: Charges,
    noted: Mapping[str, Any],
) -> Audited:
    """Return the strategy with its audit, which saves a checkpoint after every round."""
    config = folder.config
    account = charges.account

    def keep(line: RoundLine, model: ArrayRecord) -> None:
        # Before the checkpoint, so that a resume tries it again.
        # Updates that are not finite have a warning of their own, which says what to do.
        has_diverged = is_warned_of("non-finite-updates", audited.warnings)
        is_bad_luck = config.dropout > 0 or _is_excused(strategy) or has_diverged
        if line.num_clients == 0 and not is_bad_luck:
            words = f"no client answered in round {line.server_round}"
            if not is_deployed():
                raise RuntimeError(words)
            # There one client may have seen to it, by boxes that do not open for its peers.
            _log.warning("%s; the model stays as it was", words)
        if audited.log_failure is not None:  # a checkpoint without its line could not be resumed
            raise audited.log_failure
        if account is not None:
            account.note(strategy, line.server_round)
            if line.server_round == config.rounds:  # before the report, after which none resumes
                account.settle(strategy)
        folder.save(
            Checkpoint(
                line.server_round,
                {name: a.numpy() for name, a in model.items()},
                strategy_state(strategy),
                audited.state(),
            )
        )
        charges.settle(line.server_round)
        progress.round(line)

    rehearsal = folder.rehearsal
    audited = Audited(
        strategy,
        auditors,
        out=folder.path,
        config=noted,
        rounds_done=0 if kept is None else kept.server_round,
        callbacks=[
            *loggers_of(config.loggers, folder.path.parent),
            *([StopAbove(config.stop_above)] if config.stop_above else []),
        ],
        sends="models",
        claims=config.claim,
    )
    audited.on_round = keep
    audited.logs_verdict = False  # the summary prints it

    def for_report() -> dict[str, Any]:
        spelled = [one.spelled(spelling_of(noted)) for one in audited.warnings]
        head = {} if account is None else _ledger_in_report(charges, account, strategy)
        measured = () if rehearsal is None else (rehearsal,)
        heard = (*measured, *rehearsed_advice(config, so_far(audited, folder, noted)))
        rehearsals: dict[str, Any] = {}
        if heard:
            free = replace(so_far(audited, folder, noted), rehearsals=heard).without_noise
            rehearsals = {"rehearsal": plain(heard), WITHOUT_NOISE: free}
        return {"warnings": plain(spelled), **rehearsals, **head}

    audited.audit.on_report = for_report
    audited.add_limitations(*_limitations(config, strategy))
    if kept is not None:
        with folder.taking_up("the audit's state"):  # each auditor checks its own
            audited.restore(kept.audit)
    return audited


def _ledger_in_report(
    charges: Charges, account: LedgerAccount, strategy: Strategy
) -> dict[str, Any]:
    """Settle the run and return the ledger's head, which later runs compare with the ledger."""
    charges.close()
    head = account.head(strategy)
    return {} if head is None else {"ledger": plain(head)}


def _limitations(config: Config, strategy: Strategy) -> Iterator[Limitation]:
    """Yield what this audit cannot show, whatever the auditors."""
    if link(strategy, Masked) is None and "single-update" not in config.auditor_names:
        yield Limitation("server", _OPEN)
    if any(wrapper.clips_mean for wrapper in wrappers(strategy)):
        yield Limitation("server", _CLIPS)
    if words := _no_theorem(config):
        yield Limitation("accountant", words)
    if config.clipping == "measured":
        yield Limitation("accountant", _MEASURED.format(f"{config.clip_norm:g}"))


def _no_theorem(config: Config) -> str:
    """Return that nothing is guaranteed, where clients take more steps than a theorem covers."""
    if config.noise != "wfna" or (steps := record_rule(config).steps) == 1:
        return ""
    return _NO_THEOREM.format(config.algorithm, steps)


def _is_excused(strategy: Strategy) -> bool:
    """Whether a round without a single update is bad luck rather than a broken client app.

    Sampling may have drawn too few clients to begin with, and dropouts may have left too few for a
    secure sum before any of them was asked to train.
    """
    chosen, masked = link(strategy, Chosen), link(strategy, Masked)
    assert chosen is not None
    if masked is None:
        return chosen.num_chosen == 0
    return chosen.num_chosen < 3 or (masked.num_announced > 0 and not masked.asked_to_train)


class Charges:
    """Keeps the charges of an open round in the run's folder, so that they survive the process.

    Once the server asks for shares of masks (without a secure sum: for updates), it may learn what
    the round releases. The charge is on disk before that. A process that is killed later leaves it
    there, and the resumed run repeats the round:

    - In a simulation, cohort, training, noise and rounding come from the run's seed, so the round
      makes the same release again. It is charged once. If other clients are in the sum the second
      time, both releases are charged.
    - In a deployment, noise comes from the operating system, so the second release is another one.
      Both are charged.

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
        account: LedgerAccount | None,
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
            write_atomically(self._folder / _CHARGES, json.dumps(kept) + "\n")
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
        path = self._folder / _CHARGES
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


def is_warned_of(kind: str, warnings: Iterable[RunWarning]) -> bool:
    """Whether a run has a warning of this kind."""
    return any(one.kind == kind for one in warnings)


def end(run: Run, progress: Progress) -> bool:
    """Write the page and print what came of a run.

    Returns:
        Whether all of it was done: no auditor has failed, and there is a page.
    """
    places: list[str] = []
    has_page = leave_page(run.folder, places.append)
    limits = len(run.limitations)
    more = f"  ({counted(limits, 'limit')} of this audit)" if limits else ""
    places.append(f"details: {program()} report --text {shlex.quote(str(run.folder))}{more}")
    noise = run.settings.get("noise")  # another project's mods may add some
    adds_noise = None if noise is None else noise != "none"
    ending = Ending(next_steps(run), adds_noise=adds_noise, places=places)
    progress.summary(verdict_of(run), run.failures, ending)
    return has_page and not run.failures
