"""One run from its first check to its report: read `launch`, then `run`.

Also here: `early` and `budget` (checks), `folder` (with its checkpoint), `progress`, `rehearsal`
(the same run without auditors, beforehand) and `replay` (recorded rounds are audited again).
"""
