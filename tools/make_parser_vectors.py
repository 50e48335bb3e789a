#!/usr/bin/env python3
"""Records what transformers makes of outputs under response_template and response_schema.

usage: make_parser_vectors.py [--schema-module PATH]

Writes tests/data/parser/templates.json and tests/data/parser/schemas.json: declarations of this
repository's own, outputs, and the messages that transformers' own parsers return. Needs
transformers 5.17.0 for the templates. The older response_schema was removed from that version; its
parser is utils/chat_parsing_utils.py of transformers 5.5.0, whose path is --schema-module (needs
jmespath); without it schemas.json is left as it is.
"""

import argparse
import importlib.util
import json
import os

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "tests", "data", "parser")

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "ratio": {"type": "number"},
            "flag": {"type": "boolean"}, "opts": {"type": "object"}, "list": {"type": "array"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "both": {"type": ["integer", "string"]},
            "opt": {"type": "integer", "nullable": True}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
                                                                    "properties": {}}}},
]
CALL = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

TEMPLATES = {
    "json calls": {
        "version": 1, "defaults": {"role": "assistant"}, "start_anchor": "<|turn|>model\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "tool_calls": {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>",
                           "repeats": True, "content": "json", "transform": CALL},
            "content": {"repeats": True, "join": "",
                        "close_pattern": r"\s*(?:<\|im_end\|>|<\|eot\|>)"},
        }},
    "xml calls": {
        "defaults": {"role": "assistant"}, "start_anchor": ["<|turn|>model\n", "<|turn|>tool\n"],
        "fields": {
            "content": {"content": "text", "repeats": True, "join": ""},
            "thinking": {"open": "<think>", "close": "</think>", "repeats": True, "join": "\n"},
            "tool_calls": {
                "open_pattern": r"<tool_call>\s*<function=(?P<name>[^\s>]+)>",
                "close": "</tool_call>", "repeats": True, "content": "xml-inline",
                "content_args": {
                    "tag_pattern":
                        r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}}},
                "transform": NAMED}}},
    "xml text values": {
        "start_anchor_pattern": r"<\|turn\|>(?:model|tool)\n",
        "fields": {
            "reasoning": {"open": ["<think>", "<thinking>"], "close_pattern": r"</think(?:ing)?>"},
            "content": {"repeats": True, "join": " "},
            "tool_calls": {
                "open_pattern": r"<call (?P<name>\w+)>", "close_pattern": r"</call>\s*",
                "repeats": True, "content": "xml-inline",
                "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</(?P=key)>",
                                 "merge_duplicates": True},
                "transform": NAMED}}},
    "lax json": {
        "start_anchor": "<turn>model\n",
        "fields": {
            "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {"open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                           "close": "<tool_call|>", "repeats": True, "content": "json",
                           "content_args": {"unquoted_keys": True,
                                            "string_delims": [['<|"|>', '<|"|>']]},
                           "transform": NAMED},
            "content": {"close": ["<turn|>", "<eos>"], "repeats": True, "join": ""}}},
    "lines": {
        "start_anchor": ">",
        "fields": {
            "content": {"repeats": True, "join": ""},
            "tool_calls": {"open": "[call]", "close": "[/call]", "repeats": True,
                           "content": "kv-lines", "content_args": {
                               "kv_sep": "=", "value_parser": {"name": "int"}},
                           "transform": {"function": {"name": "weather",
                                                      "arguments": "{content}"}}}}},
    "list of calls": {
        "start_anchor": ">",
        "fields": {
            "content": {"close_pattern": r"(?=\[TOOL_CALLS\])", "repeats": True, "join": ""},
            "tool_calls": {"open": "[TOOL_CALLS]", "content": "json", "transform_each": True,
                           "transform": {"type": "function",
                                         "function": {"name": "{name}",
                                                      "arguments": "{arguments}"}}}}},
    "channels": {
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open_pattern": r"<\|channel\|>analysis<\|message\|>",
                         "close": "<|end|>", "repeats": True, "join": "\n"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>[\w.-]+)"
                                r"[^<]*(?:<\|constrain\|>json)?<\|message\|>",
                "close_pattern": r"<\|call\|>|\Z", "repeats": True, "content": "json",
                "transform": NAMED},
            "content": {"open_pattern": r"<\|channel\|>final<\|message\|>",
                        "close": ["<|end|>", "<|return|>"], "content_args": {"strip": False},
                        "repeats": True, "join": ""}}},
    "dotted": {
        "start_anchor": ">",
        "fields": {
            "content": {"repeats": True, "join": ""},
            "tool_calls": {"open": "<c>", "close": "</c>", "repeats": True, "content": "json",
                           "transform": {"function": {"name": "{content.tool.id}",
                                                      "arguments": "{content.args}"}}}}},
    "unicode escapes": {
        "start_anchor": ">",
        "fields": {
            "content": {"repeats": True, "join": ""},
            "thinking": {"open_pattern": r"\u27e8denk\u27e9", "close_pattern": r"\U000027e9\s*",
                         "repeats": True, "join": "|"}}},
}

OUTPUTS = {
    "json calls": [
        ("<|turn|>model\n", "Hello there. \n"),
        ("<|turn|>model\n", "<think>\nHm </thin k>\n</think>\n\nHi<|im_end|>\n<|eot|>"),
        ("x<|turn|>model\n<think>\n", "Hm\n</think>\n\nHi "),
        ("<|turn|>model\n<think>\n\n</think>\n\n", "Hi"),
        ("<|turn|>model\n", 'Let me.\n<tool_call>\n{"name": "weather", "arguments": '
         '{"city": "Köln", "days": "3"}}\n</tool_call>\n<tool_call>{"name": "now", "arguments": {}}'
         "</tool_call>"),
        ("<|turn|>model\n", '<tool_call>{"name": "weather", "arguments": {"ratio": "1.50", '
         '"flag": "True", "opts": "{\\"a\\": 1}", "list": "[1, 2]", "both": "12", "maybe": "null", '
         '"opt": "None", "other": "5"}}</tool_call>'),
        ("<|turn|>model\n", '<tool_call>{"name": "weather", "arguments": {"days": "3x", '
         '"ratio": "1e2", "flag": "2", "list": "{}", "both": "x", "opt": " 7 "}}</tool_call> ok'),
        ("", ""),
        ("", " \n "),
        ("<|turn|>model\n", "a < b <tool <think"),
        ("<|turn|>model\n<think>\n", "never closed"),
    ],
    "xml calls": [
        ("<|turn|>model\n<think>\n", "a\n</think>\n\nText\n<tool_call>\n<function=weather>\n"
         "<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n"
         "</tool_call>\n"),
        ("<|turn|>tool\n", "<think>a</think>b<think> c </think> d "),
        ("<|turn|>model\n", "<tool_call><function=now></function></tool_call><tool_call>\n"
         "<function=weather>\n<parameter=city>\n{\"a\": [1, 2.5, null]}\n</parameter>\n"
         "<parameter=maybe>x < y\n</parameter></function>\n</tool_call>end"),
        ("<|turn|>model\n", "<tool_call> <function = now>"),
        ("<|turn|>model\n", "<tool_call>\n\n<function=now>\n<parameter=a>1</parameter>"
         "<parameter=a>2</parameter></function></tool_call>"),
    ],
    "xml text values": [
        ("<|turn|>model\n", "<thinking> hm </thinking>One <call weather><city>Rom</city>"
         "<days>4</days></call>\n\n two"),
        ("<|turn|>model\n", "<think>hm</thinking><call weather><days>1</days><days>2</days>"
         "<city>x</city></call><call now></call>"),
        ("<|turn|>model\n", "<thin king>"),
    ],
    "lax json": [
        ("<turn>model\n", '<|channel>thought\nHm.\n<channel|>Text<|tool_call>call:weather'
         '{city:<|"|>Bad "Ems"\n<|"|>,days:3,opts:{a:<|"|>b:c<|"|>}}<tool_call|><turn|>'),
        ("<turn>model\n", "Text<eos>more"),
        ("<turn>model\n<|channel>thought\n", "Hm <channel"),
        ("<turn>model\n", '<|tool_call>call:now{}<tool_call|>'),
    ],
    "lines": [
        (">", "a [call]\ndays = 3\nratio=-4\nnothing here\n\n[/call] b"),
        (">", "[call][/call]"),
        (">", "[cal"),
    ],
    "list of calls": [
        (">", 'Hi [TOOL_CALLS][{"name": "weather", "arguments": {"days": 1}}, {"name": "now", '
         '"arguments": {}}]'),
        (">", "[TOOL"),
        (">", "Hi"),
    ],
    "channels": [
        ("<|start|>assistant", "<|channel|>analysis<|message|>One.<|end|><|start|>assistant"
         "<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>final<|message|> A\n"
         "<|return|>"),
        ("<|start|>assistant", "<|channel|>commentary to=functions.weather <|constrain|>json"
         '<|message|>{"days": 2}<|call|>'),
        ("<|start|>assistant", '<|channel|>commentary to=functions.weather<|message|>{"days": 2}'),
        ("<|start|>assistant<|channel|>final<|message|>", " A "),
    ],
    "dotted": [
        (">", '<c>{"tool": {"id": "weather"}, "args": {"days": "5", "city": "x"}}</c>'),
    ],
    "unicode escapes": [
        (">", "\u27e8denk\u27e9 ja \u27e9 \u00a0Gr\u00fc\u00dfe\u2003"),
        (">", "\u27e8denk\u27e9\u00e9\u27e9x\u27e8denk\u27e9y"),
        (">", "\u27e8denk"),
    ],
}

SCHEMAS = {
    "think and calls": {
        "type": "object",
        "properties": {
            "role": {"const": "assistant"},
            "content": {"type": "string",
                        "x-regex": r"^(?:<think>.*?</think>\s*)?(.+?)\s*(?:<tool_call>|$)"},
            "thinking": {"type": "string", "x-regex": r"<think>\n?(.*?)\n?</think>"},
            "tool_calls": {
                "type": "array", "x-regex-iterator": r"<tool_call>(.*?)</tool_call>",
                "items": {"type": "object", "x-parser": "json",
                          "x-parser-args": {"transform": "{type: 'function', function: @}"},
                          "properties": {"type": {"type": "string"},
                                         "function": {"type": "object"}}}}}},
    "xml": {
        "type": "object",
        "properties": {
            "content": {"type": "string", "x-regex": r"^(.+?)(?=<call|$)"},
            "tool_calls": {
                "type": "array", "x-regex-iterator": r"<call (.*?)</call>",
                "items": {"type": "object", "properties": {
                    "type": {"const": "function"},
                    "function": {"type": "object", "properties": {
                        "name": {"type": "string", "x-regex": r"^(\w+)"},
                        "arguments": {
                            "type": "object", "x-regex-key-value":
                                r"<(?P<key>\w+)>(?P<value>.*?)</\w+>",
                            "additionalProperties": {
                                "x-parser": "json",
                                "x-parser-args": {"allow_non_json": True}}}},
                        "required": ["name"]}}}}}},
    "groups": {
        "type": "object",
        "x-regex": r"^(?:\[(?P<thinking>.*?)\])?(?P<content>.*?)(?:!(?P<tool_calls>.*))?$",
        "properties": {
            "role": {"const": "assistant"},
            "content": {"type": "string", "x-regex-substitutions": [
                [r"(\w+)=(\w+)", r"\2=\1"], [r"\s+$", ""], [r"(?P<x>z+)", r"<\g<x>>"]]},
            "tool_calls": {
                "x-parser": "json",
                "x-parser-args": {
                    "transform": "[*].{type: 'function', function: {name: tool_name, "
                                 "arguments: parameters || `{}`}}"},
                "type": "array", "items": {"type": "object"}}}},
    "gemma": {
        "type": "object",
        "properties": {
            "content": {"type": "string", "x-regex": r"^([^<]+)"},
            "tool_calls": {
                "type": "array", "x-regex-iterator": r"<c>(?P<name>\w+)(?P<arguments>\{.*?\})</c>",
                "items": {"type": "object", "properties": {
                    "name": {"type": "string"},
                    "arguments": {"x-parser": "gemma4-tool-call", "type": "object"}}}}}},
    "typed": {
        "type": "object", "x-regex-key-value": r"(?P<key>\w+): (?P<value>[^;]*);",
        "properties": {
            "content": {"type": "string"},
            "tool_calls": {"type": "array", "prefixItems": [
                {"type": "object", "x-parser": "json", "properties": {
                    "name": {"type": "string"},
                    "arguments": {"type": "object", "properties": {
                        "i": {"type": "integer"}, "n": {"type": "number"},
                        "b": {"type": "boolean"}, "d": {"type": "string", "default": "dflt"}},
                        "additionalProperties": False}}}]}}},
}

SCHEMA_OUTPUTS = {
    "think and calls": [
        "<think>\nHm.\n</think>\n\nHello", "Hello",
        'Hi <tool_call>\n{"name": "weather", "arguments": {"days": 2}}\n</tool_call>\n'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        "<think>a</think>", "<tool_call>{broken</tool_call>"],
    "xml": ["Text <call weather><days>3</days><city>a b</city></call><call now></call>", "Text",
            "<call ></call>"],
    "groups": ["plain", "[hm]a=b and c=d zz  ",
               '[x]y![{"tool_name": "weather", "parameters": {"days": 1}}, {"tool_name": "now"}]',
               "a!no json"],
    "gemma": ['Hi<c>weather{city:<|"|>K "x"<|"|>,days:3}</c><c>now{}</c>', "Hi"],
    "typed": ['content: x y; tool_calls: {"name": "weather", "arguments": {"i": "12", "n": 3, '
              '"b": "TRUE", "zz": 1}};',
              'content: x; tool_calls: {"name": "weather", "arguments": {"i": "1.5"}};',
              "nothing"],
}


def arguments_of(call):
    function = call.get("function", call)
    return function["name"], function.get("arguments", function.get("parameters", {}))


def message_of(result):
    """The message in the shape of the C tests: calls as names and arguments."""
    if result is None:
        raise ValueError("no message")
    calls = [arguments_of(call) for call in result.get("tool_calls") or []]
    reasoning = result.get("thinking") or result.get("reasoning") or ""
    return {"reasoning": reasoning, "content": result.get("content") or "",
            "calls": [{"name": n, "arguments": a} for n, a in calls]}


def record(path, declarations, outputs, parse):
    rows = []
    for name, declaration in declarations.items():
        cases = []
        for case in outputs[name]:
            tail, output = case if isinstance(case, tuple) else ("", case)
            row = {"tail": tail, "output": output}
            try:
                row["expect"] = message_of(parse(output, declaration, tail))
            except (ValueError, TypeError, KeyError) as e:
                row["error"] = type(e).__name__
            cases.append(row)
        rows.append({"name": name, "declaration": declaration, "cases": cases})
    with open(path, "w") as f:
        f.write('{"tools": ' + json.dumps(TOOLS) + ',\n "declarations": [\n')
        f.write(",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]}\n")
    print(os.path.basename(path), sum(len(row["cases"]) for row in rows))


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--schema-module")
    args = options.parse_args()
    from transformers.utils.chat_parsing import parse_response
    record(os.path.join(DATA, "templates.json"), TEMPLATES, OUTPUTS,
           lambda text, spec, tail: parse_response(text, spec, prefix=tail, tools=TOOLS))
    if args.schema_module:
        import transformers.utils
        transformers.utils.is_jmespath_available = lambda: True  # gone with the old parser
        spec = importlib.util.spec_from_file_location("chat_parsing_utils", args.schema_module)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        record(os.path.join(DATA, "schemas.json"), SCHEMAS, SCHEMA_OUTPUTS,
               lambda text, schema, tail: module.recursive_parse(text, schema))


if __name__ == "__main__":
    main()
