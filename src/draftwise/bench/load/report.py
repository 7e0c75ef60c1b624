"""Results of loads as a file of numbers and a page for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from draftwise.bench.charts import canvas
from draftwise.bench.load.drive import Volley
from draftwise.bench.load.numbers import LATENCIES, cautions
from draftwise.bench.page import chart, page, section, table

RESULTS, REPORT = "load.json", "load.html"


def write_results(results: Mapping[str, Any], folder: Path) -> Path:
    """All numbers as one JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RESULTS
    path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    return path


def write_report(results: Mapping[str, Any], volleys: Sequence[Volley], folder: Path) -> Path:
    """The page: numbers of every load, and how latencies are distributed."""
    settings = results["settings"]
    with canvas.style():
        parts = [
            f"<h1>Load on {escape(settings['url'])}</h1>"
            f'<p class="soft">{escape(settings["model"])}, {escape(settings["endpoint"])}, '
            f"{settings['num_prompts']} prompts of {escape(settings['suite'])}, at most "
            f"{settings['tokens']} tokens, temperature {settings['temperature']:g}, "
            f"{'streamed' if settings['stream'] else 'not streamed'}.</p>",
            *(f"<p><strong>{escape(c)}</strong></p>" for c in cautions(results["loads"])),
            section(
                "loads", "Loads", "Each row is one pattern of requests; patterns took turns.",
                _loads(results),
            ),
            *(
                section(
                    key.replace("_", "-"),
                    f"Seconds: {words}",
                    "Share of requests (of gaps, between parts) that took at most so long.",
                    _table(results, key),
                    chart(_curves(volleys, key), f"Cumulative distribution of: {words}"),
                )
                for key, words in LATENCIES.items()
                if any(row.get(key) for row in results["loads"])
            ),
            section(
                "how", "How", "The command, and the machine that sent the requests.",
                f"<pre>{escape(results['command'])}</pre>",
                f"<pre>{escape(json.dumps(results['environment'], indent=1))}</pre>",
            ),
        ]  # fmt: skip
    path = folder / REPORT
    path.write_text(page(f"Load on {settings['url']}", parts), "utf-8")
    return path


def _loads(results: Mapping[str, Any]) -> str:
    heads = ["load", "requests", "errors", "seconds", "requests/s", "tokens", "tokens/s", "MAT"]
    rows = [
        [
            escape(row["load"]),
            str(row["num_requests"]),
            str(row["num_errors"]),
            f"{row['seconds']:.2f}",
            f"{row['requests_per_s']:.2f}",
            str(row["num_tokens"]),
            f"{row['tok_per_s']:.1f}",
            "" if row["mean_acceptance_length"] is None else f"{row['mean_acceptance_length']:.2f}",
        ]
        for row in results["loads"]
    ]
    return table(heads, rows)


def _table(results: Mapping[str, Any], key: str) -> str:
    rows = [
        [escape(row["load"]), *(f"{value:.4f}" for value in row[key].values())]
        for row in results["loads"]
        if row.get(key)
    ]
    heads = list(next(row[key] for row in results["loads"] if row.get(key)))
    return table(["load", *heads], rows)


def _curves(volleys: Sequence[Volley], key: str) -> str:
    figure = canvas.figure(2.6)
    axes = figure.subplots()
    for index, volley in enumerate(volleys):
        values = np.sort(_values(volley, key))
        if len(values):
            share = np.arange(1, len(values) + 1) / len(values)
            shade = canvas.LINES[index % len(canvas.LINES)]
            axes.plot(values, share, color=shade, label=str(volley.load), drawstyle="steps-post")
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share")
    axes.legend(loc="lower right")
    return canvas.to_svg(figure, key)


def _values(volley: Volley, key: str) -> list[float]:
    good = [shot for shot in volley.shots if not shot.error]
    if key == "ttft_s":
        return [shot.first_s for shot in good]
    if key == "itl_s":
        return [gap for shot in good for gap in shot.between_s]
    if key == "e2e_s":
        return [shot.took_s for shot in good]
    return [shot.per_token_s for shot in good if shot.per_token_s is not None]
