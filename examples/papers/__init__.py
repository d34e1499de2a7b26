"""Published tables and figures, run again: one folder per paper, and `textbook.py`.

`registry.py` lists every experiment, `base.py` is what they share (cells that are computed once,
tables), `results_page.py` writes docs/RESULTS.md from the results kept in docs/results.
"""
