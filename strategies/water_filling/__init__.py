"""Noise that clients fill in themselves: `filled` (the wrapper), `guarantee` (in words), `rdp`."""
