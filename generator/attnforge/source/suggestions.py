"""Words of other languages and papers, with the equivalents in this language."""

from __future__ import annotations

from collections.abc import Collection

from .errors import near

_QUERY, _KEY = "'q', the query's position?", "'k', the key's position?"
_FINITE = ": scores are finite; hide a key by a mask"
_SCALE = ": score is scale * (q . k) already, and `scale=` of a call sets another one than 1 / sqrt(head size)"
_HEAD_SIZE = ": score is divided by the root of the head size already; `scale=` of a call sets another factor"
_HEADS = (
    ": only an input's default knows how many heads there are: declare an input with the axes [head] and a default "
    "such as 1 / heads"
)
ALONE = ": functions stand alone, as in exp(score)"
# each is appended to `unknown name 'x'`
_NAMES = {
    **dict.fromkeys(("i", "q_idx", "q_pos", "query", "row"), f" (did you mean {_QUERY})"),
    **dict.fromkeys(("j", "kv", "kv_idx", "k_idx", "k_pos", "key", "col"), f" (did you mean {_KEY})"),
    **dict.fromkeys(("s", "qk", "scores", "logits"), " (did you mean 'score'?)"),
    **dict.fromkeys(("head", "h_idx", "head_idx"), " (did you mean 'h', the query head?)"),
    **dict.fromkeys(("batch", "b_idx", "batch_idx"), " (did you mean 'b', the batch entry?)"),
    **dict.fromkeys(("inf", "infinity", "nan", "ninf"), _FINITE),
    **dict.fromkeys(("v", "value", "values"), ": terms read the score, positions and inputs, not q, k and v"),
    **dict.fromkeys(("math", "np", "tl", "torch"), ALONE),
    "true": " (did you mean 'True'?)",
    "false": " (did you mean 'False'?)",
    **dict.fromkeys(("heads", "num_heads", "n_heads", "hq"), _HEADS),
    **dict.fromkeys(("d", "D", "dim", "d_k", "dk", "d_head", "head_dim", "head_size"), _HEAD_SIZE),
    **dict.fromkeys(("scale", "sm_scale", "softmax_scale"), _SCALE),
    **dict.fromkeys(("T", "n", "seq_len", "seqlen", "kv_len"), " (did you mean 'k_len', the number of keys?)"),
    "pi": ": write 3.141592653589793",
    "e": ": write exp(1)",
}
_SUMS = ": scores are worked out one by one; `scan: cumsum` of an input gives running sums over tokens"
_CHOSEN = ": scores are worked out one by one; which keys were chosen, an input of truth values says in a mask"
# each is appended to `unknown function 'x'`
_FUNCTIONS = {
    **dict.fromkeys(("softmax", "log_softmax"), ": the softmax over the keys follows the last score term by itself"),
    **dict.fromkeys(("sum", "mean", "cumsum", "norm", "logsumexp"), _SUMS),
    **dict.fromkeys(("float", "double"), ": whole numbers turn into floats where they have to"),
    **dict.fromkeys(("topk", "top_k", "sort", "argsort", "rank"), _CHOSEN),
    **dict.fromkeys(("int", "trunc"), " (did you mean 'floor'?)"),
    "round": ": write floor(x + 0.5)",
    "cosh": ": write (exp(x) + exp(-x)) / 2",
    "sinh": ": write (exp(x) - exp(-x)) / 2",
    "ceil": ": write -floor(-x)",
    "erfc": ": write 1 - erf(x)",
    "exp2": ": write 2 ** x",
    "gelu": ": write x * (1 + erf(x / sqrt(2))) / 2",
    "log10": ": write log(x) / log(10)",
    "log2": ": write log(x) / log(2)",
    "logsigmoid": ": write -softplus(-x)",
    "maximum": " (did you mean 'max'?)",
    "minimum": " (did you mean 'min'?)",
    "pow": ": write x ** y",
    "relu": ": write max(x, 0)",
    "rsqrt": ": write 1 / sqrt(x)",
    "sign": ": write 1 if x > 0 else -1 if x < 0 else 0",
    "silu": ": write x * sigmoid(x)",
    "square": ": write x ** 2",
    "tan": ": write sin(x) / cos(x)",
}
# each is appended to `unknown term 'x'`
_TERMS = {
    "or": ": write any: [...]",
    "and": ": write all: [...]",
    **dict.fromkeys(("sink", "sinks"), ": write sink: true, beside mask and score"),
    **dict.fromkeys(("rope", "rotary"), ": write rope: {layout: half}, beside mask and score"),
    "dropout": ": write dropout: true, beside mask and score",
    **dict.fromkeys(("padding", "pad", "key_padding"), ": a call passes padding as k_lens and k_starts"),
    **dict.fromkeys(("document", "documents", "doc"), " (did you mean 'segments'?)"),
    **dict.fromkeys(("full", "dense", "none", "bidirectional"), ": without a mask every key is visible"),
}
SIGNS = {"&&": "and", "||": "or", "!": "not", "?": "a if c else b", "=": "=="}
_AXES = {
    **dict.fromkeys(("b", "bs", "batch_size", "batches"), "batch"),
    **dict.fromkeys(("h", "hq", "heads", "num_heads", "n_heads"), "head"),
    **dict.fromkeys(("hkv", "kv_heads", "h_kv", "num_kv_heads"), "kv_head"),
    **dict.fromkeys(("q", "tq", "m", "q_len", "rows", "queries"), "query"),
    **dict.fromkeys(("k", "tk", "n", "kv", "kv_len", "k_len", "keys"), "key"),
    **dict.fromkeys(("t", "l", "seq", "seqlen", "seq_len", "sequence", "tokens", "time"), "token"),
}
# each is appended to `unknown key 'x'` of an input
_DECLARED = {
    **dict.fromkeys(("requires_grad", "learn", "learned", "learnable", "trainable"), " (did you mean 'grad'?)"),
    **dict.fromkeys(("shape", "size", "sizes", "dims"), " (did you mean 'axes'?)"),
}
# each is appended to `unknown export 'x'`
_EXPORTS = {
    **dict.fromkeys(("flex", "flex_attention"), ": `attnforge export SPEC --to flex` prints a module for it"),
}
_NORMS = (
    ": weights are a softmax over the visible keys; a sum of other weights f(score) is log(f(score)) as the last score "
    "term, and the output times exp(lse)"
)
_BY_CALL = ": a call's tensors and keywords say it, no spec does"
# each is appended to `unknown key 'x'`
_KEYS = {
    **dict.fromkeys(("normalize", "normalization", "normalisation", "normalizer", "norm", "softmax"), _NORMS),
    **dict.fromkeys(("activation", "weights"), _NORMS),
    **dict.fromkeys(("scale", "dtype", "head_dim", "head_size", "num_heads", "batch", "lse", "return_lse"), _BY_CALL),
    **dict.fromkeys(("rotary", "rotary_embedding", "rope_layout"), ": write rope: {layout: half}"),
    **dict.fromkeys(
        ("expr", "expression", "formula"), ": an expression is a term: write score: [{expr: ...}], or mask:"
    ),
    **dict.fromkeys(("qk_norm", "q_norm", "k_norm"), ": apply norms of q and k before the call"),
    **dict.fromkeys(("gate", "output_gate", "gated"), ": change outputs after the call"),
    "let": ": it belongs next to the expr of a term",
    "window": ": write mask: [causal, {sliding_window: {size: ...}}]",
    **dict.fromkeys(("kind", "keep"), ": a file of a term is no spec; one that names the term under mask or score is"),
    "options": ": numbers of a spec belong in its terms, those of a call under inputs with axes: []",
}

_ANGLES = ": angles are in the tables `cos` and `sin` that a call passes"
# each is appended to `unknown key 'x'` of rope
_ROPE = {
    **dict.fromkeys(("theta", "base", "freqs", "scaling", "factor", "sections", "mrope_section"), _ANGLES),
    **dict.fromkeys(("partial_rotary_factor", "rotary_dim", "dim"), ": write dims, the number of components"),
    **dict.fromkeys(("interleaved", "neox", "style"), ": write layout: half, or layout: interleaved"),
}


def name(word: str, known: Collection[str]) -> str:
    """A suggestion for an unknown name, "" if there is none."""
    return _NAMES.get(word) or near(word, known, 0.62)


def function(word: str, known: Collection[str]) -> str:
    """A suggestion for an unknown function, "" if there is none."""
    return _FUNCTIONS.get(word) or near(word, known)


def term(word: str, known: Collection[str]) -> str:
    """A suggestion for an unknown term, "" if there is none."""
    return _TERMS.get(word) or near(word, known)


def key(word: str, terms: Collection[str]) -> str:
    """A suggestion for an unknown key of a spec, "" if there is none."""
    if word in terms:
        return f": {word} is a term: it belongs in a list, under mask or score"
    return _KEYS.get(word, "")


def declared(word: str) -> str:
    """A suggestion for an unknown key of an input, "" if there is none."""
    return _DECLARED.get(word, "")


def export(word: str) -> str:
    """A suggestion for an unknown export, "" if there is none."""
    return _EXPORTS.get(word, "")


def rope(word: str) -> str:
    """A suggestion for an unknown key of a spec's `rope`, "" if there is none."""
    return _ROPE.get(word, "")


def axis(word: str, known: Collection[str]) -> str:
    """A suggestion for an unknown axis, "" if there is none."""
    meant = _AXES.get(word.lower())
    return f" (did you mean {meant!r}?)" if meant else near(word, known)
