"""Makes chats.json: conversations rendered by Jinja2, set up as transformers does, and what of each is trained.

The templates are our own, each in the manner of a family. `trained` is written by the rule, not by rendering: for each
assistant's turn its text as the template writes it, with the end-of-turn token.

    python chats.py        (needs: jinja2)
"""

import json
import os

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = """{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' -}}
{%- endif -%}
{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
  {% endfor %}
  {% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if tools is not none and tools %}
    {{- "<|start_header_id|>system<|end_header_id|>\\n\\nTools:\\n" }}
    {%- for t in tools %}
        {{- t | tojson }}
        {{- "\\n" }}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
    {{- "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- elif message.tool_calls is defined and message.tool_calls %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"].strip() + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

THINK = """{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and not loop.last and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

LOOPS = """{% for message in messages %}{% if message.role == 'tool' %}{% continue %}{% endif %}
{{ message.role.upper() }}:{% generation %}{{ ' ' ~ message.content }}{% endgeneration %}
{% if loop.index > 5 %}{% break %}{% endif %}{% endfor %}{{ "x" if add_generation_prompt }}"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "think": THINK, "loops": LOOPS}
TOKENS = {"chatml": ("<|im_start|>", "<|im_end|>"), "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
          "mistral": ("<s>", "</s>"), "gemma": ("<bos>", "<eos>"), "think": ("", "<|im_end|>"), "loops": ("", "")}


def u(s):
    return {"role": "user", "content": s}


def a(s, **more):
    return {"role": "assistant", "content": s, **more}


def s(t):
    return {"role": "system", "content": t}


ONE = [u("What is 2+2?"), a("It is 4.")]
TWO = [s("Be brief. 简短"), u("Hi\n"), a("Hello, you!"), u(" Größe? "), a("1,80 m 😀")]
HALF = [u("a"), a("not this", train=False), u("b"), a("but this")]
TOOL = [{"type": "function", "function": {"name": "add", "description": "a < b & 'c' \"d\" ü",
                                          "parameters": {"z": 1, "a": [True, None, 2.5], "m": {}}}}]
CALL = [u("add"), a("", tool_calls=[{"type": "function", "function": {"name": "add", "arguments": {"y": 1, "x": "ü"}}}]),
        {"role": "tool", "content": " 3 "}, a("Three")]
OPEN = [u("q"), a("r"), u("left open")]
CLOSE = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "mistral": "</s>", "gemma": "<end_of_turn>",
         "think": "<|im_end|>"}

env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise ValueError(message)


env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception


def case(name, messages, tools=None, trained=None, error=None):
    bos, eos = TOKENS[name]
    plain = [{k: v for k, v in m.items() if k != "train"} for m in messages]
    # transformers' own tag, which writes nothing itself
    source = TEMPLATES[name].replace("{% generation %}", "{% if true %}").replace("{% endgeneration %}", "{% endif %}")
    template = env.from_string(source)
    context = dict(messages=plain, tools=tools, bos_token=bos, eos_token=eos)
    try:
        text = template.render(add_generation_prompt=False, **context)
        prompt = template.render(add_generation_prompt=True, **context)
    except ValueError as e:
        text, prompt, error = None, None, str(e)
    if trained is None and error is None:
        lead = " " if name == "mistral" else ""
        trained = [lead + m["content"] + CLOSE[name] for m in messages
                   if m["role"] == "assistant" and m.get("train", True)]
    return dict(template=name, messages=messages, tools=tools, text=text, prompt=prompt, trained=trained, error=error)


CASES = [case(n, c) for n in ["chatml", "llama3", "mistral", "gemma"] for c in [ONE, TWO, HALF, OPEN]]
CASES += [
    case("llama3", CALL, TOOL, ['{"name": "add", "parameters": {"y": 1, "x": "ü"}}<|eot_id|>', "Three<|eot_id|>"]),
    case("mistral", [u("a"), u("b"), a("c")]),
    case("think", [u("a"), a("<think>\nx\n</think>\n\nb")]),
    case("think", [u("a"), a("<think>\nx\n</think>\n\nb"), u("c"), a("d")], error="message 1"),
    case("think", [u("a"), a("<think>\nx\n</think>\n\nb", train=False), u("c"), a("d")]),
    case("loops", [u("a"), {"role": "tool", "content": "t"}] + [u(str(i)) for i in range(8)], error="no assistant"),
]

out = {"templates": {k: {"source": v, "bos": TOKENS[k][0], "eos": TOKENS[k][1]} for k, v in TEMPLATES.items()},
       "cases": CASES}
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "chats.json"), "w") as f:
    json.dump(out, f, ensure_ascii=True, indent=1)
    f.write("\n")
