"""A figure of the page: a chart with its legend, a caption, and its values in a table."""

from __future__ import annotations

from dataclasses import dataclass

from leakmeter.fl_app.report.draw.chart import Chart
from leakmeter.fl_app.report.markup import Markup, tag
from leakmeter.fl_app.report.wording import exact


@dataclass(frozen=True)
class Figure:
    """A chart and what to say about it."""

    chart: Chart
    caption: str

    def rows(self) -> list[tuple[str, float, float, float | None, float | None]]:
        """Return line, place, value and band of every point."""
        return [
            (
                one.label,
                place,
                value,
                one.low[i] if one.low is not None else None,
                one.high[i] if one.high is not None else None,
            )
            for one in self.chart.series
            for i, place, value in one.points()
        ]

    def html(self) -> Markup:
        """Return the figure."""
        return tag(
            "figure",
            tag("h3", self.chart.title),
            self.chart.svg(),
            self.chart.legend(),
            tag("figcaption", self.caption),
            tag("details", tag("summary", "Values"), self._values()),
        )

    def _values(self) -> Markup:
        heads = ("line", self.chart.x.label, self.chart.y.label, "band from", "to")
        has_band = any(one.low is not None for one in self.chart.series)
        shown = heads if has_band else heads[:3]
        body = [
            tag(
                "tr",
                tag("th", line, scope="row"),
                *(tag("td", "" if v is None else exact(v)) for v in rest[: len(shown) - 1]),
            )
            for line, *rest in self.rows()
        ]
        table = tag(
            "table",
            tag("caption", f"Values of: {self.chart.title}"),
            tag("thead", tag("tr", *(tag("th", head, scope="col") for head in shown))),
            tag("tbody", *body),
        )
        return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="Values")
