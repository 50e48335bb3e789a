#!/usr/bin/env python3
"""Records what Python's jinja2, set up as transformers sets it up, makes of chat templates.

usage: make_template_vectors.py [--real DIR] [--show TEMPLATE SHAPE FLAGS]

Writes, beside tests/data/templates/*.jinja:
  expressions.jsonl  small templates over fixed variables, from template_cases.py
  chats.jsonl        the repository's own chat templates on every conversation below, in full
  real.jsonl         published templates found in DIR, as a length and a hash of the text, since
                     neither the templates nor their output belong to this repository

A line that has "error" instead of a text was refused by jinja2 with that kind of exception.
Needs jinja2 3.1.6. Times are UTC and fixed.
"""

import argparse
import copy
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from template_cases import EXPRESSIONS, FLAGS, SHAPES, TOKENS, VARIABLES

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "tests", "data", "templates")
NOW = 1753531200  # 2025-07-26 12:00 UTC

# What a template expects of its messages, said by hand: the C code finds out by itself.
TRAITS = {
    "Qwen3.5-4B": {"walks", "string", "none"},
    "Qwen3.8-27B": {"walks", "string", "none"},
    "GLM-4.6": {"walks", "string"},
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": {"none"},
    "openai-gpt-oss-120b": {"developer", "thinking"},
    "parts": {"walks", "none", "developer"},
    "harmony": {"thinking", "arguments_text"},
}


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what an assistant wrote; its text is printed as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_print")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def environment(mutable=False):
    kind = jinja2.sandbox.SandboxedEnvironment if mutable else jinja2.sandbox.ImmutableSandboxedEnvironment
    env = kind(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(format)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def text_of(part):
    return part["refusal"] if part.get("type") == "refusal" else part["text"]


def normalise_content(content, traits):
    if content is None:
        return None if "none" in traits else ""
    if isinstance(content, list):
        texts = [text_of(p) for p in content]
        if "walks" not in traits:
            return "\n".join(texts)
        return [{"type": "text", "text": t} for t in texts]
    if "walks" in traits and "string" not in traits:
        return [{"type": "text", "text": content}]
    return content


def normalise_arguments(arguments, traits):
    if "arguments_text" in traits:
        if arguments is None:
            return "{}"
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            arguments = json.loads(arguments)
        except ValueError:
            pass
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else {"value": arguments}


def normalise(messages, traits):
    """The contract of chat_template.h, once more."""
    out = []
    for message in messages:
        m = {}
        for key, value in message.items():
            if key == "content":
                m[key] = normalise_content(value, traits)
            elif value is None or (key == "tool_calls" and value == []):
                continue
            elif key == "role" and value == "developer" and "developer" not in traits:
                m[key] = "system"
            elif key == "tool_calls":
                m[key] = copy.deepcopy(value)
                for call in m[key]:
                    inner = call.get("function", call)
                    inner["arguments"] = normalise_arguments(inner.get("arguments"), traits)
            else:
                m[key] = value
        if "content" not in m:
            m["content"] = normalise_content(None, traits)
        if "reasoning_content" not in m and isinstance(m.get("reasoning"), str):
            m["reasoning_content"] = m["reasoning"]
        if "thinking" in traits and "reasoning_content" in m and "thinking" not in m:
            m["thinking"] = m["reasoning_content"]
        out.append(m)
    return out


TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def render_chat(template, name, shape, flags):
    """transformers' apply_chat_template for one conversation."""
    flags = dict(flags)
    messages = normalise(shape["messages"], TRAITS.get(name, set()))
    proceed = flags.pop("continue_final_message", False)
    final = None
    if proceed:
        if flags.get("add_generation_prompt"):
            raise ValueError("continue_final_message and add_generation_prompt")
        content = messages[-1]["content"]
        if content is None:
            raise ValueError("nothing to continue")
        if isinstance(content, list):
            final = content[-1]["text"]
            content[-1]["text"] += TAG
        else:
            final = content
            messages[-1]["content"] += TAG
    variables = dict(TOKENS)
    variables.update(flags.pop("kwargs", {}))
    text = template.render(messages=messages, tools=shape.get("tools"),
                           documents=variables.pop("documents", None),
                           add_generation_prompt=flags.get("add_generation_prompt", False),
                           **variables)
    if proceed:
        if final.strip() not in text or TAG.strip() not in text:
            raise ValueError("the final message does not appear")
        at = text.rindex(TAG.strip())
        text = text[:at] if text[at:at + len(TAG)] == TAG else text[:at].rstrip()
    return text


def attempt(function):
    """The text, or what was raised: template (raise_exception), undefined, or other."""
    try:
        return {"text": function()}
    except jinja2.exceptions.UndefinedError as error:
        return {"error": "undefined", "message": str(error)}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": "other", "message": str(error)}
    except jinja2.exceptions.TemplateError as error:
        kind = "template" if type(error) is jinja2.exceptions.TemplateError else "other"
        return {"error": kind, "message": str(error)}
    except Exception as error:  # whatever Python raises inside a template
        return {"error": "other", "message": f"{type(error).__name__}: {error}"}


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % (1 << 64)
    return h


def write_lines(name, lines):
    path = os.path.join(DATA, name)
    with open(path, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{name}: {len(lines)} lines, {os.path.getsize(path)} bytes")


def expression_lines():
    lines = [{"variables": VARIABLES}]
    for case in EXPRESSIONS:
        mutable = case.startswith("MUTABLE:")
        source = case.removeprefix("MUTABLE:")
        env = environment(mutable)
        result = attempt(lambda: env.from_string(source).render(
            messages=[], tools=None, documents=None, add_generation_prompt=False,
            **copy.deepcopy(VARIABLES)))
        lines.append({"source": source, **result})
    return lines


def chat_lines(folder, full):
    lines = [{"tokens": TOKENS, "shapes": SHAPES, "flags": FLAGS, "now": NOW}]
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".jinja"):
            continue
        name = file.removesuffix(".jinja")
        with open(os.path.join(folder, file), encoding="utf-8", newline="") as source:
            template = environment().from_string(source.read())
        for shape in SHAPES:
            for flags in FLAGS:
                only = FLAGS[flags].get("only")
                if only and shape not in only:
                    continue
                given = {k: v for k, v in FLAGS[flags].items() if k != "only"}
                result = attempt(lambda: render_chat(template, name, SHAPES[shape], given))
                if "text" in result and not full:
                    data = result.pop("text").encode("utf-8")
                    result["bytes"] = len(data)
                    result["hash"] = f"{fnv1a(data):016x}"
                if result.get("error") == "other":
                    del result["message"]
                lines.append({"template": name, "shape": shape, "flags": flags, **result})
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--real", help="folder with published templates")
    parser.add_argument("--show", nargs=3, metavar=("TEMPLATE", "SHAPE", "FLAGS"),
                        help="print one rendering instead of writing")
    args = parser.parse_args()
    if args.show:
        path, shape, flags = args.show
        name = os.path.basename(path).removesuffix(".jinja")
        with open(path, encoding="utf-8", newline="") as source:
            template = environment().from_string(source.read())
        given = {k: v for k, v in FLAGS[flags].items() if k != "only"}
        result = attempt(lambda: render_chat(template, name, SHAPES[shape], given))
        sys.stdout.write(result.get("text") or json.dumps(result) + "\n")
        return
    write_lines("expressions.jsonl", expression_lines())
    write_lines("chats.jsonl", chat_lines(DATA, full=True))
    if args.real:
        write_lines("real.jsonl", chat_lines(args.real, full=False))


if __name__ == "__main__":
    main()
