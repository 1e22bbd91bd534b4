"""The pictures about commits: who wins a race, what vacuum deletes, how a batch of a stream comes once."""

from __future__ import annotations

from tools.pages.drawing import Drawing


def overview() -> str:
    """Programs on the left, the folder of a topic on the right."""
    drawing = Drawing(760, 300, "Programs open a topic's folder by themselves; there is no broker between them")
    programs = {"Spark job": "append, read, stream", "Python": "append, scan, consume", "distlog run": "maintenance"}
    for number, (name, does) in enumerate(programs.items()):
        drawing.box(24, 34 + 84 * number, 170, 60, f"{name}\n~{does}")
        drawing.arrow((194, 64 + 84 * number), (288, 64 + 84 * number))
    drawing.rectangle(290, 20, 446, 260, "ground axis", 8)
    drawing.text(306, 44, "s3://bucket/logs/clicks/", "code")
    drawing.box(
        310, 62, 406, 60, "_commits/  the commit log\n~one numbered file per version: what the topic is", "hot"
    )
    drawing.box(310, 136, 196, 60, "clicks-0/ clicks-1/ ...\n~segments: .log and indexes", "file")
    drawing.box(520, 136, 196, 60, "_bundles/\n~small segments together", "file")
    drawing.box(310, 210, 196, 56, "_groups/\n~positions of consumers", "file")
    drawing.box(520, 210, 196, 56, ".lock in each partition\n~local disk only", "file")
    return drawing.svg()


def around() -> str:
    """Programs on the left, a topic's folder on the right; Kafka clients go through the gateway."""
    drawing = Drawing(600, 304, "Programs read and write a topic's files; Kafka clients connect through a gateway")
    programs = {"Python": "Arrow, pandas, DuckDB", "Spark": "jobs and streams", "Shell": "the distlog command"}
    for number, (name, interface) in enumerate(programs.items()):
        drawing.box(8, 14 + 72 * number, 154, 56, f"{name}\n~{interface}")
        drawing.arrow((162, 42 + 72 * number), (356, 42 + 72 * number))
    drawing.box(8, 230, 154, 56, "Kafka clients\n~any language")
    drawing.box(192, 230, 134, 56, "Gateway\n~optional, stateless", "hot")
    drawing.arrow((162, 258), (190, 258))
    drawing.arrow((326, 258), (356, 258))
    drawing.rectangle(358, 8, 234, 288, "ground axis", 8)
    drawing.text(372, 34, "logs/clicks", "code")
    drawing.text(578, 34, "folder or bucket", "small muted", "end")
    drawing.box(370, 48, 210, 68, "_commits/\n~commit log: one small file\n~per atomic append", "new")
    drawing.box(
        370, 128, 210, 68, "clicks-0/  clicks-1/  ...\n~segments and indexes\n~in Kafka's file formats", "file"
    )
    drawing.box(370, 208, 210, 68, "_groups/\n~members and offsets\n~of consumer groups", "file")
    return drawing.svg()


def commit_race() -> str:
    """Two writers want to be version 7."""
    drawing = Drawing(760, 330, "Two writers race for version 7: the loser takes version 8 and writes no data again")
    for number, version in enumerate((5, 6, 7, 8)):
        kind = "new" if version > 6 else "file"
        drawing.box(60 + 170 * number, 130, 130, 52, f"commit {version}\n~prev: commit {version - 1}", kind)
        if number:
            drawing.arrow((60 + 170 * number, 156), (22 + 170 * number, 156))
    drawing.box(60, 24, 150, 52, "writer A\n~data files written")
    drawing.box(60, 246, 150, 52, "writer B\n~data files written")
    drawing.arrow((210, 50), (465, 50), (465, 128))
    drawing.text(224, 42, "1. put 7, if it is absent: done", "small")
    drawing.arrow((210, 262), (450, 262), (450, 184))
    drawing.text(224, 254, "2. put 7: it exists", "small")
    drawing.arrow((210, 284), (640, 284), (640, 184))
    drawing.text(224, 304, "3. read 7, plan again with its offsets, put 8: done", "small")
    return drawing.svg()


def vacuum() -> str:
    """Versions in a row, with the horizon; deleted files on its left, kept files on its right."""
    drawing = Drawing(760, 380, "Vacuum deletes what no version from the vacuum horizon on names")
    for number in range(8):
        kind = "gone" if number < 3 else "file"
        drawing.box(30 + 88 * number, 60, 76, 36, f"v{number + 40}" if number < 7 else "v47 gc", kind)
    drawing.line((290, 30), (290, 360))
    drawing.text(300, 42, "horizon H = v43: the head file.delete.delay.ms ago", "small")
    drawing.text(30, 42, "older versions: not kept for readers", "small muted")
    drawing.box(30, 124, 236, 52, "removed by v42\n~no kept version names it: deleted", "gone")
    drawing.box(310, 124, 420, 52, "removed by v45\n~v43 and v44 still name it: kept", "new")
    drawing.box(30, 196, 236, 52, "started at v41, in no commit\n~a dead writer's: deleted", "gone")
    drawing.box(310, 196, 420, 52, "started at v44, in no commit yet\n~a writer may be at work: kept", "new")
    drawing.box(30, 268, 236, 66, "a slow writer that began at v41\n~wants to commit after v47", "hot")
    drawing.arrow((266, 301), (308, 301))
    refused = (
        "its commit is refused: TransactionTooOldError\n~so no commit ever names a deleted file; it writes again"
    )
    drawing.box(310, 268, 420, 66, refused, "hot")
    return drawing.svg()


def exactly_once() -> str:
    """Spark runs batch 7 twice, since its driver died between the commit and its own note."""
    drawing = Drawing(760, 430, "A batch that Spark runs twice is committed once")
    lanes = {"Spark's driver": 110, "tasks": 330, "commit log": 570}
    for name, x in lanes.items():
        drawing.box(x - 75, 20, 150, 34, name)
        drawing.line((x, 54), (x, 412), kind="axis")
    steps = ["batch 7 of query q", "segments, in no commit yet", "commit: segments, (q, 7), offsets"]
    _conversation(drawing, 90, steps)
    drawing.box(450, 182, 240, 40, "version 31 has (q, 7)\n~the batch is there", "new")
    drawing.box(35, 196, 150, 44, "the driver dies\n~before Spark notes it", "gone")
    again = ["batch 7 of query q, again", "other segments, other names", "commit: segments, (q, 7)"]
    _conversation(drawing, 276, again)
    drawing.box(450, 366, 240, 44, "seen: the first result is returned\n~vacuum deletes the new files", "hot")
    return drawing.svg()


def to_table() -> str:
    """The offsets of batches in a checkpoint, and a folder of the table for each."""
    drawing = Drawing(760, 300, "Batches of a topic are folders of a table; one that is run again takes its place")
    drawing.box(24, 24, 170, 52, "topic clicks\n~partitions 0 and 1", "hot")
    drawing.rectangle(290, 20, 446, 264, "ground axis", 8)
    drawing.text(306, 44, "the table's folder", "small muted")
    for number, (offsets, label) in enumerate((("0 to 40", "whole"), ("40 to 65", "whole"), ("65 to 90", ""))):
        y = 60 + 74 * number
        drawing.box(310, y, 170, 56, f"_checkpoint: batch {number}\n~offsets {offsets}", "file")
        drawing.arrow((480, y + 28), (538, y + 28))
        if label:
            drawing.box(540, y, 176, 56, f"batch={number}/\n~Parquet, {label}", "new")
        else:
            drawing.box(540, y, 176, 56, "batch=2/\n~a part: the run died", "gone")
    drawing.arrow((194, 50), (288, 50))
    drawing.box(24, 206, 210, 64, "the next run\n~the same offsets, and the\n~folder is written again")
    drawing.arrow((234, 238), (308, 238))
    return drawing.svg()


def _conversation(drawing: Drawing, y: int, texts: list[str]) -> None:
    """Driver to tasks, tasks to driver, driver to commit log."""
    for number, (text, start, end) in enumerate(zip(texts, (110, 330, 110), (330, 110, 570), strict=True)):
        drawing.arrow((start, y + 40 * number), (end, y + 40 * number))
        drawing.text((start + end) / 2, y + 40 * number - 7, text, "small", "middle")


PICTURES = {
    "overview": overview,
    "around": around,
    "commit-race": commit_race,
    "vacuum": vacuum,
    "exactly-once": exactly_once,
    "to-table": to_table,
}
