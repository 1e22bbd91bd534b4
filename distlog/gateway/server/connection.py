"""One client's connection. It has one request under way at a time, as in Kafka, so responses keep their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from distlog.gateway.protocol.request_frame import InvalidRequestError, read_head, read_request
from distlog.gateway.protocol.response_frame import Piece
from distlog.gateway.server.frames import Frames
from distlog.gateway.server.processor import Processor
from distlog.gateway.server.request import ClientSession, Request

_log = logging.getLogger("distlog.gateway")
#: What a client may send before it has authenticated (Kafka's sasl.server.max.receive.size).
UNKNOWN_CLIENT_BYTES = 512 << 10
#: What may wait for a client before the rest of a response waits.
_WRITE_BUFFER_BYTES = 64 << 10
_WRITTEN_BYTES = 256 << 10
#: What a client may send while its last request is under way.
_HELD_BYTES = 64 << 10


class Connection(asyncio.BufferedProtocol):
    """The network's side of a client. All methods are of the event loop's thread, but for the two of a Request."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._request: Request | None = None
        self._request_bytes = 0
        self._transport: Any = None
        self._pieces: list[Piece] = []
        self._is_paused = self._is_stopping = False
        self._is_lost, self._reads = False, True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls it."""
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES, low=0)
        self.session = ClientSession(
            _address(transport.get_extra_info("peername")),
            _address(transport.get_extra_info("sockname")),
            self._processor.first_principal,
        )
        self._frames = Frames(self._processor.shared_buffer, self._largest())
        self.touched_s = self._processor.loop.time()
        if not self._processor.joined(self):
            self._is_lost = True
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: a client that is silent now owes nothing, and is owed nothing."""
        return self._request is None and not self._pieces and not self._is_paused and not self._frames.is_begun

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: to send the rest of a request, or to take the rest of a response."""
        return self._is_paused or (self._request is None and self._frames.is_begun)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where asyncio puts what it receives."""
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received; asyncio calls it."""
        self.touched_s = self._processor.loop.time()
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
        if size := self._frames.begin():
            if not self._processor.memory.take(size, partial(self._has_memory, size)):
                self._read_on(False)
                return
            self._request_bytes = size
        frame = self._frames.next()
        if frame is not None:
            self._request = self._parsed(frame)
            self._processor.offer(self._request)

    def _has_memory(self, size: int) -> None:
        """Go on with a frame that has waited for memory."""
        self._request_bytes = size
        if self._is_lost:
            self._give_back()
        else:
            self._read_on(True)
            self._guarded(self._next)

    def _read_on(self, whether: bool) -> None:
        if whether != self._reads:
            self._reads = whether
            (self._transport.resume_reading if whether else self._transport.pause_reading)()

    def _parsed(self, frame: memoryview) -> Request:
        head = read_head(frame)
        supported = self._processor.supports(head)
        parsed = read_request(frame, supported) if supported else None
        loop = self._processor.loop
        return Request(
            head,
            parsed.client_id if parsed else "",
            parsed.body if parsed else None,
            self.session,
            self._processor.clock(),
            send=lambda pieces: _call(loop, partial(self._send, pieces)),
            hang_up=lambda why: _call(loop, partial(self._failed, why)),
        )

    def _send(self, pieces: Sequence[Piece]) -> None:
        """Send a response; then it is the next request's turn."""
        self._frames.largest = self._largest()
        self._give_back()
        if self._is_lost:
            self._end_request()
            return
        self._pieces = list(pieces)
        self._write()

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
        self.touched_s = self._processor.loop.time()
        if self._is_stopping:
            self._transport.close()
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
        self.touched_s = self._processor.loop.time()
        if self._request is not None:
            self._write()

    def connection_lost(self, error: BaseException | None) -> None:
        """End; asyncio calls it."""
        self._is_lost = True
        self._processor.left(self)
        if self._request is not None:
            self._request.is_gone = True
        if self._pieces or self._is_paused:
            self._end_request()
        if self._request is None:
            self._give_back()

    def stop(self) -> None:
        """Close the connection when the request that is under way has its response."""
        self._is_stopping = True
        if self._request is None:
            self._transport.close()

    def hang_up(self, why: str) -> None:
        """End the connection at once; whatever it costs costs nobody else."""
        if not self._is_lost:
            _log.info("closing the connection of %s:%d: %s", *self.session.address, why)
            self._transport.abort()

    def _failed(self, why: str) -> None:
        """The request that is under way gets no response."""
        self.hang_up(why)
        self._give_back()
        self._end_request()

    def _end_request(self) -> None:
        request, self._request, self._pieces = self._request, None, []
        for each in request.on_sent if request else ():
            each()

    def _give_back(self) -> None:
        size, self._request_bytes = self._request_bytes, 0
        if size:
            self._processor.memory.give_back(size)

    def _largest(self) -> int:
        largest = self._processor.config.socket_request_max_bytes
        return min(largest, UNKNOWN_CLIENT_BYTES) if self.session.principal is None else largest

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except InvalidRequestError as error:
            self.hang_up(str(error))


def _call(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Have the event loop do it; nothing if the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(work)


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
