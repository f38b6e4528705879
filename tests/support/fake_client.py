"""A client whose node is a dict, for commands that are to be tested without a daemon."""

from mooncake_client import errors
from mooncake_client.wire import ObjectInfo


class FakeBuffer:
    """Room that becomes an object when it is published and nobody exports its view."""

    def __init__(self, client, key, nbytes, pins):
        self._client, self._key, self._pins = client, key, pins
        self._bytes = bytearray(nbytes)
        self.view = memoryview(self._bytes)
        self._done = False

    def publish(self):
        self.view.release()  # BufferError while it is exported
        self._client.store(self._key, bytes(self._bytes), self._pins)
        self._done = True

    def abort(self):
        self._client.aborted.append(self._key)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        if not self._done:
            self.abort()


class FakeHandle:
    def __init__(self, data):
        self.view = memoryview(data)
        self.released = False

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.view.release()
        self.released = True


class FakeClient:
    """One node's objects in a dict; records what it was asked that leaves no other trace."""

    def __init__(self):
        self.objects, self.pins, self.aborted, self.handles = {}, {}, [], []
        self.faults = {
            name: {
                "name": name,
                "description": "…",
                "action": "",
                "hits": 0,
                "fired": 0,
                "armed": False,
            }
            for name in ("A", "B")
        }
        self.injected = []
        self.failure = None
        self.figures = {}
        self.held = []
        self.connected_with = None

    def __enter__(self):
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_exc):
        pass

    def store(self, key, data, pins, *, replace=False):
        if key in self.objects and not replace:
            raise errors.ExistsError("already there", key=key)
        self.objects[key], self.pins[key] = data, pins

    def create(self, key, nbytes, **pins):
        return FakeBuffer(self, key, nbytes, pins)

    def put_from(self, key, data, **pins):
        self.store(key, bytes(data), pins)

    def upsert(self, key, data, **pins):
        self.store(key, bytes(data), pins, replace=True)

    def get_buffer(self, key):
        if key not in self.objects:
            raise errors.NotFoundError(f"no object {key!r}", key=key)
        self.handles.append(FakeHandle(self.objects[key]))
        return self.handles[-1]

    def list(self, prefix=""):
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield ObjectInfo(
                    key=key,
                    nbytes=len(self.objects[key]),
                    kind="raw",
                    generation="00000000000000a1",
                    state="complete",
                    refs=2,
                    age_s=1.0,
                    softpin=self.pins[key].get("softpin", False),
                    softpin_deadline_s=60.2 if self.pins[key].get("softpin_ttl") else None,
                    hardpin=self.pins[key].get("hardpin", False),
                    scope="cluster",
                )

    def remove(self, key, *, generation=None):
        if generation not in (None, "00000000000000a1"):
            return False
        return self.objects.pop(key, None) is not None

    def remove_many(self, keys):
        return [self.remove(key) for key in keys]

    def remove_prefix(self, prefix):
        return sum(self.remove(key) for key in list(self.objects) if key.startswith(prefix))

    def remove_all(self):
        return self.remove_prefix("")

    def holders(self, key):
        if key not in self.objects:
            raise errors.NotFoundError(f"no object {key!r}", key=key)
        return self.held

    def stats(self):
        return self.figures or {"pool": {"bytes_total": 1 << 30}}

    def list_faults_local_master(self):
        return list(self.faults.values())

    def get_fault_status_local_master(self, name):
        if name not in self.faults:
            raise errors.InvalidArgumentError(f"no fault point {name!r} here")
        return self.faults[name]

    def inject_fault_local_master(self, name, action, value=0, start=1, times=1):
        self.injected.append((name, action, value, start, times))
        return 0
