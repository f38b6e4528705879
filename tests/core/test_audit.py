"""The audit finds every damage it is there to find: one by one, done by hand to a sound master."""

import ast
import inspect
from types import SimpleNamespace

import msgspec
import pytest

from mooncake_node.core import audit
from mooncake_node.core.audit import check_invariants
from mooncake_node.core.jobs import Load, Offload
from mooncake_node.core.loads import Loading
from mooncake_node.core.replica import Contract, DiskCopy, Rank, ReplicaState, Shelf
from mooncake_node.core.sessions import Held
from mooncake_node.core.waiting import PutMode, Want
from tests.core.far import BROKEN, found

PAGE = 4096


@pytest.fixture
def make_scene(make_doomed_core):
    """Make masters with one of everything; their pools are full."""

    def make():
        core = make_doomed_core(11, hard_pin_nbytes_max=8 * PAGE, tier_nbytes_max=100 * PAGE)
        a, b, c = core.open("a"), core.open("b"), core.open("c")
        condemned = core.store(a, "condemned")
        doomed = core.put(a, "doomed")
        core.clear()
        core.offload(a, "wanted", 4 * PAGE)
        core.offload(a, "loaded")
        loads = core.master.admission.loads.by_key
        isolated = core.store(a, "isolated", softpin=True)
        core.rescue(isolated)
        listed = core.store(a, "listed", softpin=True)
        current = core.store(a, "current", softpin=True)
        handle = core.get(b, "current")
        stashed = core.store(a, "stashed")
        core.get(b, "stashed")
        core.remove("stashed")
        upsert = core.put(b, "current", mode=PutMode.UPSERT, hardpin=True)
        written = core.put(a, "written", 3 * PAGE)
        reader, turn = core.get(b, "written"), core.put(b, "written")
        asker, loading = core.get(c, "loaded"), loads["loaded"]
        into, on_disk = loading.into, loading.on_disk
        room, presence = core.put(b, "big", 4 * PAGE), core.wait(c, "nothing")
        core.get(c, "wanted")
        loader = loads["wanted"].waiter
        assert core.stat("pool.bytes_free") == 0
        m, o = core.master, core.master.objects
        return SimpleNamespace(**locals(), t=m.table, w=m.waiting, disk=o.disk)

    return make


@pytest.fixture
def make_far_scene(make_doomed_core):
    """Make masters with one of everything that has to do with other nodes."""

    def make():
        core = make_doomed_core(12, has_peers=True)
        a = core.open("a")
        secondary, pinned = core.far.cache(a, "secondary"), core.store(a, "pinned", softpin=True)
        read = core.far.copy(a, "read").replica
        _, pull = core.far.begin(a, "quarantined", found())
        quarantined = pull.replica
        core.far.pulled(quarantined, BROKEN, quiesced=False)
        _, pull = core.far.begin(a, "pulled", found())
        leaving = core.far.store(a, "leaving")
        core.remove("leaving")
        core.get(a, "sought")
        m, o = core.master, core.master.objects
        loads = m.admission.loads.by_key
        pulled, sought, into = loads["pulled"], loads["sought"], loads["pulled"].into
        return SimpleNamespace(**locals(), t=m.table)

    return make


def move(group, old, new):
    group[new] = group.pop(old)


def put_elsewhere(s, replica, offset):
    """Where nobody looks for it."""
    del s.o.at[replica.offset]
    replica.offset = offset
    s.o.at[offset] = replica


def forget_memory(s, group, replica):
    del s.o.at[group.pop(replica.replica_id).offset]


def lose_the_memory_of_a_handle(s):
    forget_memory(s, s.t.stash, s.stashed)
    s.t.stash_nbytes -= PAGE


def lose_every_replica(s):
    s.o.at.clear()
    s.t.current = {key: r for key, r in s.t.current.items() if r.state is S.ON_DISK}
    for group in (s.t.writing, s.t.loading, s.t.stash, s.t.doomed, s.t.condemned):
        group.clear()


def swap_who_waits_for_room(s):
    s.w.for_room[s.room.number] = s.reader


def forget_that_room_was_waited_for(s):
    """As a master would that missed to look at the queue when room came back."""
    s.m.space.free(s.condemned.offset, PAGE)
    del s.o.at[s.condemned.offset]
    s.t.condemned.clear()
    s.room.nbytes = PAGE


def die_without_leaving_the_waiting_room(s):
    del s.m.sessions[s.c.session_id]
    s.c.open = False


def wait_for_another_key(s, waiter, key):
    del s.w.by_key[waiter.key][waiter.number]
    s.w.by_key.setdefault(key, {})[waiter.number] = waiter
    waiter.key = key


def turn_a_load_away(s):
    del s.w.for_room[s.loader.number]
    s.loader.want = Want.LOAD


def forget_a_load(s):
    """That waits for room, and with it who does."""
    s.w.close(s.loads.pop("wanted").waiter)


def isolate(name):
    """As if it were on its way to disk."""

    def damage(s):
        replica = getattr(s, name)
        replica.state, replica.transfers = S.ISOLATED, 1

    damage.__name__ = f"{name} is isolated"
    return damage


def write_what_another_node_owns(s):
    isolate("read")(s)
    s.read.shelf, s.o.isolated_nbytes = Shelf.NONE, PAGE


def set_(name, field, value):
    """A damage that gives *field* of *name* a wrong value."""

    def damage(s):
        setattr(getattr(s, name), field, value(s) if callable(value) else value)

    damage.__name__ = f"{name}.{field}"
    return damage


def do(name, action):
    action.__name__ = name
    return action


S = ReplicaState

DAMAGES = [
    # states
    do("current under another name", lambda s: move(s.t.current, "current", "x")),
    set_("current", "state", S.STASHED),
    set_("current", "writer", 1),
    set_("isolated", "transfers", 0),
    do("written under another name", lambda s: move(s.t.writing, "written", "x")),
    set_("written", "state", S.COMPLETE),
    set_("written", "writer", 99),
    set_("upsert", "generation", lambda s: s.current.generation),
    do("stash under another id", lambda s: move(s.t.stash, s.stashed.replica_id, 99)),
    set_("stashed", "state", S.GONE),
    set_("doomed", "state", S.WRITING),
    do("quarantine of a readable one", lambda s: s.t.quarantine.update({s.current.replica_id: s.current})),
    set_("stashed", "refs", 0),
    set_("condemned", "state", S.STASHED),
    # room
    do("a replica nobody finds by its address", lambda s: s.o.at.pop(s.stashed.offset)),
    do("two in one room", lambda s: put_elsewhere(s, s.stashed, s.current.offset + 64)),
    do("beyond the pool", lambda s: put_elsewhere(s, s.o.at[max(s.o.at)], 11 * PAGE)),
    do("room freed too early", lambda s: s.m.space.free(s.written.offset, 3 * PAGE)),
    lose_every_replica,
    # lists
    isolate("listed"),
    set_("listed", "refs", 1),
    set_("listed", "pinned", True),
    set_("listed", "contract", Contract(softpin=True, hardpin=True)),
    set_("listed", "copy", DiskCopy("record", PAGE)),
    set_("listed", "rank", Rank.PLAIN),
    isolate("current"),
    set_("current", "refs", 0),
    set_("current", "shelf", Shelf.NONE),
    # loads and jobs
    set_("loading", "on_disk", lambda s: s.current),
    do("a load under another name", lambda s: move(s.loads, "loaded", "x")),
    do("a load of what is in memory", lambda s: s.loads.update(current=Loading("current", s.current))),
    set_("into", "generation", 1),
    do("a load without a place in the queue", lambda s: setattr(s.loads["wanted"], "waiter", None)),
    set_("loader", "open", False),
    do("a load without its room", lambda s: setattr(s.loading, "into", None) or setattr(s.loading, "waiter", s.loader)),
    forget_a_load,
    do("a write of what is not read", lambda s: s.o.jobs.append(Offload(s.current))),
    do("a load into what is readable", lambda s: s.o.jobs.append(Load(s.current, "record"))),
    set_("o", "isolated_nbytes", 0),
    # sessions and handles
    set_("a", "open", False),
    set_("a", "session_id", 99),
    set_("handle", "handle_id", 99),
    set_("b", "next_handle_id", 1),
    do("reservation under another id", lambda s: move(s.a.reservations, s.written.replica_id, 99)),
    set_("doomed", "writer", lambda s: s.b.session_id),
    do("a reservation nobody has", lambda s: s.a.reservations.pop(s.written.replica_id)),
    set_("current", "refs", 5),
    lose_the_memory_of_a_handle,
    # waiters
    set_("w", "_closed_in_heap", 1),
    set_("b", "waiting", 7),
    die_without_leaving_the_waiting_room,
    do("a waiter under another number", lambda s: move(s.w.by_key["nothing"], s.presence.number, 99)),
    do("a waiter that left the queue for room", lambda s: s.w.for_room.clear()),
    turn_a_load_away,
    do("an asker for what is not loaded", lambda s: wait_for_another_key(s, s.asker, "x")),
    set_("reader", "put", lambda s: s.turn.put),
    set_("turn", "put", None),
    do("presence of what is there", lambda s: wait_for_another_key(s, s.presence, "current")),
    do("a reader of what nobody writes", lambda s: wait_for_another_key(s, s.reader, "x")),
    do("a waiter that is listed and not there", lambda s: s.w.by_key.update({"x": {98: s.reader}})),
    do("a place for room that is nobody's", lambda s: s.w.for_room.update({98: s.reader})),
    swap_who_waits_for_room,
    forget_that_room_was_waited_for,
    # index
    set_("written", "record", 3),
    do("a pin nobody knows of", lambda s: setattr(s.stashed, "pinned", True)),
    do("an object that is not counted as unlisted", lambda s: setattr(s.o.index, "unlisted", 0)),
    # counters
    set_("o", "held", lambda _: Held(1, 1)),
    set_("t", "writing_nbytes", 1),
    set_("t", "stash_nbytes", 0),
    set_("t", "doomed_nbytes", 0),
    set_("t", "quarantine_nbytes", 1),
    set_("disk", "writing_nbytes", 0),
    set_("current", "contract", Contract()),
    set_("upsert", "contract", Contract()),
]


FAR_DAMAGES = [
    do("a copy from nowhere", lambda s: setattr(s.pulled, "found", None)),
    do("a copy of another generation", lambda s: setattr(s.into, "generation", 1)),
    do("a search that nobody makes", lambda s: setattr(s.sought, "seeking", False)),
    set_("pinned", "remembered", Contract(softpin=True)),
    do(
        "a copy on a node alone", lambda s: setattr(s.m, "config", msgspec.structs.replace(s.m.config, has_peers=False))
    ),
    write_what_another_node_owns,
    set_("read", "copy", DiskCopy("record", PAGE)),
    set_("read", "contract", Contract(softpin=True)),
    set_("quarantined", "loans", -1),
    set_("leaving", "told", True),
    do("an entry that holds nothing", lambda s: (setattr(s.leaving, "loans", 0), setattr(s.leaving, "refs", 1))),
    set_("o", "leaving_nbytes", 2 * PAGE),
    set_("quarantined", "pinned", True),
]


def found_at(scene, damage):
    """The line of audit.py where *damage* is found."""
    check_invariants(scene.m)
    damage(scene)
    with pytest.raises(AssertionError) as caught:
        check_invariants(scene.m)
    return [entry.lineno + 1 for entry in caught.traceback if entry.path.name == "audit.py"][-1]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_the_audit_finds(make_scene, damage):
    assert found_at(make_scene(), damage)


@pytest.mark.parametrize("damage", FAR_DAMAGES, ids=lambda damage: damage.__name__)
def test_the_audit_finds_of_other_nodes(make_far_scene, damage):
    assert found_at(make_far_scene(), damage)


def test_every_assertion_of_the_audit_is_the_first_to_find_some_damage(make_scene, make_far_scene):
    """Else it might be one that cannot fail."""
    source = inspect.getsource(audit)
    lines = source.splitlines()
    asserts = {node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)}
    idle = asserts - {found_at(make_scene(), damage) for damage in DAMAGES}
    idle -= {found_at(make_far_scene(), damage) for damage in FAR_DAMAGES}
    assert [lines[n - 1].strip() for n in sorted(idle)] == []


def test_the_audit_finds_room_that_nobody_has(make_doomed_core):
    """The allocator is sound here; only nobody remembers what it gave."""
    core = make_doomed_core(4)
    core.master.space.reserve(PAGE)
    with pytest.raises(AssertionError):
        check_invariants(core.master)


def test_the_audit_finds_an_unsound_allocator(make_doomed_core):
    core = make_doomed_core(4)
    core.master.space._extents.nfree -= 1
    with pytest.raises(AssertionError):
        check_invariants(core.master)
