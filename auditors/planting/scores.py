"""What models say of canaries and decoys: p-values, exposure, and losses of torch models.

All canaries are compared with the same decoys. If these score too low by chance, they do so for
every canary, so ranks among them are dependent. The upper end of a simultaneous band for the
decoys' tail gives p-values that are valid together (`log_p_values`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from leakmeter.auditors.bounds.lower_bound import RateLimits, SimultaneousBand
from leakmeter.auditors.errors import BadValueError
from leakmeter.auditors.finding import Losses, LossUnit
from leakmeter.auditors.planting.plan import Batch
from leakmeter.auditors.values import Floats, Vector

if TYPE_CHECKING:
    import torch

# Maps a flat model and records to the loss of each record: texts, or inputs and labels.
Score = Callable[[Vector, Batch], ArrayLike]
# Maps a flat model and texts to whether the model completes each of them.
Extract = Callable[[Vector, list[str]], ArrayLike]

_BATCH: Final = 256
_BINS: Final = 30
_LARGEST: Final = 1e12  # a loss that is larger, or infinite, counts as this one


def log_p_values(scores: Floats, decoys: Floats, level: float) -> Floats:
    """Return upper limits on ln P(a record that was left out scores as much), for all scores.

    They hold together, except with probability `level`.

    Args:
        scores: Of canaries; larger means more likely planted, (k,).
        decoys: Scores of records that nobody trained on, (M,).
        level: In (0, 1).

    >>> log_p_values(np.array([5.0]), np.arange(1000.0) / 1000, 0.0125).round(2)
    array([-4.79])
    """
    reached = decoys.size - np.searchsorted(np.sort(decoys), scores, side="left")
    return np.log(RateLimits(SimultaneousBand(), level, "clopper-pearson")(reached, decoys.size))


def exposure(scores: Floats, decoys: Floats) -> Floats:
    """Return log₂ of how many times fewer decoys score as much as each record, and one for itself.

    Carlini et al. (2019), The Secret Sharer, definition 3, with the decoys for all other secrets.
    """
    reached = decoys.size - np.searchsorted(np.sort(decoys), scores, side="left")
    return np.asarray(np.log2(decoys.size + 1) - np.log2(reached + 1))


def normal_scores(scores: Floats, decoys: Floats) -> Floats:
    """Return scores on the scale on which those of decoys are standard normal."""
    reached = decoys.size - np.searchsorted(np.sort(decoys), scores, side="left")
    return np.asarray(-ndtri((reached + 0.5) / (decoys.size + 1)))


def histogram(
    included: Floats, excluded: Floats, decoys: Floats, unit: LossUnit = "nats"
) -> Losses:
    """Return how far the losses of all records fell, for a figure."""
    everyone = np.concatenate([included, excluded, decoys])
    low, high = float(everyone.min()), float(everyone.max())
    edges = np.linspace(low, high if high > low else low + 1.0, _BINS + 1)
    ins, outs, null = (np.histogram(part, edges)[0] for part in (included, excluded, decoys))
    return Losses(
        unit,
        edges=tuple(edges.round(6).tolist()),
        included=tuple(ins.tolist()),
        excluded=tuple(outs.tolist()),
        null=tuple((null / decoys.size).round(6).tolist()),
    )


def check_losses(losses: ArrayLike, count: int) -> Floats:
    """Return losses as numbers, or raise if they are not one for each record."""
    found = np.asarray(losses, dtype=np.float64)
    if found.shape != (count,) or np.isnan(found).any():
        raise ValueError(
            f"score must return {count} losses, one for each record, got shape {found.shape}"
            f"{' with NaN' if np.isnan(found).any() else ''}"
        )
    return np.clip(found, -_LARGEST, _LARGEST)


def check_completions(found: ArrayLike, count: int) -> NDArray[np.bool_]:
    """Return whether texts were completed, or raise if that is not said of each."""
    said = np.asarray(found)
    if said.shape != (count,) or said.dtype.kind not in "biu":
        raise ValueError(
            f"extract must return {count} values True or False, one for each text, got "
            f"{said.dtype} of shape {said.shape}"
        )
    return said.astype(bool)


class TorchScores:
    """Losses of records under a torch model, and whether it completes texts: `score`, `extract`.

    Args:
        module: A model on the CPU, with any weights. It maps a batch of inputs to logits, or token
            numbers (batch, tokens) to logits (batch, tokens, vocabulary), as Hugging Face's do.
        encode: For texts: returns the token numbers of a text. None for inputs and labels.
        prefix: For `extract`: how each text begins, which the attacker knows.

    Example:
        scores = TorchScores(model, lambda text: tokenizer(text).input_ids, prefix="my code is ")
        PlantedRecords(Secrets("my code is {digits:9}"), scores, extract=scores.extract)
    """

    def __init__(
        self,
        module: torch.nn.Module,
        encode: Callable[[str], Sequence[int]] | None = None,
        prefix: str = "",
    ) -> None:
        self._module, self._encode, self._prefix = module, encode, prefix

    def __call__(self, model: Vector, records: Batch) -> NDArray[np.float64]:
        """Return the cross-entropy of each record: of its label, or of all its tokens."""
        if isinstance(records, list):
            found = self._by_tokens(model, records, self._losses)
            return np.array(found, dtype=np.float64)
        import torch
        from torch.nn.functional import cross_entropy

        x, y = (torch.from_numpy(np.ascontiguousarray(part)) for part in records)
        module, losses = self._loaded(model), []
        with torch.no_grad():
            for start in range(0, len(x), _BATCH):
                some = slice(start, start + _BATCH)
                logits = _logits(module(x[some]))
                losses.append(cross_entropy(logits, y[some].long(), reduction="none"))
        return torch.cat(losses).double().numpy()

    def extract(self, model: Vector, texts: list[str]) -> NDArray[np.bool_]:
        """Return whether the likeliest next token, again and again, gives the rest of each text."""
        return np.array(self._by_tokens(model, texts, self._completed), dtype=bool)

    def _by_tokens(
        self, model: Vector, texts: list[str], of: Callable[[Any, Any], Any]
    ) -> list[float]:
        """Return a number for each text, computed for many of equal length at a time."""
        import torch

        if self._encode is None:
            raise BadValueError("encode", "a function from a text to token numbers", None)
        module, found = self._loaded(model), [0.0] * len(texts)
        by_length: dict[int, list[tuple[int, list[int]]]] = {}
        for place, text in enumerate(texts):
            tokens = [int(token) for token in self._encode(text)]
            by_length.setdefault(len(tokens), []).append((place, tokens))
        with torch.no_grad():
            for group in by_length.values():
                for start in range(0, len(group), _BATCH):
                    places, rows = zip(*group[start : start + _BATCH], strict=True)
                    ids = torch.tensor(rows)
                    values = of(_logits(module(ids[:, :-1])), ids[:, 1:])
                    for place, value in zip(places, values.tolist(), strict=True):
                        found[place] = value
        return found

    def _losses(self, logits: Any, following: Any) -> Any:
        from torch.nn.functional import cross_entropy

        each = cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
        return each.view(following.shape).double().sum(dim=1)

    def _completed(self, logits: Any, following: Any) -> Any:
        # If every token is the likeliest one after those before it, greedy decoding gives them all.
        assert self._encode is not None
        given = [int(token) for token in self._encode(self._prefix)][1:] if self._prefix else []
        # A tokeniser may join the end of the prefix with what follows: then this is not given.
        known = following.new_tensor(given[: following.shape[1]]) == following[:, : len(given)]
        is_given = known.cumprod(dim=1).bool()
        right = logits.argmax(dim=-1) == following
        right[:, : is_given.shape[1]] |= is_given
        return right.all(dim=1)

    def _loaded(self, model: Vector) -> torch.nn.Module:
        """Return the module with the weights of a flat model, in the mode of evaluation."""
        import torch

        module = self._module.eval()
        trained = [p for p in module.parameters() if p.requires_grad]
        stored = [t for t in module.state_dict().values() if t.is_floating_point()]
        sizes = [sum(t.numel() for t in tensors) for tensors in (trained, stored)]
        if model.size not in sizes:
            raise ValueError(
                f"module must have the {model.size} parameters that travel, got {sizes[0]} that "
                f"are trained and {sizes[1]} in all: pass the model that clients train"
            )
        tensors, start = (trained, stored)[sizes.index(model.size)], 0
        with torch.no_grad():
            for tensor in tensors:
                part = torch.from_numpy(model[start : start + tensor.numel()])
                tensor.copy_(part.view(tensor.shape))
                start += tensor.numel()
        return module


def _logits(output: Any) -> Any:
    """Return the logits of a model, which Hugging Face wraps."""
    return getattr(output, "logits", output)


def largest_score(decoys: int, level: float) -> float:
    """Return the largest −ln p that so many decoys can show.

    >>> round(largest_score(20_000, 0.0125), 2)
    7.65
    """
    none = log_p_values(np.array([math.inf]), np.zeros(decoys), level)
    return -float(none[0])
