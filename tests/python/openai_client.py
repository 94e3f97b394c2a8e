"""The official OpenAI client, unchanged, against a live Evenkeel server (SPEC E1).

    EVENKEEL_URL=http://127.0.0.1:8080 python openai_client.py

EVENKEEL_MODEL names the model (default smollm2-135m), EVENKEEL_KEY a key if the server wants one. The server may serve
others meanwhile: no check depends on being alone, and none on how fast the answers come.
"""

import asyncio
import json
import os
import sys
import time
import urllib.request

import openai

from checks import raised, run, same

URL = os.environ.get("EVENKEEL_URL", "").rstrip("/")
MODEL = os.environ.get("EVENKEEL_MODEL", "smollm2-135m")
KEY = os.environ.get("EVENKEEL_KEY", "none")
PATIENCE_SECONDS = 60

if not URL:
    sys.exit("FAILED EVENKEEL_URL is not set; it names the server, for example http://127.0.0.1:8080")

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)

QUESTION = [
    {"role": "system", "content": "You answer in full sentences."},
    {"role": "user", "content": "Tell a long story about a boat that stays upright in every storm."},
]
PROMPT = "The ship left the harbour early in the morning, and"


def ask(**options):
    """One chat answer; greedy unless told otherwise."""
    return client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, "temperature": 0, **options})


def complete(**options):
    """One completion; greedy unless told otherwise."""
    return client.completions.create(**{"model": MODEL, "prompt": PROMPT, "temperature": 0, **options})


def check_usage(usage, most_output: int) -> None:
    assert usage is not None, "usage is missing"
    assert usage.prompt_tokens > 0, f"usage.prompt_tokens is {usage.prompt_tokens}"
    assert 0 < usage.completion_tokens <= most_output, (
        f"usage.completion_tokens is {usage.completion_tokens}, expected 1 to {most_output}"
    )
    same(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "usage.total_tokens")
    cached = usage.prompt_tokens_details.cached_tokens
    assert 0 <= cached <= usage.prompt_tokens, f"cached_tokens is {cached} of {usage.prompt_tokens} prompt tokens"


def check_end(choice, usage, limit: int) -> None:
    """`length` means that exactly `limit` tokens came; `stop` that the model ended before."""
    assert choice.finish_reason in ("length", "stop"), f"finish_reason is {choice.finish_reason!r}"
    if choice.finish_reason == "length":
        same(usage.completion_tokens, limit, "usage.completion_tokens with finish_reason length")


def models() -> None:
    ids = [model.id for model in client.models.list()]
    assert MODEL in ids, f"models.list has {ids}, expected {MODEL!r} among them"
    same(client.models.retrieve(MODEL).id, MODEL, "models.retrieve(...).id")
    error = raised(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))
    same(error.code, "model_not_found", "code of an unknown model")


def chat() -> None:
    answer = ask(max_tokens=16)
    same(answer.object, "chat.completion", "object")
    same(answer.model, MODEL, "model")
    same(len(answer.choices), 1, "number of choices")
    same(answer.choices[0].message.role, "assistant", "role")
    assert answer.choices[0].message.content, "the answer is empty"
    check_usage(answer.usage, 16)
    check_end(answer.choices[0], answer.usage, 16)


def chat_parts() -> None:
    parts = [
        {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]} for message in QUESTION
    ]
    plain, split = ask(max_tokens=8), ask(max_tokens=8, messages=parts)
    same(split.choices[0].message.content, plain.choices[0].message.content, "the answer to text in parts")
    same(split.usage.prompt_tokens, plain.usage.prompt_tokens, "prompt tokens of text in parts")


def chat_stream() -> None:
    plain = ask(max_tokens=16)
    chunks = list(ask(max_tokens=16, stream=True, stream_options={"include_usage": True}))
    same({chunk.object for chunk in chunks}, {"chat.completion.chunk"}, "objects of the chunks")
    same(len({chunk.id for chunk in chunks}), 1, "number of ids in one stream")
    same(chunks[0].choices[0].delta.role, "assistant", "role in the first chunk")
    *body, last = chunks
    same(last.choices, [], "choices of the usage chunk")
    assert all(chunk.usage is None for chunk in body), "usage stands in a chunk before the last"
    same(last.usage.completion_tokens, plain.usage.completion_tokens, "completion tokens of the stream")
    same(last.usage.prompt_tokens, plain.usage.prompt_tokens, "prompt tokens of the stream")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in body)
    same(text, plain.choices[0].message.content, "the streamed text")
    reasons = [chunk.choices[0].finish_reason for chunk in body]
    same(reasons[:-1], [None] * (len(reasons) - 1), "finish reasons before the end")
    same(reasons[-1], plain.choices[0].finish_reason, "the last finish reason")
    pieces = sum(bool(chunk.choices[0].delta.content) for chunk in body)
    assert pieces > 1, "the text came in one piece, not as a stream"


def chat_stream_without_usage() -> None:
    chunks = list(ask(max_tokens=4, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks), "usage came though nobody asked for it"


def completions() -> None:
    answer = complete(max_tokens=12)
    same(answer.object, "text_completion", "object")
    assert answer.choices[0].text, "the completion is empty"
    assert not answer.choices[0].text.startswith(PROMPT), "the completion repeats the prompt"
    check_usage(answer.usage, 12)
    check_end(answer.choices[0], answer.usage, 12)

    chunks = list(complete(max_tokens=12, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    same(text, answer.choices[0].text, "the streamed completion")
    same(chunks[-1].choices, [], "choices of the usage chunk")
    same(chunks[-1].usage.completion_tokens, answer.usage.completion_tokens, "completion tokens of the stream")


def completions_of_several_prompts() -> None:
    other = "Two plus two is"
    alone = {prompt: complete(prompt=prompt, max_tokens=6).choices[0].text for prompt in (PROMPT, other)}
    both = complete(prompt=[PROMPT, other], max_tokens=6)
    same([choice.index for choice in both.choices], [0, 1], "indices of the choices")
    same([choice.text for choice in both.choices], [alone[PROMPT], alone[other]], "texts of two prompts at once")


def chat_logprobs() -> None:
    answer = ask(max_tokens=6, logprobs=True, top_logprobs=3)
    choice = answer.choices[0]
    entries = choice.logprobs.content
    if choice.finish_reason == "length":
        same(len(entries), answer.usage.completion_tokens, "number of logprobs")
        joined = b"".join(bytes(entry.bytes) for entry in entries).decode(errors="replace")
        same(joined, choice.message.content, "the text of the logprobs' bytes")
    for entry in entries:
        assert entry.logprob <= 0, f"logprob of {entry.token!r} is {entry.logprob}, above 0"
        tops = [top.logprob for top in entry.top_logprobs]
        same(len(tops), 3, f"number of top logprobs at {entry.token!r}")
        same(tops, sorted(tops, reverse=True), f"order of the top logprobs at {entry.token!r}")
        same(entry.top_logprobs[0].token, entry.token, "the most probable token, with temperature 0")
        same(round(tops[0], 4), round(entry.logprob, 4), f"logprob of {entry.token!r} at the top")
    streamed = [
        entry.token
        for chunk in ask(max_tokens=6, logprobs=True, top_logprobs=3, stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or []
    ]
    same(streamed, [entry.token for entry in entries], "tokens of the streamed logprobs")
    assert ask(max_tokens=2).choices[0].logprobs is None, "logprobs came though nobody asked for them"


def completion_logprobs() -> None:
    logprobs = complete(max_tokens=6, logprobs=2).choices[0].logprobs
    count = len(logprobs.tokens)
    assert count > 0, "there are no logprobs"
    lengths = (len(logprobs.token_logprobs), len(logprobs.top_logprobs), len(logprobs.text_offset))
    same(lengths, (count, count, count), "lengths of token_logprobs, top_logprobs and text_offset")
    assert all(value <= 0 for value in logprobs.token_logprobs), f"a logprob is above 0: {logprobs.token_logprobs}"
    same(logprobs.text_offset, sorted(logprobs.text_offset), "text offsets")
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert token in top, f"the chosen token {token!r} is not among the most probable {top}"
        assert abs(max(top.values()) - value) < 1e-4, f"{token!r} was chosen with {value}, but {top} has more"


def several_choices() -> None:
    answer = ask(max_tokens=12, n=2, temperature=1, seed=5)
    same([choice.index for choice in answer.choices], [0, 1], "indices of the choices")
    texts = [choice.message.content for choice in answer.choices]
    assert texts[0] != texts[1], f"both choices are the same text: {texts[0]!r}"
    check_usage(answer.usage, 24)
    streamed = ["", ""]
    for chunk in ask(max_tokens=12, n=2, temperature=1, seed=5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    same(streamed, texts, "the two streamed choices of the same seed")


def seeds() -> None:
    first, again, other = (
        ask(max_tokens=24, temperature=1, seed=seed).choices[0].message.content for seed in (11, 11, 12)
    )
    same(again, first, "the answer of the same seed")
    assert other != first, f"another seed gave the same 24 tokens: {first!r}"


def stop_strings() -> None:
    whole = ask(max_tokens=32).choices[0].message.content
    stop = whole[len(whole) // 3 :][:5]
    wanted = whole[: whole.index(stop)]
    for options in ({"stop": stop}, {"stop": ["no such words", stop]}):
        choice = ask(max_tokens=32, **options).choices[0]
        same(choice.message.content, wanted, f"the answer up to {stop!r}")
        same(choice.finish_reason, "stop", "finish_reason at a stop string")
    streamed = "".join(
        choice.delta.content or "" for chunk in ask(max_tokens=32, stop=stop, stream=True) for choice in chunk.choices
    )
    same(streamed, wanted, f"the streamed answer up to {stop!r}")


def limits() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(**{name: 5})
        check_usage(answer.usage, 5)
        check_end(answer.choices[0], answer.usage, 5)
    one = ask(max_tokens=1)
    same(one.usage.completion_tokens, 1, "completion tokens with max_tokens=1")


async def eight_streams() -> list[str]:
    # Made here so that its connections belong to this event loop.
    asynchronous = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)

    async def one(number: int) -> str:
        stream = await asynchronous.chat.completions.create(
            model=MODEL, messages=numbered(number), temperature=0, max_tokens=12, stream=True
        )
        text, ends = "", []
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                ends += [choice.finish_reason] if choice.finish_reason else []
        same(len(ends), 1, f"number of finish reasons in stream {number}")
        return text

    async with asynchronous:
        return await asyncio.gather(*(one(number) for number in range(8)))


def numbered(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Name {number + 2} animals and say where they live."}]


def parallel_streams() -> None:
    together = asyncio.run(eight_streams())
    alone = [ask(messages=numbered(number), max_tokens=12).choices[0].message.content for number in range(8)]
    for number in range(8):
        same(together[number], alone[number], f"greedy answer {number} among eight, against the same alone")


def unknown_model() -> None:
    for call in (lambda: ask(model="no-such-model"), lambda: complete(model="no-such-model")):
        error = raised(openai.NotFoundError, call)
        same((error.status_code, error.code), (404, "model_not_found"), "status and code of an unknown model")
        assert "no-such-model" in error.message, f"the message does not name the model: {error.message}"


def bad_requests() -> None:
    cases = [
        ("empty messages", "messages", lambda: ask(messages=[])),
        ("negative max_tokens", "max_tokens", lambda: ask(max_tokens=-1)),
        ("negative max_completion_tokens", "max_completion_tokens", lambda: ask(max_completion_tokens=-1)),
        ("temperature of 3", "temperature", lambda: ask(temperature=3)),
        ("n of 0", "n", lambda: ask(n=0)),
    ]
    for name, parameter, call in cases:
        error = raised(openai.BadRequestError, call)
        same(error.param, parameter, f"param of the error for {name} ({error.message})")
        assert len(error.message) > 10, f"the message for {name} says too little: {error.message!r}"


def too_long() -> None:
    messages = [{"role": "user", "content": "boat " * 20_000}]
    for call in (lambda: ask(messages=messages, max_tokens=4), lambda: ask(messages=messages, stream=True)):
        error = raised(openai.BadRequestError, call)
        same(error.code, "context_length_exceeded", "code of a prompt that is too long")
        assert error.param, f"the error for a prompt that is too long names no param: {error.message}"


def closing_early() -> None:
    with ask(max_tokens=4000, temperature=1, seed=1, stream=True) as stream:
        request = stream.response.headers["x-evenkeel-request-id"]
        for number, _ in enumerate(stream):
            if number == 3:
                break
    statement = (
        f"SELECT event, output_tokens FROM requests WHERE request_id = '{request}' "
        "AND event IN ('cancelled', 'finished', 'failed')"
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (rows := sql(statement)):
        assert time.monotonic() < deadline, f"{PATIENCE_SECONDS} s after its stream was closed, {request} has not ended"
        time.sleep(0.2)
    same([row["event"] for row in rows], ["cancelled"], f"how {request} ended")
    assert ask(max_tokens=2).choices[0].message.content, "the next request after a closed stream got no answer"


def sql(query: str) -> list[dict]:
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"{URL}/sql", json.dumps({"query": query}).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return json.load(response)


if __name__ == "__main__":
    run(
        [
            ("models", models),
            ("chat", chat),
            ("chat with text in parts", chat_parts),
            ("chat stream with usage", chat_stream),
            ("chat stream without usage", chat_stream_without_usage),
            ("completions, whole and streamed", completions),
            ("completions of several prompts", completions_of_several_prompts),
            ("chat logprobs", chat_logprobs),
            ("completion logprobs", completion_logprobs),
            ("two choices", several_choices),
            ("same seed, same answer", seeds),
            ("stop strings", stop_strings),
            ("max_tokens and max_completion_tokens", limits),
            ("eight streams at once", parallel_streams),
            ("unknown model", unknown_model),
            ("bad requests name their field", bad_requests),
            ("prompt too long", too_long),
            ("closing a stream early", closing_early),
        ]
    )
