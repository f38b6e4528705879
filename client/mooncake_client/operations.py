"""Every call a client offers, without IO: a generator that yields what has to be done and gets the outcome.

It yields a request, and gets the reply; or a `Work`, and gets its result. The fronts (`blocking`, `aio`) run it. A
generator that reserved room and is interrupted, by an error, a cancellation or a KeyboardInterrupt, gives the room
back after its last store.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from mooncake_client import wire
from mooncake_client.arguments import Deadline, PutOptions
from mooncake_client.attachment import Attachment
from mooncake_client.codec import Encoded
from mooncake_client.errors import StoreError, error_for
from mooncake_client.faults import CLIENT_FAULTS
from mooncake_client.results import PutInfo, put_info
from mooncake_client.shared_index import Entry
from mooncake_client.views import WritableView

T = TypeVar("T")

# Work on fewer bytes is done where the call is; a hop to a thread costs 45 µs, the time of 1 MiB.
BLOCKING_NBYTES_MIN = 2 << 20
# Of so many objects above that size, copying them by way of a socket costs more than the round trip that it saves.
_MANY_COUNT, _MANY_NBYTES = 16, 512


class Work(NamedTuple):
    """Something that may take long without IO: *run* touches *nbytes*."""

    run: Callable[[], Any]
    nbytes: int


Step = wire.Request | Work
Operation = Generator[Step, Any, T]


# -- put --------------------------------------------------------------------------------------------------------------


def put(
    attachment: Attachment,
    deadline: Deadline,
    key: str,
    encoded: Encoded,
    options: PutOptions,
    *,
    upsert: bool,
) -> Operation[PutInfo]:
    """Store and publish; a small object in one message if it need not wait."""
    spec = options.spec(key, encoded.nbytes, encoded.kind, upsert=upsert)
    if carries(attachment, encoded):
        carried: wire.PutEnded = yield carry_one(spec, encoded)
        if not isinstance(carried.items[0], wire.Deferred):
            return published(key, carried.items[0])
    return (yield from put_in_place(attachment, deadline, spec, encoded))


def carries(attachment: Attachment, encoded: Encoded) -> bool:
    """Whether *encoded* is to be put in one message."""
    return encoded.nbytes <= wire.CARRIED_NBYTES_MAX and attachment.carries_puts


def carry_one(spec: wire.PutSpec, encoded: Encoded) -> wire.PutBytes:
    """The request that puts a small object whole."""
    return wire.PutBytes(0, [], [spec], [_joined(encoded)])


def put_in_place(
    attachment: Attachment, deadline: Deadline, spec: wire.PutSpec, encoded: Encoded
) -> Operation[PutInfo]:
    """Reserve, copy to the final place, publish."""
    reservation = yield from _reserve(deadline, spec)
    try:
        yield from _fill(attachment, reservation, encoded)
        return (yield from publish(spec.key, reservation.replica_id))
    except BaseException:
        # Behind an end that went out it does nothing.
        attachment.notify(wire.PutRevoke(0, [], [reservation.replica_id]))
        raise


def put_many(
    attachment: Attachment,
    deadline: Deadline,
    puts: Sequence[tuple[str, Encoded]],
    options: PutOptions,
) -> Operation[dict[str, PutInfo | StoreError]]:
    """Many puts, a batch a frame. Only the first of a batch waits for room, with nothing of the batch held back
    unpublished meanwhile, so that a batch larger than the pool goes on as far as room comes, and never deadlocks.
    """
    results: dict[str, PutInfo | StoreError] = {}
    rest = list(puts)
    if attachment.carries_puts:
        try:
            rest = yield from _carry(rest, options, results)
        except StoreError as error:
            return {key: results.get(key) or error_for(error.code, error.message, key) for key, _encoded in puts}
        if not rest:
            return results
    while rest:
        batch, rest = rest[: wire.ITEMS_MAX], rest[wire.ITEMS_MAX :]
        try:
            deferred = yield from _put_batch(attachment, deadline, batch, options, results)
        except StoreError as error:
            for key, _encoded in [*batch, *rest]:
                results.setdefault(key, error_for(error.code, error.message, key))
            break
        rest = deferred + rest
    return {key: results[key] for key, _encoded in puts}


def _carry(
    puts: list[tuple[str, Encoded]], options: PutOptions, results: dict[str, PutInfo | StoreError]
) -> Operation[list[tuple[str, Encoded]]]:
    """Send the small ones whole; returns the others, and those that would have had to wait."""
    medium = sum(_MANY_NBYTES < encoded.nbytes <= wire.CARRIED_NBYTES_MAX for _key, encoded in puts)
    nbytes_max = wire.CARRIED_NBYTES_MAX if medium < _MANY_COUNT else _MANY_NBYTES
    rest: list[tuple[str, Encoded]] = []
    batch: list[tuple[str, Encoded]] = []
    nbytes = 0
    for put in puts:
        encoded = put[1]
        if encoded.nbytes > nbytes_max:
            rest.append(put)
            continue
        if len(batch) == wire.ITEMS_MAX or nbytes + encoded.nbytes > wire.CARRIED_TOTAL_NBYTES_MAX:
            rest += yield from _carry_batch(batch, options, results)
            batch, nbytes = [], 0
        batch.append(put)
        nbytes += encoded.nbytes
    if batch:
        rest += yield from _carry_batch(batch, options, results)
    return rest


def _carry_batch(
    batch: list[tuple[str, Encoded]], options: PutOptions, results: dict[str, PutInfo | StoreError]
) -> Operation[list[tuple[str, Encoded]]]:
    """One message; returns those that would have had to wait."""
    specs = options.specs(batch)
    carried: wire.PutEnded = yield wire.PutBytes(0, [], specs, [_joined(encoded) for _key, encoded in batch])
    deferred: list[tuple[str, Encoded]] = []
    for put, item in zip(batch, carried.items, strict=True):
        if isinstance(item, wire.Published):
            results[put[0]] = put_info(item)
        elif isinstance(item, wire.Failure):
            results[put[0]] = error_for(item.code, item.message, put[0])
        else:
            deferred.append(put)
    return deferred


def _joined(encoded: Encoded) -> memoryview:
    """A small object's bytes in one piece."""
    parts = encoded.parts
    if len(parts) == 1 and (source := parts[0].source) is not None:
        return source
    whole = memoryview(bytearray(encoded.nbytes))
    encoded.write_into(whole)
    return whole


def _put_batch(
    attachment: Attachment,
    deadline: Deadline,
    batch: list[tuple[str, Encoded]],
    options: PutOptions,
    results: dict[str, PutInfo | StoreError],
) -> Operation[list[tuple[str, Encoded]]]:
    """One round; returns those that have to be asked for again."""
    specs = options.specs(batch)
    started: wire.PutStarted = yield wire.PutStart(0, [], specs, deadline.remaining_ms())
    deferred: list[tuple[str, Encoded]] = []
    written: list[str] = []
    reserved = [item.replica_id for item in started.items if isinstance(item, wire.Reservation)]
    first, window = 0, None
    try:
        for put, item in zip(batch, started.items, strict=True):
            key, encoded = put
            if isinstance(item, wire.Reservation):
                if encoded.nbytes < BLOCKING_NBYTES_MIN and not CLIENT_FAULTS.enabled:
                    # Many small ones: without a generator each, and the first keeps the connection for all of them.
                    if window is None:
                        first = item.replica_id
                        window = attachment.begin_writing(first)
                    window.write(item.offset, encoded)
                else:
                    yield from _fill(attachment, item, encoded)
                written.append(key)
            elif isinstance(item, wire.Failure):
                results[key] = error_for(item.code, item.message, key)
            else:
                deferred.append(put)
        if window is not None:
            attachment.end_writing(first)
        if reserved:
            ended: wire.PutEnded = yield wire.PutEnd(0, [], reserved)
            for key, outcome in zip(written, ended.items, strict=True):
                results[key] = _published_or_error(key, outcome)
    except BaseException:
        for replica_id in reserved:
            attachment.end_writing(replica_id)
        # Behind an end that went out it does nothing.
        attachment.notify(wire.PutRevoke(0, [], reserved))
        raise
    return deferred


def create(
    attachment: Attachment, deadline: Deadline, key: str, nbytes: int, options: PutOptions
) -> Operation[tuple[int, WritableView]]:
    """Reserve room for the caller to fill: the reservation's id and the view."""
    reservation = yield from _reserve(deadline, options.spec(key, nbytes, 0, upsert=False))
    try:
        if CLIENT_FAULTS.enabled:
            yield _point("ClientPutAfterStart")
        window = attachment.window()
        yield Work(lambda: window.mapping.populate(reservation.offset, nbytes), nbytes)
        draft = attachment.draft(reservation, nbytes)
        window.zero_tail(reservation.offset, nbytes)
    except BaseException:
        attachment.notify(wire.PutRevoke(0, [], [reservation.replica_id]))
        raise
    return reservation.replica_id, draft


def publish(key: str, replica_id: int) -> Operation[PutInfo]:
    """Make a filled reservation readable."""
    ended: wire.PutEnded = yield wire.PutEnd(0, [], [replica_id])
    return published(key, ended.items[0])


def published(key: str, item: wire.Published | wire.Failure | wire.Deferred) -> PutInfo:
    """The outcome of a put that has ended."""
    outcome = _published_or_error(key, item)
    if isinstance(outcome, StoreError):
        try:
            raise outcome
        finally:
            # An error that refers to this frame, and is referred to by it, would keep its catcher's views alive.
            del outcome
    return outcome


def _reserve(deadline: Deadline, spec: wire.PutSpec) -> Operation[wire.Reservation]:
    started: wire.PutStarted = yield wire.PutStart(0, [], [spec], deadline.remaining_ms())
    item = started.items[0]
    if isinstance(item, wire.Reservation):
        return item
    assert isinstance(item, wire.Failure), "the first of a batch is never deferred"
    raise error_for(item.code, item.message, spec.key)


def _fill(attachment: Attachment, reservation: wire.Reservation, encoded: Encoded) -> Operation[None]:
    """Put the bytes in place, by way of the points before and after."""
    if CLIENT_FAULTS.enabled:
        yield _point("ClientPutAfterStart")
    replica_id = reservation.replica_id
    window = attachment.begin_writing(replica_id)
    try:
        if encoded.nbytes < BLOCKING_NBYTES_MIN and not CLIENT_FAULTS.enabled:
            window.write(reservation.offset, encoded)
        else:
            yield Work(lambda: window.write(reservation.offset, encoded), encoded.nbytes)
    finally:
        attachment.end_writing(replica_id)
    if CLIENT_FAULTS.enabled:
        yield _point("ClientPutBeforeEnd")


def _published_or_error(key: str, item: wire.Published | wire.Failure | wire.Deferred) -> PutInfo | StoreError:
    if isinstance(item, wire.Published):
        return put_info(item)
    assert isinstance(item, wire.Failure), "what ends or is carried does not wait"
    return error_for(item.code, item.message, key)


# -- get --------------------------------------------------------------------------------------------------------------


class Got(msgspec.Struct, frozen=True):
    """A readable object: what the daemon said of it, and its bytes."""

    grant: wire.Grant
    view: memoryview


def get(attachment: Attachment, deadline: Deadline, key: str) -> Operation[Got]:
    """A handle on one object."""
    found = found_at_once(attachment, key)
    if found is not None:
        return found
    acquired: wire.Acquired = yield acquire_one(deadline, key)
    got = got_one(attachment, key, acquired)
    if CLIENT_FAULTS.enabled:
        yield _point("ClientGetAfterAcquire")
    return got


def found_at_once(attachment: Attachment, key: str) -> Got | None:
    """The object by way of the shared index; None: ask the daemon."""
    index = attachment.index
    if index is None or (found := index.view(key)) is None:
        return None
    view, entry = found
    return Got(index.grant(entry), view)


def views_at_once(attachment: Attachment, keys: Sequence[str]) -> list[tuple[memoryview, Entry]] | None:
    """As `found_at_once` for many; None unless all are found."""
    index = attachment.index
    if index is None:
        return None
    found = [got for key in keys if (got := index.view(key)) is not None]
    return found if len(found) == len(keys) else None


def acquire_one(deadline: Deadline, key: str) -> wire.Acquire:
    """The request of `get`."""
    return wire.Acquire(0, [], [key], deadline.timeout_ms)


def got_one(attachment: Attachment, key: str, acquired: wire.Acquired) -> Got:
    """The outcome of `get`."""
    item = acquired.items[0]
    if isinstance(item, wire.Grant):
        return Got(item, attachment.view(item))
    raise error_for(item.code, item.message, key)


def get_many(attachment: Attachment, deadline: Deadline, keys: Sequence[str]) -> Operation[list[Got | StoreError]]:
    """Handles on many objects, key by key what it is or why not."""
    found: list[Got | StoreError | None] = [found_at_once(attachment, key) for key in keys]
    missing = [number for number, got in enumerate(found) if got is None]
    for batch in batches(missing):
        request = wire.Acquire(0, [], [keys[number] for number in batch], deadline.remaining_ms())
        acquired: wire.Acquired = yield request
        for number, item in zip(batch, acquired.items, strict=True):
            found[number] = _got_or_error(attachment, keys[number], item)
    return cast("list[Got | StoreError]", found)


def _got_or_error(attachment: Attachment, key: str, item: wire.Grant | wire.Failure) -> Got | StoreError:
    if isinstance(item, wire.Grant):
        return Got(item, attachment.view(item))
    return error_for(item.code, item.message, key)


# -- everything else --------------------------------------------------------------------------------------------------


def exists_many(attachment: Attachment, keys: Sequence[str]) -> Operation[list[bool]]:
    """Which keys are readable."""
    index = attachment.index
    flags: list[bool | None] = [None if index is None else index.contains(key) for key in keys]
    unknown = [number for number, flag in enumerate(flags) if flag is None]
    for batch in batches(unknown):
        reply: wire.Flags = yield wire.Exists(0, [], [keys[number] for number in batch])
        for number, item in zip(batch, reply.items, strict=True):
            flags[number] = item
    return cast("list[bool]", flags)


def size(attachment: Attachment, key: str) -> Operation[int]:
    """The length of one object."""
    index = attachment.index
    nbytes = None if index is None else index.nbytes(key)
    return (yield from info(key)).nbytes if nbytes is None else nbytes


def info(key: str) -> Operation[wire.ObjectInfo]:
    """What is known of one object."""
    reply: wire.Infos = yield wire.Info(0, [], [key])
    item = reply.items[0]
    if isinstance(item, wire.Failure):
        raise error_for(item.code, item.message, key)
    return item


def list_page(prefix: str, cursor: int) -> Operation[tuple[list[wire.ObjectInfo], int]]:
    """One page of objects and the cursor of the next; 0 when there is none."""
    reply: wire.Infos = yield wire.ListKeys(0, [], prefix, cursor)
    return [item for item in reply.items if isinstance(item, wire.ObjectInfo)], reply.cursor


def remove_many(keys: Sequence[str], generation: int | None, scope: str | None) -> Operation[list[bool]]:
    """Which keys were there and are gone now."""
    flags: list[bool] = []
    for batch in batches(keys):
        reply: wire.Flags = yield wire.Remove(0, [], batch, generation, scope)
        flags += reply.items
    return flags


def ask(request: wire.Request) -> Operation[Any]:
    """One request whose reply is the result."""
    return (yield request)


def batches(keys: Sequence[T]) -> Iterable[list[T]]:
    """Pieces that fit one message; one empty piece for no keys at all is spared."""
    return (list(keys[i : i + wire.ITEMS_MAX]) for i in range(0, len(keys), wire.ITEMS_MAX))


def _point(name: str) -> Work:
    # As work, so that a sleep there stops this call and not the event loop.
    return Work(lambda: CLIENT_FAULTS.hit_blocking(name), BLOCKING_NBYTES_MIN)
