"""What the cluster demo found, object by object and get by get, and which of its claims that proves."""

import msgspec

from mooncake_node.demo.findings import Proof
from mooncake_node.demo.memory import Place
from mooncake_node.demo.orders import Got, Removed, Stored

WRITER, REMOVER = 11, 22
# The first digit of a worker is its node. 23 and 24 only join when everybody on node 2 asks at once.
ONE_BY_ONE = (11, 12, 21, 22)
AT_ONCE = (21, 22, 23, 24)
WORKERS = tuple(sorted({*ONE_BY_ONE, *AT_ONCE}))
NODES = tuple(sorted({who // 10 for who in WORKERS}))


def node_of(who: int) -> int:
    """On which node a worker is."""
    return who // 10


class Loads(msgspec.Struct, frozen=True):
    """How a node came by what its clients asked for: its own counters."""

    local_hits: int = 0  # it was there
    local_copies: int = 0  # brought in from another node's memory
    coalesced: int = 0  # waited for a load that was under way
    from_offload: int = 0
    from_remote_offload: int = 0

    def since(self, before: "Loads") -> "Loads":
        """What came on top of *before*."""
        return Loads(*(now - then for now, then in zip(self.counts, before.counts, strict=True)))

    @property
    def counts(self) -> tuple[int, ...]:
        """In the order of the fields."""
        return msgspec.structs.astuple(self)

    @property
    def words(self) -> str:
        """`copied` of one get, `1 copied, 3 coalesced` of several."""
        names = ("local", "copied", "coalesced", "from disk", "from a disk elsewhere")
        named = [(count, name) for count, name in zip(self.counts, names, strict=True) if count]
        if sum(self.counts) == 1:
            return named[0][1]
        return ", ".join(f"{count} {name}" for count, name in named) or "not counted"


class Get(msgspec.Struct, frozen=True):
    """Gets of one object on one node: by one worker, or by several at the same moment."""

    who: tuple[int, ...]
    answers: list[Got]  # of each
    loads: Loads  # of their node, meanwhile
    crossed_nbytes: int  # between the nodes, meanwhile
    copies: int  # of the object, in the memory of all nodes, afterwards

    @property
    def node(self) -> int:
        """Of those who asked."""
        return node_of(self.who[0])

    @property
    def took_ns(self) -> int:
        """Of the slowest."""
        return max(answer.took_ns for answer in self.answers)


class Story(msgspec.Struct, frozen=True):
    """One object from its put until nobody has it any more."""

    nbytes: int
    stored: Stored
    gets: list[Get]
    removed: Removed
    finders: list[int]  # workers who could get it after the remove
    left_nbytes: list[int]  # of each node's pool, when everybody had let go

    def is_right(self, answer: Got) -> bool:
        """It is what was put."""
        return answer.found and (answer.nbytes, answer.xxh3) == (self.nbytes, self.stored.xxh3)

    def of_node(self, node: int) -> list[Get]:
        """Its gets there."""
        return [get for get in self.gets if get.node == node]

    def places(self, node: int) -> list[Place | None]:
        """Where those who got it there have it."""
        return [answer.place for get in self.of_node(node) for answer in get.answers]


class ClusterFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured; sizes in bytes."""

    pool_nbytes: int  # of each node
    stories: list[Story]
    proofs: list[Proof]

    @property
    def holds(self) -> bool:
        """Every claim held."""
        return all(proof.holds for proof in self.proofs)


def prove(stories: list[Story]) -> list[Proof]:
    """What the demo claims of the objects, from what processes saw and nodes counted."""
    return [
        _content(stories),
        _one_transfer(stories),
        _no_second_transfer(stories),
        _one_copy_a_node(stories),
        _same_memory(stories),
        _gone(stories),
        _room_back(stories),
    ]


def _content(stories: list[Story]) -> Proof:
    answers = [story.is_right(answer) for story in stories for get in story.gets for answer in get.answers]
    wrong = answers.count(False)
    return Proof("content", bool(answers) and not wrong, f"{wrong or 'none'} of {len(answers)} gets differ by xxh3")


def _one_transfer(stories: list[Story]) -> Proof:
    """On node 2, whose clients read what was put on node 1."""
    there = [(story, story.of_node(node_of(REMOVER))) for story in stories]
    holds = all(
        sum(get.loads.local_copies for get in gets) == 1
        and sum(get.crossed_nbytes for get in gets) == story.stored.stored_nbytes
        for story, gets in there
    )
    loads = [get.loads for _, gets in there for get in gets]
    askers = sum(len(get.who) for _, gets in there for get in gets)
    return Proof(
        "one transfer",
        holds,
        f"node 2's {askers} gets of {len(stories)} objects: {sum(load.local_copies for load in loads)} copied, "
        f"{sum(load.coalesced for load in loads)} waited for a copy under way, "
        f"{sum(load.local_hits for load in loads)} found it there; "
        f"{sum(get.crossed_nbytes for _, gets in there for get in gets):,} bytes crossed, "
        f"{sum(story.stored.stored_nbytes for story in stories):,} were stored",
    )


def _no_second_transfer(stories: list[Story]) -> Proof:
    """22 comes after 21 has got it; whoever is on the node of the put needs no transfer at all."""
    late = [get for story in stories for get in story.gets if get.node == node_of(WRITER) or get.who == (REMOVER,)]
    crossed = sum(get.crossed_nbytes for get in late)
    local = sum(get.loads == Loads(local_hits=len(get.who)) for get in late)
    return Proof(
        "local when it is there",
        crossed == 0 and local == len(late) > 0,
        f"{local} of {len(late)} gets by 11, by 12 and, after 21, by 22 were local; {crossed:,} bytes crossed for them",
    )


def _one_copy_a_node(stories: list[Story]) -> Proof:
    wrong = most = 0
    for story in stories:
        nodes = {node_of(WRITER)}
        for get in story.gets:
            nodes.add(get.node)
            wrong += get.copies != len(nodes)
            most = max(most, get.copies)
    gets = sum(len(story.gets) for story in stories)
    return Proof(
        "one copy per node",
        gets > wrong == 0,
        f"{gets - wrong} of {gets} times there were as many copies as nodes where the object had been put or read; "
        f"{most} at most",
    )


def _same_memory(stories: list[Story]) -> Proof:
    """All who read on a node have the same bytes of the same pool; an empty object lies nowhere."""
    holds, shared, pools = True, 0, set[tuple[int, str]]()
    for story in stories:
        for node in NODES if story.nbytes else ():
            places = story.places(node)
            found = {(place.pool, place.offset) for place in places if place is not None}
            pools |= {(node, pool) for pool, _ in found}
            if places:
                holds &= None not in places and len(found) == 1
                shared += None not in places and len(found) == 1 and len(places) > 1
    holds &= len({pool for _, pool in pools}) == len(pools) == len({node for node, _ in pools})
    return Proof(
        "same memory",
        holds,
        f"{shared} times all processes of a node had an object at one place of one pool (by /proc); "
        f"{len({pool for _, pool in pools})} pools on {len({node for node, _ in pools})} nodes",
    )


def _gone(stories: list[Story]) -> Proof:
    refused = sum(not story.removed.was_there for story in stories)
    finders = sum(len(story.finders) for story in stories)
    return Proof(
        "removed for all",
        not refused and not finders,
        f"{len(stories) - refused} of {len(stories)} objects removed by {REMOVER}; "
        f"afterwards {finders or 'none'} of {len(WORKERS) * len(stories)} gets, by everybody, found one",
    )


def _room_back(stories: list[Story]) -> Proof:
    left = max((nbytes for story in stories for nbytes in story.left_nbytes), default=0)
    return Proof("room back", left == 0, f"{left:,} bytes of a pool, at most, were taken after an object was removed")


def nothing_left(processes: list[int], files: list[str]) -> Proof:
    """What is left of the demo after its end."""
    return Proof(
        "nothing left",
        not processes and not files,
        f"{len(processes) or 'no'} processes, {len(files) or 'no'} files or directories",
    )
