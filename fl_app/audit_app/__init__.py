"""Audits a Flower app as it is: no file of it changes.

`project` reads the app's folder, `session` runs it in this process with our mods, `through_flower`
runs a copy by `flwr run`, and `check` compares it with a run without the audit.
"""
