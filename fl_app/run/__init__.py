"""One run from its first check to its report: read `launch`, then `run`.

Beside them `preflight`, `nodes` and `budget` (checks), `folder`, `checkpoint` and `progress`.
"""
