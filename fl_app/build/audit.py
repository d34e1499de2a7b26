"""Builds the auditors of a run from its configuration, each by the name that a user types.

Also what a simulation knows of records: which of them trained in a round, and which never did.
Auditors compare with it what an attacker finds; the attackers themselves see none of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from leakmeter.auditors import Auditor, MutualInformation, NeuralInformation
from leakmeter.auditors.auditor import RoundView, share_confidence
from leakmeter.auditors.bounds.anytime import Anytime
from leakmeter.auditors.finding import Game
from leakmeter.auditors.information.theory import UpdateEntropy, update_entropy
from leakmeter.auditors.noise import gaussian
from leakmeter.auditors.reconstruction.inversion import RoundImages
from leakmeter.auditors.records.game import RecordCase
from leakmeter.auditors.records.membership import Shadows, Use, logit_confidences
from leakmeter.auditors.rng import derive, stream
from leakmeter.auditors.sampling.sampler import RoundSampler
from leakmeter.auditors.values import Floats, Indices, Vector, Watch
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.protection.gradients import DenseGradients, Gradients, per_example_gradients
from leakmeter.clients.protection.record_rule import GaussianSampling, WaterFilling
from leakmeter.clients.sampler import CohortSampler, Dealt, Endless, Fresh, Kept, Source, typical
from leakmeter.clients.update import LocalSteps, UpdateRule, fedavg
from leakmeter.fl_app.build.strategy import participation
from leakmeter.fl_app.config.audits import AUDITORS
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.config.field import ConfigError, option, out_of_range
from leakmeter.fl_app.config.settings import TaskConfig
from leakmeter.fl_app.data.partition import Scheme
from leakmeter.fl_app.deployment import cohort_seed
from leakmeter.fl_app.engines.cluster import RayExecutor
from leakmeter.fl_app.task import (
    Task,
    build_model,
    device_of,
    load_task,
    record_rule,
    update_rule,
)


@dataclass(frozen=True)
class AuditRun:
    """What auditors of one run are built from: its settings, and what follows from them.

    Attributes:
        config: The settings.
    """

    config: Config

    @property
    def task(self) -> Task:
        """Data, partition and model."""
        return load_task(self.config)

    @property
    def device(self) -> torch.device:
        """Where torch computes."""
        return device_of(self.config.device)

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
        pattern, seed = participation(self.config), cohort_seed(self.config)
        cohort_of = partial(pattern.cohort, seed, num_clients=self.config.clients)
        return SimulatedRecords(self.config, cohort_of)

    def one_client(self, target: int) -> int | None:
        """Return the client of a setting; None where it leaves the choice to the audit."""
        return None if target < 0 else target

    @cached_property
    def sampler(self) -> Callable[[Game], RoundSampler]:
        """What draws updates in a game; auditors of one run that play the same one share it."""
        return cache(lambda game: partial(self.sampler_of, game))

    def sampler_of(self, game: Game, view: RoundView) -> CohortSampler:
        """Return what draws updates as the clients of this round compute and clip them.

        It works on Ray where this process has it.
        """
        config = self.config
        # Noise for records clips gradients, in the rule itself.
        clips = config.noise_kind.unit == "client"
        sampler = sampler_for(
            self.task,
            config.task,
            update_rule(config),
            game,
            clip_norm=(view.facts.clip_norm or config.clip_norm) if clips else None,
            weighted=config.noise == "none",  # the accounting of noise knows no other weight than 1
            device=self.device,
            # Ray's workers are as many as there are processors already, and a GPU takes turns.
            threads=1 if _has_ray() or self.device.type != "cpu" else min(os.cpu_count() or 1, 4),
        )
        return sampler.through(self._ray) if config.engine == "ray" and _has_ray() else sampler

    @cached_property
    def _ray(self) -> RayExecutor:
        # The data are the same in all rounds and travel once.
        return RayExecutor(self.task.records(self.device))

    def other_initial(self, index: int) -> Vector:
        """Return an initial model as the run draws its own, from another seed, as a vector."""
        data, seed = self.task.dataset, derive(self.config.seed, "initial model", index) % 2**31
        drawn = build_model(self.config.model, data.input_shape, data.num_classes, seed)
        vector = parameters_to_vector(drawn.parameters()).detach().numpy()
        return np.asarray(vector, dtype=np.float64)

    def entropy_of(self, client: int) -> UpdateEntropy | None:
        """Return the entropy of a client's update; None where more is random than whole records.

        The audit draws records and batches. Clients that add noise draw that too, those that are
        generated draw every number of a record, and with the partition dirichlet-labels the number
        of records is itself random. With the partition
        dirichlet a client has a fixed number of records: no distribution of them has more entropy
        than a uniform choice, so the same limit holds.
        """
        config, rule = self.config, update_rule(self.config)
        # With water filling the weights are Gaussian.
        if not isinstance(rule, LocalSteps) or config.noise_kind.added_by == "clients":
            return None
        parts = self.task.parts
        own = len(parts[client])
        if config.game == "rerun":  # the records are known
            return update_entropy(own, own, rule.batch_sizes(own), epochs=rule.passes)
        if config.partition not in ("iid", "dirichlet") or config.generates_clients:
            return None
        records = sum(len(part) for part in parts)
        if config.game != "partition":  # every client draws an equal share
            own = round(records / len(parts))
        return update_entropy(records, own, rule.batch_sizes(own), epochs=rule.passes)


def _has_ray() -> bool:
    """Whether this process has started or joined Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def auditors(config: Config, dim: int, watch: Watch | None = None) -> list[Auditor]:
    """Return the auditors by name; what they cannot do with this model is an error now.

    Args:
        config: Says which, and how they are set.
        dim: Number of parameters of the model.
        watch: Told which stage of a long audit is how far.
    """
    run = AuditRun(config)
    made = [AUDITORS[name].make(run) for name in config.auditor_names]
    for name, auditor in zip(config.auditor_names, made, strict=True):
        if AUDITORS[name].every:
            auditor.fewer = f"{option(AUDITORS[name].every)} -1"
    # The audits of information draw once: they have the same sampler and the same seed.
    drawing = next((one.drawing for one in made if isinstance(one, MutualInformation)), None)
    for one in made:
        if isinstance(one, NeuralInformation) and drawing is not None:
            one.drawing = drawing
    share_confidence(made)
    for auditor in made:
        auditor.watch = watch
        try:
            auditor.begin(dim, config.rounds)
        except ValueError as error:
            raise ConfigError(f"auditor {auditor.name}: {error}") from None
    return made


def sampler_for(
    task: Task,
    config: TaskConfig,
    rule: UpdateRule,
    game: Game,
    *,
    threads: int = 1,
    device: torch.device | str = "cpu",
    **options: Any,
) -> CohortSampler:
    """Return the sampler that plays `game` on a run's own task.

    Args:
        task: Data, partition and model.
        config: Says how records are partitioned.
        rule: What a client does with its data.
        game: What each draw resamples; see `UpdateSampler.game`.
        threads: Threads that train.
        device: Where they train.
        options: `clip_norm`, `weighted` and `chunk` of `CohortSampler`.
    """
    return CohortSampler(
        Cohort(task.new_model().to(device), rule, threads=threads),
        task.records(device),
        _source(task, config, game),
        seed=config.seed,
        holdings=task.parts,
        **options,
    )


def _source(task: Task, config: TaskConfig, game: Game) -> Source:
    if game == "rerun":
        return Kept(task.parts)
    if config.partition == "natural":
        schemes = "iid, dirichlet or dirichlet-labels"
        allowed = f"{schemes} for --lrt-game {game}: the records of a person are given"
        raise out_of_range("--partition", allowed, config.partition)
    holds_out = game == "independent-held-out"
    if (population := task.dataset.population) is not None:
        return Endless(
            num_clients=config.clients,
            size=population.size,
            draw=population.another,
            holds_out=holds_out,
        )
    data = task.dataset
    own = data.train_y[: len(data.train_y) - data.num_planted]  # canaries stay where they are
    scheme, pool = Scheme(own, config.partition, config.dirichlet), np.arange(len(own))
    if game == "partition":
        return Dealt(pool=pool, num_clients=config.clients, deal=scheme.deal)
    return Fresh(pool=pool, num_clients=config.clients, draw=scheme.draw, holds_out=holds_out)


_MAX_RECORDS = 2000  # members, and as many held-out records, whose losses are compared
_CHUNK = 500  # records that go through a model at once
_MIN_OWN, _MAX_OWN = 20, 1000  # test records that shadow models are trained on
_CANDIDATES = 20  # records of others that may take a record's place
# Beyond this many records or numbers a draw of the mechanism takes too long to be tried a thousand
# times; its distribution is drawn from instead, and the finding says so.
_MAX_DRAWN_RECORDS, _MAX_DRAWN_NUMBERS = 200, 2_000_000

_Labelled = tuple[NDArray[np.float32], Indices]


@dataclass(frozen=True)
class SimulatedRecords:
    """The records of a run, and the clients that train on them.

    Attributes:
        config: The run's settings.
        cohort_of: Returns the clients that a round asks.
    """

    config: Config
    cohort_of: Callable[[int], Sequence[int]]

    @property
    def task(self) -> Task:
        """Data, partition and model."""
        return load_task(self.config)

    @property
    def mean_steps(self) -> float:
        """Mean number of gradient steps of a client in a round."""
        rule = update_rule(self.config)
        if isinstance(rule, GaussianSampling):
            return float(rule.steps)
        parts = typical(self.task.parts)
        each = [rule.passes * len(rule.batch_sizes(len(part))) for part in parts]
        return float(np.mean(each))

    def trained(self, view: RoundView) -> Indices:
        """Return the training records that the honest clients of a round trained on."""
        own = [self._of_client(view.server_round, c) for c in self._honest(view)]
        return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *own]))

    def _honest(self, view: RoundView) -> list[int]:
        """Return the clients of a round that trained and answered."""
        asked = [c for c in self.cohort_of(view.server_round) if c not in view.instructed]
        # Replies of a recorded run are not kept; then all that were asked count.
        answered = set(view.replies) or set(asked)
        return [c for c in asked if c in answered]

    def _of_client(self, server_round: int, client: int) -> Indices:
        """Return what a client trains on: one batch with FedSGD, else all of its records."""
        part = self.task.parts[client]
        rule = update_rule(self.config)
        if not isinstance(rule, LocalSteps):
            return part
        # The client's own stream draws its batches first: see `train` in `fl_app.client_app`.
        rng = stream(self.config.seed, "train", server_round, client)
        return np.asarray(part[rule.order(len(part), rng)])

    def losses(self, model: Vector) -> tuple[Floats, Floats]:
        """Return the losses of training records that may be used, and of test records."""
        net = self.at(model).double()
        return _losses(net, *self.task.dataset.rows(self._members)), _losses(net, *self._held_out)

    def used(self, view: RoundView) -> Use:
        """Return which of these records the honest clients of a round have used.

        A test record counts with the client of a training record that has the same label.
        """
        trained = np.flatnonzero(np.isin(self._members, self.trained(view)))
        clients = self._clients_of_members
        took_part = np.isin(clients, self._honest(view))
        return trained, np.flatnonzero(np.append(took_part, took_part[self._partners]))

    def shadows(self) -> Shadows:
        """Return what models of the attacker's own make of the same records.

        The attacker holds half of the test records and trains each model on half of these. None of
        them is compared, so this is the offline attack.
        """
        each = [np.concatenate(self.losses(model)) for model in _shadow_models(self.config)]
        return Shadows(np.stack([logit_confidences(losses) for losses in each]))

    @cached_property
    def _members(self) -> Indices:
        """Training records that the planned rounds use if all answer, in random order.

        Not planted ones: nothing like them is held out.
        """
        count = self.task.dataset.num_train - self.task.dataset.num_planted
        is_used = np.zeros(count, dtype=bool)
        for server_round in range(1, self.config.rounds + 1):
            for client in self.cohort_of(server_round):
                used = self._of_client(server_round, client)
                is_used[used[used < count]] = True
        order = stream(self.config.seed, "membership", "members").permutation(count)
        return np.asarray(order[is_used[order]][:_MAX_RECORDS])

    @cached_property
    def _clients_of_members(self) -> Indices:
        """The client of each of them."""
        owner = np.full(self.task.dataset.num_train, -1)
        for client, part in enumerate(self.task.parts):
            owner[part] = client
        return np.asarray(owner[self._members])

    @cached_property
    def _held_out(self) -> _Labelled:
        """Test records, with labels."""
        rows, data = _test_records(self.config)[1][:_MAX_RECORDS], self.task.dataset
        return data.test_x[rows], data.test_y[rows]

    @cached_property
    def _partners(self) -> Indices:
        """For each test record a member of the same label, if there is one."""
        rng = stream(self.config.seed, "membership", "partners")
        labels = self.task.dataset.rows(self._members)[1]
        chosen = rng.integers(len(labels), size=len(self._held_out[1]))
        for label in np.unique(labels):
            own = np.flatnonzero(self._held_out[1] == label)
            chosen[own] = rng.choice(np.flatnonzero(labels == label), len(own))
        return chosen

    def at(self, model: Vector, device: torch.device | str = "cpu") -> nn.Module:
        """Return the model with the given flat parameters, on a device."""
        net = self.task.new_model()
        start = torch.from_numpy(model).to(next(net.parameters()).dtype)
        vector_to_parameters(start, net.parameters())
        return net.to(device)

    def images(self, view: RoundView) -> RoundImages:
        """Return the images that a round trained on, and all others, of the test part as well."""
        data, trained = self.task.dataset, self.trained(view)
        own = data.num_train - data.num_planted  # planted records are like no stranger
        others, trained = np.setdiff1d(np.arange(own), trained), trained[trained < own]
        is_dealt = self.config.partition != "natural"  # a user's records are no random choice
        return RoundImages(
            data.train_x[trained],
            np.concatenate([data.train_x[others], data.test_x]),
            labels=data.train_y[trained],
            stranger_labels=np.concatenate([data.train_y[others], data.test_y]),
            dealt=len(others) if is_dealt else 0,
            steps=self.mean_steps,
            has_noise=self.config.hides_records,
        )

    def case(self, view: RoundView) -> RecordCase:
        """Return the part that a client would have in the round's sum, for a record of its own.

        The client is that of `lrt-target`, by default the first of the round. In the worst case
        others add their floor only; where it is known who was in the sum, and the client was, the
        case has the noise of their own data beside it.
        """
        config, task = self.config, self.task
        asked = self.cohort_of(view.server_round)
        honest = [c for c in asked if c not in view.instructed]
        client = config.lrt_target if config.lrt_target >= 0 else next(iter(honest), 0)
        own = len(task.parts[client])
        x, y = _examples(task, config.seed, client)
        net = self.at(view.sent)
        gradients = per_example_gradients(net, x, y, config.clip_norm)
        rule = record_rule(config)
        rest = max(view.facts.num_clients - len(view.instructed) - 1, 0) * config.wfna_floor
        excess: tuple[Floats, ...] = ()
        is_known = client in honest and len(asked) == view.facts.num_clients
        # The full gradient has no randomness but the noise, which is the same whatever the data.
        if rule.sampling == "gaussian" and is_known:
            others = (task.examples(c) for c in honest if c != client)
            found = [_excess(config, net, rule, (x, y), theirs) for theirs in others]
            excess = tuple(np.sum(parts, axis=0) for parts in zip(*found, strict=True))

        @cache
        def matrix() -> Floats:
            return gradients.columns(0, gradients.dim)

        def draw(which: Indices, rng: np.random.Generator) -> Floats:
            estimate, _ = rule.estimate(DenseGradients(matrix()[which]), rng)
            return estimate + gaussian(gradients.dim, rest**0.5, rng)

        is_small = own <= _MAX_DRAWN_RECORDS and gradients.dim * len(y) <= _MAX_DRAWN_NUMBERS
        # Isotropic noise comes on top of the sampling, and so is part of what every direction has.
        own_floor = _filled_to(rule)
        return RecordCase(
            blocks=tuple(_parts(rule, gradients)),
            records=own,
            batch=rule.batch_size,
            floor=own_floor,
            rest=rest + config.wfna_floor - own_floor,
            draw=draw if is_small else None,
            excess=excess,
        )

    def check_shadows(self) -> None:
        """Raise if there are too few test records to train shadow models on and to compare with."""
        own, _ = _test_records(self.config)
        if self.config.membership_shadows and len(own) < _MIN_OWN:
            few = len(self.task.dataset.test_y)
            allowed = f"0 with {few} test records, as it needs {2 * _MIN_OWN}"
            raise out_of_range("--membership-shadows", allowed, self.config.membership_shadows)


def _test_records(config: Config) -> tuple[Indices, Indices]:
    """Return the attacker's own test records, none without shadow models, and the others."""
    count = len(load_task(config).dataset.test_y)
    order = stream(config.seed, "membership", "held-out").permutation(count)
    own = count // 2 if config.membership_shadows else 0
    return order[:own], order[own:]


@lru_cache(maxsize=1)
def _shadow_models(config: Config) -> Floats:
    """Return flat models, each trained on half of the attacker's records; (models, dim).

    They take as many passes as a client that is in every round, with its step length and batches.
    """
    task, own = load_task(config), _test_records(config)[0][:_MAX_OWN]
    names = [("membership", "shadow", i) for i in range(config.membership_shadows)]
    parts = [stream(config.seed, *name, "part").permutation(own)[: len(own) // 2] for name in names]
    rngs = [stream(config.seed, *name, "batches") for name in names]
    passes = config.rounds * (1 if config.algorithm == "fedsgd" else config.epochs)
    start = parameters_to_vector(task.initial.parameters()).detach()
    x, y = torch.from_numpy(task.dataset.test_x), torch.from_numpy(task.dataset.test_y)
    model = task.new_model().to(device_of(config.device))
    cohort = Cohort(model, fedavg(passes, config.batch_size, config.lr))
    updates = cohort.updates(start, x, y, parts, rngs).cpu()
    return np.asarray((start + updates).double().numpy())


def _losses(net: nn.Module, x: NDArray[np.float32], y: Indices) -> Floats:
    """Return the cross-entropy of each record."""
    with torch.no_grad():
        each = [
            cross_entropy(
                net(torch.from_numpy(x[first : first + _CHUNK]).double()),
                torch.from_numpy(y[first : first + _CHUNK]),
                reduction="none",
            )
            for first in range(0, len(y), _CHUNK)
        ]
    return np.asarray(torch.cat(each).numpy())


def _excess(
    config: Config,
    net: nn.Module,
    rule: GaussianSampling,
    rows: tuple[Tensor, Tensor],
    theirs: tuple[Tensor, Tensor],
) -> list[Floats]:
    """Return G E Gᵀ for each block: E is what another client's sampling adds above the floor.

    With its gradients H, (records, dim), the client adds h(Σ), Σ = HᵀH/(BD) with eigenvalues μ; if
    its noise is isotropic, Σ and the noise, which is the same with a floor of 0.
    Of E = Σ_μ (μ - σ²)₊ w wᵀ the eigenvectors are w = Hᵀv/√(μBD), with v those of the Gram matrix
    HHᵀ/(BD). So only products of gradients are needed, never a vector of length dim.
    """
    x, y = (torch.cat(pair) for pair in zip(rows, theirs, strict=True))
    gradients = per_example_gradients(net, x, y, config.clip_norm)
    first, scale = len(rows[1]), config.batch_size * len(theirs[1])
    floor, found = _filled_to(rule), []
    for part in _parts(rule, gradients):
        gram = part.gram()
        mu, v = np.linalg.eigh(gram[first:, first:] / scale)
        # Without filling, what is left of eigenvalues that are zero is rounding.
        above = mu > max(floor, 1e-12 * float(mu[-1]))
        mu, seen = mu[above], gram[:first, first:] @ v[:, above]  # (rows, directions)
        found.append((seen * ((mu - floor) / (mu * scale))) @ seen.T)
    return found


def _parts(rule: GaussianSampling, gradients: Gradients) -> Iterator[Gradients]:
    """Yield the gradients of each block that is sampled and filled separately."""
    if isinstance(rule.noise, WaterFilling):
        yield from rule.noise.parts(gradients)
    else:
        yield gradients


def _filled_to(rule: GaussianSampling) -> float:
    """Return the floor that a client's covariance is filled to; 0 where noise is added to it."""
    return rule.noise.sigma2 if isinstance(rule.noise, WaterFilling) else 0.0


def _examples(task: Task, seed: int, client: int) -> tuple[Tensor, Tensor]:
    """Return the client's own records, then candidates of others."""
    own, rng = task.parts[client], stream(seed, "record-candidates", client)
    if (population := task.dataset.population) is not None:
        pool = np.concatenate([population.another(rng) for _ in range(_CANDIDATES)])
    else:
        pool = np.setdiff1d(np.arange(task.dataset.num_train), own)
    chosen = rng.choice(pool, min(_CANDIDATES, len(pool)), replace=False)
    x, y = task.dataset.rows(np.concatenate([own, chosen]))
    return torch.from_numpy(x), torch.from_numpy(y)
