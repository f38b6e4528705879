"""Removals: what they mean for the files, told by the loop and done in a thread.

An object's contract goes after the object: one that a restart finds has the contract it was last given.
"""

from collections import defaultdict

from mooncake_node.tiers.contents import OWN_FILE, Contents, Entry, Identity
from mooncake_node.tiers.drafts import Draft
from mooncake_node.tiers.place import Place
from mooncake_node.tiers.publication import Publication, mark_dead


class Removal:
    """A number of generations on their way out.

    On the loop: `add` what is to go, which takes it out of the index at once; then `carry_out` in a thread; then
    `finish` on the loop.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._publications: defaultdict[Publication, set[int]] = defaultdict(set)
        self._files: list[Entry] = []
        self._in_packs: defaultdict[int, list[Entry]] = defaultdict(list)
        self._emptied: set[int] = set()  # packs that go whole
        self._flags_offsets: dict[int, int] = {}
        self.failed: set[Identity] = set()  # still on the disk
        self.failed_drafts = 0  # perhaps on the disk
        self.error: OSError | None = None  # the last one

    @property
    def is_empty(self) -> bool:
        """There is nothing to do in a thread."""
        return not (self._publications or self._files or self._in_packs)

    def add_draft(self, draft: Draft) -> None:
        """An object that is being written."""
        draft.is_removed = True
        if draft.publication is not None:
            self._publications[draft.publication].add(draft.number)

    def add(self, entry: Entry) -> None:
        """An object that lies there, or one whose removal has failed before."""
        contents = self._contents
        contents.take_out(entry)
        if entry.pack == OWN_FILE:
            self._files.append(entry)
            return
        self._in_packs[entry.pack].append(entry)
        pack = contents.packs.get(entry.pack)
        if pack is None:
            return  # moved elsewhere without it, and unlinked or named as replaced
        self._flags_offsets[pack.number] = pack.flags_offset
        if pack.moving is not None:
            publication, numbers = pack.moving
            if entry.number in numbers:
                self._publications[publication].add(numbers[entry.number])
        elif not pack.living:
            self._emptied.add(pack.number)

    def carry_out(self, place: Place) -> None:
        """In a thread. What fails is in `failed`."""
        for publication, numbers in self._publications.items():
            try:
                publication.revoke(numbers)
            except OSError as error:
                self.error = error
                self.failed_drafts += len(numbers)
        for entry in self._files:
            try:
                place.unlink(place.object_path(entry.record))
            except OSError as error:
                self._fail([entry], error)
            else:
                self._end_contracts(place, [entry])
        for number, entries in self._in_packs.items():
            path = place.pack_path(number)
            try:
                if number in self._emptied:
                    place.unlink(path)
                elif number in self._flags_offsets:
                    mark_dead(place, path, self._flags_offsets[number], {entry.number for entry in entries})
            except OSError as error:
                self._emptied.discard(number)
                self._fail(entries, error)
            else:
                self._end_contracts(place, entries)

    def finish(self) -> int:
        """Have the index forget what is gone; return how many objects that was."""
        count = 0
        for entry in [*self._files, *(entry for entries in self._in_packs.values() for entry in entries)]:
            if entry.record.identity not in self.failed:
                count += self._contents.forget(entry)
        for number in self._emptied:
            self._contents.forget_pack(number)
        return count

    def _end_contracts(self, place: Place, entries: list[Entry]) -> None:
        for entry in entries:
            if not entry.is_amended:
                continue
            try:
                place.unlink(place.contract_path(entry.record))
            except OSError as error:
                self._fail([entry], error)

    def _fail(self, entries: list[Entry], error: OSError) -> None:
        self.error = error
        self.failed.update(entry.record.identity for entry in entries)
