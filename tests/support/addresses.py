"""Where topics of tests are."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple


class Address(NamedTuple):
    """The arguments of `Storage(*address)` and of `distlog.open(url, storage_options=options)`."""

    url: str
    options: dict[str, Any]


class S3Server(NamedTuple):
    endpoint: str
    key: str
    secret: str
    bucket: str

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint, "key": self.key, "secret": self.secret}

    def address(self) -> Address:
        """A fresh, empty folder."""
        return Address(f"s3://{self.bucket}/{uuid.uuid4().hex}", self.options)
