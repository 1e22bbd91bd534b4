"""The outcomes that a writer's callback gets: which records of a partition were appended, or were not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from distlog.core.topics.appending.append_commit import AppendResult

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


def delivered(result: AppendResult) -> list[Delivery]:
    """The deliveries of what was appended."""
    return [Delivery(number, first, end, end - first, None) for number, (first, end) in result.offsets.items()]


def failed(counts: Mapping[int | None, int], error: BaseException | None) -> list[Delivery]:
    """The deliveries of records that an error kept from being committed; `counts` are their numbers by partition."""
    return [Delivery(number, None, None, count, error) for number, count in counts.items()]


def deliver(deliveries: Iterable[Delivery], call: OnDelivery) -> None:
    """Call `call` for each delivery; an error of one call is logged, and the next calls are made."""
    for delivery in deliveries:
        try:
            call(delivery)
        except BaseException:  # noqa: PERF203 - none must end the thread that commits, or keep the next from its call
            _log.exception("the on_delivery of a writer failed with %r", delivery)
