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
    sync_group,
    txn_offset_commit,
)
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.request_frame import InvalidRequestError, RequestHead
from distlog.gateway.request_metrics import RequestMetrics
from distlog.gateway.server.request import Request

_RECORDS = (produce, fetch, list_offsets, offset_for_leader_epoch, delete_records, init_producer_id)
_TOPICS = (create_topics, delete_topics, create_partitions, describe_configs, incremental_alter_configs)
_CLUSTER = (api_versions, metadata, describe_cluster, describe_log_dirs)
_GROUPS = (find_coordinator, join_group, sync_group, heartbeat, leave_group)
_POSITIONS = (offset_commit, offset_fetch, offset_delete)
_TRANSACTIONS = (add_partitions_to_txn, add_offsets_to_txn, txn_offset_commit, end_txn)
_TRANSACTION_ADMIN = (describe_transactions, list_transactions)
_GROUP_ADMIN = (list_groups, describe_groups, delete_groups)
#: All APIs, by their keys.
APIS: dict[int, Api] = {
    module.API.key: module.API
    for modules in (_RECORDS, _TOPICS, _CLUSTER, _GROUPS, _POSITIONS, _GROUP_ADMIN, _TRANSACTIONS, _TRANSACTION_ADMIN)
    for module in modules
}

#: What members live by, and asks no storage but that of groups: it must not wait for threads that do.
OF_MEMBERS = frozenset(module.API.key for module in (*_GROUPS, offset_fetch))


def supports(head: RequestHead) -> RequestHead | None:
    """The head by which a request's body is read; None for a version of ApiVersions that we do not know.

    Raises InvalidRequestError for other APIs and versions: a client that asked what we speak does not send them.
    """
    api = APIS.get(head.api_key)
    if api is not None and api.oldest <= head.api_version <= api.newest:
        return head
    if head.api_key == api_versions.KEY:
        return None
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
            fields = api.handle(request, self._broker)
            if fields is not None:
                request.respond(fields)
        finally:
            self._metrics.note(api.name, time.perf_counter() - begun_s)
