"""Which member should have which partition: as evenly as can be, and with few moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlog.core.groups.group_state import Member


def assignment(members: Sequence[Member], owners: Mapping[int, str], partitions: int) -> dict[int, str]:
    """The member that should have each of the `partitions`, if any member takes it.

    All members that see the same state come to the same answer, and it stays the same while they act on it. An owner
    keeps what it has up to its fair share. The rest goes to who has least.
    """
    takers = sorted(members, key=lambda member: member.id)
    share, extra = divmod(partitions, len(takers)) if takers else (0, 0)
    found: dict[int, str] = {}
    counts = {member.id: 0 for member in takers}
    for member in takers:
        has = [number for number in range(partitions) if owners.get(number) == member.id and member.takes(number)]
        room = share + (len(has) > share and extra > 0)
        extra -= room > share
        found |= dict.fromkeys(has[:room], member.id)
        counts[member.id] = len(has[:room])
    for number in range(partitions):
        able = [member.id for member in takers if number not in found and member.takes(number)]
        if able:
            best = min(able, key=lambda each: (counts[each], owners.get(number) != each, each))
            found[number] = best
            counts[best] += 1
    return found
