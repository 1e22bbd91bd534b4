"""Read a topic to the console, Parquet or JSON."""

import sys
from functools import partial

from distlog.console import arguments
from distlog.spark.jobs.job import argument, job_parser, run_job
from distlog.spark.jobs.read_job import CONSOLE_LIMIT, read_topic

parser = job_parser(__doc__)
parser.add_argument("--partitions", type=argument(arguments.partitions), metavar="0,1", help="only these partitions")
start = parser.add_mutually_exclusive_group()
start.add_argument(
    "--start",
    type=argument(arguments.offsets),
    metavar="OFFSETS",
    help="first offset: 10 for all partitions, or 0:10,1:7 by partition",
)
start.add_argument(
    "--since",
    type=argument(arguments.record_time),
    metavar="TIME",
    help="only records at or after TIME: ms since 1970, ISO 8601, now, or -1h",
)
end = parser.add_mutually_exclusive_group()
end.add_argument(
    "--end", type=argument(arguments.offsets), metavar="OFFSETS", help="end offset, which is not read; as for --start"
)
end.add_argument("--until", type=argument(arguments.record_time), metavar="TIME", help="only records before TIME")
parser.add_argument(
    "--limit",
    type=argument(arguments.count),
    metavar="N",
    help=f"at most N records; by default {CONSOLE_LIMIT} on the console, all with --output",
)
parser.add_argument("--output", metavar="PATH", help="write files to this new folder instead of the console")
parser.add_argument("--format", choices=("parquet", "json"), help="format of the files; by default parquet")

main = partial(run_job, parser, read_topic)

if __name__ == "__main__":
    sys.exit(main())
