"""Deadlines with a fake clock, and put-if-absent against a model of a faulty store."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import examples

from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage.calls import Deadline, ErrorClassifier, ErrorKind, resolve_put, retried

OURS, THEIRS = b"ours", b"theirs"


class Clock:
    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def deadline(self, timeout_s: float, random: float = 1.0) -> Deadline:
        return Deadline(timeout_s, clock=lambda: self.now, sleep=self.sleep, random=lambda: random)


class SaidError(Exception):
    def __init__(self, verdict: ErrorKind) -> None:
        self.verdict = verdict


class Judge(ErrorClassifier):
    def kind(self, error: Exception) -> ErrorKind:
        assert isinstance(error, SaidError)
        return error.verdict

    def describe(self, error: Exception) -> str:
        assert isinstance(error, SaidError)
        return error.verdict.name


def test_pauses_double_up_to_two_seconds_and_stop_at_the_deadline() -> None:
    clock = Clock()
    deadline = clock.deadline(6.0)
    while deadline.pause():
        pass
    assert clock.slept == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 0.85])
    assert clock.now == pytest.approx(106.0)


def test_pauses_are_random() -> None:
    clock = Clock()
    deadline = clock.deadline(10, random=0.5)
    assert deadline.pause()
    assert clock.slept == [0.025]


def test_a_minimum_number_of_pauses_is_granted_after_the_deadline() -> None:
    clock = Clock()
    deadline = Deadline(60, clock=lambda: clock.now, sleep=clock.sleep, random=lambda: 1.0, min_pauses=1)
    clock.now += 1000
    assert [deadline.pause(), deadline.pause()] == [True, False]
    assert clock.slept == [0.05]


class Attempts:
    """Calls with these outcomes, one after another."""

    def __init__(self, *outcomes: ErrorKind | int) -> None:
        self.outcomes, self.count = list(outcomes), 0

    def __call__(self) -> int:
        self.count += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ErrorKind):
            raise SaidError(outcome)
        return outcome


def test_a_call_is_retried_while_its_errors_are_unclear() -> None:
    call = Attempts(ErrorKind.UNCLEAR, ErrorKind.UNCLEAR, 7)
    assert retried(call, "read", "a", Judge(), Clock().deadline(60)) == 7
    assert call.count == 3


@pytest.mark.parametrize(
    ("outcome", "raised"),
    [
        (ErrorKind.MISSING, FileNotFoundError),
        (ErrorKind.REFUSED, StorageError),
        (ErrorKind.LAPSED, StorageError),
    ],
)
def test_a_clear_answer_ends_the_tries(outcome: ErrorKind, raised: type[Exception]) -> None:
    call = Attempts(ErrorKind.UNCLEAR, outcome, 7)
    with pytest.raises(raised):
        retried(call, "read", "a", Judge(), Clock().deadline(60))
    assert call.count == 2


def test_the_deadline_ends_the_tries() -> None:
    clock = Clock()
    call = Attempts(*[ErrorKind.UNCLEAR] * 1000)
    with pytest.raises(StorageError, match="cannot read: UNCLEAR"):
        retried(call, "read", "a", Judge(), clock.deadline(60))
    assert clock.now == pytest.approx(160)


def test_slow_retries_log_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    retried(Attempts(*[ErrorKind.UNCLEAR] * 5, 7), "read", "a", Judge(), Clock().deadline(60))
    assert not caplog.messages
    retried(Attempts(*[ErrorKind.UNCLEAR] * 9, 7), "read", "a", Judge(), Clock().deadline(60))
    assert caplog.messages == ["cannot read a, trying again: UNCLEAR"]


@dataclass
class Store:
    """An object that can be put once; `puts` and `gets` are faults, and a "late" request arrives `hold` later."""

    puts: list[str]
    gets: list[str]
    hold: int
    standing: bytes | None = None
    on_their_way: list[int] = field(default_factory=list)

    def land(self, data: bytes) -> bool:
        self.standing = self.standing or data
        return self.standing == data

    def step(self) -> None:
        self.on_their_way = [remaining - 1 for remaining in self.on_their_way]
        if any(remaining <= 0 for remaining in self.on_their_way):
            self.land(OURS)
            self.on_their_way = [remaining for remaining in self.on_their_way if remaining > 0]

    def finish(self) -> bytes | None:
        if self.on_their_way:
            self.land(OURS)
        return self.standing

    def put(self) -> bytes:
        self.step()
        event = self.puts.pop(0) if self.puts else "ok"
        if event == "theirs":
            self.land(THEIRS)
        if event in ("refused", "cut"):
            raise SaidError(ErrorKind.REFUSED if event == "refused" else ErrorKind.UNCLEAR)
        if event == "late":
            self.on_their_way.append(self.hold)
            raise SaidError(ErrorKind.UNCLEAR)
        free = self.standing is None
        self.land(OURS)
        if event == "lapsed":
            raise SaidError(ErrorKind.LAPSED)
        if event == "lost" or not free:
            raise SaidError(ErrorKind.UNCLEAR)
        return OURS

    def get(self) -> bytes:
        self.step()
        event = self.gets.pop(0) if self.gets else "ok"
        if event == "theirs":
            self.land(THEIRS)
        if event in ("refused", "cut"):
            raise SaidError(ErrorKind.REFUSED if event == "refused" else ErrorKind.UNCLEAR)
        if self.standing is None:
            raise SaidError(ErrorKind.MISSING)
        return self.standing


put_events = st.sampled_from(["ok", "lost", "cut", "late", "theirs", "refused", "lapsed"])
get_events = st.sampled_from(["ok", "cut", "theirs", "refused"])


@pytest.mark.long
@examples(500)
@given(
    st.lists(put_events, max_size=5), st.lists(get_events, max_size=5), st.integers(1, 6), st.sampled_from([0, 60])
)
def test_put_if_absent_is_never_wrong(puts: list[str], gets: list[str], hold: int, timeout_s: float) -> None:
    store = Store(puts, gets, hold)
    try:
        answer = resolve_put(store.put, store.get, "a", Judge(), Clock().deadline(timeout_s))
    except CommitStateUnknownError:
        return
    except StorageError:
        assert store.finish() != OURS, "said that nothing happened, and it happened"
        return
    assert store.finish() == answer, "named a winner, and another won"


def test_every_transient_fault_is_resolved() -> None:
    for puts in (["lost"], ["cut", "cut"], ["late", "cut"], ["lapsed"], ["lost", "lost", "lost"]):
        store = Store(list(puts), ["cut", "cut"], 3)
        assert resolve_put(store.put, store.get, "a", Judge(), Clock().deadline(60)) == OURS


@pytest.mark.parametrize("gets", [[], ["cut"], ["refused"]])
def test_a_first_refusal_is_not_an_unknown_outcome(gets: list[str]) -> None:
    store = Store(["refused"], list(gets), 1)
    with pytest.raises(StorageError, match="REFUSED"):
        resolve_put(store.put, store.get, "a", Judge(), Clock().deadline(60))
    assert store.standing is None


@pytest.mark.parametrize(
    ("puts", "gets"), [(["late", "refused"], []), (["late", "refused"], ["cut", "cut"]), (["lost"], ["refused"])]
)
def test_a_possible_write_that_cannot_be_read_is_unknown_at_once(puts: list[str], gets: list[str]) -> None:
    store = Store(list(puts), list(gets), 9)
    clock = Clock()
    with pytest.raises(CommitStateUnknownError, match="unknown whether the storage"):
        resolve_put(store.put, store.get, "a", Judge(), clock.deadline(60))
    assert clock.now < 101, "it waited, with nothing to wait for"
