"""Twenty clients fine-tune a small transformer with low-rank adapters."""
