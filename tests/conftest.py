"""Fixtures for every suite that needs real processes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import NodeProcess, Worker, ledger_check


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Start daemons; each ends with the test, without a traceback in its log."""
    nodes: list[NodeProcess] = []

    def make(*flags: str, start: bool = True, **kwargs) -> NodeProcess:
        directory = tmp_path / f"node{len(nodes)}"
        directory.mkdir()
        node = NodeProcess(directory, *flags, **kwargs)
        nodes.append(node)
        return node.start() if start else node

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., NodeProcess]) -> Iterator[NodeProcess]:
    """A daemon with a pool of 64 MiB and fault injection; its ledger must be clean at the end."""
    node = make_node("--faults")
    yield node
    if node.process is not None:
        ledger_check(node.socket)


@pytest.fixture
def make_worker() -> Iterator[Callable[..., Worker]]:
    """Start client processes; they end with the test."""
    workers: list[Worker] = []

    def make(node: NodeProcess, **kwargs) -> Worker:
        worker = Worker(node.socket, **kwargs)
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.end()
