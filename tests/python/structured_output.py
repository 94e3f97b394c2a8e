"""Structured output and tool calls with the official OpenAI client, unchanged, against a live server (SPEC E1).

    EVENKEEL_URL=http://127.0.0.1:8080 python structured_output.py

EVENKEEL_MODEL names the model (default smollm2-135m), EVENKEEL_KEY a key if the server wants one. What a small model says
is of no interest here: the checks are that it has the shape that was asked for.
"""

import json
import os
import re
import sys
from typing import Literal

import openai
from pydantic import BaseModel, Field

from checks import raised, run, same

URL = os.environ.get("EVENKEEL_URL", "").rstrip("/")
MODEL = os.environ.get("EVENKEEL_MODEL", "smollm2-135m")
KEY = os.environ.get("EVENKEEL_KEY", "none")

if not URL:
    sys.exit("FAILED EVENKEEL_URL is not set; it names the server, for example http://127.0.0.1:8080")

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)

QUESTION = [{"role": "user", "content": "Describe the port of Hamburg."}]


class Port(BaseModel):
    name: str = Field(max_length=20)
    kind: Literal["sea", "river", "lake"]
    depth: int = Field(ge=1, le=40)
    is_open: bool


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["sea", "river", "lake"]},
        "depth": {"type": "integer", "minimum": 1, "maximum": 40},
    },
    "required": ["name", "kind", "depth"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


def ask(**options):
    """One chat answer; greedy unless told otherwise, and long enough for what is asked here."""
    asked = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 300, **options}
    return client.chat.completions.create(**asked)


def json_schema() -> dict:
    return {"type": "json_schema", "json_schema": {"name": "port", "strict": True, "schema": SCHEMA}}


def check_port(text: str) -> None:
    port = json.loads(text)
    same(list(port), ["name", "kind", "depth"], "keys of the answer")
    assert isinstance(port["name"], str) and len(port["name"]) <= 20, f"name is {port['name']!r}"
    assert port["kind"] in ("sea", "river", "lake"), f"kind is {port['kind']!r}"
    assert type(port["depth"]) is int and 1 <= port["depth"] <= 40, f"depth is {port['depth']!r}"


def schema_whole_and_streamed() -> None:
    for options in ({}, {"temperature": 1, "seed": 3}, {"temperature": 1, "seed": 4, "n": 2}):
        answer = ask(response_format=json_schema(), **options)
        for choice in answer.choices:
            check_port(choice.message.content)
            same(choice.finish_reason, "stop", "finish_reason")
        texts = [""] * len(answer.choices)
        for chunk in ask(response_format=json_schema(), stream=True, **options):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        same(texts, [choice.message.content for choice in answer.choices], "the streamed answers")


def pydantic_model() -> None:
    parsed = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=300, response_format=Port
    )
    port = parsed.choices[0].message.parsed
    assert isinstance(port, Port), f"parsed is {port!r} from {parsed.choices[0].message.content!r}"


def json_object() -> None:
    choice = ask(response_format={"type": "json_object"}, stop=["\n\n"]).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict), f"no object: {choice.message.content!r}"
    assert choice.message.content.lstrip().startswith("{"), f"no object: {choice.message.content!r}"


def other_servers_fields() -> None:
    def extra(**fields) -> str:
        return ask(extra_body=fields).choices[0].message.content

    for fields in ({"guided_regex": "[A-Z][a-z]{2,8}"}, {"structured_outputs": {"regex": "[A-Z][a-z]{2,8}"}}):
        text = extra(**fields)
        assert re.fullmatch("[A-Z][a-z]{2,8}", text), f"{fields} gave {text!r}"
    assert extra(guided_choice=["deep", "shallow"]) in ("deep", "shallow"), "the choice is none of the two"
    check_port(extra(guided_json=SCHEMA))
    completion = client.completions.create(
        model=MODEL, prompt="The depth in metres is", max_tokens=20, temperature=0, extra_body={"guided_regex": " [0-9]{2}"}
    )
    assert re.fullmatch(" [0-9]{2}", completion.choices[0].text), f"the completion is {completion.choices[0].text!r}"


def check_call(call, name: str) -> None:
    same((call.type, call.function.name), ("function", name), "type and name of the call")
    assert call.id.startswith("call_"), f"id is {call.id!r}"
    arguments = json.loads(call.function.arguments)
    if name == "get_weather":
        same(list(arguments), ["city", "unit"], "arguments of the call")
        assert arguments["unit"] in ("celsius", "fahrenheit"), f"unit is {arguments['unit']!r}"


def named_tool() -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    answer = ask(tools=[WEATHER, TIME], tool_choice=choice).choices[0]
    same((answer.finish_reason, answer.message.content), ("tool_calls", None), "finish_reason and content")
    same(len(answer.message.tool_calls), 1, "number of calls")
    check_call(answer.message.tool_calls[0], "get_weather")


def required_tool_streamed() -> None:
    options = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    whole = ask(**options).choices[0].message.tool_calls
    calls, reasons, pieces = {}, [], 0
    for chunk in ask(stream=True, **options):
        for choice in chunk.choices:
            assert not choice.delta.content, f"text beside a required call: {choice.delta.content!r}"
            reasons += [choice.finish_reason] if choice.finish_reason else []
            for call in choice.delta.tool_calls or []:
                calls.setdefault(call.index, [call.function.name, ""])[1] += call.function.arguments or ""
                pieces += 1
    same(reasons, ["tool_calls"], "finish reasons of the stream")
    same(calls, {0: [whole[0].function.name, whole[0].function.arguments]}, "the streamed calls")
    assert pieces > 2, f"the arguments came in {pieces} pieces, not as a stream"
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=300, **options
    ) as stream:
        final = stream.get_final_completion()
    check_call(final.choices[0].message.tool_calls[0], "get_weather")


def free_choice_and_results() -> None:
    first = ask(tools=[WEATHER, TIME], max_tokens=40).choices[0]
    assert first.finish_reason in ("stop", "length", "tool_calls"), f"finish_reason is {first.finish_reason!r}"
    for call in first.message.tool_calls or []:
        assert call.function.name in ("get_weather", "get_time"), f"the call is of {call.function.name!r}"
    called = ask(tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0].message
    history = [*QUESTION, called, {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "4 degrees, rain"}]
    answer = ask(messages=history, tools=[WEATHER], tool_choice="none", max_tokens=20).choices[0]
    assert answer.message.content and not answer.message.tool_calls, f"the answer is {answer.message!r}"


def refusals() -> None:
    broken = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}
    cases = [
        ("a schema that is none", "response_format.json_schema.schema", {"response_format": broken}),
        ("an unknown format", "response_format.type", {"response_format": {"type": "xml"}}),
        ("a tool without a name", "tools[0].function.name", {"tools": [{"type": "function", "function": {}}]}),
        ("a choice without tools", "tool_choice", {"tool_choice": "required"}),
    ]
    for name, parameter, options in cases:
        error = raised(openai.BadRequestError, lambda options=options: ask(**options))
        same(error.param, parameter, f"param of the error for {name} ({error.message})")


if __name__ == "__main__":
    run(
        [
            ("JSON schema, whole and streamed", schema_whole_and_streamed),
            ("parse with a pydantic model", pydantic_model),
            ("JSON object", json_object),
            ("regex, choice and schema in other servers' fields", other_servers_fields),
            ("a named tool", named_tool),
            ("a required tool, streamed", required_tool_streamed),
            ("tools free to be called, and their results", free_choice_and_results),
            ("refusals name their field", refusals),
        ]
    )
