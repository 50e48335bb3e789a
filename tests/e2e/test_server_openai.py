"""OpenAI's own client against csgl serve."""

import pytest
from serving import Server

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def server(binary, model):
    running = Server(binary, model, "--context-length", "2048", "--served-model-name", "small",
                     "--api-key", "secret")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0)


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me about the sea."}]


def test_models(client):
    assert client.models.list().data[0].id == "small"
    assert client.models.retrieve("small").owned_by == "csgl"


def test_a_chat(client):
    answer = client.chat.completions.create(model="small", messages=MESSAGES, max_completion_tokens=8, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_a_streamed_chat(client):
    chunks = list(client.chat.completions.create(model="small", messages=MESSAGES, max_tokens=8, temperature=0,
                                                 stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 8
    whole = client.chat.completions.create(model="small", messages=MESSAGES, max_tokens=8, temperature=0)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content


def test_the_stream_helper(client):
    with client.chat.completions.stream(model="small", messages=MESSAGES, temperature=0, stop=["."]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content and final.choices[0].finish_reason == "stop"


def test_several_choices_and_logprobs(client):
    answer = client.chat.completions.create(model="small", messages=MESSAGES, max_tokens=6, n=2, seed=3,
                                            temperature=1, logprobs=True, top_logprobs=2)
    assert [c.index for c in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert 1 <= len(choice.logprobs.content) <= 6
        assert len(choice.logprobs.content[0].top_logprobs) == 2


def test_tools_as_the_client_sends_them(client):
    tools = [{"type": "function",
              "function": {"name": "weather", "description": "The weather", "parameters":
                           {"type": "object", "properties": {"city": {"type": "string"}}}}}]
    answer = client.chat.completions.create(model="small", messages=MESSAGES, max_tokens=8, tools=tools,
                                            tool_choice="auto", parallel_tool_calls=True, user="me",
                                            response_format={"type": "text"})
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_a_conversation_with_tool_calls_goes_in(client):
    messages = MESSAGES + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]}]
    assert client.chat.completions.create(model="small", messages=messages, max_tokens=4).choices


def test_completions(client):
    answer = client.completions.create(model="small", prompt=["The sea", "The sky"], max_tokens=4, temperature=0,
                                       logprobs=2, stop=["\n"])
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs.tokens
    text = "".join(c.choices[0].text for c in client.completions.create(
        model="small", prompt="The sea", max_tokens=4, temperature=0, stop=["\n"], stream=True))
    assert text == answer.choices[0].text


def test_errors_are_the_clients_own(server, client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="small", messages=MESSAGES, temperature=9)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="small", messages=[{"role": "user", "content": "x " * 9000}])
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_the_request_id_comes_back(client):
    raw = client.with_raw_response.models.list(extra_headers={"x-request-id": "abc"})
    assert raw.headers["x-request-id"] == "abc"
