"""Why a demo cannot go on."""


class DemoError(Exception):
    """One line for the user: what is wrong with the input, the machine or a process of the demo."""
