"""A plane within one process: what tests use for a network. It passes the same suite as the TCP plane."""

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from mooncake_node.planes.port import Lender, Loan, Outcome, RefusedError, RemoteRange
from mooncake_node.planes.transfer import Transfer


class Mode(Enum):
    """How transfers go."""

    GOOD = "good"
    LATE = "late"  # begins after `let_go`; given up before, it has FAILED and ended
    FAIL = "fail"  # FAILED, half of the bytes written
    HANG = "hang"  # knows no giving up: writes all after `let_go`, and has ended only then
    CORRUPT = "corrupt"  # OK, with the first byte wrong


class MemoryPlane:
    """Implements `DataPlane` on a map from nodes' names to their lenders, which several planes may share."""

    kind = "memory"

    def __init__(self, nodes: Mapping[str, Lender], view: Callable[[int, int], memoryview]) -> None:
        self.mode = Mode.GOOD  # of transfers submitted from now on
        self.submitted: list[RemoteRange] = []  # all there ever were
        self.outcomes: list[Outcome] = []  # as they became known
        self._nodes = nodes
        self._view = view
        self._gate = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], Transfer] = {}
        self._is_closed = False

    def submit(self, source: RemoteRange, local_offset: int) -> Transfer:
        """See DataPlane."""
        transfer = Transfer(source, local_offset, self._note)
        self.submitted.append(source)
        if self._is_closed:
            transfer.end(Outcome.FAILED, "this plane is closed")
            return transfer
        task = asyncio.get_running_loop().create_task(self._run(transfer, self.mode, self._gate))
        if self.mode is not Mode.HANG:
            transfer.stop = partial(_stop, task)
        self._tasks[task] = transfer
        task.add_done_callback(partial(self._ended, transfer))
        return transfer

    def let_go(self) -> None:
        """Those that are LATE or HANG go on; those submitted from now on are held again."""
        self._gate.set()
        self._gate = asyncio.Event()

    async def close(self) -> None:
        """See DataPlane. Those that HANG write before it returns."""
        self._is_closed = True
        self.let_go()
        for transfer in list(self._tasks.values()):
            transfer.give_up("this plane is closed")
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, transfer: Transfer, mode: Mode, gate: asyncio.Event) -> None:
        if mode is Mode.LATE:
            await gate.wait()
        source = transfer.source
        lender = self._nodes.get(source.node)
        if lender is None:
            transfer.end(Outcome.FAILED, f"no node {source.node!r}")
            return
        destination = self._view(transfer.local_offset, source.nbytes)
        # A one-sided engine that hangs has the bytes on their way; where they lie meanwhile is its own affair.
        target = memoryview(bytearray(source.nbytes)) if mode is Mode.HANG else destination
        try:
            async with lender.lend(source.key, source.replica_id, source.generation, source.lease_token) as loan:
                if loan.nbytes != source.nbytes:
                    raise RefusedError(f"it has {loan.nbytes} bytes, not {source.nbytes}")
                await _copy(loan, target, source.nbytes // 2 if mode is Mode.FAIL else source.nbytes)
        except RefusedError as error:
            transfer.end(Outcome.FAILED, f"refused: {error}")
            return
        if mode is Mode.FAIL:
            transfer.end(Outcome.FAILED, "told to fail")
            return
        if mode is Mode.HANG:
            await gate.wait()
            destination[:] = target
        if mode is Mode.CORRUPT and source.nbytes:
            destination[0] ^= 0xFF
        transfer.end(Outcome.OK)

    def _ended(self, transfer: Transfer, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not transfer.has_ended:
            transfer.end(Outcome.FAILED, "given up")

    def _note(self, transfer: Transfer, outcome: Outcome) -> None:
        del transfer
        self.outcomes.append(outcome)


async def _copy(loan: Loan, into: memoryview, nbytes: int) -> None:
    """The first *nbytes* of the loan; other tasks run between two parts."""
    done = 0
    async for part in loan.parts():
        piece = part[: nbytes - done]
        into[done : done + piece.nbytes] = piece
        done += piece.nbytes
        await asyncio.sleep(0)


def _stop(task: asyncio.Task[None], reason: str) -> None:
    del reason  # the transfer has it
    task.cancel()
