"""Changes of one key by several transactions: the last committed one in the log applies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distlog.core.read.kafka_offsets import WaitingChanges

#: Events of producers 1 to 3: a change in a transaction, its commit, its abort, and a change without one.
EVENTS = st.lists(st.tuples(st.sampled_from("wcap"), st.integers(1, 3), st.sampled_from("xy")), max_size=30)


@given(EVENTS)
def test_the_last_committed_change_in_the_log_counts(events: list[tuple[str, int, str]]) -> None:
    waiting, counted = WaitingChanges[str, int](), dict[str, int]()
    log: list[tuple[int, str, int]] = []
    open_: dict[int, list[tuple[int, str]]] = {}
    best: dict[str, int] = {}
    for number, (kind, producer, key) in enumerate(events):
        if kind == "w":
            waiting.add(producer, key, number)
            open_.setdefault(producer, []).append((number, key))
            log.append((producer, key, number))
        elif kind == "p":
            waiting.supersede(key)
            counted[key] = best[key] = number
        else:
            counted.update(waiting.end(producer, is_committed=kind == "c"))
            for event_number, name in open_.pop(producer, []):
                if kind == "c":
                    best[name] = max(best.get(name, -1), event_number)
    assert counted == best
    assert waiting.keys >= {
        key for producer in open_ for number, key in open_[producer] if number > best.get(key, -1)
    }
