"""Does what a transactional producer asks for, and finds Kafka's code for what went wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError, LeaderFencedError
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.transactions.transaction_state import TransactionRefusedError

_log = logging.getLogger("distlog.gateway")


def tried(work: Callable[[], object], *, fenced: ErrorCode) -> ErrorCode:
    """The code of what came of `work`; `fenced` is how this API says that a newer producer has begun.

    What failed in the storage may be asked for again: nobody knows whether it was kept.
    """
    try:
        work()
    except TransactionRefusedError as refused:
        return fenced if refused.code is ErrorCode.producer_fenced else refused.code
    except GroupRefusedError as refused:
        return refused.code
    except LeaderFencedError:
        return ErrorCode.not_coordinator
    except DistlogError as error:
        _log.error("a transaction was not kept: %s", error)
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def fenced_code(api_version: int, since: int) -> ErrorCode:
    """How a client learns that a newer producer has begun; those before version `since` know one code alone."""
    return ErrorCode.producer_fenced if api_version >= since else ErrorCode.invalid_producer_epoch
