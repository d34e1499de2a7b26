"""Audits a Flower app as it is: no file of it changes."""
