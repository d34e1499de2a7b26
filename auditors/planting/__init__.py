"""Canaries in the data: records and texts that some clients train on, searched for in models.

What a canary is, who holds which, and whether it is planted, is in `plan`; what models say of
canaries and decoys, in `scores`. The audit of a run is `PlantedRecords` in
`planted_records`. How records reach a client app is in hook/mods.py.
"""
