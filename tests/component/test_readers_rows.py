"""The rows in which clients pin, and the port that the core asks: what is in them is counted, and not trusted."""

import errno
import gc
import mmap
import os
from pathlib import Path

import msgspec
import pytest

from mooncake_client.index_layout import ROW_HITS, ROW_LIMIT, ROW_NBYTES, ROW_PINS, ROW_PINS_MAX, ROW_WORDS
from mooncake_node.core.readers import Readers
from mooncake_node.core.replica import Replica
from mooncake_node.readers import SharedReaders
from mooncake_node.readers.rows import Rows

PAGE = 4096
LAST = ROW_PINS + ROW_PINS_MAX - 1


class Row:
    """As its client has it."""

    def __init__(self, fd):
        self.words = memoryview(mmap.mmap(fd, ROW_NBYTES)).cast("Q")
        os.close(fd)

    def pin(self, id_, at=ROW_PINS):
        self.words[ROW_LIMIT] = max(self.words[ROW_LIMIT], at - ROW_PINS + 1)
        self.words[at] = id_


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def readers():
    readers: Readers = SharedReaders(64 << 20)
    assert readers.works
    yield readers
    readers.close()


def row_of(rows, session_id):
    return Row(rows.open(session_id))


def client_of(readers, session_id):
    return Row(readers.open_row(session_id)[-1])


def listed(readers, key, number):
    replica = Replica(number, key, number, number * PAGE, PAGE, 0, 0)
    readers.list(replica)
    return replica


def id_of(replica):
    return replica.replica_id << 24 | replica.record


# -- rows ------------------------------------------------------------------------------------------------------------


def test_no_rows_have_nothing_pinned(rows):
    assert (len(rows), rows.pinned([1, 2]), rows.counts(1), rows.all_counts(), rows.pins, rows.hits) == (
        0, set(), {}, {}, 0, 0,
    )  # fmt: skip
    assert not rows.has_pins(1)
    assert not rows.close(1)


def test_an_empty_row_has_nothing_pinned(rows):
    row_of(rows, 1)
    assert (len(rows), rows.pinned([0, 1]), rows.pins, rows.has_pins(1)) == (1, set(), 0, False)


@pytest.mark.parametrize("at", [ROW_PINS, ROW_PINS + 63, ROW_PINS + 64, LAST])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_pin_is_seen_wherever_it_is(rows, at, others):
    for number in range(others):
        row_of(rows, 10 + number).pin(7, ROW_PINS + number)
    row_of(rows, 1).pin(1 << 63, at)
    assert rows.pinned([1 << 63]) == {1 << 63}
    assert rows.pinned([5, 1 << 63, 6]) == {1 << 63}
    assert rows.pinned([5]) == rows.pinned([5, 6]) == set()
    assert rows.counts(1 << 63) == {1: 1}
    assert rows.pins == 1 + others
    assert rows.has_pins(1)


def test_pins_are_counted_by_client_and_by_id(rows):
    first, second = row_of(rows, 1), row_of(rows, 2)
    for at, id_ in enumerate([7, 8, 7, 0, 7]):
        first.pin(id_, ROW_PINS + at)
    second.pin(7)
    assert rows.counts(7) == {1: 3, 2: 1}
    assert rows.counts(8) == {1: 1}
    counts = rows.all_counts()
    assert (counts[7], counts[8], rows.pins) == (4, 1, 5)
    assert rows.pinned([7, 8, 9]) == {7, 8}
    first.words[ROW_PINS] = 0
    assert rows.counts(7) == {1: 2, 2: 1}


def test_a_limit_is_not_trusted_beyond_the_row(rows):
    row = row_of(rows, 1)
    row.pin(7, LAST)
    for limit in (ROW_PINS_MAX, ROW_PINS_MAX + 1, ROW_WORDS, 1 << 63, (1 << 64) - 1):
        row.words[ROW_LIMIT] = limit
        assert (rows.pinned([7]), rows.pinned([7, 8]), rows.pins) == ({7}, {7}, 1)
        assert (rows.counts(7), rows.all_counts()[7], rows.has_pins(1)) == ({1: 1}, 1, True)


def test_a_client_that_takes_its_limit_back_loses_its_own_pins_only(rows):
    row, other = row_of(rows, 1), row_of(rows, 2)
    row.pin(7)
    other.pin(8)
    row.words[ROW_LIMIT] = 0
    assert rows.pinned([7, 8]) == {8}


def test_hits_and_limit_are_no_pins(rows):
    row = row_of(rows, 1)
    row.words[ROW_HITS] = 7
    row.words[ROW_LIMIT] = 9
    assert rows.pinned([7, 9]) == set()


def test_hits_outlive_their_row_and_can_be_sent_whatever_they_are(rows):
    row = row_of(rows, 1)
    row.words[ROW_HITS] = 5
    assert rows.close(1)
    row_of(rows, 2).words[ROW_HITS] = 6
    assert rows.hits == 11
    for session_id in (3, 4):
        row_of(rows, session_id).words[ROW_HITS] = (1 << 64) - 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rows.hits)) == rows.hits > 11


def test_a_closed_row_counts_no_more_though_its_client_still_writes(rows):
    row = row_of(rows, 1)
    row.pin(7)
    assert rows.close(1)
    assert not rows.close(1)
    row.pin(8, ROW_PINS + 1)
    assert (rows.pinned([7, 8]), rows.pins, rows.has_pins(1), len(rows)) == (set(), 0, False, 0)


def test_the_next_row_of_the_same_name_is_empty(rows):
    row_of(rows, 1).pin(7)
    rows.close(1)
    row_of(rows, 1)
    assert rows.pins == 0


@pytest.mark.parametrize("nbytes", [0, 2 * ROW_NBYTES])
def test_a_client_cannot_change_the_length_of_its_row(rows, nbytes):
    fd = rows.open(1)
    with pytest.raises(OSError) as caught:
        os.ftruncate(fd, nbytes)
    assert caught.value.errno == errno.EPERM
    os.close(fd)
    assert rows.pins == 0


# -- the port --------------------------------------------------------------------------------------------------------


def test_the_port_finds_what_is_pinned_by_id_and_not_by_place(readers):
    client = client_of(readers, 1)
    old = listed(readers, "k", 1)
    client.pin(id_of(old))
    assert readers.pinned([old]) == {1}
    assert readers.hide([old])
    assert readers.pinned([old]) == {1}
    client.words[ROW_PINS] = 0
    assert readers.pinned([old]) == set()
    record = old.record
    readers.unlist([old])
    assert old.record == -1
    new = listed(readers, "k", 2)
    assert new.record == record
    client.pin(1 << 24 | record)
    assert readers.pinned([new]) == set()


def test_without_rows_nobody_has_to_be_asked(readers):
    replica = listed(readers, "k", 1)
    assert not readers.hide([replica])
    assert readers.pinned([replica]) == set()
    assert not readers.close_row(1)


def test_what_has_no_record_is_left_alone(readers):
    client_of(readers, 1)
    replica = listed(readers, "k" * 100, 1)
    assert replica.record == -1
    readers.show(replica, wanted=True)
    readers.want(replica, wanted=True)
    assert not readers.take_accessed(replica)
    assert (readers.holders(replica), readers.pin_counts([replica])) == ({}, [0])


def test_nothing_hidden_is_pinned_by_nobody(readers):
    client_of(readers, 1)
    assert not readers.hide([])
    readers.unlist([])
    assert readers.pinned([]) == set()


def test_what_was_read_was_read_once(readers):
    replica = listed(readers, "k", 1)
    assert not readers.take_accessed(replica)
    accessed_fd = readers.open_row(1)[1]
    # As its client does.
    mmap.mmap(accessed_fd, readers.shape.records)[replica.record] = 1
    assert readers.take_accessed(replica)
    assert not readers.take_accessed(replica)


def test_pins_are_shown_by_holder_and_in_a_list(readers):
    first, second = client_of(readers, 1), client_of(readers, 2)
    a, b, c = (listed(readers, key, number) for number, key in enumerate("abc", 1))
    first.pin(id_of(a))
    first.pin(id_of(b), ROW_PINS + 1)
    second.pin(id_of(a))
    assert readers.holders(a) == {1: 1, 2: 1}
    assert readers.holders(c) == {}
    assert readers.pin_counts([c, a, b]) == [0, 2, 1]
    assert (readers.pins, readers.has_pins(1), readers.has_pins(3)) == (3, True, False)
    assert readers.close_row(1)
    assert readers.pin_counts([c, a, b]) == [0, 1, 0]


def test_hits_are_those_of_all_clients(readers):
    client_of(readers, 1).words[ROW_HITS] = 3
    readers.close_row(1)
    client_of(readers, 2).words[ROW_HITS] = 4
    assert readers.hits == 7


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_rows_cost_the_daemon_no_descriptors(readers):
    gc.collect()
    before = descriptors()
    for session_id in range(20):
        client_of(readers, session_id)
    # A mapping keeps a duplicate of its own, on either side of this process.
    assert descriptors() <= before + 20
    for session_id in range(20):
        readers.close_row(session_id)
    assert descriptors() == before
