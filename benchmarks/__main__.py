"""Run benchmarks, print a table of ratios, keep the rows as JSON and the ratios as a plot."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

from distlog import RetentionWarning

NAMES = (
    "index",
    "points",
    "keys",
    "routing",
    "codec",
    "topics",
    "writer",
    "consume",
    "log",
    "compaction",
    "maintenance",
    "kafka_directory",
    "gateway",
    "gateway_beside_kafka",
    "gateway_requests",
    "idempotent_producers",
    "gateway_attacks",
    "requests",
    "bundles",
    "partitions",
    "micro_batches",
    "spark",
    "streaming",
    "stream_begins",
    "spark_peers",
    "file_appends",
)
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "pyarrow", "numba", "pyspark", "aiokafka", "kafka-python", "confluent-kafka")


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark {unknown[0]}; there are {', '.join(NAMES)}")
    # the records of some are years old, and nothing deletes them
    warnings.simplefilter("ignore", RetentionWarning)
    rows = [row for name in arguments.names or NAMES for row in measured(name)]
    report = {"machine": machine(), "rows": rows}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(report, indent=1))
    print(json.dumps(report) if arguments.json else text(report))
    plot(rows, RESULTS / "latest.png")
    return 0


def measured(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark."""
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = importlib.import_module(f"benchmarks.{name}").run()
    return rows


def machine() -> dict[str, str]:
    """The machine of the measurement, and the versions of its software."""
    versions = {name: version(name) for name in PACKAGES}
    return {"cores": str(os.cpu_count()), "cpu": platform.machine(), "python": platform.python_version(), **versions}


def text(report: dict[str, Any]) -> str:
    """The rows as a table for people; a ratio above 1 means that distlog is the better of the two."""
    head = ("benchmark", "case", "distlog", "peer", "unit", "ratio", "beside")
    keys = ("benchmark", "case", "distlog", "peer", "unit", "ratio", "peer_name")
    lines = [head, *(tuple(_shown(row[key]) for key in keys) for row in report["rows"])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    ]
    machine = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    stated = [f"- {row['benchmark']}, {row['case']}: {row['stated']}" for row in report["rows"] if "stated" in row]
    if stated:
        stated = ["", "Stated, not measured in this run:", *dict.fromkeys(stated)]
    return "\n".join([*shown, "", f"Measured with {machine}.", *stated])


def _shown(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """The ratios as bars, on a log scale around 1."""
    try:
        from matplotlib import pyplot, ticker
    except ImportError:
        print("no plot: pip install matplotlib", file=sys.stderr)
        return
    labels = [f"{row['benchmark']}: {row['case']}, next to {row['peer_name']}" for row in rows][::-1]
    ratios = [max(float(row["ratio"]), 0.01) for row in rows][::-1]
    figure, axes = pyplot.subplots(figsize=(11, 1 + 0.28 * len(rows)), layout="constrained")
    axes.barh(labels, [ratio - 1 for ratio in ratios], left=1, color=["#2a7" if r >= 1 else "#c64" for r in ratios])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times its peer (log scale; right of 1 is better)")
    axes.tick_params(labelsize=7)
    figure.savefig(path, dpi=120)
    print(f"plot: {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
