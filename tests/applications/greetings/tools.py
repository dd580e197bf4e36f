"""Greetings for coding agents."""

from pydantic import Field

from tests.applications.greetings.http import GreetedOut
from towpath.web.tools import Arguments, Tool, Tools


class GreetArguments(Arguments):
    name: str = Field(description="Whom to greet.", max_length=50)


TOOLS = Tools(
    instructions="Greet everybody once.",
    tools=(
        Tool(
            name="greet",
            title="Greet somebody",
            about="Greet somebody by name.",
            arguments=GreetArguments,
            answer=GreetedOut,
            path="/api/v1/greetings/{name}",
        ),
    ),
)
