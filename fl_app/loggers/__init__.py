"""Callbacks of `Audited` that send a run to the tools that teams already have open.

Public through `leakmeter.loggers`. Each logger imports its tool when it is made.
"""
