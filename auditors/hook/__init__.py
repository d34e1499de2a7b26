"""Where audits meet Flower: a strategy around yours, and mods for the client app.

Read `wrapper` (what a strategy may know), `chain` (ask them all), `audited`, `open_round` (one
round) and `panel` (the auditors), then `wire` (what travels), `mods`, `layout` and `round_log`.
`legacy` is the same for strategies of `flwr.server`.
"""
