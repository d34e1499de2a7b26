"""What the findings of a run say together: one row per attacker and question, and one headline.

Read it in this order: `claim` (which attackers and questions imply which), `verdict` (rows and
headline as data), `labels` and `sentences` (the same in words), `lines` (for a terminal). `gate`
holds a run to limits, and `result` is what Python code gets.
"""
