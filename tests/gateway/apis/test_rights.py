"""Each API needs its rights: a client without them is refused as in Kafka, and nothing changes or is disclosed."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, fetch_fields, open_topic, serving, until
from gateways import frequent_polls as frequent_polls
from kio.schema.errors import ErrorCode
from raw_batches import batch, record
from rights import UserWire, codes, right, with_acls

import distlog
from distlog.core.config import TopicConfig
from distlog.core.errors import StorageError
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC
from distlog.gateway.apis import APIS
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.root_records import RootAcls, encode_acl
from distlog.gateway.topics.metadata_cache import (
    ACLS_TOPIC,
    CONFIGS_TOPIC,
    CREDENTIALS_TOPIC,
    HostedTopic,
    MetadataCache,
)
from distlog.gateway.transactions.transaction_log import internal_batch

E = ErrorCode
OF_TOPIC, OF_GROUP = E.topic_authorization_failed, E.group_authorization_failed
OF_CLUSTER, OF_ID = E.cluster_authorization_failed, E.transactional_id_authorization_failed
DENIED = {OF_TOPIC, OF_GROUP, OF_CLUSTER, OF_ID}
DATA = batch([record(0, value=b"secret")])


@dataclass(frozen=True)
class Case:
    """A request, its codes without a right, and rights that are enough; `fields` of the newest version."""

    key: int
    code: ErrorCode
    rights: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    version: int | None = None

    @property
    def key_and_version(self) -> tuple[int, int]:
        return self.key, APIS[self.key].newest if self.version is None else self.version

    @property
    def name(self) -> str:
        return f"{APIS[self.key].name}-{self.code.name}-{self.key_and_version[1]}"


def on(topic: str = "clicks", **fields: Any) -> list[dict[str, Any]]:
    return [{"name": topic, "topic": topic, "partitions": [fields]}]


TXN = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
GROUP = {"group_id": "g", "generation_id": 1, "member_id": "m"}
POSITIONS = {"topics": [{"name": "clicks", "partitions": [{"partition_index": 0, "committed_offset": 5}]}]}
PRODUCED = [{"name": "clicks", "partition_data": [{"index": 0, "records": DATA}]}]
BIND = {"resource_type": 2, "resource_name": "clicks", "principal": "User:mallory", "host": "*", "operation": 2}
ADDED = {
    "v3_and_below_transactional_id": "t",
    "v3_and_below_producer_id": 1,
    "v3_and_below_topics": [{"name": "clicks", "partitions": [0]}],
}
EVE = {"name": "eve", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": bytes(32)}
MEMBER = {
    "member_id": "m",
    "member_epoch": 0,
    "rebalance_timeout": 60_000,
    "subscribed_topic_names": ["clicks"],
    "topic_partitions": [],
}
MEMBERSHIP = {"group_id": "g", "session_timeout": 1, "protocol_type": "consumer"}
MARKERS = {"markers": [{"producer_id": 1, "topics": [{"name": "clicks", "partition_indexes": [0]}]}]}
NEW_TOPIC = {"topics": [{"name": "made", "num_partitions": 1, "replication_factor": 1}]}
FETCHED = [{"name": "clicks", "partition_indexes": [0]}]
ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
NO_FILTERS = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
QUOTA = {
    "entity": [{"entity_type": "user", "entity_name": "alice"}],
    "ops": [{"key": "producer_byte_rate", "value": 1e6}],
}
TOPIC, BROKER, GROUP_TYPE = 2, 4, 32


def resource(kind: int, name: str, **fields: Any) -> dict[str, Any]:
    return {"resources": [{"resource_type": kind, "resource_name": name, **fields}]}


def retention(**fields: Any) -> dict[str, Any]:
    return resource(TOPIC, "clicks", configs=[{"name": "retention.ms", "value": "7", **fields}])


def session(**fields: Any) -> dict[str, Any]:
    return resource(GROUP_TYPE, "g", configs=[{"name": "consumer.session.timeout.ms", "value": "50000", **fields}])


def produced(transactional_id: str | None, acks: int) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "acks": acks, "topic_data": PRODUCED}


def committed(group: str, **fields: Any) -> dict[str, Any]:
    return {"group_id": group, "generation_id_or_member_epoch": -1, **POSITIONS, **fields}


def positions(group: str) -> dict[str, Any]:
    return {"group_id": group, "topics": FETCHED}


FETCH_ALL = {"max_bytes": 1 << 20, "topics": on(partition=0, partition_max_bytes=1 << 20)}
OF_GROUP_AND_TOPIC = ("READ group g", "READ topic clicks")
DESCRIBE_GROUP_AND_TOPIC = ("DESCRIBE group g", "DESCRIBE topic clicks")
WITHOUT_KEYS = {"configuration_keys": None}
CASES = [
    Case(0, OF_TOPIC, ("WRITE topic clicks",), produced(None, -1), 12),
    Case(0, OF_ID, ("WRITE transactional_id t", "WRITE topic cli*"), produced("t", 1), 12),
    Case(1, OF_TOPIC, ("READ topic clicks",), FETCH_ALL, 12),
    Case(2, OF_TOPIC, ("DESCRIBE topic clicks",), {"topics": on(partition_index=0, timestamp=-1)}),
    Case(3, OF_TOPIC, ("DESCRIBE topic clicks",), {"topics": [{"name": "clicks"}]}),
    Case(8, OF_GROUP, OF_GROUP_AND_TOPIC, committed("g")),
    Case(8, OF_TOPIC, ("READ topic clicks",), committed("open")),
    Case(9, OF_GROUP, DESCRIBE_GROUP_AND_TOPIC, {"groups": [positions("g")]}),
    Case(9, OF_TOPIC, ("DESCRIBE topic clicks",), {"groups": [positions("open")]}),
    Case(9, OF_GROUP, DESCRIBE_GROUP_AND_TOPIC, positions("g"), 7),
    Case(9, OF_TOPIC, ("DESCRIBE topic clicks",), positions("open"), 1),
    Case(10, OF_GROUP, ("DESCRIBE group g",), {"key_type": 0, "coordinator_keys": ["g"]}),
    Case(10, OF_ID, ("DESCRIBE transactional_id t",), {"key_type": 1, "coordinator_keys": ["t"]}),
    Case(10, OF_ID, ("WRITE transactional_id t",), {"key_type": 1, "key": "t"}, 3),
    Case(10, OF_GROUP, ("READ group g",), {"key": "g"}, 0),
    Case(11, OF_GROUP, ("READ group g",), MEMBERSHIP),
    Case(11, OF_GROUP, ("READ group g",), MEMBERSHIP, 0),
    Case(12, OF_GROUP, ("READ group g",), GROUP),
    Case(
        13, OF_GROUP, ("READ group g",), {"group_id": "g", "members": [{"member_id": "m", "group_instance_id": None}]}
    ),
    Case(13, OF_GROUP, ("READ group g",), {"group_id": "g", "member_id": "m"}, 0),
    Case(14, OF_GROUP, ("READ group g",), GROUP),
    Case(15, OF_GROUP, ("DESCRIBE group g",), {"groups": ["g"]}),
    Case(19, OF_TOPIC, ("CREATE topic made",), NEW_TOPIC),
    Case(20, OF_TOPIC, ("DELETE topic made",), {"topics": [{"name": "made"}]}),
    Case(20, OF_TOPIC, ("DELETE topic made",), {"topic_names": ["made"]}, 5),
    Case(19, OF_TOPIC, ("CREATE cluster",), NEW_TOPIC, 2),
    Case(21, OF_TOPIC, ("DELETE topic clicks",), {"topics": on(partition_index=0, offset=-1)}),
    Case(
        22,
        OF_ID,
        ("WRITE transactional_id t",),
        {"transactional_id": "t", "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
    ),
    Case(22, OF_CLUSTER, ("IDEMPOTENT_WRITE cluster",), {"transactional_id": None}),
    Case(22, OF_CLUSTER, ("WRITE topic cl*",), {"transactional_id": None}, 0),
    Case(23, OF_TOPIC, ("DESCRIBE topic clicks",), {"topics": on(partition=0)}),
    Case(24, OF_ID, ("WRITE transactional_id t", "WRITE topic clicks"), ADDED),
    Case(24, OF_TOPIC, ("WRITE topic clicks",), {**ADDED, "v3_and_below_transactional_id": "open"}),
    Case(25, OF_ID, ("WRITE transactional_id t", "READ group g"), {**TXN, "group_id": "g"}),
    Case(25, OF_GROUP, ("READ group g",), {**TXN, "transactional_id": "open", "group_id": "g"}),
    Case(26, OF_ID, ("WRITE transactional_id t",), {**TXN, "committed": True}),
    Case(27, OF_CLUSTER, ("CLUSTER_ACTION cluster",), MARKERS),
    Case(27, OF_CLUSTER, ("ALTER cluster",), MARKERS),
    Case(28, OF_ID, ("WRITE transactional_id t", *OF_GROUP_AND_TOPIC), {**TXN, "group_id": "g", **POSITIONS}),
    Case(28, OF_GROUP, OF_GROUP_AND_TOPIC, {**TXN, "transactional_id": "open", "group_id": "g", **POSITIONS}),
    Case(28, OF_TOPIC, ("READ topic clicks",), {**TXN, "transactional_id": "open", "group_id": "open", **POSITIONS}),
    Case(29, OF_CLUSTER, ("DESCRIBE cluster",), {**ANY_ACL, **NO_FILTERS}),
    Case(30, OF_CLUSTER, ("ALTER cluster",), {"creations": [{**BIND, "permission_type": 2}]}),
    Case(
        31, OF_CLUSTER, ("ALTER cluster",), {"filters": [{**ANY_ACL, **NO_FILTERS, "resource_name_filter": "none"}]}
    ),
    Case(32, OF_TOPIC, ("DESCRIBE_CONFIGS topic clicks",), resource(TOPIC, "clicks", **WITHOUT_KEYS)),
    Case(32, OF_CLUSTER, ("DESCRIBE_CONFIGS cluster",), resource(BROKER, "0", **WITHOUT_KEYS)),
    Case(32, OF_GROUP, ("DESCRIBE_CONFIGS group g",), resource(GROUP_TYPE, "g", **WITHOUT_KEYS)),
    Case(33, OF_TOPIC, ("ALTER_CONFIGS topic clicks",), retention()),
    Case(33, OF_GROUP, ("ALTER_CONFIGS group g",), session()),
    Case(33, OF_CLUSTER, ("ALTER_CONFIGS cluster",), resource(BROKER, "0", configs=[])),
    Case(35, OF_CLUSTER, ("DESCRIBE cluster",), {"topics": None}),
    Case(37, OF_TOPIC, ("ALTER topic clicks",), {"topics": [{"name": "clicks", "count": 3, "assignments": None}]}),
    Case(42, OF_GROUP, ("DELETE group g",), {"groups_names": ["g"]}),
    Case(44, OF_TOPIC, ("ALTER_CONFIGS topic clicks",), retention(config_operation=0)),
    Case(44, OF_GROUP, ("ALTER_CONFIGS group g",), session(config_operation=0)),
    Case(44, OF_CLUSTER, ("ALTER_CONFIGS cluster",), resource(BROKER, "0", configs=[])),
    Case(47, OF_GROUP, ("DELETE group g", "READ topic clicks"), {"group_id": "g", "topics": on(partition_index=0)}),
    Case(47, OF_TOPIC, ("READ topic clicks",), {"group_id": "open", "topics": on(partition_index=0)}),
    Case(48, OF_CLUSTER, ("DESCRIBE_CONFIGS cluster",), {"components": []}),
    Case(49, OF_CLUSTER, ("ALTER_CONFIGS cluster",), {"entries": [QUOTA]}),
    Case(50, OF_CLUSTER, ("DESCRIBE cluster",), {"users": None}),
    Case(51, OF_CLUSTER, ("ALTER cluster",), {"upsertions": [EVE]}),
    Case(61, OF_TOPIC, ("READ topic clicks",), {"topics": [{"name": "clicks", "partition_indexes": [0]}]}),
    Case(65, OF_ID, ("DESCRIBE transactional_id u",), {"transactional_ids": ["u"]}),
    Case(43, OF_CLUSTER, ("ALTER cluster",), {"election_type": 0, "topic_partitions": None}),
    Case(46, OF_CLUSTER, ("DESCRIBE cluster",), {"topics": None}),
    Case(55, OF_CLUSTER, ("DESCRIBE cluster",), {"topics": []}),
    Case(68, OF_GROUP, ("READ group g", "DESCRIBE topic clicks"), {"group_id": "g", **MEMBER}),
    Case(68, OF_TOPIC, ("DESCRIBE topic clicks",), {"group_id": "open", **MEMBER}),
    Case(69, OF_GROUP, ("DESCRIBE group h",), {"group_ids": ["h"]}),
    Case(74, OF_CLUSTER, ("DESCRIBE_CONFIGS cluster",), {"resource_types": []}),
    Case(75, OF_TOPIC, ("DESCRIBE topic clicks",), {"topics": [{"name": "clicks"}], "response_partition_limit": 9}),
]
#: The APIs without an error code for missing rights: they return what a client may see; see the tests below.
SILENT = {16, 17, 18, 36, 60, 66}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    """One with a record in `clicks`; everyone may use the group and the transactional id `open`."""
    with with_acls(tmp_path_factory.mktemp("acls")) as served:
        assert served.broker.acls is not None
        everyone = (f"{rights} open" for rights in ("ALL group", "ALL transactional_id"))
        served.broker.acls.create(right(rights, "User:*") for rights in everyone)
        open_topic(served).append([{"value": b"secret"}])
        with UserWire(served, "root") as root:
            begin = {"transactional_id": "u", "transaction_timeout": 99_999, "producer_id": -1, "producer_epoch": -1}
            until(lambda: (response := root.plain(22, 4, **begin)).error_code is E.none and response)
            producer = served.broker.transactions.coordinator.states(["u"])[0].producer
            added = {
                "v3_and_below_transactional_id": "u",
                "v3_and_below_producer_id": producer.id,
                "v3_and_below_producer_epoch": producer.epoch,
            }
            assert codes(root.plain(24, 3, **{**ADDED, **added})) == {E.none}
        yield served


@contextmanager
def granted(gateway: GatewayServer, *rights: str) -> Iterator[RootAcls]:
    """Alice has these rights in the block."""
    acls = gateway.broker.acls
    assert acls is not None
    acls.create(map(right, rights))
    try:
        yield acls
    finally:
        acls.delete(map(right, rights))


@pytest.fixture(scope="module")
def mallory(gateway: GatewayServer) -> Iterator[UserWire]:
    with UserWire(gateway, "mallory") as wire:
        yield wire


@pytest.fixture(scope="module")
def alice(gateway: GatewayServer) -> Iterator[UserWire]:
    with UserWire(gateway, "alice") as wire:
        yield wire


def state(gateway: GatewayServer) -> Any:
    """The state that a request without rights must not change."""
    acls = gateway.broker.acls
    assert acls is not None
    topic = open_topic(gateway)
    return (
        sorted(gateway.broker.metadata.all_topics()),
        (topic.end_offsets(), topic.start_offsets(), topic.config, topic.partitions),
        gateway.broker.configs.quotas,
        gateway.broker.configs.groups.names,
        acls.acls,
        gateway.broker.users and gateway.broker.users.secrets,
        [group.group for group in gateway.broker.groups.members.descriptions()],
    )


def test_the_rights_of_every_api_are_tested() -> None:
    assert {case.key for case in CASES} | SILENT == APIS.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_client_without_rights_is_refused_and_changes_nothing(
    gateway: GatewayServer, mallory: UserWire, case: Case
) -> None:
    previous = state(gateway)
    response = mallory.plain(*case.key_and_version, **case.fields)
    actual = codes(response)
    assert case.code in actual
    assert actual - {case.code} <= {E.none}
    assert b"secret" not in repr(response).encode()
    assert state(gateway) == previous


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_client_with_just_these_rights_is_not_refused(gateway: GatewayServer, alice: UserWire, case: Case) -> None:
    with granted(gateway, *case.rights) as acls:
        response = alice.plain(*case.key_and_version, **case.fields)
        assert codes(response).isdisjoint(DENIED)
        for missing in map(right, case.rights):
            acls.delete([missing])
            response = alice.plain(*case.key_and_version, **case.fields)
            assert codes(response) & DENIED, missing
            acls.create([missing])


@pytest.mark.parametrize(
    "case", [case for case in CASES if "clicks" in repr(case.fields)], ids=lambda case: case.name
)
def test_a_missing_topic_is_refused_as_one_that_is_there(mallory: UserWire, case: Case) -> None:
    def shown(name: str) -> str:
        fields = eval(repr(case.fields).replace("clicks", name))
        return repr(mallory.plain(*case.key_and_version, **fields)).replace(name, "clicks")

    assert shown("clicks") == shown("nowhere")


def test_records_by_the_id_of_a_topic_need_the_same_rights(
    gateway: GatewayServer, mallory: UserWire, alice: UserWire
) -> None:
    (topic,) = UserWire(gateway, "root").plain(3, 12, topics=[{"name": "clicks"}]).topics
    for topic_id, code in ((topic.topic_id, OF_TOPIC), (uuid.UUID(int=9), E.unknown_topic_id)):
        requested = [{"topic_id": topic_id, "partitions": [{"partition": 0, "partition_max_bytes": 99}]}]
        produced = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": DATA}]}]
        assert codes(mallory.plain(1, 17, max_bytes=99, topics=requested)) - {E.none} == {code}
        assert codes(mallory.plain(0, 13, transactional_id=None, acks=-1, topic_data=produced)) - {E.none} == {code}
    requested = [{"topic_id": topic.topic_id, "partitions": [{"partition": 0, "partition_max_bytes": 99}]}]
    with granted(gateway, "READ topic clicks"):
        assert codes(alice.plain(1, 17, max_bytes=99, topics=requested)).isdisjoint(DENIED)


def test_metadata_of_all_topics_has_those_that_a_client_may_describe(
    gateway: GatewayServer, mallory: UserWire, alice: UserWire
) -> None:
    for version in (0, 1, 9, 12):
        everything = {"topics": [] if version == 0 else None}
        assert mallory.plain(3, version, **everything).topics == ()
        # an empty list means all topics in version 0, but a list of refused ones does not
        (response,) = mallory.plain(3, version, topics=[{"name": "clicks"}]).topics
        assert (response.name, response.error_code, response.partitions) == ("clicks", OF_TOPIC, ())
    for version in (0, 1, 9, 12):
        with granted(gateway, "READ topic clicks"):
            everything = {"topics": [] if version == 0 else None}
            assert [topic.name for topic in alice.plain(3, version, **everything).topics] == ["clicks"]
            names = [{"name": "clicks"}, {"name": "__acls"}]
            response = {topic.name: topic.error_code for topic in alice.plain(3, version, topics=names).topics}
            assert response == {"clicks": E.none, "__acls": OF_TOPIC}


def test_a_description_of_all_topics_has_those_that_a_client_may_describe(
    gateway: GatewayServer, mallory: UserWire, alice: UserWire
) -> None:
    everything = {"topics": [], "response_partition_limit": 9}
    assert mallory.plain(75, 0, **everything).topics == ()
    with granted(gateway, "DESCRIBE topic clicks"):
        assert [topic.name for topic in alice.plain(75, 0, **everything).topics] == ["clicks"]


def test_a_group_is_described_only_with_the_right_to_its_topics(gateway: GatewayServer, alice: UserWire) -> None:
    with UserWire(gateway, "root") as root:
        until(lambda: codes(root.plain(68, 1, group_id="described", **MEMBER)) == {E.none})
    for rights, code in (([], OF_TOPIC), (["DESCRIBE topic clicks"], E.none)):
        with granted(gateway, "DESCRIBE group described", *rights):
            (group,) = alice.plain(69, 1, group_ids=["described"]).groups
            assert (group.error_code, bool(group.members)) == (code, code is E.none)


def test_a_topic_id_does_not_disclose_the_name(gateway: GatewayServer, mallory: UserWire, alice: UserWire) -> None:
    (topic,) = UserWire(gateway, "root").plain(3, 12, topics=[{"name": "clicks"}]).topics
    by_id = [{"name": None, "topic_id": topic.topic_id}]
    (response,) = mallory.plain(3, 12, topics=by_id).topics
    assert (response.error_code, response.name, response.topic_id, response.partitions) == (
        OF_TOPIC,
        None,
        topic.topic_id,
        (),
    )
    (response,) = mallory.plain(20, 6, topics=by_id).responses
    assert (response.error_code, response.name, response.topic_id) == (OF_TOPIC, None, topic.topic_id)
    with granted(gateway, "DESCRIBE topic clicks"):
        (response,) = alice.plain(20, 6, topics=by_id).responses
        assert (response.error_code, response.name) == (OF_TOPIC, "clicks")
        (response,) = alice.plain(3, 12, topics=by_id).topics
        assert (response.error_code, response.name) == (E.none, "clicks")


def test_a_request_for_several_topics_has_the_answers_of_both_kinds(gateway: GatewayServer, alice: UserWire) -> None:
    fetched = {"partition": 0, "fetch_offset": open_topic(gateway).end_offsets()[0], "partition_max_bytes": 99999}
    with granted(gateway, "READ topic clicks", "WRITE topic clicks"):
        topics = [{"topic": name, "partitions": [fetched]} for name in ("x", "clicks")]
        response = alice.plain(1, 12, max_bytes=1 << 20, topics=topics).responses
        assert {topic.topic: topic.partitions[0].error_code for topic in response} == {
            "clicks": E.none,
            "x": OF_TOPIC,
        }
        topics = [{"name": name, "partition_data": [{"index": 0, "records": DATA}]} for name in ("x", "clicks")]
        response = alice.plain(0, 9, transactional_id=None, acks=-1, topic_data=topics).responses
        assert {topic.name: topic.partition_responses[0].error_code for topic in response} == {
            "clicks": E.none,
            "x": OF_TOPIC,
        }


def test_a_refused_fetch_does_not_wait(mallory: UserWire) -> None:
    fields = {"max_wait": 60_000, "min_bytes": 1, "topics": on(partition=0, partition_max_bytes=9), "max_bytes": 99}
    mallory.socket.settimeout(30)
    assert codes(mallory.plain(1, 12, **fields)) == {E.none, OF_TOPIC}
    mallory.socket.settimeout(60)


def test_a_refused_produce_without_acks_ends_the_connection(gateway: GatewayServer) -> None:
    end = open_topic(gateway).end_offsets()
    with UserWire(gateway, "mallory") as wire:
        wire.send_plain(0, 9, transactional_id=None, acks=0, topic_data=PRODUCED)
        assert wire.is_closed
    assert open_topic(gateway).end_offsets() == end


def test_groups_and_transactions_are_listed_if_they_may_be_described(
    gateway: GatewayServer, mallory: UserWire, alice: UserWire
) -> None:
    root = UserWire(gateway, "root")

    def groups(wire: UserWire) -> set[str]:
        return {group.group_id for group in wire.plain(16, 4).groups}

    def ids(wire: UserWire) -> set[str]:
        return {state.transactional_id for state in wire.plain(66, 1).transaction_states}

    commit = {"group_id": "secret", "generation_id_or_member_epoch": -1, **POSITIONS}
    until(lambda: codes(root.plain(8, 9, **commit)) == {E.none})
    begin = {"transactional_id": "secret", "transaction_timeout": 9999, "producer_id": -1, "producer_epoch": -1}
    until(lambda: root.plain(22, 4, **begin).error_code is E.none)
    assert "secret" in groups(root) & ids(root)
    for wire in (mallory, alice):
        assert groups(wire) <= {"open"} >= ids(wire)
    requested = [{"group_id": "secret", "topics": None}]
    with granted(gateway, "READ group secret", "DESCRIBE transactional_id s*"):
        assert "secret" in groups(alice) & ids(alice)
        # all positions of a group are those in topics that may be described
        (group,) = alice.plain(9, 8, groups=requested).groups
        assert (group.error_code, group.topics) == (E.none, ())
        (group,) = root.plain(9, 8, groups=requested).groups
        assert [topic.name for topic in group.topics] == ["clicks"]
    with granted(gateway, "DESCRIBE cluster"):
        assert "secret" in groups(alice)
    root.socket.close()


def test_topics_of_a_transaction_are_listed_if_they_may_be_described(gateway: GatewayServer, alice: UserWire) -> None:
    for rights, expected in (([], []), (["DESCRIBE topic clicks"], ["clicks"])):
        with granted(gateway, "DESCRIBE transactional_id u", *rights):
            (actual,) = alice.plain(65, 0, transactional_ids=["u"]).transaction_states
            assert [topic.topic for topic in actual.topics] == expected


def test_authorized_operations_are_returned_on_request(gateway: GatewayServer, alice: UserWire) -> None:
    read_describe, alter_describe, delete_describe = (1 << 3) | (1 << 8), (1 << 7) | (1 << 8), (1 << 6) | (1 << 8)
    requested = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    with granted(gateway, "READ topic clicks", "ALTER cluster", "DELETE group g"):
        response = alice.plain(3, 10, topics=[{"name": "clicks"}], **requested)
        assert response.topics[0].topic_authorized_operations == read_describe
        assert response.cluster_authorized_operations == alter_describe
        response = alice.plain(60, 0, include_cluster_authorized_operations=True)
        assert response.cluster_authorized_operations == alter_describe
        (response,) = alice.plain(15, 5, groups=["g"], include_authorized_operations=True).groups
        assert response.authorized_operations == delete_describe


def test_settings_of_a_created_topic_need_their_right(gateway: GatewayServer, alice: UserWire) -> None:
    for rights, expected in (
        (["CREATE topic new-*"], (OF_TOPIC, -1, -1, True)),
        (["CREATE topic new-*", "DESCRIBE_CONFIGS topic new-*"], (E.none, 1, 1, False)),
    ):
        with granted(gateway, *rights):
            name = f"new-{len(rights)}"
            new = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
            (created,) = alice.plain(19, 7, topics=new).topics
            code = ErrorCode(created.topic_config_error_code)
            actual = (code, created.num_partitions, created.replication_factor, not created.configs)
            assert (created.error_code, actual) == (E.none, expected)


def test_a_topic_is_created_at_first_use_only_with_the_right_to_create_it(tmp_path: Path) -> None:
    with with_acls(tmp_path, auto_create_topics=True) as gateway, UserWire(gateway, "alice") as alice:
        acls = gateway.broker.acls
        assert acls is not None
        acls.create([right("DESCRIBE topic *"), right("CREATE topic mine-*")])
        names = [{"name": name} for name in ("mine-1", "other", "clicks")]
        response = alice.plain(3, 9, topics=names, allow_auto_topic_creation=True).topics
        assert {topic.name: topic.error_code for topic in response} == {
            "mine-1": E.none,
            "other": OF_TOPIC,
            "clicks": E.none,
        }
        assert "other" not in gateway.broker.metadata.all_topics()


@pytest.mark.usefixtures("frequent_polls")
@pytest.mark.parametrize("everyone_if_none", [False, True])
def test_acls_outlive_a_gateway_and_other_gateways_have_them(tmp_path: Path, everyone_if_none: bool) -> None:
    def allowed(wire: UserWire) -> bool:
        return codes(wire.plain(3, 12, topics=[{"name": "clicks"}])) == {E.none}

    with with_acls(tmp_path, everyone_if_none=everyone_if_none) as first:
        assert first.broker.acls is not None
        with UserWire(first, "mallory") as wire:
            assert allowed(wire) is everyone_if_none
        first.broker.acls.create([right("READ topic clicks")])
        with (
            with_acls(tmp_path, everyone_if_none=everyone_if_none) as other,
            UserWire(other, "alice") as alice,
            UserWire(other, "mallory") as mallory,
        ):
            assert (allowed(alice), allowed(mallory)) == (True, False)
            first.broker.acls.delete([right("READ topic clicks")])
            until(lambda: allowed(mallory) is everyone_if_none)


def test_before_the_acls_are_known_only_super_users_are_served(tmp_path: Path) -> None:
    with with_acls(tmp_path):
        pass
    commits = tmp_path / "root" / ACLS_TOPIC / "_commits"
    commits.mkdir(parents=True)
    (commits / f"{0:020d}.json").write_text("damaged")
    with with_acls(tmp_path, everyone_if_none=True) as gateway:
        for user, expected in (("mallory", OF_TOPIC), ("root", E.none)):
            with UserWire(gateway, user) as wire:
                assert wire.plain(3, 12, topics=[{"name": "clicks"}]).topics[0].error_code is expected


@pytest.mark.parametrize("topic", [CREDENTIALS_TOPIC, ACLS_TOPIC])
def test_credentials_and_acls_cannot_be_read_through_a_gateway(
    gateway: GatewayServer, tmp_path: Path, topic: str
) -> None:
    fields = {"max_bytes": 99, "topics": on(topic, partition=0, partition_max_bytes=99)}
    with UserWire(gateway, "root") as wire:
        assert OF_TOPIC in codes(wire.plain(1, 12, **fields))
    distlog.create(str(tmp_path / "clicks"))
    with serving(tmp_path) as open_to_all, Wire(open_to_all) as anyone:
        assert OF_TOPIC in codes(anyone.ask(1, 12, **fetch_fields(12, [(topic, 0, 0)])))


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC, CONFIGS_TOPIC, ACLS_TOPIC, CREDENTIALS_TOPIC])
def test_no_api_changes_the_topics_of_the_gateways(gateway: GatewayServer, topic: str) -> None:
    with UserWire(gateway, "root") as root:
        # there are records in it, or it is there at least
        assert codes(root.plain(51, 0, upsertions=[EVE])) == {E.none}
        hosted = gateway.broker.metadata.internal_topic(
            topic, 50 if topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC) else 1, TopicConfig()
        )
        previous = (
            hosted.topic.config,
            hosted.topic.partitions,
            hosted.topic.end_offsets(),
            hosted.topic.start_offsets(),
        )
        setting = {"name": "max.message.bytes", "value": "1"}
        changed = {**setting, "config_operation": 0}
        produced = [{"name": topic, "partition_data": [{"index": 0, "records": DATA}]}]
        for key, version, fields in (
            (0, 12, {"transactional_id": None, "acks": -1, "topic_data": produced}),
            (19, 7, {"topics": [{"name": topic, "num_partitions": 1, "replication_factor": 1}]}),
            (20, 5, {"topic_names": [topic]}),
            (20, 6, {"topics": [{"name": None, "topic_id": hosted.id}]}),
            (21, 2, {"topics": on(topic, partition_index=0, offset=-1)}),
            (24, 3, {**ADDED, "v3_and_below_topics": [{"name": topic, "partitions": [0]}]}),
            (37, 3, {"topics": [{"name": topic, "count": 99, "assignments": None}]}),
            (33, 2, {"resources": [{"resource_type": 2, "resource_name": topic, "configs": [setting]}]}),
            (44, 1, {"resources": [{"resource_type": 2, "resource_name": topic, "configs": [changed]}]}),
        ):
            assert codes(root.plain(key, version, **fields)) - {E.none} == {E.invalid_topic_exception}, key
        hosted.topic.refresh()
        after = hosted.topic.config, hosted.topic.partitions, hosted.topic.end_offsets(), hosted.topic.start_offsets()
        assert after == previous


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of topics whose next lookup fails, once per name in the list."""
    names, fresh_topic = list[str](), MetadataCache.fresh_topic

    def flaky(metadata: MetadataCache, name: str) -> HostedTopic:
        if name in names:
            names.remove(name)
            raise StorageError("a passing error")
        return fresh_topic(metadata, name)

    monkeypatch.setattr(MetadataCache, "fresh_topic", flaky)
    return names


def test_a_passing_error_of_a_check_lets_no_id_pass(
    gateway: GatewayServer, mallory: UserWire, failing: list[str]
) -> None:
    topic_id = gateway.broker.metadata.fresh_topic("clicks").id
    topics = [{"name": None, "topic_id": topic_id}]
    previous = state(gateway)
    failing.append("clicks")
    assert codes(mallory.plain(20, 6, topics=topics)) == {E.unknown_topic_id}
    assert codes(mallory.plain(20, 6, topics=topics)) == {OF_TOPIC}
    with UserWire(gateway, "root") as root:
        # the name of another topic
        topics = [{"name": "clicks", "topic_id": uuid.UUID(int=9)}]
        assert codes(root.plain(20, 6, topics=topics)) == {E.unknown_topic_id}
    assert state(gateway) == previous


def test_a_topic_is_not_created_by_a_passing_error_of_a_check(tmp_path: Path, failing: list[str]) -> None:
    with with_acls(tmp_path, auto_create_topics=True) as gateway, UserWire(gateway, "alice") as alice:
        acls = gateway.broker.acls
        assert acls is not None
        acls.create([right("DESCRIBE topic *"), right("CREATE topic mine")])
        failing.append("other")
        names = [{"name": "other"}, {"name": "mine"}]
        response = alice.plain(3, 12, topics=names, allow_auto_topic_creation=True).topics
        assert [topic.error_code for topic in response] == [E.kafka_storage_error, E.none]
        assert "other" not in gateway.broker.metadata.all_topics()


def test_records_of_acls_that_are_not_understood_allow_nothing_and_break_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with with_acls(tmp_path) as gateway, UserWire(gateway, "root") as root, UserWire(gateway, "alice") as alice:
        acls = gateway.broker.acls
        assert acls is not None
        acls.create([right("ALL topic *"), right("ALL topic *", denied=True)])
        acls.delete([right("ALL topic *", denied=True)])
        key, value = encode_acl(right("READ topic clicks", denied=True))
        newer = key.replace(b'"READ"', b'"TWO_PHASE_COMMIT"')
        hosted = gateway.broker.metadata.fresh_topic(ACLS_TOPIC)
        for bad_key in (
            key.replace(b'"READ"', b'"TWO_PHASE_COMMIT"').replace(b'"DENY"', b'"ALLOW"'),
            key.replace(b'"clicks"', b'"\\ud800"'),
            key.replace(b'"clicks"', b'{"a": 1}'),
            key.replace(b'"User:alice"', b'"User:a\\nERROR forged"'),
            b"[]",
            b"{" * 100_000,
            newer,
        ):
            hosted.append_run(0, internal_batch([(bad_key, value)], 1), lambda snapshot: None)
        acls.refresh()
        response = root.plain(29, 3, **ANY_ACL, **NO_FILTERS)
        assert [(resource.resource_name, len(resource.acls)) for resource in response.resources] == [
            ("*", 1),
            ("clicks", 1),
        ]
        assert "forged" not in caplog.text
        described = {"topics": [{"name": "clicks"}]}
        assert codes(alice.plain(3, 12, **described)) - {E.none} == {OF_TOPIC}
        # it can be removed, and replaces no other ACL
        acls.create([right("ALL topic clicks", denied=True)])
        acls.delete([right("ALL topic clicks", denied=True)])
        assert codes(alice.plain(3, 12, **described)) == {E.none}


def test_the_table_of_rights_is_on_the_page() -> None:
    text = (Path(__file__).parents[3] / "docs" / "gateway-security.md").read_text(encoding="utf-8")
    rows = dict(
        re.findall(
            r"^\| ([A-Za-z, ]+) \| ([A-Z][^|]*?) \|$", text.split("## ACLs")[1].split("\n## ")[0], re.MULTILINE
        )
    )
    actual = {api: rights for apis, rights in rows.items() for api in apis.split(", ")}
    assert actual == {api.name: api.rights for api in APIS.values() if api.rights}
