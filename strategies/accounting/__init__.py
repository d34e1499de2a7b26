"""What noise guarantees: `accountant` prices releases to clients, `rdp` those to single records.

Then `dp_sgd` (what Opacus did inside clients), `assurance` (a run's charges, one guarantee per
observer) and `ledger` (several runs).
"""
