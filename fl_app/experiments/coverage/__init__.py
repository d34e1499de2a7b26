"""How often each printed lower bound is above the truth, where the truth is known."""
