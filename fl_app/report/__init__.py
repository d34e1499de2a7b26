"""The page about a run; `leave_page` in `html/` is what a run calls at its end.

Read it in this order: `read` (what a run has left), `judge/` (what follows from it), `draw/` (the
figures), `html/` (the page). Each imports only from those before it. Nothing here needs Flower.
"""

NAME = "report.html"
