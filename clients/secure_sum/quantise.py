"""Updates, weights and metrics as one vector of ring integers whose sum is the weighted mean.

Order: range clip, noise, unbiased stochastic rounding, ring, masks. Stochastic rounding as in
Alistarh et al. 2017, QSGD (NeurIPS). How the bits are spent:
1. A client rounds its *weighted* update (w/max_weight)·x on a grid that `max_clients` times fits
   the ring. Rounding x first and multiplying the integer by w needs a grid max_weight times
   coarser; the mean's error then is max_weight·step whatever the weights, here it is
   step·max_weight/(mean weight): smaller by the mean weight.
2. Weight, metrics and counts are cut into digits small enough that `max_clients` of them fit a
   slot. They are exact at any `bits` and share the vector, so nothing travels in plain text.
3. A client whose training failed sends zeros of weight 0 and counts itself in a slot of its own.
   The upload looks like any other, so nobody learns which client's training has failed.
No sum of `max_clients` encodings can wrap around, whatever the updates, weights and metrics.

With an integer `noise_distribution` the vector that arrives is in steps already, with integer noise
on it, and all weights are 1. Then the ring has room for the sum of the updates and of the noise
together, which grows with √n only. A sum close to its end, which noise reaches with a chance below
1e-19, is none of honest clients.

Masks as in Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine
Learning (CCS). Client k sends z_k = x_k + p_k + Σ_{u<k} s_{k,u} − Σ_{u>k} s_{u,k}: every pairwise
mask s is added by the client with the higher number and subtracted by the other, and p_k is the
self mask. A mask is an AES-128 keystream in counter mode; a key serves one mask only. Overflow of
unsigned integers is the ring's addition, not an accident.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.noise import MAX_NORM, MAX_STD, distribution_named
from leakmeter.auditors.values import NotFiniteError, Vector, require

RingVector: TypeAlias = NDArray[np.unsignedinteger[Any]]

_AES_BLOCK = 16
_NONCE_BYTES = 12
# Zeros, keystream and accumulator of this size lie together in a core's second-level cache, so the
# accumulator is read from memory once for all masks.
_CHUNK_BYTES = 1 << 17
_ZEROS = bytes(_CHUNK_BYTES)


@dataclass(frozen=True)
class Ring:
    """Integers modulo 2^bits, held in the smallest unsigned type that has room.

    Attributes:
        bits: From 8 to 64. Fewer bits make the stream and the upload shorter: 8 and 16 are held
            in one and two bytes.
    """

    bits: int

    def __post_init__(self) -> None:
        require("[8, 64]", bits=self.bits)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Little-endian unsigned type of the vectors, the same on every machine."""
        size = 1 << (-(-self.bits // 8) - 1).bit_length()
        return np.dtype(f"<u{size}")

    @property
    def wire_bytes(self) -> int:
        """Bytes of a coordinate on the wire.

        Whole bytes keep the encoding one strided copy; packing single bits would save less than
        one byte in `bits`/8.
        """
        return -(-self.bits // 8)

    def reduce(self, vector: RingVector) -> RingVector:
        """Return the vector modulo 2^bits; the vector itself if its type is the ring."""
        if self.bits == 8 * self.dtype.itemsize:
            return vector
        return vector & self.dtype.type((1 << self.bits) - 1)

    def signed(self, vector: RingVector) -> NDArray[np.int64]:
        """Return the representatives in [−2^(bits−1), 2^(bits−1))."""
        # Shifting up and back copies the ring's sign bit into the unused ones.
        unused = np.uint64(64 - self.bits)
        shifted = vector.astype(np.uint64) << unused
        return shifted.view(np.int64) >> np.int64(unused)

    def from_signed(self, values: NDArray[np.int64]) -> RingVector:
        """Return integers as ring elements."""
        return self.reduce(values.view(np.uint64).astype(self.dtype))

    def to_bytes(self, vector: RingVector) -> bytes:
        """Return the wire form: `wire_bytes` a coordinate, low byte first."""
        self._check(vector)
        wide = np.ascontiguousarray(vector).view(np.uint8).reshape(-1, self.dtype.itemsize)
        return wide[:, : self.wire_bytes].tobytes()

    def from_bytes(self, data: bytes, length: int) -> RingVector:
        """Return the vector of `length` coordinates behind its wire form.

        Raises:
            ValueError: If the number of bytes is wrong or a coordinate is not below 2^bits.
        """
        if len(data) != length * self.wire_bytes:
            raise BadValueError("data", f"{length * self.wire_bytes} bytes", len(data))
        wide = np.zeros((length, self.dtype.itemsize), np.uint8)
        wide[:, : self.wire_bytes] = np.frombuffer(data, np.uint8).reshape(length, self.wire_bytes)
        vector: RingVector = wide.view(self.dtype).reshape(length)
        if (vector != self.reduce(vector)).any():
            raise BadValueError("coordinates", f"below 2^{self.bits}", vector.max())
        return vector

    def _check(self, vector: RingVector) -> None:
        if vector.ndim != 1 or vector.dtype != self.dtype:
            raise ValueError(
                f"vector must be flat and of type {self.dtype} for {self.bits} bits, "
                f"got shape {vector.shape} of {vector.dtype}"
            )


def mask(
    vector: RingVector, own: int, self_key: bytes, pair_keys: Mapping[int, bytes], ring: Ring
) -> RingVector:
    """Return what client `own` uploads for `vector`.

    Args:
        vector: Quantised update in the ring.
        own: The client's number; numbers order the pairs.
        self_key: Key of its self mask.
        pair_keys: Peer number to the key of the mask they have in common.
        ring: The ring.
    """
    signs = [(key, pair_sign(own, peer)) for peer, key in pair_keys.items()]
    return add_masks(vector, [(self_key, 1), *signs], ring)


def unmask(
    total: RingVector,
    self_keys: Iterable[bytes],
    orphans: Mapping[int, Mapping[int, bytes]],
    ring: Ring,
) -> RingVector:
    """Return the sum of the plain vectors behind a sum of uploads.

    Args:
        total: Sum of the survivors' uploads.
        self_keys: Keys of the survivors' self masks.
        orphans: Dropped client to the survivors it shared a mask with, and that mask's key; the
            survivors' halves of these masks had no counterpart in the sum.
        ring: The ring.
    """
    halves = [
        (key, -pair_sign(survivor, dropped))
        for dropped, survivors in orphans.items()
        for survivor, key in survivors.items()
    ]
    return add_masks(total, [*((key, -1) for key in self_keys), *halves], ring)


def pair_sign(own: int, peer: int) -> int:
    """Return +1 if `own` adds the mask it has in common with `peer`, −1 if it subtracts it."""
    if own == peer:
        raise BadValueError("peer", f"another client than {own}", peer)
    return 1 if peer < own else -1


def add_masks(vector: RingVector, masks: Iterable[tuple[bytes, int]], ring: Ring) -> RingVector:
    """Return `vector` plus the masks of the given keys, each with its sign (+1 or −1)."""
    ring._check(vector)
    total = vector.copy()
    # One call of the cipher and one addition a mask and chunk; all masks of a chunk in a row.
    streams = [(_stream(key), np.add if sign > 0 else np.subtract) for key, sign in masks]
    buffer = np.empty(min(len(total), _CHUNK_BYTES // ring.dtype.itemsize), ring.dtype)
    for start in range(0, len(total), len(buffer) or 1):
        part = total[start : start + len(buffer)]
        stream = buffer[: len(part)]
        zeros, raw = memoryview(_ZEROS)[: stream.nbytes], stream.view(np.uint8).data
        for cipher, combine in streams:
            cipher.update_into(zeros, raw)
            combine(part, stream, out=part)
    return ring.reduce(total)


def add_vectors(vectors: Iterable[RingVector], ring: Ring) -> RingVector:
    """Return the ring sum of at least one vector, all of one length."""
    total: RingVector | None = None
    for vector in vectors:
        ring._check(vector)
        if total is None:
            total = vector.copy()
        elif len(vector) != len(total):  # numpy would stretch a vector of length one
            raise BadValueError("vectors", f"of length {len(total)}", len(vector))
        else:
            np.add(total, vector, out=total)
    if total is None:
        raise ValueError("vectors must be at least one, got none")
    return ring.reduce(total)


def _stream(key: bytes) -> CipherContext:
    """Return the keystream of a 32-byte key, to be fed with zeros."""
    if len(key) != 2 * _AES_BLOCK:
        raise BadValueError("key", f"{2 * _AES_BLOCK} bytes", len(key))
    # AES-128 is as strong as X25519 and a seventh faster than AES-256 here. The other half gives
    # the nonce, so that many masks cannot be attacked in one search. GCM is counter mode with a tag
    # that nobody asks for: OpenSSL has code for wide vectors for it alone, twice as fast.
    nonce = key[_AES_BLOCK : _AES_BLOCK + _NONCE_BYTES]
    return Cipher(algorithms.AES128(key[:_AES_BLOCK]), modes.GCM(nonce)).encryptor()


# Room that noise gets in the ring, in standard deviations: beyond it with chance 1.5e-23.
NOISE_ROOM = 10.0
# Where the noise of a sum ends to be plausible, in standard deviations: beyond with chance 1.4e-20.
_PLAUSIBLE_NOISE = 9.3
_SIDE_BITS = 32
# Finer grids than this leave float64 too few fractional bits to round by (only above 40 bits).
_MAX_LEVELS = 1 << 40
_CHUNK = 1 << 14
# Beyond these, products and quotients of settings leave float64: steps become 0, rooms infinite.
_MIN_SIZE, _MAX_SIZE = 1e-90, 1e90


class CoarseError(ValueError):
    """Integer noise is too small against the rounding step for its distribution."""


class BlankSumError(ValueError):
    """No client of a sum has sent an update."""


@dataclass(frozen=True)
class SecureMean:
    """What a secure sum says after decoding, and all it says.

    Attributes:
        mean: Weighted mean of the clipped updates.
        total_weight: Sum of the weights.
        metrics: Weighted mean of each named metric.
        saturated: Coordinates that were clipped, over all clients; metrics do not count.
        num_clients: Clients that have sent an update.
        blank: Clients in the sum that have sent none, since their training failed.
        quantum: The mean differs by less than this from the unrounded one, in every coordinate.
    """

    mean: Vector
    total_weight: float
    metrics: Mapping[str, float]
    saturated: int
    num_clients: int
    blank: int
    quantum: float


@dataclass(frozen=True)
class _Slots:
    """A sum of encodings, slot by slot: in steps, clients and weight units."""

    sums: NDArray[np.int64]
    contributors: int
    blank: int
    units: int
    saturated: int
    parts: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Quantiser:
    """Maps updates to ring vectors and a sum of them back.

    Attributes:
        clip_range: Coordinates are clipped to ± this value before noise and rounding.
        bits: Size of the ring, 8 to 64; a coordinate takes as many bits rounded up to bytes.
        max_clients: Most clients that may ever be summed.
        max_weight: Largest weight; 1 with weights of 1 is the plain mean.
        metrics: Name to (low, high) of the metrics inside the vector; values beyond are clipped.
        noise_std: Noise that a client's update carries, per coordinate. The ring then has room
            for clip_range plus ten of these.
        noise_distribution: Name of its distribution. Integer noise is added after rounding, by
            `noise_mod`.
    """

    clip_range: float
    bits: int
    max_clients: int
    max_weight: float = 1.0
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    noise_std: float = 0.0
    noise_distribution: str = "gaussian"

    def __post_init__(self) -> None:
        most = (1 << self.ring.bits - 1) - 1
        if not 1 <= self.max_clients <= most:
            raise BadValueError(
                "max_clients",
                f"in [1, {most}] or the sum wraps around in a ring of {self.bits} bits",
                self.max_clients,
            )
        sizes = f"[{_MIN_SIZE:g}, {_MAX_SIZE:g}]"
        require(sizes, clip_range=self.clip_range, max_weight=self.max_weight)
        require(sizes, is_optional=True, noise_std=self.noise_std or None)
        for name, (low, high) in self.metrics.items():
            # A range narrower than the numbers' own grid would divide by a rounding error.
            least = max(_MIN_SIZE, 2.0**-40 * max(abs(low), abs(high)))
            if not (-_MAX_SIZE <= low < high <= _MAX_SIZE and high - low >= least):
                allowed = f"finite low < high within ±{_MAX_SIZE:g}, at least {least:g} apart"
                raise BadValueError(f"metrics[{name!r}]", allowed, (low, high))
        if self.has_integers:
            self._check_integers()

    def _check_integers(self) -> None:
        """Refuse what integer noise cannot be made for."""
        if self.max_weight != 1:
            raise BadValueError(
                "max_weight",
                f"1 with {self.noise_distribution} noise, whose clients all have weight 1",
                self.max_weight,
            )
        if self.metrics:
            raise BadValueError(
                "metrics",
                f"none with {self.noise_distribution} noise: they would carry no noise",
                sorted(self.metrics),
            )
        if self.max_clients >= self._half:
            allowed = f"more for {self.max_clients} clients with {self.noise_distribution} noise"
            why = f"Each of them rounds, and the ring has {self._half} steps"
            raise BadValueError("bits", allowed, self.bits, fix=why)
        least = distribution_named(self.noise_distribution).min_std
        if not least <= (std := self.noise_std / self.step):
            raise CoarseError(
                f"noise of a client must be at least {least:g} rounding steps with "
                f"{self.noise_distribution} noise, got {std:.3g}: take more bits, more noise or a "
                "smaller clip range"
            )

    @property
    def has_integers(self) -> bool:
        """Whether clients add integer noise after rounding."""
        return distribution_named(self.noise_distribution).is_integer

    @property
    def _half(self) -> int:
        """Largest number of steps in the ring, on either side of zero."""
        return (1 << self.bits - 1) - 1

    @property
    def ring(self) -> Ring:
        """The ring that encodings live in."""
        return Ring(self.bits)

    @property
    def room(self) -> float:
        """Largest absolute value a coordinate may have after noise."""
        return self.clip_range + NOISE_ROOM * self.noise_std

    @property
    def levels(self) -> int:
        """Grid points on each side of zero; `max_clients` times as many fit the ring."""
        return min(((1 << self.bits - 1) - 1) // self.max_clients, _MAX_LEVELS)

    @property
    def step(self) -> float:
        """Grid spacing of a client's update at full weight.

        At weight w it is max_weight/w as wide. Noise that a guarantee rests on should have a
        standard deviation of at least two steps.
        """
        if not self.has_integers:
            return self.room / self.levels
        # n roundings of less than a step each, n clip ranges, and the noise of the whole sum.
        n, noise = self.max_clients, NOISE_ROOM * self.noise_std * math.sqrt(self.max_clients)
        fits = (n * self.clip_range + noise) / max(self._half - n, 1)
        return max(fits, self.noise_std / MAX_STD, self.clip_range / MAX_NORM)

    @property
    def weight_unit(self) -> float:
        """Weights are rounded to multiples of this power of two; integers below 2^31 stay exact."""
        return math.ldexp(1.0, math.frexp(self.max_weight)[1] - (_SIDE_BITS - 1))

    def quantum(self, num_clients: int, total_weight: float) -> float:
        """Return the bound on the mean's rounding error in every coordinate.

        Each client errs by less than one step in its weighted update, and without bias (up to
        2^-32 of a step), so the error's standard deviation is at most quantum/(2·√num_clients).
        """
        if self.has_integers:
            return self.step
        return self.step * num_clients * self._max_units * self.weight_unit / total_weight

    def nearest_weight(self, weight: float) -> float:
        """Return a weight that a sum has room for; one that is none at all stays as it is.

        If clients beyond the limits sent nothing, a server would set them so that one is left.
        """
        nearest = min(max(weight, self.weight_unit), self.max_weight)
        return nearest if 0 < weight < math.inf else weight

    def num_slots(self, dim: int) -> int:
        """Return the length of an encoding of `dim` coordinates."""
        return dim + 2 + (2 + len(self.metrics)) * self._num_digits

    def encode(
        self,
        update: NDArray[np.floating],
        weight: float,
        metrics: Mapping[str, float],
        rng: np.random.Generator,
    ) -> RingVector:
        """Return a client's contribution.

        Args:
            update: Flat vector. With a `noise_std` it carries its noise already, and whoever
                added the noise has clipped it to `clip_range` before.
            weight: In (0, max_weight], such as the number of examples.
            metrics: At least the configured names; others are left out.
            rng: Gives 32 bytes that the rounding is drawn from, and one number a metric.

        Coordinates are clipped to `room`. Those that carry noise are not counted when clipped: the
        count would have no noise, and honest noise leaves the room with chance 1.5e-23.

        Raises:
            ValueError: If anything is not finite or missing, or the weight is out of range.
        """
        if self.has_integers:
            raise ValueError(f"update must be integers with {self.noise_distribution} noise")
        if update.ndim != 1:
            raise ValueError(f"update must be a flat vector, got shape {update.shape}")
        units = self._weight_units(weight)
        parts, clipped = self._metric_units(units, metrics, rng), 0
        vector = np.empty(self.num_slots(len(update)), self.ring.dtype)
        # One draw keys a cipher stream: ten times faster than a float64 a coordinate from `rng`.
        rounding, ring, levels = Rounding(rng.bytes(32)), self.ring, self.levels
        scale = units / self._max_units * levels / self.room
        for start in range(0, len(update), _CHUNK):
            part = slice(start, min(start + _CHUNK, len(update)))
            values, peak, num_clipped = self._bounded(update[part])
            values *= scale
            if peak * scale > levels:
                # Floating-point error must not push a value over the last grid point.
                np.clip(values, -levels, levels, out=values)
            vector[part] = ring.from_signed(rounding.rounded(values))
            clipped += num_clipped
        vector[len(update) :] = self._aside(units, clipped, *parts)
        return vector

    def encode_integers(self, steps: NDArray[np.int64]) -> RingVector:
        """Return the contribution of a client of weight 1 whose update is in steps, with its noise.

        Integers beyond the ring wrap around: that is post-processing of noised ones.
        """
        if steps.ndim != 1 or steps.dtype != np.int64:
            shown = f"shape {steps.shape} of {steps.dtype}"
            raise BadValueError("steps", "a flat vector of int64", shown)
        if not self.has_integers:
            raise BadValueError("noise_distribution", "one of integers", self.noise_distribution)
        aside = np.array(self._aside(self._max_units, 0), self.ring.dtype)
        return np.concatenate([self.ring.from_signed(steps), aside])

    def encode_blank(self, dim: int) -> RingVector:
        """Return what a client without an update contributes: that it is there, nothing else."""
        nothing = [0] * (2 + len(self.metrics))
        aside = np.array(self._aside(*nothing, blank=1), self.ring.dtype)
        return np.concatenate([np.zeros(dim, self.ring.dtype), aside])

    def _aside(self, *values: int, blank: int = 0) -> list[int]:
        """Return the slots behind the coordinates: one contributor, and these counts."""
        return [1, blank, *(digit for value in values for digit in self._digits(value))]

    def decode(self, total: RingVector) -> SecureMean:
        """Return the mean behind the ring sum of at least one encoding.

        Raises:
            ValueError: The vector is too short.
            BlankSumError: Its total weight is zero.
        """
        found = self._split(total)
        if found.units == 0:
            raise BlankSumError("total weight must be positive, got 0")
        total_weight = found.units * self.weight_unit
        metrics = {}
        for name, part in zip(sorted(self.metrics), found.parts, strict=True):
            low, high = self.metrics[name]
            metrics[name] = low + (high - low) * part / found.units
        num_clients = found.contributors - found.blank
        return SecureMean(
            mean=found.sums.astype(np.float64) * (self.step * self._max_units / found.units),
            total_weight=total_weight,
            metrics=metrics,
            saturated=found.saturated,
            num_clients=num_clients,
            blank=found.blank,
            quantum=self.quantum(num_clients, total_weight),
        )

    def implausible(self, total: RingVector, num_clients: int) -> str | None:
        """Return why this cannot be the sum of `num_clients` honest encodings, or None.

        One lying client can still put the sum anywhere that passes: the mean within ± room, the
        weight up to num_clients·max_weight, and so outvote all others. With integer noise it can
        move a coordinate of the sum by what the clip ranges and the noise of all clients leave.
        Masks hide who it was.
        """
        if not 1 <= num_clients <= self.max_clients:
            return f"num_clients must be in [1, {self.max_clients}], got {num_clients}"
        found = self._split(total)
        updates = num_clients - min(found.blank, num_clients)
        largest = self._largest_sum(found.units, num_clients)
        # Noise that is integers goes with weights of 1, and nobody is blank: that has no noise.
        lightest = updates * (self._max_units if self.has_integers else 1)
        most_blank = 0 if self.has_integers else num_clients
        claims = [
            ("contributors", num_clients, found.contributors, num_clients),
            ("contributors without an update", 0, found.blank, most_blank),
            ("total weight in units", lightest, found.units, updates * self._max_units),
            ("smallest sum in steps", -largest, int(found.sums.min(initial=0)), largest),
            ("largest sum in steps", -largest, int(found.sums.max(initial=0)), largest),
            ("saturated", 0, found.saturated, updates * len(found.sums)),
            *(("metric in weight units", 0, part, found.units) for part in found.parts),
        ]
        wrong = [
            f"{name} must be in [{low}, {high}], got {value}"
            for name, low, value, high in claims
            if not low <= value <= high
        ]
        return "; ".join(wrong) or None

    def _largest_sum(self, units: int, num_clients: int) -> int:
        """Return the largest sum of a coordinate, in steps, of honest clients with this weight."""
        if not self.has_integers:
            # |q| ≤ ⌈levels·w/max_weight⌉ for each client, so the weight total limits the sum too.
            return self.levels * units // self._max_units + num_clients
        noise = _PLAUSIBLE_NOISE * self.noise_std * math.sqrt(num_clients)
        return math.ceil((num_clients * (self.clip_range + self.step) + noise) / self.step)

    @property
    def _max_units(self) -> int:
        return math.ceil(self.max_weight / self.weight_unit)

    @property
    def _digit_bits(self) -> int:
        """Bits of a digit: `max_clients` of the largest digit fit one slot."""
        fits = ((1 << self.bits) - 1) // self.max_clients
        return min((fits + 1).bit_length() - 1, _SIDE_BITS)

    @property
    def _num_digits(self) -> int:
        return -(-_SIDE_BITS // self._digit_bits)

    def _digits(self, value: int) -> list[int]:
        """Return a count below 2^32 as digits, lowest first."""
        size = self._digit_bits
        return [value >> size * i & ((1 << size) - 1) for i in range(self._num_digits)]

    def _split(self, total: RingVector) -> _Slots:
        """Return a sum slot by slot."""
        dim = len(total) - self.num_slots(0)
        if total.ndim != 1 or total.dtype != self.ring.dtype or dim < 0:
            raise ValueError(
                f"total must be a flat {self.ring.dtype} vector of at least {self.num_slots(0)} "
                f"slots, got shape {total.shape} of {total.dtype}"
            )
        # As Python integers, which cannot overflow whatever a client has sent.
        rows = total[dim + 2 :].reshape(-1, self._num_digits).tolist()
        units, saturated, *parts = [
            sum(slot << self._digit_bits * i for i, slot in enumerate(row)) for row in rows
        ]
        contributors, blank = total[dim : dim + 2].tolist()
        sums = self.ring.signed(total[:dim])
        return _Slots(sums, contributors, blank, units, saturated, parts)

    def _weight_units(self, weight: float) -> int:
        least, most = self.weight_unit, self.max_weight
        require(f"[{least}, {most}]", weight=weight)
        return round(weight / self.weight_unit)

    def _metric_units(
        self, units: int, metrics: Mapping[str, float], rng: np.random.Generator
    ) -> list[int]:
        """Return each metric's place in its range times the weight."""
        if missing := sorted(self.metrics.keys() - metrics.keys()):
            raise ValueError(f"metrics must have {sorted(self.metrics)}, lacks {missing}")
        parts = []
        for name in sorted(self.metrics):
            (low, high), value = self.metrics[name], metrics[name]
            if not math.isfinite(value):
                raise NotFiniteError(f"metrics[{name!r}] must be finite, got {value}")
            exact = units * (min(max(value, low), high) - low) / (high - low)
            parts.append(min(math.floor(exact + rng.random()), units))
        return parts

    def _bounded(self, update: NDArray[np.floating]) -> tuple[Vector, float, int]:
        """Return the coordinates within the room, their peak, and how many had to be clipped."""
        values = update.astype(np.float64)
        peak = max(float(values.max()), -float(values.min()))
        if not math.isfinite(peak):
            raise NotFiniteError(f"update must be finite, got a coordinate of {peak}")
        if peak <= self.room:
            return values, peak, 0
        clipped = 0 if self.noise_std > 0 else int(np.count_nonzero(np.abs(values) > self.room))
        return np.clip(values, -self.room, self.room, out=values), self.room, clipped


class Rounding:
    """Rounds values up with probability their fraction, else down.

    Args:
        key: 32 random bytes. They decide all values in a row, whatever blocks these come in.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES128(key[:16]), modes.CTR(key[16:])).encryptor()

    def rounded(self, values: Vector) -> NDArray[np.int64]:
        """Return the next values rounded; overwrites them."""
        words = np.frombuffer(self._cipher.update(bytes(4 * len(values))), "<u4")
        low = np.floor(values)
        # floor(value + uniform) would round before it floors and could pass the last grid point.
        values -= low
        values *= 2.0**32
        # Converted in one pass: to compare two types costs twice as much.
        low += words.astype(np.float64) < values
        return low.astype(np.int64)
