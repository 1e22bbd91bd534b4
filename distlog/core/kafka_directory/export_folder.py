"""The folder of a partition before its export: empty, of an earlier export, or of a topic that a broker has made."""

from __future__ import annotations

from distlog.core.errors import StorageError, TopicExistsError
from distlog.core.kafka_directory.directory_names import parse_file
from distlog.core.kafka_directory.export_record import ExportedSegment, read_export
from distlog.core.kafka_directory.loaded_files import LOG_SUFFIX
from distlog.core.paths import SNAPSHOT_SUFFIX
from distlog.core.storage.storage import Storage


def refuse_other_topic(folder: Storage, topic_id: str) -> None:
    """Raise TopicExistsError if the folder has an export of another topic, of the same name."""
    last = read_export(folder)
    if last is not None and last.topic_id not in (None, topic_id):
        text = "another topic of this name was exported to here: export into another directory, or delete that first"
        raise TopicExistsError(text, directory=folder.url, topic_id=last.topic_id)


def known_segments(folder: Storage) -> list[ExportedSegment]:
    """What an earlier export left in the folder, by base offset; none if there was none.

    The empty log of a topic that a broker has made is taken away. Raises StorageError for a log that is neither.
    """
    last = read_export(folder)
    found = [(file, parsed) for file in folder.list() if (parsed := parse_file(file.name)) is not None]
    sizes = {each.offset: file.size for file, each in found if each.suffix == LOG_SUFFIX and not each.temporary}
    if last is None:
        if any(sizes.values()):
            text = "this partition's folder holds records that no export wrote: export into another log directory"
            raise StorageError(text, directory=folder.url)
        folder.delete([file.name for file, _ in found])
        return []
    _check(folder, last.segments, sizes)
    return last.segments


def _check(folder: Storage, known: list[ExportedSegment], sizes: dict[int, int]) -> None:
    """Raise StorageError unless the logs are those that the export wrote."""
    unknown = sizes.keys() - {each.base_offset for each in known}
    changed = [each.base_offset for each in known if each.done and sizes.get(each.base_offset) != each.log_bytes]
    for offset in (*sorted(unknown), *changed):
        text = "a broker has written here since the last export: export into another log directory"
        raise StorageError(text, directory=folder.url, base_offset=offset)


def snapshots(folder: Storage) -> dict[int, str]:
    """The producer snapshots in the folder, by offset."""
    found = [(parsed, file.name) for file in folder.list() if (parsed := parse_file(file.name)) is not None]
    return {
        parsed.offset: name for parsed, name in found if parsed.suffix == SNAPSHOT_SUFFIX and not parsed.temporary
    }
