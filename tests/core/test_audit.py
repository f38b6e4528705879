"""The audit finds every damage it is there to find: one by one, done by hand to a sound master."""

import ast
import inspect
from types import SimpleNamespace

import pytest

from mooncake_node.core import audit
from mooncake_node.core.audit import check_invariants
from mooncake_node.core.replica import Contract, ReplicaState
from mooncake_node.core.sessions import Held
from mooncake_node.core.waiting import PutMode

PAGE = 4096


@pytest.fixture
def make_scene(make_doomed_core):
    """Make masters with one of everything; their pools are full."""

    def make():
        core = make_doomed_core(8, hard_pin_nbytes_max=8 * PAGE)
        a, b, c = core.open("a"), core.open("b"), core.open("c")
        condemned = core.store(a, "condemned")
        doomed = core.put(a, "doomed")
        core.clear()
        current = core.store(a, "current", softpin=True)
        handle = core.get(b, "current")
        stashed = core.store(a, "stashed")
        core.get(b, "stashed")
        core.remove("stashed")
        upsert = core.put(b, "current", mode=PutMode.UPSERT, hardpin=True)
        written = core.put(a, "written", 3 * PAGE)
        reader, turn = core.get(b, "written"), core.put(b, "written")
        room, presence = core.put(b, "big", 4 * PAGE), core.wait(c, "nothing")
        assert core.stat("pool.bytes_free") == 0
        return SimpleNamespace(**locals(), m=core.master, t=core.master.table, w=core.master.waiting)

    return make


def move(group, old, new):
    group[new] = group.pop(old)


def share_the_room(s):
    s.stashed.offset = s.current.offset


def lose_the_memory_of_a_handle(s):
    del s.t.stash[s.stashed.replica_id]
    s.t.stash_nbytes -= PAGE


def lose_every_replica(s):
    for group in (s.t.current, s.t.writing, s.t.stash, s.t.doomed, s.t.condemned):
        group.clear()


def swap_who_waits_for_room(s):
    s.w.for_room[s.room.number] = s.reader


def forget_that_room_was_waited_for(s):
    """As a master would that missed to look at the queue when room came back."""
    s.m.space.free(s.condemned.offset, PAGE)
    s.t.condemned.clear()
    s.room.put = type(s.room.put)(key="big", nbytes=PAGE, contract=s.room.put.contract)


def die_without_leaving_the_waiting_room(s):
    del s.m.sessions[s.c.session_id]
    s.c.open = False


def wait_for_another_key(s, waiter, key):
    del s.w.by_key[waiter.key][waiter.number]
    s.w.by_key.setdefault(key, {})[waiter.number] = waiter
    waiter.key = key


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
    share_the_room,
    do("beyond the pool", lambda s: setattr(max(s.t.all_replicas(), key=lambda r: r.offset), "offset", 8 * PAGE)),
    do("room freed too early", lambda s: s.m.space.free(s.written.offset, 3 * PAGE)),
    lose_every_replica,
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
    set_("reader", "put", lambda s: s.turn.put),
    set_("turn", "put", None),
    do("presence of what is there", lambda s: wait_for_another_key(s, s.presence, "current")),
    do("a reader of what nobody writes", lambda s: wait_for_another_key(s, s.reader, "x")),
    do("a waiter that is listed and not there", lambda s: s.w.by_key.update({"x": {98: s.reader}})),
    do("a place for room that is nobody's", lambda s: s.w.for_room.update({98: s.reader})),
    swap_who_waits_for_room,
    forget_that_room_was_waited_for,
    # counters
    set_("m", "handle_count", 99),
    set_("m", "held", lambda _: Held(1, 1)),
    set_("t", "writing_nbytes", 1),
    set_("t", "stash_nbytes", 0),
    set_("t", "doomed_nbytes", 0),
    set_("t", "quarantine_nbytes", 1),
    set_("current", "contract", Contract()),
    set_("upsert", "contract", Contract()),
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


def test_every_assertion_of_the_audit_is_the_first_to_find_some_damage(make_scene):
    """Else it might be one that cannot fail."""
    source = inspect.getsource(audit)
    lines = source.splitlines()
    asserts = {node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)}
    idle = asserts - {found_at(make_scene(), damage) for damage in DAMAGES}
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
