"""The server's half of noise: `noised` orders it and accounts for it.

What a noise is and costs is in `mechanism`, noise for single records in `record_noise`.
"""
