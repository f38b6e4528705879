"""The asyncio client: the same calls as `blocking.Client`, awaitable. What each promises is said there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from mooncake_client import fork, operations, wire
from mooncake_client.aio_link import AsyncLink
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
from mooncake_client.handle import BufferHandle, Draft
from mooncake_client.handshake import Attached, attach
from mooncake_client.operations import BLOCKING_NBYTES_MIN, Operation, Work
from mooncake_client.results import Holder, ObjectInfo, PutInfo

T = TypeVar("T")


class AsyncWritableBuffer(Draft):
    """As `WritableBuffer`, with an awaitable `publish`; an async context manager."""

    __slots__ = ("_client", "_link")

    def __init__(self, client: "AsyncClient", link: AsyncLink, *draft: Any) -> None:
        super().__init__(*draft)
        self._client = client
        self._link = link

    async def publish(self) -> PutInfo:
        """Make the object readable by everyone; BufferError while anything derived from `view` is alive."""
        writable = self._end_writing()
        try:
            operation = operations.publish(self.key, self._replica_id)
            info = await self._client.run_on(self._link, operation, Deadline(self._client.settings.timeout_s))
            # Until here the view's death gives the room back; behind an end that went out that does nothing.
            self._link.attachment.session.drafts.pop(self._replica_id, None)
            return info
        finally:
            self._writable = None
            del writable

    def abort(self) -> None:
        """Give the room up; it goes back when nothing derived from `view` is alive. A second call does nothing."""
        super().abort()
        self._link.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: object, *_exc: object) -> None:
        if self.open:
            if exc_type is None:
                await self.publish()
            else:
                self.abort()


class AsyncClient:
    """A client of the node daemon for one event loop. Attaches on first use; close it before the loop ends."""

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
        self.settings = ClientSettings(
            socket,
            name=name,
            timeout=timeout,
            readonly=readonly,
            enc_hook=enc_hook,
            dec_hook=dec_hook,
            pickle=pickle,
        )
        self._link: AsyncLink | None = None
        self._attaching = asyncio.Lock()
        self._closed = False
        self._fork_count = fork.STATE.count

    # -- put ---------------------------------------------------------------------------------------------------------

    async def put(self, key: str, obj: Any, **kwargs: Unpack[PutKwargs]) -> PutInfo:
        """See `Client.put`."""
        return await self._put(key, self.settings.codec.encode(obj), kwargs)

    async def put_parts(self, key: str, *buffers: Any, **kwargs: Unpack[PutKwargs]) -> PutInfo:
        """See `Client.put_parts`."""
        return await self._put(key, raw(*buffers), kwargs)

    async def put_from(self, key: str, buffer: Any, **kwargs: Unpack[PutKwargs]) -> PutInfo:
        """See `Client.put_from`."""
        return await self._put(key, raw(buffer), kwargs)

    async def upsert(self, key: str, obj: Any, **kwargs: Unpack[PutKwargs]) -> PutInfo:
        """See `Client.upsert`."""
        return await self._put(key, self.settings.codec.encode(obj), kwargs, upsert=True)

    async def put_many(
        self, objects: Mapping[str, Any], **kwargs: Unpack[PutKwargs]
    ) -> dict[str, PutInfo | StoreError]:
        """See `Client.put_many`."""
        puts, refused = self.settings.encode_each(objects)
        timeout = kwargs.get("timeout")
        results = await self._run(timeout, operations.put_many, puts, put_options(kwargs))
        return {key: refused[key] if key in refused else results[key] for key in objects}

    async def create(self, key: str, nbytes: int, **kwargs: Unpack[PutKwargs]) -> AsyncWritableBuffer:
        """See `Client.create`."""
        deadline = Deadline(self.settings.timeout_of(kwargs.get("timeout")))
        arguments = check_key(key), check_nbytes(nbytes), put_options(kwargs)
        link = await self._attached()
        operation = operations.create(link.attachment, deadline, *arguments)
        replica_id, writable = await self.run_on(link, operation, deadline)
        return AsyncWritableBuffer(self, link, key, nbytes, replica_id, writable)

    # -- get ---------------------------------------------------------------------------------------------------------

    async def get(
        self,
        key: str,
        *,
        copy: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109  SPEC 11; the daemon keeps the deadline
        type: Any = None,  # noqa: A002  as msgspec names it
    ) -> Any:
        """See `Client.get`."""
        got = await self._run(timeout, operations.get, check_key(key))
        if copy and got.view.nbytes >= BLOCKING_NBYTES_MIN:
            return await _in_thread(partial(self.settings.decode, got, copy=True, type=type))
        return self.settings.decode(got, copy=copy, type=type)

    async def get_many(self, keys: Iterable[str]) -> list[Any]:
        """See `Client.get_many`."""
        return self.settings.decode_each(await self._run(None, operations.get_many, check_keys(keys)))

    async def get_buffer(self, key: str, *, timeout: float | None = None) -> BufferHandle:  # noqa: ASYNC109
        """See `Client.get_buffer`."""
        deadline = Deadline(self.settings.timeout_of(timeout))
        check_key(key)
        link = await self._attached()
        got = await self.run_on(link, operations.get(link.attachment, deadline, key), deadline)
        return BufferHandle(link.attachment.welcome.session_id, got.grant, got.view)

    async def get_buffers(self, keys: Iterable[str]) -> list[BufferHandle | StoreError]:
        """See `Client.get_buffers`."""
        deadline = Deadline(self.settings.timeout_s)
        checked = check_keys(keys)
        link = await self._attached()
        found = await self.run_on(link, operations.get_many(link.attachment, deadline, checked), deadline)
        session_id = link.attachment.welcome.session_id
        return [got if isinstance(got, StoreError) else BufferHandle(session_id, got.grant, got.view) for got in found]

    async def get_into(self, key: str, buffer: Any, *, timeout: float | None = None) -> int:  # noqa: ASYNC109
        """See `Client.get_into`."""
        got = await self._run(timeout, operations.get, check_key(key))
        if got.view.nbytes >= BLOCKING_NBYTES_MIN:
            written: int = await _in_thread(partial(copy_into, got, buffer))
            return written
        return copy_into(got, buffer)

    async def exists(self, key: str) -> bool:
        """See `Client.exists`."""
        return (await self.exists_many([key]))[0]

    async def exists_many(self, keys: Iterable[str]) -> list[bool]:
        """See `Client.exists_many`."""
        checked = check_keys(keys)
        link = await self._attached()
        deadline = Deadline(self.settings.timeout_s)
        return await self.run_on(link, operations.exists_many(link.attachment, checked), deadline)

    async def size(self, key: str) -> int:
        """See `Client.size`."""
        check_key(key)
        link = await self._attached()
        return await self.run_on(link, operations.size(link.attachment, key), Deadline(self.settings.timeout_s))

    async def info(self, key: str) -> ObjectInfo:
        """See `Client.info`."""
        return await self._ask(operations.info(check_key(key)))

    async def wait(self, key: str, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """See `Client.wait`."""
        deadline = Deadline(self.settings.timeout_of(timeout))
        request = wire.Wait(0, [], check_key(key), deadline.remaining_ms())
        await self.run_on(await self._attached(), operations.ask(request), deadline)

    # -- remove, pin -------------------------------------------------------------------------------------------------

    async def remove(self, key: str, *, generation: str | None = None, scope: str | None = None) -> bool:
        """See `Client.remove`."""
        operation = operations.remove_many([check_key(key)], check_generation(generation), check_scope(scope))
        return (await self._ask(operation))[0]

    async def remove_many(self, keys: Iterable[str]) -> list[bool]:
        """See `Client.remove_many`."""
        return await self._ask(operations.remove_many(check_keys(keys), None, None))

    async def remove_prefix(self, prefix: str, *, scope: str | None = None) -> int:
        """See `Client.remove_prefix`."""
        request = wire.RemovePrefix(0, [], check_prefix(prefix), check_scope(scope))
        count: int = (await self._ask(operations.ask(request))).count
        return count

    async def remove_all(self, *, scope: str | None = None) -> int:
        """See `Client.remove_all`."""
        count: int = (await self._ask(operations.ask(wire.RemoveAll(0, [], check_scope(scope))))).count
        return count

    async def pin(self, key: str, ttl: float | None = None) -> None:
        """See `Client.pin`."""
        await self._ask(operations.ask(wire.Pin(0, [], check_key(key), check_ttl(ttl))))

    async def unpin(self, key: str) -> None:
        """See `Client.unpin`."""
        await self._ask(operations.ask(wire.Unpin(0, [], check_key(key))))

    # -- looking inside ----------------------------------------------------------------------------------------------

    async def holders(self, key: str) -> list[Holder]:
        """See `Client.holders`."""
        items: list[Holder] = (await self._ask(operations.ask(wire.Holders(0, [], check_key(key))))).items
        return items

    async def stats(self) -> dict[str, Any]:
        """See `Client.stats`."""
        facts: dict[str, Any] = (await self._ask(operations.ask(wire.Stats(0, [])))).facts
        return facts

    async def inject_fault(self, name: str, action: str, value: int = 0, start: int = 1, times: int = 1) -> int:
        """See `Client.inject_fault`."""
        return CLIENT_FAULTS.inject(name, action, value, start, times)

    async def get_fault_status(self, name: str) -> dict[str, Any]:
        """See `Client.get_fault_status`."""
        return CLIENT_FAULTS.status(name).as_dict()

    async def inject_fault_local_master(
        self, name: str, action: str, value: int = 0, start: int = 1, times: int = 1
    ) -> int:
        """See `Client.inject_fault_local_master`."""
        await self._fault(wire.Fault(0, [], "inject", name, action, value, start, times))
        return 0

    async def get_fault_status_local_master(self, name: str) -> dict[str, Any]:
        """See `Client.get_fault_status_local_master`."""
        return await self._fault(wire.Fault(0, [], "status", name))

    async def list_faults_local_master(self) -> list[dict[str, Any]]:
        """See `Client.list_faults_local_master`."""
        points: list[dict[str, Any]] = (await self._fault(wire.Fault(0, [], "list")))["points"]
        return points

    # After all that name `list` in their signatures.
    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """See `Client.list`; an async iterator."""
        check_prefix(prefix)
        link, cursor = await self._attached(), 0
        while True:
            deadline = Deadline(self.settings.timeout_s)
            page, cursor = await self.run_on(link, operations.list_page(prefix, cursor), deadline)
            for item in page:
                yield item
            if not cursor:
                return

    # -- life --------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See `Client.close`."""
        self._closed = True
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def __aenter__(self) -> Self:
        await self._attached()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self.settings.name!r} on {self.settings.path}{' (closed)' if self._closed else ''}>"

    # -- running operations ------------------------------------------------------------------------------------------

    async def run_on(self, link: AsyncLink, operation: Operation[T], deadline: Deadline) -> T:
        """Run *operation* on the attachment it was made for, not on a newer one."""
        try:
            step = next(operation)
            while True:
                try:
                    if not isinstance(step, Work):
                        result = await link.call(step, deadline)
                    elif step.nbytes < BLOCKING_NBYTES_MIN:
                        result = step.run()
                    else:
                        result = await _in_thread(step.run)
                except BaseException as exc:  # noqa: BLE001  the operation cleans up and raises it again
                    step = operation.throw(exc)
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    async def _put(self, key: str, encoded: Encoded, kwargs: PutKwargs, *, upsert: bool = False) -> PutInfo:
        deadline = Deadline(self.settings.timeout_of(kwargs.get("timeout")))
        options = put_options(kwargs)
        check_key(key)
        link = await self._attached()
        operation = operations.put(link.attachment, deadline, key, encoded, options, upsert=upsert)
        return await self.run_on(link, operation, deadline)

    async def _run(self, timeout: float | None, make: Callable[..., Operation[T]], *args: Any) -> T:  # noqa: ASYNC109
        deadline = Deadline(self.settings.timeout_of(timeout))
        link = await self._attached()
        return await self.run_on(link, make(link.attachment, deadline, *args), deadline)

    async def _ask(self, operation: Operation[T]) -> T:
        return await self.run_on(await self._attached(), operation, Deadline(self.settings.timeout_s))

    async def _fault(self, request: wire.Fault) -> dict[str, Any]:
        path = (await self._attached()).attachment.welcome.admin_socket
        facts: dict[str, Any] = await _in_thread(partial(ask_admin, path, request, self.settings))
        return facts

    async def _attached(self) -> AsyncLink:
        """The living attachment; a new one when the daemon was restarted."""
        if self._link is not None and not self._link.lost:
            return self._link
        if fork.STATE.count != self._fork_count:
            raise fork.refusal()
        async with self._attaching:
            if self._closed:
                raise DaemonGoneError("this client is closed")
            if self._link is None or self._link.lost:
                settings = self.settings
                attached = await _in_thread(
                    partial(
                        attach,
                        settings.path,
                        name=settings.name,
                        readonly=settings.readonly,
                        timeout_s=settings.timeout_s,
                    ),
                    undo=Attached.close,
                )
                self._link = await AsyncLink.open(attached)
            return self._link


async def _in_thread(run: Callable[[], Any], undo: Callable[[Any], None] | None = None) -> Any:
    """Run blocking work beside the loop. A cancellation is passed on only after the work has stopped.

    *undo* then gets the result that nobody wants any more.
    """
    future = asyncio.get_running_loop().run_in_executor(None, run)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as exc:
            cancelled = exc
    try:
        if cancelled is not None:
            if future.exception() is None and undo is not None:
                undo(future.result())
            raise cancelled
        return future.result()
    finally:
        # What is raised refers to this frame, which would keep it, and every frame it passes, alive.
        del cancelled, future
