"""What a dump shows: the options of Kafka's `DumpLogSegments`, with its names."""

from __future__ import annotations

from dataclasses import dataclass

from distlog.core.config import MAX_INT


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """`print_data_log` shows the records with keys and payloads, `deep_iteration` alone without them.

    Without `skip_record_metadata` a record has its offset, time, sizes, sequence and header keys. Of a log only the
    first `max_bytes` are looked at. With `verify_index_only` the entries of an index are checked and not shown; with
    `index_sanity_check` only what Kafka checks when a broker starts.
    """

    print_data_log: bool = False
    deep_iteration: bool = False
    skip_record_metadata: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_bytes: int = MAX_INT

    @property
    def is_deep(self) -> bool:
        """Whether records are shown."""
        return self.print_data_log or self.deep_iteration

    @property
    def is_cut(self) -> bool:
        """Whether the end of a log may be left out."""
        return self.max_bytes < MAX_INT
