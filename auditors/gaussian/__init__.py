"""Exact privacy of two Gaussians: epsilon, delta, trade-off, noise; needs scipy only."""
