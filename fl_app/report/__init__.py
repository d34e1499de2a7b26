"""The page about a run; `leave_page` in `page` is what a run calls at its end.

Read it in this order: `read` (what a run has left), `judge` (what follows from it), `figure` and
`curves` (the figures), `template`, `details` and `page` (the page). Each imports only from those
before it. On top of them: `summary` (one sheet), `export` (tables for programs) and `live` (the
page of a run in progress). Nothing here needs Flower.
"""

NAME = "report.html"
HOST, PORT = "127.0.0.1", 8765  # where the page of a run in progress is served
