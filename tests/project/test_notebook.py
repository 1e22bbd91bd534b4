"""examples/notebook.ipynb is the output of its script, and runs in a real kernel with completion and progress."""

from __future__ import annotations

import ast
import base64
import os
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_python import forked_python

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
_FOLDERS = ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "XDG_CACHE_HOME")


def test_it_is_the_output_of_its_script() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "make_notebook.py"))
    assert NOTEBOOK.read_text(encoding="utf-8") == script["notebook"](), "run python tools/make_notebook.py"
    nbformat.validate(nbformat.read(NOTEBOOK, 4))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The notebook after its run; its kernel is still alive."""
    pytest.importorskip("duckdb")
    folder = tmp_path_factory.mktemp("notebook")
    folders = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ran = nbclient.NotebookClient(
        nbformat.read(NOTEBOOK, 4),
        timeout=600,
        startup_timeout=300,
        # a kill saves the two seconds of a clean end
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(folder)}},
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"PYTHONPATH": folders, **dict.fromkeys(_FOLDERS, str(folder)), **forked_python()}.items():
            patch.setenv(name, value)
        with ran.setup_kernel():
            for number, cell in enumerate(ran.nb.cells):
                ran.execute_cell(cell, number)
            yield ran


def shown(client: Any, source: str, kind: str) -> list[Any]:
    """Return the outputs of the cell with this code, in this form."""
    (cell,) = (cell for cell in client.nb.cells if cell.cell_type == "code" and source in cell.source)
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


def run(client: Any, source: str) -> list[Any]:
    client.nb.cells.append(nbformat.v4.new_code_cell(source))
    return list(client.execute_cell(client.nb.cells[-1], len(client.nb.cells) - 1).outputs)


def test_tables_are_tables(client: Any) -> None:
    for source, said in (
        ("topic.history(", "append"),
        ("topic.segments()", "log_bytes"),
        ("topic.config", "retention.ms"),
        ("topic.restore(", "restored"),
    ):
        (html,) = shown(client, source, "text/html")
        assert "<table" in html
        assert said in html


def test_pictures_are_shown_once(client: Any) -> None:
    for source in ("topic.plot()", "plot(exact=True)"):
        (picture,) = shown(client, source, "image/png")
        assert base64.b64decode(picture).startswith(b"\x89PNG")


def test_only_spark_writes_to_standard_error(client: Any) -> None:
    said = [
        output["text"]
        for cell in client.nb.cells
        if cell.cell_type == "code" and "distlog.spark" not in cell.source
        for output in cell.outputs
        if output["output_type"] == "stream"
    ]
    assert said == []


def test_spark_joins_what_duckdb_counts(client: Any) -> None:
    (table,) = shown(client, "distlog.spark", "text/html")
    assert [name for name in ("Bern", "Graz", "Lyon") if name in table] == ["Bern", "Graz", "Lyon"]
    (table,) = shown(client, "duckdb.sql", "text/html")
    assert table.count("<tr") == 5


def test_time_travel_sees_what_retention_deleted(client: Any) -> None:
    (counts,) = shown(client, "earlier = ", "text/plain")
    now, then = (int(part.split(": ")[1].rstrip("}")) for part in counts.split(","))
    assert now < then == int(shown(client, "topic.refresh()", "text/plain")[0])


def test_completion_offers_no_internals(client: Any) -> None:
    (output,) = run(client, 'get_ipython().kernel.do_complete("topic.", 6)["matches"]')
    matches = {match.rpartition(".")[2] for match in ast.literal_eval(output["data"]["text/plain"])}
    assert {"append", "plot", "scan"} <= matches
    assert not matches & {"handle", "live", "reader", "storage", "_check_writable"}


def test_a_long_read_shows_a_bar(client: Any) -> None:
    assert run(client, "table = scan.to_table(progress=False)") == []
    import_it = "from distlog.core import display; display.PATIENCE_S = 0"
    (bar,) = run(client, f"{import_it}; table = scan.to_table()")
    assert "reading" in bar["data"]["text/plain"]
