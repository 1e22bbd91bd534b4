"""No kernel reads past its buffer: the next page is not mapped, so that one byte too far ends the process."""

from __future__ import annotations

import sys

import pytest
from forked_programs import run
from searches import FACTOR

pytestmark = pytest.mark.long

TRIES = str(5000 * min(FACTOR, 4))
DECODING = """
import ctypes, mmap, random, struct, sys

import numpy as np
from raw_batches import batch, entry, record

from distlog.core.errors import CorruptRecordError
from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_decoder import decode

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
for _ in range(int(sys.argv[1])):
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
    ran = run(DECODING, TRIES)
    assert ran.returncode == 0, ran.stderr[-2000:]
    decoded, refused = map(int, ran.stdout.split())
    assert decoded > 500
    assert refused > 500


POINTS = """
import ctypes, mmap, random, struct, sys

import numpy as np
from raw_batches import batch, record

from distlog.core.format.kernels.record_scan import LOCATION
from distlog.core.format.kernels.record_scan import HEADER_LOCATION
from distlog.core.format.kernels.record_scan import find_batch
from distlog.core.format.kernels.record_scan import find_headers
from distlog.core.format.kernels.record_scan import find_records

PAGE, TOP = mmap.PAGESIZE, 8 * mmap.PAGESIZE
pages = mmap.mmap(-1, TOP + PAGE)
last_page = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + TOP
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(last_page), PAGE, 0) == 0
room = np.frombuffer(pages, np.uint8, count=TOP)
pick = random.Random(9)
HEADERS = ((b"h1", b"x"), (b"h2", None))
TEXTS = (None, b"", b"key", b"v" * 40)
BYTES = (0, 1, 2, 0x7F, 0x80, 0xFF)
seen = {True: 0, False: 0}
for _ in range(int(sys.argv[1])):
    made, base = b"", 0
    for _ in range(2):
        contents = [(pick.choice(TEXTS), pick.choice(TEXTS), HEADERS[: pick.randrange(3)]) for _ in range(3)]
        records = [record(at, 0, *content) for at, content in enumerate(contents)]
        made, base = made + batch(records, base_offset=base), base + 3
    data = bytearray(made)
    for _ in range(pick.randrange(3)):
        data[pick.randrange(len(data))] = pick.choice(BYTES)
    data = data if pick.random() < 0.7 else data[: pick.randrange(len(data))]
    view = room[TOP - len(data) :]
    view[:] = np.frombuffer(bytes(data), np.uint8)
    view.flags.writeable = False
    position = find_batch(view, 0, view.size, 0, True, 6, pick.randrange(6))
    seen[0 <= position < view.size] += 1
    if not 0 <= position < view.size:
        continue
    size, count = (struct.unpack_from(">i", data, position + at)[0] for at in (8, 57))
    found = np.zeros(pick.randrange(1, 4), LOCATION)
    records = find_records(view, position + 61, position + 12 + size, count, 2, 0, -(2**63), 0, -(2**63), found)
    for row in found[: max(records, 0)]:
        find_headers(view, row["headers_at"], np.zeros(row["headers"], HEADER_LOCATION))
print(*seen.values())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_looking_for_a_record_at_the_end_of_memory_does_not_end_the_process() -> None:
    ran = run(POINTS, TRIES)
    assert ran.returncode == 0, ran.stderr[-2000:]
    accepted, refused = map(int, ran.stdout.split())
    assert accepted > 500
    assert refused > 500


COMPACTING = """
import ctypes, mmap, random, sys

import numpy as np
from raw_batches import batch, record

from distlog.core.format.record_batch import HEADER_SIZE, read_headers
from distlog.core.format.record_decoder import scan_sections
from distlog.core.format.record_decoder import RecordFields
from distlog.core.format.record_decoder import BatchSelection
from distlog.core.format.record_decoder import open_sections
from distlog.core.format.record_batch import Source
from distlog.core.arrays import byte_array
from distlog.core.format.kernels.compaction import count_keys
from distlog.core.format.kernels.compaction import scatter_keys
from distlog.core.maintain.survivors import hash_keys
from distlog.core.format.kernels.compaction import set_bits
from distlog.core.format.kernels.compaction import unset_bits
from distlog.core.maintain.survivors import OffsetMap
from distlog.core.format.kernels.compaction import RETAINED
from distlog.core.format.kernels.compaction import RECORD_GROWTH
from distlog.core.format.kernels.compaction import choose_records
from distlog.core.format.kernels.record_write import copy_slices
from distlog.core.format.kernels.compaction import rewrite_records

PAGE, TOP = mmap.PAGESIZE, 16 * mmap.PAGESIZE
mapped = []


def guarded():
    pages = mmap.mmap(-1, TOP + PAGE)
    mapped.append(pages)
    last_page = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + TOP
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(last_page), PAGE, 0) == 0
    return np.frombuffer(pages, np.uint8, count=TOP)


# separate arrays, each before unmapped memory
rooms = {name: guarded() for name in ("data", "target", "keep", "kept", "hashes", "rows", "bits", "unset")}


def at_end(name, count, kind):
    return rooms[name][TOP - count * np.dtype(kind).itemsize :].view(kind)[:count]


pick = random.Random(11)
TEXTS = (None, b"", b"k", b"key", b"eightkey", b"k" * 13, b"v" * 40)
rewritten = 0
for _ in range(int(sys.argv[1])):
    count = pick.randrange(1, 5)
    made = [record(delta, pick.randrange(-5, 2**pick.randrange(1, 40)), pick.choice(TEXTS[1:]), pick.choice(TEXTS))
            for delta in range(count)]
    made[-1] = record(count - 1, 0, pick.choice(TEXTS[1:]), None) if pick.random() < 0.5 else made[-1]
    content = batch(made) * pick.randrange(1, 3)
    data = at_end("data", len(content), np.uint8)
    data[:] = np.frombuffer(content, np.uint8)
    batches = read_headers(data)
    selection = BatchSelection(byte_array(data), batches, 0, 0, 0, 2**62, Source("", 0))
    opened, sections = open_sections(selection)
    fields = RecordFields.allocate(int(sections["record_count"].sum()), ("key", "value"))
    records = scan_sections(selection, opened, sections, fields)
    timestamps, offsets = fields.timestamps[:records], np.arange(records)
    has_key, has_value = fields.key.valid[:records], fields.value.valid[:records]

    hashes = hash_keys(opened, fields.key.positions[:records], fields.key.offsets[: records + 1], bytes(16))
    rows, counts = at_end("rows", 3 * records, np.int64).reshape(-1, 3), np.zeros(6, np.int64)
    count_keys(hashes, has_key, offsets, records // 2, counts)
    scatter_keys(hashes, has_key, offsets, records // 2, np.cumsum(counts) - counts, rows)
    superseded = OffsetMap(2 * records + 2).put_rows(rows)
    bits, unset = at_end("bits", (records + 7) // 8, np.uint8), at_end("unset", records, np.bool_)
    bits[:] = 0
    set_bits(bits, 0, superseded)
    unset_bits(bits, 0, offsets, unset)
    assert sorted(superseded) == np.flatnonzero(~unset).tolist()

    keep, kept = at_end("keep", records, np.bool_), at_end("kept", len(sections), RETAINED)
    flags = np.zeros(len(sections), bool)
    choose_records(sections["emitted"].copy(), flags, flags, records, unset, has_key, has_value, offsets, timestamps,
                   keep, kept)
    keep[:] = [pick.random() < 0.6 for _ in range(records)]
    room = int((sections["end"] - sections["start"]).sum() + RECORD_GROWTH * sections["record_count"].sum())
    target, ends = at_end("target", room, np.uint8), np.empty(len(sections), np.int64)
    bases = np.full(len(sections), pick.randrange(-(2**62), 2**62))
    moved = sections["base_offset"] - pick.choice((0, 1, 2**30 - 4))
    rewrite_records(opened, sections, kept["first_record"].copy(), moved, bases, keep, timestamps, target, ends)
    copied = at_end("data", len(content), np.uint8)
    starts, sizes = batches["position"].copy(), batches["size"].copy()
    copy_slices(copied, starts, np.frombuffer(content, np.uint8), starts, sizes)
    assert copied.tobytes() == content
    rewritten += int(keep.sum())
print(rewritten)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_compaction_at_the_end_of_memory_does_not_end_the_process() -> None:
    ran = run(COMPACTING, 3000)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > 1000
