"""What bounds a pool, read from faked proc and sys trees."""

from pathlib import Path

import pytest

from mooncake_node.pool import PoolError, check_room, find_limits, find_shortage
from mooncake_node.pool.hugepages import mount_policy
from mooncake_node.pool.limits import Limit, describe_shortage, format_bytes

GIB = 1 << 30
V2_MOUNT = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


class Host:
    """A root directory with just what find_limits reads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shm = root / "dev/shm"
        self.shm.mkdir(parents=True)
        self.write("proc/meminfo", "MemTotal: 8000000000 kB\nMemAvailable:   7000000000 kB\n")
        self.cgroup("", [])

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def cgroup(self, lines: str, mounts: list[str]) -> None:
        self.write("proc/self/cgroup", lines)
        self.write("proc/self/mountinfo", "".join(mount + "\n" for mount in mounts))

    def group(self, path: str, **files: str) -> None:
        for name, text in files.items():
            self.write(f"sys/fs/cgroup/{path}/{name.replace('_', '.', 1)}", text)

    def cgroup_limits(self) -> dict[str, int]:
        """Available bytes by path below the cgroup mount."""
        top = self.root / "sys/fs/cgroup"
        return {
            str(Path(limit.path).relative_to(top)): limit.available
            for limit in find_limits(self.shm, self.root)
            if limit.what == "cgroup memory"
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def left(nbytes: int) -> int:
    """Of *nbytes*, what a pool may take beside the daemon and its page tables."""
    return nbytes - (32 << 20) - nbytes // 512


def test_without_cgroups_the_mount_and_the_machine_bound_the_pool(host: Host) -> None:
    limits = {limit.what: limit for limit in find_limits(host.shm, host.root)}
    assert set(limits) == {"shared memory", "MemAvailable"}
    assert limits["shared memory"].path == str(host.shm)
    assert limits["MemAvailable"].available == left(7000000000 * 1024)


def test_v2_limits_of_the_group_and_its_ancestors_all_count(host: Host) -> None:
    host.cgroup("0::/pod/app\n", [V2_MOUNT])
    host.group("pod/app", memory_max="max", memory_current="5")
    host.group("pod", memory_max=str(4 * GIB), memory_current=str(GIB), memory_stat="anon 1\n")
    assert host.cgroup_limits() == {"pod/memory.max": left(3 * GIB)}


def test_file_cache_counts_as_available_and_shared_memory_does_not(host: Host) -> None:
    host.cgroup("0::/\n", [V2_MOUNT])
    stat = f"file 3\nshmem {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\n"
    host.group("", memory_max=str(4 * GIB), memory_current=str(3 * GIB), memory_stat=stat)
    assert host.cgroup_limits() == {"memory.max": left(GIB + GIB + GIB // 2)}


def test_memory_high_counts_because_a_pool_above_it_crawls(host: Host) -> None:
    host.cgroup("0::/a\n", [V2_MOUNT])
    host.group("a", memory_max="max", memory_high=str(2 * GIB), memory_current=str(GIB))
    assert host.cgroup_limits() == {"a/memory.high": left(GIB)}


def test_a_group_used_beyond_its_limit_has_nothing_available(host: Host) -> None:
    host.cgroup("0::/\n", [V2_MOUNT])
    host.group("", memory_max=str(GIB), memory_current=str(2 * GIB))
    assert host.cgroup_limits() == {"memory.max": 0}


def test_v1_limits_count_unless_they_are_the_number_for_none(host: Host) -> None:
    host.cgroup("9:cpu:/x\n4:memory,hugetlb:/box/app\n", [V1_MOUNT])
    none = "9223372036854771712"
    host.group("memory/box/app", memory_limit_in_bytes=none, memory_usage_in_bytes="1")
    stat = f"inactive_file 9\ntotal_inactive_file {GIB}\n"
    host.group(
        "memory/box",
        memory_limit_in_bytes=str(4 * GIB),
        memory_usage_in_bytes=str(2 * GIB),
        memory_stat=stat,
    )
    assert host.cgroup_limits() == {"memory/box/memory.limit_in_bytes": left(3 * GIB)}


@pytest.mark.parametrize(
    ("mount_root", "path"),
    [
        ("/kubepods/pod1/c1", "/kubepods/pod1/c1"),  # no cgroup namespace: the host's path
        ("/", "/kubepods/pod1/c1"),  # a bind mount that hides its root
        ("/", "/../../other"),  # outside this namespace
    ],
)
def test_a_container_finds_its_own_limit_at_the_mount(host: Host, mount_root: str, path: str) -> None:
    mount = f"30 1 0:26 {mount_root} /sys/fs/cgroup rw - cgroup2 cgroup rw"
    host.cgroup(f"0::{path}\n", [mount])
    host.group("", memory_max=str(GIB), memory_current="0")
    assert host.cgroup_limits() == {"memory.max": left(GIB)}


def test_the_tightest_broken_limit_is_named() -> None:
    wide, tight, enough = (Limit("w", "/w", n, 100, "h") for n in (50, 20, 90))
    assert find_shortage(60, [wide, tight, enough]) is tight
    assert find_shortage(20, [wide, tight, enough]) is None
    assert find_shortage(21, []) is None


def test_the_refusal_has_the_numbers_the_place_and_the_way_out(host: Host) -> None:
    asked = 1 << 60
    with pytest.raises(PoolError) as caught:
        check_room(asked, host.shm, host.root)
    short = find_shortage(asked, find_limits(host.shm, host.root))
    assert short is not None
    message = str(caught.value)
    assert str(asked) in message
    assert short.path in message
    check_room(4096, host.shm, host.root)


def test_the_hint_for_shared_memory_names_every_kind_of_container() -> None:
    limits = find_limits(Path("/dev/shm"))
    shm = next(limit for limit in limits if limit.what == "shared memory")
    message = describe_shortage(shm.total + 1, shm)
    for word in ("--shm-size", "medium: Memory", "sizeLimit", "remount", "/dev/shm"):
        assert word in message
    assert str(shm.total + 1) in message
    assert str(shm.total) in message


def test_the_real_machine_has_limits_and_room_for_a_page() -> None:
    assert all(limit.available <= limit.total for limit in find_limits(Path("/dev/shm")))
    check_room(4096, Path("/dev/shm"))


@pytest.mark.parametrize(
    ("options", "policy"),
    [("rw,size=1g", "never"), ("rw,huge=advise,size=1g", "advise"), ("rw,huge=always", "always")],
)
def test_the_huge_page_policy_is_that_of_the_topmost_mount(host: Host, options: str, policy: str) -> None:
    line = "40 1 0:30 / /dev/shm rw,nosuid shared:5 - tmpfs tmpfs "
    host.cgroup("", [line + "rw,huge=within_size", line + options, V2_MOUNT])
    assert mount_policy(Path("/dev/shm"), host.root) == policy
    assert mount_policy(Path("/nowhere"), host.root) == "never"


def test_sizes_are_exact_and_readable() -> None:
    assert format_bytes(0) == "0 bytes"
    assert format_bytes(3 << 20) == "3145728 bytes (3 MiB)"
    assert format_bytes(3 << 29) == "1610612736 bytes (1.5 GiB)"
