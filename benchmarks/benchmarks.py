"""This folder under its name, for a script that is run by its path.

Python then looks for modules in the script's folder first, not in the one above, and after that
among the installed ones, where Opacus leaves a package of the same name.
"""

from pathlib import Path

__path__ = [str(Path(__file__).parent)]
