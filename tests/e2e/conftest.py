"""One daemon for all the tests of a file, where each alone is too short to start one for."""

from collections.abc import Iterator

import pytest

from tests.support import NodeProcess, ledger_check


@pytest.fixture(scope="module")
def module_node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Not for tests themselves: what `shared_node` lends out. A module may set its POOL_SIZE."""
    pool_size = getattr(request.module, "POOL_SIZE", "64MiB")
    node = NodeProcess(tmp_path_factory.mktemp("node"), "--faults", pool_size=pool_size).start()
    yield node
    node.close()


@pytest.fixture
def shared_node(request: pytest.FixtureRequest, module_node: NodeProcess) -> Iterator[NodeProcess]:
    """As `node`, but one daemon serves the whole file. Its ledger is clean after each test."""
    node, failed_before = module_node, request.session.testsfailed
    yield node
    if request.session.testsfailed > failed_before:
        # What the test held is held by its traceback. The next one shall not fail for its sake.
        node.kill()
        node.start()
        return
    try:
        with node.client() as client:
            for point in client.list_faults_local_master():
                client.inject_fault_local_master(point["name"], "reset")
        ledger_check(node.socket)
    except BaseException:
        node.kill()
        node.start()
        raise
