"""The cost of each large feature, as a table for docs/design/decisions.md: `python -m tools.feature_price
--write`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design" / "decisions.md"
MARKER = "<!-- table: features -->\n"
HEADER = ("feature", "lines of library", "lines of tests", "settings and options", "requests on the main path")
#: Options that every command has.
COMMON = {"url", "storage", "as_json"}


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature: its files, the settings and commands that it adds, and its requests to a store.

    `library` has patterns of paths, `tests` a regular expression of paths in tests/. A file counts for the first
    feature that matches it.
    """

    name: str
    library: tuple[str, ...]
    tests: str
    requests: str
    settings: str = ""
    commands: tuple[str, ...] = ()


FEATURES = (
    Feature(
        "gateway: groups, classic protocol",
        (
            "distlog/gateway/groups/classic_group.py",
            "distlog/gateway/groups/committed_offsets.py",
            "distlog/gateway/groups/coord*.py",
            "distlog/gateway/groups/offsets*.py",
            "distlog/gateway/groups/registry.py",
            "distlog/gateway/apis/groups.py",
        ),
        r"gateway/groups/test_([dfors]|comm|group|un)|gateway/kafka_jars/test_kafka_group",
        "3 a linger for the commits of all groups",
        r"group\.(?!consumer)|offsets\.",
    ),
    Feature(
        "gateway: groups, KIP-848",
        ("distlog/gateway/groups/*.py",),
        r"gateway/groups/test_(a|consumer)",
        "the same; 12 GETs a minute for each topic of a group",
        r"group\.consumer\.",
    ),
    Feature(
        "gateway: transactions",
        (
            "distlog/gateway/transactions/*.py",
            "distlog/gateway/apis/transactions.py",
            "distlog/core/kafka/transactions.py",
            "distlog/core/segments/producer_states.py",
        ),
        r"gateway/transactions/|gateway/kafka_jars/test_kafka_transaction",
        "six commits or more a transaction",
        r"transaction",
        ("transactions",),
    ),
    Feature(
        "gateway: TLS, users, ACLs, quotas",
        (
            "distlog/gateway/security/*.py",
            "distlog/gateway/root_records.py",
            "distlog/gateway/apis/security.py",
            "distlog/gateway/server/fairness.py",
        ),
        r"gateway/(security/|apis/test_rights|server/test_quotas)",
        "a GET each five seconds for each of three topics",
        r"authoriz|authenti|super\.users|ssl\.|sasl\.|allow\.everyone",
        ("users",),
    ),
    Feature(
        "gateway: protocol, records, topics, several gateways",
        ("distlog/gateway/**/*.py",),
        r"gateway/",
        "3 a linger and topic; 4.3 a second for the lease",
        r"broker\.|connection|max\.connections|node\.id|num\.|queued|socket|fetch\.max|auto\.create",
        ("serve",),
    ),
    Feature(
        "consumer groups without a gateway",
        ("distlog/core/read/consume*.py", "distlog/core/read/consumer_group.py"),
        r"(groups|following)/",
        "a PUT and a LIST a commit; 4 a minute for an idle member",
        commands=("groups",),
    ),
    Feature(
        "tiered storage",
        ("distlog/core/tiered/*.py",),
        r"tiered/|spark/test_spark_tiered",
        "a GET a segment to open; a GET a range",
        r"tiered",
    ),
    Feature(
        "tables in Parquet, Delta, Iceberg",
        ("distlog/spark/tables.py", "distlog/jobs/to_table.py"),
        r"spark/test_(lake|to_table)",
        "a read of the new records",
    ),
    Feature(
        "values with schemas",
        ("distlog/core/schemas/*.py", "distlog/spark/values.py"),
        r"values/|spark/test_decoded",
        "one a schema, then cached",
    ),
    Feature(
        "file append",
        (
            "distlog/core/files/*.py",
            "distlog/spark/appends.py",
            "distlog/jobs/append.py",
        ),
        r"files/|spark/test_file_appends",
        "an append: a PUT a task, a GET, a PUT",
        commands=("append",),
    ),
    Feature(
        "restore",
        ("distlog/core/maintain/restore.py",),
        r"maintenance/test_restore",
        "a HEAD for each file, and a commit",
        commands=("restore",),
    ),
    Feature(
        "compaction and merging",
        (
            "distlog/core/maintain/compaction.py",
            "distlog/core/maintain/group_rewrite.py",
            "distlog/core/maintain/merge*.py",
            "distlog/core/maintain/survivors.py",
            "distlog/jobs/maintenance.py",
        ),
        r"maintenance/test_(batch_join|c[lo]|key|merge|offset_map|rewrite|t|un)|spark/test_spark_(compaction|merging)",
        "each segment that is rewritten, and a commit",
        r"cleaner|cleanup|cleanable|compaction|delete\.retention",
        ("compact",),
    ),
    Feature(
        "import and export of log directories",
        (
            "distlog/core/kafka/adopt*.py",
            "distlog/core/kafka/export.py",
            "distlog/core/kafka/log_dir.py",
            "distlog/core/kafka/partition_folder.py",
        ),
        r"kafka_directory/|spark/test_spark_adopted",
        "each file once, and a commit a topic",
        commands=("adopt", "export"),
    ),
    Feature(
        "Spark source, sink and functions",
        (
            "distlog/spark/*_source.py",
            "distlog/spark/sink.py",
            "distlog/spark/stream_plan.py",
            "distlog/spark/frames.py",
            "distlog/spark/options.py",
            "distlog/spark/spark_session.py",
            "distlog/spark/tables.py",
            "distlog/spark/executor.py",
            "distlog/spark/versions.py",
        ),
        r"spark/test_([fkmpr]|s[pti])",
        "7 a micro-batch from topic to topic",
        r"^spark:",
    ),
    Feature(
        "reads by key",
        (
            "distlog/core/format/key_index.py",
            "distlog/core/format/kernels/key_entries.py",
            "distlog/core/read/keys.py",
            "distlog/core/read/last_records.py",
        ),
        r"reading/test_keys|indexes/test_key_index",
        "a GET a segment, and one a batch that has the key",
        r"key\.index\.",
    ),
    Feature(
        "datasets and SQL",
        (
            "distlog/core/read/conditions.py",
            "distlog/core/read/dataset.py",
            "distlog/core/sql.py",
        ),
        r"reading/test_dataset|topics/test_sql",
        "as a scan of the records within the filter",
        "",
        ("sql",),
    ),
    Feature(
        "dump",
        ("distlog/core/kafka/dump*.py",),
        r"dump/",
        "each file once",
        commands=("dump",),
    ),
)


def lines_of(paths: Iterable[Path]) -> int:
    """The lines of all files."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def files_of(feature: Feature, counted: set[Path]) -> tuple[list[Path], list[Path]]:
    """The files of the library and of tests that are not counted yet; ValueError if a pattern matches none."""
    library, tests = list[Path](), list[Path]()
    for pattern in feature.library:
        library += (matches := sorted(ROOT.glob(pattern)))
        if not matches:
            raise ValueError(f"no file matches {pattern}")
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if re.match(feature.tests, path.relative_to(ROOT / "tests").as_posix()):
            tests.append(path)
    if not tests:
        raise ValueError(f"no test matches {feature.tests}")
    uncounted = [sorted({*paths} - counted) for paths in (library, tests)]
    counted.update(*uncounted)
    return uncounted[0], uncounted[1]


def setting_names() -> set[str]:
    """All settings of topics, of the log manager and of gateways, and the options of Spark's source and sink."""
    from distlog.core.config import settings
    from distlog.core.log_manager.broker_config import BrokerConfig, settings_of
    from distlog.gateway.config import GatewayConfig, gateway_settings
    from distlog.spark.options import READ_NAMES, STREAM_NAMES
    from distlog.spark.sink import WRITE_NAMES

    brokers = {setting.name for setting in settings_of(BrokerConfig).values()}
    gateways = {setting.name for setting in gateway_settings(GatewayConfig())}
    options = {f"spark:{name}" for name in {*READ_NAMES, *STREAM_NAMES, *WRITE_NAMES} - {"path"}}
    return {setting.name for setting in settings()} | brokers | gateways | options


def options_of(command: str) -> int:
    """The options of a command that not all commands have."""
    from distlog.cli.app import command as uncounted

    return sum(option.name not in COMMON for option in uncounted(command).params)


def rows() -> Iterator[tuple[str, ...]]:
    """The rows of the table, then one for all files."""
    names, counted = setting_names(), set[Path]()
    for feature in FEATURES:
        library, tests = map(lines_of, files_of(feature, counted))
        settings = sum(bool(re.search(feature.settings, name)) for name in names) if feature.settings else 0
        options = settings + sum(map(options_of, feature.commands))
        yield feature.name, hundreds(library), hundreds(tests), str(options), feature.requests
    total = (hundreds(lines_of((ROOT / folder).rglob("*.py"))) for folder in ("distlog", "tests"))
    yield "all of distlog", *total, "", ""


def hundreds(lines: int) -> str:
    """The lines, rounded so that a small change leaves them."""
    return f"{round(lines, -2):,}"


def table() -> str:
    """The table in Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *rows()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> int:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(prog="tools.feature_price", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/design/decisions.md")
    markdown = table()
    if not parser.parse_args().write:
        print(markdown, end="")
        return 0
    head, tail = PAGE.read_text(encoding="utf-8").split(MARKER)
    after_table = re.sub(r"\A(?:\|.*\n)*", "", tail)
    PAGE.write_text(f"{head}{MARKER}{markdown}{after_table}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
