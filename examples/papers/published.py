"""What the papers have published, what of it is left out, and what stands in for their data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Paper:
    """A publication whose tables and figures are run again."""

    key: str  # how the sources of its comparisons begin
    title: str
    where: str  # where to read it; empty if it has no lasting address
    items: Mapping[str, str]  # what is run again, in the paper's order, with what it shows
    left_out: Mapping[str, str] = field(default_factory=dict)  # and why
    instead: str = ""  # what stands in for its data or models


PAPERS: Final = (
    Paper(
        "Ngo et al. 2024",
        "Secure Aggregation is Not Private Against Membership Inference Attacks",
        "https://arxiv.org/abs/2403.17775",
        {
            "Fig. 1": "optimal LDP curves of a sum, (a) exponential and (b) uniform entries",
            "Fig. 2": "errors and audited curves on ADULT, d = 210",
            "Fig. 3": "the same on EMNIST digits, d = 7,850, even labels",
            "Fig. 4": "the same with skewed labels",
        },
        instead="MNIST (60,000 images) replaces EMNIST digits (280,000) in Fig. 3 and 4. The paper "
        "averages over initial models; we print medians over 10 of them for ADULT and 5 for MNIST. "
        "The claim is about two feasible updates of one client, the worst of those sampled.\n\n"
        "Three games say which records the other clients hold. *Partition*: each trial splits one "
        "data set among all 100 clients, as in the paper. *Independent*: each client draws its "
        "records from all records, without regard to the pair. *Independent, held out* "
        "(independent-held-out): the same without the records behind the two candidates.",
    ),
    Paper(
        "Elkordy et al. 2023",
        "How Much Privacy Does Federated Learning with Secure Aggregation Guarantee?",
        "https://arxiv.org/abs/2208.02304",
        {
            "Fig. 3": "information over users, FedSGD",
            "Fig. 4": "the same, FedAvg",
            "Fig. 5": "the same, FedProx",
            "Fig. 6": "over the batch, FedSGD",
            "Fig. 7": "the same, FedAvg",
            "Fig. 8": "the same, FedProx",
            "Fig. 9": "accumulated over rounds",
            "Fig. 10": "accumulated, against accuracy",
            "Fig. 11": "over local epochs, FedAvg",
            "Fig. 12": "the same, FedProx",
            "Fig. 13": "over heterogeneity",
            "Fig. 14": "by writer",
            "Fig. 15": "gradient inversion",
            "Fig. 16": "with DP noise after the sum",
            "Fig. 17": "a sum that does not hide an update",
        },
        {
            "Fig. 1 and 2": "drawings of the setting",
            "Table 1": "sizes of the models; ours have as many parameters, which a test checks",
            "Fig. 6 to 8, 11 and 12 with MLP and CNN": "we use the linear model; without noise "
            "the bits depend only on the number of directions, as mi-models shows",
            "Fig. 9 (b), 13 on CIFAR-10": "we use MNIST; our part of CIFAR-10 has 80 records per "
            "client in place of 1,000",
            "entropy of an image, 567 and 1,403 bits": "the paper's own neural estimates, which we "
            "cannot confirm; only the column paper's axis uses them",
        },
        instead="CIFAR-10 is a part of 4,000 + 1,000 pictures. MNIST by writer (539 writers) "
        "replaces FEMNIST in Fig. 14. The paper's bits come from MINE on whole updates, ours from "
        "a Gaussian model along fixed directions (mine-dimension shows why). So shapes can be "
        "compared, and bits cannot. ± is one standard error.\n\n"
        "Two games say what is random. *Independent*: each draw gives every client fresh data, as "
        "the theory assumes. *Rerun*: clients keep their data and only draw new batches, as the "
        "paper samples.",
    ),
    Paper(
        "Zhang and Psounis 2024",
        "Differentially Private Federated Learning without Noise Addition: When is it Possible?",
        "https://arxiv.org/abs/2405.04551",
        {
            "Fig. 4": "spectrum of gradient noise, water filling against isotropic noise",
            "Fig. 5": "accuracy of the mechanisms at equal ε",
            "Table 1": "bounds of the mechanisms",
        },
        {
            "Fig. 1 and 2": "drawings of the setting",
            "Fig. 3": "the same picture as Fig. 17 of Elkordy et al. 2023",
        },
        instead="ε is a guarantee for one record that is replaced, against a server that sees only "
        "the secure sums of honest users.",
    ),
    Paper(
        "Textbook chapter",
        "Privacy: Differential Privacy and Secure Aggregation (a chapter on federated learning)",
        "",
        {
            "worked example 1": "noise scale of DP-FedAvg under basic composition",
            "worked example 2": "pairwise masks of three clients",
        },
        instead="The chapter names three alternatives to masks, which we do not measure. "
        "Homomorphic encryption (HE) adds ciphertexts, which are large, and somebody must hold the "
        "key. Multi-party computation (MPC) splits updates between a few servers that must not all "
        "collude. A trusted execution environment (TEE) adds plain numbers in an enclave, so trust "
        "moves to the hardware. All three release the same sum, so the audits here apply to them. "
        "[Alternatives to masks](secure-aggregation.md#alternatives-to-masks) compares them.",
    ),
    Paper(
        "Andrew et al. 2024",
        "One-shot Empirical Privacy Estimation for Federated Learning",
        "https://arxiv.org/abs/2302.03098",
        {
            "Table 1": "estimates of the Gaussian mechanism",
            "Table 2": "all rounds against the final model, Stackoverflow",
            "Fig. 1": "cosines over noise and repetitions",
            "Fig. 2": "estimates over noise and repetitions",
            "Table 3": "accuracy with and without canaries",
            "Table 4": "Anderson-Darling statistics of the cosines",
            "Table 5": "all rounds against the final model, EMNIST",
            "Fig. 3": "estimates over repetitions, EMNIST",
            "Table 6": "beside a lower bound and CANIFE",
            "Fig. 4": "one run against ten",
        },
        {
            "Table 6, CANIFE": "we have not built this method; the lower bounds are there",
            "Table 7": "assumptions of methods, without numbers",
        },
        instead="MNIST by writer (539 writers) replaces Stackoverflow (341,000 users) and EMNIST "
        "(3,383 writers). So shapes can be compared, and values cannot.\n\n"
        "ε_lo follows the paper's rule, which does not have 95 % confidence (see coverage). With a "
        "known null it can exceed 6.24, which the paper states as its largest value. Several runs "
        "are shown as median (smallest to largest), or as mean ± std where the paper does so. An "
        "asterisk marks an estimate that the auditor leaves out of its report, because the cosines "
        "are clearly not Gaussian or a bound refutes it. ε above 20 means practically certain.",
    ),
)

_NAMED = re.compile(
    r"(Fig|Table|[Ww]orked example)(?:ure)?s?\.?\s*"
    r"((?:\d+(?:\s*\([a-z, ]*\))?(?:\s*(?:,|/|-|–|to|and)\s*(?=\d))?)+)"
)
_RUNS = re.compile(r"(\d+)(?:\s*(?:to|-|–)\s*(\d+))?")  # such as 1, 3 to 5
_WORDS = {"fig": "Fig. ", "table": "Table ", "worked example": "worked example "}


def items_of(source: str) -> list[str]:
    """Return the tables and figures that a source names, each by itself.

    >>> items_of("Elkordy et al. 2023, Fig. 3 to 5 and Table 1")
    ['Fig. 3', 'Fig. 4', 'Fig. 5', 'Table 1']
    >>> items_of("Andrew et al. 2024, Tables 2/5, Fig. 1(a)"), items_of("Ngo et al. 2024, (8)")
    (['Table 2', 'Table 5', 'Fig. 1'], [])
    """
    found = []
    for kind, numbers in _NAMED.findall(source):
        for low, high in _RUNS.findall(re.sub(r"\([^)]*\)", "", numbers)):
            found += [f"{_WORDS[kind.lower()]}{i}" for i in range(int(low), int(high or low) + 1)]
    return found
