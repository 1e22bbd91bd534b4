"""Dumps files by their suffixes, as Kafka's `DumpLogSegments` does."""

from __future__ import annotations

from collections.abc import Iterable

from distlog.core import paths
from distlog.core.dump.dumped_file import DumpedFile
from distlog.core.dump.index_dump import dump_index
from distlog.core.dump.log_dump import dump_log
from distlog.core.dump.options import DumpOptions
from distlog.core.dump.output import DumpOutput
from distlog.core.dump.state_dump import dump_leader_epochs, dump_producers, dump_transaction_index
from distlog.core.dump.time_index_dump import dump_time_index
from distlog.core.errors import DistlogError, InvalidConfigError, StorageError


def dump(files: Iterable[DumpedFile], options: DumpOptions, output: DumpOutput) -> None:
    """Write what is in each of `files`. After one that cannot be read it goes on with the next."""
    for file in files:
        output.say(f"Dumping {file.address}", "file", file=file.address)
        try:
            _dump_one(file, options, output)
        except BrokenPipeError:
            # it is the reader of the output that is gone
            raise
        except DistlogError as error:
            output.fail(error)
        except OSError as error:
            where = error.filename or file.address
            output.fail(StorageError(f"cannot read the file: {error.strerror or error}", file=where))


def _dump_one(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    if file.suffix == ".log":
        dump_log(file, options, output)
    elif file.suffix == ".index":
        dump_index(file, options, output)
    elif file.suffix == ".timeindex":
        dump_time_index(file, options, output)
    elif file.suffix == ".txnindex":
        dump_transaction_index(file, output)
    elif file.suffix == ".snapshot":
        dump_producers(file, output)
    elif file.name == paths.LEADER_EPOCHS:
        dump_leader_epochs(file, output)
    elif file.suffix == paths.BUNDLE_SUFFIX:
        output.fail(
            InvalidConfigError(
                "a bundle has segments of many partitions, and only the topic's commits say where: `distlog export` "
                "makes files of them, `distlog segments` lists them, `distlog read` prints their records",
                file=file.address,
            )
        )
    else:
        output.note(f"Ignoring unknown file {file.address}", "unknownFile")
