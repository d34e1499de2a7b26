"""The server's half of noise: mechanisms, and the wrappers that order and account for them."""
