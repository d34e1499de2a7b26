"""Audits of single records: membership by losses, and which of two records a client held.

The audits of a run are `membership.Membership` and `game.RecordLikelihoodRatio`; what they compute
can be had without a run, too.
"""
