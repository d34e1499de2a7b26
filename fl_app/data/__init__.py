"""The data sets as plain arrays, and the partition of their records among clients."""
