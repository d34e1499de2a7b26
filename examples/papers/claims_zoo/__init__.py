"""Privacy claims and what audits show of them: twelve broken mechanisms and six right ones.

- `table`: the experiment `claims-zoo`.
- `broken`: mechanisms after public reports, with what they claim and what they deliver.
- `right`: mechanisms that keep what they claim.
- `noise`: the client mod and the server strategy that the broken ones are made of.
- `audit`: one audited run of a mechanism, with the auditors and the hook of every other project.

What Gaussian noise delivers is exact: Balle and Wang (2018), arXiv:1805.06530, Theorem 8.
"""
