"""The main costs as functions of one size: each prepares, works, and returns the work's seconds."""

from __future__ import annotations

import io
import logging
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import nn

from benchmarks.likelihood_ratio_round import Size, one
from benchmarks.measure import seconds
from benchmarks.secure_sum import Case, until_one_ends
from benchmarks.secure_sum_ours import our_functions
from leakmeter.auditors.canaries.transcript import Transcript
from leakmeter.auditors.canary_draws import canary_products
from leakmeter.auditors.rng import stream
from leakmeter.auditors.sampling.moments import Scatter
from leakmeter.clients.cohort import Cohort
from leakmeter.clients.protection.gradients import Gradients
from leakmeter.clients.protection.record_rule import WaterFilling
from leakmeter.clients.sampler import CohortSampler, Kept
from leakmeter.clients.update import fedavg
from leakmeter.fl_app.config.config import Config
from leakmeter.fl_app.run.folder import RunFolder
from leakmeter.fl_app.run.launch import launch
from leakmeter.fl_app.run.progress import Progress
from leakmeter.papers.andrew2024.gaussian_sum import simulate_cosines

BATCH, DELTA = 32, 1e-6


def complete_round(clients: int) -> float:
    """Play a secure round in which all clients share secrets with all."""
    return our_functions(Case(clients, 1_000, None, 1))


def sparse_round(clients: int) -> float:
    """Play a secure round in which each client has 14 neighbours."""
    return until_one_ends(lambda: our_functions(Case(clients, 1_000, 14, 1)))[0]


def long_round(dim: int) -> float:
    """Play a secure round of 20 clients with 14 neighbours each."""
    return until_one_ends(lambda: our_functions(Case(20, dim, 14, 1)))[0]


def products(dim: int) -> float:
    """Take the products of 100 canaries with a change."""
    change = stream(0, "benchmark").standard_normal(dim)
    return seconds(lambda: canary_products(0, range(100), change))


def one_shot_report(canaries: int) -> float:
    """Look for canaries in ten changes of 20,000 parameters."""
    seen, start = Transcript(0, range(canaries), 20_000), np.zeros(20_000)
    for i in range(10):
        seen.add(start, stream(0, "benchmark", i).standard_normal(20_000))
    return seconds(seen.final)


def simulation(canaries: int) -> float:
    """Simulate Algorithm 1 in 10⁶ dimensions."""
    rng = stream(0, "benchmark")
    return seconds(lambda: simulate_cosines(10**6, canaries, 1.0, rng))


def likelihood_ratio(dim: int) -> float:
    """Play the mathematics of a likelihood-ratio round with four times as many updates as d."""
    return one(dim, Size(4 * dim, 100, 250, False, 1))


def sampled(draws: int, clients: int) -> float:
    """Train redraws of a sum, as trials of a likelihood-ratio round are, and project them."""
    rng = stream(0, "benchmark")
    x = torch.from_numpy(rng.random((2_000, 64), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, 2_000))
    parts = tuple(rng.permutation(2_000)[:50] for _ in range(clients))
    cohort = Cohort(nn.Linear(64, 10), fedavg(epochs=1, batch_size=10, lr=0.1))
    sampler = CohortSampler(cohort, (x, y), Kept(parts), seed=0)
    model, along = np.zeros(cohort.dim, np.float32), np.ones((cohort.dim, 1))

    def draw() -> None:
        for _ in sampler.sums(model, range(clients), draws, ("trial",), project=along):
            pass

    return seconds(draw)


def trials(draws: int) -> float:
    """Train the trials of a likelihood-ratio round with 10 others."""
    return sampled(draws, 10)


def cohort(clients: int) -> float:
    """Sample 20 sums of a cohort."""
    return sampled(20, clients)


def covariance(dim: int) -> float:
    """Take up 4,096 updates and return their covariance."""
    rows = stream(0, "benchmark").standard_normal((2_048, dim), dtype=np.float32)
    return seconds(lambda: Scatter(dim).add(rows).add(rows).moments())


def filled(examples: int, dim: int) -> float:
    """Draw a gradient with water-filling noise; the gradients are known."""
    rows = stream(0, "benchmark").standard_normal((examples, dim)) / np.sqrt(dim)
    gradients = Gradients.of(rows)
    return seconds(lambda: WaterFilling(1e-4).draw(gradients, BATCH, stream(0, "draw")))


def filled_examples(examples: int) -> float:
    """Draw in 8,000 dimensions, more than there are examples: the Gram matrix is what counts."""
    return filled(examples, 8_000)


def filled_dim(dim: int) -> float:
    """Draw with 300 examples."""
    return filled(300, dim)


def whole_run(rounds: int) -> float:
    """Run a small federation with secure aggregation and the three default auditors."""
    config = Config(
        model="linear",
        clients=20,
        sample=10,
        canary_seats=4,
        rounds=rounds,
        lrt_fit=40,
        lrt_candidates=10,
        lrt_trials=20,
        mi_rank=2,
    )
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder.create(Path(parent) / "run", config)
        return seconds(lambda: launch(folder, Progress(Console(file=io.StringIO()))))
