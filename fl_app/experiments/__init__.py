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
    "dlg-users": (
        "dlg_users",
        "Elkordy et al. 2023, Fig. 15: what gradient inversion brings back from a secure sum",
    ),
    "mi-users": (
        "mi_users",
        "Elkordy et al. 2023, Fig. 3 to 5: information in a secure sum over the number of users",
    ),
    "mi-models": (
        "mi_models",
        "Elkordy et al. 2023, Fig. 3: information over data sets and models",
    ),
    "mi-batch": (
        "mi_batch",
        "Elkordy et al. 2023, Fig. 6 to 8: the same over the batch size",
    ),
    "mi-epochs": (
        "mi_epochs",
        "Elkordy et al. 2023, Fig. 11 and 12: the same over local epochs",
    ),
    "mi-rounds": (
        "mi_rounds",
        "Elkordy et al. 2023, Fig. 9: what all rounds together tell of a client's data",
    ),
    "mi-heterogeneity": (
        "mi_heterogeneity",
        "Elkordy et al. 2023, Fig. 13: information in a secure sum of unlike clients",
    ),
    "mi-dp": (
        "mi_dp",
        "Elkordy et al. 2023, Fig. 16: information in a sum with noise after it",
    ),
    "wfna-mnist": (
        "wfna_mnist",
        "Zhang and Psounis 2024, Fig. 4 and 5, Table 1: noised gradients at equal ε",
    ),
}
