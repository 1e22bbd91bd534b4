"""Serves metrics in Prometheus' text format over HTTP, at any path of a port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from distlog.core.errors import StorageError
from distlog.core.log_manager.log_manager import Metric

if TYPE_CHECKING:
    from prometheus_client import Metric as PrometheusMetric


@contextmanager
def metrics_server(port: int, metrics: Callable[[], list[Metric]], host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the result of `metrics` at each request, at the address `host`, which may be all; yields the port.

    Port 0 takes a free one. Raises ModuleNotFoundError without prometheus-client, StorageError if the port is taken.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as error:
        text = "metrics need prometheus-client: pip install 'distlog[metrics]'"
        raise ModuleNotFoundError(text, name=error.name) from None
    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise StorageError(f"cannot serve metrics: {error.strerror or error}", port=port) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """The collector that prometheus-client asks at each request."""

    def __init__(self, metrics: Callable[[], list[Metric]]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[PrometheusMetric]:
        """Nothing: the metrics come with the first runs of the tasks."""
        return ()

    def collect(self) -> Iterator[PrometheusMetric]:
        """The metrics as they are now."""
        from prometheus_client import Metric as PrometheusMetric

        for metric in self._metrics():
            family = PrometheusMetric(metric.name, metric.meaning, metric.kind)
            suffix = "_total" if metric.kind == "counter" else ""
            for labels, value in metric.values:
                family.add_sample(metric.name + suffix, dict(labels), value)
            yield family
