"""The command line: `main` has parser and completion, `run` starts a run or a sweep.

`runs` has the commands about runs that are there, `audit` those about somebody else's app, and
`commands` the small ones.
"""
