"""Inputs become files in order: paths, folders, patterns, URLs; the content of a file decides its kind."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import re
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import lz4.frame
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from file_reads import reader, rows, values, written

from distlog.core.errors import InvalidConfigError, InvalidRecordError, StorageError
from distlog.core.files.file_reader import FileReader, pack
from distlog.core.files.input_files import Kind, ReadOptions
from distlog.core.storage.storage import InputStorage, Storage


def names(*inputs: object) -> list[str]:
    return [Path(file.name).name for file in reader().files([str(path) for path in inputs])]


def test_files_come_in_the_order_of_the_inputs_and_of_a_folder_by_path(tmp_path: Path) -> None:
    b, a, c = written(tmp_path, b="b\n", a="a\n" * 9, c="c")
    written(tmp_path / "in", z="z", y="y", _x="x", **{"__hidden": "h"})
    written(tmp_path / "in" / "day=2", d="d")
    written(tmp_path / "in" / "_temporary", e="e")
    assert names(b, a, b) == ["b", "a", "b"]
    assert names(tmp_path / "in", c) == ["d", "y", "z", "c"]


def test_hidden_files_are_read_when_they_are_given_by_name(tmp_path: Path) -> None:
    paths = written(tmp_path, _export__jsonl='{"a": 1}', __export__jsonl='{"a": 2}')
    assert values(paths) == [b'{"a": 1}', b'{"a": 2}']


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("*.log", ["a1.log", "b1.log"]),
        ("[a-a]?.log", ["a1.log"]),
        ("[!a]*.log", ["b1.log"]),
        ("{b,a}1.log", ["a1.log", "b1.log"]),
        ("*/c*.log", ["c1.log"]),
        ("**/*.log", ["a1.log", "b1.log", "c1.log", "d1.log"]),
        ("s*", ["c1.log", "d1.log"]),
        ("_*.log", ["_h.log"]),
    ],
)
def test_a_pattern_selects_the_matching_files_by_path(tmp_path: Path, pattern: str, matches: list[str]) -> None:
    written(tmp_path, b1__log="b", a1__log="a", _h__log="h", other="o")
    written(tmp_path / "sub" / "deep", d1__log="d")
    written(tmp_path / "sub", c1__log="c")
    assert names(tmp_path / pattern) == matches


def test_existing_files_are_not_patterns(tmp_path: Path) -> None:
    paths = written(tmp_path, **{"a*__log": "1", "a[1]__log": "2", "a1__log": "3", "{x}": "4"})
    assert [values([path]) for path in paths] == [[b"1"], [b"2"], [b"3"], [b"4"]]


@pytest.mark.parametrize("name", ["missing.log", "none*.log", "empty"])
def test_an_input_without_files_fails(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=r"does not exist|no\sfiles") as raised:
        reader().files([str(tmp_path / name)])
    assert name in str(raised.value)


def test_objects_are_listed_and_read_as_local_files_are(storage_url: tuple[str, dict[str, Any]]) -> None:
    store = Storage(*storage_url)
    for name in ("b.log", "a.log", "sub/c.log.gz", "_x.log"):
        text = f"{name}\n".encode()
        with store.open_write(f"in/{name}") as file:
            file.write(gzip.compress(text) if name.endswith("gz") else text * 3)
    url = f"{storage_url[0]}/in".replace("s3://", "s3a://")
    source = FileReader(ReadOptions(), InputStorage(storage_url[1]))
    for pattern, names in (
        ("/*.log", ["a.log", "b.log"]),
        ("", ["a.log", "b.log", "c.log.gz"]),
        ("/_x.log", ["_x.log"]),
    ):
        assert [Path(file.name).name for file in source.files([url + pattern])] == names
    splits = pickle.loads(pickle.dumps(source.splits(source.files([url]), 5)))
    parts = [part for run in pack(splits, 3) for part in pickle.loads(pickle.dumps(source)).read(run)]
    lines = [value for part in parts for value in part.records["value"].to_pylist()]
    assert lines == [b"a.log"] * 3 + [b"b.log"] * 3 + [b"sub/c.log.gz"]
    with pytest.raises(StorageError, match="does not exist"):
        source.files([f"{url}/missing"])


@pytest.mark.parametrize("url", ["dbfs:/mnt/raw/a.log", "ftp://host/a.log", "wasbs://c@a/x"])
def test_a_url_without_a_reader_fails_with_the_code_for_spark(url: str) -> None:
    with pytest.raises(StorageError) as raised:
        reader().files([url])
    assert f'distlog.spark.append(spark.read.text("{url}"), url)' in str(raised.value)
    assert "import distlog.spark" in str(raised.value)


def test_hdfs_without_its_client_fails_with_the_missing_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", str(tmp_path))
    with pytest.raises(StorageError, match="no client for hdfs:// is installed: it needs Java and Hadoop's libhdfs"):
        reader().files(["hdfs://namenode/raw/a.log"])


def test_an_address_of_the_web_with_a_user_is_refused_without_its_secret() -> None:
    with pytest.raises(StorageError) as raised:
        reader().files(["https://me:secret@host/a.log"])
    assert "secret" not in str(raised.value)


COMPRESS = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "lz4": lz4.frame.compress,
}


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("name", ["A.LOG.GZ", "x.gz.1", "x.tgz", "plain"])
def test_compressed_files_are_recognized_by_their_content(tmp_path: Path, codec: str, name: str) -> None:
    (tmp_path / name).write_bytes(COMPRESS[codec](b"one\ntwo\n"))
    assert values([tmp_path / name]) == [b"one", b"two"]
    assert reader().files([str(tmp_path)])[0].kind == Kind("text", codec)


def test_several_gzip_members_are_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two"))
    assert values([tmp_path / "a.gz"]) == [b"one", b"two"]


@pytest.mark.parametrize("name", ["users.csv.gz", "USERS.CSV", "users.csv.gz.2", "users.csv.1.gz"])
def test_the_format_in_a_name_ignores_case_and_compression(tmp_path: Path, name: str) -> None:
    text = b"id,name\n7,ann\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if "gz" in name else text)
    assert rows([tmp_path / name], key="id") == [(b"7", b'{"id": "7", "name": "ann"}', None)]


def archive(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("a.log", "one\n")
    else:
        with tarfile.open(fileobj=out, mode=kind) as tar:
            tar.addfile(tarfile.TarInfo("a.log"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lzma.compress(b"one\n"), "xz files are not supported"),
        (archive("zip"), "zip files are not supported"),
        (archive("w:"), "tar files are not supported"),
        (archive("w:gz"), "tar files are not supported"),
        (gzip.compress(gzip.compress(b"a\n")), "compressed twice"),
        (b"\xff\x06\x00\x00sNaPpY...", "snappy files are not supported"),
        (b"Obj\x01....", "Avro files are not supported"),
        (b"ORC\x08....", "ORC files are not supported"),
        (b"ARROW1\0\0", "Arrow IPC files are not supported"),
        ("ein wörd\n".encode("utf-16"), "the file is UTF-16"),
        ("ein wörd\n".encode("utf-32"), "the file is UTF-32"),
        ("plain words\n".encode("utf-16-le"), "the file is UTF-16LE"),
        ("plain words\n".encode("utf-16-be"), "the file is UTF-16BE"),
        ("plain words\n".encode("utf-32-le"), "the file is UTF-32LE"),
    ],
    # an archive contains its creation time, and each worker of a run must have the same names
    ids=[
        *("xz", "zip", "tar", "tar.gz", "gzip twice", "snappy", "avro", "orc", "arrow"),
        *("utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le"),
    ],
)
def test_an_unsupported_format_is_refused_by_name(tmp_path: Path, content: bytes, reason: str) -> None:
    (path,) = written(tmp_path, a__log=content)
    with pytest.raises(InvalidRecordError, match=reason) as raised:
        values([path])
    assert raised.value.details["file"] == str(path)


@pytest.mark.parametrize("name", ["a.snappy", "a.log.br", "a.tsv", "a.deflate"])
def test_an_unsupported_suffix_is_refused_without_a_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("one\n")
    with pytest.raises(InvalidRecordError, match="is not supported"):
        values([tmp_path])
    assert values([tmp_path], format="text") == [b"one"]


def test_parquet_is_never_text(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    written(folder, a__log="one\n")
    pq.write_table(pa.table({"n": [1]}), folder / "part-0")
    assert values([folder]) == [b"one", b'{"n": 1}']
    with pytest.raises(InvalidRecordError, match="the file is Parquet, not text"):
        values([folder], format="text")
    (tmp_path / "b.parquet").write_text("no\n")
    with pytest.raises(InvalidRecordError, match="not a Parquet file"):
        values([tmp_path / "b.parquet"])
    (tmp_path / "c.log").write_bytes(gzip.compress((folder / "part-0").read_bytes()))
    with pytest.raises(InvalidRecordError, match="compressed Parquet"):
        values([tmp_path / "c.log"])


@pytest.mark.parametrize("form", ["text", "jsonl", "csv"])
def test_a_byte_order_mark_is_not_part_of_a_value(tmp_path: Path, form: str) -> None:
    texts = {"text": "v", "jsonl": '{"k": "v"}', "csv": "k\nv"}
    for content in (b"\xef\xbb\xbf" + texts[form].encode(), gzip.compress(b"\xef\xbb\xbf" + texts[form].encode())):
        (path,) = written(tmp_path, a=content)
        fields = {} if form == "text" else {"value": "k"}
        assert values([path], format=form, **fields) == [b"v"]


def test_a_lone_carriage_return_ends_no_line(tmp_path: Path) -> None:
    (path,) = written(tmp_path, a__log=b"one\rstill one\r\ntwo\r")
    assert values([path]) == [b"one\rstill one", b"two"]


@pytest.mark.parametrize("change", ["grown", "cut", "deleted"])
@pytest.mark.parametrize("name", ["a.log", "a.log.gz", "large.log"])
def test_a_file_is_read_as_it_was_listed(tmp_path: Path, change: str, name: str) -> None:
    text = b"one\ntwo\n" * (100_000 if name == "large.log" else 1)
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    source = reader()
    reading = source.read(source.splits(source.files([str(path)])))
    if change == "grown":
        with path.open("ab") as file:
            file.write(gzip.compress(b"more\n") if name.endswith("gz") else b"more\n")
        lines = b"".join(value + b"\n" for part in reading for value in part.records["value"].to_pylist())
        assert lines == text
        return
    if change == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        path.unlink()
    reason = "became shorter after it was listed" if change == "cut" else "deleted after it was listed"
    with pytest.raises(InvalidRecordError, match=reason) as raised:
        list(reading)
    assert raised.value.details["file"] == str(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pattern": "(?P<key>"},
        {"pattern": "(?P<other>x)"},
        {"pattern": "(?P<key>x)", "format": "csv"},
        {"key_separator": ""},
        {"key_separator": ":", "format": "jsonl"},
        {"format": "xml"},
        {"format": "text", "key": "k"},
        {"time_format": "%Q"},
        {"time_format": "%"},
        {"timestamp_unit": "days"},
    ],
)
def test_contradicting_options_are_refused_before_reading(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError):
        reader(**wrong)


class RangeHandler(BaseHTTPRequestHandler):
    """Serves a text, whole or in ranges, at any path with the right signature."""

    content = b"".join(b"line %d\n" % number for number in range(2000))

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        if not self.path.endswith("?signature=secret"):
            self.send_error(403)
            return
        start, end = 0, len(self.content)
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or ""):
            start, end = int(match[1]), min(int(match[2]) + 1, end)
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Accept-Ranges", "bytes")
        if match:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(self.content)}")
        self.end_headers()
        if with_body:
            self.wfile.write(self.content[start:end])

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_file_of_a_web_server_is_read_by_ranges_and_its_query_is_not_shown() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), RangeHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/raw/a.log"
            lines = values([f"{url}?signature=secret"], 5000, 3)
            (file,) = reader().files([f"{url}?signature=secret"])
            with pytest.raises(StorageError) as raised:
                reader().files([f"{url}?signature=wrong"])
        finally:
            server.shutdown()
            thread.join()
    assert b"\n".join([*lines, b""]) == RangeHandler.content
    assert "signature" not in str(raised.value) + repr(file)
