"""Gaussian sampling of clipped gradients, with noise only where it leaves too little (WF-NA)."""
