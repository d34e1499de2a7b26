"""One script a question, beside what one would use instead; `python -m benchmarks` runs all."""

import os

# Read when numpy and torch are imported, which nothing has done yet; a user's own settings stay.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
