"""Noise that clients fill in: `filled` (the wrapper), `guarantee` (in words), `rdp`."""
