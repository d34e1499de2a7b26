"""Training of critics: the ascent is that of torch's own optimisers."""

from __future__ import annotations

import torch

from leakmeter.auditors.information.neural import Adam


def test_adam_takes_the_steps_of_torchs() -> None:
    ours = torch.linspace(-1, 1, 12).view(3, 4)
    theirs = ours.clone().requires_grad_()
    adam, twin = Adam(ours, 1e-2), torch.optim.Adam([theirs], lr=1e-2, maximize=True)
    for _ in range(4):
        (theirs.sin() * theirs).sum().backward()
        assert theirs.grad is not None
        adam.step(theirs.grad)
        twin.step()
        twin.zero_grad()
    assert torch.equal(ours, theirs)
