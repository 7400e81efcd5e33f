"""Names that a spec may give: keywords of `attention` that collide with nothing in the generated files."""

from __future__ import annotations

import builtins
import keyword
import re

from ..expressions.parser import WORDS

# keywords that generated functions have anyway
CALL = frozenset(
    """
    cos cu_seqlens cu_seqlens_k cu_seqlens_q dropout_p k max_seqlen max_seqlen_k max_seqlen_q positions q return_lse
    scale seed sin sinks v
    """.split()  # noqa: SIM905
)
# what the generated files call their own values
_LOCAL = frozenset(
    """
    acc add_by_entry add_by_row_and_entry add_product add_states aligned all_batches angles annotations as_float
    attend attention backward batch batches bits block block_extremes block_m block_n block_t bounds cache case check
    checks clear_rows column count ctx cuts_k cuts_q
    dataclass delta desc device dims dk dlse dout dp dq drop_below ds dsinks dtype dv
    eighth entry every expanded_gradient field find_head find_rows first first_row floor_div floor_mod floor_mod_float
    following forward
    found full full_first full_last functools gather generator got grad gradient gradients grads h half halves heads
    hi i in_32_bits inner inputs inside integer_power itertools j json k_aligned k_bounds k_desc k_end k_first
    k_last k_len k_offset k_parts k_pos k_rows k_start k_tile k_tiles k_total keep kept kernels key key_ranges
    key_states key_tiles kv_h kv_heads l last launch learn_from_keys learn_from_queries left length lengths lens
    level lo load_pairs load_range load_rows load_tile load_vector longest low lowest lse lse_dtype lses m m_new
    make make_inputs math mixed names need numbers os others out out_dtype output outs own_b own_batches own_h
    own_heads p page pair pass_on pivot place places position power ptr pytest q_aligned q_bounds q_desc
    q_end q_first q_last q_len q_offset q_parts q_pos q_rows q_start q_tile q_tiles q_total query query_ranges
    query_states query_tiles ranges reference replace rescale result rotate rounds_to row row_base rows runtime scan
    self sequence sequences shape shapes share shift shrink sink sizes slope slot some span speeds stages stays step
    store_extremes store_range store_rows stride stride_batch stride_head stride_row sums sums_by_thread tail
    tensors test tile tiles tl token tokens top torch total triton turn turn_back turned units upstream used value
    visible waiting wanted warps weight whole_floor whole_tiles with_value within word words
    accumulate_dkdv accumulate_dq batch_and_head load_cos_sin partial_row_sums rotate_pairs scale_log2 tile_range
    to_32bit unrotate
    """.split()  # noqa: SIM905
)
# what modules for other libraries call theirs
_EXPORTED = frozenset(("create_block_mask", "flex_attention", "kv_idx", "mask_mod", "mods", "q_idx", "score_mod"))
_ENDINGS = (
    "_ptr",
    "_desc",
    "_tile",
    "_base",
    "_sum",
    "_sums",
    "_anchor",
    "_q",
    "_k",
    "_qk",
    "_slope",
    "_turned",
    "_least",
    "_most",
)
_MADE = r".*_at\d*(_[a-z0-9]+)?|state\d+_\d+|default_.*"  # entries and their places, parts of states, functions
_MODULES = frozenset(
    """
    api attnforge checks generated kernels launch math os reference runtime test tests tiles torch triton
    """.split()  # noqa: SIM905
)


def wrong_keyword(name: str) -> str | None:
    """Why a name cannot become a keyword of `attention`, if it cannot."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not name.isascii():
        return f"expected lower-case letters, digits and underscores, got {name!r}"
    if len(name) > 40:
        return "a name may have 40 characters"
    if keyword.iskeyword(name) or hasattr(builtins, name):
        return f"{name!r} is a word of Python"
    if name in WORDS:
        return f"{name!r} is a word of the expression language"
    if name in CALL:
        return f"{name!r} is a keyword that generated functions have"
    if ending := next((ending for ending in _ENDINGS if name.endswith(ending)), None):
        return f"names that end in {ending} are the generated code's own: choose another one than {name!r}"
    if name in _LOCAL | _EXPORTED or "_stride_" in name or re.fullmatch(_MADE, name):
        return f"{name!r} is a name of the generated code's own: choose another one"
    return None


def wrong_package(name: str) -> str | None:
    """Why a name cannot become a package's, if it cannot."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"expected lower-case letters, digits and underscores, got {name!r}"
    if len(name) > 60:
        return "a name may have 60 characters"
    if keyword.iskeyword(name) or name in _MODULES or name in ("true", "false", "null"):
        return f"{name!r} is taken: choose another name"
    return None
