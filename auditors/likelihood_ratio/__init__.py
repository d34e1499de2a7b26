"""The likelihood-ratio audit of a secure sum, and the span condition.

The audit of a run is in `auditor`, one game in `game`, the model of the others' sum in
`sum_distribution`, the audit of all rounds together in `transcript`.
What users call without a run is the span condition (does a difference of two updates leave the span
of what the others add?) and the game of a sum with integer noise, `IntegerSum`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakmeter._rooms import front_page

if TYPE_CHECKING:
    from leakmeter.auditors.likelihood_ratio.integer_sum import IntegerSum as IntegerSum
    from leakmeter.auditors.likelihood_ratio.span import Span as Span
    from leakmeter.auditors.likelihood_ratio.span import SpanTracker as SpanTracker
    from leakmeter.auditors.likelihood_ratio.span import outside_span as outside_span
    from leakmeter.auditors.noise import IntegerNoise as IntegerNoise
else:
    __all__, __getattr__ = front_page(__spec__)
