"""The APIs of transactions and of producers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, LeaderFencedError
from distlog.core.kafka.transactions import ProducerId, TransactionState, TransactionStatus, marker
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, encode_position
from distlog.gateway.apis.groups import RequestedOffsets, partition_code
from distlog.gateway.event_log import FAILURES
from distlog.gateway.groups.committed_offsets import GroupChanges
from distlog.gateway.groups.consumer_group import matches
from distlog.gateway.groups.offsets_format import encode_key
from distlog.gateway.groups.registry import MAX_TEXT_BYTES
from distlog.gateway.kafka_apis import Api, Broker, Handlers
from distlog.gateway.protocol.error_codes import CoordinatorError, fields_or_error
from distlog.gateway.protocol.messages import ErrorCode, Fields
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.request import Request, by_topic, grouped
from distlog.gateway.topics.partition import OWN_WAIT_S
from distlog.gateway.transactions.transaction_coordinator import new_producer_id
from distlog.gateway.transactions.transaction_log import internal_batch


def run_for_code(work: Callable[[], object], *, fenced: ErrorCode) -> ErrorCode:
    """Run `work`, and return the code of its error, or `none`. `fenced` is the code for a fenced producer."""
    try:
        work()
    except CoordinatorError as refused:
        return fenced if refused.code is ErrorCode.producer_fenced else refused.code
    except LeaderFencedError:
        return ErrorCode.not_coordinator
    except DistlogError as error:
        FAILURES.note("storing a transaction", error)
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def _denial(request: Request, transactional_id: str, group: str | None = None) -> ErrorCode:
    code = request.rights.check_code(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    if not code and group is not None:
        code = request.rights.check_code(Operation.READ, ResourceType.GROUP, group)
    return code


def fenced_code(api_version: int, first_version: int) -> ErrorCode:
    """Return the code for a fenced producer: PRODUCER_FENCED from `first_version` on, an older code before it."""
    return ErrorCode.producer_fenced if api_version >= first_version else ErrorCode.invalid_producer_epoch


#: The first versions with PRODUCER_FENCED: of InitProducerId, and of the other APIs.
_INIT_FENCED_SINCE, _FENCED_SINCE = 4, 2
_NO_PRODUCER = ProducerId(-1, -1)
#: With this duration, ListTransactions lists transactions of any duration.
_NO_DURATION = -1


def init_producer_id(request: Request, broker: Broker) -> Fields:
    body, rights, id_ = request.body, request.rights, request.body.transactional_id
    code, producer = ErrorCode.none, _NO_PRODUCER
    if id_ is None:
        # it is enough if the client may write to any topic (KIP-679)
        if not rights.allows_any(Operation.WRITE, ResourceType.TOPIC):
            code = rights.check_code(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
        if code is ErrorCode.none:
            producer = ProducerId(new_producer_id(), 0)
    elif denied := _denial(request, id_):
        code = denied
    elif not 0 < len(id_.encode("utf-8", "surrogatepass")) <= MAX_TEXT_BYTES:
        code = ErrorCode.invalid_request
    elif not 0 < body.transaction_timeout <= broker.config.transaction_max_timeout_ms:
        code = ErrorCode.invalid_transaction_timeout
    else:
        current = ProducerId(request.get("producer_id", -1), request.get("producer_epoch", -1))
        expected = None if current == _NO_PRODUCER else current

        def begin() -> None:
            nonlocal producer
            producer = broker.transactions.coordinator.begin_producer(id_, body.transaction_timeout, expected)

        code = run_for_code(begin, fenced=fenced_code(request.api_version, _INIT_FENCED_SINCE))
    return {"error_code": code, "producer_id": producer.id, "producer_epoch": producer.epoch}


def add_partitions_to_txn(request: Request, broker: Broker) -> Fields:
    body = request.body
    partitions = [(topic.name, number) for topic in body.v3_and_below_topics for number in topic.partitions]
    denied = _denial(request, body.v3_and_below_transactional_id)
    find = broker.metadata.client_topic
    codes = {key: denied or partition_code(request, find, Operation.WRITE, *key) for key in partitions}
    if any(code is not ErrorCode.none for code in codes.values()):
        allowed_code = ErrorCode.operation_not_attempted
    else:
        producer = ProducerId(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        coordinator, id_ = broker.transactions.coordinator, body.v3_and_below_transactional_id
        fenced = fenced_code(request.api_version, _FENCED_SINCE)
        allowed_code = run_for_code(lambda: coordinator.add_partitions(id_, producer, codes.keys()), fenced=fenced)
    results = (
        (name, {"partition_index": number, "partition_error_code": code or allowed_code})
        for (name, number), code in codes.items()
    )
    return {"results_by_topic_v3_and_below": by_topic(results, "results_by_partition")}


def add_offsets_to_txn(request: Request, broker: Broker) -> Fields:
    body = request.body

    def add() -> None:
        producer = ProducerId(body.producer_id, body.producer_epoch)
        partition = OFFSETS_TOPIC, broker.groups.partition_of(body.group_id)
        broker.transactions.coordinator.add_partitions(body.transactional_id, producer, [partition])

    denied = _denial(request, body.transactional_id, body.group_id)
    fenced = fenced_code(request.api_version, _FENCED_SINCE)
    return {"error_code": denied or run_for_code(add, fenced=fenced)}


def txn_offset_commit(request: Request, broker: Broker) -> Fields:
    denied, code = _denial(request, request.body.transactional_id, request.body.group_id), ErrorCode.none
    requested = RequestedOffsets(request, broker, denied)
    if requested.positions:
        code = run_for_code(lambda: _commit(request, broker, requested), fenced=ErrorCode.invalid_producer_epoch)
    return {"topics": requested.topics(code)}


def _commit(request: Request, broker: Broker, requested: RequestedOffsets) -> None:
    body, groups = request.body, broker.groups
    producer = ProducerId(body.producer_id, body.producer_epoch)
    hosted, number = broker.metadata.fresh_topic(OFFSETS_TOPIC), groups.partition_of(body.group_id)
    # refuse the append if the group has a new coordinator, which would miss these offsets
    check_coordinated = groups.fence(number)
    check_open = broker.transactions.fence(body.transactional_id, producer, (OFFSETS_TOPIC, number))

    def fence(snapshot: Snapshot) -> None:
        check_coordinated(snapshot)
        check_open(snapshot)

    def append(changes: GroupChanges) -> None:
        records = [(encode_key(key), encode_position(position) if position else None) for key, position in changes]
        hosted.append_run(number, internal_batch(records, broker.clock(), producer), fence)

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
    """Respond when the decision is durable, and visible in each partition whose storage did not fail."""
    body = request.body
    producer = ProducerId(body.producer_id, body.producer_epoch)
    code = _denial(request, body.transactional_id) or run_for_code(
        lambda: broker.transactions.coordinator.end(body.transactional_id, producer, is_committed=body.committed),
        fenced=fenced_code(request.api_version, _FENCED_SINCE),
    )
    return {"error_code": code}


# A marker ends a transaction in a partition. Coordinators write their own markers, so this request is from a tool of
# an administrator. It is refused if the transaction has a coordinator, which may decide otherwise.
_MARKER = attrgetter("producer_id", "producer_epoch", "coordinator_epoch", "transaction_result")


def write_txn_markers(request: Request, broker: Broker) -> Fields:
    markers = [
        {"producer_id": equal_markers[0].producer_id, "topics": _write_markers(request, broker, equal_markers)}
        for equal_markers in grouped(request.body.markers, _MARKER).values()
    ]
    return {"markers": markers}


def _write_markers(request: Request, broker: Broker, markers: Sequence[Any]) -> list[Fields]:
    partitions = dict.fromkeys(
        (topic.name, number) for item in markers for topic in item.topics for number in topic.partition_indexes
    )
    return by_topic(
        (name, fields_or_error(_write_marker, request, broker, markers[0], name, number, partition_index=number))
        for name, number in partitions
    )


def _write_marker(request: Request, broker: Broker, requested: Any, topic: str, number: int) -> Fields | None:
    request.rights.check_cluster(Operation.ALTER, Operation.CLUSTER_ACTION)
    hosted = broker.metadata.fresh_topic(topic)
    partition = hosted.partition(number)
    producer = next((entry for entry in partition.producers() if entry["producer_id"] == requested.producer_id), None)
    if producer is None or producer["transaction_first_offset"] < 0:
        return None  # no transaction is open: an earlier request may have ended it
    if requested.producer_epoch < producer["producer_epoch"]:
        raise CoordinatorError(ErrorCode.invalid_producer_epoch)
    if requested.coordinator_epoch < producer["coordinator_epoch"]:
        raise CoordinatorError(ErrorCode.transaction_coordinator_fenced)
    run = marker(
        requested.producer_id,
        requested.producer_epoch,
        broker.clock(),
        is_committed=requested.transaction_result,
        coordinator_epoch=requested.coordinator_epoch,
    )

    def check_is_hanging(snapshot: Snapshot) -> None:
        broker.transactions.check_is_hanging(requested.producer_id, (topic, number))

    hosted.end_transaction({number: run}, check_is_hanging, timeout_s=OWN_WAIT_S)[number].result()
    broker.fetches.on_append(partition)
    return None


def list_transactions(request: Request, broker: Broker) -> Fields:
    code = ErrorCode.coordinator_load_in_progress if broker.transactions.is_loading else ErrorCode.none
    states, pattern = broker.transactions.coordinator.states(), request.get("transactional_id_pattern")
    if pattern:
        try:
            ids = matches(pattern, (state.transactional_id for state in states))
        except ValueError:
            code, ids = ErrorCode.invalid_regular_expression, frozenset()
        states = [state for state in states if state.transactional_id in ids]
    body, all_names = request.body, {status.kafka_name for status in TransactionStatus}
    state_names, producers = frozenset(body.state_filters), frozenset(body.producer_id_filters)
    min_duration_ms = request.get("duration_filter", _NO_DURATION)
    started_before_ms = broker.clock() - min_duration_ms
    return {
        "error_code": code,
        "unknown_state_filters": tuple(name for name in dict.fromkeys(body.state_filters) if name not in all_names),
        "transaction_states": [
            {
                "transactional_id": state.transactional_id,
                "producer_id": state.producer.id,
                "transaction_state": state.status.kafka_name,
            }
            for state in states
            if request.rights.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, state.transactional_id)
            and (not state_names or state.status.kafka_name in state_names)
            and (not producers or state.producer.id in producers)
            and (min_duration_ms == _NO_DURATION or 0 <= state.started_ms < started_before_ms)
        ],
    }


def describe_transactions(request: Request, broker: Broker) -> Fields:
    ids, rights = list(dict.fromkeys(request.body.transactional_ids)), request.rights
    denied = {id_: rights.check_code(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, id_) for id_ in ids}
    states_by_id, allowed = dict[str, TransactionState](), [id_ for id_ in ids if not denied[id_]]

    def read_states() -> None:
        states = broker.transactions.coordinator.states(allowed)
        states_by_id.update({state.transactional_id: state for state in states})

    code = run_for_code(read_states, fenced=ErrorCode.producer_fenced)
    missing = ErrorCode.transactional_id_not_found if code is ErrorCode.none else code

    def fields(id_: str) -> Fields:
        if id_ in states_by_id:
            return _transaction_fields(request, states_by_id[id_])
        no_start = {} if denied[id_] else {"transaction_start_time": -1}
        return {**no_start, "transactional_id": id_, "error_code": denied[id_] or missing}

    return {"transaction_states": [*map(fields, ids)]}


def _transaction_fields(request: Request, state: TransactionState) -> Fields:
    partitions = sorted(partition for partition in state.partitions if request.rights.may_describe(partition[0]))
    return {
        "transactional_id": state.transactional_id,
        "transaction_state": state.status.kafka_name,
        "transaction_timeout": state.timeout_ms,
        "transaction_start_time": state.started_ms,
        "producer_id": state.producer.id,
        "producer_epoch": state.producer.epoch,
        "topics": by_topic(partitions, name="topic"),
    }


#: The fields of the response, by the names in an entry of a producer snapshot. Most names are the same.
_SAME_NAMES = ("producer_id", "producer_epoch", "last_sequence", "last_timestamp", "coordinator_epoch")
_FIELDS = {**{name: name for name in _SAME_NAMES}, "transaction_first_offset": "current_txn_start_offset"}


def describe_producers(request: Request, broker: Broker) -> Fields:
    partitions = dict.fromkeys((topic.name, n) for topic in request.body.topics for n in topic.partition_indexes)
    topics = by_topic(
        (name, fields_or_error(_producer_fields, request, broker, name, number, partition_index=number))
        for name, number in partitions
    )
    return {"topics": topics}


def _producer_fields(request: Request, broker: Broker, topic: str, number: int) -> Fields:
    request.rights.check(Operation.READ, ResourceType.TOPIC, topic)
    entries = broker.metadata.fresh_topic(topic).partition(number).producers()
    return {"active_producers": [{field: int(entry[name]) for name, field in _FIELDS.items()} for entry in entries]}


_api = partial(Api, handlers=Handlers.TRANSACTIONS)
_WRITE_RIGHT = "WRITE of the transactional id"
_INIT_RIGHT = f"{_WRITE_RIGHT}; without one, IDEMPOTENT_WRITE of the cluster or WRITE of any topic"
_DESCRIBE_RIGHT = "DESCRIBE of the transactional id; only topics with DESCRIBE are listed"
APIS = (
    _api(22, "InitProducerId", 0, 4, init_producer_id, _INIT_RIGHT),
    _api(24, "AddPartitionsToTxn", 0, 3, add_partitions_to_txn, f"{_WRITE_RIGHT} and of the topic"),
    _api(25, "AddOffsetsToTxn", 0, 3, add_offsets_to_txn, f"{_WRITE_RIGHT}, READ of the group"),
    _api(28, "TxnOffsetCommit", 0, 3, txn_offset_commit, f"{_WRITE_RIGHT}, READ of the group and of the topic"),
    _api(26, "EndTxn", 0, 3, end_txn, _WRITE_RIGHT),
    _api(27, "WriteTxnMarkers", 1, 1, write_txn_markers, "ALTER or CLUSTER_ACTION of the cluster"),
    Api(66, "ListTransactions", 0, 2, list_transactions, "DESCRIBE of each listed transactional id"),
    Api(65, "DescribeTransactions", 0, 0, describe_transactions, _DESCRIBE_RIGHT),
    Api(61, "DescribeProducers", 0, 0, describe_producers, "READ of the topic"),
)
