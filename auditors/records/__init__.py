"""Audits of single records: membership by losses, and which of two records a client held.

The audits of a run are `Membership` in `membership` and `RecordLikelihoodRatio` in `game`; what
they compute can be had without a run, too. `own_models` is for a client that audits itself.
"""
