"""Folders of topics that are copied or moved by hand, as `cp -r`, `mv` and `aws s3 cp --recursive` do."""

from __future__ import annotations

from addresses import Address

import distlog
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


def topic_at(root: Address, name: str) -> Topic:
    return distlog.open(f"{root.url}/{name}", storage_options=root.options)


def copy_folder(root: Address, name: str, target: str) -> None:
    """Copy all files in the folder `name` and its folders to the folder `target` next to it."""
    copy_files(Storage(*root).child(name), Storage(*root).child(target))


def move_folder(root: Address, name: str, target: str) -> None:
    copy_folder(root, name, target)
    _delete(Storage(*root).child(name), "")


def copy_files(source: Storage, target: Storage, folder: str = "") -> None:
    for file in source.list(folder):
        target.put(file.name, source.read(file.name))
    for inner in source.list_folders(folder):
        copy_files(source, target, inner)


def _delete(source: Storage, folder: str) -> None:
    for inner in source.list_folders(folder):
        _delete(source, inner)
    source.delete([file.name for file in source.list(folder)])
