"""`%%sql` cells of JupySQL read topics through a connection of `sql_connection`."""

from __future__ import annotations

from pathlib import Path

import pytest

import distlog

pytest.importorskip("sql.magic", reason="JupySQL is not installed")


def test_a_cell_of_sql_reads_the_topics_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    distlog.create(f"{tmp_path}/logs/clicks").append([{"value": '{"user": "ann"}'}, {"value": '{"user": "bob"}'}])
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.user_ns.update({"distlog": distlog, "folder": f"{tmp_path}/logs"})
    shell.run_line_magic("load_ext", "sql")
    shell.ex('connection = distlog.sql_connection(folder, values={"clicks": "json"})')
    shell.run_line_magic("sql", "connection --alias logs")
    result = shell.run_cell_magic(
        "sql", "", "SELECT value.user, count(*) AS records FROM clicks GROUP BY ALL ORDER BY ALL"
    )
    assert [tuple(row) for row in result] == [("ann", 1), ("bob", 1)]
