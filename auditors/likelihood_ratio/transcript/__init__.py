"""One likelihood ratio over all rounds in which a client takes part."""
