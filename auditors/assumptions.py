"""The assumptions that a number may depend on, each with its name and its sentence.

A finding lists names; everything that prints a finding takes the sentence from here. An assumption
is either part of how the audit is run, or a *condition*: a property of the mechanism or of the
scores that nobody has checked. A lower bound that needs a condition is conditional: it is never
printed without "if", and never compared with a guarantee.

Your own auditor may use sentences in place of names. They count as conditions.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, auto
from typing import Final

# The sentences in the order of their names, and whether each is a condition.
_SAID: Final[list[tuple[str, bool]]] = []


def given(sentence: str) -> auto:
    """Note what is part of how the audit is run; the enumeration gives it its name."""
    _SAID.append((sentence, False))
    return auto()


def unchecked(sentence: str) -> auto:
    """Note what nobody has checked: a bound that needs it is conditional."""
    _SAID.append((sentence, True))
    return auto()


class Assumption(StrEnum):
    """Names of assumptions; their text in report.json is the name in small letters, with hyphens.

    A sentence follows "assuming that".
    """

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name.lower().replace("_", "-")

    # Bounds from scores
    SEPARATE_TRIALS = given("each score comes from a separate run or trial")
    INDEPENDENT_SCORES = unchecked(
        "the scores of one run are independent although they share its noise"
    )
    FIXED_THRESHOLD = given("the threshold was fixed before the scores were seen")
    KNOWN_NULL = given("the distribution of the scores of excluded samples is known exactly")
    GAUSSIAN_MECHANISM = unchecked("the mechanism is Gaussian (μ-GDP for some μ)")
    FAIR_COINS = given("a fair and independent coin decided whether each canary takes part")
    FIXED_GUESSES = given("the number of guesses was fixed before their success was seen")
    ALL_ROUNDS_TOGETHER = given(
        "the bound holds at all rounds together: each coin and trial is bet on once, and "
        "stopping at any round keeps the confidence"
    )
    FIXED_END = unchecked("the run would have ended at this round whatever the audit had shown")
    # Canaries
    UNIFORM_CANARIES = given("canaries are uniform on the sphere and used nowhere else")
    SIGN_CANARIES = given("canaries have fair and independent signs and are used nowhere else")
    BOUNDED_NULL = given(
        "p-values are those of excluded canaries or larger: 3.18 times the Gaussian tail"
    )
    GAUSSIAN_COSINES_NULL_STD = unchecked(
        "cosines of included canaries are Gaussian with the standard deviation of excluded ones"
    )
    GAUSSIAN_COSINES = unchecked("cosines of included canaries are Gaussian")
    GAUSSIAN_MAXIMA = unchecked(
        "the largest cosines are Gaussian, although largest values are skewed"
    )
    SEAT_SENDS_ZERO = given("the seat of an excluded canary sends a zero update of the same weight")
    SEAT_STAYS_HONEST = given(
        "the seat of an excluded canary trains as usual, a weaker test than zero"
    )
    SEAT_SENDS_OTHER = given(
        "the seat of an excluded canary sends another update of the same norm and weight"
    )
    ALL_CANARIES_PLAY = given(
        "all canaries take part; the null, that of canaries that nobody sent, needs no coins"
    )
    DECOYS_ALIKE = given(
        "planted records and decoys are drawn in the same way, and nobody trains on a decoy"
    )
    STAND_IN = given(
        "the place of a record that is left out has another one, drawn in the same way, which is "
        "never scored"
    )
    PLACE_IS_EMPTY = given("the place of a record that is left out is empty")
    GAUSSIAN_RANKS = unchecked(
        "scores of planted records are Gaussian, with the standard deviation of decoys, where "
        "those of decoys are"
    )
    CLIENTS_SAY = given(
        "clients train as their canary_mod says, on batches that their engine draws"
    )
    ONE_BATCH_A_PASS = given("passes over the data are whole, with each record in one batch")
    BYPASSED_TRAINING = given(
        "canaries bypass what the training, or a mod behind canary_mod, may do to protect a client"
    )
    BYPASSED_NOISE = unchecked(
        "the noise of mods behind canary_mod, which canaries bypass, hides nothing"
    )
    # Likelihood ratio and span
    FROZEN_UPDATES = given(
        "the client's own randomness is frozen in its two candidate updates: updates are "
        "distinguished, not data"
    )
    KNOWN_SEATS = given("the attacker knows what canary seats send")
    KNOWN_REST = given(
        "the attacker knows what all other clients contribute, except the noise of honest ones"
    )
    GAUSSIAN_ROUNDING = given("the trials model the rounding of the sum as Gaussian")
    GAUSSIAN_TRIALS = unchecked(
        "Gaussian noise, which the trials draw, acts like the integer noise of the run"
    )
    GAUSSIAN_SUM = unchecked("the aggregate of the other clients is Gaussian along the test")
    THIS_ROUND_ONLY = given("only this round is attacked")
    ANY_WEIGHTS = given("the other clients' updates may enter the sum with any weights")
    # Records
    TRIALS_BY_FORMULA = given("trials follow the stated Gaussian distribution, not the code")
    TRIALS_BY_CODE = given("trials run the code of the mechanism")
    OTHERS_ADD_FLOOR_ONLY = given(
        "the other clients add only their noise floor: the worst case of their data"
    )
    OTHERS_ADD_OWN_NOISE = given("the other clients have the data and add the noise of this run")
    MEASURED_EIGENVALUES = given("eigenvalues are those of these data and this model only")
    RECORDS_ALIKE = unchecked("members and held-out records come from the same distribution")
    DEALT_AT_RANDOM = given(
        "chance alone decided which records of a label were used, and which are compared with them"
    )
    # Mutual information
    GAUSSIAN_UPDATES = unchecked("updates are Gaussian")
    ALIKE_GAUSSIAN_UPDATES = unchecked(
        "updates are independent, identically distributed and Gaussian"
    )
    GOOD_CRITIC = unchecked("the critic approximates the density ratio")
    FRESH_EVERY_ROUND = unchecked("what a round reveals was not revealed by earlier rounds")
    ALIKE_GRADIENTS = unchecked(
        "gradients of the clients are independent and identically distributed"
    )
    WHITENED_INDEPENDENT = unchecked(
        "whitened gradients have independent entries and the stated C₀"
    )
    WHITENED_LOG_CONCAVE = unchecked("whitened gradients are log-concave with the stated constants")
    FEDSGD = given("each client sends one gradient per round")
    RANDOM_BATCH_ONLY = given(
        "local data are fixed and known; only the choice of the batch is random"
    )
    NOTHING_ELSE_RANDOM = given(
        "only the client's records, which it keeps, and their split into batches are random in "
        "an update"
    )
    ALL_COORDINATES_VARY = unchecked(
        "updates vary in every coordinate that the others do not determine"
    )
    MODELS_AS_SENT = given(
        "every draw starts each round from the model that the run had there: what the models "
        "themselves reveal is not counted"
    )
    POOLED_CLIENTS = unchecked(
        "clients are identically distributed: their pairs are pooled, and the figure is too low "
        "where they differ"
    )
    INDEPENDENT_CLIENTS = given("clients draw independently, so that their draws can be recombined")
    # Noise and accounting
    EQUAL_WEIGHTS = given(
        "every client has weight 1 and clips to the stated norm; sums are divided by a public "
        "number"
    )
    REAL_GAUSSIAN = given(
        "noise is Gaussian over the real numbers: nobody attacks the lowest bits of its float64 "
        "samples"
    )
    UNIFORM_BITS = given(
        "the bits that integer noise is drawn from are uniform, independent and secret: those of "
        "the operating system are, those of a simulation's seed stand for them"
    )
    HONEST_NOISE = given("contributors other than the colluders add their noise and keep it secret")
    COARSE_ROUNDING = unchecked(
        "rounding is coarse: a client's noise is below two rounding steps, so the Gaussian "
        "distribution is approximate"
    )
    MODELS_ONLY = given("only models are released: training and evaluation metrics carry no noise")
    INDEPENDENT_DROPOUTS = given("dropouts do not depend on the updates")
    FRESH_RUNS = given("every run draws its noise and its cohorts independently")
    SAME_CLIENT_EVERYWHERE = given(
        "the same client may have taken part in every run, as often as anyone did"
    )
    PUBLIC_CLIP_NORM = given(
        "the clip norm reveals nothing: it was measured on the clients' data without noise, and "
        "the guarantee does not cover that look (adaptive clipping would)"
    )
    # Water filling
    PUBLIC_SETTINGS = given(
        "record counts, clip norms, weights, batch sizes and noise floors are public and fixed "
        "beforehand"
    )
    HONEST_CONTRIBUTORS = given(
        "the counted clients are honest, are in the sum and keep their noise secret"
    )
    HIDDEN_UPDATES = given("a secure sum hides single updates from the server")
    ONE_STEP = given("each client takes one step from the model it received and sends nothing else")
    GAUSSIAN_WEIGHTS = given(
        "every client weights its examples with Gaussians that it draws again in every round"
    )
    LASTING_FLOOR = given(
        "the stated smallest eigenvalue of every client's sampling covariance holds, whichever "
        "record is replaced"
    )
    ISOTROPIC_FLOOR = given("every client adds at least its noise floor to each coordinate")
    FILLED_FLOOR = given(
        "every client fills its covariance to its noise floor; blocks are sampled independently"
    )
    FULL_GRADIENT = given("every client takes its full gradient and adds its noise floor to it")
    SECRET_BATCHES = given(
        "every client draws a new batch without replacement in every round, and keeps it secret"
    )
    # Secure sums
    HONEST_RELAY = given(
        "the server relays keys, draws the graph and reports dropouts honestly: keys and "
        "survivor lists are not signed"
    )
    TRUSTED_KEYS = given(
        "clients' owners have installed each other's public keys, which the server has not "
        "chosen, and Ed25519 signatures cannot be forged"
    )
    OWN_APP = given("clients run the code that their owners have checked, whoever delivers it")
    OWN_THRESHOLD = given(
        "clients refuse smaller sums: their owners have set colluders and min_threshold of MaskMod"
    )
    OWN_NOISE = given(
        "clients refuse weaker orders: their owners have set max_clip_norm and min_noise_std of "
        "NoiseMod"
    )
    COMPUTATIONAL = given("X25519, HKDF-SHA256 and AES are secure")
    SUM_NOT_JUDGED = given("only single updates are to be hidden, not what their sum reveals")
    RATES_FIXED_BEFOREHAND = given(
        "at most the stated shares of clients drop out and collude, fixed before the graphs are "
        "drawn"
    )
    COLLUDERS_FIXED_BEFOREHAND = given(
        "at most the stated number of clients collude, fixed before clients draw their neighbours"
    )

    @property
    def sentence(self) -> str:
        """What is assumed, as half a sentence that follows "assuming that"."""
        return _TABLE[self][0]


_TABLE: Final = dict(zip(Assumption, _SAID, strict=True))


def is_known(assumption: str) -> bool:
    """Whether it is one of our names."""
    return assumption in _TABLE


def sentence_of(assumption: str) -> str:
    """Return the sentence of an assumption; text that names none of ours is its own sentence."""
    return Assumption(assumption).sentence if assumption in _TABLE else assumption


def is_condition(assumption: str) -> bool:
    """Whether nobody has checked it. Text that names none of ours counts as unchecked."""
    return assumption not in _TABLE or _TABLE[Assumption(assumption)][1]


def conditions(assumptions: Iterable[str]) -> tuple[str, ...]:
    """Return those of the assumptions that are conditions."""
    return tuple(a for a in assumptions if is_condition(a))
