"""Local privacy of one client under a secure sum of independent updates: `curve.ldp_curve`."""
