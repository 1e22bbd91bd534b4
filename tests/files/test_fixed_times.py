"""Times in columns equal the results of `strptime` for texts of one length."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from searches import examples

from distlog.core.files.record_times import FixedTimes, TimeReader

#: For each directive a text that it accepts, and one that it refuses or another directive would accept.
PARTS = {
    "%Y": (["1971", "2023", "2024"], ["1969", "0000", " 202"]),
    "%m": (["01", "02", "12"], ["00", "13", " 1", "1:"]),
    "%b": (["Jan", "feb", "DEC"], ["Fab", "J\x01n"]),
    "%d": (["01", "28"], ["29", "30", "31", "32", "00", " 9"]),
    "%H": (["00", "23"], ["24", "9:", "/0"]),
    "%M": (["00", "59"], ["60", "5x"]),
    "%S": (["00", "59"], ["60", "61"]),
    "%f": (["000", "999", "070"], ["12x", "-12"]),
    "%z": (["+0000", "-0130", "+2359"], ["+2400", "+0160", "+01:3", "*0100"]),
}


@st.composite
def texts_of_a_format(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A format with a year, and texts with some wrong parts."""
    month = draw(st.sampled_from(["%m", "%b"]))
    names = ["%Y", *draw(st.sets(st.sampled_from([month, "%d", "%H", "%M", "%S", "%f", "%z"])))]
    marks = draw(st.lists(st.sampled_from(["", "-", " ", "T", "1"]), min_size=len(names), max_size=len(names)))
    parts = [part for pair in zip(draw(st.permutations(names)), marks, strict=True) for part in pair]
    texts = []
    for _ in range(draw(st.integers(1, 2))):
        fragments = [draw(st.sampled_from(PARTS[part][0])) if part in PARTS else part for part in parts]
        position = draw(st.integers(0, 2 * len(parts)))
        if position < len(parts):
            wrong = PARTS[parts[position]][1] if parts[position] in PARTS else ["x" * len(parts[position])]
            fragments[position] = draw(st.sampled_from(wrong))
        texts.append("".join(fragments))
    return "".join(parts), texts


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, part in PARTS.items() for wrong in part[1]])
def test_a_wrong_part_has_the_result_of_strptime(name: str, wrong: str) -> None:
    parts = ["%Y", "-", "%b" if name == "%b" else "%m", "-", "%d", " ", "%H", ":", "%M", ":", "%S", ".", "%f", "%z"]
    fragments = [wrong if part == name else PARTS[part][0][-1] if part in PARTS else part for part in parts]
    check_columns_as_texts("".join(parts), ["".join(fragments)])


@examples(200)
@given(texts_of_a_format())
def test_texts_in_columns_have_the_times_of_strptime(given_texts: tuple[str, list[str]]) -> None:
    check_columns_as_texts(*given_texts)


def check_columns_as_texts(form: str, texts: list[str]) -> None:
    """Check that texts have the same times and faults in columns and alone."""
    times = TimeReader(time_format=form)
    column = times.of_column(pa.array(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FixedTimes, "of", lambda form: None)
        assert times.of_column(pa.array(texts)) == column


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%Y-%m-%d %H:%M:%S.%f", "2024-02-29 23:59:59.123"),
        ("%d/%b/%Y:%H:%M:%S %z", "29/Feb/2024:23:59:59 -0130"),
        ("%Y%m%d", "20240229"),
    ],
)
def test_usual_formats_are_read_in_columns(form: str, text: str) -> None:
    fixed = FixedTimes.of(form)
    assert fixed is not None
    expected = TimeReader(time_format=form).of_value(text)
    assert fixed.read(pa.array([b"", text.encode()], pa.binary())[1:]) == pa.array([expected])
