"""Java's properties files, as `java.util.Properties.load` reads them."""

from __future__ import annotations

import pytest

from distlog.core.log_manager.broker_config import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a comment\n! another\n\n   \t\n", {}),
        ("a=1\nb = 2 \nc:3\nd 4\n  e\t=\t5", {"a": "1", "b": "2 ", "c": "3", "d": "4", "e": "5"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("listeners=PLAINTEXT://:9092", {"listeners": "PLAINTEXT://:9092"}),
        ("dirs=/a,\\\n     /b", {"dirs": "/a,/b"}),
        ("path=C\\:\\\\logs\\\\\nnext=1", {"path": "C:\\logs\\", "next": "1"}),
        ("a\\ b\\=c=\\u00e9\\t!", {"a b=c": "é\t!"}),
        ("a=1\na=2", {"a": "2"}),
        ("alone", {"alone": ""}),
        ("a=b\\", {"a": "b"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected
