"""Canaries in the data: records and texts that some clients train on, searched for in models.

What a canary is, is in `generators`; who holds which, and whether it is planted, in `plan`; what
models say of canaries and decoys, in `scores`. The audit of a run is `auditor.PlantedRecords`. How
records reach a client app is in `hook.mods`.
"""
