"""The page itself: `page.py` puts the sections together, the other modules write one each."""
