"""Endpoints as text, and what is loopback."""

import pytest

from mooncake_node.peers.endpoint import format_endpoint, is_loopback, parse_endpoint


@pytest.mark.parametrize("host", ["10.0.0.1", "node-1.example", "::1", "fd00::7"])
def test_endpoint_is_read_as_it_was_written(host):
    assert parse_endpoint(format_endpoint(host, 65_535)) == (host, 65_535)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "[]:1", "host:-1", "host:65536", "host:\u0661"])
def test_what_is_no_endpoint_is_an_error_that_shows_it(text):
    with pytest.raises(ValueError, match="is not host:port"):
        parse_endpoint(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"])
def test_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "128.0.0.1"])
def test_no_loopback(host):
    assert not is_loopback(host)
