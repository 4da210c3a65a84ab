"""Draw the chart of docs/benchmarks.md from what `strata bench --json` printed, and print its table.

    python docs/benchmarks_chart.py docs/benchmarks.json docs/benchmarks.svg

One bar a workload: how much better than its target (1 is the target, longer is better), on a logarithmic scale. Only
the standard library is used, and nothing but the JSON is read.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

LEFT, BAR, ROW, TOP, WIDTH = 210, 300, 26, 46, 760
LEAST, MOST = 0.25, 4.0  # the scale's ends; longer bars are cut there
MET, MISSED = "#2f7d4f", "#b5482f"


def share_of(result: Mapping[str, Any]) -> float:
    """The ratio as a multiple of its target, above 1 where it is better."""
    ratio, target = float(result["ratio"]), float(result["target"])
    return ratio / target if result["better"] == "higher" else target / ratio


def place(share: float) -> float:
    """Where on the axis, in pixels from its left end."""
    inside = min(MOST, max(LEAST, share))
    return BAR * (math.log(inside) - math.log(LEAST)) / (math.log(MOST) - math.log(LEAST))


def bars(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The bars, each from the target's line."""
    lines, middle = [], place(1.0)
    for number, result in enumerate(results):
        y, end = TOP + number * ROW, place(share_of(result))
        x, wide = LEFT + min(middle, end), max(1.5, abs(end - middle))
        sign = "≥" if result["better"] == "higher" else "≤"
        spread = "" if result.get("spread") is None else f", spread {float(result['spread']):.0%}"
        told = f"{float(result['ratio']):.4g} (target {sign} {float(result['target']):g}{spread})"
        lines += [
            f'<text x="8" y="{y + 14}" font-weight="bold">{escape(result["id"])}</text>',
            f'<text x="48" y="{y + 14}">{escape(short(result["what"]))}</text>',
            f'<rect x="{x:.1f}" y="{y + 3}" width="{wide:.1f}" height="15" fill="{MET if result["met"] else MISSED}"/>',
            f'<text x="{LEFT + BAR + 10}" y="{y + 14}">{escape(told)}</text>',
        ]
    return lines


def short(what: str, most: int = 26) -> str:
    return what if len(what) <= most else what[: most - 1] + "…"


def chart(data: Mapping[str, Any]) -> str:
    """The SVG."""
    results = [result for result in data["results"] if result["ratio"] and result["target"]]
    height, middle = TOP + len(results) * ROW + 14, LEFT + place(1.0)
    machine = data["machine"]
    title = f"{machine['cpu']}, {machine['cores']} cores, token counts x {machine['scale']:g}, load {machine['load']}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="8" y="16">{escape(title)}</text>',
            f'<text x="{middle:.1f}" y="36" text-anchor="middle">target; better to the right</text>',
            f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="40" y2="{height - 8}" stroke="#444444"/>',
            *bars(results),
            "</svg>",
            "",
        ]
    )


def rows(data: Mapping[str, Any]) -> list[str]:
    """The table of docs/benchmarks.md, in Markdown."""
    lines = ["| | ratio | target | | spread | tokens | load | beside it |", "|---|---|---|---|---|---|---|---|"]
    for result in data["results"]:
        if result["ratio"] is None:
            lines.append(f"| {result['id']} | skipped: {result['skipped']} | | | | | | |")
            continue
        sign = "≥" if result["better"] == "higher" else "≤"
        target = "" if result["target"] is None else f"{sign} {float(result['target']):g}"
        met = {True: "met", False: "**missed**", None: ""}[result["met"]]
        beside = ", ".join(f"{name} {float(value):.4g}" for name, value in result["controls"].items())
        spread = "" if result["spread"] is None else f"{float(result['spread']):.0%}"
        cells = [result["id"], f"**{float(result['ratio']):.4g}**", target, met, spread, f"{result['tokens']:,}"]
        lines.append("| " + " | ".join([*cells, f"{result['load']}", beside]) + " |")
    return lines


def main(source: str, target: str) -> None:
    """Read the envelope, write the picture, print the table."""
    data = json.loads(Path(source).read_text())["data"]
    Path(target).write_text(chart(data), encoding="utf-8")
    print("\n".join(rows(data)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
