"""What findings say: `adversary` groups them, `meaning` and `verdict` put them into words."""
