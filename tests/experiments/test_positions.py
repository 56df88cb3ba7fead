"""Where the keys of a file are."""

import tomllib

import pytest

from fedminimax.experiments.positions import lines_of

TEXT = '''# a comment with a = 1
rounds = 3   # and [one.more]
[problem]
name = "a # b" # c
model = {name = "m=lp", hidden = [1,
  2]}

[methods."my [label]"]
a.b = 1
text = """x
y = 3
""""
when = 2026-01-01
'raw.key' = 'c:\\'
[[many]]
x = 1
[many.sub]
k = 2
[[many]]
x = 1
[a.b]
c = 1
[a]
d = [[1, 2], ["[", "]"]]
'''


def test_every_key_has_its_line():
    tomllib.loads(TEXT)
    assert lines_of(TEXT) == {
        (): 1,
        ("rounds",): 2,
        ("problem",): 3,
        ("problem", "name"): 4,
        ("problem", "model"): 5,
        ("problem", "model", "name"): 5,
        ("problem", "model", "hidden"): 5,
        ("problem", "model", "hidden", 0): 5,
        ("problem", "model", "hidden", 1): 6,
        ("methods",): 8,
        ("methods", "my [label]"): 8,
        ("methods", "my [label]", "a"): 9,
        ("methods", "my [label]", "a", "b"): 9,
        ("methods", "my [label]", "text"): 10,
        ("methods", "my [label]", "when"): 13,
        ("methods", "my [label]", "raw.key"): 14,
        ("many",): 15,
        ("many", 0): 15,
        ("many", 0, "x"): 16,
        ("many", 0, "sub"): 17,
        ("many", 0, "sub", "k"): 18,
        ("many", 1): 19,
        ("many", 1, "x"): 20,
        ("a",): 23,  # its own heading, and not that of the table in it
        ("a", "b"): 21,
        ("a", "b", "c"): 22,
        ("a", "d"): 24,
        **{("a", "d", *rest): 24 for rest in ((0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1))},
    }


@pytest.mark.parametrize("text", ["", "\n\n", "a=1", "a = 'x'#c", "[t]", 'a = """\\""""', "a = {}\nb = []"])
def test_short_and_odd_texts_are_gone_through(text):
    keys = set(tomllib.loads(text))
    assert {path[0] for path in lines_of(text) if path} == keys
