"""Append files to a topic."""

import sys
from functools import partial

from distlog.spark.jobs.append_job import FORMATS, UNITS, append_files
from distlog.spark.jobs.job import add_settings, job_parser, run_job

parser = job_parser(__doc__)
parser.add_argument("--input", required=True, action="append", metavar="PATH", help="file or folder; may be repeated")
parser.add_argument("--format", choices=FORMATS, help="format of the input; by default its name's ending decides")
parser.add_argument("--key", metavar="COLUMN", help="column of the key; by default records have no key")
parser.add_argument("--value", metavar="COLUMN", help="column of the value; by default the row as JSON, or the line")
parser.add_argument(
    "--timestamp",
    metavar="COLUMN",
    help="column of the time: a number since 1970, ISO 8601, or as --time-format says",
)
parser.add_argument(
    "--timestamp-unit", choices=UNITS, default="ms", help="the unit of times that are numbers; by default ms"
)
parser.add_argument(
    "--pattern", metavar="REGEX", help="for text: has groups named key, timestamp, value (or the line)"
)
parser.add_argument("--time-format", metavar="FORMAT", help="as for strptime: '%%d/%%b/%%Y:%%H:%%M:%%S %%z'")
parser.add_argument(
    "--bad-lines", choices=("fail", "skip"), default="fail", help="at a bad line fail (default) or skip"
)
parser.add_argument("--create", action="store_true", help="create the topic if it does not exist")
parser.add_argument("--partitions", type=int, metavar="N", help="with --create: how many partitions; by default 1")
add_settings(parser, "--config", "with --create: a setting, as in retention.ms=604800000; may be repeated")
parser.add_argument("--shuffle", action="store_true", help="one segment per partition; the order of rows is lost")
parser.add_argument(
    "--compression",
    metavar="CODEC",
    help="none, gzip, snappy, lz4 or zstd; used if the topic's compression.type is producer",
)
parser.add_argument("--app-id", metavar="ID", help="with --batch-id: a job with the same two appends only once")
parser.add_argument("--batch-id", metavar="ID", help="see --app-id")

main = partial(run_job, parser, append_files)

if __name__ == "__main__":
    sys.exit(main())
