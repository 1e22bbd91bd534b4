"""No kernel reads behind its buffer: the next page belongs to nobody, so that one byte too far ends the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, mmap, random, struct, sys

sys.path.insert(0, sys.argv[1])
import numpy as np
from raw_batches import batch, entry, record

from distlog.core.errors import CorruptRecordError
from distlog.core.batches.record_batch import read_headers
from distlog.core.batches.record_decoder import decode

PAGE, TOP = mmap.PAGESIZE, 8 * mmap.PAGESIZE
pages = mmap.mmap(-1, TOP + PAGE)
last_page = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + TOP
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(last_page), PAGE, 0) == 0
room = np.frombuffer(pages, np.uint8, count=TOP)
pick = random.Random(7)
HEADERS = ((b"h1", b"x"), (b"h2", None))
TEXTS = (None, b"", b"key", b"v" * 40)


def damaged():
    if pick.random() < 0.7:
        contents = [(pick.choice(TEXTS), pick.choice(TEXTS), HEADERS[: pick.randrange(3)]) for _ in range(3)]
        records = [record(at, pick.randrange(-5, 2**40), *content) for at, content in enumerate(contents)]
        data, fixed = bytearray(batch(records)), 61
    else:
        data, fixed = bytearray(b"".join(entry(at % 2, at, b"key", pick.choice(TEXTS)) for at in range(3))), 16
    for _ in range(pick.randrange(4)):
        data[pick.randrange(fixed, len(data))] = pick.choice((0, 1, 2, 0x7F, 0x80, 0xFF, pick.randrange(256)))
    if fixed == 61 and pick.random() < 0.5:
        del data[pick.randrange(61, len(data) + 1) :]
        data[8:12] = struct.pack(">i", len(data) - 12)
    return data if pick.random() < 0.8 else data[: pick.randrange(len(data))]


seen = {True: 0, False: 0}
for _ in range(int(sys.argv[2])):
    data = damaged()
    view = room[TOP - len(data) :]
    view[:] = np.frombuffer(bytes(data), np.uint8)
    try:
        decode(view, read_headers(view))
        seen[True] += 1
    except CorruptRecordError:
        seen[False] += 1
print(*seen.values())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_damaged_batches_at_the_end_of_memory_do_not_end_the_process() -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), "20000"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    decoded, refused = map(int, run.stdout.split())
    assert decoded > 1000
    assert refused > 1000
