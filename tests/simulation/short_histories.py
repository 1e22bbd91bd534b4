"""Short histories: two to four actors of any kinds, few requests, and some kinds of likely faults.

A long history takes half a second. A thousand short ones take a minute, so each pair of actors meets again and again,
with a death, a lost response or a long pause at another request each time. Shorter ones find no more:
a third of the time of the shortest goes into the topic's creation and its audit.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from distlog.core.arrays import MAX_LONG
from simulation import actors, gateways, inspector, kafka_directories, readers, roots, schema_values
from simulation.actors import Actor
from simulation.history import Plan, key_index, rules_of_compacted
from simulation.kafka_directories import OnImported
from simulation.object_store import Faults


@dataclass(frozen=True)
class Role:
    """An actor that may be drawn, and the names of the roles that it needs."""

    actor: Actor
    needs: tuple[str, ...] = ()
    #: Whether it appends records.
    writes: bool = False
    #: The number of further actors of this role, where one alone meets little.
    more: int = 0
    #: The shortest history for it, in s, so that leases end and caches get old.
    least_s: float = 0.0


ROLES = {
    "maintainer": Role(actors.maintains([])),
    "appender": Role(actors.appends, writes=True),
    "plain": Role(actors.appends_plainly, writes=True),
    "writer": Role(actors.writes, writes=True),
    "producer": Role(actors.produces, writes=True, more=1),
    "crowd": Role(actors.appends, writes=True, more=5),
    "reader": Role(actors.holds_snapshots),
    "opener": Role(actors.opens),
    "follower": Role(actors.follows, more=1, least_s=60.0),
    "member": Role(actors.follows_often, more=2, least_s=30.0),
    "recreator": Role(actors.recreates),
    "query": Role(actors.streams, writes=True),
    "stream": Role(actors.reads_stream),
    "traveller": Role(actors.travels, ("vacuumer",)),
    "vacuumer": Role(actors.maintains(["vacuum"])),
    "gateway": Role(gateways.serves, more=1, least_s=90.0),
    "client": Role(gateways.sends, ("gateway",), writes=True),
    "transacting": Role(gateways.transacts, ("gateway",), writes=True, more=1),
    "committing": Role(gateways.commits_positions, ("gateway",)),
    "consumer": Role(gateways.consumes, ("gateway",)),
    "broker": Role(kafka_directories.grows, ("adopter",)),
    "adopter": Role(kafka_directories.adopts, ("broker",)),
    "maintainer of adopted": Role(OnImported(actors.maintains(["vacuum", "rebuild"])), ("broker", "adopter")),
    "reader of adopted": Role(OnImported(actors.holds_snapshots), ("broker", "adopter")),
    "follower of adopted": Role(OnImported(actors.follows), ("broker", "adopter")),
    "exporter": Role(kafka_directories.exports),
    "founder": Role(roots.founds, ("lister",)),
    "lister": Role(roots.lists, ("founder",), more=1, least_s=90.0),
}
#: Actors that join a part of the histories.
READERS = {
    "historian": readers.reads_old_versions,
    "searcher": readers.reads_records,
    "steward": readers.manages_groups,
}
_WRITERS = [name for name, role in ROLES.items() if role.writes]
#: Jobs of maintenance; one actor does up to three.
_JOBS = (
    "compact",
    "compact",
    "vacuum",
    "vacuum",
    "config",
    "rebuild",
    "delete-records",
    "partitions",
    "restore",
    "policy",
)
#: Compaction removes records for good, and keys stay in their partitions.
_NOT_OF_COMPACTED = frozenset({"delete-records", "partitions", "restore"})
_OF_COMPACTED = frozenset({"policy"})
#: Actors that end when the topic gets another id, or that have other topics.
_BOUND_TO_IDS = frozenset(
    {"query", "stream", "gateway", "broker", "adopter", "exporter", "founder", "lister", "recreator"}
)
#: Roles that are drawn more often, since most other roles meet them.
_OFTEN = ["maintainer"] * 5 + ["reader", "opener", "follower"]


def plan(seed: int) -> Plan:
    random = Random(f"short/{seed}")
    names = _names(random)
    new_id = Random(f"new id/{seed}")
    renames = not any(name in _BOUND_TO_IDS for name in names) and new_id.random() < 0.2
    # the committed offsets of a group stay
    names += ["follower"] if renames and "crowd" not in names and new_id.random() < 0.5 else []
    is_compacted = random.random() < 0.3
    jobs = [job for job in _JOBS if job not in (_NOT_OF_COMPACTED if is_compacted else _OF_COMPACTED)]
    least_s = max(ROLES[name].least_s for name in names)
    # commits are kept for longer than the pauses, and the history lasts longer than that
    delay_s = 20 if "vacuumer" in names else random.choice((20, 20, 60) if least_s else (20, 60, 300))
    config: dict[str, object] = {"retention.ms": -1, "file.delete.delay.ms": delay_s * 1000}
    if is_compacted:
        config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
        config |= {"delete.retention.ms": Random(f"tombstones/{seed}").choice((0, 20_000, 20_000, 86_400_000))}
    if random.random() < 0.2:
        config |= {"message.timestamp.type": "LogAppendTime"}
    config |= key_index(seed)
    if "appender" in names and random.random() < 0.2:
        config |= {"batch.ids.bytes": random.choice((0, 300, 1000))}
    # clocks are wrong
    config |= {"message.timestamp.after.max.ms": MAX_LONG}
    if "maintainer" in names:
        # else there is nothing for vacuum to delete
        least_s = max(least_s, 3.0 * delay_s)
    pause_s = max(random.choice((0.3, 3.0, 20.0)), least_s / 15)
    length_s, commits_s = max(pause_s * random.choice((4, 6, 10)), least_s), 0.0
    if is_compacted:
        config |= rules_of_compacted(seed, [int(pauses * pause_s * 1000) for pauses in (1, 4, 20)])
    if "crowd" in names:
        # they hardly rest, so they wait for each other
        pause_s, length_s = 0.3, 3.0
    if "vacuumer" in names:
        commits_s = 60.0
        config |= {"commit.retention.ms": int(commits_s * 1000)}
        length_s = 5 * commits_s
        pause_s = length_s / random.choice((6, 10))
    more = _more(Random(f"cast/{seed}"), is_compacted)
    if renames:
        more.append(("renamer", actors.maintains(["new-id"])))
    more += [("encoder", schema_values.appends_values)] * schema_values.has_values(seed)
    more += [("inspector", inspector.inspects)] * inspector.has_inspector(seed)
    incremental = random.random() < 0.3
    has_holes = is_compacted and Random(f"holes/{seed}").random() < 0.2
    return Plan(
        seed=seed,
        cast=[*[(name, _actor(name, random, jobs)) for name in names], *more],
        partitions=1 if has_holes else random.choice((1, 1, 2, 3) if "member" not in names else (3, 5)),
        keys=random.choice((2, 8)) if is_compacted else random.choice((0, 8)),
        config=config,
        faults=_faults(random, commits_s, length_s),
        length_s=length_s,
        pause_s=pause_s,
        commits_s=commits_s,
        protocol=random.choice(("s3", "s3", "gs", "abfs")),
        part_bytes=random.choice((256, 8 << 20)),
        incremental=incremental,
        on_one_base=random.choice((1, 2, MAX_LONG)),
        in_bursts=random.random() < 0.5,
        has_holes=has_holes,
        in_tables=Random(f"tables/{seed}").random() < 0.3,
        is_vacuumed=Random(f"vacuumed/{seed}").random() < 1 / 3,
        damage_s=random.uniform(0, length_s) if incremental and random.random() < 0.3 else 0.0,
    )


def _names(random: Random) -> list[str]:
    """Draw the roles of two to four actors, and add the roles that they need."""
    names = [random.choice([*ROLES, *_OFTEN]) for _ in range(random.choice((2, 2, 2, 3, 3, 4)))]
    for name in list(names):
        names += [other for other in ROLES[name].needs if other not in names]
    for name in dict.fromkeys(names):
        names += [name] * random.randrange(ROLES[name].more + 1)
    if not any(ROLES[name].writes for name in names):
        writers = [name for name in _WRITERS if set(ROLES[name].needs) <= set(names)]
        names.append(random.choice(writers))
    return names


def _actor(name: str, random: Random, jobs: list[str]) -> Actor:
    if name == "maintainer":
        return actors.maintains(random.sample(jobs, random.choice((1, 2, 2, 3))))
    if name == "crowd":
        # only appends with a batch id can be sent again after an unknown outcome
        return random.choice((actors.appends, actors.appends_plainly))
    return ROLES[name].actor


def _more(random: Random, is_compacted: bool) -> list[tuple[str, Actor]]:
    """Draw readers and tasks of maintenance for a part of the histories."""
    cast: list[tuple[str, Actor]] = [(name, actor) for name, actor in READERS.items() if random.random() < 0.2]
    if random.random() < 0.15:
        work = ["manage"] if is_compacted else ["retention", "retention", "manage"]
        cast.append(("keeper", actors.maintains(work)))
    return cast


#: The probabilities of each kind of fault at a request.
_LEVELS = {
    "throttled": (0.02, 0.1),
    "failed": (0.02, 0.1),
    "dropped": (0.01, 0.03),
    "unanswered": (0.02, 0.06),
    "late": (0.01, 0.03),
    "twice": (0.02, 0.1),
    "still": (0.01, 0.03),
    "death": (0.005, 0.02, 0.04),
    "silence": (0.05, 0.2),
}


def _faults(random: Random, commits_s: float, length_s: float) -> Faults:
    """Draw up to three kinds of faults; a paused process continues among the others, or long after them."""
    kinds = random.sample(list(_LEVELS), random.choice((0, 1, 2, 2, 3)))
    still_s = random.choice((2.0, 6.0)) * commits_s or random.choice((max(30.0, length_s), 3600.0, 7 * 86400.0))
    return Faults(**{kind: random.choice(_LEVELS[kind]) for kind in kinds}, still_s=still_s)
