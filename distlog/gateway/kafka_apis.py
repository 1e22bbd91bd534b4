"""Which function handles which API: Kafka's KafkaApis. To add an API, add its module to the table."""

from __future__ import annotations

import time

from distlog.gateway.apis import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
)
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.invalid_request import InvalidRequestError
from distlog.gateway.protocol.request_frame import RequestHead
from distlog.gateway.request_metrics import RequestMetrics
from distlog.gateway.server.request import ClientSession, Request

_RECORDS = (produce, fetch, list_offsets, offset_for_leader_epoch, delete_records, init_producer_id)
_TOPICS = (create_topics, delete_topics, create_partitions, describe_configs, incremental_alter_configs)
_CLUSTER = (api_versions, metadata, describe_cluster, describe_log_dirs)
_GROUPS = (find_coordinator, join_group, sync_group, heartbeat, leave_group)
_POSITIONS = (offset_commit, offset_fetch, offset_delete)
_TRANSACTIONS = (add_partitions_to_txn, add_offsets_to_txn, txn_offset_commit, end_txn)
_ADMIN = (list_groups, describe_groups, delete_groups, list_transactions, describe_transactions, describe_producers)
_SASL = (sasl_handshake, sasl_authenticate)
#: All APIs, by their keys.
APIS: dict[int, Api] = {
    module.API.key: module.API
    for modules in (_RECORDS, _TOPICS, _CLUSTER, _GROUPS, _POSITIONS, _TRANSACTIONS, _ADMIN, _SASL)
    for module in modules
}

#: What members live by, and asks no storage but that of groups: it must not wait for threads that do.
OF_MEMBERS = frozenset(module.API.key for module in (*_GROUPS, offset_fetch))
#: What waits for the storage, step by step: whoever reads and writes records must not wait for it.
OF_TRANSACTIONS = frozenset(module.API.key for module in (*_TRANSACTIONS, init_producer_id))
#: What proves who clients are; it takes time on purpose, and others must not wait for it.
OF_SASL = frozenset(module.API.key for module in _SASL)
_BEFORE_AUTHENTICATION = OF_SASL | {api_versions.KEY}


def supports(head: RequestHead, session: ClientSession) -> bool:
    """Whether a request's body can be read; it is not of a version of ApiVersions that we do not know.

    Raises InvalidRequestError for other APIs and versions: a client that asked what we speak does not send them. And,
    as in Kafka, for what a client may not ask before it has authenticated.
    """
    if session.principal is None and head.api_key not in _BEFORE_AUTHENTICATION:
        raise InvalidRequestError("a request of a client that has not authenticated", api_key=head.api_key)
    api = APIS.get(head.api_key)
    if api is not None and api.oldest <= head.api_version <= api.newest:
        return True
    if head.api_key == api_versions.KEY:
        return False
    raise InvalidRequestError(
        "an API or version that the gateway does not speak", api_key=head.api_key, version=head.api_version
    )


class KafkaApis:
    """Handles requests, from many threads, and counts them in `metrics`."""

    def __init__(self, broker: Broker, metrics: RequestMetrics) -> None:
        self._broker, self._metrics = broker, metrics

    def handle(self, request: Request) -> None:
        """Handle one request, and send its response unless its handler does that itself."""
        api, begun_s = APIS[request.head.api_key], time.perf_counter()
        try:
            request.read()
            fields = api.handle(request, self._broker)
            if fields is not None:
                request.respond(fields)
        except InvalidRequestError as error:
            request.hang_up(str(error))
        finally:
            self._metrics.note(api.name, time.perf_counter() - begun_s)
