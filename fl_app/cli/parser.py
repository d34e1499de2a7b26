"""The parser of every command line here."""

from __future__ import annotations

import argparse
from typing import NoReturn

from leakmeter.fl_app.config.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Reports a mistake like any other wrong setting: in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the program."""
        raise ConfigError(f"{message}; --help lists all settings")
