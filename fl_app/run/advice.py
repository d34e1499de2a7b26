"""Rehearses what is about to be advised, so that a step says what it does to the model."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from leakmeter.fl_app.build.strategy import calibrated, noise_ratio
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.errors import ConfigError
from leakmeter.fl_app.report.judge import is_ruined, noise_changes
from leakmeter.fl_app.report.read import Rehearsal, Run
from leakmeter.fl_app.run.rehearsal import sketch
from leakmeter.fl_app.task import load_task

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
