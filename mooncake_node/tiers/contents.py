"""What lies in a directory, as its event loop knows it. No IO; only the loop changes it."""

import msgspec

from mooncake_node.tiers.contracts import CONTRACT_NBYTES
from mooncake_node.tiers.packs import Member, PackWritten
from mooncake_node.tiers.place import Place
from mooncake_node.tiers.port import TierRecord
from mooncake_node.tiers.publication import Publication

OWN_FILE = 0  # in the place of a pack's number
PACK_SMALL_NBYTES = 256 << 10  # below this, and with fewer objects, a pack takes in what comes next
PACK_SMALL_OBJECTS = 256
_MOSTLY_DEAD_SHARE = 4  # less than a fourth of it lives
_REWRITTEN_FROM_NBYTES = 64 << 10  # what is smaller waits for company

Identity = tuple[str, int]


class Entry(msgspec.Struct, gc=False, eq=False):
    """An object and where it lies."""

    record: TierRecord
    pack: int  # number of its pack, or OWN_FILE
    number: int  # in the pack
    offset: int  # in the file
    file_nbytes: int  # of its own file; 0 in a pack
    is_dead: bool = False  # removed; still in the index only while the disk has not let go of it
    is_amended: bool = False  # its contract has a file of its own, or may have; never changed in a dead one
    contract_nbytes: int = 0  # of that file


class Pack(msgspec.Struct, eq=False):
    """A pack and what lives in it."""

    number: int
    file_nbytes: int
    flags_offset: int
    data_nbytes: int
    living: dict[int, Entry]  # by number, all and only those that are not removed
    living_nbytes: int  # of their data
    # While its objects are being moved: to where, and old number -> new number.
    moving: tuple[Publication, dict[int, int]] | None = None
    is_fixed: bool = False  # its objects could not be moved: not tried again

    @property
    def is_small(self) -> bool:
        """It costs more than it holds, and should take in others."""
        return self.data_nbytes < PACK_SMALL_NBYTES and len(self.living) < PACK_SMALL_OBJECTS

    @property
    def is_mostly_dead(self) -> bool:
        """To write it anew would give back most of it."""
        return self.data_nbytes >= _REWRITTEN_FROM_NBYTES and self.living_nbytes * _MOSTLY_DEAD_SHARE < self.data_nbytes


class Contents:
    """The index of a directory, and its bytes."""

    def __init__(self, bytes_limit: int) -> None:
        self.bytes_limit = bytes_limit
        self.index: dict[Identity, Entry] = {}  # living ones, and dead ones that the disk has not let go
        self.packs: dict[int, Pack] = {}
        self.movable: set[int] = set()  # numbers of packs worth writing anew
        self.stale: dict[int, int] = {}  # packs replaced but not yet unlinked: number -> bytes
        self.next_pack = OWN_FILE + 1
        self.objects = 0  # living
        self.file_nbytes = 0  # of all files there are
        self.reserved_nbytes = 0  # for files being written

    @property
    def bytes_used(self) -> int:
        """What there is, and what is on its way."""
        return self.file_nbytes + self.reserved_nbytes

    @property
    def has_mostly_dead(self) -> bool:
        """A pack is worth writing anew for its own sake."""
        return any(self.packs[number].is_mostly_dead for number in self.movable)

    def living(self, identity: Identity) -> Entry | None:
        """The object, if it can be read."""
        entry = self.index.get(identity)
        return None if entry is None or entry.is_dead else entry

    def add_file(self, record: TierRecord, file_nbytes: int) -> None:
        """An object has a file of its own now."""
        self._add(Entry(record, OWN_FILE, 0, 0, file_nbytes))
        self.file_nbytes += file_nbytes

    def add_pack(self, pack: Pack) -> None:
        """A pack is there now; its living ones are in *pack*, and in no other."""
        for entry in pack.living.values():
            self._add(entry)
        self.packs[pack.number] = pack
        self.file_nbytes += pack.file_nbytes
        self.next_pack = max(self.next_pack, pack.number + 1)
        self._judge(pack)

    def replace_packs(self, number: int, flags_offset: int, written: PackWritten, living: dict[int, Entry]) -> None:
        """Objects were moved into a new pack, others written with them; *living* are those of both that still live."""
        for new_number, entry in living.items():
            old = self.packs.get(entry.pack)
            if old is not None and old.living.pop(entry.number, None) is not None:
                old.living_nbytes -= entry.record.nbytes
                self.objects -= 1  # and counted again below
            entry.pack, entry.number, entry.offset = number, new_number, written.offsets[new_number]
        living_nbytes = sum(entry.record.nbytes for entry in living.values())
        self.add_pack(Pack(number, written.file_nbytes, flags_offset, written.data_nbytes, living, living_nbytes))

    def amend(self, entry: Entry, record: TierRecord) -> None:
        """The contract of *record* has a file of its own now, the only one for this object."""
        assert entry.record.identity == record.identity
        entry.record = record
        entry.is_amended = True
        self.file_nbytes += CONTRACT_NBYTES - entry.contract_nbytes
        entry.contract_nbytes = CONTRACT_NBYTES

    def take_out(self, entry: Entry) -> None:
        """The object is not to be read again; its bytes are still there."""
        if entry.is_dead:
            return
        entry.is_dead = True
        self.objects -= 1
        pack = self.packs.get(entry.pack)
        if pack is not None:
            del pack.living[entry.number]
            pack.living_nbytes -= entry.record.nbytes
            self._judge(pack)

    def forget(self, entry: Entry) -> bool:
        """The disk has let go of an object that was taken out; False if that was known."""
        assert entry.is_dead
        if self.index.get(entry.record.identity) is not entry:
            return False
        del self.index[entry.record.identity]
        self.file_nbytes -= entry.file_nbytes + entry.contract_nbytes
        return True

    def forget_pack(self, number: int) -> None:
        """The file of a pack is gone."""
        pack = self.packs.pop(number, None)
        self.movable.discard(number)
        if pack is not None:
            assert not pack.living
            self.file_nbytes -= pack.file_nbytes
        self.file_nbytes -= self.stale.pop(number, 0)

    def make_stale(self, number: int) -> None:
        """All that lived in a pack lives elsewhere, but its file could not be unlinked."""
        pack = self.packs.pop(number, None)
        self.movable.discard(number)
        if pack is not None:
            assert not pack.living
            self.stale[number] = pack.file_nbytes

    def fix(self, number: int) -> None:
        """Leave a pack as it is from now on."""
        self.packs[number].is_fixed = True
        self.movable.discard(number)

    def members(self, pack: Pack, place: Place) -> list[tuple[Entry, Member]]:
        """What lives in a pack."""
        path = place.pack_path(pack.number)
        return [(entry, Member(entry.record, path, entry.offset)) for entry in pack.living.values()]

    def check_invariants(self) -> None:
        """Raise AssertionError where two of these numbers contradict each other. For tests."""
        entries = list(self.index.values())
        living = [entry for entry in entries if not entry.is_dead]
        assert self.objects == len(living)
        held = {id(entry) for pack in self.packs.values() for entry in pack.living.values()}
        assert held == {id(entry) for entry in living if entry.pack != OWN_FILE}
        for pack in self.packs.values():
            assert all(entry.pack == pack.number for entry in pack.living.values())
            assert pack.living_nbytes == sum(entry.record.nbytes for entry in pack.living.values())
        assert all(entry.is_amended for entry in entries if entry.contract_nbytes)
        files = sum(entry.file_nbytes + entry.contract_nbytes for entry in entries)
        assert self.file_nbytes == files + sum(p.file_nbytes for p in self.packs.values()) + sum(self.stale.values())

    def _add(self, entry: Entry) -> None:
        before = self.index.get(entry.record.identity)
        if before is not None and before is not entry:
            assert before.is_dead
            assert not before.is_amended
            self.file_nbytes -= before.file_nbytes
        self.index[entry.record.identity] = entry
        self.objects += 1

    def _judge(self, pack: Pack) -> None:
        if not pack.is_fixed and pack.living and (pack.is_small or pack.is_mostly_dead):
            self.movable.add(pack.number)
        else:
            self.movable.discard(pack.number)
