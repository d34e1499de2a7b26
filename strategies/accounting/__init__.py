"""What noise guarantees: `accountant` prices releases to clients, `rdp` those to single records.

Then `assurance` (a run's charges, one guarantee per observer) and `ledger` (several runs).
"""
