"""The shared index, as the daemon writes it and as clients read it, against a dict."""

import errno
import mmap
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from xxhash import xxh3_64_intdigest

from mooncake_client import shared_index
from mooncake_client.index_layout import (
    EMPTY,
    FIRST,
    HEADER_MOVES,
    HEADER_UNLISTED,
    HEADER_VERSION,
    HEADER_WORDS,
    KEY_NBYTES_MAX,
    RECORDS_MAX,
    ROW_NBYTES,
    VERSION,
    Shape,
)
from mooncake_client.mapping import Mapping
from mooncake_client.shared_index import SharedIndex
from mooncake_node.core.replica import Replica
from mooncake_node.readers import index as index_module
from mooncake_node.readers.index import Index, open_memory, shape_for

PAGE = 4096
POOL_NBYTES = 64 * PAGE
KEYS = ["a", "b", "ä", "k" * KEY_NBYTES_MAX, "k" * (KEY_NBYTES_MAX - 1), "\x00", *(f"key{i}" for i in range(8))]
TOO_LONG = ["k" * (KEY_NBYTES_MAX + 1), "ä" * (KEY_NBYTES_MAX // 2) + "a"]


class Pool:
    """Stands in for G: every page is full of its number."""

    def __init__(self):
        self.fd = open_memory("test-pool", POOL_NBYTES)
        with mmap.mmap(self.fd, POOL_NBYTES) as memory:
            for page in range(POOL_NBYTES // PAGE):
                memory[page * PAGE : (page + 1) * PAGE] = bytes([page]) * PAGE

    def client(self, index):
        """One that reads by *index*."""
        row_fd = open_memory("test-row", ROW_NBYTES)
        descriptors = [index.control_fd, index.accessed_fd, row_fd]
        client = SharedIndex(index.shape, descriptors, Mapping(self.fd, POOL_NBYTES, writable=False), lambda: None)
        os.close(row_fd)
        return client

    def close(self):
        os.close(self.fd)


@pytest.fixture
def pool():
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def make_index():
    """Make indices of so many slots and records."""
    made = []

    def make(slots=32, records=8):
        made.append(Index(Shape(slots, records)))
        return made[-1]

    yield make
    for index in made:
        index.close()


@pytest.fixture
def index(make_index):
    return make_index()


def replica_of(key, number, **facts):
    page = number % (POOL_NBYTES // PAGE)
    return Replica(number, key, 1000 + number, page * PAGE, 1 + number % PAGE, number % 3, 0, **facts)


def listed(index, key, number=1):
    replica = replica_of(key, number)
    replica.record = index.add(replica)
    return replica


def retire(index, replica):
    index.hide([replica.record])
    index.remove([replica.record])
    replica.record = -1


def slots_of(index):
    return list(index._words[HEADER_WORDS : HEADER_WORDS + index.shape.slots])


def assert_shows(client, replica):
    view, entry = client.view(replica.key)
    assert (entry.offset, entry.end - entry.offset) == (replica.offset, replica.nbytes)
    assert (entry.kind, entry.generation, entry.id >> 24) == (replica.kind, replica.generation, replica.replica_id)
    assert bytes(view) == bytes([replica.offset // PAGE]) * replica.nbytes
    assert client.contains(replica.key) in (True, None)
    assert client.nbytes(replica.key) == replica.nbytes


# -- against a dict ----------------------------------------------------------------------------------------------------


class IndexMachine(RuleBasedStateMachine):
    """What is shown is found, by a client that remembers and by one that has just come; nothing else is."""

    hash = staticmethod(xxh3_64_intdigest)

    def __init__(self):
        super().__init__()
        self.pool = Pool()
        self.original = index_module.xxh3_64_intdigest
        index_module.xxh3_64_intdigest = shared_index.xxh3_64_intdigest = self.hash

    @initialize(slots=st.sampled_from([16, 32]))
    def start(self, slots):
        self.index = Index(Shape(slots, 8))
        self.client = self.pool.client(self.index)
        self.shown = {}
        self.hidden = []
        self.cleared = set()  # records whose slot a clear has emptied
        self.unlisted = self.moves = self.number = 0

    @property
    def records(self):
        return [*self.shown.values(), *self.hidden]

    @rule(key=st.sampled_from([*KEYS, *TOO_LONG]))
    def add(self, key):
        if key in self.shown:
            return
        self.number += 1
        replica = replica_of(key, self.number)
        record = self.index.add(replica)
        if key in TOO_LONG or len(self.records) == self.index.shape.records:
            assert record == -1
            return
        assert record not in {other.record for other in self.records}
        replica.record = record
        self.shown[key] = replica
        assert not self.index.accessed[record]

    @precondition(lambda self: self.shown)
    @rule(pick=st.integers(0, 100))
    def hide(self, pick):
        replica = self.shown.pop(sorted(self.shown)[pick % len(self.shown)])
        self.index.hide([replica.record])
        self.hidden.append(replica)

    @precondition(lambda self: self.hidden)
    @rule(pick=st.integers(0, 100), wanted=st.booleans())
    def show(self, pick, wanted):
        replica = self.hidden[pick % len(self.hidden)]
        if replica.key not in self.shown and replica.record not in self.cleared:
            self.hidden.remove(replica)
            self.shown[replica.key] = replica
            self.index.show(replica, wanted=wanted)

    @precondition(lambda self: self.hidden)
    @rule(pick=st.integers(0, 100), count=st.integers(1, 8))
    def remove(self, pick, count):
        for _ in range(min(count, len(self.hidden))):
            replica = self.hidden.pop(pick % len(self.hidden))
            self.index.remove([replica.record])
            self.cleared.discard(replica.record)

    @rule()
    def hide_all(self):
        self.index.hide_all()
        self.hidden += self.shown.values()
        self.shown.clear()
        self.cleared = {replica.record for replica in self.hidden}

    @rule(count=st.integers(0, 3))
    def set_unlisted(self, count):
        self.moves += count < self.unlisted
        self.unlisted = count
        self.index.set_unlisted(count)

    @precondition(lambda self: self.shown)
    @rule(pick=st.integers(0, 100))
    def read(self, pick):
        replica = self.shown[sorted(self.shown)[pick % len(self.shown)]]
        assert_shows(self.client, replica)
        assert self.index.accessed[replica.record]
        self.index.accessed[replica.record] = 0

    @invariant()
    def clients_find_what_is_shown_and_nothing_else(self):
        new = self.pool.client(self.index)
        for client in (self.client, new):
            for key in [*KEYS, *TOO_LONG]:
                if key in self.shown:
                    assert_shows(client, self.shown[key])
                else:
                    assert client.view(key) is None
                    assert client.nbytes(key) is None
                    assert client.contains(key) in ((None,) if self.unlisted or not key.isascii() else (False, None))

    @invariant()
    def slots_are_those_of_records(self):
        taken = sorted((word & 0xFFFF_FFFF) - FIRST for word in slots_of(self.index) if word != EMPTY)
        assert taken == sorted(r.record for r in self.records if r.record not in self.cleared)

    @invariant()
    def the_header_says_what_it_was_told(self):
        words = self.index._words
        assert words[HEADER_VERSION] == VERSION
        assert words[HEADER_UNLISTED] == self.unlisted
        assert words[HEADER_MOVES] >= self.moves

    def teardown(self):
        index_module.xxh3_64_intdigest = shared_index.xxh3_64_intdigest = self.original
        if hasattr(self, "index"):
            self.index.close()
        self.pool.close()


HASHES = {
    "xxh3": xxh3_64_intdigest,
    "all in one slot": lambda data: xxh3_64_intdigest(data) & ~0xFFFF | 15,
    "all the same": lambda _data: 0xABCD_EF01_2345_678E,
    "none": lambda _data: 0,
}


@pytest.mark.parametrize("name", HASHES)
def test_the_index_does_as_a_dict_does(name):
    machine = type("Machine", (IndexMachine,), {"hash": staticmethod(HASHES[name])})
    limits = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(machine, settings=limits)


# -- one by one --------------------------------------------------------------------------------------------------------


def test_a_full_index_lists_again_when_a_record_is_free(make_index, pool):
    index = make_index(16, 4)
    replicas = [listed(index, f"k{number}", number) for number in range(4)]
    assert listed(index, "one more", 9).record == -1
    retire(index, replicas[2])
    new = listed(index, "one more", 9)
    assert new.record == 2
    assert_shows(pool.client(index), new)


def test_a_record_that_is_another_object_now_is_not_taken_for_the_old_one(index, pool):
    client = pool.client(index)
    old = listed(index, "k", 1)
    assert_shows(client, old)
    record = old.record
    retire(index, old)
    other = listed(index, "other", 2)
    assert other.record == record
    assert client.view("k") is None
    assert client.contains("k") is False
    assert_shows(client, other)
    retire(index, other)
    again = listed(index, "k", 3)
    assert again.record == record
    assert_shows(client, again)


def test_a_hidden_one_does_not_hide_a_newer_life_of_its_key(index, pool):
    old, client = listed(index, "k", 1), pool.client(index)
    assert_shows(client, old)
    index.hide([old.record])
    new = listed(index, "k", 2)
    assert_shows(client, new)
    assert_shows(pool.client(index), new)
    index.remove([old.record])
    assert_shows(pool.client(index), new)


def test_a_look_up_ends_where_no_slot_is_empty(make_index, pool):
    """Which is never so; made so by hand."""
    index = make_index(16, 8)
    for slot in range(16):
        index._words[HEADER_WORDS + slot] = FIRST
    assert pool.client(index).view("k") is None


@pytest.mark.parametrize("count", [0, 2])
def test_while_slots_move_up_nobody_is_told_that_there_is_none(make_index, pool, monkeypatch, count):
    """A reader may look behind a word that moves, and then before it."""
    monkeypatch.setattr(index_module, "xxh3_64_intdigest", HASHES["all in one slot"])
    index, seen = make_index(16, 8), []
    first, second = listed(index, "a", 1), listed(index, "b", 2)
    index.set_unlisted(count)
    close_up = index._close_up

    def watched(hole):
        seen.append(index._words[HEADER_UNLISTED])
        close_up(hole)

    monkeypatch.setattr(index, "_close_up", watched)
    moves = index._words[HEADER_MOVES]
    retire(index, first)
    assert seen == [count + 1]
    assert (index._words[HEADER_UNLISTED], index._words[HEADER_MOVES]) == (count, moves + 1)
    retire(index, second)
    assert seen == [count + 1], "nothing had to move"
    assert set(slots_of(index)) == {EMPTY}


def test_a_full_index_is_as_good_as_new_however_long_it_is_used(make_index):
    """Else a look-up of what is not there would come to look at all of them."""
    index = make_index(4096, 2048)
    replicas = [listed(index, f"k{number}", number) for number in range(2048)]
    for number in range(2048, 12 * 2048):
        retire(index, replicas[number * 7919 % 2048])
        replicas[number * 7919 % 2048] = listed(index, f"k{number}", number)
    slots = slots_of(index)
    run = longest = 0
    for word in slots + slots:
        run = 0 if word == EMPTY else run + 1
        longest = max(longest, run)
    assert slots.count(EMPTY) == 2048
    assert longest < 100


def test_after_a_clear_old_records_take_no_slot_of_a_new_one(make_index, pool):
    index = make_index(16, 8)
    old = [listed(index, f"k{number}", number) for number in range(4)]
    index.hide_all()
    new = [listed(index, f"k{number}", 10 + number) for number in range(4)]
    for replica in old:
        index.hide([replica.record])
        index.remove([replica.record])
    for replica in new:
        assert_shows(pool.client(index), replica)
        retire(index, replica)
    assert set(slots_of(index)) == {EMPTY}


def test_the_index_of_a_pool_has_records_for_its_objects_and_slots_enough():
    for pool_nbytes in (1 << 20, 64 << 20, 100_000_000, 1 << 30, 1 << 40):
        shape = shape_for(pool_nbytes)
        assert 2 * shape.records <= shape.slots < 4 * shape.records
        assert shape.slots & (shape.slots - 1) == 0
        assert shape.records <= RECORDS_MAX
        assert shape.nbytes == 4096 + 8 * shape.slots + 128 * shape.records
    assert shape_for(64 << 20).records == (64 << 20) // 512


# -- what a client cannot do -----------------------------------------------------------------------------------------


def test_a_client_cannot_write_to_the_index(index):
    with pytest.raises(PermissionError):
        mmap.mmap(index.control_fd, index.shape.nbytes)
    with pytest.raises(OSError, match="Bad file descriptor|Invalid argument"):
        os.write(index.control_fd, b"x")


@pytest.mark.parametrize("nbytes", [0, 1 << 20])
def test_a_client_cannot_change_the_length_of_what_it_may_write(index, nbytes):
    """The daemon would die of the next look at what is cut off."""
    with pytest.raises(OSError) as caught:
        os.ftruncate(index.accessed_fd, nbytes)
    assert caught.value.errno == errno.EPERM


def test_a_key_that_is_no_text_is_not_in_there(index, pool):
    listed(index, "1", 1)
    client = pool.client(index)
    for key in (1, b"1", None, "\ud800", ["1"], "", ("1",)):
        assert client.view(key) is None
