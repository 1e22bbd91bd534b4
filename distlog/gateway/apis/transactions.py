"""The APIs of transactions, and InitProducerId."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, LeaderFencedError
from distlog.core.kafka.transaction_state import ProducerId
from distlog.core.log.end_marker import marker
from distlog.core.read.consumer_offsets import OFFSETS_TOPIC, encode_position
from distlog.gateway.apis.cluster import by_topic, grouped
from distlog.gateway.apis.positions import RequestedPositions, partition_code
from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.classic_group import GroupRefusedError
from distlog.gateway.groups.committed_offsets import GroupChanges
from distlog.gateway.groups.offsets_format import encode_key
from distlog.gateway.groups.registry import MAX_TEXT_BYTES
from distlog.gateway.protocol.frames import FAILURES, Fields, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.request import Request
from distlog.gateway.topics.partition import OWN_WAIT_S
from distlog.gateway.transactions.transaction_coordinator import new_producer_id
from distlog.gateway.transactions.transaction_log import TransactionRefusedError, own_batch


def code_of(work: Callable[[], object], *, fenced: ErrorCode) -> ErrorCode:
    """Do `work`, and return its code; `fenced` is this API's code for a producer that a newer one has fenced.

    After a failure of the storage the client retries: the outcome is unknown.
    """
    try:
        work()
    except TransactionRefusedError as refused:
        return fenced if refused.code is ErrorCode.producer_fenced else refused.code
    except GroupRefusedError as refused:
        return refused.code
    except LeaderFencedError:
        return ErrorCode.not_coordinator
    except DistlogError as error:
        FAILURES.note("to keep a transaction", error)
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def _denied(request: Request, transactional_id: str, group: str | None = None) -> ErrorCode:
    """The code for a client that may not use the transactional id, or the group; none if it may."""
    code = request.rights.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if not code and group is not None:
        code = request.rights.denied(Operation.READ, ResourceType.GROUP, group)
    return code


def fenced_code(api_version: int, since: int) -> ErrorCode:
    """The code for a fenced producer; clients before version `since` know only the older one."""
    return ErrorCode.producer_fenced if api_version >= since else ErrorCode.invalid_producer_epoch


_NO_PRODUCER = ProducerId(-1, -1)
_PRODUCER_FENCED_SINCE = 4


def init_producer_id(request: Request, broker: Broker) -> Fields:
    """Give a producer without a transactional id a new id, and one with it the next epoch."""
    body, rights, producer = request.body, request.rights, _NO_PRODUCER
    id_, timeout_ms = body.transactional_id, body.transaction_timeout

    def begin_producer() -> None:
        nonlocal producer
        expected = ProducerId(request.get("producer_id", -1), request.get("producer_epoch", -1))
        producer = broker.transactions.coordinator.begin_producer(
            id_, timeout_ms, None if expected == _NO_PRODUCER else expected
        )

    code = ErrorCode.none
    if id_ is None:
        # the right to write to any topic is enough (KIP-679)
        if not rights.might_with_any(Operation.WRITE, ResourceType.TOPIC):
            code = rights.denied(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
        if code is ErrorCode.none:
            producer = ProducerId(new_producer_id(), 0)
    elif denial := rights.denied(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, id_):
        code = denial
    elif not 0 < len(id_.encode("utf-8", "surrogatepass")) <= MAX_TEXT_BYTES:
        code = ErrorCode.invalid_request
    elif not 0 < timeout_ms <= broker.config.transaction_max_timeout_ms:
        code = ErrorCode.invalid_transaction_timeout
    else:
        code = code_of(begin_producer, fenced=fenced_code(request.api_version, _PRODUCER_FENCED_SINCE))
    return {"throttle_time": 0, "error_code": code, "producer_id": producer.id, "producer_epoch": producer.epoch}


_FENCED_SINCE = 2


def add_partitions_to_txn(request: Request, broker: Broker) -> Fields:
    """Add the partitions to the transaction; if one partition is missing, none is added."""
    body = request.body
    partitions = [(topic.name, number) for topic in body.v3_and_below_topics for number in topic.partitions]
    denied = _denied(request, body.v3_and_below_transactional_id)
    find = broker.metadata.clients_topic
    codes = {
        partition: denied or partition_code(request, find, Operation.WRITE, *partition) for partition in partitions
    }
    if any(code is not ErrorCode.none for code in codes.values()):
        attempted_code = ErrorCode.operation_not_attempted
    else:
        producer = ProducerId(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        attempted_code = code_of(
            lambda: broker.transactions.coordinator.add_partitions(
                body.v3_and_below_transactional_id, producer, codes.keys()
            ),
            fenced=fenced_code(request.api_version, _FENCED_SINCE),
        )
    parts = (
        (name, {"partition_index": number, "partition_error_code": code or attempted_code})
        for (name, number), code in codes.items()
    )
    return {"throttle_time": 0, "results_by_topic_v3_and_below": by_topic(parts, "results_by_partition")}


def add_offsets_to_txn(request: Request, broker: Broker) -> Fields:
    """Add the partition with the group's positions to the transaction."""
    body = request.body

    def add() -> None:
        coordinator = broker.transactions.coordinator
        partition = OFFSETS_TOPIC, broker.groups.partition_of(body.group_id)
        coordinator.add_partitions(
            body.transactional_id, ProducerId(body.producer_id, body.producer_epoch), [partition]
        )

    denied = _denied(request, body.transactional_id, body.group_id)
    fenced = fenced_code(request.api_version, _FENCED_SINCE)
    return {"throttle_time": 0, "error_code": denied or code_of(add, fenced=fenced)}


def txn_offset_commit(request: Request, broker: Broker) -> Fields:
    """Store the offsets durably until the transaction ends."""
    denied, code = _denied(request, request.body.transactional_id, request.body.group_id), ErrorCode.none
    requested = RequestedPositions(request, broker, denied)
    if requested.positions:
        code = code_of(lambda: _keep(request, broker, requested), fenced=ErrorCode.invalid_producer_epoch)
    return {"throttle_time": 0, "topics": requested.topics(code)}


def _keep(request: Request, broker: Broker, requested: RequestedPositions) -> None:
    body, groups = request.body, broker.groups
    producer = ProducerId(body.producer_id, body.producer_epoch)
    hosted, number = broker.metadata.fresh_topic(OFFSETS_TOPIC), groups.partition_of(body.group_id)
    # a new coordinator of the groups would not know of positions that are appended now
    check_led = groups.fence(number)
    check_open = broker.transactions.fence(body.transactional_id, producer, (OFFSETS_TOPIC, number))

    def fence(snapshot: Snapshot) -> None:
        check_led(snapshot)
        check_open(snapshot)

    def append(changes: GroupChanges) -> None:
        records = [(encode_key(key), encode_position(position) if position else None) for key, position in changes]
        hosted.append_run(number, own_batch(records, broker.clock(), producer), fence)

    groups.offsets.commit_in_transaction(
        body.group_id,
        requested.positions,
        producer.id,
        append,
        member_id=request.get("member_id", ""),
        instance_id=request.get("group_instance_id"),
        generation=request.get("generation_id", -1),
    )


def end_txn(request: Request, broker: Broker) -> Fields:
    """Respond when the decision is durable; it is visible then, unless a partition's storage fails."""
    body = request.body
    producer = ProducerId(body.producer_id, body.producer_epoch)
    code = _denied(request, body.transactional_id) or code_of(
        lambda: broker.transactions.coordinator.end(body.transactional_id, producer, is_committed=body.committed),
        fenced=fenced_code(request.api_version, _FENCED_SINCE),
    )
    return {"throttle_time": 0, "error_code": code}


# The coordinators of gateways write their markers themselves. So this request comes from an administrator's tool; a
# transaction that has a coordinator is refused, since that may have decided otherwise.

_MARKER = attrgetter("producer_id", "producer_epoch", "coordinator_epoch", "transaction_result")


def write_txn_markers(request: Request, broker: Broker) -> Fields:
    """The code of each marker in each partition."""
    return {
        "markers": [
            {"producer_id": several[0].producer_id, "topics": _written(request, broker, several)}
            for several in grouped(request.body.markers, _MARKER).values()
        ]
    }


def _written(request: Request, broker: Broker, markers: Sequence[Any]) -> list[Fields]:
    """Write one marker in all places where a request has it."""
    partitions = dict.fromkeys(
        (topic.name, number) for marker in markers for topic in marker.topics for number in topic.partition_indexes
    )
    return by_topic(
        (name, {"partition_index": number, "error_code": _marker_code(request, broker, markers[0], name, number)})
        for name, number in partitions
    )


def _marker_code(request: Request, broker: Broker, requested: Any, topic: str, number: int) -> ErrorCode:
    try:
        request.rights.check_cluster(Operation.ALTER, Operation.CLUSTER_ACTION)
        return _write(broker, requested, topic, number)
    except TransactionRefusedError as refused:
        return refused.code
    except Exception as error:
        return error_code(error)


def _write(broker: Broker, requested: Any, topic: str, number: int) -> ErrorCode:
    hosted = broker.metadata.fresh_topic(topic)
    partition = hosted.partition(number)
    producer = next((entry for entry in partition.producers() if entry["producer_id"] == requested.producer_id), None)
    if producer is None or producer["transaction_first_offset"] < 0:
        # nothing is open: it may be a repeated request
        return ErrorCode.none
    if requested.producer_epoch < producer["producer_epoch"]:
        return ErrorCode.invalid_producer_epoch
    if requested.coordinator_epoch < producer["coordinator_epoch"]:
        return ErrorCode.transaction_coordinator_fenced
    run = marker(
        requested.producer_id,
        requested.producer_epoch,
        broker.clock(),
        is_committed=requested.transaction_result,
        coordinator_epoch=requested.coordinator_epoch,
    )

    def check(snapshot: Snapshot) -> None:
        broker.transactions.check_hangs(requested.producer_id, (topic, number))

    hosted.end_transaction({number: run}, check, timeout_s=OWN_WAIT_S)[number].result()
    broker.fetches.appended(partition)
    return ErrorCode.none


APIS = (
    Api(
        22,
        "InitProducerId",
        0,
        4,
        init_producer_id,
        "WRITE of the transactional id; without one, IDEMPOTENT_WRITE of the cluster or WRITE of any topic",
    ),
    Api(24, "AddPartitionsToTxn", 0, 3, add_partitions_to_txn, "WRITE of the transactional id and of the topic"),
    Api(25, "AddOffsetsToTxn", 0, 3, add_offsets_to_txn, "WRITE of the transactional id, READ of the group"),
    Api(
        28,
        "TxnOffsetCommit",
        0,
        3,
        txn_offset_commit,
        "WRITE of the transactional id, READ of the group and of the topic",
    ),
    Api(26, "EndTxn", 0, 3, end_txn, "WRITE of the transactional id"),
    Api(27, "WriteTxnMarkers", 1, 1, write_txn_markers, "ALTER or CLUSTER_ACTION of the cluster"),
)
