"""The page itself: `page` puts the sections together, the other modules write one each."""
