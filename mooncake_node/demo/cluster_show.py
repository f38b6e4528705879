"""The cluster demo's figures as one table for people."""

import msgspec
from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mooncake_node.demo.cluster_findings import ClusterFindings, Get, Story
from mooncake_node.demo.show import proof_table
from mooncake_node.settings import format_size


def print_findings(console: Console, found: ClusterFindings) -> None:
    """The table, the proofs and one closing sentence."""
    console.print(Padding(Group(_gets(found), "", proof_table(found.proofs)), (1, 0)))
    console.print(_closing(found), soft_wrap=True, highlight=False)


def findings_json(found: ClusterFindings) -> str:
    """Everything found, and the figures drawn from it, for programs."""
    record = msgspec.to_builtins(found)
    for story, told in zip(found.stories, record["stories"], strict=True):
        for get, line in zip(story.gets, told["gets"], strict=True):
            line["node"] = get.node
            line["how"] = get.loads.words
            line["content"] = [story.is_right(answer) for answer in get.answers]
    record["holds"] = found.holds
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def _gets(found: ClusterFindings) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        # Fits 80 columns.
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title="each get of what 11 put on node 1; 11 and 12 are on node 1, 21 to 24 on node 2",
        caption="how: what the node of those who asked counted. took: of several at once, the slowest. crossed: "
        "bytes received by a node from the other, headers of objects included. copies: in the memory of both nodes, "
        "afterwards. xxh3: the content is what 11 made.",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("size", justify="right", style="bold", no_wrap=True)
    table.add_column("get by", no_wrap=True)
    table.add_column("how")
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("crossed", justify="right", no_wrap=True)
    table.add_column("copies", justify="right", no_wrap=True)
    table.add_column("xxh3", no_wrap=True)
    size_above = None
    for story in found.stories:
        if size_above not in (None, story.nbytes):
            table.add_section()
        for get in story.gets:
            size = "" if story.nbytes == size_above else format_size(story.nbytes)
            size_above = story.nbytes
            table.add_row(size, *_cells(story, get))
    return table


def _cells(story: Story, get: Get) -> tuple[str | Text, ...]:
    right = all(map(story.is_right, get.answers))
    return (
        _named(get.who),
        get.loads.words,
        f"{get.took_ns / 1e6:.2f} ms",
        f"{get.crossed_nbytes:,}",
        str(get.copies),
        Text("ok", "green") if right else Text("WRONG", "bold red"),
    )


def _named(who: tuple[int, ...]) -> str:
    return str(who[0]) if len(who) == 1 else f"{who[0]} to {who[-1]}"


def _closing(found: ClusterFindings) -> str:
    failed = [proof.claim for proof in found.proofs if not proof.holds]
    if failed:
        return f"Not shown: {', '.join(failed)}."
    return (
        f"Shown: {len(found.stories)} objects put on one node were read on both, each out of one copy per node that "
        f"crossed once however many asked, were removed for all by one, and nothing is left behind."
    )
