"""The key `exports`, and specs that cannot have the exports they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnforge.language import spec
from attnforge.source import resources
from attnforge.source.errors import SpecError


def load(folder: Path, text: str) -> spec.Spec:
    path = folder / "some.yaml"
    path.write_text(f"name: some\n{text}\n")
    return spec.load(path, terms=resources.terms_for(path))


def test_a_spec_asks_for_decoding(tmp_path: Path) -> None:
    assert load(tmp_path, "exports: [decode]").exports == ("decode",)
    assert load(tmp_path, "mask: [causal]").exports == ()
    assert load(tmp_path, "exports: []").exports == ()


def test_what_a_module_does_not_keep_may_have_its_names(tmp_path: Path) -> None:
    given = "score: [expr: score * half + bias]\ninputs: {half: {axes: [head]}, bias: {axes: [query, key], grad: true}}"
    assert load(tmp_path, f"{given}\nexports: [module]").exports == ("module",)


def test_a_number_called_learn_is_refused_where_a_module_has_such_an_argument(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    text = "name: near\nkind: mask\ndescription: A.\noptions: {size: {type: int, runtime: learn}}\nkeep: q - k < size\n"
    (tmp_path / "terms" / "near.yaml").write_text(text)
    given = "mask: [causal, near: {size: runtime}]\nexports: [module]"
    assert load(tmp_path, given).exports == ("module",)
    with pytest.raises(SpecError, match=r"some.yaml:3:11: error: module: 'learn' is already a name of the module"):
        load(tmp_path, f"{given}\nscore: [alibi]")


@pytest.mark.parametrize(("name", "word"), [("flash1", "flash"), ("my_eager", "eager")])
def test_a_name_that_switches_on_other_code_has_no_layers(name: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(f"name: {name}\nmask: [causal]\nexports: [transformers]\n")
    told = f"{name}.yaml:3:11: error: transformers: '{word}' in a name switches on other code of transformers"
    with pytest.raises(SpecError, match=told):
        spec.load(path, terms=resources.terms_for(path))


JOINED = "mask: [any: [causal, expr: k < prefix_len]]\ninputs: {{prefix_len: {{axes: {axes}, dtype: int}}}}"


@pytest.mark.parametrize(
    ("text", "seen", "window"),
    [
        ("mask: [causal, sliding_window: {size: 7}]", "causal", 7),
        ("mask: [sliding_window: {size: runtime}, expr: q - k >= 0]", "causal", "window"),
        ("mask: [causal, expr: q - k < 7]", "causal", 7),
        ("mask: [expr: q >= k and q - k < 7]", "causal", 7),
        ("mask: [expr: q - k < n]\ninputs: {n: {axes: [], dtype: int}}", "all", None),
        ("mask: [chunked: {size: 8}]", "causal", None),
        ("mask: [prefix_lm]", "prefix", None),
        (JOINED.format(axes="[batch]"), "prefix", None),
        (JOINED.format(axes="[]"), "all", None),
        (JOINED.format(axes="[batch // 2]"), "all", None),
        ("mask: [any: [causal, expr: k < 4]]", "all", None),
        ("mask: [expr: k <= q or k - q > 2000]", "all", None),
        ("mask: [expr: q - k >= 9 or k <= q and k < 4]", "causal", None),
        ("mask: [expr: k <= q + few]\ninputs: {few: {axes: [], dtype: int}}", "all", None),
        # masks without a value at some positions
        ("mask: [expr: k // (q - 3) == 1]", "all", None),
        ("mask: [expr: 0.0 ** (q - 5) < 0.5]", "all", None),
        ("mask: [expr: 2.0 ** (q * 1000) < 0.5]", "all", None),
        ("score: [bias]", "all", None),
    ],
)
def test_masks_tell_which_layers_a_spec_is_for(tmp_path: Path, text: str, seen: str, window: int | str | None) -> None:
    said = load(tmp_path, text).layers
    assert (said.seen, said.window) == (seen, window)


def test_scores_tell_of_caps_biases_and_positions(tmp_path: Path) -> None:
    said = load(tmp_path, "score: [softcap: {cap: 5}, bias]").layers
    assert (said.cap, said.bias, said.reads_q, said.moves) == (5.0, True, False, True)
    said = load(tmp_path, "mask: [causal]\nscore: [alibi]").layers
    assert (said.cap, said.bias, said.reads_q, said.moves) == (None, False, True, True)


def test_terms_of_a_reader_are_not_taken_for_the_shipped_ones_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "terms").mkdir()
    for name, kind, formula in (
        ("softcap", "score", 'score: "score * 2"'),
        ("bias", "score", 'score: "score + bias"\ninputs: {bias: {axes: [query, key]}}'),
        ("sliding_window", "mask", 'keep: "q - k < 8 or k == 0"'),
        ("prefix_lm", "mask", 'keep: "k < 3"'),
    ):
        (tmp_path / "terms" / f"{name}.yaml").write_text(f"name: {name}\nkind: {kind}\ndescription: A.\n{formula}\n")
    said = load(tmp_path, "mask: [sliding_window, prefix_lm]\nscore: [softcap, bias]").layers
    assert (said.seen, said.window, said.cap, said.bias, said.moves) == ("all", None, None, False, False)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("mask: [causal, {sliding_window: {size: runtime}}, {dilated: {stride: 2}}]\nscore: [relative_bias: {}]", True),
        ("mask: [expr: q < k + n]\ninputs: {n: {axes: [], dtype: int}}", True),
        ("mask: [expr: 2 * q - k - k == 4]\nscore: [expr: score * t]\ninputs: {t: {axes: [head]}}", True),
        ("score: [expr: 'score + t[min(q - k, 31), h]']\ninputs: {t: {axes: [32, head]}}", True),
        ("mask: [chunked: {size: 4}]", False),
        ("mask: [prefix_lm]", False),
        ("mask: [expr: 3 * q < 2 * k]", False),
        ("mask: [expr: (q >= 3) == (k >= 3)]", False),
        ("score: [expr: score * log(k_len)]", False),
        ("score: [expr: score + exp(-q / 64)]", False),
        ("score: [expr: score + x]\ninputs: {x: {axes: [key]}}", False),
        ("score: [log_decay]", False),
    ],
)
def test_terms_of_distances_stay_where_positions_are_counted_from_elsewhere(
    tmp_path: Path, text: str, moves: bool
) -> None:
    assert load(tmp_path, text).layers.moves == moves


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("exports: decode", "2:10", "exports: expected a list such as [decode], got decode"),
        ("exports: {}", "2:10", "exports: expected a list such as [decode]"),
        (
            "algorithm: flash1\nexports: [statistics]",
            "3:11",
            "statistics: the algorithm flash1 has the forward pass alone",
        ),
        (
            "exports: [statistics]\nscore: [expr: score * return_key_sums]\ninputs: {return_key_sums: {axes: [head]}}",
            "2:11",
            "statistics: 'return_key_sums' is then a keyword of attention",
        ),
        ("exports: [decoding]", "2:11", "unknown export 'decoding' (did you mean 'decode'?)"),
        ("exports: [decode, decode]", "2:19", "decode stands twice"),
        ("dropout: true\nexports: [decode]", "3:11", "decode: dropout is for training"),
        ("algorithm: flash1\nexports: [decode]", "3:11", "decode: the algorithm flash1 is an earlier order"),
        (
            "exports: [decode]\nscore: [expr: score * out]\ninputs: {out: {axes: [head]}}",
            "2:11",
            "decode: 'out' is already a keyword of decoding",
        ),
        (
            "rope: {layout: interleaved}\nmask: [causal]\nexports: [decode, transformers]",
            "4:19",
            "transformers: models rotate the halves of whole heads: rope: {layout: half}",
        ),
        (
            "rope: {layout: half, dims: 8}\nmask: [causal]\nexports: [transformers]",
            "4:11",
            "transformers: models rotate the halves of whole heads: rope: {layout: half}",
        ),
        (
            "algorithm: flash1\nexports: [transformers]",
            "3:11",
            "transformers: the algorithm flash1 has the forward pass alone",
        ),
        (
            "layout: packed\nmask: [prefix_lm]\nexports: [transformers]",
            "4:11",
            "transformers: prefix_lm needs the dense layout",
        ),
        (
            "score: [alibi]\nexports: [transformers]",
            "3:11",
            "transformers: terms that read q need a causal spec",
        ),
        (
            "mask: [causal]\nscore: [expr: score * key]\ninputs: {key: {axes: [head]}}\nexports: [transformers]",
            "5:11",
            "transformers: 'key' is already passed by layers",
        ),
        (
            "mask: [causal]\nscore: [expr: score + labels]\ninputs: {labels: {axes: []}}\nexports: [transformers]",
            "5:11",
            "transformers: 'labels' is a keyword that models use themselves; rename the input",
        ),
        ("algorithm: flash1\nexports: [module]", "3:11", "module: the algorithm flash1 has the forward pass alone"),
        ("latent: true\nexports: [module]", "3:11", "module: keys and values of latent heads share their columns"),
        (
            "score: [expr: score * half]\ninputs: {half: {axes: [head], grad: true}}\nexports: [module]",
            "4:11",
            "module: 'half' is already a name of the module",
        ),
        (
            "score: [expr: score * hidden_size]\ninputs: {hidden_size: {axes: [head], grad: true}}\nexports: [module]",
            "4:11",
            "module: 'hidden_size' is already a name of the module",
        ),
        (
            "score: [expr: score + g]\ninputs: {g: {axes: [batch, key], grad: true}}\nexports: [module]",
            "4:11",
            "module: 'g_proj' is already a name of the module",
        ),
        (
            "score: [expr: score * r_proj + r]\ninputs:\n  r: {axes: [batch, key], grad: true}\n"
            "  r_proj: {axes: [head], grad: true}\nexports: [module]",
            "6:11",
            "module: 'r_proj' is already a name of the module",
        ),
        (
            "score: [expr: score * context]\ninputs: {context: {axes: []}}\nexports: [module]",
            "4:11",
            "module: 'context' is already a name of the module",
        ),
        (
            "algorithm: flash1\nexports: [context_parallel]",
            "3:11",
            "context_parallel: the algorithm flash1 has the forward pass alone",
        ),
        (
            "latent: true\nexports: [context_parallel]",
            "3:11",
            "context_parallel: keys and values of latent heads share their columns",
        ),
        (
            "score: [expr: score * q_len]\nexports: [context_parallel]",
            "3:11",
            "context_parallel: terms that read q_len would count the queries of one part",
        ),
        (
            "score: [expr: score * zigzag]\ninputs: {zigzag: {axes: []}}\nexports: [context_parallel]",
            "4:11",
            "context_parallel: 'zigzag' is then a name in attention",
        ),
        (
            "layout: packed\nscore: [alibi]\nexports: [context_parallel]",
            "4:11",
            "context_parallel: packed sequences have to end with a part's last query, but no mask such as causal hides",
        ),
        (
            "layout: packed\nmask: [expr: k <= q or k == 10]\nexports: [context_parallel]",
            "4:11",
            "context_parallel: packed sequences have to end with a part's last query, but no mask such as causal hides",
        ),
        (
            "layout: packed\nmask: [causal]\ndropout: true\nexports: [context_parallel]",
            "5:11",
            "context_parallel: packed sequences have to end with a part's last query, but dropout draws by positions",
        ),
        (
            "layout: packed\nmask: [causal]\nscore: [expr: score * k_len]\nexports: [context_parallel]",
            "5:11",
            "context_parallel: packed sequences have to end with a part's last query, but terms that read k_len count",
        ),
    ],
)
def test_what_a_spec_cannot_have_is_told_with_its_place(tmp_path: Path, text: str, place: str, told: str) -> None:
    with pytest.raises(SpecError) as found:
        load(tmp_path, text)
    assert f"some.yaml:{place}: error: {told}" in str(found.value)
