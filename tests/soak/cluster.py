"""The streams of the campaign `streams` on a standalone Spark cluster, whose executors and workers are killed too.

Each worker has its own host name, so Spark runs a second attempt of a slow task on the other one. The settings ask
for many second attempts. Executors come and go by dynamic allocation.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyspark

from soak import processes
from soak.streams import PATIENCE_S, Pipeline, killed
from soak.tally import Tally, demand

HOSTS = ("127.0.0.1", "127.0.0.2")
CONF = {
    "spark.driver.host": HOSTS[0],
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.speculation": "true",
    "spark.speculation.interval": "20ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "15s",
    # the event log counts the attempts
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    # else kills would exhaust the retries
    "spark.task.maxFailures": "20",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
}
_STARTED = re.compile(r"Starting Spark master at (spark://[0-9.:]+)")


class Cluster:
    """A master and one worker on each of HOSTS, which log to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "cluster.log"
        self._master = self._begin("master.Master", "--host", HOSTS[0], "--port", "0", "--webui-port", "0")
        self.url = self._url()
        self._workers = {host: self._begin_worker(host) for host in HOSTS}

    def _begin(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        environment["SPARK_DAEMON_MEMORY"] = "256m"
        environment["SPARK_DAEMON_JAVA_OPTS"] = os.environ.get("SPARK_SUBMIT_OPTS", "")
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(command), f"org.apache.spark.deploy.{name}", *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _begin_worker(self, host: str) -> subprocess.Popen[bytes]:
        limits = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(self._folder / "work"))
        return self._begin("worker.Worker", "--host", host, *limits, self.url)

    def _url(self) -> str:
        end = time.monotonic() + PATIENCE_S
        while not (match := _STARTED.search(self._log.read_text(encoding="utf-8", errors="replace"))):
            demand(self._master.poll() is None and time.monotonic() < end, f"no master begins: see {self._log}")
            time.sleep(0.2)
        return match[1]

    def executors(self) -> list[int]:
        return [pid for worker in self._workers.values() for pid in processes.of_kind(worker.pid, "executor")]

    def worker(self, host: str) -> list[int]:
        """Return the processes of a worker and of all its executors."""
        return [self._workers[host].pid, *processes.descendants(self._workers[host].pid)]

    def revive(self) -> None:
        for host, worker in self._workers.items():
            if worker.poll() is not None:
                self._workers[host] = self._begin_worker(host)

    def close(self) -> None:
        for process in (*self._workers.values(), self._master):
            processes.kill_all(process.pid)
            process.wait()


class ClusterPipeline(Pipeline):
    victims = (
        *("Spark executor", "paused executor", "source", "Spark worker", "paused executor"),
        *("driver", "Spark executor", "sink", "paused executor", "machine"),
    )

    def __init__(self, folder: Path, seed: int, cluster: Cluster) -> None:
        self._cluster = cluster
        self._events = folder / "events"
        self._events.mkdir()
        paths = {f"spark.executorEnv.{name}": os.environ[name] for name in ("NUMBA_CACHE_DIR",) if name in os.environ}
        paths["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        paths["spark.executor.extraJavaOptions"] = os.environ.get("SPARK_SUBMIT_OPTS", "")
        paths["spark.eventLog.dir"] = self._events.as_uri()
        super().__init__(folder, str(folder), {}, seed, conf={"spark.master": cluster.url, **CONF, **paths})

    def second_attempts(self) -> int:
        """Return the number of attempts that Spark started while another one of the same task ran."""
        logs = (path for path in self._events.rglob("*") if path.is_file())
        return sum(path.read_bytes().count(b'"Speculative":true') for path in logs)

    def _pids_of(self, victim: str) -> list[int]:
        if victim == "Spark worker":
            return self._cluster.worker(self._chance.choice(HOSTS))
        if victim in ("Spark executor", "paused executor"):
            executors = self._cluster.executors()
            return executors and [self._chance.choice(executors)]
        if victim == "machine":
            return [*super()._pids_of(victim), *self._cluster.executors()]
        return super()._pids_of(victim)

    def _strike(self, victim: str, pids: Sequence[int]) -> bool:
        if victim != "paused executor":
            return super()._strike(victim, pids)
        # its task is slow, so a second attempt starts, and the first one continues during that
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self._chance.uniform(0.5, 4))
                os.kill(pid, signal.SIGCONT)
                self.tally["pauses of an executor"] += 1
        return False

    def _revive(self) -> None:
        self._cluster.revive()
        super()._revive()


def run(folder: Path, seed: int, kills: int) -> Tally:
    cluster = Cluster(folder)
    try:
        pipeline = ClusterPipeline(folder, seed, cluster)
        tally = killed(pipeline, kills)
        tally["second attempts started"] += pipeline.second_attempts()
        return tally
    finally:
        cluster.close()
