"""What became of a writer's records: a Delivery for each partition of a buffer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from distlog.core.write.append import AppendResult

_log = logging.getLogger("distlog")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The records of one partition in one buffer: at `first_offset` (in) to `end_offset` (out), or an `error`.

    With an error there are no offsets, and records without a key have no partition, since none was chosen for them.
    """

    partition: int | None
    first_offset: int | None
    end_offset: int | None
    record_count: int
    error: BaseException | None


OnDelivery = Callable[[Delivery], object]


def successes(result: AppendResult) -> list[Delivery]:
    """The deliveries of what was appended."""
    return [Delivery(number, first, end, end - first, None) for number, (first, end) in result.offsets.items()]


def errors(counts: Mapping[int | None, int], error: BaseException | None) -> list[Delivery]:
    """The deliveries of records that were not appended, by partition."""
    return [Delivery(number, None, None, count, error) for number, count in counts.items()]


def deliver(deliveries: Iterable[Delivery], on_delivery: OnDelivery) -> None:
    """Call `on_delivery` for each delivery; its errors are logged."""
    for delivery in deliveries:
        try:
            on_delivery(delivery)
        except BaseException:  # noqa: PERF203 - none must end the thread that sends, or keep the next from its call
            _log.exception("the on_delivery of a writer failed with %r", delivery)
