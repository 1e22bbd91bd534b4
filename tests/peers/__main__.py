"""Kafka clients against the gateway and a broker: python -m peers [--only go,java] [--storage s3] [--broker]"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import kafka_broker

from peers import programs, servers
from peers.programs import PROGRAMS, MissingError, Program
from peers.results import Result, expected_failures, parsed, summary, table, wrong
from peers.servers import Begin, Servers

#: How long a program may take for all of its stories.
PATIENCE_SECONDS = 1500


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen programs at the chosen servers, and print a table; 1 if something is wrong."""
    options = _parser().parse_args(arguments)
    cache, logs = Path(options.cache).resolve(), Path(options.logs).resolve()
    only = options.only.split(",") if options.only else []
    selected = [program for program in PROGRAMS if not only or program.language in only or program.name in only]
    if not selected:
        print(f"unknown program or language: {options.only}", file=sys.stderr)
        return 2
    commands, skipped = _prepared(selected, cache)
    results: list[Result] = []
    for name, begin in _servers(options.storage, options.broker, cache).items():
        results += [Result(program, "the-program", name, "skipped", reason) for program, reason in skipped.items()]
        results += _run_on(name, begin, commands, logs / name, options.story)
    expected = expected_failures(Path(__file__).parent / "expected_failures.toml")
    names = list(dict.fromkeys(program.server for program in results))
    print(table(results, expected, names), "", summary(results, _versions()), "", sep="\n")
    faults = wrong(results, expected)
    print(*faults, sep="\n")
    print(f"{len(results)} results, {len(faults)} wrong; logs are in {logs}")
    return 1 if faults or not results else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m peers")
    parser.add_argument("--only", default="", help="languages or programs, with commas between them")
    parser.add_argument("--story", action="append", default=[], help="only this story of each program")
    parser.add_argument("--storage", default="local", help="local, s3, or both as local,s3; none: no gateway")
    parser.add_argument("--broker", action="store_true", help="a broker of Kafka, too")
    parser.add_argument("--cache", default=".venv/cache/peers", help="where all that is fetched and built goes")
    parser.add_argument("--logs", default=".venv/cache/peers/logs", help="where programs and servers write")
    return parser


def _versions() -> dict[str, str]:
    return {program.name: program.version for program in PROGRAMS}


def _prepared(selected: Sequence[Program], cache: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The commands of programs, and why others have none."""
    cache.mkdir(parents=True, exist_ok=True)
    commands, skipped = {}, {}
    for program in selected:
        print(f"{program.name} {program.version}: fetched and built", file=sys.stderr)
        try:
            commands[program.name] = program.command(cache)
        except MissingError as error:
            skipped[program.name] = str(error)
    return commands, skipped


def _servers(storage: str, broker: bool, cache: Path) -> dict[str, Begin]:
    kinds = storage.split(",")
    begins: dict[str, Begin] = {}
    if "local" in kinds:
        begins["gateway"] = servers.on_disk
    if "s3" in kinds:
        begins["gateway-s3"] = servers.on_moto
        if servers.has_versitygw():
            begins["gateway-versitygw"] = servers.on_versitygw
    if broker:
        kafka_broker.JARS = str(programs.jars(cache, programs.KAFKA))
        begins["broker"] = servers.kafka
    return begins


def _run_on(
    server: str, begin: Begin, commands: dict[str, list[str]], logs: Path, stories: list[str]
) -> list[Result]:
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="distlog-peers-"))
        stack.callback(lambda: [shutil.copy(result, logs) for result in Path(folder).glob("*.log")])
        address = stack.enter_context(begin(Path(folder)))
        return [
            result
            for name, command in commands.items()
            for result in _results_of(name, server, command, address, logs, stories)
        ]


def _results_of(
    program: str, server: str, command: list[str], server_addresses: Servers, logs: Path, stories: list[str]
) -> list[Result]:
    print(f"{program} at {server}", file=sys.stderr)
    output, errors = logs / f"{program}.out", logs / f"{program}.err"
    with output.open("wb") as out, errors.open("wb") as err:
        try:
            run = subprocess.run(
                [*command, server_addresses.address, server_addresses.secured, program.replace(".", "-"), *stories],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
            end = f"ended with {run.returncode}: {errors.read_text(encoding='utf-8', errors='replace')[-300:]}"
        except subprocess.TimeoutExpired:
            end = f"did not end within {PATIENCE_SECONDS} seconds"
    lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    return parsed(program, server, lines, end)


if __name__ == "__main__":
    raise SystemExit(main())
