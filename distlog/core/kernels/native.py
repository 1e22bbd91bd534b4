"""The tools of the loops in `distlog.core.kernels`: the only module that imports numba."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as remember
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.ir as ir  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core import cgutils, event, types
from numba.core.codegen import JITCodeLibrary, get_host_cpu_features
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic, models, register_model, typeof_impl

from distlog.core.kernels.native_folder import CODE, code_folders, code_in, kept_source, usable_folder, why_unusable

#: Whether kernels are compiled; with NUMBA_DISABLE_JIT=1 they run as plain Python.
COMPILED: bool = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


def _operation(
    in_python: Callable[..., Any] | None = None, *, prefer_literal: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """The decorated function as numba's intrinsic, or `in_python` where nothing is compiled."""
    return intrinsic(prefer_literal=prefer_literal) if COMPILED else lambda _: in_python


# ---
# CRC-32C of eight bytes by the processor's own instruction, SSE 4.2, if numba compiles for a processor that has it.
#
# Otherwise HAS_INSTRUCTION is False, and nothing may call `crc_of_word`.


def _is_there() -> bool:
    # Ask for numba's target, which is also its key for cached code, not for the features of this processor.
    config: Any = numba.config
    host_features: Any = get_host_cpu_features
    features = host_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return COMPILED and "+sse4.2" in features.split(",")


HAS_INSTRUCTION = _is_there()


@_operation()
def crc_of_word(typing_context: Any, crc: Any, word: Any) -> Any:
    """The register `crc` after the eight bytes of `word`, both int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word_type = ir.IntType(64)
        kind = ir.FunctionType(word_type, [word_type, word_type])
        step = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind)
        return builder.call(step, args)

    return types.int64(types.int64, types.int64), codegen


# ---
# Compiles kernels, keeps their code in the folder of `native_folder`, and logs that it takes time.


_log = logging.getLogger("distlog")

#: How long a process waits for others that compile; all kernels together take half of that.
_WAIT_S = 60.0
#: The file that says which process compiles, by its lock.
_TURN = "compiling"
#: The file that says that a process has logged that kernels are compiled.
_LOGGED = "logged"
#: By their ids, how the names of the files of kernels' code begin; kernels live as long as the process.
_kernels: dict[int, str] = {}
#: Compilations that take longer are told of.
_WORTH_A_LINE_S = 1.0


def with_kept_code(function: Callable[..., Any], **options: Any) -> Any:
    """`function` compiled by numba with these options; its code is loaded from the folder for code, or kept there."""
    compiled = _cached(function, **options) or numba.njit(**options)(function)
    stem, line = function.__module__.rpartition(".")[2], function.__code__.co_firstlineno
    _kernels[id(compiled)] = f"{stem}.{function.__qualname__}-{line}.py{sys.version_info[0]}{sys.version_info[1]}."
    compiled.compile = partial(_compile_aside, compiled.compile)
    return compiled


def _compile_aside(compile_here: Callable[[Any], Any], signature: Any) -> Any:
    """Compile, or load code, in a thread that no signal interrupts.

    Ctrl-C in the midst of it would leave LLVM's lock held, and all threads that compile would wait for ever.
    """
    # what holds the lock waits for what it calls: a function of the user that is compiled with a kernel in it, or
    # that a signal's handler interrupts in its compilation
    is_held: Any = global_compiler_lock.is_locked
    if threading.current_thread() is not threading.main_thread() or is_held():
        return compile_here(signature)
    results, over = list[Any](), threading.Lock()
    over.acquire()

    def compile_there() -> None:
        try:
            results.append((compile_here(signature), None))
        except BaseException as error:
            results.append((None, error))
        finally:
            over.release()

    try:
        threading.Thread(target=compile_there, name="distlog-compiler").start()
    except RuntimeError:  # there can be no more threads, or the interpreter is ending
        return compile_here(signature)
    # with a timeout, or Ctrl-C could not end it where a library has waits restarted, as polars does
    while not over.acquire(timeout=threading.TIMEOUT_MAX):
        pass
    found, error = results[0]
    if error is not None:
        raise error
    return found


@dataclass(frozen=True, slots=True)
class KeptCode:
    """The folder of kept code, and how many of the kernels that are imported have some there, for this Python.

    Without a `folder`, `reasons` has one for each place that could not be used.
    """

    folder: Path | None
    kernels: int
    compiled: int
    reasons: tuple[str, ...] = ()


def kept_code() -> KeptCode:
    """The state of kept code now."""
    folder = _folder()
    if folder is None:
        return KeptCode(None, len(_kernels), 0, tuple(map(why_unusable, _folders())))
    names = [file.name for file in code_in(folder / CODE)]
    return KeptCode(folder, len(_kernels), sum(any(n.startswith(p) for n in names) for p in _kernels.values()))


def _folders() -> list[Path]:
    config: Any = numba.config
    return code_folders(numba.__version__, config.CACHE_DIR)


@remember
def _folder() -> Path | None:
    """The folder for code; None if there is none."""
    return usable_folder(_folders())


def _cached(function: Callable[..., Any], **options: Any) -> Any | None:
    source = kept_source(function.__module__, _folder())
    if source is None:
        return None
    config: Any = numba.config
    original = function.__code__
    function.__code__ = original.replace(co_filename=str(source))
    # numba would prefer this folder to the one of the source
    chosen, config.CACHE_DIR = config.CACHE_DIR, ""
    try:
        compiled = numba.njit(cache=True, **options)(function)
        if compiled.stats.cache_path == str(source.parent / CODE):
            compiled._cache = _CompiledOnce(compiled._cache, _turn_of(source.parent / _TURN))
            return compiled
    except RuntimeError:
        pass
    finally:
        config.CACHE_DIR = chosen
    function.__code__ = original  # the folder cannot be written any more
    return None


class _Turn:
    """The turn of one process of this machine to compile; numba's own lock guards this object from threads."""

    def __init__(self, file: Path) -> None:
        self._file, self._depth, self._descriptor = file, 0, -1
        self._is_patient = True

    def take(self) -> None:
        """Wait for the turn; if that takes too long, or the folder has no locks, go on without it from now on."""
        self._depth += 1
        if self._depth > 1 or not self._is_patient:
            return  # a kernel that calls another compiles it in the same turn
        deadline = time.monotonic() + _WAIT_S
        with suppress(OSError):
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            # at the interpreter's end it waits for this thread
            while time.monotonic() < deadline and threading.main_thread().is_alive():
                with suppress(BlockingIOError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                time.sleep(0.02)
        self._is_patient = False

    def give_back(self) -> None:
        """End what `take` began."""
        self._depth -= 1
        if self._depth == 0 and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_turn_of = remember(_Turn)
_warn_once = remember(_log.warning)


class _CompiledOnce:
    """Numba's store of the code of one kernel, for processes that begin at once, as the workers of Spark do.

    One of them compiles, and the others wait for its code.
    """

    def __init__(self, kept: Any, turn: _Turn) -> None:
        self._kept, self._turn = kept, turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The code, or None if this process must compile it: it then has the turn."""
        if (found := self._load(signature, context)) is None:
            self._turn.take()
            if (found := self._load(signature, context)) is not None:
                self._turn.give_back()
        return found

    def _load(self, signature: Any, context: Any) -> Any:
        try:
            return self._kept.load_overload(signature, context)
        except (OSError, MemoryError):
            return None
        except Exception:  # a power loss may leave files empty or torn, since numba does not sync them
            _warn_once("code of distlog's kernels is damaged, and is compiled anew: %s", self._kept.cache_path)
            with suppress(OSError):
                self._kept.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep the code, if there is a place for it, and end the turn."""
        try:
            self._kept.save_overload(signature, data)
        except Exception as error:
            reason = getattr(error, "strerror", None) or repr(error)
            _warn_once("code of distlog's kernels cannot be kept in %s: %s", self._kept.cache_path, reason)
        finally:
            self._turn.give_back()

    def fail(self) -> None:
        """End the turn: there is no code, since the kernel could not be compiled."""
        self._turn.give_back()


class _Compilations(event.Listener):
    """Logs once per folder for code that kernels are compiled, and in each process where no folder keeps the code.

    A warning goes to standard error where a program has set no logging up. Less than a second is not worth one.
    """

    def __init__(self) -> None:
        self._is_told = False
        self._spent_s = 0.0
        #: By thread, when the compilation of a kernel began.
        self._begun: dict[int, float] = {}

    def on_start(self, event: Any) -> None:
        """The compilation of a function begins, be it a kernel or a part of one."""
        if self._is_told:
            return
        thread, now = threading.get_ident(), time.monotonic()
        if thread not in self._begun and id(event.data.get("dispatcher")) in _kernels:
            self._begun[thread] = now
        if thread in self._begun:
            self._tell(self._spent_s + now - self._begun[thread])

    def on_end(self, event: Any) -> None:
        """It has ended, perhaps in an error."""
        dispatcher = event.data.get("dispatcher")
        kept = getattr(dispatcher, "_cache", None)
        # numba's `is_failed` says the opposite of its name
        if isinstance(kept, _CompiledOnce) and event._exc_details and event._exc_details[0]:
            kept.fail()
        if not self._is_told and id(dispatcher) in _kernels:
            self._spent_s += time.monotonic() - self._begun.pop(threading.get_ident(), time.monotonic())
            self._tell(self._spent_s)

    def _tell(self, spent_s: float) -> None:
        folder = _folder()
        if folder is None:
            _log.warning(
                "compiling distlog's kernels takes some seconds in each process, since no folder for the code can be "
                "written: set NUMBA_CACHE_DIR to a folder of your own"
            )
        elif spent_s > _WORTH_A_LINE_S:
            with suppress(OSError):  # another process has logged it
                (folder / _LOGGED).touch(exist_ok=False)
                _log.warning("compiling distlog's kernels, once for this version: the code is kept in %s", folder)
        self._is_told = folder is None or spent_s > _WORTH_A_LINE_S


if COMPILED:
    event.register("numba:compile", _Compilations())  # type: ignore[no-untyped-call]


# ---
# The decorators behind every kernel.


F = TypeVar("F", bound=Callable[..., Any])

# Numba then counts no references to arrays when one function passes them to the next. Nothing calls a kernel from C.
_UNCOUNTED: Any = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}
#: Parts are called by kernels alone, so their code needs no way in from Python.
_PART: Any = {**_UNCOUNTED, "no_cpython_wrapper": True}

# A fork waits until no thread loads or compiles a kernel. Otherwise the child would find numba's lock held forever,
# since it does not have the thread that holds it, and the state that the lock guards half changed.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)


def kernel(function: F) -> F:
    """Compile `function` on first call, to run without the interpreter lock; the code is kept, if it can be."""
    return _kept(function, nogil=True)


def fill_kernel(function: F) -> F:
    """A kernel that creates no array and only fills the arrays that it is given.

    Numba then counts no references. That matters where arrays are passed on to `inlined` functions: counting costs
    several times as much as reading a varint.
    """
    return _kept(function, **_UNCOUNTED)


class _PartCode(JITCodeLibrary):
    """The code of a part, as LLVM takes it over into kernels.

    Numba makes machine code of each function, also of one that is called by kernels alone, and optimises it first. A
    kernel is optimised with its parts in it, so for a part both are left out: a quarter of the time of a first append
    and scan.
    """

    def _optimize_final_module(self) -> None:
        """Leave the part as it is: the kernel's turn comes later."""

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """No address: there is no machine code."""
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        return 0

    @property
    def codegen(self) -> _PartCode:
        """This object, since numba sets the function's environment by it, which would be in the machine code."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: only code that calls Python needs an environment."""


class _PartCompiler(Compiler):
    """Numba's compiler, with the code of a part for the result."""

    def define_pipelines(self) -> Any:
        """Numba's own."""
        state: Any = self.state
        new_code: Any = _PartCode
        state.library = new_code(state.targetctx.codegen(), state.func_id.func_qualname)
        return super().define_pipelines()  # type: ignore[no-untyped-call]


class _Part:
    """A function that kernels call: its code has no way in from Python, and none that runs without them."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.compiled = numba.njit(pipeline_class=_PartCompiler, **_PART, **options)(function)

    def __call__(self, *arguments: Any) -> Any:
        """Refuse, since the code would crash: in Python wrap the part in a kernel."""
        raise NotImplementedError(f"{self.compiled.__name__} is called by kernels alone")


class _PartType(types.Dispatcher):
    """A part, as a caller's code sees it: one compilation serves all literals, each of which numba gives a type."""

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The types of a call, as numba finds them, if each literal were a variable."""
        plain: Any = types.unliteral
        return super().get_call_type(context, tuple(map(plain, args)), {name: plain(kws[name]) for name in kws})


# a value of nothing, as numba's own dispatchers are
register_model(_PartType)(models.OpaqueModel)


@typeof_impl.register(_Part)
def _type_of_part(part: _Part, context: Any) -> Any:
    return _PartType(part.compiled)


def inlined(function: F) -> F:
    """A part of fill kernels, merged into each of them by LLVM; it creates no array either.

    Each costs some 30 ms to compile, for each set of types, in a process without kept code: prefer few, of some size.
    """
    return cast(F, _Part(function, forceinline=True)) if COMPILED else function


def called(function: F) -> F:
    """A part as `inlined`, but LLVM has one copy of it in a kernel: for what is long, or seldom runs."""
    return cast(F, _Part(function)) if COMPILED else function


def _kept(function: F, **options: Any) -> F:
    return cast(F, with_kept_code(function, **options) if COMPILED else numba.njit(**options)(function))


# ---
# Operations that numba's arrays lack: access without an index check, unaligned words, memcpy on a slice, and
# prefetch.
#
# Numba tests every index for a negative value, which counts from the end; that took a seventh of a scan of records.
# Nothing is checked here: the calling kernel must have compared its positions with the end it was given. Arrays
# must be contiguous; a kernel that is given others is not compiled. With NUMBA_DISABLE_JIT=1 plain Python takes
# over, so that kernels run, slowly, without a compiler; Python does check.


def _checked(index: int, array: np.ndarray, count: int = 1) -> int:
    if index < 0 or index > array.size - count:
        raise IndexError(f"{count} items from {index} on, of {array.size}")
    return index


def pointer_to_item(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """The address of an item, for intrinsics."""
    if array_type.layout != "C":
        raise TypeError("kernels take contiguous arrays")
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [position])


@_operation(lambda array, index: int(array[_checked(index, array)]))
def item_at(typing_context: Any, array: Any, index: Any) -> Any:
    """An item of integers or booleans as an int64, since numba makes a float where signed meets unsigned.

    An item of uint64 is taken as signed.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        item = builder.load(pointer_to_item(context, builder, signature.args[0], *args))
        extend = builder.sext if getattr(array.dtype, "signed", False) else builder.zext
        return extend(item, ir.IntType(64)) if item.type.width < 64 else item

    return types.int64(array, types.int64), codegen


@_operation(lambda array, index, value: array.__setitem__(_checked(index, array), value))
def put_at(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """Store an item."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, _, value_type = signature.args
        item = context.cast(builder, args[2], value_type, array_type.dtype)
        data = context.data_model_manager[array_type.dtype].as_data(builder, item)
        builder.store(data, pointer_to_item(context, builder, array_type, args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.int64, value), codegen


def _bytes_at(data: np.ndarray, position: int, width: int) -> bytes:
    return bytes(data[_checked(position, data, width) :][:width])


@_operation(lambda data, position: int.from_bytes(_bytes_at(data, position, 8), "little", signed=True))
def word_at(typing_context: Any, data: Any, position: Any) -> Any:
    """The 8 bytes from `position` as a little-endian int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to_item(context, builder, signature.args[0], *args)
        return builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()), align=1)

    return types.int64(data, types.int64), codegen


@_operation(lambda data, position: int.from_bytes(_bytes_at(data, position, 4), "little"))
def half_word_at(typing_context: Any, data: Any, position: Any) -> Any:
    """The 4 bytes from `position` as a little-endian number, not negative."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to_item(context, builder, signature.args[0], *args)
        word = builder.load(builder.bitcast(pointer, ir.IntType(32).as_pointer()), align=1)
        return builder.zext(word, ir.IntType(64))

    return types.int64(data, types.int64), codegen


def _swapped(builder: Any, value: Any) -> Any:
    # x86-64 and AArch64, which numba compiles for, are little-endian; LLVM makes load and swap one instruction
    return builder.bswap(value) if value.type.width > 8 else value


@_operation(
    lambda data, position, width: int.from_bytes(_bytes_at(data, position, width), "big", signed=True),
    prefer_literal=True,
)
def int_at(typing_context: Any, data: Any, position: Any, width: Any) -> Any:
    """The signed big-endian integer of `width` bytes, a literal: 1, 2, 4 or 8."""
    kind = ir.IntType(8 * width.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to_item(context, builder, signature.args[0], args[0], args[1])
        value = _swapped(builder, builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1))
        return builder.sext(value, ir.IntType(64)) if kind.width < 64 else value

    return types.int64(data, types.int64, width), codegen


def _put_int_in_python(target: np.ndarray, position: int, width: int, value: int) -> None:
    written = (int(value) & (1 << 8 * width) - 1).to_bytes(width, "big")
    target[_checked(position, target, width) :][:width] = np.frombuffer(written, np.uint8)


@_operation(_put_int_in_python, prefer_literal=True)
def put_int_at(typing_context: Any, target: Any, position: Any, width: Any, value: Any) -> Any:
    """Write the low `width` bytes of `value`, big-endian; `width` is a literal."""
    kind = ir.IntType(8 * width.literal_value)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointer_to_item(context, builder, signature.args[0], args[0], args[1])
        cut = builder.trunc(args[3], kind) if kind.width < 64 else args[3]
        builder.store(_swapped(builder, cut), builder.bitcast(pointer, kind.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(target, types.int64, width, types.int64), codegen


def _copy_in_python(target: np.ndarray, to: int, source: np.ndarray, start: int, count: int) -> None:
    target[_checked(to, target, count) :][:count] = source[_checked(start, source, count) :][:count]


@_operation(_copy_in_python)
def copy_bytes(typing_context: Any, target: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """Copy `count` bytes of `source` from `start` on into `target`, from `to` on; the slices must not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        written = pointer_to_item(context, builder, signature.args[0], args[0], args[1])
        read = pointer_to_item(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, written, read, args[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@_operation(lambda word: (word & -word).bit_length() - 1 if word else 64)
def low_zeros(typing_context: Any, word: Any) -> Any:
    """The number of zero bits below the lowest bit that is set; 64 if none is."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], cgutils.false_bit)

    return types.int64(types.int64), codegen


@_operation(lambda data, index: None)
def prefetch(typing_context: Any, data: Any, index: Any) -> Any:
    """Begin to fetch an item that will be needed soon; any index is safe. Python has no prefetch."""

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
def _int64(value: int) -> int:
    return value


#: `wrapped(value)`: the sum, product or shift of int64s cut to 64 bits, as in machine code; Python's integers grow.
wrapped: Any = _int64 if COMPILED else lambda value: (value + (1 << 63)) % (1 << 64) - (1 << 63)


# ---
# Files for kernels: the calls of the C library that open, read and close one, without the interpreter lock.


#: `open_file(name, flags)`: a file descriptor, negative when it fails. `name` is a pointer.
open_file: Any = types.ExternalFunction("open", types.int32(types.voidptr, types.int32))

#: `read_at(file, target, count, position)`: the bytes read to the pointer `target`, at most `count`; negative when it
#: fails.
read_at: Any = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.int64, types.int64))

#: `close_file(file)`.
close_file: Any = types.ExternalFunction("close", types.int32(types.int32))


@_operation()
def pointer_to(typing_context: Any, array: Any, index: Any) -> Any:
    """The address of an item, for these calls."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return pointer_to_item(context, builder, signature.args[0], *args)

    return types.voidptr(array, types.int64), codegen
