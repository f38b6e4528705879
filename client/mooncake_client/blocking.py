"""The blocking client."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar, Unpack, cast

from mooncake_client import fork, operations, wire
from mooncake_client.arguments import (
    Deadline,
    PutKwargs,
    check_generation,
    check_key,
    check_keys,
    check_nbytes,
    check_prefix,
    check_scope,
    check_ttl,
    put_options,
)
from mooncake_client.calls import ClientSettings, ask_admin, copy_into
from mooncake_client.codec import Encoded, raw
from mooncake_client.errors import DaemonGoneError, StoreError
from mooncake_client.faults import CLIENT_FAULTS
from mooncake_client.handle import BufferHandle
from mooncake_client.handshake import attach
from mooncake_client.link import Link
from mooncake_client.operations import Got, Operation, Work
from mooncake_client.results import Holder, ObjectInfo, PutInfo
from mooncake_client.writable import WritableBuffer

T = TypeVar("T")


class Client:
    """A client of the node daemon; may be used from several threads.

    After `fork` the child makes a client of its own. After a restart of the daemon the next call attaches to the new
    one; views of the old pool stay readable while held.
    """

    def __init__(
        self,
        socket: object = None,
        *,
        name: str | None = None,
        timeout: float = 30.0,
        readonly: bool = False,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
        pickle: bool = False,
    ) -> None:
        """Attach to the daemon on *socket* (default: MOONCAKE_NODE_SOCKET, else the system's usual place).

        *name* is shown to operators; *timeout* (seconds) bounds every call that has none of its own; *readonly* gets
        no writable memory at all; the hooks are msgspec's, for types the codec does not know; *pickle* lets unknown
        types be pickled, and pickled objects be read, which runs code of whoever put them.
        """
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._closed = False
        # Kept here too: at interpreter exit the module may be gone before the last client.
        self._fork_state = fork.STATE
        self._fork_count = fork.STATE.count
        self.settings = ClientSettings(
            socket,
            name=name,
            timeout=timeout,
            readonly=readonly,
            enc_hook=enc_hook,
            dec_hook=dec_hook,
            pickle=pickle,
        )
        self._attached()

    # -- put ---------------------------------------------------------------------------------------------------------

    def put(
        self,
        key: str,
        obj: Any,
        **kwargs: Unpack[PutKwargs],
    ) -> PutInfo:
        """Store *obj* under *key*; readable by everyone when this returns. Large buffers are copied once.

        Keyword arguments as in `PutKwargs`; the timeout is how long it may wait for room. Raises ExistsError when the
        key is taken, NotReadyError when another client was still writing it, NoSpaceError, InvalidArgumentError;
        after DaemonGoneError the outcome is unknown.
        """
        return self._put(key, self.settings.codec.encode(obj), kwargs)

    def put_parts(
        self,
        key: str,
        *buffers: Any,
        **kwargs: Unpack[PutKwargs],
    ) -> PutInfo:
        """Store exactly the concatenated bytes of *buffers*; read back as one memoryview. Otherwise as `put`."""
        return self._put(key, raw(*buffers), kwargs)

    def put_from(
        self,
        key: str,
        buffer: Any,
        **kwargs: Unpack[PutKwargs],
    ) -> PutInfo:
        """Store the bytes of one contiguous *buffer*, whatever its item type. Otherwise as `put`."""
        return self._put(key, raw(buffer), kwargs)

    def upsert(
        self,
        key: str,
        obj: Any,
        **kwargs: Unpack[PutKwargs],
    ) -> PutInfo:
        """As `put`, and replaces what is there: readers see the old object until the new one is complete."""
        return self._put(key, self.settings.codec.encode(obj), kwargs, upsert=True)

    def put_many(
        self,
        objects: Mapping[str, Any],
        **kwargs: Unpack[PutKwargs],
    ) -> dict[str, PutInfo | StoreError]:
        """Many puts in few messages; for each key what `put` would return or raise. Not atomic as a whole."""
        puts, refused = self.settings.encode_each(objects)
        timeout = kwargs.get("timeout")
        results = self._run(timeout, operations.put_many, puts, put_options(kwargs))
        if not refused:
            return results
        return {key: refused[key] if key in refused else results[key] for key in objects}

    def create(
        self,
        key: str,
        nbytes: int,
        **kwargs: Unpack[PutKwargs],
    ) -> WritableBuffer:
        """Room for *nbytes* to fill in place; read back as one memoryview. Raises as `put`."""
        link = self._attached()
        deadline = Deadline(self.settings.timeout_of(kwargs.get("timeout")))
        operation = operations.create(
            link.attachment, deadline, check_key(key), check_nbytes(nbytes), put_options(kwargs)
        )
        replica_id, writable = self._drive(link, operation, deadline)
        return WritableBuffer(self, link, key, nbytes, replica_id, writable)

    # -- get ---------------------------------------------------------------------------------------------------------

    def get(self, key: str, *, copy: bool = False, timeout: float | None = None, type: Any = None) -> Any:  # noqa: A002
        """The object; its arrays are read-only views of G that keep it there. *copy*: private, writable ones.

        *type* (a dataclass, Struct or any type msgspec converts to) says what to make of it. NotFoundError at once
        when there is no such key; while it is being written for the first time, waits: NotReadyError at the deadline.
        """
        link = self._attached()
        index = link.attachment.index
        # As `_get` does it, but for what says who has what.
        if index is not None and timeout is None and (found := index.view(key)) is not None:
            return self.settings.codec.decode(found[1].kind, found[0], copy=copy, type=type)
        got = self._get(link, key, timeout)
        return self.settings.codec.decode(got.grant.kind, got.view, copy=copy, type=type)

    def get_many(self, keys: Iterable[str]) -> list[Any]:
        """The objects of *keys* in order; a StoreError in the place of each that cannot be had."""
        link = self._attached()
        checked = check_keys(keys)
        views = operations.views_at_once(link.attachment, checked)
        if views is not None:
            return self.settings.decode_views(views)
        deadline = Deadline(self.settings.timeout_s)
        return self.settings.decode_each(
            self._drive(link, operations.get_many(link.attachment, deadline, checked), deadline)
        )

    def get_buffer(self, key: str, *, timeout: float | None = None) -> BufferHandle:
        """A handle over the stored bytes themselves. Raises as `get`."""
        link = self._attached()
        got = self._get(link, key, timeout)
        return BufferHandle(link.attachment.welcome.session_id, got.grant, got.view)

    def get_buffers(self, keys: Iterable[str]) -> list[BufferHandle | StoreError]:
        """Handles over the bytes of *keys* in order; a StoreError in the place of each that cannot be had."""
        link = self._attached()
        deadline = Deadline(self.settings.timeout_s)
        found = self._drive(link, operations.get_many(link.attachment, deadline, check_keys(keys)), deadline)
        session_id = link.attachment.welcome.session_id
        return [got if isinstance(got, StoreError) else BufferHandle(session_id, got.grant, got.view) for got in found]

    def get_into(self, key: str, buffer: Any, *, timeout: float | None = None) -> int:
        """Copy the stored bytes over the first bytes of *buffer*; returns how many. Raises as `get`."""
        return copy_into(self._get(self._attached(), key, timeout), buffer)

    def exists(self, key: str) -> bool:
        """Whether *key* is readable now. A hint: takes no reference and does not count as a use."""
        link = self._attached()
        index = link.attachment.index
        if index is not None and (flag := index.contains(key)) is not None:
            return flag
        return self.exists_many([key])[0]

    def exists_many(self, keys: Iterable[str]) -> list[bool]:
        """`exists` for each of *keys*."""
        link = self._attached()
        return self.run_on(link, operations.exists_many(link.attachment, check_keys(keys)), self.settings.timeout_s)

    def size(self, key: str) -> int:
        """The stored length in bytes."""
        link = self._attached()
        return self.run_on(link, operations.size(link.attachment, check_key(key)), self.settings.timeout_s)

    def info(self, key: str) -> ObjectInfo:
        """What is known of one object, without using it. NotFoundError, NotReadyError."""
        return self._ask(operations.info(check_key(key)))

    def wait(self, key: str, timeout: float | None = None) -> None:
        """Return when *key* is readable; StoreTimeoutError at the deadline."""
        deadline = Deadline(self.settings.timeout_of(timeout))
        request = wire.Wait(0, [], check_key(key), deadline.remaining_ms())
        self._drive(self._attached(), operations.ask(request), deadline)

    # -- remove, pin -------------------------------------------------------------------------------------------------

    def remove(self, key: str, *, generation: str | None = None, scope: str | None = None) -> bool:
        """Take *key* away at once; False: it was not there. Never an error because someone reads it.

        With *generation* (from PutInfo) only that life of the key is removed, never a later one.
        """
        operation = operations.remove_many([check_key(key)], check_generation(generation), check_scope(scope))
        return self._ask(operation)[0]

    def remove_many(self, keys: Iterable[str]) -> list[bool]:
        """`remove` for each of *keys*."""
        return self._ask(operations.remove_many(check_keys(keys), None, None))

    def remove_prefix(self, prefix: str, *, scope: str | None = None) -> int:
        """Remove every object whose key starts with *prefix*; returns how many there were."""
        request = wire.RemovePrefix(0, [], check_prefix(prefix), check_scope(scope))
        count: int = self._ask(operations.ask(request)).count
        return count

    def remove_all(self, *, scope: str | None = None) -> int:
        """A barrier: nothing put, or begun to be put, before this returns is readable afterwards. Returns how many."""
        count: int = self._ask(operations.ask(wire.RemoveAll(0, [], check_scope(scope)))).count
        return count

    def pin(self, key: str, ttl: float | None = None) -> None:
        """Give a readable object a soft pin from now on, for *ttl* seconds or until removed."""
        self._ask(operations.ask(wire.Pin(0, [], check_key(key), check_ttl(ttl))))

    def unpin(self, key: str) -> None:
        """End an object's soft pin: it becomes ordinary cache."""
        self._ask(operations.ask(wire.Unpin(0, [], check_key(key))))

    # -- looking inside ----------------------------------------------------------------------------------------------

    def holders(self, key: str) -> list[Holder]:
        """Which clients hold views of any generation of *key*, with their age."""
        items: list[Holder] = self._ask(operations.ask(wire.Holders(0, [], check_key(key)))).items
        return items

    def stats(self) -> dict[str, Any]:
        """The node's statistics."""
        facts: dict[str, Any] = self._ask(operations.ask(wire.Stats(0, []))).facts
        return facts

    def inject_fault(self, name: str, action: str, value: int = 0, start: int = 1, times: int = 1) -> int:
        """Arm a fault point of this process; 0 when done."""
        return CLIENT_FAULTS.inject(name, action, value, start, times)

    def get_fault_status(self, name: str) -> dict[str, Any]:
        """What a fault point of this process is armed with, and how often it was passed and acted."""
        return CLIENT_FAULTS.status(name).as_dict()

    def inject_fault_local_master(self, name: str, action: str, value: int = 0, start: int = 1, times: int = 1) -> int:
        """Arm a fault point of the daemon, through its admin socket; 0 when done."""
        self._fault(wire.Fault(0, [], "inject", name, action, value, start, times))
        return 0

    def get_fault_status_local_master(self, name: str) -> dict[str, Any]:
        """The status of a fault point of the daemon, through its admin socket."""
        return self._fault(wire.Fault(0, [], "status", name))

    def list_faults_local_master(self) -> list[dict[str, Any]]:
        """Every fault point of the daemon."""
        points: list[dict[str, Any]] = self._fault(wire.Fault(0, [], "list"))["points"]
        return points

    # After all that name `list` in their signatures.
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """The readable objects whose key starts with *prefix*, page by page, in no order."""
        check_prefix(prefix)
        link, cursor = self._attached(), 0
        while True:
            page, cursor = self.run_on(link, operations.list_page(prefix, cursor), self.settings.timeout_s)
            yield from page
            if not cursor:
                return

    # -- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Detach. Views that are still held stay readable, and protected, until they die. A second call is harmless."""
        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_link", None) is not None and self._fork_state.count == self._fork_count:
            self.close()

    def __repr__(self) -> str:
        return f"<Client {self.settings.name!r} on {self.settings.path}{' (closed)' if self._closed else ''}>"

    # -- running operations ------------------------------------------------------------------------------------------

    def run_on(self, link: Link, operation: Operation[T], timeout_s: float) -> T:
        """Run *operation* on the attachment it was made for, not on a newer one."""
        return self._drive(link, operation, Deadline(timeout_s))

    def _get(self, link: Link, key: str, timeout: float | None) -> Got:
        deadline = Deadline(self.settings.timeout_of(timeout))
        if CLIENT_FAULTS.enabled:
            return self._drive(link, operations.get(link.attachment, deadline, check_key(key)), deadline)
        # As operations.get does it, but for the generator.
        found = operations.found_at_once(link.attachment, check_key(key))
        if found is not None:
            return found
        reply = link.call(operations.acquire_one(deadline, check_key(key)), deadline)
        try:
            return operations.got_one(link.attachment, key, cast("wire.Acquired", reply))
        except StoreError:
            raise
        except BaseException:
            link.give_back(reply)
            raise

    def _put(self, key: str, encoded: Encoded, kwargs: PutKwargs, *, upsert: bool = False) -> PutInfo:
        link = self._attached()
        deadline = Deadline(self.settings.timeout_of(kwargs.get("timeout")))
        spec = put_options(kwargs).spec(check_key(key), encoded.nbytes, encoded.kind, upsert=upsert)
        # As operations.put does it; what goes in one message spares itself the generator.
        if operations.carries(link.attachment, encoded):
            carried = cast("wire.PutEnded", link.call(operations.carry_one(spec, encoded), deadline))
            if not isinstance(carried.items[0], wire.Deferred):
                return operations.published(spec.key, carried.items[0])
        return self._drive(link, operations.put_in_place(link.attachment, deadline, spec, encoded), deadline)

    def _run(self, timeout: float | None, make: Callable[..., Operation[T]], *args: Any) -> T:
        link = self._attached()
        deadline = Deadline(self.settings.timeout_of(timeout))
        return self._drive(link, make(link.attachment, deadline, *args), deadline)

    def _ask(self, operation: Operation[T]) -> T:
        return self._drive(self._attached(), operation, Deadline(self.settings.timeout_s))

    @staticmethod
    def _drive(link: Link, operation: Operation[T], deadline: Deadline) -> T:
        result: Any = None
        try:
            step = next(operation)
            while True:
                result = None
                try:
                    result = step.run() if isinstance(step, Work) else link.call(step, deadline)
                except BaseException as exc:  # noqa: BLE001  the operation cleans up and raises it again
                    step = operation.throw(exc)
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value
        except StoreError:
            raise
        except BaseException:
            # A KeyboardInterrupt may have struck before the operation had what came for it.
            link.give_back(result)
            raise

    def _attached(self) -> Link:
        """The living attachment; a new one when the daemon was restarted."""
        link = self._link
        if link is not None and not link.lost:
            return link
        if self._fork_state.count != self._fork_count:
            raise fork.refusal()
        with self._lock:
            if self._closed:
                raise DaemonGoneError("this client is closed")
            if self._link is None or self._link.lost:
                settings = self.settings
                self._link = Link(
                    attach(
                        settings.path,
                        name=settings.name,
                        readonly=settings.readonly,
                        timeout_s=settings.timeout_s,
                    )
                )
            return self._link

    def _fault(self, request: wire.Fault) -> dict[str, Any]:
        path = self._attached().attachment.welcome.admin_socket
        return ask_admin(path, request, self.settings)
