"""Patterns match as in Python's `re`, in every reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from file_reads import rows, written
from hypothesis import example, given
from hypothesis import strategies as st
from parsed_lines import bad_lines

from distlog.core.files.record_times import TimeReader
from distlog.core.files.text_lines import Parsed, PatternLines, re2_pattern


def parsed(pattern: str, lines: list[str | bytes]) -> Parsed:
    block = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
    return PatternLines(pattern, TimeReader()).parse(block, len(block), is_last=True)


def test_groups_of_a_pattern_are_key_value_and_time(tmp_path: Path) -> None:
    (path,) = written(tmp_path, a__log="a=1 @5\n=2 @2015-05-17\na:3 @6\na=4 @soon\nb= @7")
    pattern = r"^(?P<key>\w*)=(?P<value>\d?) @(?P<timestamp>.+)"
    assert rows([path], 7, 3, pattern=pattern, bad_lines="skip") == [
        (b"a", b"1", 5),
        (None, b"2", 1_431_820_800_000),
        (b"b", b"", 7),
    ]


def test_lines_that_do_not_match_or_have_no_time_are_bad() -> None:
    lines: list[str | bytes] = ["a:3 @6", "a=4 @soon", "b= @7"]
    result = parsed(r"(?P<key>\w*)= ?(?P<value>\d?) @(?P<timestamp>.+)", lines)
    assert bad_lines(result, "\n".join(map(str, lines)).encode()) == [(1, 0), (2, 0)]
    assert result.bad[0].reason == "the pattern does not match: a:3 @6"
    assert result.bad[1].reason.startswith("not a time: ")


@pytest.mark.parametrize(
    ("pattern", "line", "key"),
    [
        (r"(?P<key>.*)=", "a\x85b\u2028c\u2029d=1", "a\x85b\u2028c\u2029d"),
        (r"(?P<key>\w+)", "müller", "müller"),
        (r"(?P<key>\w+)$", "märz", "märz"),
        (r"x(?P<key>\s)x", "x\x1cx", "\x1c"),
        (r"x(?P<key>\s)x", "x\u00a0x", "\u00a0"),
        (r"(?P<key>\d+)", "a٣b", "٣"),
        (r"(?P<key>[^[]+)\[", "ab[c", "ab"),
        (r"(?P<key>a{,2})", "aaa", "aa"),
        (r"(?P<key>[a&&b]+)", "a&b", "a&b"),
        (r"(?i)(?P<key>straße)", "STRASSE straße", "straße"),
        (r"(?P<key>a|ab)(c|bcd)(d*)", "abcd", "a"),
        (r"(?P<q>['\"])(?P<key>.*?)(?P=q)", "say 'it' now", "it"),
        (r"(?<=id=)(?P<key>\d+)", "xid=17", "17"),
        (r"\b(?P<key>b\w*)\b", "a bc d", "bc"),
        (r"(?P<key>(?:a|b){2,3}?)", "abab", "ab"),
        (r"^(?P<key>\S+) ", b"caf\xe9 au lait", b"caf\xe9"),
    ],
)
@pytest.mark.filterwarnings("ignore:Possible set")
def test_a_pattern_has_pythons_syntax(pattern: str, line: str | bytes, key: str | bytes) -> None:
    result = parsed(pattern, [line, "plain ascii id=5 ab[c 'q' = xax aa"])
    data = line.encode() if isinstance(line, str) else line
    expected = (key.encode() if isinstance(key, str) else key, data)
    assert [(row["key"], row["value"]) for row in result.records.slice(0, 1).to_pylist()] == [expected]


ATOMS = st.sampled_from(
    [*"ab1_ -", ".", r"\w", r"\d", r"\s", r"\W", r"\S", "[a-c]", "[^a-b1]", r"[\w-]", r"\b", "^", "$", r"\."]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "*?", "+?", "??"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
    ),
    max_leaves=8,
)


@given(
    st.lists(PATTERNS, min_size=1, max_size=3),
    st.lists(st.text("ab1_ -.\t\x0b\x1c\ré", max_size=8), min_size=1, max_size=6),
)
@example(["a*?", "(?:a|ab)", "b*"], ["aab", "xab"])
def test_patterns_match_like_pythons_search(fragments: list[str], lines: list[str]) -> None:
    names = ("key", "value", "timestamp")
    pattern = "".join(
        f"(?P<{name}>{fragment})" for name, fragment in zip(names[:2], fragments, strict=False)
    ) + "".join(fragments[2:])
    matches = [re.search(pattern, line.removesuffix("\r")) for line in lines]
    rows = parsed(pattern, list(lines)).records.to_pylist()
    expected = [
        (match["key"] or None, match["value"] if len(fragments) > 1 else match.string) for match in matches if match
    ]
    assert [(row["key"] and row["key"].decode(), row["value"].decode()) for row in rows] == expected


def test_usual_patterns_are_left_to_the_fast_reader() -> None:
    access = r'^(?P<key>\S+) \S+ \S+ \[(?P<timestamp>[^\]]+)\] "(?P<value>[^"]*)" (\d{3}) (?:\d+|-)$'
    assert re2_pattern(access)
    for unsure in (
        r"(?P<key>a*)*",
        r"(?P<key>(?=a)b)",
        r"(?i)(?P<key>a)",
        r"(?P<key>é)",
        r"((?P<key>a)|b)+",
        r"\B(?P<key>a)",
    ):
        assert re2_pattern(unsure) is None
