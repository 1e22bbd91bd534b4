"""A local disk in simulated time: page cache, failed syncs, power losses, full disks, and locks of processes.

Files in a folder in memory are the page cache, so the library's reads and maps are real. A second tree has the state
of the device. Each call that touches the disk comes here first: then fibers switch, processes die or are paused, and
the power fails.
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

from distlog.core.storage import local_files, locks_and_pages
from distlog.core.storage.locks_and_pages import SharedPage
from simulation.device import PAGE, Change, File, Folder, count_surviving
from simulation.rebound_names import ReboundNames
from simulation.threads import Fiber, ProcessDiedError, current, living
from simulation.world import MEMORY, Process, World

#: The lowest descriptor of the folder of a disk.
_FOLDER = 700
#: The longest time between two attempts to get a lock of another process, in s.
_LOOK_S = 0.5
#: Median and 99th percentile of a sync, in s.
_SYNC_S = (0.001, 0.020)


@dataclass(slots=True)
class DiskFaults:
    """The probability of each fault at a call that changes something."""

    death: float = 0.0
    still: float = 0.0
    still_s: float = 0.0
    power: float = 0.0
    #: The disk has only a few pages left, for a while.
    full: float = 0.0
    #: Writes to the device fail, for a while.
    failing: float = 0.0
    #: A call that reads fails.
    unreadable: float = 0.0
    #: The system writes pages to the device, or drops from its cache pages that it could not write.
    writeback: float = 0.2


# ---
# The disk.


@dataclass(eq=False, slots=True)
class OpenFile:
    """An open file or folder of a process; `reported` counts the errors of the file that it returned."""

    node: Folder | File
    path: str
    process: Process
    reported: int = 0
    copies: int = 1

    @property
    def file(self) -> File:
        assert isinstance(self.node, File)
        return self.node


class LocalDisk:
    """The disk of the machine of a world: everything in the folder `root`.

    `with disk, world:` redirects the library to it. `replace` ends a process and starts another one. `after_loss` is
    called after the power failed, and may start processes.
    """

    def __init__(self, world: World) -> None:
        self.world, self.random, self.faults = world, Random(f"disk/{world.seed}"), DiskFaults()
        self._order = Random(f"order of names/{world.seed}")
        self.replace: Callable[[Process], None] = Process.die
        self.after_loss: Callable[[], None] = lambda: None
        self.boot, self.power_losses, self.refusals = 1, 0, 0
        #: How often unsynced data may have been lost, or was cut off since it was lost.
        self.losses = 0
        #: The free pages of a full disk, and whether writes to the device fail.
        self.free: float = math.inf
        self.is_failing = False
        #: How often the disk was full, or writes to the device failed.
        self.troubles = 0
        self._tree = Folder()
        self._files: list[File] = []
        self.open_files: dict[int, OpenFile] = {}
        self._folders: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> LocalDisk:
        global _disk
        # existing objects take no part in the collection at the end of a history
        gc.freeze()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))
        self._base = tempfile.mkdtemp(prefix="simulated-disk-", dir=MEMORY)
        folder = os.open(self._base, os.O_RDONLY | os.O_CLOEXEC)
        # the same path in every process
        self._folder = fcntl.fcntl(folder, fcntl.F_DUPFD_CLOEXEC, _FOLDER)
        os.close(folder)
        self.root = f"/proc/self/fd/{self._folder}/disk"
        os.mkdir(self.root)
        for owner, name, simulated in _REDIRECTED:
            setattr(owner, name, simulated)
        local_files.DURABLE_FOLDERS = _PerProcess(self._folders)
        _rebound_names.install()
        _disk = self
        return self

    def __exit__(self, *error: object) -> None:
        global _disk
        # unreachable files of processes close now or never
        gc.collect()
        for reference in tuple(locks_and_pages._locks):
            if (lock := reference()) is not None and vars(lock)["_file"] in self.open_files:
                vars(lock)["_file"] = -1
        _disk = None
        _rebound_names.restore()
        local_files.DURABLE_FOLDERS = {}
        for owner, name, real in _REALS:
            setattr(owner, name, real)
        for file in [*self.open_files, *(file.cache for file in self._files), self._folder]:
            os.close(file)
        shutil.rmtree(self._base)

    # --- faults

    def power_loss(self, mood: str = "") -> None:
        """Let the power fail: all processes die, and the disk gets a possible state of the device."""
        mood = mood or self.random.choice(("all", "nothing", "mixed", "mixed", "mixed"))
        self.world.note(f"the power fails; of what was not synced the disk has {mood}")
        for process in self.world.processes:
            process.die()
        self.power_losses += 1
        self.losses += 1
        self.boot += 1
        self.recover_faults()
        os.rename(self.root, f"{os.path.dirname(self.root)}/before-{self.boot}")
        self._tree = self._after_loss(self._tree, self.root, mood, {})
        self.after_loss()

    def recover_faults(self) -> None:
        self.free, self.is_failing = math.inf, False

    @property
    def faults_so_far(self) -> tuple[int, ...]:
        """Counts that change with each fault that a sync meets; 0 at the end while the disk works."""
        return self.refusals, self.losses, self.boot, self.troubles, int(self.is_failing or self.free < math.inf)

    def _after_loss(self, folder: Folder, path: str, mood: str, copies: dict[File, tuple[File, str]]) -> Folder:
        _REAL["mkdir"](path)
        survivor = Folder()
        for name, node in sorted(folder.after_loss(count_surviving(self.random, mood, len(folder.journal))).items()):
            location = f"{path}/{name}"
            if isinstance(node, Folder):
                survivor.names[name] = self._after_loss(node, location, mood, copies)
            elif node in copies:
                survivor.names[name], other = copies[node]
                _REAL["link"](other, location)
            else:
                pages, size = node.after_loss(self.random, mood)
                survivor.names[name] = self._new_file(location, pages, size, node.allocated)
                copies[node] = survivor.names[name], location
        survivor.sync()
        return survivor

    def _new_file(self, path: str, pages: dict[int, bytes], size: int, allocated: set[int]) -> File:
        cache = _REAL["open"](path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        for page, data in pages.items():
            _REAL["pwrite"](cache, data, page * PAGE)
        _REAL["ftruncate"](cache, size)
        self._touch(cache)
        file = File(cache, pages, size, allocated={page for page in allocated if page * PAGE < size})
        self._files.append(file)
        return file

    def _step(
        self, kind: str, path: str, *, changes: bool = False, torn: Callable[[], None] | None = None
    ) -> Process:
        """Count a call, and let other fibers, faults and pauses come first. Returns the calling process."""
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
        """Apply the fault of the world's schedule at this call."""
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
        self.troubles += 1
        self.world.call_at(self.world.now + self.random.choice(times_s), self.recover_faults)

    # --- names; a method gets the location on this disk, and then the arguments of the `os` function

    def location_of(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the path that a call means, if it is on this disk."""
        if isinstance(path, int):
            return self.open_files[path].path if path in self.open_files else None
        text = os.fsdecode(path)
        if dir_fd in self.open_files:
            text = f"{self.open_files[dir_fd].path}/{text}"
        return text if text == self.root or text.startswith(f"{self.root}/") else None

    def _short(self, path: str) -> str:
        return path[len(self.root) + 1 :]

    def _node(self, location: str) -> Folder | File | None:
        node: Folder | File | None = self._tree
        for name in filter(None, self._short(location).split("/")):
            node = node.names.get(name) if isinstance(node, Folder) else None
        return node

    def _note(self, location: str, change: Change) -> None:
        """Note a change of names in the folder of `location`, and perhaps write the journal."""
        folder = self._node(os.path.dirname(location))
        assert isinstance(folder, Folder)
        folder.note(change)
        if self.random.random() < self.faults.writeback:
            count = self.random.randrange(len(folder.journal) + 1)
            folder.durable, folder.journal = folder.after_loss(count), folder.journal[count:]

    def _check_room(self, location: str) -> None:
        """Raise, perhaps, if a full disk has no room for a name."""
        if self.free < 1 and self.random.random() < 0.5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), location)

    def open(self, location: str, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        creates = bool(flags & os.O_CREAT)
        process = self._step(
            "create" if creates else "open", location, changes=creates and self._node(location) is None
        )
        is_new = creates and self._node(location) is None
        if is_new:
            self._check_room(location)
        file: int = _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        if is_new:
            self._files.append(File(_REAL["open"](location, os.O_RDWR | os.O_CLOEXEC)))
            self._note(location, {os.path.basename(location): self._files[-1]})
            self._touch(file)
        node = self._node(location)
        assert node is not None
        open_file = self.open_files[file] = OpenFile(node, location, process)
        if isinstance(node, File):
            self._drop_errors(node, open_file)
            open_file.reported = node.errors if node.is_reported else node.errors - 1
        return file

    def _drop_errors(self, node: File, new: OpenFile) -> None:
        """Forget an error and the refused pages, perhaps, if nobody had the file open."""
        if node.refused or not node.is_reported:
            openers = (file for file in self.open_files.values() if file.node is node and file is not new)
            if not any(file.process.is_alive for file in openers) and self.random.random() < 0.5:
                node.drop()
                node.is_reported = True

    def close(self, file: int) -> None:
        """Close a file without a switch of fibers, since finalizers close files."""
        open_file = self.open_files.pop(file, None)
        _REAL["close"](file)
        if open_file is not None:
            open_file.copies -= 1
            if not open_file.copies:
                self._unlock(open_file)

    def dup(self, open_file: OpenFile, file: int) -> int:
        copy: int = _REAL["dup"](file)
        self.open_files[copy] = open_file
        open_file.copies += 1
        return copy

    def link(self, location: str, target: str, source: str) -> None:
        """Like `os.link`; after a failed write the link may exist or not."""
        self._step("link", location, changes=True)
        self._check_room(location)
        is_unclear = self.is_failing and self.random.random() < 0.3
        if not is_unclear or self.random.random() < 0.5:
            _REAL["link"](source, target)
            self._note(location, {os.path.basename(location): self._node(source)})
        if is_unclear:
            raise OSError(errno.EIO, os.strerror(errno.EIO), location)

    def rename(self, location: str, target: str, source: str) -> None:
        """Like `os.replace`, in one folder."""
        assert os.path.dirname(location) == os.path.dirname(source)
        self._step("rename", location, changes=True)
        node = self._node(source)
        _REAL["replace"](source, target)
        self._note(location, {os.path.basename(location): node, os.path.basename(source): None})

    def remove(self, name: str, location: str, path: Any, **options: Any) -> None:
        """Like `os.unlink` and `os.rmdir`."""
        self._step(name, location, changes=True)
        _REAL[name](path, **options)
        self._note(location, {os.path.basename(location): None})

    def mkdir(self, location: str, path: Any, mode: int = 0o777) -> None:
        self._step("mkdir", location, changes=True)
        self._check_room(location)
        _REAL["mkdir"](path, mode)
        self._note(location, {os.path.basename(location): Folder()})

    def utime(self, location: str, path: Any, times: tuple[float, float] | None = None) -> None:
        self._step("touch", location)
        if times is None:
            self._touch(path)
        else:
            _REAL["utime"](path, times)

    def _touch(self, path: Any) -> None:
        fiber = current()
        if fiber is not None:
            now_ns = fiber.process.now_ns()
            _REAL["utime"](path, ns=(now_ns, now_ns))

    def read_names(self, name: str, location: str, *arguments: Any, **options: Any) -> Any:
        self._step("look at", location)
        return _REAL[name](*arguments, **options)

    def listdir(self, location: str, path: Any) -> list[str]:
        names = self.read_names("listdir", location, path)
        return self._order.sample(sorted(names), len(names))

    def scandir(self, location: str, path: Any) -> AbstractContextManager[Iterator[Any]]:
        with self.read_names("scandir", location, path) as entries:
            ordered = sorted(entries, key=attrgetter("name"))
        return nullcontext(iter(self._order.sample(ordered, len(ordered))))

    def realpath(self, location: str, path: Any) -> str:
        """Return the path: there are no links."""
        return location

    # --- bytes; a method gets the open file, and then the arguments of the call

    def read(self, name: str, open_file: OpenFile, *arguments: Any) -> Any:
        self._step("read", open_file.path)
        if isinstance(open_file.node, File) and open_file.node.refused:
            self._may_write_back(open_file.node)
        return _REAL[name](*arguments)

    def pwrite(self, open_file: OpenFile, file: int, data: Any, offset: int) -> int:
        node, view = open_file.file, memoryview(data).cast("B")

        def put(count: int) -> int:
            size = node.size
            written: int = _REAL["pwrite"](node.cache, view[:count], offset)
            node.wrote(offset, offset + written, size)
            self._touch(node.cache)
            return written

        def tear() -> None:
            # a process is killed between two pages
            ends = [end - offset for end in range(offset // PAGE * PAGE + PAGE, offset + view.nbytes, PAGE)]
            if ends:
                put(self.random.choice(ends))

        self._step(
            f"write {view.nbytes} ({crc32c(view):08x}) at {offset} of", open_file.path, changes=True, torn=tear
        )
        written = put(self._fitting(node, offset, view.nbytes, open_file.path))
        self._may_write_back(node)
        return written

    def write(self, open_file: OpenFile, file: int, data: Any) -> int:
        position = os.lseek(file, 0, os.SEEK_CUR)
        written = self.pwrite(open_file, file, data, position)
        os.lseek(file, position + written, os.SEEK_SET)
        return written

    def writev(self, open_file: OpenFile, file: int, parts: Iterable[Any]) -> int:
        return self.write(open_file, file, b"".join(parts))

    def _fitting(self, node: File, offset: int, size: int, path: str) -> int:
        """Return the number of bytes that fit on the disk."""
        for page in range(offset // PAGE, -(-(offset + size) // PAGE)):
            if page in node.allocated:
                continue
            if self.free < 1:
                count = max(page * PAGE - offset, 0)
                if not count:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                return count
            self.free -= 1
            node.allocated.add(page)
        return size

    def ftruncate(self, open_file: OpenFile, file: int, size: int) -> None:
        node = open_file.file
        self._step(f"cut to {size}", open_file.path, changes=True)
        old_size = node.size
        if self.refusals and size < old_size:
            self.losses += 1
        _REAL["ftruncate"](node.cache, size)
        node.resized(size, old_size)
        self._touch(node.cache)
        self._may_write_back(node)

    def posix_fallocate(self, open_file: OpenFile, file: int, offset: int, size: int) -> None:
        node = open_file.file
        self._step(f"allocate {size} of", open_file.path, changes=True)
        missing = set(range(offset // PAGE, -(-(offset + size) // PAGE))) - node.allocated
        if len(missing) > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), open_file.path)
        self.free -= len(missing)
        old_size = node.size
        _REAL["posix_fallocate"](node.cache, offset, size)
        node.allocated |= missing
        if offset + size > old_size:
            node.resized(offset + size, old_size)

    def _may_write_back(self, node: File) -> None:
        """Let the system write some pages to the device, which may fail, or drop refused ones."""
        if self.random.random() >= self.faults.writeback:
            return
        if node.refused and self.random.random() < 0.5:
            node.drop()
        # pages that a cut freed are not written before the cut is durable
        end = min((size for size, is_cut in node.sizes if is_cut), default=math.inf)
        pages = [page for page in sorted(node.dirty) if (page + 1) * PAGE <= end and self.random.random() < 0.5]
        if self.is_failing and not node.is_mapped and pages:
            self._refuse(node, set(pages))
        else:
            node.write_back(pages)

    def flip(self, location: str, begin: int, random: Random) -> None:
        """Flip a bit that the checksum of the batch at `begin` covers."""
        node = self._node(location)
        assert isinstance(node, File)
        size = int.from_bytes(_REAL["pread"](node.cache, 4, begin + 8), "big")
        position = begin + random.randrange(21, 12 + size)
        (byte,) = _REAL["pread"](node.cache, 1, position)
        _REAL["pwrite"](node.cache, bytes([byte ^ 1 << random.randrange(8)]), position)
        self.world.note(f"a bit of {self._short(location)} flips at {position}")

    def _refuse(self, node: File, pages: set[int]) -> None:
        node.dirty -= pages
        node.refused |= pages
        node.errors, node.is_reported = node.errors + 1, False
        self.refusals += 1
        self.losses += 1
        self.world.note(f"the device does not take pages {sorted(pages)}")

    def fsync(self, open_file: OpenFile, file: int) -> None:
        self._step("sync", open_file.path, changes=True)
        # concurrent writes may become durable, too
        is_early = self.random.random() < 0.5
        is_saved = is_early and self._sync(open_file)
        median, p99 = _SYNC_S
        self.world.pause(self.random.lognormvariate(math.log(median), math.log(p99 / median) / 2.326))
        if not (is_saved if is_early else self._sync(open_file)):
            self.world.note(f"the sync of {self._short(open_file.path)} fails")
            raise OSError(errno.EIO, os.strerror(errno.EIO), open_file.path)

    def _sync(self, open_file: OpenFile) -> bool:
        node = open_file.node
        if isinstance(node, Folder):
            if self.is_failing and self.random.random() < 0.5:
                return False
            node.sync()
            return True
        if self.is_failing and node.dirty and not node.is_mapped:
            refused = {page for page in sorted(node.dirty) if self.random.random() < 0.5}
            self._refuse(node, refused or {self.random.choice(sorted(node.dirty))})
        node.sync()
        succeeded, open_file.reported = open_file.reported == node.errors, node.errors
        node.is_reported = True
        return succeeded

    # --- locks, and pages of maps

    def flock(self, open_file: OpenFile, file: int, operation: int) -> None:
        """Like `fcntl.flock`; a lock becomes free when its process dies."""
        if operation & fcntl.LOCK_UN:
            living()
            self._unlock(open_file)
            return
        process, node = self._step("lock", open_file.path), open_file.node
        if not self._is_free(node, open_file):
            # a process that polls the lock tries again at any time
            fiber = living()
            node.waiting.append((fiber, fiber.token))
            self.world.resume_at(self.world.now + self.random.uniform(0, _LOOK_S), fiber)
            self.world.wait(fiber)
        if not self._is_free(node, open_file):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        node.holder = open_file
        self.world.note(f"{process.name} locks {self._short(open_file.path)}")

    def _is_free(self, node: Folder | File, open_file: OpenFile) -> bool:
        return node.holder is None or node.holder is open_file or not node.holder.process.is_alive

    def _unlock(self, open_file: OpenFile) -> None:
        if open_file.node.holder is open_file:
            open_file.node.holder = None
            self.world.wake_next(open_file.node.waiting)

    def holders_of(self, file: int) -> list[int]:
        """Return what the system reports as the holders of an open file's lock."""
        open_file = self.open_files.get(file)
        holder = open_file.node.holder if open_file is not None else None
        return [holder.process.pid] if holder is not None and holder.process.is_alive else []

    def mapped(self, file: int) -> File | None:
        """Return the file of a descriptor, and note that it is mapped."""
        open_file = self.open_files.get(file)
        if open_file is None:
            return None
        open_file.file.is_mapped = True
        return open_file.file

    def write_page(self, page: Any, value: bytes) -> None:
        """Like `SharedPage.write`; a process may die in the middle."""

        def tear() -> None:
            data = vars(page)["_page"]
            old = bytes(data)
            _WRITE_PAGE(page, value)
            new = bytes(data)
            changed = [index for index in range(PAGE) if old[index] != new[index]]
            cut = self.random.choice(changed or [0])
            data[cut:] = old[cut:]

        self._step(f"write the page ({crc32c(value):08x})", f"{self.root}/", changes=True, torn=tear)
        _WRITE_PAGE(page, value)
        for node in page.simulated:
            node.dirty.add(0)
            self._may_write_back(node)


# ---
# Redirects of the library's names.


class _PerProcess(dict[str, Any]):
    """A dictionary of the module with separate content for each process."""

    def __init__(self, contents: dict[int, dict[str, Any]]) -> None:
        super().__init__()
        self._contents = contents

    def _of_process(self) -> dict[str, Any]:
        fiber = current()
        return self._contents.setdefault(fiber.process.pid if fiber else 0, {})

    def get(self, key: str, default: Any = None) -> Any:
        return self._of_process().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        self._of_process()[key] = value


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    return lambda disk, *arguments, **options: method(disk, name, *arguments, **options)


_disk: LocalDisk | None = None
#: The handlers of calls whose first argument is a path, and of calls whose first argument is a descriptor.
_BY_PATH: dict[str, Callable[..., Any]] = {
    **{name: getattr(LocalDisk, name) for name in ("open", "mkdir", "utime", "listdir", "scandir")},
    **{name: _named(LocalDisk.remove, name) for name in ("unlink", "rmdir")},
    "stat": _named(LocalDisk.read_names, "stat"),
}
_BY_FILE: dict[str, Callable[..., Any]] = {
    **{name: getattr(LocalDisk, name) for name in ("dup", "pwrite", "write", "writev", "ftruncate")},
    **{name: getattr(LocalDisk, name) for name in ("posix_fallocate", "fsync")},
    **{name: _named(LocalDisk.read, name) for name in ("read", "pread", "preadv")},
}
_REAL: dict[str, Any] = {name: getattr(os, name) for name in (*_BY_PATH, *_BY_FILE, "link", "replace", "close")}
_FLOCK, _FCNTL = fcntl.flock, fcntl.fcntl
_WRITE_PAGE, _ADD, _RECORD_HOLDER, _INIT = (
    SharedPage.write,
    SharedPage.add,
    SharedPage.record_holder,
    SharedPage.__init__,
)


def _current_disk() -> LocalDisk | None:
    return _disk if isinstance(getcurrent(), Fiber) else None


def _redirect_path(real: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        disk = _current_disk()
        location = disk.location_of(path, options.get("dir_fd")) if disk is not None else None
        if location is None:
            return real(path, *arguments, **options)
        return method(disk, location, path, *arguments, **options)

    return call


def _redirect_file(real: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    def call(file: int, *arguments: Any) -> Any:
        disk = _current_disk()
        open_file = disk.open_files.get(file) if disk is not None else None
        return real(file, *arguments) if open_file is None else method(disk, open_file, file, *arguments)

    return call


def _redirect_target(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    real = _REAL[name]

    def call(source: Any, target: Any, **options: Any) -> None:
        disk = _current_disk()
        location = disk.location_of(target) if disk is not None else None
        # the disk has no symbolic links, which the options are about
        return real(source, target, **options) if location is None else method(disk, location, target, source)

    return call


def _close(file: int) -> None:
    (_REAL["close"] if _disk is None else _disk.close)(file)


def _fcntl(file: int, command: int, argument: Any = 0) -> Any:
    if _disk is not None and command == fcntl.F_SETFL and file in _disk.open_files:
        return 0  # all writes go through the cache
    return _FCNTL(file, command, argument)


def boot_id() -> bytes:
    """Like `locks_and_pages.boot_id`, with another value after each power loss."""
    return disk.boot.to_bytes(16, "big") if (disk := _current_disk()) else _BOOT_ID()


def _holders_of(file: int) -> list[int]:
    return disk.holders_of(file) if (disk := _current_disk()) else _HOLDERS_OF(file)


def _init_page(page: Any, descriptor: int, path: str, copy: Any = None) -> None:
    _INIT(page, descriptor, path, copy)
    node = disk.mapped(descriptor) if (disk := _current_disk()) else None
    page.simulated = [file for file in (node, *(copy.simulated if copy else ())) if file is not None]


def _write_page(page: Any, value: bytes) -> None:
    (disk.write_page if (disk := _current_disk()) else _WRITE_PAGE)(page, value)


def _alive(real: Callable[..., None]) -> Callable[..., None]:
    """Change a page without a step of the simulation, unless the process died."""

    def call(page: Any, *arguments: int) -> None:
        fiber = current()
        if fiber is not None:
            living()
        real(page, *arguments)

    return call


_BOOT_ID, _HOLDERS_OF = locks_and_pages.boot_id, locks_and_pages._holders_of
_REDIRECTED: list[tuple[Any, str, Any]] = [
    *((os, name, _redirect_path(_REAL[name], method)) for name, method in _BY_PATH.items()),
    *((os, name, _redirect_file(_REAL[name], method)) for name, method in _BY_FILE.items()),
    (os, "link", _redirect_target("link", LocalDisk.link)),
    (os, "replace", _redirect_target("replace", LocalDisk.rename)),
    (os, "close", _close),
    (os.path, "realpath", _redirect_path(os.path.realpath, LocalDisk.realpath)),
    (fcntl, "flock", _redirect_file(_FLOCK, LocalDisk.flock)),
    (fcntl, "fcntl", _fcntl),
    (locks_and_pages, "_holders_of", _holders_of),
    (SharedPage, "__init__", _init_page),
    (SharedPage, "write", _write_page),
    (SharedPage, "add", _alive(_ADD)),
    (SharedPage, "record_holder", _alive(_RECORD_HOLDER)),
]
_REALS = [(owner, name, getattr(owner, name)) for owner, name, _ in _REDIRECTED]
#: Names that modules have imported, or have as default arguments.
_rebound_names = ReboundNames(
    {_BOOT_ID: boot_id, local_files.known_local_disk: lambda folder: True, _REAL["close"]: _close},
)
