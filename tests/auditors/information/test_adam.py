"""Training of critics: the ascent is that of torch's own optimisers."""

from __future__ import annotations

import torch

from leakmeter.auditors.information.critics import Adam


def test_adam_takes_the_steps_of_torchs() -> None:
    ours = [torch.linspace(-1, 1, 12).view(3, 4), torch.linspace(0.5, 2, 4)]
    ours = [weight.requires_grad_() for weight in ours]
    theirs = [weight.detach().clone().requires_grad_() for weight in ours]
    adam = Adam([(ours[0], 1e-2), (ours[1], 1e-3)])
    groups = [{"params": [theirs[0]], "lr": 1e-2}, {"params": [theirs[1]], "lr": 1e-3}]
    twin = torch.optim.Adam(groups, maximize=True)
    for _ in range(4):
        for weights, optimizer in ((ours, adam), (theirs, twin)):
            sum((weight.sin() * weight).sum() for weight in weights).backward()
            optimizer.step()
        twin.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
