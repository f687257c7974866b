"""``ackstream acls``: what each party may do with Kafka, printed as commands or set."""

from __future__ import annotations

from typing import Annotated

import typer

from ackstream.cli.console.terminal import echo
from ackstream.kafka import acls as kafka_acls
from ackstream.kafka.parties import PARTIES
from ackstream.kafka.topics import ensure_topics
from ackstream.settings import load


def acls(
    principals: Annotated[
        list[str] | None,
        typer.Argument(
            help="Parties with their principals, such as correlate=User:CN=correlate. Others are User: and the name of "
            "the party, after kafka.topic_prefix.",
            metavar="PARTY=PRINCIPAL…",
        ),
    ] = None,
    *,
    party: Annotated[list[str] | None, typer.Option(help="Only this party; may be repeated. Without it: all.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Set them, and create missing topics.")] = False,
) -> None:
    """Print the commands that let each party do what it needs, and nothing else; or set these ACLs.

    The login of the settings needs the right to do so: that of an operator. What a principal may do beyond that is
    listed, and stays.
    """
    settings = load()
    given = dict(text.partition("=")[::2] for text in principals or ())
    who = kafka_acls.principals(settings, given)
    names = kafka_acls.chosen(party or list(PARTIES))
    if not apply:
        for command in kafka_acls.commands(settings, who, names):
            echo(command)
        return
    created = ensure_topics(settings)
    added, further = kafka_acls.apply(settings, who, names)
    echo(f"Topics: {len(created)} of them new. ACLs: {added} of them new.")
    if further:
        echo("These principals may do more than they need, which is left as it is:", err=True)
        for line in further:
            echo(f"  {line}", err=True)
