"""What users rely on: documented, and the same in both clients."""

import inspect

import pytest

import mooncake_client
from mooncake_client import AsyncClient, Client, StoreError


def public(cls: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}


@pytest.mark.parametrize("name", mooncake_client.__all__)
def test_everything_public_has_a_docstring_of_its_own(name):
    thing = getattr(mooncake_client, name)
    assert thing.__doc__
    if not inspect.isclass(thing):
        return
    bare = [
        f"{name}.{attribute}"
        for cls in thing.__mro__
        if cls.__module__.startswith("mooncake_client")
        for attribute, member in vars(cls).items()
        if not attribute.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod))
        and not (getattr(member, "__doc__", None) or "").strip()
    ]
    assert bare == []


def test_both_clients_have_the_same_calls_with_the_same_arguments():
    blocking, asynchronous = public(Client), public(AsyncClient)
    only_inside = {"run_on"}
    assert blocking.keys() - only_inside == asynchronous.keys() - only_inside
    different = [
        name
        for name, member in blocking.items()
        if inspect.isfunction(member)
        and name not in only_inside
        and list(inspect.signature(member).parameters) != list(inspect.signature(asynchronous[name]).parameters)
    ]
    assert different == []


def test_every_error_is_public_and_has_a_code_of_its_own():
    errors = [StoreError, *StoreError.__subclasses__()]
    assert {error.__name__ for error in errors} <= set(mooncake_client.__all__)
    assert len({error.default_code for error in errors}) == len(errors)
