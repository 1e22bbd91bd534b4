"""Gateways in front of the object store, each a process, and the processes of their clients.

A gateway here has all parts but the sockets: produce handlers, topics, the lease, and the coordinators of groups and
of transactions. A client calls it through a network that loses requests and responses, and delivers late.
"""

from __future__ import annotations

import queue
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.errors import DistlogError, OffsetOutOfRangeError
from distlog.core.format.record_encoder import encode
from distlog.core.kafka.transactions import ProducerId
from distlog.core.read.kafka_offsets import Position
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.gateway.apis.produce import produce
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.config import GatewayConfig
from distlog.gateway.groups.consumer_group import SubscribedTopics
from distlog.gateway.groups.coordinator import GroupServices
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.kafka_apis import Broker
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.root_records import DynamicConfigs
from distlog.gateway.server.delayed_operations import DelayedAppends, DelayedFetches, FetchMemory
from distlog.gateway.server.fairness import Quotas
from distlog.gateway.server.request import Rights
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.topics.partition import FetchedData
from distlog.gateway.transactions.transaction_coordinator import TransactionServices
from simulation.oracle import Batch
from simulation.record_log import rows_of_client
from simulation.threads import SimQueue
from simulation.world import Process

if TYPE_CHECKING:
    from simulation.actors import Memory, Stage

T = TypeVar("T")

#: How long a client waits for a response, and the probability of each fate of a call.
CALL_TIMEOUT_S, FATE = 30.0, 0.02
LEASE_MS, TRANSACTION_MS = 30_000, 60_000
COORDINATED = 2


class NoAnswerError(Exception):
    """A gateway did not answer; it may have handled the request."""


class Gateway:
    """The parts of a gateway, in the process that makes it."""

    def __init__(self, stage: Stage, process: Process, port: int) -> None:
        config = GatewayConfig(linger_ms=100, broker_session_timeout_ms=LEASE_MS)
        root = stage.url.rpartition("/")[0]
        metadata = MetadataCache(Storage(root, {}), {}, now_ms, config)
        fetches = DelayedFetches(_ignored, config.metadata_max_age_ms)
        lease = GatewayLease(metadata.root, None, LEASE_MS / 1000)
        lease.set_address("gateway", port, "machine")
        self.process, self.is_stopping, self.requests_in_flight = process, False, 0
        #: The offsets after the acknowledged records, by partition.
        self.acknowledged = Counter[int]()
        self.store = OffsetsTopic(root, linger_ms=config.linger_ms, storage_options={}, partitions=COORDINATED)
        topics = SubscribedTopics(lambda name: metadata.fresh_topic(name).summary, metadata.client_topic_names)
        retention_ms = config.offsets_retention_ms
        groups = GroupServices(self.store, lease, config.groups, topics, retention_ms=retention_ms)
        self.broker = Broker(
            config,
            metadata,
            fetches,
            DelayedAppends(_ignored),
            now_ms,
            {},
            FetchMemory(config.fetch_memory_bytes),
            lease,
            groups,
            TransactionServices(metadata, fetches, groups, now_ms),
            DynamicConfigs(metadata, Quotas(time.monotonic), groups.configs, now_ms),
        )

    def start(self) -> None:
        self.broker.groups.join()
        self.broker.groups.start()
        self.broker.transactions.start()

    def stop(self) -> None:
        """Handle all requests, store everything, and leave the cluster."""
        self.is_stopping = True
        self.broker.metadata.commit_now()
        while self.requests_in_flight:
            self.process.world.pause(1.0)
        self.broker.transactions.stop()
        self.broker.groups.stop()
        self.broker.metadata.close()

    def append(
        self, topic: str, number: int, batches: Sequence[bytes], transactional_id: str | None
    ) -> list[tuple[ErrorCode, int]]:
        """Handle the produce requests of one connection, in order, each with one batch."""
        answers = []
        for records in batches:
            request = _Produce(self.process, topic, number, records, transactional_id)
            produce(request, self.broker)  # type: ignore[arg-type]
            code, offset = request.answer.get()
            answers.append((code, offset))
            if code is ErrorCode.none:
                self.acknowledged[number] = max(self.acknowledged[number], offset + 1)
        return answers

    def fetch(self, topic: str, number: int, offset: int, *, committed: bool) -> tuple[FetchedData, bool]:
        """Fetch records; also returns whether the visible records include those that this gateway acknowledged."""
        least = 0 if committed else self.acknowledged[number]
        data = self.broker.metadata.fresh_topic(topic).partition(number).fetch(offset, 1 << 16, committed=committed)
        return data, data.visible_end.offset >= least


def _ignored(request: object) -> None:
    """Ignore it: no request waits here."""


class _Produce:
    client: Any = None
    handler_state: Any = None
    is_gone, may_wait = False, True
    rights = Rights()

    def __init__(
        self, process: Process, topic: str, number: int, records: bytes, transactional_id: str | None
    ) -> None:
        data = SimpleNamespace(name=topic, partition_data=[SimpleNamespace(index=number, records=records)])
        self.body = SimpleNamespace(transactional_id=transactional_id, acks=-1, timeout=30_000, topic_data=[data])
        self.answer = SimQueue(process.world)

    def respond(self, fields: Any) -> None:
        (part,) = fields["responses"][0]["partition_responses"]
        self.answer.put((part["error_code"], part.get("base_offset", -1)))

    def note_use(self, quota: str, size: int) -> None:
        """Ignore the use: there is no quota."""

    def allow_pipelining(self) -> None:
        """Do nothing: no request follows."""

    def hang_up(self, reason: str) -> None:
        self.answer.put((ErrorCode.unknown_server_error, -1))


def call(stage: Stage, client: Process, name: str, work: Callable[[Gateway], T]) -> T:
    """Call a gateway; raises the error of `work`, or NoAnswerError."""
    world, gateway, fate = client.world, stage.gateways.get(name), client.random.random()
    if gateway is None or not gateway.process.is_alive:
        world.pause(1.0)
        raise NoAnswerError(name)
    answers = SimQueue(world)

    def handle() -> None:
        try:
            answers.put((work(gateway), None))
        except Exception as error:
            answers.put((None, error))
        finally:
            gateway.requests_in_flight -= 1

    def arrive() -> None:
        if gateway.process.is_alive and not gateway.is_stopping:
            gateway.requests_in_flight += 1
            gateway.process.start(handle, "request")

    if fate > FATE:
        # a late request arrives when its client has given it up
        late_s = client.random.uniform(30, 300) if fate < 2 * FATE else client.random.expovariate(1000)
        world.call_at(world.now + late_s, arrive)
    try:
        result, error = answers.get(timeout=CALL_TIMEOUT_S)
    except queue.Empty:
        raise NoAnswerError(name) from None
    if fate > 1 - FATE:
        world.pause(CALL_TIMEOUT_S)
        raise NoAnswerError(name)
    world.pause(client.random.expovariate(1000))
    if error is not None:
        raise error
    return result


def _any_gateway(stage: Stage, client: Process) -> str:
    return client.random.choice(sorted(stage.gateways) or ["none"])


def serves(stage: Stage, process: Process, memory: Memory) -> None:
    """Run a gateway until some time after the end of the history."""
    gateway = Gateway(stage, process, 9092 + int(memory.name.rpartition("-")[2]))
    stage.gateways[memory.name] = gateway
    gateway.start()
    while process.world.now < stage.end_s + 60:
        process.world.pause(5.0)
        gateway.store.compact()
        gateway.broker.transactions.compact()
    gateway.stop()


def finish(stage: Stage, process: Process) -> None:
    """Let open and decided transactions end, as running gateways do."""
    gateway = Gateway(stage, process, 9000)
    gateway.start()
    for _ in range(120):
        process.world.pause(5.0)
        transactions = gateway.broker.transactions
        if gateway.broker.cluster.held_partitions and not transactions.is_loading:
            states = transactions.coordinator.states()
            if len(gateway.broker.cluster.held_partitions) == COORDINATED and all(state.is_over for state in states):
                break
    else:
        stage.oracle.says("transactions do not end")
    gateway.stop()


# --- producers


@dataclass
class Sent:
    """A batch in flight: its records and their bytes."""

    batch: Batch
    data: bytes
    count: int


@dataclass
class Numbers:
    """A producer's id and epoch, and its next sequence number in each partition."""

    id: ProducerId
    next: Counter[int] = field(default_factory=Counter)

    def sent(self, stage: Stage, process: Process, sender: str, partition: int, *, open_: bool = False) -> Sent:
        """Return the next batch for a partition; `open_` if it belongs to a transaction."""
        batch, table = stage.records(process.random, sender)
        batch.transactional = open_
        encoded = encode(
            timed(table, now_ms()),
            producer_id=self.id.id,
            producer_epoch=self.id.epoch,
            base_sequence=self.next[partition],
            transactional=open_,
        )
        self.next[partition] += table.num_rows
        return Sent(batch, bytes(encoded.data), table.num_rows)


def timed(table: pa.Table, now_ms: int) -> pa.RecordBatch:
    """Return the records as they are encoded, with this time where they have none."""
    times = table["timestamp"].combine_chunks() if "timestamp" in table.column_names else pa.nulls(table.num_rows)
    columns = {
        "timestamp": pc.fill_null(times.cast(pa.int64()), now_ms),
        "key": table["key"],
        "value": table["value"],
    }
    if "headers" in table.column_names:
        columns["headers"] = table["headers"]
    return pa.table(columns).combine_chunks().to_batches()[0]


def sends(stage: Stage, process: Process, memory: Memory) -> None:
    """Produce batches through gateways like an idempotent client, which sends again without a response."""
    numbers = _new_producer(process)
    while stage.goes_on():
        partition = process.random.randrange(stage.partitions)
        # at most as many as a client has in flight
        count = 5 if stage.chance(0.2) else process.random.choice((1, 1, 2, 3))
        window = [numbers.sent(stage, process, memory.name, partition) for _ in range(count)]
        if not _delivered(stage, process, partition, window, None):
            numbers = _new_producer(process)
        stage.pause(process.random)


def _new_producer(process: Process) -> Numbers:
    return Numbers(ProducerId(process.random.getrandbits(62), 0))


def _appended(
    topic: str, partition: int, data: Sequence[bytes], transactional_id: str | None, gateway: Gateway
) -> list[tuple[ErrorCode, int]]:
    return gateway.append(topic, partition, data, transactional_id)


def _delivered(
    stage: Stage, process: Process, partition: int, window: list[Sent], transactional_id: str | None
) -> bool:
    """Send batches until all are acknowledged; False if a gateway refuses one, or after a timeout."""
    name, topic = _any_gateway(stage, process), stage.url.rpartition("/")[2]
    until = process.world.now + 120
    while window and process.world.now < until:
        data = [sent.data for sent in window]
        work = partial(_appended, topic, partition, data, transactional_id)
        try:
            answers = call(stage, process, name, work)
        except NoAnswerError:
            name = _any_gateway(stage, process)
            continue
        for code, offset in answers:
            if code is not ErrorCode.none:
                break
            sent = window.pop(0)
            if not sent.batch.transactional:
                _is_acknowledged(stage, sent.batch, {partition: (offset, offset + sent.count)})
        if code is ErrorCode.none:
            continue
        if not code.retriable:
            if transactional_id is None and "recreate" not in stage.jobs:
                stage.oracle.says(f"a producer's next batch is refused: {code.name}")
            return False
        process.world.pause(process.random.uniform(0, 2))
    return not window


def _is_acknowledged(stage: Stage, batch: Batch, offsets: dict[int, tuple[int, int]] | None = None) -> None:
    """Note an acknowledgement, unless the topic's name may mean several topics."""
    if "recreate" not in stage.jobs:
        batch.acknowledge("", offsets)


def consumes(stage: Stage, process: Process, memory: Memory) -> None:
    """Fetch a partition through gateways, from its start on: no record is skipped, no aborted one returned."""
    topic, number, position = stage.url.rpartition("/")[2], process.random.randrange(stage.partitions), 0
    # a fetch does not name the topic id
    is_one_topic, is_committed = "recreate" not in stage.jobs, stage.chance(0.5)
    fetched = partial(_fetched, topic, number, is_committed=is_committed)
    while stage.goes_on():
        try:
            work = partial(fetched, position)
            data, shows_all = call(stage, process, _any_gateway(stage, process), work)
        except OffsetOutOfRangeError:
            position = stage.open().start_offsets()[number]
            continue
        except (NoAnswerError, DistlogError):
            stage.pause(process.random)
            continue
        if not shows_all and is_one_topic:
            stage.oracle.says(f"a gateway does not return what it acknowledged in partition {number}")
        if data.batches is None or not len(data.batches):
            stage.pause(process.random)
            continue
        end = data.batches.next_offset
        if is_one_topic:
            rows = rows_of_client(bytes(data.batches), data.aborted if is_committed else (), position)
            for wrong in stage.oracle.wrong_rows(number, rows, position, end, committed=is_committed):
                stage.oracle.says(f"a consumer of partition {number}, at {position}: {wrong}")
        position = end


def _fetched(
    topic: str, number: int, position: int, gateway: Gateway, *, is_committed: bool
) -> tuple[FetchedData, bool]:
    return gateway.fetch(topic, number, position, committed=is_committed)


# --- transactions


#: Errors after which a client tries again: the coordinator is another gateway, or is not ready.
_RETRIABLE = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.concurrent_transactions,
    }
)


class RefusedError(Exception):
    """A coordinator refuses a request."""


def _coordinated(stage: Stage, process: Process, work: Callable[[Gateway], T], seconds: float = 120.0) -> T:
    """Ask for the coordinator until it answers; raises NoAnswerError after `seconds`."""
    until = process.world.now + seconds
    while process.world.now < until:
        with suppress(NoAnswerError, DistlogError):
            return _asked_once(stage, process, work)
        process.world.pause(process.random.uniform(0, 2))
    raise NoAnswerError


def _asked_once(stage: Stage, process: Process, work: Callable[[Gateway], T]) -> T:
    try:
        return call(stage, process, _any_gateway(stage, process), work)
    except CoordinatorError as refused:
        error = NoAnswerError if refused.code in _RETRIABLE else RefusedError
        raise error(refused.code.name) from None


def transacts(stage: Stage, process: Process, memory: Memory) -> None:
    """Produce in transactions through gateways; several processes share a transactional id."""
    id_ = f"client-{process.random.randrange(2)}"
    while stage.goes_on():
        with suppress(NoAnswerError, RefusedError):
            producer = _coordinated(
                stage,
                process,
                lambda gateway: gateway.broker.transactions.coordinator.begin_producer(id_, TRANSACTION_MS),
            )
            numbers = Numbers(producer)
            while stage.goes_on() and has_ended(stage, process, memory.name, id_, numbers):
                stage.pause(process.random)
        stage.pause(process.random)


def has_ended(stage: Stage, process: Process, sender: str, id_: str, numbers: Numbers) -> bool:
    """Run a transaction to its end; False if the producer cannot continue."""
    topic, random = stage.url.rpartition("/")[2], process.random
    partitions = random.sample(range(stage.partitions), random.randrange(1, stage.partitions + 1))
    windows = {
        partition: [
            numbers.sent(stage, process, sender, partition, open_=True) for _ in range(random.randrange(1, 3))
        ]
        for partition in partitions
    }
    batches = [sent.batch for window in windows.values() for sent in window]
    for batch in batches:
        # until their commit is requested
        batch.refused = True
    coordinated, is_together = _coordinator_of(stage, process), not stage.chance(0.5)
    if is_together:
        coordinated(
            lambda coordinator: coordinator.add_partitions(
                id_, numbers.id, {(topic, number) for number in partitions}
            )
        )
    is_whole = True
    for partition, window in windows.items():
        if not is_together:
            # the next partition is added later, perhaps after the timeout of the transaction
            process.world.pause(TRANSACTION_MS / 700 if stage.chance(0.2) else 1.0)
            coordinated(
                lambda coordinator, partition=partition: coordinator.add_partitions(
                    id_, numbers.id, {(topic, partition)}
                )
            )
        is_whole = is_whole and _delivered(stage, process, partition, window, id_)
    is_committed = is_whole and random.random() < 0.8
    for batch in batches:
        batch.refused = not is_committed
    end_s = process.world.now
    coordinated(lambda coordinator: coordinator.end(id_, numbers.id, is_committed=is_committed))
    for batch in batches if is_committed else ():
        _is_acknowledged(stage, batch)
    # a request to end it that arrives late would end the producer's next transaction: before KIP-890, Kafka's
    # protocol can't distinguish them
    return is_whole and process.world.now - end_s < CALL_TIMEOUT_S


def _coordinator_of(stage: Stage, process: Process) -> Callable[[Callable[[Any], None]], None]:
    def call_coordinator(work: Callable[[Any], None]) -> None:
        _coordinated(stage, process, lambda gateway: work(gateway.broker.transactions.coordinator))

    return call_coordinator


# --- committed offsets of groups


@dataclass
class Operation:
    """A commit or a fetch of a group's offset, from `start_s` to `end_s`, which is infinite without a response."""

    value: int
    start_s: float
    end_s: float = float("inf")

    def precedes(self, other: Operation) -> bool:
        return self.end_s < other.start_s


@dataclass
class Register:
    """A group's offsets in one partition: what clients committed, and what they got."""

    commits: dict[int, Operation] = field(default_factory=lambda: {-1: Operation(-1, -1.0, -1.0)})
    fetches: list[Operation] = field(default_factory=list)

    def wrong(self, fetch: Operation) -> Iterator[str]:
        """Yield what is wrong with a fetch: it must include every commit that was acknowledged before it."""
        commit = self.commits.get(fetch.value)
        if commit is None:
            yield f"a group got offset {fetch.value}, which nobody committed"
            return
        for later in self.commits.values():
            if commit.precedes(later) and later.precedes(fetch):
                yield f"a group got offset {fetch.value}, although {later.value} was committed after it"
        for earlier in self.fetches:
            if earlier.precedes(fetch) and commit.precedes(self.commits[earlier.value]):
                yield f"a group got offset {fetch.value}, after it had got {earlier.value}"


def commits_positions(stage: Stage, process: Process, memory: Memory) -> None:
    """Commit and fetch a group's offset through gateways: the operations are linearizable."""
    key = stage.url.rpartition("/")[2], 0
    while stage.goes_on():
        group = f"group-{process.random.randrange(2)}"
        register = stage.registers[group]
        if process.random.random() < 0.5:
            operation = Operation(next(stage.names), process.world.now)
            register.commits[operation.value] = operation
            with suppress(NoAnswerError, RefusedError):
                _coordinated(stage, process, _commit_of(group, key, operation.value), CALL_TIMEOUT_S)
                operation.end_s = process.world.now
        else:
            operation = Operation(-1, process.world.now)
            with suppress(NoAnswerError, RefusedError):
                committed = _coordinated(
                    stage, process, lambda gateway, group=group: gateway.broker.groups.offsets.fetch(group, [key])
                )[key]
                operation.end_s = process.world.now
                operation.value = committed.offset if isinstance(committed, Position) else -1
                for wrong in register.wrong(operation):
                    stage.oracle.says(f"{group}: {wrong}")
                register.fetches.append(operation)
        stage.pause(process.random)


def _commit_of(group: str, key: tuple[str, int], offset: int) -> Callable[[Gateway], None]:
    def commit(gateway: Gateway) -> None:
        codes = SimQueue(gateway.process.world)
        gateway.broker.groups.offsets.commit(group, {key: Position(offset, commit_ms=now_ms())}, codes.put)
        code = codes.get()
        if code is not ErrorCode.none:
            raise CoordinatorError(code)

    return commit


def registers() -> defaultdict[str, Register]:
    return defaultdict(Register)
