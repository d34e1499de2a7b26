"""Bounds that hold at all rounds together: how often they fail, and how soon they refute."""
