"""The help of the options that append files, for the command and the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OptionHelp(NamedTuple):
    """The placeholder of an option's value, None for a list of choices, and the option's help."""

    metavar: str | None
    text: str


#: By the name of the option.
APPEND_HELP: Mapping[str, OptionHelp] = {
    "--format": OptionHelp(
        None,
        "Read text (a line is a value), jsonl, csv (the first line has names), parquet, or records as read --json "
        "prints them. Default: detected from each file's contents and name; text for a stream.",
    ),
    "--key": OptionHelp("FIELD", "Take the key from FIELD."),
    "--value": OptionHelp("FIELD", "Take the value from FIELD. Default: the whole line or row."),
    "--timestamp": OptionHelp("FIELD", "Take the time from FIELD: a number since 1970, or ISO 8601. Default: now."),
    "--timestamp-unit": OptionHelp(None, "Set the unit of numeric times."),
    "--pattern": OptionHelp(
        "REGEX", "Parse lines of text by a Python regular expression with groups named key, value or timestamp."
    ),
    "--time-format": OptionHelp("FORMAT", "Parse times by a strptime format: '%d/%b/%Y:%H:%M:%S %z'."),
    "--key-separator": OptionHelp("TEXT", r"Split lines of text into key and value at TEXT; \t is a tab."),
    "--header": OptionHelp("NAME=VALUE", "Add a header to every record."),
    "--partition": OptionHelp("N", "Append to partition N. Default: by each record's partition field or key."),
    "--bad-lines": OptionHelp(None, "Fail at a line that is not a record, or skip and count it."),
    "--app-id": OptionHelp("ID", "With --batch-id: append this batch only once, even if the command runs again."),
    "--batch-id": OptionHelp("ID", "With --app-id: set the number or name of the batch."),
    "--compression": OptionHelp(
        "CODEC", "Compress with none, gzip, snappy, lz4 or zstd, if the topic's compression.type is producer."
    ),
}
