"""Clipping and Gaussian noise on whole updates."""
