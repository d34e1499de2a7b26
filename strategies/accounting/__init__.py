"""What noise guarantees a client: `accountant` prices releases, `spending` lists a run's.

Then `assurance` (one guarantee per observer) and `ledger` (several runs on the same data).
"""
