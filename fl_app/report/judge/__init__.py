"""What the findings say: `adversary.py` groups them, then `verdict.py`, then `advice.py`."""
