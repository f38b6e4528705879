"""What the local master asks the shell to do, because it takes time. Each job's outcome comes back as one call."""

import msgspec

from mooncake_node.core.replica import Replica


class Offload(msgspec.Struct, frozen=True, eq=False):
    """Write the memory of *replica* to the tier; then `offload_done`.

    Its memory stays as it is until then. Not to be begun if `Master.is_wanted` says that the object has lost its name.
    """

    replica: Replica


class Load(msgspec.Struct, frozen=True, eq=False):
    """Read *record* from the tier into the room of *replica*; then `load_done`. The room stays reserved until then."""

    replica: Replica
    record: object


class Delete(msgspec.Struct, frozen=True, eq=False):
    """Remove a generation from the tier, even one that is just being written there. Nothing is waited for.

    Whoever is told that the object is gone must be told after this is done.
    """

    replica: Replica  # names key and generation


class Amend(msgspec.Struct, frozen=True, eq=False):
    """The contract of *replica* has changed: change it on disk too. Nothing is waited for.

    Whoever changed it must be told after this is done.
    """

    replica: Replica


Job = Offload | Load | Delete | Amend
