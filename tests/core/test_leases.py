"""Leases: promises to remote readers, alone and in the master."""

import random

import pytest

from mooncake_client.codes import Code
from mooncake_node.core.leases import Leases
from mooncake_node.core.replica import Replica, ReplicaState, Shelf
from mooncake_node.core.waiting import PutMode, Want

PAGE = 4096
TTL = 100


@pytest.fixture
def core(make_core):
    return make_core(lease_ttl_ns=TTL)


def test_a_lease_runs_for_the_nodes_ttl_and_parks_its_replica(core):
    replica = core.store(core.open(), "k")
    assert replica.shelf is Shelf.INACTIVE
    token = core.lease("k")
    assert token > 0
    assert (replica.leased_until_ns, replica.shelf) == (core.now + TTL, Shelf.PARKED)
    assert (core.stat("leases"), core.stat("reclaim.parked_lease_only")) == (1, 1)


def test_every_lease_has_a_token_of_its_own(core):
    a = core.open()
    core.fill(a, 2)
    tokens = [core.lease(key) for key in ("k0", "k1", "k0")]
    assert len({*tokens}) == 3
    assert core.stat("leases") == 3


def test_a_lease_of_nothing_is_not_found_and_of_a_key_being_written_not_ready(core):
    with core.refuses(Code.NOT_FOUND):
        core.lease("k")
    core.put(core.open(), "k")
    with core.refuses(Code.NOT_READY):
        core.lease("k")


def test_an_early_release_of_the_only_lease_ends_it_at_once(core):
    replica = core.store(core.open(), "k")
    token = core.lease("k")
    core.now += 7
    core.release_lease(replica, token)
    assert (replica.leased_until_ns, replica.shelf, replica.accessed) == (core.now, Shelf.INACTIVE, True)
    assert core.stat("leases") == 0


def test_of_several_leases_only_the_last_early_release_ends_them(core):
    replica = core.store(core.open(), "k")
    tokens = []
    for _ in range(3):
        tokens.append(core.lease("k"))
        core.now += 10
    core.release_lease(replica, tokens[0])
    core.release_lease(replica, tokens[1])
    assert (replica.leased_until_ns, replica.shelf, core.stat("leases")) == (core.now - 10 + TTL, Shelf.PARKED, 1)
    core.release_lease(replica, tokens[2])
    assert (replica.leased_until_ns, replica.shelf, core.stat("leases")) == (core.now, Shelf.INACTIVE, 0)


def test_when_the_youngest_is_released_the_lease_ends_with_the_youngest_of_those_left(core):
    replica = core.store(core.open(), "k")
    first = core.lease("k")
    core.now += 10
    second = core.lease("k")
    core.now += 10
    third = core.lease("k")
    core.release_lease(replica, third)
    assert replica.leased_until_ns == core.now - 10 + TTL
    core.release_lease(replica, second)
    assert replica.leased_until_ns == core.now - 20 + TTL
    core.release_lease(replica, first)
    assert replica.leased_until_ns == core.now


def test_a_release_ends_leases_that_have_run_out_unseen(core):
    """The last that runs is released, while older ones are over and no timer has rung."""
    replica = core.store(core.open(), "k")
    core.lease("k")
    core.now += 60
    token = core.lease("k")
    core.now += 50
    core.release_lease(replica, token)
    assert (replica.leased_until_ns, replica.shelf, core.stat("leases")) == (core.now, Shelf.INACTIVE, 0)


def test_a_repeated_stale_or_foreign_token_changes_nothing(core):
    a = core.open()
    replica, other = core.store(a, "k"), core.store(a, "other")
    stale = core.lease("k")
    core.now += TTL
    token, foreign, repeated = core.lease("k"), core.lease("other"), core.lease("k")
    core.release_lease(replica, repeated)
    until = replica.leased_until_ns
    for wrong in (repeated, stale, foreign, 0, -1, 1 << 70):
        core.release_lease(replica, wrong)
    core.release_lease(replica, token, key="other")
    assert (replica.leased_until_ns, replica.shelf, core.stat("leases")) == (until, Shelf.PARKED, 2)
    core.release_lease(replica, token)
    core.release_lease(replica, token)
    assert (replica.shelf, other.shelf, core.stat("leases")) == (Shelf.INACTIVE, Shelf.PARKED, 1)


def test_a_lease_of_a_replica_that_was_never_leased_cannot_be_released(core):
    a = core.open()
    core.fill(a, 2)
    token = core.lease("k0")
    core.release_lease(core.readable("k1"), token, key="k0")
    core.release_lease(core.readable("k1"), token)
    assert core.stat("leases") == 1


def test_a_token_at_its_expiry_is_stale(core):
    replica = core.store(core.open(), "k")
    token = core.lease("k")
    core.now += TTL
    core.release_lease(replica, token)
    assert (replica.shelf, core.stat("leases")) == (Shelf.PARKED, 1)
    core.tick()
    assert (replica.shelf, core.stat("leases")) == (Shelf.INACTIVE, 0)


# -- expiry -------------------------------------------------------------------------------------------------------


def test_a_lease_expires_by_the_timer(core):
    replica = core.store(core.open(), "k")
    core.lease("k")
    assert core.master.next_deadline_ns(core.now) == core.now + TTL
    core.tick(later=TTL - 1)
    assert (replica.shelf, core.stat("leases")) == (Shelf.PARKED, 1)
    core.tick(later=1)
    assert (replica.shelf, replica.accessed, core.stat("leases")) == (Shelf.INACTIVE, True, 0)
    assert core.master.next_deadline_ns(core.now) is None


def test_a_younger_lease_moves_the_expiry(core):
    replica = core.store(core.open(), "k")
    core.lease("k")
    core.now += 60
    core.lease("k")
    core.tick(later=40)
    assert (replica.shelf, core.stat("leases")) == (Shelf.PARKED, 1)
    assert core.master.next_deadline_ns(core.now) == core.now + 60
    core.tick(later=60)
    assert (replica.shelf, core.stat("leases")) == (Shelf.INACTIVE, 0)


def test_a_lease_that_was_released_early_expires_no_second_time(core):
    replica = core.store(core.open(), "k")
    core.release_lease(replica, core.lease("k"))
    replica.accessed = False
    core.tick(later=TTL)
    assert (replica.shelf, replica.accessed) == (Shelf.INACTIVE, False)


def test_a_replica_leased_again_after_an_early_release_stays_for_a_whole_ttl(core):
    replica = core.store(core.open(), "k")
    core.release_lease(replica, core.lease("k"))
    core.now += 60
    core.lease("k")
    core.tick(later=40)
    assert replica.shelf is Shelf.PARKED
    core.tick(later=59)
    assert replica.shelf is Shelf.PARKED
    core.tick(later=1)
    assert replica.shelf is Shelf.INACTIVE


def test_a_new_lease_on_one_that_has_run_out_unseen_is_parked_once_more(core):
    replica = core.store(core.open(), "k")
    core.lease("k")
    core.now += TTL
    core.lease("k")
    assert (replica.leased_until_ns, core.stat("leases")) == (core.now + TTL, 1)


# -- what a lease keeps -------------------------------------------------------------------------------------------


def test_a_leased_object_keeps_its_room_from_a_put_until_the_lease_ends(core):
    a = core.open()
    replica = core.store(a, "k", 4 * PAGE)
    token = core.lease("k")
    put = core.put(a, "l", 4 * PAGE)
    assert put.want is Want.ROOM
    core.release_lease(replica, token)
    assert core.replica_for(put).key == "l"
    assert core.readable("k") is None


def test_a_put_gets_the_room_of_a_lease_that_expires(core):
    a = core.open()
    core.store(a, "k", 4 * PAGE)
    core.lease("k")
    put = core.put(a, "l", 4 * PAGE, timeout=1000)
    core.tick(later=TTL)
    assert core.replica_for(put).key == "l"


@pytest.mark.parametrize("end", ["release", "expire"])
def test_a_removed_object_is_stashed_until_its_lease_ends(core, end):
    replica = core.store(core.open(), "k")
    token = core.lease("k")
    assert core.remove("k") is True
    assert (replica.state, core.stat("stash.objects")) == (ReplicaState.STASHED, 1)
    if end == "release":
        core.release_lease(replica, token)
    else:
        core.tick(later=TTL)
    assert (replica.state, core.used, core.stat("leases")) == (ReplicaState.GONE, 0, 0)


@pytest.mark.parametrize("last", ["lease", "reference"])
def test_a_stash_that_is_read_and_leased_goes_with_the_last_of_both(core, last):
    a = core.open()
    replica = core.store(a, "k")
    handle, token = core.get(a, "k"), core.lease("k")
    core.remove("k")
    if last == "lease":
        core.release(a, handle)
        assert replica.state is ReplicaState.STASHED
        core.release_lease(replica, token)
    else:
        core.release_lease(replica, token)
        assert replica.state is ReplicaState.STASHED
        core.release(a, handle)
    assert replica.state is ReplicaState.GONE


def test_generations_of_one_key_are_leased_apart(core):
    a = core.open()
    old = core.store(a, "k")
    first = core.lease("k")
    new = core.store(a, "k", mode=PutMode.UPSERT)
    second = core.lease("k")
    core.release_lease(new, first)
    core.release_lease(old, second)
    assert (old.state, core.stat("leases")) == (ReplicaState.STASHED, 2)
    core.release_lease(old, first)
    assert (old.state, new.shelf, core.stat("leases")) == (ReplicaState.GONE, Shelf.PARKED, 1)
    core.release_lease(old, first)
    core.release_lease(new, second)
    assert new.shelf is Shelf.INACTIVE


def test_a_removed_object_whose_lease_has_run_out_unseen_is_freed_at_once(core):
    replica = core.store(core.open(), "k")
    core.lease("k")
    core.now += TTL
    core.remove("k")
    assert (replica.state, core.stat("leases")) == (ReplicaState.GONE, 0)
    core.tick()


def test_a_leased_object_that_is_also_read_is_listed_when_both_have_ended(core):
    a = core.open()
    replica = core.store(a, "k")
    token, handle = core.lease("k"), core.get(a, "k")
    core.release_lease(replica, token)
    assert replica.shelf is Shelf.PARKED
    core.release(a, handle)
    assert replica.shelf is Shelf.INACTIVE


def test_a_clear_ends_no_lease_and_the_room_comes_back_with_it(core):
    replica = core.store(core.open(), "k")
    token = core.lease("k")
    core.clear()
    core.reap()
    assert replica.state is ReplicaState.STASHED
    core.release_lease(replica, token)
    assert (replica.state, core.used) == (ReplicaState.GONE, 0)


def test_a_lease_that_ends_between_clear_and_reap_leaves_its_room_to_the_reaper(core):
    replica = core.store(core.open(), "k")
    token = core.lease("k")
    core.clear()
    core.release_lease(replica, token)
    assert replica.state is ReplicaState.COMPLETE
    core.reap()
    assert replica.state is ReplicaState.GONE


# -- the counting alone -------------------------------------------------------------------------------------------


def test_leases_of_many_replicas_agree_with_a_plain_list_of_tokens():
    rng = random.Random(7)
    leases = Leases(50)
    replicas = [Replica(n, f"k{n}", n, 0, 1, 0, 0, state=ReplicaState.COMPLETE) for n in range(5)]
    running: dict[int, tuple[Replica, int]] = {}  # token -> replica, expiry
    held: set[int] = set()  # replicas not yet seen to be free
    for now in range(5_000):
        for _ in range(rng.randrange(3)):
            replica = rng.choice(replicas)
            running[leases.grant(replica, now)] = (replica, now + 50)
            held.add(replica.replica_id)
        running = {token: fact for token, fact in running.items() if fact[1] > now}
        if running and rng.random() < 0.7:
            token = rng.choice(list(running))
            replica = running[token][0] if rng.random() < 0.9 else rng.choice(replicas)
            mine = running[token][0] is replica
            if mine:
                del running[token]
            left = any(fact[0] is replica for fact in running.values())
            assert leases.release(replica, token, now) is (mine and not left)
            if mine and not left:
                held.discard(replica.replica_id)
        if rng.random() < 0.3:
            ended = {replica.replica_id for replica in leases.expire(now)}
            assert ended == held - {replica.replica_id for replica, _ in running.values()}
            held -= ended
        assert leases.count >= len(running)
        for replica in replicas:
            until = max((fact[1] for fact in running.values() if fact[0] is replica), default=0)
            assert (replica.leased_until_ns > now) == (until > now)
            if until > now:
                assert replica.leased_until_ns == until
                assert leases.find(replica.replica_id) is replica
        leases.check(replicas)
    assert leases.next_expiry_ns() is not None
    leases.expire(10_000)
    assert (leases.count, leases.next_expiry_ns()) == (0, None)


def test_forgotten_replicas_count_no_more_and_do_not_expire():
    leases = Leases(10)
    replica = Replica(1, "k", 1, 0, 1, 0, 0, state=ReplicaState.COMPLETE)
    leases.forget(replica)
    leases.grant(replica, 0)
    leases.grant(replica, 5)
    assert leases.count == 2
    leases.forget(replica)
    assert (leases.count, leases.find(1)) == (0, None)
    assert leases.expire(100) == []
    assert leases.next_expiry_ns() is None
