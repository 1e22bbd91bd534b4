"""Computes the memory that reading a Parquet file takes, from its footer and the headers of its pages.

A footer may give wrong sizes of the pages, so the pages' own headers count. A page is a header, followed by as many
bytes as the header says. The field numbers are those of parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterator

from distlog.core.commits.checkpoints.thrift import INT32, INT64, Fields, Thrift, integer, struct, structs

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
# FileMetaData, RowGroup, ColumnChunk
_ROW_GROUPS, _COLUMNS, _GROUP_ROWS, _COLUMN = 4, 1, 3, 3
# ColumnMetaData
_TYPE, _COMPRESSED_BYTES, _DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 1, 7, 9, 11
# PageHeader, and what both kinds of data pages begin with
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE, _DATA_PAGE, _DATA_PAGE_V2, _NUM_VALUES = 2, 3, 5, 8, 1

#: BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY: those of which a value takes no more than the eight bytes of an
#: integer, or of an index in a dictionary of strings.
_KINDS = (0, 1, 2, 4, 5, 6)
# With the levels of a value: its depth in lists, and whether it is null.
_VALUE_BYTES = 12


def needed(data: memoryview) -> int:
    """The most bytes of memory that reading the Parquet file `data` takes, with strings as dictionaries.

    Raises ValueError or IndexError when `data` is not a Parquet file.
    """
    return sum(_column_bytes(data, column) for column in _columns(_footer(data)))


def _footer(data: memoryview) -> Fields:
    size = int.from_bytes(data[-_TAIL_BYTES:-4], "little")
    if data[-4:] != _MAGIC or size > len(data) - _TAIL_BYTES:
        raise ValueError("no footer of a Parquet file")
    return Thrift(data[len(data) - _TAIL_BYTES - size : -_TAIL_BYTES]).read_struct()


def _columns(footer: Fields) -> Iterator[Fields]:
    for group in structs(footer, _ROW_GROUPS):
        # a group without rows has no pages, whatever it says
        if integer(group, _GROUP_ROWS, INT64):
            for chunk in structs(group, _COLUMNS):
                column = struct(chunk, _COLUMN)
                if column is None:
                    raise ValueError("a column of it is not described")
                yield column


def _column_bytes(data: memoryview, column: Fields) -> int:
    if integer(column, _TYPE, INT32) not in _KINDS:
        raise ValueError("a column of it is of a kind that no checkpoint has")
    start = integer(column, _DATA_PAGE_OFFSET, INT64)
    dictionary = integer(column, _DICTIONARY_PAGE_OFFSET, INT64, default=0)
    if 0 < dictionary < start:
        start = dictionary
    return _page_bytes(data[start : start + integer(column, _COMPRESSED_BYTES, INT64)])


def _page_bytes(pages: memoryview) -> int:
    total = 0
    while pages:
        thrift = Thrift(pages)
        header = thrift.read_struct()
        size = thrift.position + integer(header, _COMPRESSED_SIZE, INT32)
        if size > len(pages):
            raise ValueError("a page of it does not lie in its column")
        held = [found for kind in (_DATA_PAGE, _DATA_PAGE_V2) if (found := struct(header, kind))]
        total += _VALUE_BYTES * sum(integer(page, _NUM_VALUES, INT32) for page in held)
        total += integer(header, _UNCOMPRESSED_SIZE, INT32)
        pages = pages[size:]
    return total
