"""Published tables and figures, one module each; the names are listed without importing them."""

from __future__ import annotations

from typing import Final

# Name to module and what it shows.
EXPERIMENTS: Final = {
    "one-shot-table1": (
        "one_shot_table1",
        "Andrew et al. 2024, Table 1: one-shot estimates of the Gaussian mechanism",
    ),
    "dp-fedavg-writers": (
        "dp_fedavg_writers",
        "DP-FedAvg on MNIST by writer: one-shot findings against the accountant's ε",
    ),
    "secagg-lrt-adult": (
        "secagg_lrt_adult",
        "Ngo et al. 2024, Fig. 2: telling two updates apart in a secure sum, ADULT",
    ),
    "secagg-lrt-mnist": (
        "secagg_lrt_mnist",
        "Ngo et al. 2024, Fig. 3 and 4: the same for d = 7,850, MNIST, even and skewed labels",
    ),
    "ldp-curves": (
        "ldp_curves",
        "Ngo et al. 2024, Fig. 1: optimal LDP curves of a secure sum without noise",
    ),
}
