"""How canaries are drawn: what a kind of them must say, the sphere, random signs, and blocks."""
