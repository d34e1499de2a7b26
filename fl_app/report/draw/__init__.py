"""The figures as SVG: `scale.py` and `chart.py` draw, the other modules choose what to draw.

`figures.py` lists all charts of a page; `forest.py` puts all ε of a run on one axis.
"""
