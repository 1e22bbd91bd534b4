"""Decorators and intrinsics of the kernels: the only module that imports numba."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import llvmlite.ir as ir  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import cgutils, types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary, get_host_cpu_features
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic, models, register_model, typeof_impl

from distlog.core import VERSION

#: Whether kernels are compiled; with NUMBA_DISABLE_JIT=1 they run as plain Python.
COMPILED: bool = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


def _operation(
    in_python: Callable[..., Any] | None = None, *, prefer_literal: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that makes a function an intrinsic of numba; if not COMPILED, `in_python` replaces it."""
    return intrinsic(prefer_literal=prefer_literal) if COMPILED else lambda _: in_python


def _has_crc_instruction() -> bool:
    # the environment variable NUMBA_CPU_FEATURES may name fewer features than this processor has
    config: Any = numba.config
    host_features: Any = get_host_cpu_features
    features = host_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return COMPILED and "+sse4.2" in features.split(",")


#: Whether the target has SSE 4.2; if not, nothing may call `crc_of_word`.
HAS_CRC_INSTRUCTION = _has_crc_instruction()


@_operation()
def crc_of_word(typing_context: Any, crc: Any, word: Any) -> Any:
    """Return the register `crc` after the eight bytes of `word`, both int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word_type = ir.IntType(64)
        kind = ir.FunctionType(word_type, [word_type, word_type])
        step = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind)
        return builder.call(step, args)

    return types.int64(types.int64, types.int64), codegen


_log = logging.getLogger("distlog")
_warn_once = cache(_log.warning)
_LOGGED_FROM_S = 1.0  # a process logs that it compiles kernels when its compilations have taken longer than this


class _Locator:
    """A locator of numba's cache: cached code is valid until any source of kernels changes.

    Numba's own locators also choose the folder of the code; _KernelCache does that here.
    """

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._line = function.__code__.co_firstlineno

    from_function = classmethod(lambda cls, function, file: cls(function, file))

    def get_cache_path(self) -> str:
        return ""

    def ensure_cache_path(self) -> None:
        """Do nothing: `save_overload` makes the folder."""

    def get_source_stamp(self) -> str:
        return sources_digest()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _KernelCode(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012


class _KernelCache(FunctionCache):
    """Numba's cache of a kernel: loads code from any trusted folder, and saves it in the first writable one."""

    _impl_class = _KernelCode
    _spent_s: ClassVar[float] = 0.0

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        config, new_index = cast(Any, numba.config), cast(Any, IndexDataCacheFile)
        name: str = self._impl.filename_base
        #: For each folder, numba's index of the code of this kernel. The base class uses only the index
        #: `_cache_file`, so the methods set it to the index of the folder that they try.
        self.indexes: dict[Path, Any] = {
            folder: new_index(str(folder), name, sources_digest()) for folder in code_folders(config.CACHE_DIR)
        }
        self._started_s = 0.0

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        for folder, index in self.indexes.items():
            self._cache_file = index
            if not folder.is_dir() or not _is_trusted(folder):
                continue
            try:
                overload = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
                if overload is not None:
                    return overload
            except (OSError, MemoryError):
                pass
            except Exception:  # a power loss may leave files empty or torn, since numba does not sync them
                with suppress(OSError):
                    index.flush()  # empties the index, so that the code is saved again
        self._started_s = time.monotonic()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        _KernelCache._spent_s += time.monotonic() - self._started_s
        for folder, index in self.indexes.items():
            self._cache_file = index
            if not _is_trusted(folder):
                continue
            with suppress(Exception):
                folder.mkdir(0o755, parents=True, exist_ok=True)
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
                if self._spent_s > _LOGGED_FROM_S:
                    _warn_once("compiling distlog's kernels, once for this version; cached in %s", folder)
                return
        _warn_once(
            "distlog's kernels are compiled again in each process, since no folder for the code can be written: set "
            "NUMBA_CACHE_DIR to a writable folder"
        )


def _is_trusted(folder: Path) -> bool:
    reason = distrust(folder)
    if reason is not None:
        _warn_once(
            "distlog's kernels are not cached in %s, where other users could replace the code: %s; set "
            "NUMBA_CACHE_DIR to a folder that only you can write",
            folder,
            reason,
        )
    return reason is None


#: The caches of all kernels, for `code_cache`.
_caches: list[_KernelCache] = []


@dataclass(frozen=True, slots=True)
class CodeCache:
    """The folder with the code of `compiled` of all `kernels`; or None, with the reason for each unusable folder."""

    folder: Path | None
    kernels: int
    compiled: int
    reasons: tuple[str, ...] = ()


def code_cache() -> CodeCache:
    config: Any = numba.config
    reasons = []
    for folder in code_folders(config.CACHE_DIR):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        compiled = sum(map(partial(_has_code, folder), _caches))
        reason = distrust(folder)
        if reason is None and (compiled or os.access(existing, os.W_OK)):
            return CodeCache(folder, len(_caches), compiled)
        reasons.append(reason or f"{existing} cannot be written")
    return CodeCache(None, len(_caches), 0, tuple(reasons))


def _has_code(folder: Path, kernel: _KernelCache) -> bool:
    with suppress(Exception):
        return distrust(folder) is None and bool(kernel.indexes[folder]._load_index())
    return False


_DONT_NEED = 4  # `MADV_DONTNEED` of Linux
#: Finds the addresses of LLVM's library in /proc/self/smaps. Matches only read-only mappings without changed pages
#: (`Anonymous`), since changed pages could not be read again from the file.
_LLVM_MAPPING = re.compile(r"^(\w+)-(\w+) r-.p .*/libllvmlite.*\n(?:[A-Z]\w+:.*\n)*?Anonymous: +0 kB$", re.MULTILINE)


@cache
def release_compiler() -> None:
    """Return the memory of LLVM's library to the system, about 60 MB. Loading a kernel reads the library again."""
    with suppress(OSError, AttributeError):  # another system than Linux
        mappings = _LLVM_MAPPING.findall(Path("/proc/self/smaps").read_text())
        advise = ctypes.CDLL(None).madvise
        for start, end in ((int(start, 16), int(end, 16)) for start, end in mappings):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)


def _compile_in_thread(compile_here: Callable[[Any], Any], signature: Any) -> Any:
    """Compile or load code in a thread that no signal interrupts, since Ctrl-C would leave LLVM's lock held."""
    # If this thread holds numba's lock, a new thread would wait for the lock forever. This thread holds it while it
    # compiles a user's function that calls a kernel, and in a signal handler that has interrupted a compilation.
    is_held: Any = global_compiler_lock.is_locked
    if threading.current_thread() is not threading.main_thread() or is_held():
        return compile_here(signature)
    results, is_running = list[Any](), threading.Lock()
    is_running.acquire()

    def compile_there() -> None:
        try:
            results.append((compile_here(signature), None))
        except BaseException as error:
            results.append((None, error))
        finally:
            is_running.release()

    try:
        threading.Thread(target=compile_there, name="distlog-compiler").start()
    except RuntimeError:  # the process has too many threads, or the interpreter is ending
        return compile_here(signature)
    # with a timeout: if a library has system calls restarted, as polars does, Ctrl-C does not end a wait without one
    while not is_running.acquire(timeout=threading.TIMEOUT_MAX):
        pass
    overload, error = results[0]
    if error is not None:
        raise error
    return overload


F = TypeVar("F", bound=Callable[..., Any])

#: `_nrt`: kernels create no arrays, so numba need not count references. Nothing calls a kernel from C.
_KERNEL: Any = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}
#: Only kernels call subroutines, so their code needs no Python wrapper.
_SUBROUTINE: Any = {**_KERNEL, "no_cpython_wrapper": True}

# A fork waits until no thread loads or compiles a kernel. Otherwise the child could never acquire numba's lock.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


def fill_kernel(function: F) -> F:
    """Compile `function` on the first call, to run without the interpreter lock; the code is cached if possible.

    The function fills arrays of its caller, and must not create arrays.
    """
    compiled: Any = numba.njit(**_KERNEL)(function)
    if COMPILED:
        compiled._cache = _KernelCache(function)
        compiled.compile = partial(_compile_in_thread, compiled.compile)
        _caches.append(compiled._cache)
    return cast(F, compiled)


class _SubroutineCode(JITCodeLibrary):
    """The code of a subroutine. It is not optimized and has no machine code, since LLVM inlines it into kernels."""

    def _optimize_final_module(self) -> None:
        """Do nothing: LLVM optimizes the kernel later."""

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return no address: there is no machine code."""
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        return 0

    @property
    def codegen(self) -> _SubroutineCode:
        """Return this object, whose `set_env` numba calls."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: only code that calls Python needs an environment."""


class _SubroutineCompiler(Compiler):
    def define_pipelines(self) -> Any:
        # numba calls this before it makes a library, which it does only if the state has none
        state, new_code = cast(Any, self.state), cast(Any, _SubroutineCode)
        state.library = new_code(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()  # type: ignore[no-untyped-call]


class _Subroutine:
    """A function that only kernels can call."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.compiled = numba.njit(pipeline_class=_SubroutineCompiler, **_SUBROUTINE, **options)(function)

    def __call__(self, *arguments: Any) -> Any:
        """Raise NotImplementedError, since the code would crash."""
        raise NotImplementedError(f"only kernels can call {self.compiled.__name__}")


class _SubroutineType(types.Dispatcher):
    """The type of a subroutine. Numba gives each literal argument its own type, but one compilation serves all."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        plain: Any = types.unliteral
        return super().get_call_type(context, tuple(map(plain, args)), {name: plain(kws[name]) for name in kws})


# a value of the type is opaque, as of numba's own dispatchers: the type alone identifies the function to call
register_model(_SubroutineType)(models.OpaqueModel)
typeof_impl.register(_Subroutine)(lambda subroutine, context: _SubroutineType(subroutine.compiled))


def inlined(function: F) -> F:
    """Make a subroutine that LLVM inlines into kernels. Use few, since each one takes about 30 ms to compile."""
    return cast(F, _Subroutine(function, forceinline=True)) if COMPILED else function


def called(function: F) -> F:
    """Make a subroutine with one copy per kernel, for code that is long or seldom runs."""
    return cast(F, _Subroutine(function)) if COMPILED else function


# Numba tests every index for a negative value, which took a seventh of the time of a scan of records. The operations
# below check nothing, so the calling kernel must compare its positions with the end of the data. If an array is not
# contiguous, the kernel does not compile. With NUMBA_DISABLE_JIT=1 the operations check their indexes.


def _checked(index: int, array: np.ndarray, count: int = 1) -> int:
    if index < 0 or index > array.size - count:
        raise IndexError(f"{count} items from {index} on, of {array.size}")
    return index


def pointer_to_item(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    if array_type.layout != "C":
        raise TypeError("kernels need contiguous arrays")
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@_operation(lambda array, index: int(array[_checked(index, array)]))
def item_at(typing_context: Any, array: Any, index: Any) -> Any:
    """Return an integer or boolean as an int64, since numba makes a float of a signed and an unsigned operand."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        item = builder.load(pointer_to_item(context, builder, signature.args[0], *args))
        extend = builder.sext if getattr(array.dtype, "signed", False) else builder.zext
        return extend(item, ir.IntType(64)) if item.type.width < 64 else item

    return types.int64(array, types.int64), codegen


@_operation(lambda array, index, value: array.__setitem__(_checked(index, array), value))
def put_at(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, _, value_type = signature.args
        item = context.cast(builder, args[2], value_type, array_type.dtype)
        data = context.data_model_manager[array_type.dtype].as_data(builder, item)
        builder.store(data, pointer_to_item(context, builder, array_type, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64, value), codegen


def _bytes_at(data: np.ndarray, position: int, width: int) -> bytes:
    return bytes(data[_checked(position, data, width) :][:width])


def _loader(bits: int, *, is_signed: bool, is_big_endian: bool) -> Callable[..., Any]:
    """Return the code that loads an integer as an int64. It assumes a little-endian processor: x86-64 or AArch64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to_item(context, builder, signature.args[0], args[0], args[1])
        value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
        value = _swapped(builder, value) if is_big_endian else value
        extend = builder.sext if is_signed else builder.zext
        return extend(value, ir.IntType(64)) if bits < 64 else value

    return codegen


def _swapped(builder: Any, value: Any) -> Any:
    return builder.bswap(value) if value.type.width > 8 else value


@_operation(lambda data, position: int.from_bytes(_bytes_at(data, position, 8), "little", signed=True))
def int64_at(typing_context: Any, data: Any, position: Any) -> Any:
    """Return the 8 bytes from `position` as a little-endian int64."""
    return types.int64(data, types.int64), _loader(64, is_signed=True, is_big_endian=False)


@_operation(lambda data, position: int.from_bytes(_bytes_at(data, position, 4), "little"))
def uint32_at(typing_context: Any, data: Any, position: Any) -> Any:
    """Return the 4 bytes from `position` as a little-endian unsigned number."""
    return types.int64(data, types.int64), _loader(32, is_signed=False, is_big_endian=False)


@_operation(
    lambda data, position, width: int.from_bytes(_bytes_at(data, position, width), "big", signed=True),
    prefer_literal=True,
)
def int_at(typing_context: Any, data: Any, position: Any, width: Any) -> Any:
    """Return the signed big-endian integer of `width` bytes, a literal: 1, 2, 4 or 8."""
    load = _loader(8 * width.literal_value, is_signed=True, is_big_endian=True)
    return types.int64(data, types.int64, width), load


def _put_int_in_python(target: np.ndarray, position: int, width: int, value: int) -> None:
    low_bytes = (int(value) & ((1 << (8 * width)) - 1)).to_bytes(width, "big")
    target[_checked(position, target, width) :][:width] = np.frombuffer(low_bytes, np.uint8)


@_operation(_put_int_in_python, prefer_literal=True)
def put_int_at(typing_context: Any, target: Any, position: Any, width: Any, value: Any) -> Any:
    """Write the low `width` bytes of `value`, big-endian; `width` is a literal."""
    kind = ir.IntType(8 * width.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to_item(context, builder, signature.args[0], args[0], args[1])
        low_bytes = builder.trunc(args[3], kind) if kind.width < 64 else args[3]
        builder.store(_swapped(builder, low_bytes), builder.bitcast(pointer, kind.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(target, types.int64, width, types.int64), codegen


def _copy_in_python(target: np.ndarray, to: int, source: np.ndarray, start: int, count: int) -> None:
    target[_checked(to, target, count) :][:count] = source[_checked(start, source, count) :][:count]


@_operation(_copy_in_python)
def copy_bytes(typing_context: Any, target: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """Copy `count` bytes of `source` from `start` on into `target`, from `to` on; the slices must not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target_pointer = pointer_to_item(context, builder, signature.args[0], args[0], args[1])
        source_pointer = pointer_to_item(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, args[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@_operation(lambda word: (word & -word).bit_length() - 1 if word else 64)
def low_zeros(typing_context: Any, word: Any) -> Any:
    """Return the number of zero bits below the lowest set bit; 64 if no bit is set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.false_bit)

    return types.int64(types.int64), codegen


@_operation(lambda data, index: None)
def prefetch(typing_context: Any, data: Any, index: Any) -> Any:
    """Prefetch an item; an index out of bounds does nothing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
        pointer = builder.bitcast(pointer_to_item(context, builder, signature.args[0], *args), byte_pointer)
        # prefetch for a read, keep the line in all caches, and as data
        builder.call(fetch, [pointer, flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(data, types.int64), codegen


@inlined
def _unchanged(value: int) -> int:
    return value


#: `wrapped(value)` cuts a sum, product or shift of int64s to 64 bits, as compiled code does anyway.
wrapped: Any = _unchanged if COMPILED else lambda value: (value + (1 << 63)) % (1 << 64) - (1 << 63)
#: `read_at(file, target, count, position)` reads up to `count` bytes to a pointer; returns their number, or -1.
read_at: Any = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.int64, types.int64))


@_operation()
def pointer_to(typing_context: Any, array: Any, index: Any) -> Any:
    """Return the address of an item, for `read_at`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return pointer_to_item(context, builder, signature.args[0], *args)

    return types.voidptr(array, types.int64), codegen


_LIBRARY = Path(__file__).parents[3]  # the folder of the package `distlog`


@cache
def sources_digest() -> str:
    """Return the digest of all sources of kernels; numba does not notice changes of subroutines in other files."""
    sources = [file for file in files("distlog.core.format.kernels").iterdir() if file.name.endswith(".py")]
    digest = hashlib.sha256()
    for source in sorted(sources, key=lambda file: file.name):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def code_folders(preferred: str) -> Iterator[Path]:
    """Yield the folders that may store code, the best one first; `preferred` is the user's choice, or empty."""
    name = f"kernels-{VERSION}"
    if preferred:
        yield Path(preferred).absolute() / name
    if _LIBRARY.exists():  # it does not if the library is imported from an archive
        yield Path(__file__).parent / "__pycache__"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if caches.is_absolute():
        yield caches / "distlog" / name
    with suppress(OSError):  # raised if no temporary folder can be written
        yield Path(tempfile.gettempdir()) / f"distlog-kernels-{os.geteuid()}" / name


def distrust(folder: Path, library: Path = _LIBRARY) -> str | None:
    """Return why `folder` is unsafe; None if only this user, root and the owner of `library` may write to it."""
    trusted_users = {0, os.geteuid()}
    # the folders above a folder in the library need no check, since who may write them can replace the library
    parents = () if library in folder.parents else (*folder.absolute().parents, *folder.resolve().parents)
    try:
        if library.exists():
            trusted_users.add(library.stat().st_uid)
        for path in (*parents, folder, folder.resolve(), *folder.glob("*.nb[ic]")):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if status.st_uid not in trusted_users:
                    return f"{path} belongs to user {status.st_uid}"
                if _may_others_write(status, is_parent=path in parents):
                    return f"other users may write {path}"
    except OSError as error:
        return f"{folder} cannot be inspected: {error.strerror}"
    return None


def _may_others_write(status: os.stat_result, *, is_parent: bool) -> bool:
    if stat.S_ISLNK(status.st_mode) or (is_parent and status.st_mode & stat.S_ISVTX):
        return False  # in a sticky folder such as /tmp, users cannot rename or replace files of other users
    # root's group is 0, and Linux gives each user a group with the user's number
    is_own_group = status.st_gid in (0, status.st_uid)
    return bool(status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not is_own_group))
