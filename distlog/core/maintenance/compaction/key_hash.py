"""Hashes of record keys under a secret.

A hash stands for its key wherever keys are compared in bulk, so a writer that finds two keys with one hash could have
compaction delete another's record. Without the secret it cannot look for them. By chance, of
10^9 keys two have the same hash with a probability of 10^-21.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.key_hash import HASH_WORDS, hash_all

#: The bytes of a secret: drawn at random for each run, and written nowhere.
SECRET_BYTES = 16


def hash_keys(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int32], secret: bytes
) -> npt.NDArray[np.int64]:
    """The hash of each key, two int64 in a row: key i is offsets[i + 1] - offsets[i] bytes of `data` at positions[i].

    `secret` is SECRET_BYTES, else ValueError. Where the bytes lie is not checked; a null key is hashed as empty.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    first, second = np.frombuffer(secret, "<i8").tolist()
    hashes = np.empty((len(positions), HASH_WORDS), np.int64)
    hash_all(data, positions, offsets, first, second, hashes)
    return hashes
