"""The assumptions that a number may depend on, each with its name and its sentence.

A finding lists names; everything that prints a finding takes the sentence from here. An assumption
is either part of how the audit is run, or a *condition*: a property of the mechanism or of the
scores that nobody has checked. A lower bound that needs a condition is conditional: it is never
printed without "if", and never compared with a guarantee.

Your own auditor may use sentences in place of names. They count as conditions.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class Assumption(StrEnum):
    """Names of assumptions; equal to their text in report.json."""

    # Bounds from scores
    SEPARATE_TRIALS = "separate-trials"
    INDEPENDENT_SCORES = "independent-scores"
    FIXED_THRESHOLD = "fixed-threshold"
    KNOWN_NULL = "known-null"
    GAUSSIAN_MECHANISM = "gaussian-mechanism"
    FAIR_COINS = "fair-coins"
    FIXED_GUESSES = "fixed-guesses"
    ALL_ROUNDS_TOGETHER = "all-rounds-together"
    FIXED_END = "fixed-end"
    # Canaries
    UNIFORM_CANARIES = "uniform-canaries"
    GAUSSIAN_COSINES_NULL_STD = "gaussian-cosines-null-std"
    GAUSSIAN_COSINES = "gaussian-cosines"
    GAUSSIAN_MAXIMA = "gaussian-maxima"
    SEAT_SENDS_ZERO = "seat-sends-zero"
    SEAT_STAYS_HONEST = "seat-stays-honest"
    ALL_CANARIES_PLAY = "all-canaries-play"
    # Likelihood ratio and span
    FROZEN_UPDATES = "frozen-updates"
    KNOWN_SEATS = "known-seats"
    KNOWN_REST = "known-rest"
    GAUSSIAN_ROUNDING = "gaussian-rounding"
    GAUSSIAN_TRIALS = "gaussian-trials"
    GAUSSIAN_SUM = "gaussian-sum"
    THIS_ROUND_ONLY = "this-round-only"
    ANY_WEIGHTS = "any-weights"
    # Records
    TRIALS_BY_FORMULA = "trials-by-formula"
    TRIALS_BY_CODE = "trials-by-code"
    OTHERS_ADD_FLOOR_ONLY = "others-add-floor-only"
    OTHERS_ADD_OWN_NOISE = "others-add-own-noise"
    MEASURED_EIGENVALUES = "measured-eigenvalues"
    RECORDS_ALIKE = "records-alike"
    # Mutual information
    GAUSSIAN_UPDATES = "gaussian-updates"
    ALIKE_GAUSSIAN_UPDATES = "alike-gaussian-updates"
    GOOD_CRITIC = "good-critic"
    FRESH_EVERY_ROUND = "fresh-every-round"
    ALIKE_GRADIENTS = "alike-gradients"
    WHITENED_INDEPENDENT = "whitened-independent"
    WHITENED_LOG_CONCAVE = "whitened-log-concave"
    FEDSGD = "fedsgd"
    RANDOM_BATCH_ONLY = "random-batch-only"
    NOTHING_ELSE_RANDOM = "nothing-else-random"
    ALL_COORDINATES_VARY = "all-coordinates-vary"
    MODELS_AS_SENT = "models-as-sent"
    POOLED_CLIENTS = "pooled-clients"
    INDEPENDENT_CLIENTS = "independent-clients"
    # Noise and accounting
    EQUAL_WEIGHTS = "equal-weights"
    REAL_GAUSSIAN = "real-gaussian"
    UNIFORM_BITS = "uniform-bits"
    HONEST_NOISE = "honest-noise"
    COARSE_ROUNDING = "coarse-rounding"
    MODELS_ONLY = "models-only"
    INDEPENDENT_DROPOUTS = "independent-dropouts"
    FRESH_RUNS = "fresh-runs"
    SAME_CLIENT_EVERYWHERE = "same-client-everywhere"
    # Water filling
    PUBLIC_SETTINGS = "public-settings"
    HONEST_CONTRIBUTORS = "honest-contributors"
    HIDDEN_UPDATES = "hidden-updates"
    ONE_STEP = "one-step"
    GAUSSIAN_WEIGHTS = "gaussian-weights"
    LASTING_FLOOR = "lasting-floor"
    ISOTROPIC_FLOOR = "isotropic-floor"
    FILLED_FLOOR = "filled-floor"
    FULL_GRADIENT = "full-gradient"
    SECRET_BATCHES = "secret-batches"
    # Secure sums
    HONEST_RELAY = "honest-relay"
    TRUSTED_KEYS = "trusted-keys"
    OWN_APP = "own-app"
    OWN_THRESHOLD = "own-threshold"
    COMPUTATIONAL = "computational"
    SUM_NOT_JUDGED = "sum-not-judged"
    RATES_FIXED_BEFOREHAND = "rates-fixed-beforehand"
    COLLUDERS_FIXED_BEFOREHAND = "colluders-fixed-beforehand"

    @property
    def sentence(self) -> str:
        """What is assumed, as half a sentence that follows "assuming that"."""
        return _SENTENCES[self]


_A = Assumption
_SENTENCES: Final[dict[Assumption, str]] = {
    _A.SEPARATE_TRIALS: "each score comes from a separate run or trial",
    _A.INDEPENDENT_SCORES: "the scores of one run are independent although they share its noise",
    _A.FIXED_THRESHOLD: "the threshold was fixed before the scores were seen",
    _A.KNOWN_NULL: "the distribution of the scores of excluded samples is known exactly",
    _A.GAUSSIAN_MECHANISM: "the mechanism is Gaussian (μ-GDP for some μ)",
    _A.FAIR_COINS: "a fair and independent coin decided whether each canary takes part",
    _A.FIXED_GUESSES: "the number of guesses was fixed before their success was seen",
    _A.ALL_ROUNDS_TOGETHER: (
        "the bound holds at all rounds together: each coin and trial is bet on once, and stopping "
        "at any round keeps the confidence"
    ),
    _A.FIXED_END: "the run would have ended at this round whatever the audit had shown",
    _A.UNIFORM_CANARIES: "canaries are uniform on the sphere and used nowhere else",
    _A.GAUSSIAN_COSINES_NULL_STD: (
        "cosines of included canaries are Gaussian with the standard deviation of excluded ones"
    ),
    _A.GAUSSIAN_COSINES: "cosines of included canaries are Gaussian",
    _A.GAUSSIAN_MAXIMA: ("the largest cosines are Gaussian, although largest values are skewed"),
    _A.SEAT_SENDS_ZERO: "the seat of an excluded canary sends a zero update of the same weight",
    _A.SEAT_STAYS_HONEST: "the seat of an excluded canary trains as usual, a weaker test than zero",
    _A.ALL_CANARIES_PLAY: "all canaries take part; the null comes from canaries that nobody sent",
    _A.FROZEN_UPDATES: (
        "the client's own randomness is frozen in its two candidate updates: updates are "
        "distinguished, not data"
    ),
    _A.KNOWN_SEATS: "the attacker knows what canary seats send",
    _A.KNOWN_REST: (
        "the attacker knows what all other clients contribute, except the noise of honest ones"
    ),
    _A.GAUSSIAN_ROUNDING: "the trials model the rounding of the sum as Gaussian",
    _A.GAUSSIAN_TRIALS: (
        "Gaussian noise, which the trials draw, acts like the integer noise of the run"
    ),
    _A.GAUSSIAN_SUM: "the aggregate of the other clients is Gaussian along the test",
    _A.THIS_ROUND_ONLY: "only this round is attacked",
    _A.ANY_WEIGHTS: "the other clients' updates may enter the sum with any weights",
    _A.TRIALS_BY_FORMULA: "trials follow the stated Gaussian distribution, not the code",
    _A.TRIALS_BY_CODE: "trials run the code of the mechanism",
    _A.OTHERS_ADD_FLOOR_ONLY: (
        "the other clients add only their noise floor: the worst case of their data"
    ),
    _A.OTHERS_ADD_OWN_NOISE: "the other clients have the data and add the noise of this run",
    _A.MEASURED_EIGENVALUES: "eigenvalues are those of these data and this model only",
    _A.RECORDS_ALIKE: "members and held-out records come from the same distribution",
    _A.GAUSSIAN_UPDATES: "updates are Gaussian",
    _A.ALIKE_GAUSSIAN_UPDATES: "updates are independent, identically distributed and Gaussian",
    _A.GOOD_CRITIC: "the critic approximates the density ratio",
    _A.FRESH_EVERY_ROUND: "what a round reveals was not revealed by earlier rounds",
    _A.ALIKE_GRADIENTS: "gradients of the clients are independent and identically distributed",
    _A.WHITENED_INDEPENDENT: "whitened gradients have independent entries and the stated C₀",
    _A.WHITENED_LOG_CONCAVE: "whitened gradients are log-concave with the stated constants",
    _A.FEDSGD: "each client sends one gradient per round",
    _A.RANDOM_BATCH_ONLY: "local data are fixed and known; only the choice of the batch is random",
    _A.NOTHING_ELSE_RANDOM: (
        "only the client's records, which it keeps, and their split into batches are random in an "
        "update"
    ),
    _A.ALL_COORDINATES_VARY: "updates vary in every coordinate that the others do not determine",
    _A.MODELS_AS_SENT: (
        "every draw starts each round from the model that the run had there: what the models "
        "themselves reveal is not counted"
    ),
    _A.POOLED_CLIENTS: (
        "clients are identically distributed: their pairs are pooled, and the figure is too low "
        "where they differ"
    ),
    _A.INDEPENDENT_CLIENTS: "clients draw independently, so that their draws can be recombined",
    _A.EQUAL_WEIGHTS: (
        "every client has weight 1 and clips to the stated norm; sums are divided by a public "
        "number"
    ),
    _A.REAL_GAUSSIAN: (
        "noise is Gaussian over the real numbers: nobody attacks the lowest bits of its float64 "
        "samples"
    ),
    _A.UNIFORM_BITS: (
        "the bits that integer noise is drawn from are uniform, independent and secret: those of "
        "the operating system are, those of a simulation's seed stand for them"
    ),
    _A.HONEST_NOISE: "contributors other than the colluders add their noise and keep it secret",
    _A.COARSE_ROUNDING: (
        "rounding is coarse: a client's noise is below two rounding steps, so the Gaussian "
        "distribution is approximate"
    ),
    _A.MODELS_ONLY: "only models are released: training and evaluation metrics carry no noise",
    _A.INDEPENDENT_DROPOUTS: "dropouts do not depend on the updates",
    _A.FRESH_RUNS: "every run draws its noise and its cohorts independently",
    _A.SAME_CLIENT_EVERYWHERE: (
        "the same client may have taken part in every run, as often as anyone did"
    ),
    _A.PUBLIC_SETTINGS: (
        "record counts, clip norms, weights, batch sizes and noise floors are public and fixed "
        "beforehand"
    ),
    _A.HONEST_CONTRIBUTORS: (
        "the counted clients are honest, are in the sum and keep their noise secret"
    ),
    _A.HIDDEN_UPDATES: "a secure sum hides single updates from the server",
    _A.ONE_STEP: "each client takes one step from the model it received and sends nothing else",
    _A.GAUSSIAN_WEIGHTS: (
        "every client weights its examples with Gaussians that it draws again in every round"
    ),
    _A.LASTING_FLOOR: (
        "the stated smallest eigenvalue of every client's sampling covariance holds, whichever "
        "record is replaced"
    ),
    _A.ISOTROPIC_FLOOR: "every client adds at least its noise floor to each coordinate",
    _A.FILLED_FLOOR: (
        "every client fills its covariance to its noise floor; blocks are sampled independently"
    ),
    _A.FULL_GRADIENT: "every client takes its full gradient and adds its noise floor to it",
    _A.SECRET_BATCHES: (
        "every client draws a new batch without replacement in every round, and keeps it secret"
    ),
    _A.HONEST_RELAY: (
        "the server relays keys, draws the graph and reports dropouts honestly: keys and survivor "
        "lists are not signed"
    ),
    _A.TRUSTED_KEYS: (
        "clients' owners have installed each other's public keys, which the server has not chosen, "
        "and Ed25519 signatures cannot be forged"
    ),
    _A.OWN_APP: "clients run the code that their owners have checked, whoever delivers it",
    _A.OWN_THRESHOLD: (
        "clients refuse smaller sums: their owners have set colluders and min_threshold of MaskMod"
    ),
    _A.COMPUTATIONAL: "X25519, HKDF-SHA256 and AES are secure",
    _A.SUM_NOT_JUDGED: "only single updates are to be hidden, not what their sum reveals",
    _A.RATES_FIXED_BEFOREHAND: (
        "at most the stated shares of clients drop out and collude, fixed before the graphs are "
        "drawn"
    ),
    _A.COLLUDERS_FIXED_BEFOREHAND: (
        "at most the stated number of clients collude, fixed before clients draw their neighbours"
    ),
}

# Assumptions that nobody has checked: a bound that needs one of these is conditional.
_CONDITIONS: Final = frozenset(
    {
        _A.INDEPENDENT_SCORES,
        _A.FIXED_END,
        _A.GAUSSIAN_MECHANISM,
        _A.GAUSSIAN_COSINES_NULL_STD,
        _A.GAUSSIAN_COSINES,
        _A.GAUSSIAN_MAXIMA,
        _A.GAUSSIAN_SUM,
        _A.GAUSSIAN_TRIALS,
        _A.RECORDS_ALIKE,
        _A.GAUSSIAN_UPDATES,
        _A.ALIKE_GAUSSIAN_UPDATES,
        _A.GOOD_CRITIC,
        _A.FRESH_EVERY_ROUND,
        _A.ALIKE_GRADIENTS,
        _A.WHITENED_INDEPENDENT,
        _A.WHITENED_LOG_CONCAVE,
        _A.ALL_COORDINATES_VARY,
        _A.POOLED_CLIENTS,
        _A.COARSE_ROUNDING,
    }
)
_KNOWN: Final = frozenset(Assumption)


def is_known(assumption: str) -> bool:
    """Whether it is one of our names."""
    return assumption in _KNOWN


def sentence_of(assumption: str) -> str:
    """Return the sentence of an assumption; text that names none of ours is its own sentence."""
    return Assumption(assumption).sentence if assumption in _KNOWN else assumption


def is_condition(assumption: str) -> bool:
    """Whether nobody has checked it. Text that names none of ours counts as unchecked."""
    return assumption in _CONDITIONS or assumption not in _KNOWN


def conditions(assumptions: Iterable[str]) -> tuple[str, ...]:
    """Return those of the assumptions that are conditions."""
    return tuple(a for a in assumptions if is_condition(a))
