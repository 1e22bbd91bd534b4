"""Names and texts use no word of tools/words.toml."""

from __future__ import annotations

import pytest

from tools import words


def test_no_file_has_a_banned_word() -> None:
    assert [f"{path}:{line}: {text}" for path, line, text in words.all_hits()] == []


@pytest.mark.parametrize(
    ("source", "hits"),
    [
        ("def f(at): pass", [(1, "at")]),
        ("def f():\n    _made = [each for each in ()]", [(2, "_made"), (2, "each")]),
        ("def f():\n    for one, (end, whole) in ():\n        pass", [(2, "one"), (2, "whole")]),
        ("class TopicFacts:\n    kept: int\n    def settle_put(self):\n        self.\x70lace = 1", None),
        ("import known_topics\nstart, end, first, last = range(4)\nlook = settled = 1", []),
        ('def f():\n    """A name\n    of\n    these."""', [(4, "of these")]),
        ("x = 1  # why it is so\n# many, or so\n# long as that", [(2, "so many")]),
        ("raise ValueError(f'{x} is\x20no topic')", [(1, "is no")]),
        ("x='anew'", []),
    ],
)
def test_names_and_phrases_are_found_at_their_lines(source: str, hits: list[words.Hit] | None) -> None:
    hits = [(1, "TopicFacts"), (2, "kept"), (3, "settle_put"), (4, "self.place")] if hits is None else hits
    assert sorted([*words.names(source), *words.phrases(source)]) == hits
