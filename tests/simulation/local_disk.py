"""A local disk in simulated time: page cache, syncs that fail, power losses, full disks, and locks of processes.

Real files in a folder in memory are the page cache, so reads and maps of the library are real. Beside them is a tree
of what the device has. Each call of the library that touches the disk comes here first: there fibers switch,
processes die or stand still, and the power fails.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import math
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import Any

from crc32c import crc32c
from greenlet import getcurrent

from distlog.core.storage import durable_files, locks_and_pages
from distlog.core.storage.locks_and_pages import SharedPage
from simulation.device import PAGE, Change, File, Folder, count_left
from simulation.places import Places
from simulation.threads import Fiber, ProcessDiedError, current, living
from simulation.world import MEMORY, Process, World

#: The least descriptor of the folder that a disk is in.
_FOLDER = 700
#: How long a process waits at most between two looks at a lock that another one holds, in s.
_LOOK_S = 0.5
#: Median and 99th percentile of a sync, in s.
_SYNC_S = (0.001, 0.020)


@dataclass(slots=True)
class DiskFaults:
    """How likely, for each call that changes something, each fault is."""

    death: float = 0.0
    still: float = 0.0
    still_s: float = 0.0
    power: float = 0.0
    #: The disk has but a few pages left, for a while.
    full: float = 0.0
    #: Writes to the device fail, for a while.
    failing: float = 0.0
    #: A call that reads fails.
    unreadable: float = 0.0
    #: The system writes pages to the device by itself, or drops from its cache what it could not write.
    writeback: float = 0.2


# ---
# The disk.


@dataclass(eq=False, slots=True)
class Opened:
    """An open file or folder of a process; `told` counts the errors of the file that this one was told of."""

    node: Folder | File
    path: str
    process: Process
    told: int = 0
    copies: int = 1

    @property
    def file(self) -> File:
        """The node, which is a file."""
        assert isinstance(self.node, File)
        return self.node


class LocalDisk:
    """The disk of the one machine of a world, with all that is below the folder `root`.

    `with disk, world:` leads the library here. `replace` ends a process, and has another one go on; `after_loss` is
    called when the power failed, and may start processes.
    """

    def __init__(self, world: World) -> None:
        self.world, self.random, self.faults = world, Random(f"disk/{world.seed}"), DiskFaults()
        self._order = Random(f"order of names/{world.seed}")
        self.replace: Callable[[Process], None] = Process.die
        self.after_loss: Callable[[], None] = lambda: None
        self.boot, self.power_losses, self.refusals = 1, 0, 0
        #: How often something may have been lost that was not synced, or was cut off since it was lost.
        self.losses = 0
        #: How many pages are free on a full disk, and whether writes to the device fail.
        self.free: float = math.inf
        self.is_failing = False
        self._tree = Folder()
        self._files: list[File] = []
        self.opened: dict[int, Opened] = {}
        self._folders: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> LocalDisk:
        global _disk
        # what is there already is not looked at again when a history ends
        gc.freeze()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))
        self._base = tempfile.mkdtemp(prefix="simulated-disk-", dir=MEMORY)
        folder = os.open(self._base, os.O_RDONLY | os.O_CLOEXEC)
        # a path that is the same in every process
        self._folder = fcntl.fcntl(folder, fcntl.F_DUPFD_CLOEXEC, _FOLDER)
        os.close(folder)
        self.root = f"/proc/self/fd/{self._folder}/disk"
        os.mkdir(self.root)
        for owner, name, made in _LED:
            setattr(owner, name, made)
        durable_files.DURABLE_FOLDERS = _OfEachProcess(self._folders)
        _places.lead_here()
        _disk = self
        return self

    def __exit__(self, *error: object) -> None:
        global _disk
        # what processes left behind closes its files now, or never
        gc.collect()
        for reference in tuple(locks_and_pages._locks):
            if (lock := reference()) is not None and vars(lock)["_file"] in self.opened:
                vars(lock)["_file"] = -1
        _disk = None
        _places.lead_back()
        durable_files.DURABLE_FOLDERS = {}
        for owner, name, real in _REALS:
            setattr(owner, name, real)
        for file in [*self.opened, *(file.cache for file in self._files), self._folder]:
            os.close(file)
        shutil.rmtree(self._base)

    # --- what goes wrong

    def power_loss(self, mood: str = "") -> None:
        """Have the power fail: all processes die, and the disk has what a device may have."""
        mood = mood or self.random.choice(("all", "nothing", "mixed", "mixed", "mixed"))
        self.world.note(f"the power fails; of what was not synced the disk has {mood}")
        for process in self.world.processes:
            process.die()
        self.power_losses += 1
        self.losses += 1
        self.boot += 1
        self.recover_faults()
        os.rename(self.root, f"{os.path.dirname(self.root)}/before-{self.boot}")
        self._tree = self._left(self._tree, self.root, mood, {})
        self.after_loss()

    def recover_faults(self) -> None:
        """End a full disk, and writes that fail."""
        self.free, self.is_failing = math.inf, False

    def _left(self, folder: Folder, path: str, mood: str, made: dict[File, tuple[File, str]]) -> Folder:
        _REAL["mkdir"](path)
        left, names = Folder(), folder.left(count_left(self.random, mood, len(folder.journal)))
        for name, node in sorted(names.items()):
            place = f"{path}/{name}"
            if isinstance(node, Folder):
                left.names[name] = self._left(node, place, mood, made)
            elif node in made:
                left.names[name], other = made[node]
                _REAL["link"](other, place)
            else:
                pages, size = node.left(self.random, mood)
                left.names[name] = self._made(place, pages, size, node.placed)
                made[node] = left.names[name], place
        left.sync()
        return left

    def _made(self, path: str, pages: dict[int, bytes], size: int, placed: set[int]) -> File:
        cache = _REAL["open"](path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        for page, data in pages.items():
            _REAL["pwrite"](cache, data, page * PAGE)
        _REAL["ftruncate"](cache, size)
        self._touch(cache)
        file = File(cache, pages, size, placed={page for page in placed if page * PAGE < size})
        self._files.append(file)
        return file

    def _step(
        self, kind: str, path: str, *, changes: bool = False, torn: Callable[[], None] | None = None
    ) -> Process:
        """Come to a call: others may go first, and what is likely may happen. Returns the process that calls."""
        fiber = living()
        self.world.count_call()
        if self.world.story is not None:
            self.world.note(f"{fiber.process.name} {kind} {self._short(path)}")
        if self.world.schedule is not None:
            self._follow_schedule(fiber.process, kind, path, changes=changes)
        if changes:
            self._meet_fate(fiber.process, torn)
        elif self.random.random() < self.faults.unreadable and kind in ("read", "open"):
            self.world.note(f"{fiber.process.name} cannot {kind} {self._short(path)}")
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.random.random() < (0.1 if changes else 0.02):
            self.world.pause(self.random.expovariate(1 / 50e-6))
        return fiber.process

    def _follow_schedule(self, process: Process, kind: str, path: str, *, changes: bool) -> None:
        """Have happen what the world's schedule says of this call."""
        assert self.world.schedule is not None
        fault = self.world.schedule.meet(process, kind, self._short(path), writes=changes)
        if fault == "power":
            self.power_loss("nothing")
        elif fault == "death":
            self.replace(process)
        if not process.is_alive:
            raise ProcessDiedError

    def _meet_fate(self, process: Process, torn: Callable[[], None] | None) -> None:
        faults, draw = self.faults, self.random.random()
        if draw < faults.power:
            self.power_loss()
        elif (draw := draw - faults.power) < faults.death:
            if torn is not None and self.random.random() < 0.5:
                torn()
            self.replace(process)
        elif (draw := draw - faults.death) < faults.still:
            process.stand_still(self.random.uniform(0, faults.still_s))
            self.world.pause()
        elif (draw := draw - faults.still) < faults.full:
            self.free = min(self.free, self.random.randrange(8))
            self._for_a_while("the disk is full", (0.01, 1.0, 30.0))
        elif draw - faults.full < faults.failing:
            self.is_failing = True
            self._for_a_while("writes to the device fail", (0.001, 0.05, 2.0))
        if not process.is_alive:
            raise ProcessDiedError

    def _for_a_while(self, trouble: str, times_s: tuple[float, ...]) -> None:
        self.world.note(trouble)
        self.world.at(self.world.now + self.random.choice(times_s), self.recover_faults)

    # --- names; a method gets the place on this disk, and then what the call of `os` gets

    def place_of(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The path that a call means, if it is on this disk."""
        if isinstance(path, int):
            return self.opened[path].path if path in self.opened else None
        text = os.fsdecode(path)
        if dir_fd in self.opened:
            text = f"{self.opened[dir_fd].path}/{text}"
        return text if text == self.root or text.startswith(f"{self.root}/") else None

    def _short(self, path: str) -> str:
        return path[len(self.root) + 1 :]

    def _node(self, place: str) -> Folder | File | None:
        node: Folder | File | None = self._tree
        for name in filter(None, self._short(place).split("/")):
            node = node.names.get(name) if isinstance(node, Folder) else None
        return node

    def _note(self, place: str, change: Change) -> None:
        """Note a change of names in the folder of `place`; now and then the journal is written."""
        folder = self._node(os.path.dirname(place))
        assert isinstance(folder, Folder)
        folder.note(change)
        if self.random.random() < self.faults.writeback:
            count = self.random.randrange(len(folder.journal) + 1)
            folder.durable, folder.journal = folder.left(count), folder.journal[count:]

    def _check_room(self, place: str) -> None:
        """A folder may have room for a name on a full disk."""
        if self.free < 1 and self.random.random() < 0.5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place)

    def open(self, place: str, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """As `os.open`."""
        creates = bool(flags & os.O_CREAT)
        process = self._step("create" if creates else "open", place, changes=creates and self._node(place) is None)
        is_new = creates and self._node(place) is None
        if is_new:
            self._check_room(place)
        file: int = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        if is_new:
            self._files.append(File(_REAL["open"](place, os.O_RDWR | os.O_CLOEXEC)))
            self._note(place, {os.path.basename(place): self._files[-1]})
            self._touch(file)
        node = self._node(place)
        assert node is not None
        opened = self.opened[file] = Opened(node, place, process)
        if isinstance(node, File):
            self._forget(node, opened)
            opened.told = node.errors if node.is_told else node.errors - 1
        return file

    def _forget(self, node: File, but: Opened) -> None:
        """When nobody had a file open, the system may have forgotten an error, and what the device did not take."""
        if node.refused or not node.is_told:
            others = (each for each in self.opened.values() if each.node is node and each is not but)
            if not any(each.process.is_alive for each in others) and self.random.random() < 0.5:
                node.drop()
                node.is_told = True

    def close(self, file: int) -> None:
        """As `os.close`; nobody else goes first, since finalizers close files."""
        opened = self.opened.pop(file, None)
        _REAL["close"](file)
        if opened is not None:
            opened.copies -= 1
            if not opened.copies:
                self._unlock(opened)

    def dup(self, opened: Opened, file: int) -> int:
        """As `os.dup`."""
        copy: int = _REAL["dup"](file)
        self.opened[copy] = opened
        opened.copies += 1
        return copy

    def link(self, place: str, target: str, source: str) -> None:
        """As `os.link`; when writes fail, an error may not say whether there is a link."""
        self._step("link", place, changes=True)
        self._check_room(place)
        is_unclear = self.is_failing and self.random.random() < 0.3
        if not is_unclear or self.random.random() < 0.5:
            _REAL["link"](source, target)
            self._note(place, {os.path.basename(place): self._node(source)})
        if is_unclear:
            raise OSError(errno.EIO, os.strerror(errno.EIO), place)

    def rename(self, place: str, target: str, source: str) -> None:
        """As `os.replace`, in one folder."""
        assert os.path.dirname(place) == os.path.dirname(source)
        self._step("rename", place, changes=True)
        node = self._node(source)
        _REAL["replace"](source, target)
        self._note(place, {os.path.basename(place): node, os.path.basename(source): None})

    def remove(self, name: str, place: str, path: Any, **options: Any) -> None:
        """As `os.unlink` and `os.rmdir`."""
        self._step(name, place, changes=True)
        _REAL[name](path, **options)
        self._note(place, {os.path.basename(place): None})

    def mkdir(self, place: str, path: Any, mode: int = 0o777) -> None:
        """As `os.mkdir`."""
        self._step("mkdir", place, changes=True)
        self._check_room(place)
        _REAL["mkdir"](path, mode)
        self._note(place, {os.path.basename(place): Folder()})

    def utime(self, place: str, path: Any) -> None:
        """As `os.utime`: now is the time of the machine's clock."""
        self._step("touch", place)
        self._touch(path)

    def _touch(self, path: Any) -> None:
        fiber = current()
        if fiber is not None:
            now_ns = fiber.process.now_ns()
            _REAL["utime"](path, ns=(now_ns, now_ns))

    def look(self, name: str, place: str, *arguments: Any, **options: Any) -> Any:
        """As the function of `os` of that name, which looks at names."""
        self._step("look at", place)
        return _REAL[name](*arguments, **options)

    def listdir(self, place: str, path: Any) -> list[str]:
        """As `os.listdir`; names have no order."""
        names = self.look("listdir", place, path)
        return self._order.sample(sorted(names), len(names))

    def scandir(self, place: str, path: Any) -> AbstractContextManager[Iterator[Any]]:
        """As `os.scandir`; entries have no order."""
        with self.look("scandir", place, path) as entries:
            found = sorted(entries, key=attrgetter("name"))
        return nullcontext(iter(self._order.sample(found, len(found))))

    def realpath(self, place: str, path: Any) -> str:
        """As `os.path.realpath`: there are no links."""
        return place

    # --- bytes; a method gets what is open, and then what the call gets

    def read(self, name: str, opened: Opened, *arguments: Any) -> Any:
        """As the function of `os` of that name, which reads a file."""
        self._step("read", opened.path)
        if isinstance(opened.node, File) and opened.node.refused:
            self._may_write_back(opened.node)
        return _REAL[name](*arguments)

    def pwrite(self, opened: Opened, file: int, data: Any, offset: int) -> int:
        """As `os.pwrite`."""
        node, view = opened.file, memoryview(data).cast("B")

        def put(count: int) -> int:
            before = node.size
            done: int = _REAL["pwrite"](node.cache, view[:count], offset)
            node.wrote(offset, offset + done, before)
            self._touch(node.cache)
            return done

        def tear() -> None:
            # a process is killed between two pages
            ends = [end - offset for end in range(offset // PAGE * PAGE + PAGE, offset + view.nbytes, PAGE)]
            if ends:
                put(self.random.choice(ends))

        self._step(f"write {view.nbytes} ({crc32c(view):08x}) at {offset} of", opened.path, changes=True, torn=tear)
        done = put(self._fitting(node, offset, view.nbytes, opened.path))
        self._may_write_back(node)
        return done

    def write(self, opened: Opened, file: int, data: Any) -> int:
        """As `os.write`."""
        position = os.lseek(file, 0, os.SEEK_CUR)
        done = self.pwrite(opened, file, data, position)
        os.lseek(file, position + done, os.SEEK_SET)
        return done

    def writev(self, opened: Opened, file: int, parts: Iterable[Any]) -> int:
        """As `os.writev`."""
        return self.write(opened, file, b"".join(parts))

    def _fitting(self, node: File, offset: int, size: int, path: str) -> int:
        """How many bytes find their place on the disk."""
        for page in range(offset // PAGE, -(-(offset + size) // PAGE)):
            if page in node.placed:
                continue
            if self.free < 1:
                count = max(page * PAGE - offset, 0)
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                return count
            self.free -= 1
            node.placed.add(page)
        return size

    def ftruncate(self, opened: Opened, file: int, size: int) -> None:
        """As `os.ftruncate`."""
        node = opened.file
        self._step(f"cut to {size}", opened.path, changes=True)
        before = node.size
        if self.refusals and size < before:
            self.losses += 1
        _REAL["ftruncate"](node.cache, size)
        node.resized(size, before)
        self._touch(node.cache)
        self._may_write_back(node)

    def posix_fallocate(self, opened: Opened, file: int, offset: int, size: int) -> None:
        """As `os.posix_fallocate`."""
        node = opened.file
        self._step(f"allocate {size} of", opened.path, changes=True)
        missing = set(range(offset // PAGE, -(-(offset + size) // PAGE))) - node.placed
        if len(missing) > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), opened.path)
        self.free -= len(missing)
        before = node.size
        _REAL["posix_fallocate"](node.cache, offset, size)
        node.placed |= missing
        if offset + size > before:
            node.resized(offset + size, before)

    def _may_write_back(self, node: File) -> None:
        """The system writes some pages to the device now and then, which may fail, or drops some."""
        if self.random.random() >= self.faults.writeback:
            return
        if node.refused and self.random.random() < 0.5:
            node.drop()
        # pages that a cut freed are not touched before the cut is on the device
        end = min((size for size, is_cut in node.sizes if is_cut), default=math.inf)
        pages = [page for page in sorted(node.dirty) if (page + 1) * PAGE <= end and self.random.random() < 0.5]
        if self.is_failing and not node.is_mapped and pages:
            self._refuse(node, set(pages))
        else:
            node.write_back(pages)

    def flip(self, place: str, begin: int, random: Random) -> None:
        """Flip a bit of the batch at `begin` of a file, where its checksum covers it."""
        node = self._node(place)
        assert isinstance(node, File)
        size = int.from_bytes(_REAL["pread"](node.cache, 4, begin + 8), "big")
        at = begin + random.randrange(21, 12 + size)
        (byte,) = _REAL["pread"](node.cache, 1, at)
        _REAL["pwrite"](node.cache, bytes([byte ^ 1 << random.randrange(8)]), at)
        self.world.note(f"a bit of {self._short(place)} flips at {at}")

    def _refuse(self, node: File, pages: set[int]) -> None:
        node.dirty -= pages
        node.refused |= pages
        node.errors, node.is_told = node.errors + 1, False
        self.refusals += 1
        self.losses += 1
        self.world.note(f"the device does not take pages {sorted(pages)}")

    def fsync(self, opened: Opened, file: int) -> None:
        """As `os.fsync`."""
        self._step("sync", opened.path, changes=True)
        # what is written meanwhile may be saved, too
        is_early = self.random.random() < 0.5
        is_saved = is_early and self._sync(opened)
        median, p99 = _SYNC_S
        self.world.pause(self.random.lognormvariate(math.log(median), math.log(p99 / median) / 2.326))
        if not (is_saved if is_early else self._sync(opened)):
            self.world.note(f"the sync of {self._short(opened.path)} fails")
            raise OSError(errno.EIO, os.strerror(errno.EIO), opened.path)

    def _sync(self, opened: Opened) -> bool:
        node = opened.node
        if isinstance(node, Folder):
            if self.is_failing and self.random.random() < 0.5:
                return False
            node.sync()
            return True
        if self.is_failing and node.dirty and not node.is_mapped:
            lost = {page for page in sorted(node.dirty) if self.random.random() < 0.5}
            self._refuse(node, lost or {self.random.choice(sorted(node.dirty))})
        node.sync()
        is_told, opened.told, node.is_told = opened.told == node.errors, node.errors, True
        return is_told

    # --- locks, and pages of maps

    def flock(self, opened: Opened, file: int, operation: int) -> None:
        """As `fcntl.flock`; a lock is free when the process that held it is no more."""
        if operation & fcntl.LOCK_UN:
            living()
            self._unlock(opened)
            return
        process, node = self._step("lock", opened.path), opened.file
        if not self._is_free(node, opened):
            # who looks again and again comes to look now, or later
            fiber = living()
            node.waiting.append((fiber, fiber.token))
            self.world.resume_at(self.world.now + self.random.uniform(0, _LOOK_S), fiber)
            self.world.wait(fiber)
        if not self._is_free(node, opened):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        node.holder = opened
        self.world.note(f"{process.name} locks {self._short(opened.path)}")

    def _is_free(self, node: File, opened: Opened) -> bool:
        return node.holder is None or node.holder is opened or not node.holder.process.is_alive

    def _unlock(self, opened: Opened) -> None:
        node = opened.node
        if isinstance(node, File) and node.holder is opened:
            node.holder = None
            self.world.wake_next(node.waiting)

    def holders_of(self, file: int) -> list[int]:
        """As what the system tells of the lock of an open file."""
        opened = self.opened.get(file)
        holder = opened.node.holder if opened is not None and isinstance(opened.node, File) else None
        return [holder.process.pid] if holder is not None and holder.process.is_alive else []

    def mapped(self, file: int) -> File | None:
        """The file of a descriptor, which is mapped from now on."""
        opened = self.opened.get(file)
        if opened is None:
            return None
        opened.file.is_mapped = True
        return opened.file

    def write_page(self, page: Any, value: bytes) -> None:
        """As `SharedPage.write`: a process may die when half of it is written."""

        def tear() -> None:
            data = vars(page)["_page"]
            before = bytes(data)
            _WRITE_PAGE(page, value)
            after = bytes(data)
            changed = [at for at in range(PAGE) if before[at] != after[at]]
            at = self.random.choice(changed or [0])
            data[at:] = before[at:]

        self._step(f"write the page ({crc32c(value):08x})", f"{self.root}/", changes=True, torn=tear)
        _WRITE_PAGE(page, value)
        for node in page.simulated:
            node.dirty.add(0)
            self._may_write_back(node)


# ---
# Where the library's names lead within a world.


class _OfEachProcess(dict[str, Any]):
    """What each process keeps for itself, although the module has it once."""

    def __init__(self, kept: dict[int, dict[str, Any]]) -> None:
        super().__init__()
        self._kept = kept

    def _own(self) -> dict[str, Any]:
        fiber = current()
        return self._kept.setdefault(fiber.process.pid if fiber else 0, {})

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self._own().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        self._own()[key] = value


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda disk, *arguments, **options: method(disk, name, *arguments, **options)


_disk: LocalDisk | None = None
#: What handles a call that begins with a path, and one that begins with a descriptor.
_BY_PATH: dict[str, Callable[..., Any]] = {
    **{name: getattr(LocalDisk, name) for name in ("open", "mkdir", "utime", "listdir", "scandir")},
    **{name: _named(LocalDisk.remove, name) for name in ("unlink", "rmdir")},
    "stat": _named(LocalDisk.look, "stat"),
}
_BY_FILE: dict[str, Callable[..., Any]] = {
    **{name: getattr(LocalDisk, name) for name in ("dup", "pwrite", "write", "writev", "ftruncate")},
    **{name: getattr(LocalDisk, name) for name in ("posix_fallocate", "fsync")},
    **{name: _named(LocalDisk.read, name) for name in ("read", "pread", "preadv")},
}
_REAL: dict[str, Any] = {name: getattr(os, name) for name in (*_BY_PATH, *_BY_FILE, "link", "replace", "close")}
_FLOCK, _FCNTL = fcntl.flock, fcntl.fcntl
_WRITE_PAGE, _ADD, _TELL, _INIT = SharedPage.write, SharedPage.add, SharedPage.record_holder, SharedPage.__init__


def _here() -> LocalDisk | None:
    """The disk, for the calls of a simulated process."""
    return _disk if isinstance(getcurrent(), Fiber) else None


def _led_by_path(real: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        disk = _here()
        place = disk.place_of(path, options.get("dir_fd")) if disk is not None else None
        return (
            real(path, *arguments, **options) if place is None else method(disk, place, path, *arguments, **options)
        )

    return call


def _led_by_file(real: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(file: int, *arguments: Any) -> Any:
        disk = _here()
        opened = disk.opened.get(file) if disk is not None else None
        return real(file, *arguments) if opened is None else method(disk, opened, file, *arguments)

    return call


def _led_to_target(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    real = _REAL[name]

    def call(source: Any, target: Any) -> None:
        disk = _here()
        place = disk.place_of(target) if disk is not None else None
        return real(source, target) if place is None else method(disk, place, target, source)

    return call


def _close(file: int) -> None:
    (_REAL["close"] if _disk is None else _disk.close)(file)


def _fcntl(file: int, command: int, argument: Any = 0) -> Any:
    if _disk is not None and command == fcntl.F_SETFL and file in _disk.opened:
        return 0  # all writes go through the cache
    return _FCNTL(file, command, argument)


def boot_id() -> bytes:
    """As `locks_and_pages.boot_id`: another one after each power loss."""
    return disk.boot.to_bytes(16, "big") if (disk := _here()) else _BOOT_ID()


def _holders_of(file: int) -> list[int]:
    return disk.holders_of(file) if (disk := _here()) else _HOLDERS_OF(file)


def _init_page(page: Any, descriptor: int, path: str, copy: Any = None) -> None:
    _INIT(page, descriptor, path, copy)
    node = disk.mapped(descriptor) if (disk := _here()) else None
    page.simulated = [each for each in (node, *(copy.simulated if copy else ())) if each is not None]


def _write_page(page: Any, value: bytes) -> None:
    (disk.write_page if (disk := _here()) else _WRITE_PAGE)(page, value)


def _alive(real: Callable[..., None]) -> Callable[..., None]:
    """What a process does to its page in passing, unless it died."""

    def call(page: Any, *arguments: int) -> None:
        fiber = current()
        if fiber is not None:
            living()
        real(page, *arguments)

    return call


_BOOT_ID, _HOLDERS_OF = locks_and_pages.boot_id, locks_and_pages._holders_of
_LED: list[tuple[Any, str, Any]] = [
    *((os, name, _led_by_path(_REAL[name], method)) for name, method in _BY_PATH.items()),
    *((os, name, _led_by_file(_REAL[name], method)) for name, method in _BY_FILE.items()),
    (os, "link", _led_to_target("link", LocalDisk.link)),
    (os, "replace", _led_to_target("replace", LocalDisk.rename)),
    (os, "close", _close),
    (os.path, "realpath", _led_by_path(os.path.realpath, LocalDisk.realpath)),
    (fcntl, "flock", _led_by_file(_FLOCK, LocalDisk.flock)),
    (fcntl, "fcntl", _fcntl),
    (locks_and_pages, "_holders_of", _holders_of),
    (SharedPage, "__init__", _init_page),
    (SharedPage, "write", _write_page),
    (SharedPage, "add", _alive(_ADD)),
    (SharedPage, "record_holder", _alive(_TELL)),
]
_REALS = [(owner, name, getattr(owner, name)) for owner, name, _ in _LED]
#: The same, for those who have imported the names themselves, or have them as default arguments.
_places = Places(
    {_BOOT_ID: boot_id, durable_files.known_local_disk: lambda folder: True, _REAL["close"]: _close},
)
