"""Many clients trained at once: `cohort` plans the work, `dense` and `functional` do it.

`batch` is what the two have in common. `dense` is fast and knows stacks of linear layers only.
"""
