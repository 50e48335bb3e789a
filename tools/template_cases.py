"""The inputs of make_template_vectors.py: expressions, conversations and the switches of requests."""

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

VARIABLES = {
    "name": "Ada", "empty": "", "zero": 0, "one": 1, "seven": 7, "minus": -3, "pi": 3.14159,
    "half": 0.5, "big": 12345678901234567890123, "tiny": 1e-7, "huge": 1e22, "yes": True, "no": False,
    "nothing": None, "text": "  Hello, Wörld!\n\tGrüße aus Köln  ", "words": "the quick brown fox",
    "emoji": "a🙂b日本語c", "quotes": "it's \"quoted\"", "html": "<b>&'\"</b>", "lines": "one\ntwo\r\nthree\n",
    "numbers": [3, 1, 2], "mixed": [1, "a", None, True, 2.5, [1], {"k": "v"}], "letters": ["b", "A", "c", "B", "a"],
    "dict": {"b": 1, "a": 2, "items": [1, 2], "nested": {"x": {"y": "deep"}}},
    "users": [
        {"name": "Zoe", "age": 31, "city": "Köln", "tags": ["x"]},
        {"name": "adam", "age": 25, "city": "Bonn", "tags": []},
        {"name": "Bea", "age": 31, "city": "köln"},
    ],
    "tool": {"type": "function", "function": {"name": "f", "description": "Ünï \"q\" \\ / \b\f\u0001\u007f\u2028",
             "parameters": {"type": "object", "properties": {"n": {"type": "integer", "default": 1.0, "maximum": 18446744073709551615}}, "required": []}}},
}

_PRINTED = """
name | empty | zero | one | minus | pi | half | big | tiny | huge | yes | no | nothing | text | emoji
numbers | mixed | dict | users | quotes | [quotes] | [html, lines] | ['tab\\t', 'nl\\n', 'é', '\\x7f', '\\u200b', '🙂', '\\\\']
1 | 1.0 | 1.5e3 | 1e16 | 1e15 | 123456789012345680.0 | 0.1 | 1e-4 | 1e-5 | 0.1 + 0.2 | 100.0 | -0.0 | 1_000 | 0x1F | 0b101 | 0o17 | 1.5e-10
12345678901234567890 | 2.5 | 1/3 | 2**0.5 | 1e300*1e10 | true | True | false | False | none | None
1 + 2 | 1 - 2 | 3 * 4 | 7 / 2 | 7 // 2 | -7 // 2 | 7 // -2 | 7 % 3 | -7 % 3 | 7 % -3 | -7 % -3 | 7.5 // 2 | -7.5 // 2 | 7.5 % 2 | -7.5 % 2 | 7.5 % -2 | 6.0 // 3 | 0.3 % 0.1 | -1 // 0.3
2 ** 10 | 2 ** -1 | 2 ** 3 ** 2 | -2 ** 2 | 2.0 ** 3 | 4 / 2 | 1 / 0 | 1 // 0 | 1 % 0 | 1.0 / 0 | 0 ** 0 | 9 ** 19 | 0 ** -1
true + 1 | true * 3 | -true | +5 | --5 | -zero | 1 + 2 * 3 | (1 + 2) * 3 | 1 - 2 - 3 | 10 / 4 * 2 | 7 // 2 * 2
'a' + 'b' | 'a' * 3 | 3 * 'ab' | 'a' * 0 | 'a' * -1 | [1] * 3 | [1] + [2] | (1,) + (2,) | 'a' + 1 | 1 + 'a' | 'a' + nothing | [1] + (2,) | 'a' - 'b' | {} + {}
'a' ~ 1 | 1 ~ 2 | 'a' ~ none ~ true ~ 1.0 | [1] ~ 'x' | 1 ~ 2 + 3 | 'a' ~ 'b' * 2 | missing ~ 'x'
'it is' 'joined' | 'a' "b" 'c'
1 == 1.0 | true == 1 | 1 != 2 | 'a' == 'a' | [1, 2] == [1, 2.0] | (1,) == [1] | {'a': 1} == {'a': 1.0} | none == none | none == false | missing == missing | missing == none
1 < 2 | 2 <= 2 | 3 > 4 | 'a' < 'b' | 'Z' < 'a' | 'é' > 'z' | [1, 2] < [1, 3] | [1] < [1, 0] | (1, 'a') < (1, 'b') | 1 < 2 < 3 | 1 < 2 > 3 | 1 < 'a' | none < 1 | 1.5 < 2 | {} < {} | missing < 1 | big > 1
1 in [1, 2] | 3 not in [1, 2] | 'a' in 'abc' | '' in 'abc' | 'd' in 'abc' | 'a' in dict | 'z' in dict | 1 in 'abc' | 1 in none | [1] in [[1]] | 'x' in missing | missing in [1] | 1 in (1, 2) | 2 in range(3) | not 1 in [1] | 1.0 in [1] | [1] in dict
true and false | 1 and 2 | 0 and x.y | 0 or 'a' | 'a' or x.y | not 1 | not '' | not missing | not not 1 | 1 and '' or 'b' | not 1 == 2 | none or 0 or '' or []
'a' if true else 'b' | 'a' if false else 'b' | 'a' if false | ('a' if false) is defined | 'a' if 0 else 'b' if 1 else 'c' | ('a' if missing else 'b') | 1 if 0 else 2 + 3
[] | () | {} | (1,) | (1, 2) | 1, 2 | [1, [2, (3,)]] | {'a': 1, 2: 'b', none: 3, true: 4} | {1: 'a', 1.0: 'b', true: 'c'} | {'a': 1,} | [1,] | {(1, 2): 3}[(1, 2)] | {[1]: 2}
name[0] | name[-1] | name[9] | name[1:] | name[:-1] | name[::-1] | name[::2] | name[-2:] | name[5:] | name[:0] | emoji[1] | emoji[-2] | emoji[1:4] | emoji[::-1] | emoji[::2] | emoji[-3:-1] | name[1:2:1] | name[::0]
numbers[0] | numbers[-1] | numbers[3] | numbers[1:] | numbers[::-1] | numbers[-2:] | numbers[:1] | numbers[2:0:-1] | numbers[100:] | numbers[-100:2] | numbers[::-2] | (1, 2, 3)[1:] | (1, 2, 3)[::-1] | range(10)[3] | range(10)[-1] | numbers[none:] | numbers['a'] | numbers[1.0] | numbers[true] | dict[1:] | range(10)[2:8:3] | range(10)[::-1] | range(10, 0, -2)[1:3] | range(10)[5:2] | range(10)[::-3]|list
dict.a | dict['a'] | dict.missing | dict['missing'] | dict.nested.x.y | dict['nested']['x'].y | dict.missing.deeper | dict['missing']['deeper'] | dict['items'] | dict.items is callable | dict.items() | dict.keys() | dict.values() | dict.keys is defined | dict.nope is defined
missing | missing.x | missing['x'] | missing() | missing + 1 | -missing | missing[0] | missing[1:] | missing | length | missing|list | missing|string | missing|upper | missing|join | missing|first | missing|int | missing|tojson | missing|items|list | missing|trim | name.x | name.x.y | nothing.x | nothing['x'] | nothing.x.y | numbers.x | 1 .x | (1).x
name.upper() | name.lower() | text.strip() | text.lstrip() | text.rstrip() | text.strip(' H\\n') | 'xxaxx'.strip('x') | 'abcba'.lstrip('ab') | 'abcba'.rstrip('ab') | name.title() | 'they\\'re bill\\'s'.title() | 'hello wOrld'.capitalize() | 'aBc'.swapcase() | 'ÄÖÜß'.lower() | 'äöüßé'.upper() | 'ñandú ŝtrato'.title() | 'ΑΒΓ'.lower() | 'привет'.upper() | 'ÿ'.upper()
words.split() | words.split(' ') | words.split(' ', 1) | words.split(maxsplit=2) | 'a,b,,c'.split(',') | ''.split() | ''.split(',') | '  a  b '.split() | '  a  b '.split(' ') | 'a b c d'.split(none, 2) | '  a b  c  '.split(none, 1) | 'a--b--c'.split('--') | words.rsplit(' ', 1) | '  a b  c '.rsplit(none, 1) | 'a,b,c'.rsplit(',', 1) | 'a'.split('') | lines.splitlines() | lines.splitlines(true) | 'a\\x0bb\\x85c\\u2028d'.splitlines() | words.partition(' ') | words.rpartition(' ') | 'abc'.partition('x') | 'abc'.rpartition('x') | 'abc'.split(5)
'abc'.startswith('ab') | 'abc'.startswith(('x', 'a')) | 'abc'.startswith('b', 1) | 'abc'.startswith('') | 'abc'.endswith('bc') | 'abc'.endswith(('x', 'c')) | 'abc'.endswith('ab', 0, 2) | 'abc'.startswith(1) | 'abc'.startswith(['a'])
'abcabc'.replace('b', 'X') | 'abcabc'.replace('b', 'X', 1) | 'abc'.replace('', '-') | 'abc'.replace('z', 'y') | 'aaa'.replace('a', '') | 'aaa'.replace('aa', 'b') | 'abc'.replace('', '-', 2) | 'añb'.replace('ñ', 'n')
'abcabc'.find('c') | 'abcabc'.find('z') | 'abcabc'.rfind('c') | 'abcabc'.index('b') | 'abcabc'.index('z') | 'abcabc'.find('a', 1) | 'abcabc'.find('c', 0, 2) | 'abcabc'.count('bc') | 'aaaa'.count('aa') | 'abc'.count('') | emoji.find('日') | emoji.rfind('c') | ''.find('') | 'abc'.rindex('a') | 'abcabc'.count('a', 1)
'abc'.isalpha() | 'ab1'.isalpha() | '123'.isdigit() | ''.isdigit() | 'a1'.isalnum() | 'a b'.isalnum() | ' \\t'.isspace() | 'abc'.islower() | 'Abc'.islower() | 'ABC1'.isupper() | 'äö'.isalpha() | '日本'.isalpha() | '12'.isdecimal() | '1.2'.isnumeric() | 'abc'.isascii() | 'é'.isascii()
'abc'.removeprefix('a') | 'abc'.removeprefix('x') | 'abc'.removesuffix('c') | 'abc'.removesuffix('') | '42'.zfill(5) | '-42'.zfill(5) | 'abc'.zfill(2) | 'a'.center(4) | 'a'.center(5) | 'ab'.center(5) | 'ab'.center(6, '*') | 'a'.ljust(3) ~ '|' | 'a'.rjust(3, '.') | ','.join(['a', 'b']) | ','.join('abc') | ','.join([]) | ','.join([1]) | ''.join(letters) | 'é'.center(4, 'ü')
'{} and {}'.format(1, 'x') | '{0}{1}{0}'.format('a', 'b') | '{n}'.format(n=name) | '{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c') | '{:05d}'.format(42) | '{:.2f}'.format(pi) | '{:,}'.format(1234567) | '{!r}'.format('a') | '{{}}'.format() | '{a[b]}'.format(a=dict) | '{:x}'.format(255) | '{:+d}'.format(5) | '{:*^9}'.format('mid') | '{}'.format(1.0) | '{}'.format(none) | '{} {}'.format(1) | '{:>8.3f}'.format(pi) | '{:#x}'.format(255) | '{:b}'.format(5) | '{:.1%}'.format(half) | '{:d}'.format('a')
'%s' % 'a' | '%s %s' % ('a', 1) | '%d' % 3.7 | '%5d|%-5d|%05d' % (1, 2, 3) | '%.2f' % pi | '%x %X %o' % (255, 255, 8) | '%%' % () | '%r' % 'a' | '%s' % none | '%(a)s' % dict | '%s' % [1, 2] | '%d' % 'a' | '%s %s' % 'a' | '%s' % (1, 2) | '%e' % 12345.678 | '%g' % 0.00001 | '%+d' % 5 | '% d' % 5 | '%10.3s|' % 'abcdef' | '%c' % 'x' | '%i' % 5 | '%-8s|' % 'ab' | 'b' % missing | 'b' % [1] | 'b' % 1 | '%z' % 1 | '%.3d' % 5
""".replace("%.3d' % 5", "%s' % 5")

_FILTERS = """
name|upper | name|lower | 'hello wORLD foo-bar (baz)'|title | 'hELLO'|capitalize | text|trim | 'xxaxx'|trim('x') | 5|string | none|string | name|length | emoji|length | numbers|length | dict|length | 5|length | none|length | words|wordcount | 'a-b c_d é'|wordcount
'abc'|replace('b', 'X') | 'aaa'|replace('a', 'b', 2) | 5|replace('5', '6') | 'a'|replace('a', 1) | name|center(9) | 'a\\nb\\n\\nc'|indent | 'a\\nb\\n\\nc'|indent(2, true) | 'a\\nb\\n\\nc'|indent(2, blank=true) | 'a\\nb'|indent('>> ') | 'a\\n'|indent | ''|indent(2, true) | 'a\\r\\nb'|indent(1) | 5|indent
missing|default('d') | ''|default('d') | ''|default('d', true) | none|default('d') | none|d('d', boolean=true) | missing|default | 0|default(1, true) | dict.x|default('d') | missing.x|default('d') | missing|default(none) | missing|default(missing2)
'42'|int | '4.7'|int | 'x'|int | 'x'|int(9) | 4.9|int | -4.9|int | true|int | '0x1A'|int(0, 16) | '0b11'|int(base=2) | none|int | ' 12 '|int | '1_000'|int | [1]|int | '1e3'|int | '-5'|int | ''|int(3) | '3.5'|float | 'x'|float | 'x'|float(1.5) | 3|float | '1e3'|float | 'inf'|float | true|float | none|float | ' 2.5 '|float | '0x10'|float | 'nan'|float
2.5|round | 3.5|round | 2.567|round(2) | 2.567|round(1, 'floor') | 2.512|round(1, 'ceil') | 5|round | 1234|round(-2) | 2.675|round(2) | -2.5|round | 0.5|round | 'a'|round | 1.005|round(2) | -5|abs | -5.5|abs | 5|abs | 'a'|abs | true|abs
numbers|join(', ') | numbers|join | mixed|join('-') | 'abc'|join('.') | users|join(', ', attribute='name') | users|join('|', 'age') | dict|join(',') | []|join('x') | none|join | missing|join(',') | letters|join(1)
numbers|first | numbers|last | []|first | []|last | 'abc'|first | 'abc'|last | dict|first | dict|last | numbers|reverse|list | 'abc'|reverse | dict|reverse|list | numbers|list | 'abc'|list | dict|list | none|list | (1, 2)|list | numbers|reverse is iterable | numbers|map('string')|last
numbers|sort | numbers|sort(reverse=true) | letters|sort | letters|sort(case_sensitive=true) | letters|sort(true) | users|sort(attribute='age')|map(attribute='name')|list | users|sort(attribute='name')|map(attribute='name')|list | users|sort(attribute='age,name')|map(attribute='name')|list | users|sort(true, attribute='age')|map(attribute='name')|list | mixed|sort | []|sort | dict|sort | 'bca'|sort
letters|unique|list | ['a', 'A', 'b']|unique|list | ['a', 'A']|unique(true)|list | users|unique(attribute='age')|map(attribute='name')|list | [1, 1.0, true]|unique|list | [[1]]|unique|list
numbers|min | numbers|max | letters|min | letters|max | letters|max(case_sensitive=true) | users|min(attribute='age') | users|max(attribute='age')|attr('name') | []|min | numbers|sum | []|sum | users|sum(attribute='age') | numbers|sum(start=10) | ['a']|sum | [[1], [2]]|sum(start=[]) | [0.1, 0.2]|sum
numbers|map('string')|list | numbers|map('string')|join('+') | users|map(attribute='name')|list | users|map(attribute='tags')|list | users|map(attribute='tags', default='none')|list | users|map(attribute='tags.0')|list | words.split()|map('upper')|list | words.split()|map('replace', 'o', '0')|list | users|map('attr', 'name')|list | numbers|map|list | numbers|map('nope')|list | numbers|map(attribute='x', foo=1)|list | none|map('upper')|list | numbers|map('default', 5)|list
numbers|select('odd')|list | numbers|select|list | [0, 1, '', 'a', none]|select|list | numbers|reject('odd')|list | [0, 1, '']|reject|list | mixed|select('string')|list | numbers|select('greaterthan', 1)|list | numbers|select('>', 1)|list | numbers|select('in', [1, 2])|list | numbers|reject('equalto', 2)|list | numbers|reject('==', 2)|join(', ') | numbers|select('nope')|list | none|select|list | numbers|select('odd')|length
users|selectattr('tags')|map(attribute='name')|list | users|selectattr('age', 'equalto', 31)|map(attribute='name')|list | users|selectattr('age', 'gt', 30)|list|length | users|rejectattr('age', 'eq', 31)|list | users|selectattr('tags', 'defined')|list|length | users|rejectattr('tags', 'defined')|map(attribute='name')|first | users|selectattr('nope.deeper')|list | users|selectattr|list | users|selectattr('name', 'in', ['Zoe', 'Bea'])|map(attribute='age')|sum
[1, 2, 3, 4, 5]|batch(2)|list | [1, 2, 3, 4, 5]|batch(2, 0)|list | [1, 2, 3, 4, 5]|slice(2)|list | [1, 2, 3, 4, 5]|slice(3, 'x')|list | []|batch(3)|list | [1]|slice(3)|list
dict|items|list | dict|dictsort | {'b': 1, 'A': 2, 'a': 3}|dictsort | {'b': 1, 'A': 2}|dictsort(true) | {'b': 1, 'a': 2}|dictsort(false, 'value') | {'b': 1, 'a': 2}|dictsort(reverse=true) | {'b': 1}|dictsort(by='x') | numbers|items|list | none|items|list | {}|items|list
users|groupby('city')|list|length | users|groupby('age')|map(attribute='grouper')|list | users|groupby('age')|map(attribute='list')|map('length')|list | users|groupby('city')|map('first')|list | users|groupby('tags', default='-')|length
html|escape | html|e | html|safe|escape | html|safe ~ html | html|safe + html | html + html|safe | html|forceescape | (html|safe)|forceescape | html|escape|length | '<'|safe is escaped | '<' is escaped | ('%s'|safe) % '<' | html|escape|upper | [html|safe] | (html|safe)|trim + '<' | 5|escape | none|e | (html|e)|replace('&', '+')
'a b/c?d=é&e'|urlencode | {'a b': 'c/d', 'e': 1}|urlencode | [('a', 1), ('b', 'ü')]|urlencode | 5|urlencode | 'a'|format | '%s-%s'|format('a', 'b') | '%(x)s'|format(x=1) | '%s'|format(missing)
'a very long text that will be cut somewhere'|truncate(20) | 'a very long text that will be cut'|truncate(20, true) | 'short'|truncate(20) | 'a very long text'|truncate(10, false, '…') | 'a very long text'|truncate(10, leeway=0) | 'aaaaaaaaaaaaaaaaaaaaaaaaaaaa'|truncate(10)
dict|tojson | tool|tojson | mixed|tojson | tool|tojson(indent=2) | dict|tojson(indent=4) | []|tojson(indent=2) | {}|tojson(indent=2) | {'a': []}|tojson(indent=1) | tool|tojson(ensure_ascii=true) | emoji|tojson(true) | dict|tojson(sort_keys=true) | dict|tojson(separators=(',', ':')) | {1: 2, none: 3, true: 4, 1.5: 5}|tojson | {'a': {'b': [1, {}]}}|tojson(indent='--') | {'a': 1}|tojson(indent=0) | 1.0|tojson | 'é"\\\\\\n\\x00\\x1f\\x7f'|tojson | (1, 2)|tojson | none|tojson | html|tojson | big|tojson | 1e22|tojson | 1e-7|tojson | {(1,): 2}|tojson | range(3)|tojson | namespace()|tojson | html|tojson|safe | [1, 2]|tojson(indent=none) | 'inf'|float|tojson | dict|tojson(2) | dict.keys()|tojson
dict|attr('a') | dict|attr('items') is callable | name|attr('upper') is callable | name|attr('nope') | namespace(a=1)|attr('a')
-1|abs | -(1|abs) | 1 + 2|string|length | 'a' ~ 'b'|upper | not ''|length | 'a'|upper ~ 'b' | ('a' ~ 'b')|upper | [1, 2]|first + 1 | 1 if 'a'|length == 1 else 2 | numbers|length - 1 | (numbers|length) // 2 | 'A'|lower in 'abc' | numbers|sort|first == 1
name|nope | name is nope | 1 is odd(2) | name|upper(1) | name|trim(x=1) | numbers|join(1, 2, 3, 4)
"""

_TESTS = """
name is defined | missing is defined | dict.x is defined | missing is undefined | missing is not defined | none is none | 0 is none | nothing is not none | 1 is number | true is number | 1.5 is number | 'a' is number | big is number | true is boolean | 1 is boolean | 1 is integer | true is integer | 1.0 is integer | big is integer | 1.0 is float | 1 is float
'a' is string | 1 is string | html|safe is string | dict is mapping | [] is mapping | namespace() is mapping | [] is sequence | 'a' is sequence | dict is sequence | 1 is sequence | none is sequence | missing is sequence | range(2) is sequence | dict.keys() is sequence | [] is iterable | 'a' is iterable | 1 is iterable | none is iterable | dict is iterable | missing is iterable | range(2) is iterable | dict.items() is iterable | (numbers|map('string')) is iterable | (numbers|map('string')) is sequence
true is true | 1 is true | 'a' is true | false is false | 0 is false | none is false | missing is false | range is callable | name is callable | name.upper is callable | missing is callable | dict is callable
1 is odd | 2 is odd | 2 is even | -1 is odd | 2.0 is even | 'a' is odd | 9 is divisibleby(3) | 9 is divisibleby 2 | 9 is divisibleby 0 | 1 is eq(1) | 1 is equalto 2 | 1 is ne 2 | 1 is lt(2) | 2 is gt 1 | 2 is ge 2 | 1 is le 0 | 1 is lessthan 2 | 3 is greaterthan 2 | 1 is sameas 1 | true is sameas true | none is sameas none | 1 is sameas true | [] is sameas []
'abc' is lower | 'ABC' is upper | 'aBc' is lower | '' is lower | '1' is upper | 1 is in [1] | 3 is in([1]) | 'a' is in 'abc' | 1 is not in [2] | 'upper' is filter | 'nope' is filter | 'odd' is test | 'nope' is test
1 is odd and 2 is even | 1 is odd or x.y | not 1 is odd | 1 is not odd | 1 is odd if true else 2 | (1 is odd) is true | name is string and name|length > 2 | 1 + 1 is even | [1] is iterable and [1] is not string | missing is defined and missing.x | 1 is odd is true | name is defined is true
"""

_BLOCKS = [
    # white space control
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}\n  b\n  {% endif %}\n  c", "a {%- if true -%} b {%- endif -%} c",
    "a {%+ if true %} b {%+ endif +%}\nc", "  {%+ if true %}x{% endif %}", "a\n{{ 1 }}\n\nb\n\n", "a\n  {{- 1 -}}  \n b",
    "{# c #}\na", "a {#- c -#} b", "  {# c #}  \nx", "a\n   {#- c #}\nx", "{% raw %}{{ a }}{% b %}{% endraw %}", "x {%- raw -%}  {{ a }}  {%- endraw -%} y",
    "  {% raw %}\n  {{ x }}\n  {% endraw %}\nz", "a\r\nb\rc\n", "a\n", "a\n\n", "\n", "", "{% if true %}\n\n\nx{% endif %}", "x{% if true %}  \n y{% endif %}",
    "a\n\t {% set x = 1 %} \n{{ x }}", "{{ '{{' }} {{ '%}' }} }} %}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ {'a': {}} }}", "{ {1} }{ %", "{{ 1 }}\n{{ 2 }}", "a{% if 1 %}b{% endif %}\n\nc",
    "a  \n  {%- if true %}  b{% endif %}", "é\u00a0{%- if true %}x{% endif %}", "{{ 1 -}} \u2003 x", "a\n{{ 1 }}{% if true %}\nb{% endif %}", "{#-#}x", "{# a -#} x", "{# +#}\nx", "a{# {{ x }} {% y %} #}b", "{%if true%}x{%endif%}{{name}}", "{%-if true-%} x {%-endif-%}",
    # if
    "{% if 0 %}a{% elif '' %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 1 %}b{% elif 1 %}c{% endif %}", "{% if missing %}a{% else %}b{% endif %}", "{% if 1, 0 %}a{% endif %}", "{% if missing.x %}a{% endif %}", "{% if [] %}a{% elif {} %}b{% elif 0.0 %}c{% elif none %}d{% else %}e{% endif %}",
    # for
    "{% for i in numbers %}{{ i }},{% endfor %}", "{% for i in [] %}a{% else %}none{% endfor %}", "{% for i in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in numbers %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in numbers %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}", "{% for i in numbers %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in numbers %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "{% for i in numbers if i > 1 %}{{ i }}{{ loop.last }}{{ loop.length }} {% else %}x{% endfor %}", "{% for i in numbers if i > 9 %}{{ i }}{% else %}x{% endfor %}",
    "{% for i in numbers if i is odd %}{{ loop.index }}:{{ i }} {% endfor %}", "{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in dict|items %}{{ k }}={{ v }};{{ loop.last }}{% endfor %}", "{% for k in dict %}{{ k }}{% endfor %}", "{% for c in 'aé🙂' %}[{{ c }}]{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}", "{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for a, b in [1] %}{{ a }}{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}", "{% for x in none %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in range(3) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}", "{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in numbers|reverse %}{{ i }}{{ loop.length }}{% endfor %}", "{% for i in numbers|map('string') %}{{ i }}{{ loop.last }}{{ loop.revindex }}{% endfor %}", "{% for i in numbers[::-1] %}{{ i }}{% endfor %}", "{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}", "{% for i in range(2, 8, 3) %}{{ i }}{% endfor %}", "{{ range(3) }}{{ range(1, 9, 2) }}{{ range(0)|list }}", "{{ range(200000)|length }}", "{{ range(1, 2, 0) }}", "{{ range('a') }}",
    "{% for i in numbers %}{{ loop }}{% break %}{% endfor %}".replace("{{ loop }}", "{{ loop.nope is defined }}"), "{{ loop }}", "{{ loop.index }}", "{% for loop in [1] %}{% endfor %}".replace("loop in", "lop in"), "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}", "{% for i in [1, 2, 3, 4] %}{% if loop.first %}{% continue %}{% endif %}{{ loop.previtem }}{% endfor %}",
    "{% set x = numbers|map('string') %}{{ x|join }}|{{ x|join }}", "{% set x = numbers|select %}{{ x|first }}{{ x|first }}{{ x|list }}", "{% for i in numbers %}{{ i }}{% else %}x{% endfor %}", "{% for k, v in dict.nested.items() %}{% for a, b in v.items() %}{{ a }}{{ b }}{{ loop.last }}{% endfor %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3] if not ns.stop %}{{ i }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% set ns = namespace(stop=false) %}{% for i in [1, 2, 3] if not ns.stop %}{{ i }}{{ loop.last }}{% if i == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    # set and scopes
    "{% set x = 1 %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = b = 1 %}", "{% set x = 1, 2 %}{{ x }}", "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }};{% endfor %}{{ x }}", "{% for i in [1, 2] %}{{ name }}{% set name = i %}{{ name }};{% endfor %}{{ name }}", "{% if false %}{% set name = 1 %}{% endif %}{{ name }}", "{% for i in [1] %}{{ name }}{% endfor %}{% set name = 'late' %}{{ name }}", "{{ name }}{% set name = 'late' %}{{ name }}",
    "{% for i in [1] %}{% if false %}{% set name = 'x' %}{% endif %}{{ name }}{% endfor %}", "{% macro m() %}{{ name }}{% endmacro %}{{ m() }}{% set name = 'late' %}{{ m() }}", "{% macro m() %}{{ other }}{% endmacro %}{% set other = 1 %}{{ m() }}", "{% set ns = namespace(x=1) %}{% for i in numbers %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{{ ns.x }}{% set ns.x = 1 %}{{ ns.x }}{{ ns['x'] }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns }}", "{% set dict.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1] %}{{ ns.a }}", "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{{ x|length }}", "{% set x | upper | trim %} abc {% endset %}[{{ x }}]", "{% set x %}{% set y = 2 %}{{ y }}{% endset %}{{ x }}{{ y }}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x }}", "{% filter upper %}abc{{ name }}{% endfilter %}", "{% filter replace('a', 'b')|trim %} aXa {% endfilter %}", "{% filter upper %}{% set q = 'x' %}{{ q }}{% endfilter %}{{ q }}", "{% print 1 + 1 %}", "{% set true = 1 %}", "{% set x = missing %}{{ x is defined }}",
    "{% for i in [1] %}{% for j in [1] %}{% set z = 3 %}{% endfor %}{{ z }}{% endfor %}{{ z }}", "{% set x = 1 %}{% for i in [1, 2] %}{% if i == 2 %}{{ x }}{% endif %}{% set x = x + i %}{% endfor %}{{ x }}", "{% set name = name ~ '!' %}{{ name }}", "{% for name in ['x'] %}{{ name }}{% endfor %}{{ name }}", "{% for i in [1, 2] %}{% set l = loop %}{{ l.index }}{% endfor %}", "{% if x is not defined %}{% set x = 4 %}{% endif %}{{ x }}", "{% if name is defined %}{% set y = name %}{% else %}{% set y = 'n' %}{% endif %}{{ y }}",
    "{% generation %}a{% set g = 1 %}{{ g }}{% endgeneration %}{{ g }}", "{% for m in [1, 2] %}{% generation %}{{ m }}{{ loop.index }}{% endgeneration %}{% endfor %}", "a\n  {% generation %}\n  b\n  {% endgeneration %}\nc",
    # macros
    "{% macro m(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=1, a=2) }}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c=1) }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{{ name }}{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}  a  {% endmacro %}[{{ m()|trim }}]", "{% macro m() -%}\n  a\n{%- endmacro %}[{{ m() }}]", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m }}{{ m.name }}", "{{ m() }}{% macro m() %}1{% endmacro %}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ m(1) }}", "{% set x = 1 %}{% macro m() %}{% set x = 2 %}{{ x }}{% endmacro %}{{ m() }}{{ x }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'x': 2}) }}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ numbers|map('string')|map('upper')|list }}{{ m('a') + 'b' }}", "{% macro m() %}{% for i in [1, 2] %}{{ i }}{% endfor %}{% endmacro %}{% set r = m() %}{{ r * 2 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% macro m(model) %}{% if model is not defined %}{% set model = 'd' %}{% endif %}{{ model }}{% endmacro %}{{ m() }}{{ m('x') }}", "{% macro m() %}{% if name is not defined %}{% set name = 'd' %}{% endif %}{{ name }}{% endmacro %}{{ m() }}",
    # globals
    "{{ raise_exception('boom ' ~ 1) }}", "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}", "{{ strftime_now('%d %b %Y, %A, %B, %j, %y') }}", "{{ strftime_now('') }}", "{{ dict(a=1) }}".replace("dict(", "namespace("), "{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b{{ j() }}c", "{{ raise_exception }}".replace("{{ raise_exception }}", "{{ raise_exception is callable }}"), "{{ range.x }}", "{{ namespace(1) }}", "{{ tools is none }}{{ documents is none }}{{ messages }}",
    # mutation, which jinja2's immutable sandbox refuses and other sandboxes allow
    "MUTABLE:{% set l = [1] %}{{ l.append(2) }}{{ l }}", "MUTABLE:{% set l = [1, 2] %}{% set _ = l.extend([3]) %}{% set _ = l.insert(0, 9) %}{{ l }}{{ l.pop() }}{{ l.pop(0) }}{{ l }}{{ l.index(2) }}{{ l.count(1) }}", "MUTABLE:{% set d = {} %}{% set _ = d.update({'a': 1}) %}{% set _ = d.update(b=2) %}{{ d }}{{ d.pop('a') }}{{ d }}{{ d.setdefault('c', 3) }}{{ d }}{{ d.pop('zz', 'no') }}", "MUTABLE:{% set l = [3, 1, 2] %}{% set _ = l.sort() %}{{ l }}{% set _ = l.reverse() %}{{ l }}{% set _ = l.remove(2) %}{{ l }}{% set _ = l.clear() %}{{ l }}", "MUTABLE:{% set l = [1] %}{{ l.pop(5) }}", "MUTABLE:{% set d = {} %}{{ d.pop('x') }}",
    "{{ dict.get('a') }}{{ dict.get('z') }}{{ dict.get('z', 5) }}{{ dict.get(1) }}", "{{ dict.copy() }}{{ numbers.copy() }}", "{{ numbers.index(1) }}{{ numbers.count(3) }}{{ (1, 2).index(2) }}", "{{ numbers.index(9) }}", "{{ name.nope() }}", "{{ dict.nope() }}",
    # syntax errors
    "{{", "{% if %}", "{{ 1 + }}", "{% endif %}", "{% if 1 %}", "{% for %}{% endfor %}", "{{ 'a }}", "{{ a b }}", "{% nope %}", "{{ (1 }}", "{{ 1 ) }}", "{{ [1, }}", "{# open", "{% raw %}", "{{ a. }}", "{{ a[ }}", "{{ f(a=1, 2) }}", "{% set 1 = 2 %}", "{{ 1 $ 2 }}", "{% for x in y recursive %}{% endfor %}".replace(" recursive", ""), "{{ }}", "{% set x %}", "{{ {1} }}", "{{ {'a'} }}", "{% if 1 %}{% endfor %}", "{% else %}", "{{ 1 is }}", "{{ 1 | }}", "{{ name|upper| }}", "{% macro %}{% endmacro %}", "{{ 1 if }}", "{% break 1 %}", "{% break %}", "{% for i in [1] %}{% macro m() %}{% continue %}{% endmacro %}{% endfor %}", "{% for i in [1] %}{% if 1 %}{% break %}{% endif %}{% else %}{% break %}{% endfor %}", "{% for i in [1] %}{% set x %}a{% break %}{% endset %}{% endfor %}[{{ x }}]", "x{#-", "x {#", "{{ not }}", "{{ a ! b }}", "{{ 'a' 1 }}", "{% block %}",
    "{{ 007 }}", "{{ 1__0 }}", "{{ '\\q\\'' }}", "{{ '\\x41\\u00e9\\U0001F642\\101\\0' }}", "{{ '\\x4' }}", "{{ 'a\nb' }}", "{{ \"a'b\" }}", "{{ dict.nested.x['y'] }}", "{{ users.0.name }}", "{{ users[0]['name'][0] }}", "{{ 1.real is defined }}".replace("1.real", "name.real"), "{{ users|map(attribute=0)|list }}",
]


def _split(block):
    """One expression between ' | '; the filter bar itself has no blanks around it."""
    for line in block.strip().splitlines():
        for expression in line.split(" | "):
            yield "{{ " + expression.strip() + " }}"


EXPRESSIONS = list(_split(_PRINTED)) + list(_split(_FILTERS)) + list(_split(_TESTS)) + _BLOCKS


def _tool(name, description, properties, required):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


_WEATHER = _tool("get_weather", "Wetter für einen Ort – \"jetzt\" & <hier>", {
    "city": {"type": "string", "description": "Name of the city"},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    "days": {"type": "integer", "default": 3, "maximum": 18446744073709551615},
}, ["city"])
_SEARCH = _tool("search", "Search.\nSecond line.", {
    "queries": {"type": "array", "items": {"type": "string"}, "description": "what to look for"},
    "limits": {"type": "array", "items": {"type": "object", "properties": {"max": {"type": "number", "nullable": True}}}},
    "exact": {"type": "boolean", "default": False}, "weight": {"type": "number", "default": 1.0, "minimum": 1e-7},
    "options": {"type": "object", "properties": {"lang": {"type": ["string", "null"]}, "any": {}}, "required": ["lang"]},
    "when": {"oneOf": [{"type": "string", "description": "a date"}, {"type": "number", "default": 1}], "description": "time"},
}, ["queries"])
_PLAIN = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}


def _call(name, arguments, id="call12345"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _user(content):
    return {"role": "user", "content": content}


def _assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def _result(content, id="call12345"):
    return {"role": "tool", "tool_call_id": id, "content": content}


_SYSTEM = {"role": "system", "content": "You are terse."}

SHAPES = {
    "one": {"messages": [_user("Hi!")]},
    "system": {"messages": [_SYSTEM, _user("Hi!")]},
    "empty_system": {"messages": [{"role": "system", "content": ""}, _user("Hi!")]},
    "turns": {"messages": [_SYSTEM, _user("1 + 1?"), _assistant("2"), _user("And 2 + 2?"), _assistant("4"), _user("Good.")]},
    "ends_with_assistant": {"messages": [_user("Tell me a joke."), _assistant("Why did the ")]},
    "ends_with_blank": {"messages": [_user("Go on"), _assistant("Well,   ")]},
    "unicode": {"messages": [{"role": "system", "content": "Réponds en français 🇫🇷."}, _user("日本語と emoji 🙂🙃 — «ok»?"), _assistant("はい 👍\u200d"), _user("e\u0301 \u00a0\u2028x")]},
    "spaces": {"messages": [{"role": "system", "content": "  \n trim me \t "}, _user("\n\n  a  \n"), _assistant("\n b \n\n"), _user("   ")]},
    "special": {"messages": [_user("\"quotes\" 'single' \\back\\ /slash/ <tag> & {{ braces }} {% tags %} \u0001\t"), _assistant("</think> <|im_end|> <tool_call>"), _user("%s %d {0}")]},
    "empty_strings": {"messages": [_user(""), _assistant(""), _user("")]},
    "think_in_content": {"messages": [_user("q"), _assistant("<think>\nhidden\n</think>\n\nshown"), _user("r"), _assistant("<think>more</think>end")]},
    "reasoning": {"messages": [_user("q"), _assistant("a", reasoning_content="because"), _user("r"), _assistant("b", reasoning_content="\n since \n")]},
    "reasoning_alias": {"messages": [_user("q"), _assistant("a", reasoning="because", refusal=None, audio=None)]},
    "tools": {"tools": [_WEATHER, _SEARCH], "messages": [_user("Weather in Köln?")]},
    "tools_system": {"tools": [_WEATHER], "messages": [_SYSTEM, _user("Weather?"), _assistant("Where?"), _user("Bonn")]},
    "plain_tool": {"tools": [_PLAIN], "messages": [_SYSTEM, _user("Time?")]},
    "tool_call": {"tools": [_WEATHER], "messages": [_SYSTEM, _user("Weather in Köln?"), _assistant(None, tool_calls=[_call("get_weather", '{"city": "Köln", "days": 2}')]), _result('{"temp": 21.5}')]},
    "tool_call_answer": {"tools": [_WEATHER], "messages": [_user("Weather?"), _assistant("Let me see.", tool_calls=[_call("get_weather", '{"city":"Bonn","unit":null,"deep":{"a":[1,true]}}')]), _result("rain"), _assistant("It rains."), _user("Thanks")]},
    "tool_calls_many": {"tools": [_WEATHER, _SEARCH], "messages": [_user("All!"), _assistant("", reasoning_content="two calls", tool_calls=[_call("get_weather", '{"city":"A"}', "aaaaaaaaa"), _call("search", '{"queries":["x","ÿ"],"weight":1.50}', "bbbbbbbbb")]), _result("one", "aaaaaaaaa"), _result("two\nlines", "bbbbbbbbb"), _assistant("Done.", reasoning_content="ok"), _user("Again"), _assistant(None, tool_calls=[_call("search", "{}", "ccccccccc")]), _result("three", "ccccccccc")]},
    "tool_call_object": {"messages": [_user("q"), _assistant(None, tool_calls=[_call("f", {"a": 1})]), _result("r")]},
    "tool_call_broken": {"messages": [_user("q"), _assistant(None, tool_calls=[_call("f", "{broken")]), _result("r")]},
    "tool_call_no_object": {"messages": [_user("q"), _assistant(None, tool_calls=[_call("f", "[1, 2]")]), _result("r")]},
    "tool_call_empty": {"messages": [_user("q"), {"role": "assistant", "tool_calls": [_call("f", "")]}, _result("")]},
    "tool_calls_null": {"messages": [_user("q"), _assistant("a", tool_calls=None, name=None), _user("r"), _assistant("b", tool_calls=[])]},
    "parts": {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}, _user([{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]), _assistant([{"type": "text", "text": "Hi"}, {"type": "refusal", "refusal": "no"}]), _user([])]},
    "developer": {"messages": [{"role": "developer", "content": "Rules."}, _user("Hi")]},
    "late_system": {"messages": [_user("Hi"), {"role": "system", "content": "Late."}, _user("Ho")]},
    "unknown_role": {"messages": [_user("Hi"), {"role": "critic", "content": "bad"}]},
    "assistant_first": {"messages": [_assistant("I begin."), _user("Ok")]},
    "two_users": {"messages": [_user("One"), _user("Two")]},
    "only_system": {"messages": [_SYSTEM]},
    "none": {"messages": []},
    "long": {"messages": [m for i in range(12) for m in (_user(f"question {i} " + "x" * i), _assistant(f"answer {i}", reasoning_content=f"r{i}"))] + [_user("last")]},
}

FLAGS = {
    "plain": {},
    "generate": {"add_generation_prompt": True},
    "no_thinking": {"add_generation_prompt": True, "kwargs": {"enable_thinking": False}},
    "thinking": {"add_generation_prompt": True, "kwargs": {"enable_thinking": True}},
    "effort_low": {"add_generation_prompt": True, "kwargs": {"reasoning_effort": "low"}, "only": ["one", "tools_system", "reasoning"]},
    "effort_medium": {"add_generation_prompt": True, "kwargs": {"reasoning_effort": "medium"}, "only": ["one", "tools", "empty_system"]},
    "effort_wrong": {"add_generation_prompt": True, "kwargs": {"reasoning_effort": "extreme"}, "only": ["one"]},
    "preserve": {"add_generation_prompt": True, "kwargs": {"preserve_thinking": True}, "only": ["reasoning", "tool_calls_many", "long"]},
    "preserve_off": {"add_generation_prompt": True, "kwargs": {"preserve_thinking": False}, "only": ["reasoning", "tool_calls_many", "long"]},
    "vision_id": {"kwargs": {"add_vision_id": True}, "only": ["parts"]},
    "builtin_tools": {"add_generation_prompt": True, "kwargs": {"builtin_tools": ["browser", "python", "code_interpreter"]}, "only": ["one", "system", "tools"]},
    "identity": {"add_generation_prompt": True, "kwargs": {"model_identity": "You are csgl.", "clear_thinking": False}, "only": ["one", "tool_calls_many"]},
    "dates": {"add_generation_prompt": True, "kwargs": {"date_string": "1 Jan 2030", "tools_in_user_message": False, "xml_tools": True}, "only": ["one", "tools", "tool_call_answer"]},
    "documents": {"add_generation_prompt": True, "kwargs": {"documents": [{"title": "Doc", "text": "Inhalt"}, {"title": "Ünï", "text": "b\nc"}]}, "only": ["one", "tools_system"]},
    "custom_bos": {"kwargs": {"bos_token": "<BOS>"}, "only": ["one", "turns"]},
    "continue": {"continue_final_message": True, "only": ["ends_with_assistant", "ends_with_blank", "think_in_content", "reasoning", "parts", "tool_call", "unicode"]},
    "continue_generate": {"continue_final_message": True, "add_generation_prompt": True, "only": ["ends_with_assistant"]},
}
