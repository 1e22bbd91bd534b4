"""Fixtures of the commands' tests."""

from __future__ import annotations

import pytest
from command_line import CommandLine

import distlog


@pytest.fixture
def topic(cli: CommandLine) -> distlog.Topic:
    return distlog.create(cli.url)
