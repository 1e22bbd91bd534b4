"""Add what is new in a topic to a table of Parquet, Delta or Iceberg, each record once."""

import sys
from functools import partial

from distlog.console import arguments
from distlog.spark.jobs.job import argument, job_parser, run_job
from distlog.spark.jobs.table_job import FORMATS, OUTPUTS, REGISTRY_VARIABLE, write_table

parser = job_parser(__doc__)
parser.add_argument("--table", required=True, help="its folder in Spark's file systems, or name in a catalog")
parser.add_argument("--output", choices=OUTPUTS, default="parquet", help="what the table is; by default parquet")
parser.add_argument("--checkpoint", metavar="PATH", help="where the state of parquet is; by default in its folder")
parser.add_argument("--format", choices=FORMATS, default="binary", help="what values are; by default they stay bytes")
schema = parser.add_mutually_exclusive_group()
schema.add_argument("--schema", metavar="TEXT", help="the fields: of JSON as 'user string, at timestamp'")
schema.add_argument("--schema-file", metavar="FILE", help="a local file of it: .avsc, .proto, or as --schema")
schema.add_argument("--subject", help="the registry's subject of the fields; by default the topic's name and -value")
parser.add_argument(
    "--registry",
    metavar="URL",
    help=f"a registry of schemas, or its topic, as logs/_schemas; by default the variable {REGISTRY_VARIABLE}",
)
parser.add_argument("--message", metavar="NAME", help="the full name of a message of Protobuf; by default the first")
parser.add_argument("--framed", action="store_true", help="values of JSON begin with the id of a registry's schema")
parser.add_argument("--nested", action="store_true", help="one column `value` with the fields as its parts")
parser.add_argument(
    "--on-error",
    choices=("fail", "null"),
    default="fail",
    help="at a bad value fail (default), or leave its fields null",
)
parser.add_argument("--changes", action="store_true", help="of a compacted topic all changes, with a column deleted")
parser.add_argument("--max-offsets", type=argument(arguments.count), metavar="N", help="about so many in a batch")
parser.add_argument(
    "--max-bytes", type=argument(arguments.count), metavar="N", help="so many bytes of log in a batch"
)

main = partial(run_job, parser, write_table)

if __name__ == "__main__":
    sys.exit(main())
