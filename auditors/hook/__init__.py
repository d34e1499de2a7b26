"""Where audits meet Flower: a strategy around yours, and mods for the client app.

Read `wrapper` (what a strategy may know), `audited`, `run_audit` (the events of a run),
`open_round` (one round) and `panel` (the auditors), then `wire` (what travels), `canary_order`,
`mods`, `layout` and `guest_noise`. `grid` is for loops that no strategy shows, and `legacy` for
strategies of `flwr.server`.
"""
