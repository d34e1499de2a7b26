"""Secure aggregation on a client: `mask_mod` answers the server, `participant` takes the steps.

Below them `keys` and `sharing` (cryptography), `signing` (where the server may do anything),
`quantise` (an update as masked integers) and `wire` (the records that travel).
"""
