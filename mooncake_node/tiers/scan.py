"""What a directory holds when it is opened: trailers are read, leftovers removed, damaged files set aside."""

import contextlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from mooncake_node.obs.log import get_logger
from mooncake_node.tiers.contents import OWN_FILE, Entry, Pack
from mooncake_node.tiers.contracts import ContractError, read_contract
from mooncake_node.tiers.place import CONTRACTS, OBJECTS, PACKS, SHARDS, TEMPORARY, Place
from mooncake_node.tiers.port import TierCounters, TierRecord
from mooncake_node.tiers.publication import mark_dead
from mooncake_node.tiers.trailer import ALIVE, DEAD, Trailer, TrailerError, read_trailer

_THREADS = 4  # each reads a block at a time; a disk likes to be asked for several

log = get_logger()


class Found(msgspec.Struct):
    """What is there and can be used: one generation a key."""

    files: list[Entry]
    packs: list[Pack]
    next_pack: int  # no file says of this pack or a later one that it is or was there
    amended: list[TierRecord]  # of these objects, those whose contract has a file of its own, under that


class _File(msgspec.Struct):
    path: Path
    nbytes: int
    trailer: Trailer


class _Tally(msgspec.Struct):
    bad: int = 0
    temporary: int = 0


class _Seen(_Tally, kw_only=True):
    files: list[_File]


class _Contracts(_Tally, kw_only=True):
    records: list[TierRecord]


def scan(place: Place, counters: TierCounters) -> Found:
    """Look at every file. Blocks, for about 30 µs a file that is in the page cache."""
    paths = list((place.root / CONTRACTS).iterdir())
    with ThreadPoolExecutor(_THREADS, "tier-scan") as pool:
        shards = list(pool.map(lambda shard: _look_into(place, place.root / OBJECTS / shard), SHARDS))
        contracts = list(pool.map(lambda at: _contracts_in(place, paths[at::_THREADS]), range(_THREADS)))
    entries = [entry for seen in shards for file in seen.files if (entry := _object_in(place, file, seen)) is not None]
    seen_packs = _look_into(place, place.root / PACKS)
    packs, next_pack = _packs_in(place, seen_packs)
    counters.scan_outdated += _remove_outdated(place, entries, packs)
    for number in [number for number, pack in packs.items() if not pack.living]:
        _try(place.unlink, place.pack_path(number))
        del packs[number]
    files = [entry for entry in entries if not entry.is_dead]
    amended = [record for some in contracts for record in _in_force(place, some, files, packs)]
    if damaged := sum(some.bad for some in contracts):
        log.warning("contracts_set_aside", path=str(place.root), count=damaged)
    for tally in (*shards, seen_packs, *contracts):
        counters.scan_bad += tally.bad
        counters.scan_temporary += tally.temporary
    return Found(files, list(packs.values()), next_pack, amended)


def _look_into(place: Place, directory: Path) -> _Seen:
    seen = _Seen(files=[])
    for path in list(directory.iterdir()):
        if path.suffix == TEMPORARY:
            seen.temporary += 1
            _try(place.unlink, path)
            continue
        try:
            seen.files.append(_read(path))
        except (OSError, TrailerError, msgspec.MsgspecError):
            _reject(place, path, seen)
    return seen


def _contracts_in(place: Place, paths: list[Path]) -> _Contracts:
    contracts = _Contracts(records=[])
    for path in paths:
        if path.suffix == TEMPORARY:
            contracts.temporary += 1
            _try(place.unlink, path)
            continue
        try:
            record = read_contract(path)
        except (OSError, ContractError, msgspec.MsgspecError):
            _reject(place, path, contracts)
            continue
        if path == place.contract_path(record):
            contracts.records.append(record)
        else:
            _reject(place, path, contracts)
    return contracts


def _in_force(place: Place, contracts: _Contracts, files: list[Entry], packs: dict[int, Pack]) -> Iterable[TierRecord]:
    """Those of objects that are there; the others go."""
    if not contracts.records:
        return
    there = {entry.record.identity: entry.record for entry in _all(files, packs)}
    for record in contracts.records:
        path, found = place.contract_path(record), there.get(record.identity)
        if found is None:
            _try(place.unlink, path)
        elif found.amended(record) == record:
            yield record
        else:
            _reject(place, path, contracts)


def _read(path: Path) -> _File:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        nbytes = os.fstat(fd).st_size
        return _File(path, nbytes, read_trailer(nbytes, lambda count, offset: os.pread(fd, count, offset)))
    finally:
        os.close(fd)


def _object_in(place: Place, file: _File, seen: _Seen) -> Entry | None:
    [record, *others], flags = file.trailer.body.records, file.trailer.flags
    if others or file.path != place.object_path(record) or flags[0] not in (ALIVE, DEAD):
        _reject(place, file.path, seen)
        return None
    if flags[0] == DEAD:
        _try(place.unlink, file.path)
        return None
    return Entry(record, OWN_FILE, 0, 0, file.nbytes)


def _packs_in(place: Place, seen: _Seen) -> tuple[dict[int, Pack], int]:
    packs: dict[int, Pack] = {}
    replaced: set[int] = set()
    for file in seen.files:
        name = file.path.name
        number = int(name, 16) if len(name) == 16 and set(name) <= set("0123456789abcdef") else OWN_FILE
        if number == OWN_FILE:
            _reject(place, file.path, seen)
            continue
        packs[number] = _pack_of(place, number, file, seen)
        replaced.update(file.trailer.body.replaces)
    next_pack = max((*packs, *replaced, OWN_FILE)) + 1
    # What lives in a replaced one was moved, or removed since.
    for number in replaced & packs.keys():
        _try(place.unlink, place.pack_path(number))
        del packs[number]
    return packs, next_pack


def _pack_of(place: Place, number: int, file: _File, seen: _Seen) -> Pack:
    trailer, body = file.trailer, file.trailer.body
    living = {
        at: Entry(record, number, at, offset, 0)
        for at, (record, offset, flag) in enumerate(zip(body.records, body.offsets, trailer.flags, strict=True))
        if flag == ALIVE
    }
    damaged = {at for at, flag in enumerate(trailer.flags) if flag not in (ALIVE, DEAD)}
    if damaged:
        seen.bad += len(damaged)
        _try(mark_dead, place, file.path, trailer.flags_offset, damaged)
    nbytes = sum(entry.record.nbytes for entry in living.values())
    return Pack(number, file.nbytes, trailer.flags_offset, trailer.data_nbytes, living, nbytes)


def _remove_outdated(place: Place, files: list[Entry], packs: dict[int, Pack]) -> int:
    newest: dict[str, Entry] = {}
    outdated: list[Entry] = []
    for entry in _all(files, packs):
        other = newest.setdefault(entry.record.key, entry)
        if other is entry:
            continue
        if entry.record.generation > other.record.generation:
            newest[entry.record.key] = entry
            outdated.append(other)
        else:
            outdated.append(entry)
    for entry in outdated:
        entry.is_dead = True
        if entry.pack == OWN_FILE:
            _try(place.unlink, place.object_path(entry.record))
            continue
        pack = packs[entry.pack]
        del pack.living[entry.number]
        pack.living_nbytes -= entry.record.nbytes
        _try(mark_dead, place, place.pack_path(pack.number), pack.flags_offset, {entry.number})
    return len(outdated)


def _all(files: list[Entry], packs: dict[int, Pack]) -> Iterable[Entry]:
    yield from files
    for pack in packs.values():
        yield from pack.living.values()


def _reject(place: Place, path: Path, tally: _Tally) -> None:
    tally.bad += 1
    _try(place.set_aside, path)


def _try(step: object, *args: object) -> None:
    """What cannot be cleaned away is not used all the same, and found again by the next scan."""
    assert callable(step)
    with contextlib.suppress(OSError):
        step(*args)
