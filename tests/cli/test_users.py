"""`distlog users`: passwords come from a terminal or standard input, and are never printed."""

from __future__ import annotations

import fcntl
import getpass
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import CommandLine

from distlog.cli import service_commands
from distlog.core.errors import DistlogError, InvalidConfigError, LockHeldError
from distlog.gateway.security.authentication import check_plain, read_plain
from distlog.gateway.security.users_file import Users, read_users, write_users

PASSWORD = "open sesame"


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """The command, on a file that does not exist yet."""
    line = CommandLine(str(tmp_path / "users.json"), monkeypatch, capsys)
    return lambda *arguments, stdin=b"": line("users", *arguments, stdin=stdin)


def names(path: Path) -> list[str]:
    """Return the users in the file, and check that each has the test's password."""
    users = read_users(str(path))
    return [check_plain(read_plain(f"\0{name}\0{PASSWORD}".encode()), users).name for name in sorted(users.secrets)]


def test_users_are_set_listed_and_deleted(users: Any, tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    assert users("--set", "bob", stdin=PASSWORD.encode() + b"\n").out == "set bob\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert users("--set", "alice", "--json", stdin=PASSWORD.encode()).json == {"user": "alice", "set": True}
    assert users("--set", "bob", stdin=b"another\n").status == 0
    assert users("--set", "bob", stdin=PASSWORD.encode() + b"\r\nmore\n").status == 0
    assert (users().out, names(path)) == ("alice\nbob\n", ["alice", "bob"])
    assert users("--json").json == {"users": ["alice", "bob"]}
    assert users("--delete", "alice").out == "deleted alice\n"
    assert names(path) == ["bob"]
    assert PASSWORD not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["--set", "alice"], b""),
        (["--set", "alice"], b"\n"),
        (["--set", "alice"], b"with\0zero\n"),
        (["--set", ""], b"x\n"),
        (["--set", "new\nline"], b"x\n"),
        (["--set", "n" * 256], b"x\n"),
        (["--set", "a", "--delete", "b"], b"x\n"),
    ],
)
def test_an_invalid_user_changes_nothing(users: Any, tmp_path: Path, arguments: list[str], stdin: bytes) -> None:
    users("--set", "bob", stdin=PASSWORD.encode())
    original = (tmp_path / "users.json").read_bytes()
    outcome = users(*arguments, stdin=stdin)
    assert (outcome.status, outcome.out) == (2, "")
    assert (tmp_path / "users.json").read_bytes() == original


def test_a_file_with_open_permissions_is_refused(users: Any, tmp_path: Path) -> None:
    users("--set", "bob", stdin=PASSWORD.encode())
    for mode, status in ((0o644, 1), (0o660, 1), (0o602, 1), (0o640, 0), (0o400, 0)):
        (tmp_path / "users.json").chmod(mode)
        assert users().status == status
        assert (users("--set", "carol", stdin=b"x").status == 0) is (status == 0)


def test_a_change_keeps_the_owner_and_the_mode_of_the_file(users: Any, tmp_path: Path) -> None:
    users("--set", "bob", stdin=PASSWORD.encode())
    path = tmp_path / "users.json"
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12346)
    original = path.stat()
    assert users("--set", "carol", stdin=PASSWORD.encode()).status == 0
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (original.st_uid, original.st_gid, original.st_mode)
    assert after.st_ino != original.st_ino
    assert names(path) == ["bob", "carol"]


def test_another_file_stays_unchanged(users: Any, tmp_path: Path) -> None:
    (tmp_path / "users.json").write_text("precious")
    (tmp_path / "users.json").chmod(0o600)
    assert users("--set", "alice", stdin=b"x").status == 1
    assert (tmp_path / "users.json").read_text() == "precious"


def test_a_failed_change_leaves_the_file_and_no_temporary_file(
    users: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users("--set", "bob", stdin=PASSWORD.encode())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DistlogError, match="No space left"):
        write_users(str(tmp_path / "users.json"), lambda users: users.without_user("bob"))
    assert {path.name for path in tmp_path.iterdir()} == {"users.json", "users.json.lock"}
    assert names(tmp_path / "users.json") == ["bob"]


def test_a_lock_on_the_folder_cannot_delay_a_change(users: Any, tmp_path: Path) -> None:
    users("--set", "bob", stdin=PASSWORD.encode())
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        write_users(str(tmp_path / "users.json"), lambda users: users.without_user("bob"), timeout_s=0)
    finally:
        os.close(folder)
    lock = tmp_path / "users.json.lock"
    assert (stat.S_IMODE(lock.stat().st_mode), lock.stat().st_size) == (0o600, 0)
    assert names(tmp_path / "users.json") == []


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_waiting_change_names_the_holder_of_the_lock(tmp_path: Path, is_linked: bool) -> None:
    path = linked = tmp_path / "users.json"
    if is_linked:
        (tmp_path / "elsewhere").mkdir()
        linked = tmp_path / "elsewhere" / "link.json"
        linked.symlink_to(path)

    def change(users: Users) -> Users:
        with pytest.raises(LockHeldError, match=f"process {os.getpid()} holds the lock: check"):
            write_users(str(linked), lambda users: users, timeout_s=0)
        return users

    write_users(str(path), change)
    write_users(str(linked), lambda users: users, timeout_s=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change whose a file is")
def test_a_lock_created_by_root_belongs_to_the_owner_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_users(str(path), lambda users: users)
    os.chown(path, 65534, 65534)
    write_users(str(path), lambda users: users)
    lock = (tmp_path / "users.json.lock").stat()
    assert (lock.st_uid, stat.S_IMODE(lock.st_mode)) == (65534, 0o600)


@pytest.mark.long
def test_a_terminal_asks_twice_and_shows_nothing(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "distlog", "users", str(tmp_path / "users.json"), "--set", "alice"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    for prompt in (b"password of alice: ", b"again: "):
        while not shown.endswith(prompt):
            shown += os.read(ours, 1000)
        os.write(ours, PASSWORD.encode() + b"\n")
    assert process.wait(60) == 0
    shown += os.read(ours, 1000)
    os.close(ours)
    assert PASSWORD.encode() not in shown
    assert names(tmp_path / "users.json") == ["alice"]


def test_different_passwords_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([PASSWORD, "another"])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(getpass, "getpass", lambda _: next(answers))
    with pytest.raises(InvalidConfigError, match="the passwords differ"):
        service_commands.users(str(tmp_path / "users.json"), name="alice")
    assert list(tmp_path.iterdir()) == []
