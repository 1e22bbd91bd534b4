"""The commands that run services, and prepare for them."""

from __future__ import annotations

import gc
import getpass
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from distlog.cli import options
from distlog.cli.input import is_readable
from distlog.cli.options import Json, StorageOptions, usage
from distlog.console import output
from distlog.console.output import FAILED, SUCCESS, StatusLine, Summary, print_report
from distlog.console.streams import drop_unwritable_output
from distlog.core import extra, optional
from distlog.core.display import counted, size_text
from distlog.core.errors import InvalidConfigError, StorageError
from distlog.core.log_manager.broker_config import parse_properties
from distlog.core.log_manager.log_manager import LogManager, Metric
from distlog.core.log_manager.log_tasks import TaskRun
from distlog.core.opening import check_root
from distlog.core.storage.calls import begin
from distlog.core.storage.storage import Storage
from distlog.core.warm_up import warm_up
from distlog.gateway.config import STANDARD_AUTHORIZER, AclSettings, GatewayConfig, with_settings
from distlog.gateway.security.users_file import check_name, new_secrets, read_users, write_users

if TYPE_CHECKING:
    from prometheus_client import Metric as PrometheusMetric

    # slow to import, and only `serve` needs them
    from distlog.gateway.cluster import Maintenance
    from distlog.gateway.gateway_server import GatewayServer

MetricsPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port; 0 picks a free one."),
]
MetricsHost = Annotated[str, typer.Option(metavar="ADDRESS", help="Serve metrics at this address.")]
AutoCreate = Annotated[
    bool, typer.Option("--auto-create-topics", help="Create a missing topic when a client asks for it.")
]
Acls = Annotated[
    bool, typer.Option("--acls", help="Authorize requests by ACLs; name an administrator in super.users.")
]
Maintain = Annotated[
    bool, typer.Option("--maintain", help="Also run the tasks of `distlog run`. Set it on one of several gateways.")
]
Processes = Annotated[
    int,
    typer.Option(min=1, max=1000, metavar="N", help="Run N processes on consecutive ports; all stop when one exits."),
]
Address = tuple[str, int] | None
LOOPBACK = "127.0.0.1"
_REDRAW_S = 1.0
#: Makes the tasks that maintain the root. The argument is called after each run of a task.
MakeTasks = Callable[[Callable[[TaskRun], None]], "Maintenance"]
#: How long a thread may compute while another thread waits, instead of Python's default of 5 ms.
_SWITCH_INTERVAL_S = 0.0005
_PARENT_CHECK_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


def broker_settings(text: str) -> dict[str, str]:
    """Parse a properties file or `NAME=VALUE`. Raises ValueError for other text."""
    if not os.path.isfile(text):
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"{text!r} is not a file or NAME=VALUE")
        return {name: value}
    try:
        with open(text, encoding="utf-8") as file:
            return parse_properties(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {text}: {error}") from None


BrokerSettings = Annotated[
    list[Any],
    typer.Option(
        metavar="FILE|NAME=VALUE",
        parser=usage(broker_settings),
        default_factory=list,
        show_default=False,
        help="Set Kafka broker settings by a server.properties file or NAME=VALUE. May be repeated; the last wins.",
    ),
]


def host_and_port(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`. Raises ValueError for other text."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT (127.0.0.1:9092)")
    return host.strip("[]"), int(port)


Listen = Annotated[
    Any,
    typer.Option(
        metavar="HOST:PORT", parser=usage(host_and_port), help="Listen on this address; port 0 picks a free one."
    ),
]
Advertised = Annotated[
    Any,
    typer.Option(
        metavar="HOST:PORT",
        parser=usage(host_and_port),
        help="Advertise this address to clients. Default: the address that a client connected to.",
    ),
]


def run(
    *,
    root: Annotated[
        list[str], typer.Option(metavar="URL", help="Maintain the topics in this folder. May be repeated.")
    ],
    config: BrokerSettings,
    is_single: Annotated[bool, typer.Option("--once", help="Run each task once and exit.")] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Maintain all topics in a folder until SIGTERM.

    It runs retention, compaction, vacuum, flushes and checkpoints on Kafka's schedule. A failed task is reported and
    retried. With --json, each line is an object. With --once, the exit status is 1 if a task failed.
    """
    settings = {name: value for part in config for name, value in part.items()}
    service = Service(root, settings, dict(storage), as_json=as_json)
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    raise typer.Exit(service.run_once() if is_single else service.run(metrics))


def serve(
    *,
    root: Annotated[str, typer.Option(metavar="URL", help="Serve the topics in this folder.")],
    listen: Listen = "127.0.0.1:9092",
    advertised: Advertised = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow clients without authentication, and PLAIN passwords without TLS."),
    ] = False,
    ssl_certfile: options.Certfile = None,
    ssl_keyfile: options.Keyfile = None,
    ssl_key_password_file: options.KeyPassword = None,
    ssl_cafile: options.Cafile = None,
    ssl_crlfile: options.Crlfile = None,
    ssl_client_auth: options.ClientAuth = "none",
    sasl_users: options.SaslUsers = None,
    sasl_mechanisms: options.SaslMechanisms = options.ALL_MECHANISMS,
    processes: Processes = 1,
    linger_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="Wait up to MS to commit appends together, on an object store.")
    ] = 250,
    auto_create: AutoCreate = False,
    acls: Acls = False,
    maintain: Maintain = False,
    config: BrokerSettings,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Serve the topics in a folder to Kafka clients.

    It speaks Kafka's protocol and acts as all brokers of a cluster, until SIGTERM. With --json, each line is an
    object.
    """
    from distlog.gateway.cluster import Maintenance
    from distlog.gateway.gateway_server import GatewayServer
    from distlog.gateway.gateway_server import warm_up as load_kernels

    files = {"ca": ssl_cafile, "crl": ssl_crlfile, "key_password_file": ssl_key_password_file}
    tls = options.tls_files(ssl_certfile, ssl_keyfile, ssl_client_auth, **files)
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    _check_ports(processes, listen, advertised, metrics)
    names = options.mechanisms(sasl_mechanisms)
    listener_args = options.listener_arguments(listen, tls, sasl_users, names, insecure=insecure)
    settings = {name: value for part in config for name, value in part.items()}
    # parse before the fork, so that a wrong setting is reported once and not by each process
    gateway_config = GatewayConfig(
        processes=processes,
        linger_ms=linger_ms,
        auto_create_topics=auto_create,
        acls=AclSettings(authorizer=STANDARD_AUTHORIZER if acls else ""),
        open_files=raise_open_file_limit(),
    )
    gateway_config = with_settings(gateway_config, settings)
    number = 0
    if processes > 1:
        load_kernels()  # before the fork, so that the processes share the loaded code
        freeze_loaded_objects()
        number = fork_processes(processes)
    is_first = number == 0
    _check_root(Storage(root, dict(storage)), is_first=is_first)
    gateway_config = replace(gateway_config, process=number, advertised=address_of(number, advertised))
    listener_args["port"] = _port_of(number, listener_args["port"])
    gateway_args = {"settings": settings, "storage_options": dict(storage), **listener_args}
    gateway = GatewayServer(root, config=gateway_config, **gateway_args)
    tasks = partial(Maintenance, root, settings, dict(storage)) if maintain and is_first else None
    process = number if processes > 1 else None
    serve_until_signal(gateway, tasks, address_of(number, metrics), as_json=as_json, process=process)


def users(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File of users; --set creates it.")],
    *,
    name: Annotated[
        str | None, typer.Option("--set", metavar="NAME", help="Add a user, or change the password.")
    ] = None,
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Delete a user and disconnect it.")] = None,
    as_json: Json = False,
) -> None:
    """Show and change the users of a gateway.

    The password comes from a prompt, or from a line on standard input. Only hashes are stored. A gateway applies a
    change within a second.
    """
    if name is not None and delete is not None:
        raise typer.BadParameter("cannot be combined with --set", param_hint="--delete")
    if name is not None:
        secrets = new_secrets(_password(check_name(name)), os.urandom)
        write_users(file, lambda stored: stored.with_user(name, secrets))
        print_report(Summary(f"set {name}", {"user": name, "set": True}), as_json=as_json)
    elif delete is not None:
        read_users(file)  # raises if the file is missing, which `write_users` treats as a file without users
        write_users(file, lambda stored: stored.without_user(delete))
        print_report(Summary(f"deleted {delete}", {"user": delete, "deleted": True}), as_json=as_json)
    else:
        names = sorted(read_users(file).secrets)
        print_report(Summary("\n".join(names), {"users": names}), as_json=as_json)


def warmup(*, as_json: Json = False) -> None:
    """Compile distlog's kernels ahead of time.

    It takes about 15 seconds of CPU. Run it after installing, or while building a container image. The code is stored
    in NUMBA_CACHE_DIR if set, else next to the library, in the user's cache folder, or in the temporary folder.
    """
    print_report(warm_up(), as_json=as_json)


class Service:
    """Runs a LogManager of `roots`, and prints its events as text or as lines of JSON."""

    def __init__(
        self, roots: Sequence[str], settings: Mapping[str, object], storage: Mapping[str, Any], *, as_json: bool
    ) -> None:
        self._as_json = as_json
        self._line = StatusLine("distlog", self._status, as_json=as_json)
        self._on_run: Callable[[TaskRun], None] = partial(_print_run, self._line)
        self._manager = LogManager(
            roots, config=settings, storage_options=storage, on_run=lambda run: self._on_run(run)
        )

    def run_once(self) -> int:
        runs = list[TaskRun]()
        self._on_run = runs.append
        with self._line:
            ok = self._manager.run_once()
        text = "\n".join([*(str(run) for run in runs if is_worth_printing(run)), self._status()])
        print_report(Summary(text, {"ok": ok, "runs": [run.to_dict() for run in runs]}), as_json=self._as_json)
        return SUCCESS if ok else FAILED

    def run(self, metrics_address: Address) -> int:
        """Run the tasks until SIGTERM or SIGINT, and serve metrics at an address. Returns the exit status."""
        server, roots = metrics_server(metrics_address, self._manager.metrics), self._manager.roots
        with self._line, server as port, ending_signals() as signal_file:
            self._line.event("started", f"running: {', '.join(roots)}", roots=roots, metrics_port=port)
            self._manager.start()
            _draw_until(self._line, signal_file)
            finished = self._manager.stop()
            self._line.clear()
            text = "stopped" if finished else "stopped; a task was abandoned"
            self._line.event("stopped", text, finished=finished)
            if not finished:
                end(SUCCESS)
        drop_unwritable_output()
        return SUCCESS

    def _status(self) -> str:
        values = {metric.name: [value for _, value in metric.values] for metric in self._manager.metrics()}
        sizes = values["distlog_log_size_bytes"]
        text = f"{counted(int(sum(values['distlog_topics'])), 'topic')}, {counted(len(sizes), 'partition')}"
        failing = sorted({url for errors in self._manager.errors.values() for url in errors})
        health = f"failing: {', '.join(failing)}" if failing else "all well"
        return f"{text}, {size_text(sum(sizes))}; {health}"


def serve_until_signal(
    gateway: GatewayServer,
    make_tasks: MakeTasks | None,
    metrics_address: Address,
    *,
    as_json: bool,
    process: int | None,
) -> NoReturn:
    """Serve until SIGTERM or SIGINT, answer the requests in flight, and end the process."""
    from distlog.gateway.gateway_server import warm_up as load_kernels

    program = "distlog" if process is None else f"distlog[{process}]"
    line = StatusLine(program, lambda: gateway.status, as_json=as_json)
    # several processes cannot share the last line of a terminal
    line.is_visible = line.is_visible and process is None
    tasks = make_tasks(partial(_print_run, line)) if make_tasks else None
    all_metrics = (lambda: [*gateway.metrics(), *tasks.metrics()]) if tasks else gateway.metrics
    identity = {} if process is None else {"process": process, "pid": os.getpid()}
    with line, metrics_server(metrics_address, all_metrics) as port, ending_signals() as signal_file:
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        # load the kernels while the gateway starts, since the start mostly waits for the storage
        kernels = begin(load_kernels)

        def on_started() -> None:
            kernels.wait()
            freeze_loaded_objects()
            fields = {**identity, "root": gateway.root, "listen": gateway.address, "metrics_port": port}
            line.event("started", f"serving {gateway.root} at {gateway.address}", **fields)

        gateway.start(on_started, lambda: is_readable(signal_file, 0))  # a signal ends its wait for other processes
        # start the tasks after the gateway: they print lines, and the first line must be the address
        if tasks:
            tasks.start()
        _draw_until(line, signal_file)
        finished = all([tasks is None or tasks.stop(), gateway.stop()])  # a list, so that both are stopped
        line.clear()
        text = "stopped" if finished else "stopped; a request or a task was abandoned"
        line.event("stopped", text, **identity, finished=finished)
    end(SUCCESS)


def address_of(process: int, address: Address) -> Address:
    return None if address is None else (address[0], _port_of(process, address[1]))


def _port_of(process: int, first_port: int) -> int:
    """The port of a process. Processes have consecutive ports, or free ports (0) if the first port is 0."""
    return first_port + process if first_port else 0


def _check_ports(processes: int, *addresses: Address) -> None:
    for address in addresses:
        if address and address[1] + processes - 1 > 65535:
            problem = f"{processes} processes need the ports from {address[1]} on, and 65535 is the last"
            raise typer.BadParameter(f"{problem}: use a lower port, or fewer processes", param_hint="--processes")


def _check_root(root: Storage, *, is_first: bool) -> None:
    """Report a new root, which may be a typo. Raises TopicNotFoundError for a topic."""
    check_root(root)
    # if the path exists but is a file, the gateway raises the error
    if is_first and root.is_local and not os.path.exists(os.path.normpath(root.local_path(""))):
        print(f"distlog: {output.text(root.url)} does not exist: creating it as a new root", file=sys.stderr)


def _password(name: str) -> str:
    """Read a password from a terminal without echo, or from standard input. Raises InvalidConfigError."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
        if getpass.getpass("again: ") != password:
            raise InvalidConfigError("the passwords differ: enter the same password twice")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidConfigError("the password is empty: enter one, or write it to standard input")
    if "\0" in password:
        raise InvalidConfigError("the password contains NUL, which SASL cannot send: choose another password")
    return password


def raise_open_file_limit() -> int:
    """Raise the process's limit of open files (ulimit -n) to the hard limit, as Java does. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    # RLIM_INFINITY is -1: return a number above all limits
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def end(status: int) -> NoReturn:
    """Flush the output and exit without a shutdown, which takes a second of CPU and waits for abandoned work."""
    drop_unwritable_output()
    os._exit(status)


def freeze_loaded_objects() -> None:
    """Enable garbage collection, which `load_to_stay` disables, but exclude the objects that a service has loaded."""
    gc.freeze()
    gc.enable()


def is_worth_printing(run: TaskRun) -> bool:
    return bool(run.errors) or any(run.counts.values())


def _print_run(line: StatusLine, run: TaskRun) -> None:
    if is_worth_printing(run):
        line.event("run", str(run), **run.to_dict())


def _draw_until(line: StatusLine, signal_file: int) -> None:
    """Redraw the status line until the pipe of `ending_signals` has bytes."""
    while not is_readable(signal_file, _REDRAW_S if line.is_visible else None):
        line.draw()


@contextmanager
def metrics_server(address: Address, metrics: Callable[[], list[Metric]]) -> Iterator[int | None]:
    """Serve the result of `metrics` at an address, if one is given. Yields the port."""
    if address is None:
        yield None
        return
    host, port = address
    prometheus = optional("prometheus_client", "--metrics-port", extra("metrics"))
    registry = prometheus.CollectorRegistry()
    registry.register(_Collector(metrics))
    try:
        server, thread = prometheus.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        advice = "choose another --metrics-port or --metrics-host"
        raise StorageError(f"cannot serve metrics: {error.strerror or error}; {advice}", port=port) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    def __init__(self, metrics: Callable[[], list[Metric]]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[PrometheusMetric]:
        """Return nothing, since metrics do not exist before the first runs of the tasks."""
        return ()

    def collect(self) -> Iterator[PrometheusMetric]:
        from prometheus_client import Metric as PrometheusMetric

        for metric in self._metrics():
            family = PrometheusMetric(metric.name, metric.meaning, metric.kind)
            suffix = "_total" if metric.kind == "counter" else ""
            for labels, value in metric.values:
                family.add_sample(metric.name + suffix, dict(labels), value)
            yield family


@contextmanager
def ending_signals() -> Iterator[int]:
    """Yield a descriptor that is readable after SIGTERM or SIGINT. In the block, they do not end the process."""
    # a pipe, not an Event: a signal that reaches another thread does not wake a main thread that waits for an Event
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)


def fork_processes(count: int) -> int:
    """Fork `count` processes, and return its number in each. The parent stops all when one ends, and exits."""
    # restore the default: if the program that started this process ignores SIGCHLD, exit statuses are dropped
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # blocked for `sigwait` in `_wait`
    parent, pids = os.getpid(), list[int]()
    for number in range(count):
        try:
            with warnings.catch_warnings():
                # Python warns of a fork with threads, but libraries such as OpenBLAS support it
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:
            _stop(pids)
            raise
        if not pid:
            threading.Thread(target=_stop_after_parent, args=(parent,), name="parent-watch", daemon=True).start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return number
        pids.append(pid)
    status = _wait(pids)
    _stop(pids)
    os._exit(status)


def _wait(pids: list[int]) -> int:
    """Wait for a signal or the end of a process, whose pid is removed from `pids`. Returns the exit status."""
    while signal.sigwait(_SIGNALS) == signal.SIGCHLD:
        pid, wait_status = os.waitpid(-1, os.WNOHANG)
        if pid:  # 0 if a process was only stopped
            number = pids.index(pid)
            status = os.waitstatus_to_exitcode(wait_status)
            how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
            print(f"distlog: process {number} (pid {pid}) {how}; all processes stop", file=sys.stderr, flush=True)
            pids.remove(pid)
            # even with the status 0, no process should end before the other processes
            return max(status, FAILED)
    return SUCCESS


def _stop(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)


def _stop_after_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)
