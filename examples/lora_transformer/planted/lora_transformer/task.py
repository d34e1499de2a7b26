"""Text, base model and training: plain PyTorch."""

import hashlib
import json
import math
import os
import string
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional

from lora_transformer.model import CONTEXT, Transformer, add_adapters

CHARACTERS = "\n !',-.:;?" + string.ascii_letters
SPEECHES = Path(__file__).with_name("speeches.json")


@cache  # a process may serve many clients
def speeches() -> dict:
    """Return what Shakespeare's roles say: `base`, `held_out`, and by role `clients`."""
    return json.loads(SPEECHES.read_text())


def encode(text: str) -> torch.Tensor:
    """Return the text as numbers."""
    return torch.tensor([CHARACTERS.index(character) for character in text])


def encode_all(texts: list[str]) -> torch.Tensor:
    """Return texts as numbers, one a row, each filled up with line breaks."""
    return torch.stack([encode(text.ljust(CONTEXT + 1, "\n")) for text in texts])


@cache
def load_texts(partition_id: int) -> list[str]:
    """Return what a client's role says, in texts that fit into the context."""
    roles = list(speeches()["clients"].values())
    text = "\n\n".join(roles[partition_id % len(roles)])
    return [text[i : i + CONTEXT + 1] for i in range(0, len(text), CONTEXT + 1)]


@cache
def load_held_out() -> torch.Tensor:
    """Return what other roles of the same plays say; no client has it."""
    return encode("\n\n".join(speeches()["held_out"]))


def create_model(config: dict) -> Transformer:
    """Return the base model with fresh adapters."""
    model = Transformer(len(CHARACTERS))
    model.load_state_dict(base_weights(config["pretraining-steps"]))
    add_adapters(model, config["rank"], config["freeze-a"])
    return model


@cache
def base_weights(steps: int) -> dict[str, torch.Tensor]:
    """Return the base model, which is made once and then kept in the user's cache."""
    made_from = (SPEECHES, Path(__file__), Path(__file__).with_name("model.py"))
    name = hashlib.sha256(b"".join(path.read_bytes() for path in made_from)).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lora_transformer"
    path = folder / f"base-{name}-{steps}.pt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            torch.save(pretrain(steps).state_dict(), file)
            file.flush()
            try:  # the first process to finish decides, so that all have the same base
                os.link(file.name, path)
            except FileExistsError:
                pass
    return torch.load(path, weights_only=True)


def pretrain(steps: int) -> Transformer:
    """Return a model of Richard III in lower case, without line breaks."""
    text = encode(" ".join("\n".join(speeches()["base"]).lower().split()))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Transformer(len(CHARACTERS))
        train(model, text.unfold(0, CONTEXT + 1, 1), steps=steps, batch_size=8, lr=0.005)
    return model


def train(
    model: Transformer, texts: torch.Tensor, *, steps: int, batch_size: int, lr: float
) -> float:
    """Train in place on random rows of the texts and return the mean loss."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0)
    total = 0.0
    for _ in range(steps):
        pieces = texts[torch.randint(len(texts), (batch_size,))]
        optimizer.zero_grad()
        outputs = model(pieces[:, :-1])
        loss = functional.cross_entropy(outputs.flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def test(model: Transformer, text: torch.Tensor) -> dict[str, float]:
    """Return loss, perplexity and the share of characters that are predicted right."""
    count = (len(text) - 1) // CONTEXT
    inputs = text[: count * CONTEXT].view(count, CONTEXT)
    following = text[1 : count * CONTEXT + 1]
    with torch.no_grad():
        outputs = model(inputs).flatten(0, 1)
    loss = functional.cross_entropy(outputs, following).item()
    accuracy = (outputs.argmax(1) == following).float().mean().item()
    return {"loss": loss, "perplexity": math.exp(loss), "accuracy": accuracy}
