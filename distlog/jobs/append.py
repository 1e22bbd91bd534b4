"""Append files to a topic, in the order in which they are given, and by path."""

import sys
from functools import partial

from distlog.spark.jobs.append_job import add_file_options, append_inputs
from distlog.spark.jobs.job import add_settings, job_parser, run_job

parser = job_parser(__doc__)
parser.add_argument(
    "--input", required=True, action="append", metavar="PATH", help="file, folder, pattern or URL; may be repeated"
)
add_file_options(parser)
parser.add_argument("--create", action="store_true", help="create the topic if it does not exist")
parser.add_argument("--partitions", type=int, metavar="N", help="with --create: how many partitions; by default 1")
add_settings(parser, "--config", "with --create: a setting, as in retention.ms=604800000; may be repeated")

main = partial(run_job, parser, append_inputs)

if __name__ == "__main__":
    sys.exit(main())
