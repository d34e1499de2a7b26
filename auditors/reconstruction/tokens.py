"""Which tokens did the clients of a round train on? Read off the rows of the embedding.

A token that no text of a batch contains has no gradient in its row of the input embedding: for
FedSGD, and for plain SGD over any number of steps, the rows that moved in the sum of a round are
exactly the tokens of its texts (Melis et al. 2019, Exploiting Unintended Feature Leakage in
Collaborative Learning, arXiv:1805.04049, §4.1). An output layer that shares its weights with the
embedding, weight decay or adaptive optimisers move all rows; then the rows behind the widest gap of
norms are named, which is a guess.

What is said of it is a test with a known chance to be wrong, as for pictures. Texts of the round
and strangers, texts that nobody trained on, come from one source. Without a leak, the named tokens
occur in as many texts of the round no more than in as many strangers: more often than in each of B
batches of strangers has a chance of at most 1/(B + 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from leakmeter.auditors.audited_round import AuditedRound, ScheduledAuditor
from leakmeter.auditors.auditor import DivergedError, RoundMessages, RoundView, UnableError
from leakmeter.auditors.codec import Kept
from leakmeter.auditors.finding import Finding, ThreatModel
from leakmeter.auditors.rng import stream
from leakmeter.auditors.values import Floats, Vector, within
from leakmeter.auditors.wording import Assumption, counted, number

Text = Sequence[int]  # its tokens
# What the clients of a round trained on, and strangers: what nobody in the round did.
Texts = tuple[Sequence[Text], Sequence[Text]]
_SERVER: Final = ThreatModel(observer="server", sees="round sum", knows_cohort=True)
_MIN_BATCHES: Final = 19
_ROUNDINGS: Final = 8  # of a number on its way through a mean of models
_MAX_FALSE: Final = 1.0  # rows that noise alone may name, expected in a round


@dataclass(frozen=True)
class TokenTest:
    """What came of one round.

    Attributes:
        server_round: Which round.
        named: Tokens that the attack names.
        right: Those among them that the round trained on.
        occurring: Different tokens that the round trained on.
        is_exact: Whether only rows that moved were named; else a gap of norms decided.
        texts: Originals that were tested, and so the texts in a batch of strangers.
        batches: Batches of strangers.
        found: Named tokens in the tested originals.
        stranger: The most in a batch of strangers.
        possible: Different tokens in the tested originals.
    """

    server_round: int
    named: int
    right: int
    occurring: int
    is_exact: bool
    texts: int
    batches: int
    found: int
    stranger: int
    possible: int

    @property
    def beyond(self) -> int:
        """How many more tokens the tested originals have than any batch of strangers."""
        return max(self.found - self.stranger, 0) if self.texts else 0


class TokenInversion(ScheduledAuditor):
    """Names the tokens in the sum of a round, and tests whether they are those of its texts.

    The attacker reads the mean update alone; the texts only show how right it is.

    Args:
        embedding: Name of the input embedding among the model's arrays, (tokens, width).
        texts_of: Returns the texts of a round, and strangers.
        every: Rounds between two audits; 0 audits the first only, -1 rounds 1, 2, 4, 8, … and the
            last. The test of the run is that of the first audited round.
        alike: Whether chance alone decided who trained on which text; the test needs no condition
            then.
        confidence: Of the test.
        seed: Chooses texts for the test.

    Example:
        def texts_of(view):
            return [text for client in view.replies for text in texts[client]], held_out

        strategy = Audited(FedAvg(), [TokenInversion("embed.weight", texts_of)])
    """

    name = "token-inversion"
    num_bounds = 1
    reads = frozenset({"sent", "facts", "instructed"})
    _played: Kept[list[TokenTest]]

    def __init__(
        self,
        embedding: str,
        texts_of: Callable[[RoundView], Texts],
        *,
        every: int = 0,
        alike: bool = False,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        super().__init__(every=every)
        within("confidence", confidence, above=0.0, below=1.0)
        self.embedding, self._texts_of = embedding, texts_of
        self.alike, self.confidence, self.seed = alike, confidence, seed
        self._played: list[TokenTest] = []
        self._place: _Place | None = None

    @property
    def due(self) -> None:
        """Reports do not list its schedule: a finding names its round."""

    def begin(self, dim: int, num_rounds: int) -> None:
        """Forget an earlier run."""
        super().begin(dim, num_rounds)
        self._played = []

    def bind(self, messages: RoundMessages) -> None:
        """Find the embedding among the arrays that are sent.

        Raises:
            UnableError: There is no such array, or it is no matrix.
        """
        layout = messages.layout
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        shape = shapes.get(self.embedding, ())
        if len(shape) != 2:
            matrices = [name for name, one in shapes.items() if len(one) == 2]
            raise UnableError(
                "embedding must be the name of a matrix (tokens, width) among the arrays that are "
                f"sent, got {self.embedding!r}; the matrices are {', '.join(matrices) or 'none'}"
            )
        index = layout.names.index(self.embedding)
        self._place = _Place(sum(layout.sizes[:index]), *shape, layout.dtypes[index])

    def audit(self, audited: AuditedRound) -> Sequence[Finding]:
        """Name the tokens of the round's sum."""
        update = audited.facts.aggregate
        if update is None or self._place is None:
            return ()
        if not np.isfinite(update).all():
            raise DivergedError
        texts = self._texts_of(audited.view)
        if not len(texts[0]):
            return ()
        rows, facts = self._place.rows(update), audited.facts
        # Unmoved rows of a mean of models are rounded like numbers of the model.
        error = (facts.quantum or 0.0) * math.sqrt(self._place.width)
        sent = np.linalg.norm(self._place.rows(audited.model), axis=1)
        error = error + _ROUNDINGS * float(np.finfo(self._place.dtype).eps) * sent
        named, is_exact = named_tokens(rows, error, facts.share_std or 0.0)
        played = self._tested(named, texts, audited.server_round, is_exact=is_exact)
        self._played.append(played)
        return [self._finding(played, audited.server_round)]

    def report(self) -> Sequence[Finding]:
        """Return the test of the run, which is that of its first audited round."""
        return [self._finding(self._played[0], None)] if self._played else ()

    def _tested(
        self, named: NDArray[np.bool_], texts: Texts, server_round: int, *, is_exact: bool
    ) -> TokenTest:
        """Compare named tokens with those of originals, and of batches of as many strangers."""
        batches = max(_MIN_BATCHES, math.ceil(1 / (1 - self.confidence) - 1e-9) - 1)
        rng = stream(self.seed, self.name, server_round)
        originals, strangers = texts
        size = min(len(originals), len(strangers) // batches)
        order = rng.permutation(len(originals))[:size]
        tested = _tokens([originals[i] for i in order], named.size)
        order = rng.permutation(len(strangers))[: batches * size].reshape(batches, size)
        others = [_tokens([strangers[i] for i in batch], named.size) for batch in order]
        everything = _tokens(originals, named.size)
        return TokenTest(
            server_round=server_round,
            named=int(named.sum()),
            right=int((named & everything).sum()),
            occurring=int(everything.sum()),
            is_exact=is_exact,
            texts=size,
            batches=batches,
            found=int((named & tested).sum()),
            stranger=max((int((named & other).sum()) for other in others), default=0),
            possible=int(tested.sum()),
        )

    def _finding(self, played: TokenTest, server_round: int | None) -> Finding:
        chance = 1 / (played.batches + 1)
        named = counted(played.named, "token")
        how = "whose rows moved" if played.is_exact else "behind the widest gap of rows' norms"
        rule = (
            f"{named} {how} in the sum of round {played.server_round}, of which {played.right} are "
            f"among the {played.occurring} of its texts"
        )
        if played.texts:
            rule += (
                f"; {counted(played.texts, 'text')} of the round have {played.found} of the named "
                f"tokens, as many strangers at most {played.stranger} in {played.batches} batches; "
                "more than all of them has, without a leak, a chance of at most "
                f"{number(chance, kind='guarantee')}"
            )
        else:
            rule += f"; a test needs {played.batches} strangers for each text"
        alike = Assumption.DEALT_AT_RANDOM if self.alike else Assumption.RECORDS_ALIKE
        return Finding(
            value=float(played.beyond),
            kind="lower_bound",
            rule=rule,
            confidence=1 - chance,
            sample_sizes={"texts": played.texts, "batches of strangers": played.batches},
            cap=float(played.possible if played.texts else 0),
            assumptions=(Assumption.THIS_ROUND_ONLY, alike),
            auditor=self.name,
            quantity="tokens recovered",
            threat_model=_SERVER,
            unit="record",
            server_round=server_round,
            seed=self.seed,
            facts={
                "round": played.server_round,
                "named": played.named,
                "right": played.right,
                "in the round": played.occurring,
                "is exact": played.is_exact,
            },
        )


@dataclass(frozen=True)
class _Place:
    """Where the embedding is in a flat model, and the type of its numbers."""

    first: int
    tokens: int
    width: int
    dtype: str

    def rows(self, vector: Vector) -> Vector:
        """Return the embedding of a flat model, (tokens, width)."""
        part = vector[self.first : self.first + self.tokens * self.width]
        return part.reshape(self.tokens, self.width)


def named_tokens(
    rows: Vector, error: Floats | float = 0.0, noise_std: float = 0.0
) -> tuple[NDArray[np.bool_], bool]:
    """Return which tokens an update of an embedding names, and whether these are rows that moved.

    Args:
        rows: The mean update of the embedding, (tokens, width).
        error: Largest norm of a row that rounding alone explains, one or (tokens,).
        noise_std: Standard deviation of the noise in it.

    >>> named_tokens(np.array([[0.0, 0.0], [0.0, -0.1], [0.0, 0.0]]))
    (array([False,  True, False]), True)
    """
    norms = np.linalg.norm(rows, axis=1)
    tokens, width = rows.shape
    if noise_std:
        from scipy.stats import chi2  # half a second, and few ask

        error = error + noise_std * math.sqrt(chi2.isf(min(_MAX_FALSE / tokens, 1.0), width))
    moved = norms > error
    if not moved.all():
        return moved, True
    return _behind_gap(norms), False


def _behind_gap(norms: Floats) -> NDArray[np.bool_]:
    """Return the rows behind the widest gap between logarithms of norms."""
    order = np.argsort(norms)
    gaps = np.diff(np.log(norms[order]))
    named = np.zeros(norms.size, dtype=bool)
    if gaps.size:
        named[order[int(gaps.argmax()) + 1 :]] = True
    return named


def _tokens(texts: Sequence[Text], size: int) -> NDArray[np.bool_]:
    """Return which tokens occur in texts.

    Raises:
        ValueError: A text has a token that the embedding has no row for.
    """
    found = np.zeros(size, dtype=bool)
    for text in texts:
        tokens = np.asarray(text, dtype=np.int64)
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < size):
            raise ValueError(
                f"texts must have tokens in [0, {size}), the rows of the embedding, got "
                f"{tokens.min()} to {tokens.max()}"
            )
        found[tokens] = True
    return found
