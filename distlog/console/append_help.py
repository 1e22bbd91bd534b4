"""The texts of the options of an append of files, for the command and the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OptionHelp(NamedTuple):
    """The placeholder of an option's value, None where the values are listed, and the meaning of the option."""

    metavar: str | None
    text: str


#: By the name of the option.
APPEND_HELP: Mapping[str, OptionHelp] = {
    "--format": OptionHelp(
        None,
        "text: a line is a value. jsonl: a line is an object. csv: the first line has names. parquet. records: as "
        "read --json prints them. By default each file's content and name decide; a stream is text.",
    ),
    "--key": OptionHelp("FIELD", "The field that is the key."),
    "--value": OptionHelp("FIELD", "The field that is the value; by default all of the line."),
    "--timestamp": OptionHelp("FIELD", "The field of the time: a number since 1970, or ISO 8601."),
    "--timestamp-unit": OptionHelp(None, "The unit of times that are numbers."),
    "--pattern": OptionHelp(
        "REGEX", "A regular expression of Python for lines of text, with groups named key, value or timestamp."
    ),
    "--time-format": OptionHelp("FORMAT", "The form of times, as for Python's strptime: '%d/%b/%Y:%H:%M:%S %z'."),
    "--key-separator": OptionHelp("TEXT", r"The separator of key and value in a line of text; \t is a tab."),
    "--header": OptionHelp("NAME=VALUE", "A header that each record gets."),
    "--partition": OptionHelp("N", "The partition of all records. By default each record's field or key decides."),
    "--bad-lines": OptionHelp(None, "At a line that is no record fail, or leave it out and count it."),
    "--app-id": OptionHelp("ID", "With --batch-id: append this batch of this application once, however often run."),
    "--batch-id": OptionHelp("ID", "With --app-id: the batch's number or name."),
    "--compression": OptionHelp(
        "CODEC", "none, gzip, snappy, lz4 or zstd; used if the topic's compression.type is producer."
    ),
}
