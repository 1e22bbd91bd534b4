"""The `distlog` command as a process: Ctrl-C at any moment, and standard streams that are closed or full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine

import distlog
from distlog.cli import main

pytestmark = pytest.mark.long

LIBRARY = Path(distlog.__file__).parent.parent
DISTLOG = f"{sys.executable} -m distlog_command"

CTRL_C = """
import signal, sys
class CtrlC:
    def find_spec(self, name, *_):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
from distlog_command import main
main()
"""


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], cwd=LIBRARY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["distlog", "pyarrow.compute", "distlog.cli.service_commands"])
def test_ctrl_c_during_the_imports_is_quiet(module: str) -> None:
    program = [sys.executable, "-c", CTRL_C.format(module=module), "serve"]
    run = subprocess.run(program, cwd=LIBRARY, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_ctrl_c_after_the_imports_raises_as_usual() -> None:
    usual = "signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    program = f"import signal, distlog.cli.app as all; all.app = lambda **_: print({usual}); import distlog_command"
    program = [sys.executable, "-c", f"{program}; distlog_command.main()"]
    assert subprocess.run(program, cwd=LIBRARY, capture_output=True, text=True, check=False).stdout == "True\n"


def test_garbage_collection_starts_after_the_imports() -> None:
    script = "print(gc.isenabled(), gc.get_freeze_count() > 50_000, gc.get_stats()[2]['collections'])"
    program = f"import gc, distlog_command, distlog.cli.app as all; all.app = lambda **_: {script}"
    program = f"import gc; gc.disable(); {program}; gc.enable(); distlog_command.main()"
    program = [sys.executable, "-c", program, "read"]
    run = subprocess.run(program, cwd=LIBRARY, capture_output=True, text=True, check=False)
    assert run.stdout == "True True 0\n", run.stderr


#: Prints the modules that a gateway has loaded at its first response.
SERVE = """
import gc, os, sys
import distlog.gateway.gateway_server as server
from distlog_command import main

start = server.GatewayServer.start

def noted(*arguments):
    start(*arguments)
    kio = sum(name.startswith("kio.") for name in sys.modules)
    print(kio < 30, "pandas" in sys.modules, gc.isenabled(), gc.get_freeze_count() > 50_000, flush=True)
    os._exit(0)

server.GatewayServer.start = noted
sys.argv = ["distlog", "serve", "--root", sys.argv[1], "--listen", "127.0.0.1:0"]
main()
"""


def test_a_gateway_starts_without_message_schemas_and_pandas(tmp_path: Path) -> None:
    program = [sys.executable, "-c", SERVE, str(tmp_path)]
    run = subprocess.run(program, cwd=LIBRARY, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines()[1:] == ["True False True True"], run.stderr


@pytest.mark.parametrize("streams", [">&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_do_not_fail(filled: CommandLine, streams: str) -> None:
    run = shell(f"{DISTLOG} verify {filled.url} {streams}")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["describe", "read", "append", "segments", "retention", "describe --json"])
def test_commands_run_alike_without_standard_streams(
    filled: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    name, *options = command.split()
    monkeypatch.setattr(sys, "argv", ["distlog", name, filled.url, *options])
    for stream in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    look = f"open(r'{tmp_path}/number', 'w').write(str(os.dup(0)))"
    program = f"import os, distlog.console.streams as streams; streams.open_closed_streams(); {look}"
    shell(f'{sys.executable} -c "{program}" <&- >&- 2>&-')
    assert (tmp_path / "number").read_text() == "4", "after the three streams and the file itself"


@pytest.mark.parametrize("command", ["read {}", "read {} --json", "dump {}/*/*.log --print-data-log"])
@pytest.mark.parametrize("unbuffered", ["", "PYTHONUNBUFFERED=1"])
def test_output_to_a_full_disk_fails_with_and_without_a_buffer(
    filled: CommandLine, tmp_path: Path, command: str, unbuffered: str
) -> None:
    filled.ok("append", stdin=b"x" * 2000)
    # a full disk truncates Python's own bytecode cache, so it is off
    script = f"unset PYTHONUNBUFFERED; ulimit -f 1; PYTHONDONTWRITEBYTECODE=1 {unbuffered}"
    run = shell(f"{script} {DISTLOG} {command.format(filled.url)} >{tmp_path}/cut")
    assert (run.returncode, (tmp_path / "cut").stat().st_size) == (1, 1024)
    assert run.stderr == "distlog: [Errno 27] File too large\n"


@pytest.mark.parametrize("setting", ["PYTHONIOENCODING=ascii", "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0"])
def test_a_character_that_standard_output_lacks_is_escaped(filled: CommandLine, setting: str) -> None:
    filled.ok("append", stdin="é".encode())
    run = shell(f"{setting} {DISTLOG} read {filled.url} --columns value --offset -1")
    assert (run.returncode, run.stdout, run.stderr) == (0, "value\n\\xe9\n", "")
