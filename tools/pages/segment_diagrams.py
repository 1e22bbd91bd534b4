"""The pictures about segments: where their offsets come from, bundles, and direct appends."""

from __future__ import annotations

from tools.pages.drawing import Drawing


def relocatable() -> str:
    """A log file that begins at offset 0, and the commit that moves it."""
    drawing = Drawing(760, 330, "A segment is written as if it began at 0; the commit gives it its base offset")
    drawing.text(30, 36, "the log file, which never changes", "small muted")
    for number, text in enumerate(("batch 0", "batch 120", "batch 250", "batch 380")):
        drawing.box(30 + 170 * number, 48, 160, 50, f"{text}\n~offset is not in the CRC", "file")
    drawing.text(30, 134, "the commit says where it is", "small muted")
    added = "add: partition 0, stem v…06-3f…, base_offset 1000, next_offset 1500"
    again = "~another writer was first? Only this small file is written again, with base_offset 1480"
    drawing.box(30, 146, 670, 50, f"{added}\n{again}", "hot")
    drawing.text(30, 232, "what a reader sees", "small muted")
    for number, text in enumerate(("1000 to 1119", "1120 to 1249", "1250 to 1379", "1380 to 1499")):
        x = 30 + 170 * number
        drawing.arrow((x + 135, 198), (x + 135, 242))
        drawing.box(x, 244, 160, 50, f"{text}\n~stored offset + base", "new")
    return drawing.svg()


def bundles() -> str:
    """One append by two tasks into three partitions, as files and as bundles."""
    drawing = Drawing(760, 380, "An append by two tasks into three partitions: six segments in two objects")
    for task in range(2):
        y = 40 + 170 * task
        drawing.box(30, y + 34, 110, 60, f"task {task + 1}")
        drawing.arrow((140, y + 64), (188, y + 64))
        drawing.rectangle(190, y, 540, 130, "ground axis", 6)
        drawing.text(204, y + 22, f"_bundles/v…06-{'3f' if task == 0 else 'a9'}….bundle", "code small")
        for part in range(3):
            drawing.box(
                204 + 120 * part, y + 36, 114, 54, f"log of p{part}\n~log_position", ("box", "new", "hot")[part]
            )
            drawing.rectangle(564 + 50 * part, y + 36, 44, 54, ("box", "new", "hot")[part])
            drawing.text(586 + 50 * part, y + 67, f"idx p{part}", "small", "middle")
        drawing.text(204, y + 114, "the logs, then the indexes; each part is what its file would be", "small muted")
    files = "As files these would be six logs and up to twelve indexes: a request, or a sync, for each."
    drawing.text(30, 370, files, "small muted")
    return drawing.svg()


def active_segment() -> str:
    """Processes, the lock's page, the log that grows, and the two commits around it."""
    drawing = Drawing(760, 400, "Any number of processes append to one active segment, under the partition's lock")
    for number, name in enumerate(("process A", "process B", "process C")):
        drawing.box(30, 40 + 78 * number, 120, 50, f"{name}\n~writer")
        drawing.arrow((150, 65 + 78 * number), (178, 65 + 78 * number), (178, 142), (216, 142))
    page = "~page: stem, position, next offset,\n~CRC, flushed, recovery point"
    drawing.box(218, 96, 210, 92, f".lock\n~one holder at a time (flock)\n{page}", "hot")
    drawing.arrow((428, 142), (478, 142))
    drawing.text(482, 62, "the active segment's log", "small muted")
    widths = (66, 52, 78)
    x = 480
    for number, width in enumerate(widths):
        drawing.box(x, 116, width, 52, f"batch\n~{number}", "new")
        x += width + 3
    drawing.box(x, 116, 54, 52, "torn", "gone")
    drawing.line((x - 1, 90), (x - 1, 186))
    drawing.text(x - 1, 84, "position", "small", "middle")
    drawing.text(736, 208, "After the position: bytes of a process that died.", "small muted", "end")
    drawing.text(736, 224, "The next holder keeps whole batches, and cuts the rest.", "small muted", "end")
    life = {
        "commit: active": "~before the first append",
        "appends": "~no commit; a sync each",
        "commit: seal, add": "~on a roll, a bulk append, a drop",
    }
    for number, (name, text) in enumerate(life.items()):
        drawing.box(50 + 230 * number, 310, 200, 54, f"{name}\n{text}", "new" if number == 1 else "file")
        if number:
            drawing.arrow((20 + 230 * number, 337), (48 + 230 * number, 337))
    drawing.text(50, 296, "a segment's life", "small muted")
    return drawing.svg()


def key_index() -> str:
    """A hash, its expected entry, the blocks that are read, and the batches of the key."""
    drawing = Drawing(760, 390, "A hash leads to a few blocks of the index, and these to the batches of the key")
    drawing.box(30, 30, 190, 50, 'key "anna"\n~hash: 0.62 of the largest')
    drawing.arrow((220, 55), (478, 128))
    drawing.text(350, 66, "entry 0.62 · n, give or take 2 · √n", "small muted")
    drawing.text(30, 122, "entries, by hash: 341 in a block of 4096 bytes with a checksum", "small muted")
    for block in range(10):
        drawing.rectangle(30 + 70 * block, 134, 66, 44, "hot" if 5 <= block <= 7 else "file")
    drawing.text(487, 161, "one read", "small", "middle")
    drawing.arrow((450, 180), (180, 304))
    drawing.text(200, 214, "one batch has the key: its position", "small muted", "middle")
    drawing.arrow((520, 180), (598, 232))
    drawing.text(640, 202, "several: their postings", "small muted", "middle")
    drawing.rectangle(540, 234, 190, 34, "hot")
    drawing.text(635, 256, "1 · 4 · ~6", "small code", "middle")
    drawing.arrow((570, 270), (490, 304))
    drawing.arrow((660, 270), (676, 304))
    drawing.text(30, 374, "the log: only these batches are read, and their keys compared", "small muted")
    for batch in range(7):
        drawing.box(30 + 100 * batch, 308, 92, 44, f"batch {batch}", "new" if batch in (1, 4, 6) else "file")
    return drawing.svg()


PICTURES = {
    "relocatable": relocatable,
    "bundles": bundles,
    "active-segment": active_segment,
    "key-index": key_index,
}
