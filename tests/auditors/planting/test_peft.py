"""Adapters of Hugging Face models: their state travels, and planted texts are scored under it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

from leakmeter.auditors import PlantedRecords, PlantPlan, Secrets, TorchScores
from leakmeter.auditors.hook.layout import Layout
from leakmeter.auditors.rng import stream

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

pytestmark = pytest.mark.slow


def adapted() -> torch.nn.Module:
    """Return a tiny GPT-2 with adapters, made on the spot."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 2}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **off, **ends)
    layers = ["c_attn", "c_fc", "c_proj"]
    lora = peft.LoraConfig(r=16, target_modules=layers, fan_in_fan_out=True)
    model: torch.nn.Module = peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)
    return model


def encode(text: str) -> list[int]:
    """Return the bytes of a text."""
    return list(text.encode())


def test_planted_texts_are_found_in_the_state_dict_of_adapters() -> None:
    model, plan = adapted(), PlantPlan(canaries=40, clients=4, copies=1)
    secrets = Secrets("id {digits:6}")
    state = peft.get_peft_model_state_dict(model)
    layout = Layout.of(ArrayRecord(state))
    scores = TorchScores(adapted(), encode, prefix=secrets.prefix)
    auditor = PlantedRecords(secrets, scores, plan, decoys=300, extract=scores.extract)
    auditor.begin(layout.dim, 1)
    auditor._first = auditor._last = auditor._losses(layout.flatten(ArrayRecord(state)))
    texts = secrets.draw(0, [n for c in range(4) for n in plan.planted(c)])
    rows = torch.tensor([encode(str(text)) for text in texts])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    rng = stream(0, "batches")
    for _ in range(1000):
        batch = rows[torch.from_numpy(rng.integers(len(rows), size=20))]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    trained = layout.flatten(ArrayRecord(peft.get_peft_model_state_dict(model)))
    # The order in which adapters travel is that in which a model has them.
    own = np.concatenate(
        [p.detach().numpy().ravel() for p in model.parameters() if p.requires_grad]
    )
    assert np.allclose(trained, own)
    auditor._model, auditor._rounds = trained, 1
    bound, *_ = auditor.report()
    assert bound.value > 1
