"""The demo's figures as tables for people."""

from collections.abc import Sequence

import msgspec
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mooncake_node.demo.findings import Findings, Proof, get_us
from mooncake_node.settings import format_size


def print_findings(console: Console, found: Findings) -> None:
    """The tables, the proofs and one closing sentence."""
    console.print(Padding(Group(_figures(found), "", _readers(found), "", proof_table(found.proofs)), (1, 0, 1, 2)))
    console.print(_closing(found), soft_wrap=True, highlight=False)


def findings_json(found: Findings) -> str:
    """Everything found, and the figures drawn from it, for programs."""
    record = msgspec.to_builtins(found)
    record["tensors"] = len(found.published.tensors)
    record["nbytes"] = found.published.nbytes
    record["put_gb_per_s"] = found.put_gb_per_s
    record["put_largest_gb_per_s"] = found.put_largest_gb_per_s
    record["get_us"] = [get_us(reading) for reading in found.readers]
    record["holds"] = found.holds
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def _figures(found: Findings) -> Table:
    rows = [
        ("tensors", f"{len(found.published.tensors)}"),
        ("bytes", f"{found.published.nbytes:,} ({format_size(found.published.nbytes)})"),
        ("put", f"{found.put_gb_per_s:.2f} GB/s; the largest tensor {found.put_largest_gb_per_s:.2f} GB/s"),
        ("get", f"{min(map(get_us, found.readers)):.0f} to {max(map(get_us, found.readers)):.0f} µs each (medians)"),
        ("copies of each tensor on the node", f"{found.copies}"),
        ("taken in the pool / needed", f"{found.used_nbytes:,} / {found.footprint_nbytes:,} bytes"),
    ]
    transit = found.transit
    if transit is not None:
        rate = transit.rounds / transit.seconds
        rows.append((f"put, get, remove of {format_size(transit.nbytes)}", f"{rate:,.0f} rounds a second"))
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def _readers(found: Findings) -> Table:
    table = Table(
        title="memory each reader takes on top, while all hold every tensor",
        caption="own: pages that only this reader has. share: pages of the pool, each divided by the number of "
        "processes that have it mapped (the readers and the node): all shares together are one copy. "
        "extra: both. copy: what it would take if a reader had the tensors to itself.",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("reader", "get, median", "own", "share", "extra", "copy"):
        table.add_column(heading, justify="right")
    for reading, usage in zip(found.readers, found.extra, strict=True):
        table.add_row(
            str(reading.pid), f"{get_us(reading):.0f} µs", *map(_signed, (usage.own, usage.shared)),
            _signed(usage.own + usage.shared), format_size(found.published.nbytes),
        )  # fmt: skip
    return table


def proof_table(proofs: Sequence[Proof]) -> Table:
    """Each claim, whether it held, and why."""
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    for proof in proofs:
        mark = Text("ok", "green") if proof.holds else Text("FAILED", "bold red")
        table.add_row(mark, Text(proof.claim, "bold"), proof.detail)
    return table


def _closing(found: Findings) -> str:
    failed = [proof.claim for proof in found.proofs if not proof.holds]
    if failed:
        return f"Not shown: {', '.join(failed)}."
    return (
        f"Shown: {_counted(len(found.readers), 'process', 'processes')} read {format_size(found.published.nbytes)} "
        f"in {_counted(len(found.published.tensors), 'tensor', 'tensors')} out of one copy in shared memory, "
        f"unchanged and read-only, and nothing is left behind."
    )


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _signed(nbytes: int) -> str:
    return f"{'-' if nbytes < 0 else '+'}{format_size(abs(nbytes))}"


def type_counts(types: Sequence[str]) -> str:
    """`F32 101, I64 1`, the most frequent first."""
    counts = {name: types.count(name) for name in types}
    return ", ".join(f"{name} {counts[name]}" for name in sorted(counts, key=lambda name: (-counts[name], name)))
