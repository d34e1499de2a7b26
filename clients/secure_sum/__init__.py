"""Secure aggregation on a client: `mask_mod` answers the server, `participant` takes the steps.

Below them `keys`, `sharing`, `masking` and `graph` (cryptography and who masks with whom),
`signing` and `signing_client` (where the server may do anything), `quantise` (an update as
integers) and `wire` (the records that travel).
"""
