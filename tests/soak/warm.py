"""Loads all modules that the workers use, so that processes forked after its import start at once."""

from __future__ import annotations

import tempfile

import distlog
from soak.appending import Appending
from soak.records import read_records, record
from soak.workers import PARTITIONS

with tempfile.TemporaryDirectory() as _folder:
    distlog.create(f"{_folder}/warm", partitions=PARTITIONS)
    Appending(f"{_folder}/warm", 0).append([record("warm", number) for number in range(3)])
    read_records(distlog.open(f"{_folder}/warm"), 0, 0)
