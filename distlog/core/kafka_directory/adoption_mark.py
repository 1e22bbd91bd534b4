"""The mark `.adoption` in a topic's folder: it stands until the topic is made, and keeps other adoptions out.

On a local disk its file is locked, so a process that dies lets go of it, and the next adoption goes on. On object
storage nobody can tell whether who put it is still at work: there it is refused, and says what to do.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from distlog.core.errors import StorageError
from distlog.core.storage.local.durable_files import failing_as, make_folders
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import new_id

_MARK = ".adoption"
_TEXT = b"an adoption is under way, or has died: adopt again\n"


@contextmanager
def adopting(topic: Storage) -> Iterator[None]:
    """Keep other adoptions out of the topic's folder; the mark stays until `end`.

    Raises StorageError if one is under way, or, on object storage, may be.
    """
    if not topic.is_local:
        unique = b"%s %s" % (new_id().encode(), _TEXT)
        if topic.put_if_absent(_MARK, unique) != unique:
            text = "another adoption to this address is under way, or has died: if it has, delete its files and then "
            raise StorageError(f"{text}{_MARK}, and adopt again", url=topic.url, file=_MARK)
        yield
        return
    path = topic.local_path(_MARK)
    file = _locked(path, topic.url)
    try:
        yield
    finally:
        os.close(file)


def is_marked(topic: Storage) -> bool:
    """Whether an adoption to this address is under way, or has died."""
    return any(file.name == _MARK for file in topic.list())


def end(topic: Storage) -> None:
    """Say that no adoption is under way; the files in the topic's folder belong to the topic, or are gone."""
    with suppress(StorageError):
        topic.delete([_MARK])


def _locked(path: str, url: str) -> int:
    with failing_as("make the folder of the topic", path):
        make_folders(os.path.dirname(path))
    while True:
        with failing_as("open the mark", path):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                os.pwrite(file, _TEXT, 0)
                return file
        except BlockingIOError:
            os.close(file)
            raise StorageError("another adoption to this address is under way: wait for it", url=url) from None
        except BaseException:
            os.close(file)
            raise
        # its holder has ended its adoption meanwhile
        os.close(file)
