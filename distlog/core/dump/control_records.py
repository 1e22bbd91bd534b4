"""Control records: the end of a transaction, or what KRaft keeps in its own log (Kafka's `ControlRecordType`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import ABORT, COMMIT
from distlog.core.dump.line import Field, Line
from distlog.core.dump.scanned import Scanned
from distlog.core.kernels.dump_lines import ABSENT, CHOICE, OPTIONAL

_NAMES = (
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)
_UNKNOWN = len(_NAMES)
_TYPES = (
    tuple(f" endTxnMarker: {name}" for name in _NAMES[:2])
    + tuple(f" controlType: {name}({number})" for number, name in enumerate(_NAMES[2:], 2))
    + (" controlType: UNKNOWN",),
    tuple(f',"endTxnMarker":"{name}"' for name in _NAMES[:2])
    + tuple(f',"controlType":"{name}"' for name in _NAMES[2:])
    + (',"controlType":"UNKNOWN"',),
)
#: What a line of a control record has besides: its type, the number of an unknown one, and the coordinator's epoch.
MARKER = Line(
    "",
    (
        Field("type", CHOICE, ("", ""), _TYPES),
        Field("type_number", OPTIONAL, ("", ""), (("", "(", ")"), ("", ',"controlTypeId":', ""))),
        Field("epoch", OPTIONAL, ("", ""), (("", " coordinatorEpoch: ", ""), ("", ',"coordinatorEpoch":', ""))),
    ),
)


def marker_values(found: Scanned, is_control: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The values of MARKER for all records that were `found`: absent where a record `is_control` not.

    A key is version and type (int16 each), the value of an end marker version (int16) and epoch (int32).
    """
    known = is_control & (found.key_sizes >= 4)
    kinds = np.where(is_control, -1, ABSENT)
    kinds[known] = _integers(found.data, found.fields.key.positions[: found.size][known] + 2, 2)
    ends = known & np.isin(kinds, (ABORT, COMMIT)) & (found.value_sizes >= 6)
    epochs = np.full(found.size, ABSENT)
    epochs[ends] = _integers(found.data, found.fields.value.positions[: found.size][ends] + 2, 4)
    is_unknown = is_control & ((kinds < 0) | (kinds >= _UNKNOWN))
    return {
        "type": np.where(is_unknown, _UNKNOWN, kinds),
        "type_number": np.where(is_unknown, kinds, ABSENT),
        "epoch": epochs,
    }


def _integers(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """The big-endian integers of `width` bytes at `positions`."""
    stored = data[positions[:, None] + np.arange(width)]
    return np.ascontiguousarray(stored).view(f">i{width}")[:, 0].astype(np.int64)
