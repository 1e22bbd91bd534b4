"""Copies of remote indexes in a folder that a test looks into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import distlog
from distlog import Topic
from distlog.core.format.indexes import IndexCache, default_folder


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Let `folder` be the system's one for temporary files, in which each user's copies have a folder."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        yield


def reopened(topic: Topic, folder: Path) -> Topic:
    """The newest version of the topic as another process opens it: no index is open; copies are in `folder`."""
    with _temporary_files_in(folder):
        topic_in_folder = distlog.open(topic.url)
        # the reader, which has the cache, is made at its first use
        assert topic_in_folder.reader.topic == topic_in_folder.name
        return topic_in_folder


def index_cache(folder: Path) -> IndexCache:
    with _temporary_files_in(folder):
        return IndexCache()


def copies(folder: Path) -> list[Path]:
    with _temporary_files_in(folder):
        return sorted(path for path in Path(default_folder()).iterdir() if path.stat().st_size)
