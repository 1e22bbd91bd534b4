"""ACLs decide as in Kafka's StandardAuthorizer."""

from __future__ import annotations

import logging

import pytest

from distlog.core.errors import InvalidConfigError
from distlog.gateway.config import STANDARD_AUTHORIZER, AclSettings, GatewayConfig, with_settings
from distlog.gateway.event_log import EventLog
from distlog.gateway.security.acls import (
    OPERATIONS,
    AccessLists,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
    client_host,
)

ALICE, HOST = "User:alice", "10.0.0.1"
Op, R, P = Operation, ResourceType, PatternType


def acl(
    name: str = "clicks",
    operation: Operation = Op.READ,
    *,
    denied: bool = False,
    principal: str = ALICE,
    host: str = "*",
    kind: ResourceType = R.TOPIC,
    prefix: bool = False,
) -> Acl:
    permission = Permission.DENY if denied else Permission.ALLOW
    return Acl(kind, P.PREFIXED if prefix else P.LITERAL, name, principal, host, operation, permission)


def may(
    *acls: Acl,
    operation: Operation = Op.READ,
    name: str = "clicks",
    principal: str = ALICE,
    host: str = HOST,
    **settings: bool,
) -> bool:
    return AccessLists(acls, **settings).may(principal, host, operation, R.TOPIC, name)


def test_without_an_acl_everything_is_denied() -> None:
    assert not may()
    assert not may(acl("views"), acl(kind=R.GROUP), acl(principal="User:bob"), acl(host="10.0.0.2"))
    assert may(acl())


def test_user_names_are_case_sensitive() -> None:
    assert not may(acl(), principal="User:Alice")
    assert not may(acl(), principal="user:alice")


def test_a_pattern_is_literal_or_a_prefix_or_all() -> None:
    assert may(acl("*"))
    assert may(acl("cli", prefix=True))
    assert may(acl("clicks", prefix=True))
    assert not may(acl("cli"))
    assert not may(acl("clicks-", prefix=True))
    assert not may(acl("lick", prefix=True))
    assert not may(acl("*", prefix=True))
    assert may(acl("*", prefix=True), name="*a")


def test_a_principal_and_a_host_may_stand_for_all() -> None:
    assert may(acl(principal="User:*", host="*"))
    assert may(acl(host=HOST))
    assert not may(acl(principal="User:ali*"))


@pytest.mark.parametrize("by", [Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.DESCRIBE, Op.ALL])
def test_some_operations_imply_describe(by: Operation) -> None:
    assert may(acl(operation=by), operation=Op.DESCRIBE)


def test_other_operations_imply_nothing() -> None:
    implying = {Op.DESCRIBE: {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}, Op.DESCRIBE_CONFIGS: {Op.ALTER_CONFIGS}}
    for operation in OPERATIONS[R.TOPIC]:
        for requested in OPERATIONS[R.TOPIC]:
            expected = operation is requested or operation in implying.get(requested, ())
            assert may(acl(operation=operation), operation=requested) is expected, (operation, requested)


def test_deny_takes_precedence_and_implies_nothing() -> None:
    everything = acl("*", Op.ALL)
    assert not may(everything, acl(denied=True))
    assert not may(acl(denied=True), everything)
    assert not may(everything, acl("c", Op.ALL, denied=True, prefix=True), operation=Op.WRITE)
    assert may(everything, acl(denied=True), operation=Op.DESCRIBE)
    assert may(everything, acl(denied=True, host="10.0.0.2"))
    assert may(everything, acl(denied=True, principal="User:bob"))


def test_super_users_may_do_everything_even_if_denied() -> None:
    lists = AccessLists([acl("*", Op.ALL, denied=True, principal="User:*")], {"User:root"})
    assert lists.may("User:root", HOST, Op.WRITE, R.TOPIC, "clicks")
    assert lists.may_any("User:root", HOST, Op.WRITE, R.TOPIC)
    assert not lists.may("User:roo", HOST, Op.WRITE, R.TOPIC, "clicks")


def test_a_resource_without_acls_may_be_open_to_all() -> None:
    assert may(everyone_if_none=True)
    assert may(acl("views"), acl(kind=R.GROUP), everyone_if_none=True)
    # any ACL of the resource closes it, also one of another user, or of a prefix
    assert not may(acl(principal="User:bob"), everyone_if_none=True)
    assert not may(acl("cl", principal="User:bob", prefix=True), everyone_if_none=True)


def any_topic(*acls: Acl, everyone_if_none: bool = False) -> bool:
    return AccessLists(acls, everyone_if_none=everyone_if_none).may_any(ALICE, HOST, Op.READ, R.TOPIC)


def test_a_right_to_any_resource_needs_one_without_a_deny() -> None:
    assert not any_topic()
    assert any_topic(everyone_if_none=True)
    assert any_topic(acl())
    assert any_topic(acl("c", prefix=True))
    assert any_topic(acl("*"))
    assert not any_topic(acl(operation=Op.WRITE))
    assert not any_topic(acl(principal="User:bob"))
    assert not any_topic(acl(), acl(denied=True))
    assert not any_topic(acl(), acl("*", denied=True))
    assert not any_topic(acl("*", denied=True), everyone_if_none=True)
    assert not any_topic(acl(), acl("cl", denied=True, prefix=True))
    assert not any_topic(acl("clicks", prefix=True), acl("cl", denied=True, prefix=True))
    assert any_topic(acl("cl", prefix=True), acl("clicks", denied=True, prefix=True))
    assert any_topic(acl("clicks", prefix=True), acl("clicks", denied=True))


def test_acls_that_would_never_count_are_refused() -> None:
    good = acl()
    assert check_acl(good) == good
    for host, same in (("0:0:0:0:0:0:0:1", "::1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("::1.2.3.4", "::1.2.3.4")):
        assert check_acl(acl(host=host)).host == same
    for address, host in (
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:1:2:3", "::ffff:1:2:3"),
    ):
        assert client_host(address) == host
    assert check_acl(acl(".", prefix=True)).name == "."
    for wrong in (
        good._replace(resource_type=R.ANY),
        good._replace(pattern_type=P.ANY),
        good._replace(pattern_type=P.MATCH),
        good._replace(operation=Op.ANY),
        good._replace(operation=Op.CLUSTER_ACTION),
        good._replace(permission=Permission.ANY),
        good._replace(name=""),
        good._replace(name="x" * 1025),
        good._replace(principal="alice"),
        good._replace(principal="User:"),
        good._replace(principal="Group:alice"),
        good._replace(host=""),
        good._replace(host="10.0.0.0/8"),
        good._replace(host="example.org"),
        good._replace(host="fe80::1%eth0"),
        good._replace(name="no/topic ever!"),
        good._replace(name="a" * 250),
        good._replace(name="\ud800"),
        good._replace(principal="User:a\nb"),
        acl("*", prefix=True),
        acl("a\ud800", kind=R.GROUP),
        acl("*", kind=R.GROUP, prefix=True),
        acl("another", Op.ALTER, kind=R.CLUSTER),
    ):
        with pytest.raises(InvalidConfigError):
            check_acl(wrong)


def test_a_filter_matches_fields_patterns_or_all_that_count_for_a_resource() -> None:
    everything = AclFilter(R.ANY, P.ANY, None, None, None, Op.ANY, Permission.ANY)
    acls = [acl(), acl("*"), acl("cl", prefix=True), acl("views"), acl("clicks-2", prefix=True)]

    def matched(**fields: object) -> list[Acl]:
        return [entry for entry in acls if everything._replace(**fields).matches(entry)]  # type: ignore[arg-type]

    assert matched() == acls
    assert matched(pattern_type=P.MATCH, name="clicks") == acls[:3]
    assert matched(pattern_type=P.ANY, name="clicks") == acls[:1]
    assert matched(pattern_type=P.PREFIXED, name="cl") == acls[2:3]
    assert matched(pattern_type=P.PREFIXED) == [acls[2], acls[4]]
    for field in (
        {"resource_type": R.GROUP},
        {"principal": "User:bob"},
        {"host": "10.0.0.1"},
        {"operation": Op.WRITE},
        {"operation": Op.ALL},
        {"permission": Permission.DENY},
    ):
        assert matched(**field) == [], field


def test_settings_have_the_names_of_kafka() -> None:
    acls = with_settings(
        GatewayConfig(),
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": " User:alice; User:CN=b,O=c ;",
            "allow.everyone.if.no.acl.found": "true",
        },
    ).acls
    assert (acls.super_principals, acls.everyone_if_none) == ({"User:alice", "User:CN=b,O=c"}, True)
    # a file without an authorizer does not disable --acls
    by_flag = GatewayConfig(acls=AclSettings(authorizer=STANDARD_AUTHORIZER))
    assert with_settings(by_flag, {"authorizer.class.name": ""}).acls.authorizer == STANDARD_AUTHORIZER
    for name, value in (
        ("authorizer.class.name", "org.example.Mine"),
        ("super.users", "alice"),
        ("super.users", "User:a,User:b"),
    ):
        with pytest.raises(InvalidConfigError):
            with_settings(GatewayConfig(), {name: value})


def test_events_are_logged_at_once_and_then_as_a_summary_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    events = EventLog("failures", lambda: now_s[0])
    with caplog.at_level(logging.WARNING, "distlog"):
        for number in range(7000):
            events.note(f"user-{number % 2000}", "a\nreason")
        events.note("alice", "b")
        assert caplog.messages == ["failures: 1 by user-0 (1, last: a\\nreason)"]
        now_s[0] = 59.0
        events.log()
        assert len(caplog.messages) == 1
        now_s[0] = 60.0
        events.log()
        events.log()
    assert events.total == 7001
    (line,) = caplog.messages[1:]
    # a thousand sources are distinguished
    assert line.startswith("failures: 7000 by others (3001, last: b), user-1 (4, last: a\\nreason)")
    assert line.endswith(", and 996 more")


def test_the_text_of_an_event_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    events = EventLog("failures")
    with caplog.at_level(logging.WARNING, "distlog"):
        events.note("a" * 1_000_000, "b" * 1_000_000)
    assert len(caplog.messages[0]) < 500
