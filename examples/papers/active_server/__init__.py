"""A malicious server against the real client mods: the reference attacks, and what they read.

- `attacks`: the attacks, a row each in `ATTACKS`, `REMAINING` or `TRAP_…`.
- `server`: plays rounds of `Masked` over a wire that an attack controls.
- `federation`: the clients; `perceptron`: what they train.
- `table`: the experiment, which counts over many rounds.

A new attack is a row: how it bends the messages of the protocol, and how it ends a round.
Measurement, table and tests follow.
"""
