"""Reconstruction of training images from gradients, and its audit on the rounds of a run.

The attack is in `attack`, the audit of a run with its pictures in `inversion`, that of texts in
`tokens`.
"""
