"""The openai package against a gateway: URL MODEL ENGINE...

Each engine is the host:port of a simulated one, whose faults are set over HTTP.
"""

import asyncio
import json
import sys
import urllib.request

import openai

URL, MODEL, *ENGINES = sys.argv[1:]
QUESTION = [{"role": "user", "content": "What does a router know of caches? " * 20}]

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=60)


def faults(**what) -> None:
    for engine in ENGINES:
        body = json.dumps(what).encode()
        urllib.request.urlopen(urllib.request.Request(f"http://{engine}/faults", body)).close()


def models() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def whole() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=20)
    assert answer.usage.completion_tokens == 20
    assert answer.choices[0].message.content.count(" ") == 20


def streamed() -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=50)
    text, usage = "", None
    for part in client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=50, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.delta.content or "" for choice in part.choices)
        usage = part.usage or usage
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == 50 and usage.prompt_tokens_details.cached_tokens > 0


def completion() -> None:
    for prompt in "Once upon a time", list(range(100)):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3)
        assert answer.choices[0].text.count(" ") == 3


def errors() -> None:
    try:
        client.chat.completions.create(model="nobody's", messages=QUESTION)
    except openai.NotFoundError as e:
        assert e.code == "model_not_found", e
    else:
        raise AssertionError("an unknown model is answered")
    faults(status=500)
    try:
        client.chat.completions.create(model=MODEL, messages=QUESTION)
    except openai.InternalServerError:
        pass
    else:
        raise AssertionError("an engine that fails answers")


def timeout() -> None:
    faults(delay_ms=60_000)
    try:
        client.with_options(timeout=0.3).chat.completions.create(model=MODEL, messages=QUESTION)
    except openai.APITimeoutError:
        pass
    else:
        raise AssertionError("no timeout")


def cancelled() -> None:
    async def main():
        impatient = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
        stream = await impatient.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=10_000, stream=True)
        async for _ in stream:
            break
        await stream.close()
        faults(delay_ms=60_000)
        request = asyncio.create_task(impatient.chat.completions.create(model=MODEL, messages=QUESTION))
        await asyncio.sleep(0.2)
        request.cancel()
        try:
            await request
        except asyncio.CancelledError:
            pass
        await impatient.close()

    asyncio.run(main())


for scenario in models, whole, streamed, completion, errors, timeout, cancelled:
    print(scenario.__name__, flush=True)
    try:
        scenario()
    finally:
        faults()
