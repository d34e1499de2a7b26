"""The client's half of noise: clipping, noise on updates or for single records, and the mods."""
