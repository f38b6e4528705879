"""The protocol of pins, small enough to try every interleaving of it, under the memory model of x86 (TSO).

A reader gets twice, a daemon reclaims twice, both by the steps of `SharedIndex`, `IndexPins` and `Index`. A process's
stores wait in a buffer that it alone sees, and become visible in order, at any time. Two things must never happen: a
reader sees bytes of another object than it pinned, or an object is kept for a pin that is gone and nobody will say so.
"""

from collections.abc import Callable, Generator, Iterator
from enum import Enum, auto
from functools import cache
from typing import Any, NamedTuple

# Shared words. One record, one place in the pool, one pin; an object's field and bytes are its id.
ID, WANTED, FIELD, BYTES, PIN = range(5)
NAMES = ("id", "wanted", "field", "bytes", "pin")
_FIRST_ID = 1
_ROUNDS = 2
_GETS = 2


class Fence(Enum):
    """Who waits, between a store and the load that must not overtake it, until its own stores are visible."""

    NONE = auto()
    REACH_ALL = auto()  # the daemon, which by `membarrier` has the reader do so too: the design
    DAEMON = auto()
    READER = auto()
    BOTH = auto()


class Variant(NamedTuple):
    """The design, or something else in one respect."""

    rounds: tuple[str, ...] = ("evict",) * _ROUNDS  # or "remove", which does not show again what is pinned
    fence: Fence = Fence.REACH_ALL
    looks_again: bool = True  # the reader, after it has pinned
    looks_at_pins: bool = True  # the daemon
    hides_first: bool = True  # and then looks at pins
    wants_first: bool = True  # and then looks at pins
    unpins_first: bool = True  # the reader, and then looks whether that is wanted


# -- what a process can do --------------------------------------------------------------------------------------------


class Load(NamedTuple):
    word: int
    must_be: int | None = None  # anything else is the end of the proof


class Store(NamedTuple):
    word: int
    value: int


class Scan(NamedTuple):
    """A load of the pin. What was told before it does not count for what it finds."""


class Flush(NamedTuple):
    """Its own stores become visible; by `membarrier` the other's too."""

    reaches_all: bool


class Tell(NamedTuple):
    """A message to the daemon."""


class Heard(NamedTuple):
    """Whether something was told; *waits*: until it was."""

    waits: bool


Step = Load | Store | Scan | Flush | Tell | Heard
# Ends with the stage that follows, or None.
Program = Generator[Step, int, "Stage | None"]


class Stage(NamedTuple):
    """A program and its arguments."""

    program: Callable[..., Program]
    args: tuple[Any, ...] = ()


# -- the reader, as SharedIndex ---------------------------------------------------------------------------------------


def get(variant: Variant, number: int, cached: int) -> Program:
    """One get: of the entry that is remembered (0: none), then of the one that is found."""
    following = number + 1
    if cached and (yield from _pin(variant, cached, cached)):
        return Stage(get, (following, cached)) if following < _GETS else None
    found = yield Load(ID)
    field = yield Load(FIELD)
    if not found or (yield Load(ID)) != found or not (yield from _pin(variant, found, field)):
        found = 0
    return Stage(get, (following, found)) if following < _GETS else None


def _pin(variant: Variant, found: int, field: int) -> Generator[Step, int, bool]:
    yield from _set_pin(variant, found)
    valid = not variant.looks_again or (yield Load(ID)) == found
    if valid:
        # By the field to the bytes; it was read before the pin was set.
        yield Load(BYTES, must_be=found if field == found else -1)
        yield Load(BYTES, must_be=found)
    if variant.unpins_first:
        yield from _set_pin(variant, 0)
        is_wanted = yield Load(WANTED)
    else:
        is_wanted = yield Load(WANTED)
        yield from _set_pin(variant, 0)
    if is_wanted:
        yield Tell()
    return valid


def _set_pin(variant: Variant, value: int) -> Program:
    yield Store(PIN, value)
    if variant.fence in (Fence.READER, Fence.BOTH):
        yield Flush(reaches_all=False)
    return None


# -- the daemon, as IndexPins over Index ------------------------------------------------------------------------------


def reclaim(variant: Variant, number: int, current: int, kept: str) -> Program:
    """One round, of object *current*; *kept*: "shown" or "hidden" if it was found pinned before."""
    if kept and (yield Heard(waits=False)):
        pinned = yield from _look(variant, current)
        if not pinned:
            current = yield from _let_go(current, is_hidden=kept == "hidden")
            kept = ""
    if number == len(variant.rounds):
        return Stage(wait, (current, kept)) if kept else None
    if kept == "hidden":
        pinned = yield from _look(variant, current)
    else:
        if variant.wants_first:
            yield Store(WANTED, 1)
        if variant.hides_first:
            yield Store(ID, 0)
            pinned = yield from _look(variant, current)
        else:
            pinned = yield from _look(variant, current)
            yield Store(ID, 0)
    if not pinned:
        current = yield from _let_go(current, is_hidden=True)
        return Stage(reclaim, (number + 1, current, ""))
    if not variant.wants_first:
        yield Store(WANTED, 1)
    if variant.rounds[number] == "evict" and kept != "hidden":
        yield Store(ID, current)
        return Stage(reclaim, (number + 1, current, "shown"))
    return Stage(reclaim, (number + 1, current, "hidden"))


def wait(variant: Variant, current: int, kept: str) -> Program:
    """All that is left to do is to let go of *current* when a reader says so."""
    yield Heard(waits=True)
    if (yield from _look(variant, current)):
        return Stage(wait, (current, kept))
    yield from _let_go(current, is_hidden=kept == "hidden")
    return None


def _look(variant: Variant, current: int) -> Generator[Step, int, bool]:
    if variant.fence not in (Fence.NONE, Fence.READER):
        yield Flush(reaches_all=variant.fence is Fence.REACH_ALL)
    return (yield Scan()) == current and variant.looks_at_pins


def _let_go(current: int, *, is_hidden: bool) -> Generator[Step, int, int]:
    """Nobody has it: what is hidden is overwritten at once, by an object with a new id."""
    if not is_hidden:
        yield Store(WANTED, 0)
        return current
    for word, value in ((FIELD, current + 1), (WANTED, 0), (BYTES, current + 1), (ID, current + 1)):
        yield Store(word, value)
    return current + 1


# -- every interleaving -----------------------------------------------------------------------------------------------

Buffer = tuple[tuple[int, int], ...]


class Process(NamedTuple):
    """Where a process is: its stage, what it has been answered in it, and what it has stored and nobody else sees."""

    stage: Stage | None
    answers: tuple[int, ...] = ()
    buffer: Buffer = ()


class State(NamedTuple):
    reader: Process
    daemon: Process
    memory: tuple[int, ...]
    told: bool = False


class Outcome(NamedTuple):
    """How many states there are; *broken*: the steps that lead to what must not be, if any do."""

    states: int
    broken: list[str] | None


def check(variant: Variant) -> Outcome:
    """Try everything that can happen, the shortest ways first."""
    first = State(
        Process(Stage(get, (0, 0))),
        Process(Stage(reclaim, (0, _FIRST_ID, ""))),
        (_FIRST_ID, 0, _FIRST_ID, _FIRST_ID, 0),
    )
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    states = [first]
    for state in states:
        moves = 0
        for said, following in _moves(variant, state):
            moves += 1
            if following is None:
                return Outcome(len(states), [*_way(came_from, state), said])
            if following not in came_from:
                came_from[following] = state, said
                states.append(following)
        if not moves and state.daemon.stage is not None:
            return Outcome(len(states), [*_way(came_from, state), "the daemon keeps it, and nobody will tell"])
    return Outcome(len(states), None)


def _way(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    steps = []
    while (origin := came_from[state]) is not None:
        state, said = origin
        steps.append(said)
    return steps[::-1]


def _moves(variant: Variant, state: State) -> Iterator[tuple[str, State | None]]:
    """What can happen next, in words, and what is then; None: what must not be."""
    for name, other in (("reader", "daemon"), ("daemon", "reader")):
        process: Process = getattr(state, name)
        if process.buffer:
            word, value = process.buffer[0]
            memory = _stored(state.memory, process.buffer[:1])
            drained = process._replace(buffer=process.buffer[1:])
            yield f"{name}'s {NAMES[word]} = {value} is visible", state._replace(memory=memory, **{name: drained})
        step = _step(variant, process.stage, process.answers)
        match step:
            case Load(word, must_be):
                value = next((value for at, value in reversed(process.buffer) if at == word), state.memory[word])
                said = f"{name} loads {NAMES[word]}: {value}"
                if must_be is not None and value != must_be:
                    yield f"{said}, not {must_be}", None
                else:
                    yield said, _answered(variant, state, name, value)
            case Scan():
                value = state.memory[PIN]
                yield f"{name} loads pin: {value}", _answered(variant, state._replace(told=False), name, value)
            case Store(word, value):
                after = process._replace(buffer=(*process.buffer, (word, value)))
                yield (
                    f"{name} stores {NAMES[word]} = {value}",
                    _answered(variant, state._replace(**{name: after}), name, 0),
                )
            case Flush(reaches_all):
                after = _flushed(state, name)
                if reaches_all:
                    after = _flushed(after, other)
                yield f"{name} has a barrier", _answered(variant, after, name, 0)
            case Tell():
                # A system call: what was stored before it is visible.
                after = _flushed(state, name)._replace(told=True)
                yield f"{name} tells", _answered(variant, after, name, 0)
            case Heard(waits) if state.told or not waits:
                yield (
                    f"{name} hears: {state.told}",
                    _answered(variant, state._replace(told=False), name, int(state.told)),
                )


def _stored(memory: tuple[int, ...], buffer: Buffer) -> tuple[int, ...]:
    words = list(memory)
    for word, value in buffer:
        words[word] = value
    return tuple(words)


def _flushed(state: State, name: str) -> State:
    process: Process = getattr(state, name)
    return state._replace(memory=_stored(state.memory, process.buffer), **{name: process._replace(buffer=())})


def _answered(variant: Variant, state: State, name: str, answer: int) -> State:
    process: Process = getattr(state, name)
    stage, answers = process.stage, (*process.answers, answer)
    step = _step(variant, stage, answers)
    while not isinstance(step, tuple) or isinstance(step, Stage):
        stage, answers = step, ()
        if stage is None:
            break
        step = _step(variant, stage, ())
    return state._replace(**{name: process._replace(stage=stage, answers=answers)})


@cache
def _step(variant: Variant, stage: Stage | None, answers: tuple[int, ...]) -> Step | Stage | None:
    """What a program does after it was answered so; the stage that follows, if it has ended."""
    if stage is None:
        return None
    program = stage.program(variant, *stage.args)
    try:
        step = next(program)
        for answer in answers:
            step = program.send(answer)
    except StopIteration as end:
        following: Stage | None = end.value
        return following
    return step
