"""``ackstream topics``, ``acls``, ``password``: topics, what parties may do with them, the hash of a password."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ackstream.cli.console.arguments import AsJson  # noqa: TC001 - Typer reads the annotations at run time
from ackstream.cli.console.terminal import PlainTable, Terminal, echo, echo_json
from ackstream.errors import InputError


def topics(
    *,
    asyncapi: Annotated[
        bool, typer.Option("--asyncapi", help="Print the AsyncAPI document: schemas of keys, headers and values.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics of the settings: who writes and who reads them, and what they carry."""
    from ackstream.contract.asyncapi import document
    from ackstream.contract.topics import FORMATS, readers, writers
    from ackstream.settings import load

    kafka = load().kafka
    if asyncapi:
        echo_json(document(kafka))
        return
    table = PlainTable("topic", "written by", "read by", "what it carries")
    for name, about in FORMATS.items():
        row = kafka.topic(name), ", ".join(writers(name)), ", ".join(readers(name)), about.about
        if as_json:
            echo_json(dict(zip(("topic", "written_by", "read_by", "about"), row, strict=True)))
        else:
            table.add_row(*row)
    if not as_json:
        Terminal().print(table)


def acls(
    principals: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parties with their principals, such as correlate=User:CN=correlate. Others are User: and the name of "
            "the party, after kafka.topic_prefix.",
            metavar="PARTY=PRINCIPAL",
        ),
    ] = None,
    *,
    party: Annotated[
        list[str] | None,
        typer.Option(help="Only this party; may be repeated. Without it: all but the operator.", metavar="PARTY"),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Set them, and create missing topics.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the commands that let each party do what it needs, and nothing else; or set these ACLs.

    As JSON: what a party's principal is granted, or what --apply has set and found.

    The login of the settings needs the right to do so: that of an operator. What a principal may do beyond that is
    listed, and stays.
    """
    from ackstream.kafka import acls as kafka_acls
    from ackstream.kafka.parties import PARTIES
    from ackstream.kafka.topics import ensure_topics
    from ackstream.settings import load

    settings = load()
    given = dict(text.partition("=")[::2] for text in principals or ())
    who = kafka_acls.principals(settings, given)
    names = kafka_acls.chosen(party or list(PARTIES))
    if not apply:
        if as_json:
            for name in names:
                for grant in kafka_acls.grants(settings, name):
                    echo_json({"party": name, "principal": who[name], **grant._asdict()})
        else:
            for command in kafka_acls.commands(settings, who, names):
                echo(command)
        return
    created = ensure_topics(settings)
    added, further = kafka_acls.apply(settings, who, names)
    if as_json:
        echo_json({"new_topics": len(created), "new_acls": added, "further": further})
        return
    echo(f"Topics: {len(created)} of them new. ACLs: {added} of them new.")
    if further:
        echo("These principals may do more than they need, which is left as it is:", err=True)
        for line in further:
            echo(f"  {line}", err=True)


def password() -> None:
    """Print the hash of a password, for gateway.users in the settings.

    It is asked for at the terminal, or read from the first line of standard input: `ackstream password < file`.
    """
    from ackstream.gateway.access.passwords import hash_password

    if sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise InputError("The password is empty: write it at the prompt, or into the first line of standard input.")
    echo(hash_password(text))
