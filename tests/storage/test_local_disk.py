"""Which folders are on a local disk, by tables of mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distlog.core.storage.local_files import is_local_disk

ROOT = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw"


def table(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "mountinfo"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def mount(folder: Path | str, kind: str, optional: str = "shared:1 ") -> str:
    return f"30 27 0:30 / {str(folder).replace(' ', chr(92) + '040')} rw {optional}- {kind} server:/a rw"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs"])
def test_a_disk_of_this_machine_is_local(tmp_path: Path, kind: str) -> None:
    assert is_local_disk(str(tmp_path), table(tmp_path, ROOT, mount(tmp_path, kind)))


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse", "fuse.sshfs", "9p", "ceph", "lustre", "new"])
def test_a_network_file_system_and_an_unknown_one_are_not(tmp_path: Path, kind: str) -> None:
    assert not is_local_disk(str(tmp_path), table(tmp_path, ROOT, mount(tmp_path, kind)))


def test_the_deepest_mount_wins_and_the_last_of_two_at_one_path(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    assert not is_local_disk(str(inner), table(tmp_path, mount(inner, "nfs"), ROOT, mount(tmp_path, "xfs")))
    assert is_local_disk(str(inner), table(tmp_path, ROOT, mount(inner, "nfs"), mount(inner, "xfs", "")))


def test_a_folder_whose_name_only_begins_like_a_mount_is_not_in_it(tmp_path: Path) -> None:
    assert is_local_disk(str(tmp_path / "data2"), table(tmp_path, ROOT, mount(tmp_path / "data", "nfs")))


def test_a_missing_folder_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    assert not is_local_disk(str(tmp_path / "a" / "b"), table(tmp_path, ROOT, mount(tmp_path, "nfs")))


def test_a_link_is_followed_and_a_name_may_have_a_space(tmp_path: Path) -> None:
    far = tmp_path / "far away"
    far.mkdir()
    os.symlink(far, tmp_path / "link")
    assert not is_local_disk(str(tmp_path / "link"), table(tmp_path, ROOT, mount(far, "nfs4")))


@pytest.mark.parametrize("lines", [["nonsense"], ["1 2 3 4 /"], []])
def test_without_a_table_of_mounts_nothing_is_local(tmp_path: Path, lines: list[str]) -> None:
    assert not is_local_disk(str(tmp_path), table(tmp_path, *lines))
    assert not is_local_disk(str(tmp_path), str(tmp_path / "no table"))
