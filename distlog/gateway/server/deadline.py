"""One time for all that ends a gateway, so that it ends within it whatever its parts wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError


class Deadline:
    """The moment `timeout_s` from now."""

    def __init__(self, timeout_s: float) -> None:
        self._end_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """How many seconds are left; 0 if none."""
        return max(self._end_s - time.monotonic(), 0)

    def result_of(self, work: Future[bool]) -> bool:
        """What `work` returns; False if it is not done in time. Raises what it raises."""
        try:
            return work.result(self.left_s)
        except TimeoutError:
            return False

    def has_done(self, work: Callable[[], None]) -> bool:
        """Do `work` in another thread; False if it is not done in time, and goes on. Raises what it raises."""
        done: Future[bool] = Future()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(True)

        threading.Thread(target=run, name="gateway-close", daemon=True).start()
        return self.result_of(done)
