"""One client's connection. It has one request under way at a time, as in Kafka, so responses keep their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from distlog.gateway.protocol.invalid_request import InvalidRequestError
from distlog.gateway.protocol.request_frame import read_head
from distlog.gateway.protocol.response_frame import Piece
from distlog.gateway.security.users import Users
from distlog.gateway.server.frames import Frames
from distlog.gateway.server.patience import Patience
from distlog.gateway.server.processor import Processor
from distlog.gateway.server.request import TOKEN_HEAD, ClientSession, Request, SaslToken, TokenRequest
from distlog.gateway.server.request_memory import MemoryShare

_log = logging.getLogger("distlog.gateway")
#: What may wait for a client before the rest of a response waits.
_WRITE_BUFFER_BYTES = 64 << 10
_WRITTEN_BYTES = 256 << 10
#: What a client may send while its last request is under way.
_HELD_BYTES = 64 << 10
#: How long a client may take to receive the last bytes, and to say goodbye as TLS has it.
_GOODBYE_S = 3.0


class Connection(asyncio.BufferedProtocol):
    """The network's side of a client. All methods are of the event loop's thread, but for those of a Request."""

    def __init__(self, processor: Processor, session: ClientSession) -> None:
        self._processor, self.session = processor, session
        self._request: Request | None = None
        self._memory = MemoryShare(processor.memory)
        self._transport: Any = None
        self._pieces: list[Piece] = []
        self._is_paused = self._is_stopping = False
        self._is_lost, self._reads = False, True
        self._frames = Frames(processor.shared_buffer, self._largest())
        self._patience = Patience(processor.loop.time, processor.config)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls it."""
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=0)
        self._processor.connections.add(self)
        if not self._processor.is_open:
            self._transport.abort()

    def look(self, users: Users | None) -> None:
        """End the connection of a client that takes too long, or of a user who is not one of `users` any more."""
        is_known = self.session.principal is not None
        why = self._patience.verdict(is_idle=self._is_idle, is_known=is_known)
        if why is not None:
            self.hang_up(why)
        elif users is not None and self.session.sasl is not None and self.session.sasl.is_revoked(users):
            self.hang_up("the user was deleted, or has another password")

    @property
    def is_made(self) -> bool:
        """Whether it was begun, after TLS's handshake; only then will it end by itself."""
        return self._transport is not None

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is under way: a client that is silent now owes nothing, and is owed nothing."""
        return self._request is None and not self._frames.is_begun

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where asyncio puts what it receives."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received; asyncio calls it."""
        self._patience.touched()
        self._guarded(partial(self._received, nbytes))

    def _received(self, count: int) -> None:
        self._frames.received(count)
        if self._request is None:
            self._next()
        elif self._frames.held >= _HELD_BYTES:
            # until then it is read on, to learn of a client that goes away while it waits
            self._read_on(False)

    def _next(self) -> None:
        """Handle the next frame if it is all there; the one behind it waits until it is answered."""
        size = self._frames.begin()
        if self._frames.is_begun:
            self._patience.begins(size)
        if wanted := self._frames.wanted:
            if not self._memory.take(wanted, partial(self._has_memory, wanted)):
                self._patience.ends()
                self._read_on(False)
                return
            self._frames.grant(wanted)
        frame = self._frames.next()
        if frame is not None:
            self._patience.ends()
            self._request = self._made(frame)
            self._processor.offer(self._request)

    def _has_memory(self, size: int) -> None:
        """Go on with a frame that has waited for memory."""
        self._frames.grant(size)
        self._patience.begins(self._frames.missing)
        self._read_on(True)
        self._guarded(self._next)

    def _read_on(self, whether: bool) -> None:
        if whether != self._reads:
            self._reads = whether
            (self._transport.resume_reading if whether else self._transport.pause_reading)()

    def _made(self, frame: memoryview) -> Request:
        loop, session = self._processor.loop, self.session
        answers: Any = {
            "session": session,
            "received_ms": self._processor.clock(),
            "send": lambda pieces: _call(loop, partial(self._send, pieces)),
            "send_last": lambda pieces, after_s: _call(loop, partial(self._send_last, pieces, after_s)),
            "hang_up": lambda why: _call(loop, partial(self._failed, why)),
        }
        if session.sasl is not None and session.sasl.takes_tokens:
            return TokenRequest(TOKEN_HEAD, None, body=SaslToken(bytes(frame)), **answers)
        head = read_head(frame)
        return Request(head, frame if self._processor.supports(head, session) else None, **answers)

    def _send(self, pieces: Sequence[Piece]) -> None:
        """Send a response; then it is the next request's turn."""
        self._frames.largest = self._largest()
        self._memory.give_back()
        if self._is_lost:
            self._end_request()
            return
        self._pieces = list(pieces)
        self._patience.begins(sum(map(len, pieces)))
        if self._is_stopping:
            self._hurry()
        self._write()

    def _send_last(self, pieces: Sequence[Piece], after_s: float) -> None:
        """Send a response after some time, and close the connection then."""
        self._is_stopping = True
        self._processor.loop.call_later(0 if not self._processor.is_open else after_s, self._send, pieces)

    def _write(self) -> None:
        while self._pieces and not self._is_paused:
            # what the client does not take at once is copied: no more than a part of a large piece
            first = memoryview(self._pieces.pop(0))
            if len(first) > _WRITTEN_BYTES:
                self._pieces.insert(0, first[_WRITTEN_BYTES:])
            self._transport.write(first[:_WRITTEN_BYTES])
        if not self._pieces and not self._is_paused and not self._is_lost:
            self._end_request()
            self._go_on()

    def _go_on(self) -> None:
        self._patience.ends()
        if self._is_stopping:
            self._close()
            return
        self._read_on(True)
        # what came while the last request was under way
        self._guarded(self._next)

    def pause_writing(self) -> None:
        """The client takes no more now; asyncio calls it."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The client has taken all that it was sent; asyncio calls it."""
        self._is_paused = False
        self._patience.touched()
        if self._request is not None:
            self._write()

    def connection_lost(self, error: BaseException | None) -> None:
        """End; asyncio calls it."""
        self._is_lost = True
        self._processor.connections.discard(self)
        self._processor.left(self.session)
        if self._request is not None:
            self._request.is_gone = True
        if self._pieces or self._is_paused:
            self._end_request()
        if self._request is None:
            self._memory.give_back()

    def stop(self) -> None:
        """Close the connection when the request that is under way has its response."""
        self._is_stopping = True
        if self._request is None:
            self._close()
        elif self._pieces or self._is_paused:
            self._hurry()

    def hang_up(self, why: str) -> None:
        """End the connection at once; whatever it costs costs nobody else."""
        if not self._is_lost:
            _log.info("closing the connection of %s:%d: %s", *self.session.address, why)
            self._processor.hung_up += 1
            self._transport.abort()

    def _close(self) -> None:
        # of asyncio's TLS, a second close would leave nothing that can be aborted
        if not self._transport.is_closing():
            self._transport.close()
        self._hurry()

    def _hurry(self) -> None:
        self._processor.loop.call_later(_GOODBYE_S, self._transport.abort)

    def _failed(self, why: str) -> None:
        """The request that is under way gets no response."""
        self.hang_up(why)
        self._memory.give_back()
        self._end_request()

    def _end_request(self) -> None:
        request, self._request, self._pieces = self._request, None, []
        for each in request.on_sent if request else ():
            each()

    def _largest(self) -> int:
        config = self._processor.config
        largest = config.socket_request_max_bytes
        return min(largest, config.sasl_server_max_receive_size) if self.session.principal is None else largest

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except InvalidRequestError as error:
            self.hang_up(str(error))


def _call(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Have the event loop do it; nothing if the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)
