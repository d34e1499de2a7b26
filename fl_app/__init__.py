"""Puts a run together: settings, data, models, the two apps, engines, run folder, report."""

from leakmeter._rooms import alias

alias(__name__)
