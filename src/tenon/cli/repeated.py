"""The command line that an invocation was given, written again."""

from __future__ import annotations

from collections.abc import Collection

import typer


def repeated_words(context: typer.Context, without: Collection[str]) -> list[str]:
    """The words of the command line, with every parameter that was given there but those ``without``, by the names of
    the function's parameters."""
    words = ["tenon", str(context.info_name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in without or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        if parameter.param_type_name == "argument":
            words.append(str(value))
            continue
        long = max(parameter.opts, key=len)
        if isinstance(value, bool):
            words.append(long if value else max(parameter.secondary_opts, key=len))
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [long, str(each)]
    return words
