"""The main job once through real processes: one puts, others read the same memory."""

from tests.support import NodeProcess


def test_an_object_put_by_one_process_is_read_by_another_without_a_copy(node: NodeProcess, make_worker) -> None:
    writer, reader = make_worker(node), make_worker(node)
    writer.run("import numpy as np; c.put('weights', np.arange(1 << 18))")
    reader.run("import numpy as np; x = c.get('weights')")
    assert reader.run("bool((x == np.arange(1 << 18)).all())")
    assert reader.run("x.flags.writeable") is False
    with node.client() as client:
        assert client.stats()["handles"] == 1
        assert [holder.pid for holder in client.holders("weights")] == [reader.pid]
        assert client.remove("weights")
        assert client.stats()["stash"]["objects"] == 1
    assert reader.run("bool((x == np.arange(1 << 18)).all())")
    reader.run("del x")


def test_a_killed_writer_leaves_nothing_behind(node: NodeProcess, make_worker) -> None:
    worker = make_worker(node)
    worker.run("b = c.create('half', 1 << 20); v = c.put('whole', b'x' * 5000); h = c.get_buffer('whole')")
    worker.kill()
    with node.client() as client:
        # The key of the dead writer is free: this put becomes its writer.
        client.put("half", b"mine", timeout=30)
        assert bytes(client.get("half")) == b"mine"
