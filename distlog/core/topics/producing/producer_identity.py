"""Who a producer is: its id and epoch in batches, and its application id in commits.

A producer without a transactional id is new each time: it has a random id, which nobody else has. With one, the
commit log counts its generations, each with a commit. Their application is `producer:<transactional id>`, and batch
numbers are the generation * 2^32 + the number in it, of which 0 is the commit that begins it. So whoever sees a
higher generation knows that the lower ones have ended. The epoch in batches is the generation; when the epochs of one
producer id are used up, the next one has another id, as in Kafka.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.actions import Action, SetTransaction
from distlog.core.commits.state.ongoing_transactions import abort_ongoing
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import MAX_LONG
from distlog.core.errors import InvalidConfigError, ProducerFencedError
from distlog.core.topic_handle import TopicHandle

#: Epochs of one producer id: an int16 that is not negative.
_EPOCHS = 1 << 15
_NUMBER_BITS = 32
_LONGEST_ID = 249


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer; `transactional_id` is None for one that nobody can take over."""

    transactional_id: str | None
    generation: int
    producer_id: int
    epoch: int
    app_id: str

    @property
    def first_number(self) -> int:
        """The batch number in commits that stands for its beginning."""
        return self.generation << _NUMBER_BITS

    def check(self, snapshot: Snapshot) -> None:
        """Raise ProducerFencedError if a newer producer with its transactional id has begun."""
        if self.transactional_id is not None:
            newest = _generation(snapshot, self.app_id)
            if newest is not None and newest > self.generation:
                raise ProducerFencedError(
                    "a newer producer with this transactional id has begun: end this one",
                    transactional_id=self.transactional_id,
                )


def begin_producer(
    handle: TopicHandle,
    current: CurrentSnapshot,
    transactional_id: str | None = None,
    *,
    before: ProducerIdentity | None = None,
) -> ProducerIdentity:
    """A new producer; it ends all earlier ones with the same transactional id, and aborts their open transaction.

    With `before`, it raises ProducerFencedError if that one was ended already. Raises InvalidConfigError for an id
    that is not text of 1 to 249 characters, and the errors of `CommitLog.commit`.
    """
    if transactional_id is None:
        unique = handle.new_id()
        return ProducerIdentity(None, 0, int(unique[:16], 16) & MAX_LONG, 0, f"producer:{unique}")
    if not isinstance(transactional_id, str) or not 0 < len(transactional_id) <= _LONGEST_ID:
        text = f"a transactional id is text of 1 to {_LONGEST_ID} characters"
        raise InvalidConfigError(text, transactional_id=repr(transactional_id)[:300])
    app_id = f"producer:{transactional_id}"
    generations = list[int]()

    def plan(snapshot: Snapshot) -> list[Action]:
        if before is not None:
            before.check(snapshot)
        newest = _generation(snapshot, app_id)
        generations.append(0 if newest is None else newest + 1)
        begun = SetTransaction(app_id, generations[-1] << _NUMBER_BITS, {}, in_order=True)
        return [*abort_ongoing(snapshot, transactional_id), begun]

    _, after = handle.log.commit(current.refresh(), "producer", plan)
    current.advance(after)
    # the commit that landed was planned last
    number, epoch = divmod(generations[-1], _EPOCHS)
    digest = hashlib.sha256(f"{after.topic_id}/{number}/{transactional_id}".encode()).digest()
    producer_id = int.from_bytes(digest[:8], "big") & MAX_LONG
    return ProducerIdentity(transactional_id, generations[-1], producer_id, epoch, app_id)


def _generation(snapshot: Snapshot, app_id: str) -> int | None:
    newest = snapshot.transactions.newest(app_id)
    return None if newest is None else newest >> _NUMBER_BITS
