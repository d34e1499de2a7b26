"""The likelihood-ratio audit of a secure sum, and the span condition.

The audit of a run is in `auditor`, one game in `game`, the model of the others' sum in
`sum_distribution`, the audit of all rounds together in `transcript` and its whole runs in
`transcript_runs`, the span condition in `span`. What users call without a run is `outside_span` in
`sum_distribution`: does a difference of two updates leave the span of what the others add?
"""
