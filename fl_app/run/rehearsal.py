"""Rehearsals: what a setting does to the model, without auditors, pages and files.

A rehearsal is the run itself, with its seed, cohorts, noise and rounding. It leaves out what the
audit adds: canary seats train like other clients. So guarantees are those of the audited run, and
the accuracy is that of a run without canaries, the same to the last bit where no canaries play.

What a report is about to advise is rehearsed too, so that a step says what it does to the model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid

from leakmeter.auditors.hook import wire
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.hook.mods import Call
from leakmeter.auditors.hook.wrapper import link, wrappers
from leakmeter.auditors.wording import is_epsilon
from leakmeter.fl_app.build.strategy import (
    calibrated,
    noise_ratio,
    server_strategy,
    sum_noise,
)
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, kebab
from leakmeter.fl_app.report.judge import is_ruined, noise_changes
from leakmeter.fl_app.report.read import Rehearsal, Run
from leakmeter.fl_app.task import load_task
from leakmeter.strategies import Noised

_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the quantiles that every rehearsal has
_DIGITS = 3  # of a measured clip norm: what is printed is what is used
# What noise and clipping are set by; without noise these must be as they are by default.
_OF_NOISE = (
    *("noise", "noise_distribution", "noise_multiplier", "target_epsilon"),
    *("target_adjacency", "clip_norm", "clipping", "wfna_floor", "wfna_blocks"),
)
# What asks something of an audited run, or says where it runs.
_OF_RUNS = (
    *("engine", "ray_address", "stop_above", "fail_above", "require_guarantee", "against", "log"),
    *("ledger", "budget", "over_budget"),
)
_OF_AUDITS = tuple(
    spec.name
    for spec in fields(Config)
    if spec.metadata["group"] == "audit" and spec.name != "delta"
)
_DEFAULTS: Mapping[str, Any] = {spec.name: spec.default for spec in fields(Config)}


def rehearse(config: Config) -> Rehearsal:
    """Return what the settings of a run do to its model; nothing is written.

    A clip norm that is to be measured, and noise that is to be calibrated, are found first.

    Args:
        config: The run, with its auditors: they are left out, their canary seats stay in the
            cohorts.

    Raises:
        ConfigError: The settings do not work.
    """
    settled, measured = with_clip_norm(config)
    found = _played(config, alone(calibrated(settled)))
    return replace(found, without_noise=None if measured is None else measured.accuracy)


def with_clip_norm(config: Config) -> tuple[Config, Rehearsal | None]:
    """Return the settings with a clip norm that is measured, and the rehearsal that measured it.

    Others are returned as they are, without one.

    Raises:
        ConfigError: Updates have no such norm.
    """
    if not config.measures_clip:
        return config, None
    rehearsal = _played(config, alone(without_noise(config)))
    return replace(config, clip_norm=_clip_norm(config, rehearsal)), rehearsal


def _clip_norm(config: Config, rehearsal: Rehearsal) -> float:
    """Return the clip norm that a rehearsal without noise measured."""
    norm = float(f"{rehearsal.norm(config.clip_quantile):.{_DIGITS}g}")
    if not 0 < norm < math.inf:
        allowed = f"a number here: in a rehearsal without noise updates have a norm of {norm:g}"
        raise config.refused("clip_norm", allowed, "Try a lower --lr, or --clip-norm 1")
    return norm


def sketch(config: Config, rounds: int) -> Rehearsal:
    """Return what the noise of a run does to its model in the first rounds.

    The same without noise is rehearsed, too. Sums are without masks, the same but for rounding, and
    the server adds the noise that clients would add together: half the cost of a whole rehearsal.
    Guarantees, which take seconds, are left out.

    Args:
        config: The run, with noise for clients.
        rounds: How many of its rounds to play; noise is that for all of them.

    Raises:
        ConfigError: The settings do not work.
    """
    short: dict[str, Any] = {"rounds": rounds, "secagg": "off"}
    plain = _rehearsed(replace(alone(without_noise(config)), **short), is_priced=False)
    if config.measures_clip:
        config = replace(config, clip_norm=_clip_norm(config, plain))
    ready = calibrated(config)
    noise = {name: _DEFAULTS[name] for name in _OF_NOISE}
    noise |= {"noise": "central", "noise_multiplier": sum_noise(ready)}
    noised = replace(alone(ready), **{**noise, "clip_norm": ready.clip_norm}, **short)
    return replace(_rehearsed(noised, is_priced=False), without_noise=plain.accuracy)


def without_noise(config: Config) -> Config:
    """Return the settings of the same run without noise."""
    return replace(config, **{name: _DEFAULTS[name] for name in _OF_NOISE})


def alone(config: Config) -> Config:
    """Return the settings of the same run without auditors, with cohorts of the same size."""
    usual = {name: _DEFAULTS[name] for name in (*_OF_AUDITS, *_OF_RUNS)}
    return replace(config, **{**usual, "auditors": "none", "sample": config.cohort})


def _played(asked: Config, config: Config) -> Rehearsal:
    """Return the rehearsal of settings, as one of the run that was asked for."""
    names = (spec.name for spec in fields(Config) if spec.name not in (*_OF_AUDITS, *_OF_RUNS))
    settings = {
        kebab(name): value
        for name in ("auditors", *names)
        if (value := getattr(config, name)) != getattr(asked, name)
    }
    return replace(_rehearsed(config, is_priced=True), settings=settings)


# A measured clip norm is asked for when settings are checked, and again by each point of a sweep.
@lru_cache(maxsize=64)
def _rehearsed(config: Config, *, is_priced: bool) -> Rehearsal:
    # Here: a server has no client app, and a process that has this engine counts as a simulation.
    from leakmeter.fl_app.client_app import client_app_of
    from leakmeter.fl_app.engines.inline import cheapest_sums, run_inline

    task = load_task(config)
    sums, masks = cheapest_sums(config)
    strategy = server_strategy(config, sums)
    meter = _Meter(Layout.of(task.initial_arrays()), link(strategy, Noised))
    accuracies: list[float] = []

    def evaluate(server_round: int, model: ArrayRecord) -> MetricRecord:
        metrics = task.evaluate(model)
        if server_round > 0:
            accuracies.append(float(metrics["accuracy"]))  # type: ignore[arg-type]
            meter.close()
        return metrics

    def main(grid: Grid, _: Context) -> None:
        first = task.initial_arrays()
        strategy.start(grid, first, num_rounds=config.rounds, evaluate_fn=evaluate)

    run_inline(main, client_app_of(config, meter.mod, masks=masks), config.clients)
    # Amplification by sampling takes seconds to price.
    found = [f for wrapper in wrappers(strategy) for f in wrapper.findings()] if is_priced else []
    return Rehearsal(
        settings={},
        seed=config.seed,
        accuracies=tuple(accuracies),
        **meter.measured(config.clip_quantile),
        guarantees=tuple(f for f in found if f.kind == "guarantee" and is_epsilon(f)),
    )


class _Meter:
    """Measures updates where they are trained, before clipping and noise.

    Args:
        layout: Of the model.
        noised: What noises their mean; None without noise.
    """

    def __init__(self, layout: Layout, noised: Noised | None) -> None:
        self._layout, self._noised = layout, noised
        self._norms: list[float] = []
        self._clip_norm: float | None = None
        self._clipped = 0
        self._total = np.zeros(layout.dim)  # of the clipped updates of a round
        self._ratios: list[float] = []

    def mod(self, message: Message, context: Context, call_next: Call) -> Message:
        """Let the client train, and measure what it answers."""
        sent = self._layout.flatten(wire.arrays(message.content))
        clip_norm = wire.clip_norm(message.content)
        reply = call_next(message, context)
        with np.errstate(over="ignore", invalid="ignore"):  # training may diverge
            update = self._layout.flatten(wire.arrays(reply.content)) - sent
            norm = float(np.linalg.norm(update))
            self._norms.append(norm)
            if clip_norm is not None:
                self._clip_norm = clip_norm
                self._clipped += not norm <= clip_norm
                self._total += update * (min(clip_norm / norm, 1.0) if norm else 1.0)
        return reply

    def close(self) -> None:
        """End a round: set the mean against the noise on it."""
        facts = None if self._noised is None else self._noised.facts()
        if facts is not None and facts.noise_std and facts.divisor:
            signal = float(np.linalg.norm(self._total)) / facts.divisor
            self._ratios.append(signal / (facts.noise_std * math.sqrt(self._layout.dim)))
        self._total[:] = 0.0

    def measured(self, share: float) -> dict[str, Any]:
        """Return what was measured, as fields of a `Rehearsal`, with this quantile of the norms."""
        # Diverged updates are longer than any other.
        norms = np.nan_to_num(self._norms or [0.0], nan=math.inf, posinf=math.inf)
        shares = sorted({*_SHARES, share})
        quantiles = np.quantile(norms, shares, method="inverted_cdf")
        return {
            "clip_norm": self._clip_norm,
            "clipped_share": None if self._clip_norm is None else self._clipped / len(norms),
            "norm_quantiles": {f"{s:g}": float(q) for s, q in zip(shares, quantiles, strict=True)},
            "signal_to_noise": float(np.median(self._ratios)) if self._ratios else None,
        }


_log = logging.getLogger("flwr")

_SHARE: Final = 15  # percent of the rounds of a run that resamples nothing
_SMALLEST: Final = "linear"  # model
_MIN_RECORDS: Final = 2  # of a client
_ENOUGH: Final = 20  # rounds
_CROWD: Final = 10_000  # clients of a round: with a million, planning alone would take a minute
_SMALL: Final = 3.0  # times the mean update: noise in which a model still learns


def rehearsed_advice(config: Config, run: Run) -> tuple[Rehearsal, ...]:
    """Return the rehearsal of the noise that would be advised; none where there is none.

    A run without auditors is not judged, so nothing is rehearsed for it.

    It plays all rounds of a run whose auditors resample clients' updates, which takes far longer
    than to train, and otherwise a few of them: at most about 15 % of what the run has cost.

    Args:
        config: Of the run.
        run: What is known of it before its report.
    """
    changes = noise_changes(run) if config.auditor_names else None
    if changes is None:
        return ()
    resamples = any(AUDITORS[name].resamples for name in config.auditor_names)
    # Two are played, with and without noise.
    rounds = config.rounds if resamples else config.rounds * _SHARE // 200
    if not rounds:
        return ()
    try:
        asked = Config.from_mapping({**config.to_mapping(), **changes})
        found = replace(sketch(asked, rounds), settings=changes)
        instead = roomier(asked) if is_ruined(found) else {}
    except ConfigError:  # a target out of reach, or data that give updates no norm
        return ()
    except Exception:  # the report of a run is worth more than its advice
        _log.warning("what is advised could not be rehearsed", exc_info=True)
        return ()
    return (replace(found, instead=instead),)


def roomier(config: Config) -> Mapping[str, Any]:
    """Return settings under which noise for the same target is small beside the mean update.

    A cohort's mean has noise of its multiplier times √d/n. So fewer parameters, more clients and
    fewer rounds help. Empty if even all of these together are not enough.
    """
    # Users are given, and clients that are generated are as many as somebody has asked for.
    is_given = config.partition == "natural" or config.generates_clients
    records = 0 if is_given else sum(len(part) for part in load_task(config).parts)
    most = 0 if is_given else _round_number(records // _MIN_RECORDS)
    everybody = config.clients - config.cohort + config.sample
    crowds: list[dict[str, Any]] = [{}, {"sample": min(everybody, max(_CROWD, config.sample))}]
    if most > config.clients:
        crowds.append({"clients": most, "sample": most // 2})
    kept, few = config.to_mapping(), min(config.rounds, _ENOUGH)
    for crowd in crowds:
        least = {"model": _SMALLEST, **crowd, "rounds": few}
        if ratio_with(config, least) > _SMALL:  # any larger model or more rounds are worse
            continue
        for model in dict.fromkeys((config.model, _SMALLEST)):
            for rounds in dict.fromkeys((config.rounds, few)):
                change = {"model": model, **crowd, "rounds": rounds}
                if ratio_with(config, change) <= _SMALL:
                    return {name: value for name, value in change.items() if kept[name] != value}
    return {}


def ratio_with(config: Config, change: Mapping[str, Any]) -> float:
    """Return the ratio of noise to signal with other settings; infinite where they do not work."""
    try:
        changed = Config.from_mapping({**config.to_mapping(), "clip-norm": 1.0, **change})
        return noise_ratio(calibrated(replace(changed, clipping="fixed")))
    except ConfigError:
        return math.inf


def _round_number(count: int) -> int:
    """Return a number of one digit and zeros, at most as large.

    >>> _round_number(718), _round_number(60)
    (700, 60)
    """
    unit = int("1".ljust(len(str(count)), "0"))
    return count // unit * unit
