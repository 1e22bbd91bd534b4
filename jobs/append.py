"""Append files to a topic: spark-submit jobs/append.py --input FILE --topic URL."""

import sys

from distlog.spark.jobs.append_job import append_files
from distlog.spark.jobs.job import add_settings, job_parser, run_job
from distlog.spark.jobs.job_inputs import FORMATS

parser = job_parser(__doc__)
parser.add_argument("--input", required=True, action="append", metavar="PATH", help="a file or folder; repeatable")
parser.add_argument("--format", choices=FORMATS, help="what the input is; by default its name's ending says it")
parser.add_argument("--key", metavar="COLUMN", help="the key; by default there is none")
parser.add_argument("--value", metavar="COLUMN", help="the value; by default the whole row or line, as JSON")
parser.add_argument("--timestamp", metavar="COLUMN", help="the time: ms since 1970, ISO 8601, or by --time-format")
parser.add_argument("--pattern", metavar="REGEX", help="for text: groups named key, timestamp, value (or the line)")
parser.add_argument("--time-format", metavar="FORMAT", help="as for strptime: '%%d/%%b/%%Y:%%H:%%M:%%S %%z'")
parser.add_argument("--bad-lines", choices=("fail", "skip"), default="fail", help="lines that cannot be read")
parser.add_argument("--create", action="store_true", help="create the topic if it does not exist")
parser.add_argument("--partitions", type=int, metavar="N", help="of a topic to be created; 1 by default")
add_settings(parser, "--config", "a setting of a topic to be created, as in retention.ms=604800000; repeatable")
parser.add_argument("--shuffle", action="store_true", help="one segment per partition; the order of tasks is lost")
parser.add_argument("--compression", metavar="CODEC", help="none, gzip, snappy, lz4, zstd, unless the topic says")
parser.add_argument("--app-id", metavar="ID", help="with --batch-id: the same again appends nothing")
parser.add_argument("--batch-id", metavar="ID", help="the batch of --app-id")

if __name__ == "__main__":
    sys.exit(run_job(parser, append_files))
