"""JSON that a hostile site may send, crafted and random."""

from __future__ import annotations

from hypothesis import strategies as st

DEEP = "[" * 100_000
TOKENS = [  # JSON, or nearly so, in the place of a value
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" + "0" * 400, "1" + "0" * 5000),
    *(
        "-1",
        "0",
        "-0",
        "5.0",
        "5e0",
        "true",
        "false",
        "null",
        '"5"',
        '" 5"',
        '"\u0665"',
        "05",
        "0x5",
    ),
    *(DEEP, '{"a":' * 100_000, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900),
    *("[]", "{}", '""', '"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"\x7f"', "'a'", "", ",", "}"),
    *(f'"{"a" * 100_000}"', "[1]", "[null]", '["a", "a"]', '[["a"]]', '{"a": 1, "a": 1}'),
    *("[" + "1," * 20_000 + "1]", '{"cat": true, "dog": 3}', '{"cat": 2.0, "dog": 3}'),
    *('{"cat": 2}', '{"owl": 5}', '{"cat": "2", "dog": 3}', '["", "b"]', '["\\n"]'),
]


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-10, 10),
    st.integers(),
    st.sampled_from([10**9, 10**9 + 1, 10**18, 2**63, 2**64, 10**400, -(10**400), 10**4000]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(st.characters(exclude_categories=())),
    st.sampled_from(["cat", "dog", "ab" * 32, "a" * 1000, "\ud800", "5", ""]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.sampled_from(["cat", "dog", "owl", "", "\ud800"]), inner),
    ),
    max_leaves=12,
)
