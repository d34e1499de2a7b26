"""The data sets as plain arrays, and how their records are shared out to clients."""
