"""The offload tier as the machine's shell has it: copies by key and generation, and jobs that end in any order."""

import msgspec

from mooncake_node.core.jobs import Offload


def name_of(replica):
    return (replica.key, replica.generation)


class Write(msgspec.Struct, eq=False):
    """A copy on its way."""

    job: Offload
    begun: bool = False
    void: bool = False  # deleted while it was written: nothing of it stays


class Tier:
    """What lies on disk, and what the shell has still to do there."""

    def __init__(self):
        self.records: dict[tuple[str, int], tuple[str, int, int]] = {}
        self.writes: list[Write] = []
        self.deletions: list[tuple[str, int]] = []
        self.serial = 0

    def put(self, name):
        self.serial += 1
        self.records[name] = (*name, self.serial)
        return self.records[name]

    def ask(self, job):
        self.writes.append(Write(job))

    def begin(self, write, master):
        """The first byte is about to be written, unless the object has lost its name by now."""
        if write.begun or not master.is_wanted(write.job.replica):
            return
        # What was asked for earlier about the same copy comes first.
        if name_of(write.job.replica) in self.deletions:
            self.delete(name_of(write.job.replica))
        write.begun = True

    def end(self, write, *, well):
        """The record of the copy, if it was written; whether it is still there or not."""
        self.writes.remove(write)
        if not (write.begun and well):
            return None
        record = self.put(name_of(write.job.replica))
        if write.void:
            del self.records[name_of(write.job.replica)]
        return record

    def delete(self, name):
        self.deletions.remove(name)
        self.records.pop(name, None)
        for write in self.writes:
            if write.begun and name_of(write.job.replica) == name:
                write.void = True

    def clear(self):
        """Remove all there is, even what is just being written."""
        self.records.clear()
        self.deletions.clear()
        for write in self.writes:
            write.void = True
