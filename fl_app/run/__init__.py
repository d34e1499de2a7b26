"""One run from its first check to its report: read `launch`, then `run`.

Also here: `preflight`, `nodes` and `budget` (checks), `folder`, `checkpoint` and `progress`.
"""
