"""Hashes of record keys under a secret.

Where keys are compared in bulk, a hash stands for its key. So a writer that finds two keys with the same hash could
make compaction delete another writer's record. Without the secret it cannot search for such keys. Among 10^9 keys,
the probability that any two have the same hash by chance is 10^-21.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.key_hash import HASH_WORDS, hash_all

#: The size of a secret in bytes. A secret is drawn at random for each run and written nowhere.
SECRET_BYTES = 16


def hash_keys(
    data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], offsets: npt.NDArray[np.int32], secret: bytes
) -> npt.NDArray[np.int64]:
    """The hash of each key, a row of two int64. Key i is offsets[i + 1] - offsets[i] bytes of `data` at positions[i].

    Whether the bytes lie in `data` is not checked. A null key is hashed as an empty one. Raises ValueError if
    `secret` is not SECRET_BYTES long.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    first, second = np.frombuffer(secret, "<i8").tolist()
    hashes = np.empty((len(positions), HASH_WORDS), np.int64)
    hash_all(data, positions, offsets, first, second, hashes)
    return hashes
