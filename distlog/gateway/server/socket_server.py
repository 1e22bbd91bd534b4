"""The listener and its connections, which read requests and send responses in order (Kafka's SocketServer)."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from distlog.core.display import text
from distlog.core.errors import StorageError
from distlog.core.segments.chunks import StoredBatches
from distlog.gateway.config import GatewayConfig
from distlog.gateway.event_log import EventLog
from distlog.gateway.protocol import messages
from distlog.gateway.security.authentication import Authentication, SaslExchange
from distlog.gateway.security.tls import PrincipalMapper, TlsContext, subject_name
from distlog.gateway.security.users_file import Users
from distlog.gateway.server.fairness import CpuShares, MemoryShare, Quotas, RequestMemory, change_count, owner_name
from distlog.gateway.server.request import (
    TOKEN_HEAD,
    ClientSession,
    FrameReader,
    Request,
    SaslToken,
    TokenRequest,
    parsed_size,
)

_log = logging.getLogger("distlog.gateway")
#: The principal of clients that need not authenticate.
ANONYMOUS = "ANONYMOUS"
#: The size of the buffer into which all connections receive. Larger requests have their own memory.
_SHARED_BYTES = 64 << 10
#: How long one turn of the event loop may handle requests: other connections wait for it.
_TURN_S = 0.005
#: The pause between checks for idle, slow and revoked clients, and for a new certificate.
_CHECK_S = 1.0
#: The pause in accepting when the system has no more sockets.
_NO_SOCKETS_S = 0.5
_NO_SOCKETS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class SocketServer:
    """The listening sockets and their connections, for one thread. `offer` handles or queues a request."""

    def __init__(
        self,
        config: GatewayConfig,
        loop: asyncio.AbstractEventLoop,
        shares: CpuShares,
        quotas: Quotas,
        offer: Callable[[Request, Callable[[], bool]], bool],
        supports: Callable[[messages.RequestHead, ClientSession], bool],
        authentication: Authentication | None,
        tls: TlsContext | None,
    ) -> None:
        self.principals = PrincipalMapper(config.principal_mapping_rules)
        self.config, self.loop, self.offer, self.supports = config, loop, offer, supports
        self.authentication, self.shares, self.quotas, self._tls = authentication, shares, quotas, tls
        self.memory = RequestMemory(config.request_memory_limit)
        self.shared_buffer = memoryview(bytearray(_SHARED_BYTES))
        self._sockets: list[socket.socket] = []
        self._connecting = set[asyncio.Task[None]]()
        self.connections = set[Connection]()
        self.is_open, self.port = False, 0
        # the sessions of clients, including those in the TLS handshake, and their number by address or IPv6 network
        self._sessions, self._owner_counts = set[ClientSession](), Counter[str]()
        self._loop_thread_id = 0
        self._turn_end_s: float | None = None
        # the work of `run_later`, and whether `_do_queued_work` will be called, so that the loop need not be woken
        self._queued_work, self._is_woken = deque[Callable[[], None]](), False
        #: The number of connections that were accepted, refused, failed in TLS, and closed by the gateway.
        self.accepted = self.refused = self.tls_failed = self.hung_up = 0
        self.failures = EventLog("connections that failed")
        self.unreadable = EventLog("responses that were cut off at an unreadable file", level=logging.ERROR)

    async def listen(self, host: str, port: int) -> None:
        """Begin to accept connections. A `port` of 0 is any free port. Raises StorageError if the port is in use."""
        self._sockets = listening_sockets(host, port)
        self.is_open, self._loop_thread_id = True, threading.get_ident()
        self.port = self._sockets[0].getsockname()[1]
        for listening in self._sockets:
            self._resume(listening)
        self.loop.call_later(_CHECK_S, self._check_clients)

    async def stop(self, timeout_s: float) -> bool:
        """Answer the requests in flight, and close all connections. Returns whether all requests were answered."""
        self.is_open = False
        while self._sockets:
            listening = self._sockets.pop()
            self.loop.remove_reader(listening)
            listening.close()
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        for connection in list(self.connections):
            connection.stop()
        end = self.loop.time() + timeout_s
        while self.connections and self.loop.time() < end:
            await asyncio.sleep(0.01)
        finished = not self.connections
        for connection in list(self.connections):
            connection.hang_up("the gateway is stopping", is_routine=True)
        return finished

    def _accept(self, listening: socket.socket) -> None:
        try:
            client, address = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            _log.warning("cannot accept a connection: %s", error.strerror or error)
            # pause only without free sockets: after the error of one client, the next client must not wait
            if error.errno in _NO_SOCKETS:
                self.loop.remove_reader(listening)
                self.loop.call_later(_NO_SOCKETS_S, self._resume, listening)
            return
        try:
            client.setblocking(False)
            # without this, the system delays a response for up to 40 ms, until the client acknowledges the last one
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = self.admit(_address(address), _address(client.getsockname()))
        except OSError:
            session = None
        if session is None:
            client.close()
            return
        task = self.loop.create_task(self._connect(client, session))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _resume(self, listening: socket.socket) -> None:
        if self.is_open:
            self.loop.add_reader(listening, self._accept, listening)

    async def _connect(self, client: socket.socket, session: ClientSession) -> None:
        """Do the TLS handshake if TLS is enabled, and let asyncio serve the connection."""
        handshake_s = self.config.authentication_timeout_ms / 1000
        # asyncio refuses this argument without TLS
        timeout = {} if self._tls is None else {"ssl_handshake_timeout": handshake_s}
        connection = Connection(self, session)
        try:
            tls = None if self._tls is None else self._tls.current
            await self.loop.connect_accepted_socket(lambda: connection, client, ssl=tls, **timeout)
        except OSError as error:
            # a reset is not logged: load balancers connect and disconnect to probe a gateway
            if not isinstance(error, ConnectionResetError):
                reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
                self.failures.note(f"a client at {session.address[0]}", f"TLS: {reason or type(error).__name__}")
            self.tls_failed += 1
        finally:
            if not connection.is_connected:
                self.disconnected(session)
                client.close()

    def _check_clients(self) -> None:
        if not self.is_open:
            return
        # schedule the next checks first, so that they run even after an error
        self.loop.call_later(_CHECK_S, self._check_clients)
        if self._tls is not None:
            self._tls.refresh()
        users = self.authentication.current() if self.authentication else None
        for connection in list(self.connections):
            connection.check_client(users)

    def has_time(self) -> bool:
        """Whether this turn of the event loop may handle another request itself."""
        now_s = self.loop.time()
        if self._turn_end_s is None:
            self._turn_end_s = now_s + _TURN_S
            self.loop.call_soon(self._end_turn)
        return now_s < self._turn_end_s

    def _end_turn(self) -> None:
        self._turn_end_s = None

    def run_later(self, work: Callable[[], None]) -> None:
        """Run `work` in the event loop; any thread may call this. Does nothing if the loop has ended."""
        self._queued_work.append(work)
        if not self._is_woken and not self.loop.is_closed():
            self._is_woken = True
            is_loop_thread = threading.get_ident() == self._loop_thread_id
            (self.loop.call_soon if is_loop_thread else self.loop.call_soon_threadsafe)(self._do_queued_work)

    def run_in_turn(self, work: Callable[[], None]) -> None:
        """Run `work`, and the work that it passes to `run_later`, in this turn of the event loop."""
        self._is_woken = True
        try:
            work()
        finally:
            self._do_queued_work()

    def _do_queued_work(self) -> None:
        # set this first, so that work that is added from now on wakes the loop again
        self._is_woken = False
        for _ in range(len(self._queued_work)):
            try:
                self._queued_work.popleft()()
            except Exception:  # noqa: PERF203 - other connections have work, too
                _log.exception("the work of a connection failed")

    def admit(self, address: tuple[str, int], local: tuple[str, int]) -> ClientSession | None:
        """Return the session of a new connection, or None if all clients or its owner have too many connections."""
        owner, limit_per_owner = owner_name(None, address[0]), self.config.max_connections_per_ip
        if len(self._sessions) >= self.config.connection_limit or self._owner_counts[owner] >= limit_per_owner:
            self.refused += 1
            self.failures.note(f"a client at {address[0]}", "max.connections or max.connections.per.ip is reached")
            return None
        self.accepted += 1
        sasl = SaslExchange(self.authentication) if self.authentication else None
        session = ClientSession(address, local, None if sasl else ANONYMOUS, sasl)
        self._sessions.add(session)
        self._owner_counts[owner] += 1
        return session

    def disconnected(self, session: ClientSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            change_count(self._owner_counts, owner_name(None, session.address[0]), -1)


#: The most connections that wait in the system to be accepted.
_BACKLOG = 512
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Open a socket at `port` (0: a free one) for each of this machine's addresses of `host`. Raises StorageError."""
    sockets: list[socket.socket] = []
    address_error: OSError | None = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, *_, address in dict.fromkeys(addresses):
            # if `port` is 0, all sockets get the free port of the first socket
            number = sockets[0].getsockname()[1] if sockets else port
            try:
                bind_address = address[0], number, *address[2:]
                # create_server makes IPv6 sockets that do not accept IPv4
                sockets.append(socket.create_server(bind_address, family=family, backlog=_BACKLOG))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                address_error = error
        if address_error is not None and not sockets:
            raise address_error
        for listening in sockets:
            listening.setblocking(False)
    except OSError as error:
        for listening in sockets:
            listening.close()
        advice = "choose another --listen address, or stop the process that uses this one"
        raise StorageError(f"cannot listen: {error.strerror or error}; {advice}", host=host, port=port) from None
    return sockets


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)


#: The connection stops writing while the transport has more than this many unsent bytes.
_WRITE_BUFFER_BYTES = 64 << 10
_MAX_WRITE_BYTES = 256 << 10
#: The most responses in one write. Writes are joined because each one wakes the client, which costs much CPU time.
_MAX_JOINED_RESPONSES = 4
#: The most bytes that are received from a client while its earlier requests are handled.
_UNFRAMED_BYTES = 64 << 10
#: How long a client may take to receive the last bytes, and to close TLS.
_CLOSE_TIMEOUT_S = 3.0
#: The most requests in flight of a connection, and the bytes of memory that each takes besides its frame.
_MAX_IN_FLIGHT = 256
_IN_FLIGHT_BYTES = 4 << 10


class Connection(asyncio.BufferedProtocol):
    """One client's connection. Any thread may call `send`, `send_last`, `fail` and `read_next`.

    As in Kafka, a request is handled after the request before it was answered. Only Produce requests may be handled
    while earlier ones wait for a sync or a commit, so that they share it. Responses keep the order of requests.
    """

    def __init__(self, server: SocketServer, session: ClientSession) -> None:
        self._server, self.session = server, session
        self._cached_owner: tuple[str | None, str] | None = None
        # requests whose response was not sent; the newest may wait for memory, or for the response before it
        self._in_flight = deque[Request]()
        self._newest_waits = False
        self._has_unread = False  # whether the received bytes may contain a request that was not read yet
        # True if the client has closed its side, but its requests after a Produce request must still be handled
        self._is_draining = False
        # the reserved memory, of which `_frame_bytes` are for the frame that is being received
        self._memory, self._frame_bytes = MemoryShare(server.memory, self._owner), 0
        self._waits_for_memory = False
        self._transport: Any = None
        # True while the transport has too many unsent bytes
        self._is_paused = False
        # whether the client was connected, will be disconnected after the requests in flight, and has disconnected
        self.is_connected = self._is_stopping = self._is_lost = False
        self._is_reading, self._throttles = True, 0  # the number of pauses for quotas
        # responses to write together with the next one, and whether the next request was handled at once
        self._ready_chunks, self._is_next_handled = list[messages.ResponseChunk](), False
        self._frames = FrameReader(server.shared_buffer, self._max_length())
        self._timeouts = ConnectionTimeouts(server.loop.time, server.config)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.is_connected = transport, True
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=0)
        self._server.connections.add(self)
        if not self._server.is_open:
            self._transport.abort()
        elif self.session.principal == ANONYMOUS and (certificate := transport.get_extra_info("peercert")):
            # without SASL, the certificate names the client; only an empty subject has an empty name
            subject = subject_name(certificate)
            name = self._server.principals.name(subject)
            self.session.principal = ANONYMOUS if name == "" else name
            self._memory.owner = self._owner
            if name is None:
                shown = text(subject) or "an empty subject"
                self.hang_up(f"no rule of ssl.principal.mapping.rules matches its certificate: {shown}")

    def check_client(self, users: Users | None) -> None:
        """Close the connection of a client that is too slow, or whose login is no longer valid for `users`."""
        is_idle = not self._in_flight and not self._frames.is_started
        reason = self._timeouts.close_reason(is_idle=is_idle, is_authenticated=self.session.principal is not None)
        if reason is not None:
            self.hang_up(reason, is_routine=reason is _IDLE)
        elif users is not None and self.session.sasl is not None and self.session.sasl.is_revoked(users):
            self.hang_up("the user was deleted, or has another password", is_routine=True)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.next_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._timeouts.note_activity()
        self._frames.received(nbytes)
        # set this before `allows_next` is read below: `allow_pipelining` first sets `allows_next`, then reads this
        self._has_unread = True
        if self._can_read_next:
            self._server.run_in_turn(self._read_next)
        elif self._frames.unframed >= _UNFRAMED_BYTES:
            # do not stop earlier, since only reading detects that the client disconnects while its requests wait
            self._set_reading(False)

    def eof_received(self) -> bool:
        """Keep the connection for requests after a Produce request, although the client has closed its side."""
        # with TLS, asyncio cannot keep the connection: it calls `connection_lost`, which does the same
        self._is_draining = self._transport.get_extra_info("ssl_object") is None and self._has_more_requests
        return self._is_draining

    @property
    def _has_more_requests(self) -> bool:
        is_newest_produce = bool(self._in_flight) and self._in_flight[-1].head.api_key == messages.PRODUCE_KEY
        return is_newest_produce and (self._newest_waits or self._frames.is_started)

    @property
    def _can_read_next(self) -> bool:
        if self._is_stopping or self._throttles or self._waits_for_memory or self._newest_waits:
            return False
        return not self._in_flight or (self._in_flight[-1].allows_next and len(self._in_flight) < _MAX_IN_FLIGHT)

    def _read_next(self) -> None:
        try:
            self._start_next()
        except messages.InvalidRequestError as error:
            self.hang_up(str(error))

    def _start_next(self) -> None:
        if self._in_flight and not self._in_flight[-1].is_pipelined:
            # its memory will be released even while the next request waits for memory
            self._in_flight[-1].is_pipelined = True
            self._memory.add_releasable(self._in_flight[-1].memory)
        length = self._frames.begin()
        if self._frames.is_started:
            self._timeouts.begin_receiving(length)
        wanted_bytes = self._frames.wanted_bytes
        if wanted_bytes:
            if not self._memory.reserve(wanted_bytes, partial(self._on_memory_granted, wanted_bytes)):
                # the client must not time out while the gateway does not receive
                self._timeouts.end_receiving()
                self._waits_for_memory = True
                self._set_reading(False)
                return
            self._grant(wanted_bytes)
        frame = self._frames.next()
        self._has_unread = self._frames.unframed > 0
        # read more bytes unless many that were received still wait to be handled; they may have been this frame
        self._set_reading(frame is None or self._frames.unframed < _UNFRAMED_BYTES)
        if frame is None:
            if self._is_draining and not self._in_flight:
                self._close()
            return
        self._timeouts.end_receiving()
        request = self._new_request(frame)
        request.memory, self._frame_bytes = self._frame_bytes, 0
        # after the client has disconnected, records are still appended, but fetches do not wait for new records
        request.is_gone = self._is_lost and request.head.api_key != messages.PRODUCE_KEY
        self._in_flight.append(request)
        self._newest_waits = True
        self._handle_newest()

    def _grant(self, size: int) -> None:
        self._frames.grant(size)
        self._frame_bytes += size

    def _on_memory_granted(self, size: int) -> None:
        self._waits_for_memory = False
        if self._is_stopping:
            self._memory.release(size)
            return
        self._grant(size)
        self._timeouts.begin_receiving(self._frames.missing)
        self._set_reading(True)
        self._read_next()

    def _handle_newest(self) -> None:
        """Handle the newest request if it need not wait for the response before it, or for memory."""
        request = self._in_flight[-1]
        size = parsed_size(request)
        if len(self._in_flight) > 1:
            # only Produce requests are handled before the response to the request before them
            if request.head.api_key != messages.PRODUCE_KEY:
                return
            size += _IN_FLIGHT_BYTES
            # reserve the bytes of the frame, unless they were reserved when it was received
            if not request.memory:
                size += len(request.frame or b"")
        self._waits_for_memory = not self._memory.reserve(size, partial(self._offer, request, size))
        if not self._waits_for_memory:
            self._offer(request, size)

    def _offer(self, request: Request, size: int) -> None:
        self._waits_for_memory = self._newest_waits = False
        request.memory += size
        self._is_next_handled = self._server.offer(request, self._server.has_time)

    def _set_reading(self, is_reading: bool) -> None:
        if is_reading != self._is_reading and not self._is_lost:
            self._is_reading = is_reading
            (self._transport.resume_reading if is_reading else self._transport.pause_reading)()

    def _new_request(self, frame: memoryview) -> Request:
        session = self.session
        if session.sasl is not None and session.sasl.expects_bare_token:
            token, share = SaslToken(bytes(frame)), self._server.shares.share(self._owner, "")
            return TokenRequest(TOKEN_HEAD, None, session, share, self._server.quotas, self, body=token)
        head = messages.read_head(frame)
        readable_frame = frame if self._server.supports(head, session) else None
        client_id = "" if readable_frame is None else messages.client_id_and_end(readable_frame)[0]
        share = self._server.shares.share(self._owner, client_id)
        return Request(head, readable_frame, session, share, self._server.quotas, self, client_id)

    @property
    def _owner(self) -> str:
        # cached, since parsing an address is slow
        principal = self.session.principal
        if self._cached_owner is None or self._cached_owner[0] != principal:
            name = None if principal == ANONYMOUS else principal
            self._cached_owner = principal, owner_name(name, self.session.address[0])
        return self._cached_owner[1]

    def send(self, request: Request, chunks: Sequence[messages.ResponseChunk]) -> None:
        self._server.run_later(partial(self._answer, request, chunks))

    def send_last(self, request: Request, chunks: Sequence[messages.ResponseChunk], after_s: float) -> None:
        self._server.run_later(partial(self._answer_last, request, chunks, after_s))

    def fail(self, request: Request, reason: str) -> None:
        self._server.run_later(partial(self._fail, request, reason))

    def read_next(self) -> None:
        # most clients have sent nothing more, and waking the event loop costs a tenth of a request's CPU time
        if self._has_unread:
            self._server.run_later(self._continue)

    def _answer(self, request: Request, chunks: Sequence[messages.ResponseChunk]) -> None:
        if request not in self._in_flight:
            return
        # the request may have authenticated the client, which may send larger requests from now on
        self._frames.max_length = self._max_length()
        request.unsent = list(chunks)
        self._release(request)
        if self._is_lost:
            self._end(request)
            self._continue()
            return
        if self._in_flight[0] is request:
            self._write()
        if request in self._in_flight and not request.on_sent:
            # count a response that waits for its turn or the client; FetchMemory counts Fetch responses, by `on_sent`
            size = sum(map(len, chunks))
            self._memory.charge(size)
            request.memory = size
            if request.is_pipelined:
                self._memory.add_releasable(size)

    def _answer_last(self, request: Request, chunks: Sequence[messages.ResponseChunk], after_s: float) -> None:
        self._is_stopping = True
        wait_s = after_s if self._server.is_open else 0
        self._server.loop.call_later(wait_s, self._answer, request, chunks)

    def _fail(self, request: Request, reason: str) -> None:
        self.hang_up(reason)
        if request in self._in_flight:
            self._end(request)

    def _write(self) -> None:
        """Send the ready responses in order, as far as the client receives them now."""
        while self._in_flight and (unsent := self._in_flight[0].unsent) is not None:
            self._timeouts.begin_sending(sum(map(len, unsent)))
            # keep responses to Produce requests for the next write: they are small, so several share it
            if self._in_flight[0].head.api_key == messages.PRODUCE_KEY and not self._is_paused:
                self._ready_chunks += unsent
                unsent.clear()
            while unsent and not self._is_paused:
                self._write_ready()
                try:
                    self._write_first(unsent)
                except (OSError, StorageError) as error:
                    if isinstance(error, StorageError):
                        details = dict(error.details)
                        file = str(details.pop("file", None))
                        reason = ", ".join([error.message, *(f"{name}={value}" for name, value in details.items())])
                        self._server.unreadable.note(file, reason)
                    # routine, since clients disconnect, and unreadable records were logged above
                    self.hang_up(f"the response cannot be sent: {error}", is_routine=True)
                    return
            if self._is_paused:
                if self._is_stopping:
                    self._abort_soon()
                return
            self._timeouts.end_sending()
            self._end(self._in_flight[0])
        self._is_next_handled = False
        self._continue()
        # if `_continue` handled the next request at once (see `_offer`), its response can soon share the write
        if not self._is_next_handled or len(self._ready_chunks) >= _MAX_JOINED_RESPONSES:
            self._write_ready()

    def _write_first(self, unsent: list[messages.ResponseChunk]) -> None:
        first, transport = unsent.pop(0), self._transport
        if isinstance(first, bytes):
            first = memoryview(first)
        elif isinstance(first, StoredBatches) and not (
            # a file bypasses the transport, which must not encrypt, be closing or have unsent bytes
            transport.get_extra_info("sslcontext") or transport.is_closing() or transport.get_write_buffer_size()
        ):
            sent_count = first.send(transport.get_extra_info("socket").fileno())
            first = first[sent_count:]
        # a large chunk is written in steps, since the transport copies what the client does not receive at once
        if len(first) > _MAX_WRITE_BYTES:
            unsent.insert(0, first[_MAX_WRITE_BYTES:])
        written = first[:_MAX_WRITE_BYTES]
        if len(written):
            transport.write(written if isinstance(written, memoryview) else bytes(written))

    def _write_ready(self) -> None:
        if self._ready_chunks:
            chunks, self._ready_chunks = self._ready_chunks, []
            self._transport.write(b"".join(map(bytes, chunks)))

    def _end(self, request: Request) -> None:
        self._in_flight.remove(request)
        self._release(request)
        if not self._memory.size:
            # the owner changes when the client authenticates, but memory in use belongs to the owner that reserved it
            self._memory.owner = self._owner
        for on_sent in request.on_sent:
            on_sent()
        if request.throttled_s and not self._is_stopping and not self._is_lost:
            self._throttles += 1
            self._set_reading(False)
            self._server.loop.call_later(request.throttled_s, self._end_throttle)

    def _release(self, request: Request) -> None:
        size, request.memory = request.memory, 0
        if request.is_pipelined:
            self._memory.add_releasable(-size)
        self._memory.release(size)

    def _end_throttle(self) -> None:
        self._throttles -= 1
        self._continue()

    def _continue(self) -> None:
        if self._is_lost and not self._is_draining:
            return
        if self._is_stopping:
            if not self._in_flight:
                self._close()
        elif self._newest_waits and not self._waits_for_memory:
            self._handle_newest()
        elif self._can_read_next:
            self._read_next()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._timeouts.note_activity()
        self._write()

    def connection_lost(self, error: BaseException | None) -> None:
        """Forget the connection. If a TLS client has closed it, first handle its requests after a Produce request."""
        self._is_lost = True
        self._is_draining = error is None and not self._is_stopping and self._has_more_requests
        if not self._is_draining:
            self._forget()
            return
        for request in list(self._in_flight):
            if request.unsent is not None:
                self._end(request)
        self._continue()

    def _forget(self) -> None:
        self._is_draining = False
        self._server.connections.discard(self)
        self._server.disconnected(self.session)
        self._memory.cancel_wait()
        self._memory.release(self._frame_bytes)
        self._frame_bytes = 0
        for request in list(self._in_flight):
            request.is_gone = True
            # other requests end when their handlers answer them
            if request.unsent is not None or (self._newest_waits and request is self._in_flight[-1]):
                self._end(request)
        self._newest_waits = False

    def stop(self) -> None:
        self._is_stopping = True
        if self._newest_waits and len(self._in_flight) > 1:
            # the newest request was not handled yet: answer only the requests before it
            self._memory.cancel_wait()
            self._newest_waits = False
            self._end(self._in_flight[-1])
        if not self._in_flight:
            self._close()
            return
        # a request that was received in part gets no more memory, so the rest cannot be received
        self._set_reading(False)
        if self._in_flight[0].unsent is not None:
            # this response is being sent: wait for its client only _CLOSE_TIMEOUT_S
            self._abort_soon()

    def hang_up(self, reason: str, *, is_routine: bool = False) -> None:
        """Close the connection without waiting for its client. This is logged as a failure unless it `is_routine`."""
        # after the client has disconnected, log the first failure, as of a request without acks
        if not self._is_lost or not self._is_stopping:
            host, port = self.session.address
            if is_routine:
                _log.info("closing the connection of %s:%d: %s", host, port, reason)
            else:
                self._server.failures.note(f"{self.session.principal or 'a client'} at {host}", reason)
            self._server.hung_up += 1
        self._is_stopping = True
        if self._is_lost:
            self._forget()
            return
        self._write_ready()
        self._transport.abort()

    def _close(self) -> None:
        if self._is_lost:
            self._forget()
            return
        self._write_ready()
        # with asyncio's TLS, a connection that is closed twice cannot be aborted
        if not self._transport.is_closing():
            self._transport.close()
        self._abort_soon()

    def _abort_soon(self) -> None:
        self._server.loop.call_later(_CLOSE_TIMEOUT_S, self._transport.abort)

    def _max_length(self) -> int:
        config, is_authenticated = self._server.config, self.session.principal is not None
        max_bytes = config.socket_request_max_bytes
        return max_bytes if is_authenticated else min(max_bytes, config.sasl_server_max_receive_size)


#: The connection of a client that is slower than this is closed.
BYTES_PER_S = 1 << 20
_IDLE = "the client was idle for connections.max.idle.ms"  # routine: not logged as a failure


class ConnectionTimeouts:
    def __init__(self, clock_s: Callable[[], float], config: GatewayConfig) -> None:
        self._clock_s, self._config = clock_s, config
        self._created_s = self._last_activity_s = clock_s()
        # when the whole request must be received, and when the whole response must be sent
        self._receive_deadline_s: float | None = None
        self._send_deadline_s: float | None = None

    def note_activity(self) -> None:
        self._last_activity_s = self._clock_s()

    def begin_receiving(self, size: int) -> None:
        """Set the deadline of a new frame of `size` bytes. A `size` of 0 keeps the deadline of a started frame."""
        if size or self._receive_deadline_s is None:
            self._receive_deadline_s = self._deadline_s(size)

    def end_receiving(self) -> None:
        self._receive_deadline_s = None
        self.note_activity()

    def begin_sending(self, size: int) -> None:
        if self._send_deadline_s is None:
            self._send_deadline_s = self._deadline_s(size)

    def end_sending(self) -> None:
        self._send_deadline_s = None
        self.note_activity()

    def _deadline_s(self, size: int) -> float:
        return self._clock_s() + self._config.request_timeout_ms / 1000 + size / BYTES_PER_S

    def close_reason(self, *, is_idle: bool, is_authenticated: bool) -> str | None:
        now_s, config = self._clock_s(), self._config
        silent_ms = 1000 * (now_s - self._last_activity_s)
        deadlines_s = [time_s for time_s in (self._receive_deadline_s, self._send_deadline_s) if time_s is not None]
        if deadlines_s and (now_s > min(deadlines_s) or silent_ms > config.request_timeout_ms):
            return "the client stopped or was too slow during a request or a response"
        waits_for_client = is_idle or bool(deadlines_s)
        age_ms = 1000 * (now_s - self._created_s)
        if waits_for_client and not is_authenticated and age_ms > config.authentication_timeout_ms:
            return "the client did not authenticate in time"
        if is_idle and silent_ms > config.connections_max_idle_ms:
            return _IDLE
        return None
