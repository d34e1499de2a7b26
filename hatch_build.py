"""Puts the four rooms into the wheel, below the one name that it offers."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOMS = ("auditors", "clients", "strategies", "fl_app")


class Rooms(BuildHookInterface):  # type: ignore[type-arg]
    """Fills a wheel; an editable installation reads the rooms where they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the rooms to the files of the wheel."""
        if version != "editable":
            build_data["force_include"].update({room: f"leakmeter/{room}" for room in ROOMS})
