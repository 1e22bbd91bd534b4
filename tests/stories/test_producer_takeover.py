"""Real processes that take over a producer from one that runs, or was killed: the records are 0, 1, 2 and so on.

1. Process n begins the producer `counter`, reads where the topic ends, and goes on counting from there.
2. Process n + 1 does the same while it runs, or after it was killed.
3. Whoever was taken over gets a ProducerFencedError at its next append, and ends.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from forked_programs import Program
from topics import contents

import distlog

COUNTING = """
import sys
import distlog

topic = distlog.open(sys.argv[1])
with topic.producer("counter", linger_ms=0) as producer:
    number = topic.refresh().end_offsets()[0]
    print("began", flush=True)
    while True:
        try:
            for _ in range(3):
                producer.append(b"%d" % number)
                number += 1
            producer.flush()
        except distlog.ProducerFencedError:
            print("fenced", flush=True)
            break
        print(number, flush=True)
"""


def begin(url: str) -> Program:
    return Program(COUNTING, url, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def said(process: Program, word: str) -> None:
    """Wait until the process says this, or anything."""
    assert process.stdout
    for line in process.stdout:
        if not word or line.strip() == word:
            return
    raise AssertionError(f"the process ended before it said {word}")


@pytest.mark.parametrize("is_killed", [False, True])
def test_who_takes_over_goes_on_where_the_one_before_ended(tmp_path: Path, is_killed: bool) -> None:
    topic = distlog.create(str(tmp_path / "events"), config={"internal.segment.bytes": 3000})
    processes = [begin(topic.url)]
    said(processes[0], "began")
    for _ in range(2):
        if is_killed:
            processes[-1].send_signal(signal.SIGKILL)
        processes.append(begin(topic.url))
        said(processes[-1], "began")
        if not is_killed:
            said(processes[-2], "fenced")
        # the number behind its first records
        said(processes[-1], "")
    processes[-1].kill()
    for process in processes:
        process.communicate()
    found = contents(distlog.open(topic.url))[0]
    assert found == [b"%d" % number for number in range(len(found))]
    assert len(found) >= 6
    assert distlog.open(topic.url).verify().anomalies == ()
