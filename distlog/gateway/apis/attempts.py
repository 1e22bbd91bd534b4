"""Does something for each topic of an admin request: each one succeeds or fails by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields


def attempted(work: Callable[[], Fields | None], **fields: Any) -> Fields:
    """`fields` with what `work` returns; or with the code and the text of its error."""
    try:
        found = work()
    except Exception as error:
        text = str(error) if isinstance(error, DistlogError | OSError) else None
        return {**fields, "error_code": error_code(error), "error_message": text}
    return {**fields, "error_code": ErrorCode.none, "error_message": None, **(found or {})}
