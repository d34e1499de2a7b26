"""The likelihood-ratio audit of a secure sum, and the span condition.

The audit of a run is in `auditor`, one game in `game`, the model of the others' sum in
`sum_distribution`, the audit of all rounds together in `transcript`.
What users call without a run is the span condition: does a difference of two updates leave the span
of what the others add?
"""
