"""Directories of both kinds, on one server a module."""

import pytest

from tests.support.directories import MemoryKit, ValkeyKit
from tests.support.valkey import ValkeyServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture(params=["memory", "valkey"])
async def kit(request):
    kit = MemoryKit() if request.param == "memory" else ValkeyKit(request.getfixturevalue("server"))
    yield kit
    await kit.close()


@pytest.fixture
def make(kit):
    return kit.open


@pytest.fixture
def directory(kit):
    return kit.open()
