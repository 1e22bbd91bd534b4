"""The library refuses a store that breaks the condition of a put."""

from __future__ import annotations

import pytest

import distlog
from simulation.history import URL
from simulation.object_store import Flaws, ObjectStore, connected
from simulation.world import World


@pytest.mark.parametrize("flaws", [Flaws(ignores_condition=True), Flaws(condition_in_two_steps=True)])
def test_a_store_that_breaks_the_condition_of_a_put_is_refused(flaws: Flaws) -> None:
    errors = list[Exception]()

    def create() -> None:
        with pytest.raises(distlog.StorageError, match="ignores the condition of a put") as raised:
            distlog.create(URL)
        errors.append(raised.value)

    with World(1) as world:
        store = ObjectStore(world, flaws=flaws)
        with connected(store):
            world.process("creator").start(create)
            world.run()
    assert world.errors == []
    assert len(errors) == 1
    assert [key for key in store.objects if key.endswith(".json")] == []
