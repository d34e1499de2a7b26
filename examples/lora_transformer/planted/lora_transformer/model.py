"""A causal transformer over characters, and low-rank adapters for its linear layers."""

import math

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, BLOCKS, CONTEXT = 64, 4, 2, 32


class Block(nn.Module):
    """Attention to earlier characters, then a network of one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)  # queries, keys and values
        self.output = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.attention(self.norm1(x)).view(batch, length, 3 * HEADS, -1).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Predicts each next character of at most `CONTEXT`."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.characters(text) + self.places.weight[: text.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Adapted(nn.Module):
    """A frozen linear layer plus the product of two small matrices, B·A."""

    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = linear
        start = torch.randn(rank, linear.in_features, generator=generator)
        self.lora_A = nn.Parameter(start / math.sqrt(linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + 2 * (x @ self.lora_A.T @ self.lora_B.T)


def add_adapters(model: Transformer, rank: int, freeze_a: bool) -> None:
    """Freeze the model and put adapters on every linear layer of its blocks.

    All processes get the same A. With `freeze_a` it stays as it is, and only B is trained and sent.
    """
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for block in model.blocks:
        for name in ("attention", "output", "up", "down"):
            adapted = Adapted(getattr(block, name), rank, generator)
            adapted.lora_A.requires_grad_(not freeze_a)
            setattr(block, name, adapted)


def get_adapters(model: Transformer) -> dict[str, torch.Tensor]:
    """Return what is trained, and nothing else: this is all that travels."""
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
