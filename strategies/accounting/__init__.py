"""What noise guarantees a client: `accountant` prices releases, `spending` notes those of a run.

Then `assurance` (one guarantee per observer) and `ledger` (several runs on the same data).
"""
