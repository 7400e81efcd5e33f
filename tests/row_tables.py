"""Specs with tables of entries for each query or each key, of which most tiles of scores read a single one."""

SPECS = {
    "of distances": "score: [{expr: 'score + near[clamp(k - q + 9, 0, 18)]'}]\n"
    "inputs: {near: {axes: [batch, head, query, 19], grad: true}}",
    "of earlier keys": "mask: [causal]\nscore: [{expr: 'score - near[min(q - k, 12)]'}]\n"
    "inputs: {near: {axes: [kv_head, query, 13], grad: true}}",
    "of keys": "mask: [causal]\nscore: [{expr: 'score + near[clamp(q - k, 0, 12)]'}]\n"
    "inputs: {near: {axes: [13, batch, key, head], grad: true}}",
    "of both": "score: [{expr: 'score + ahead[clamp(k - q + 9, 0, 18)]'},"
    " {expr: 'score + back[clamp(q - k, -9, 9) + 9]'}]\n"
    "inputs: {ahead: {axes: [batch, head, query, 19], grad: true}, back: {axes: [batch, head, key, 19], grad: true}}",
    "two of queries": "score: [{expr: 'score + ahead[clamp(k - q, 0, 9)]'},"
    " {expr: 'score - back[clamp(q - k, 0, 5)]'}]\n"
    "inputs: {ahead: {axes: [head, query, 10], grad: true}, back: {axes: [query, 6], grad: true}}",
    "of both in one term": "score: [{expr: 'score / 2 + ahead[clamp(k - q + 9, 0, 18)]"
    " + back[clamp(q - k + 9, 0, 18)]'}]\n"
    "inputs: {ahead: {axes: [batch, head, query, 19]}, back: {axes: [batch, head, key, 19]}}",
    "of both at once": "score: [{expr: 'score + ahead[clamp(k - q + 9, 0, 18)] - back[clamp(q - k + 9, 0, 18)]'}]\n"
    "inputs: {ahead: {axes: [batch, query, head, 19], grad: true}, back: {axes: [batch, key, head, 19], grad: true}}",
    "with all distances": "score: [{expr: 'score + near[k - q + 40]'}]\n"
    "inputs: {near: {axes: [batch, query, 81], grad: true}}",
    "of blocks": "mask: [causal]\nscore: [{expr: 'score + near[(q - k) // 8]'}]\n"
    "inputs: {near: {axes: [head, query, 4], grad: true}}",
    "of the head": "score: [{expr: 'score + near[clamp(k - q + 2 * h, 0, 9)]'}]\n"
    "inputs: {near: {axes: [head, query, 10], grad: true}}",
    "given": "score: [{expr: 'score + near[clamp(q - k + reach, 0, 9)]'}]\n"
    "inputs: {near: {axes: [head, query, 10]}, reach: {axes: [], dtype: int, min: 0, max: 9}}",
    "after a cap": "score: [{softcap: {cap: 3}}, {expr: 'score + near[clamp(q - k, 0, 9)]'}]\nmask: [causal]\n"
    "inputs: {near: {axes: [head, query, 10], grad: true}}",
    "before a cap": "score: [{expr: 'score + near[clamp(q - k, 0, 9)]'}, {softcap: {cap: 3}}]\nmask: [causal]\n"
    "inputs: {near: {axes: [head, query, 10], grad: true}}",
    "beside a bias": "score: [{expr: 'score + near[clamp(q - k, 0, 9)]'}, relative_bias]\nmask: [causal]\nsink: true\n"
    "inputs: {near: {axes: [head, query, 10], grad: true}}",
    "in place of a score": "score: [{expr: 'far - near[clamp(q - k, 0, 9)]'}, {expr: 'score + q / 64'}]\n"
    "inputs: {near: {axes: [head, query, 10], grad: true}, far: {axes: [key]}}",
    "beside half a score": "score: [{expr: 'score / 2 + near[clamp(q - k, 0, 9)]'}]\n"
    "inputs: {near: {axes: [head, query, 10], grad: true}}",
    "given after a cap": "score: [{softcap: {cap: 3}}, {expr: 'score + near[clamp(q - k, 0, 9)]'}]\nmask: [causal]\n"
    "inputs: {near: {axes: [head, query, 10]}}",
    "of both, doubled": "score: [{expr: '(score + ahead[clamp(k - q + 9, 0, 18)] + back[clamp(q - k, 0, 9)]) * 2'}]\n"
    "inputs: {ahead: {axes: [batch, head, query, 19]}, back: {axes: [batch, head, key, 10]}}",
    "of a window": "mask: [causal, {sliding_window: {size: 60}}]\nscore: [{expr: 'score + near[clamp(q - k, 0, 9)]'}]\n"
    "inputs: {near: {axes: [batch, head, query, 10], grad: true}}",
    "of documents": "mask: [causal, segments]\nscore: [{expr: 'score + near[clamp(q - k, 0, 9)]'}]\n"
    "inputs: {near: {axes: [batch, head, query, 10], grad: true}}",
    "of sequences": "layout: packed\nmask: [causal]\nscore: [{expr: 'score + near[clamp(k - q + 9, 0, 9)]'}]\n"
    "inputs: {near: {axes: [query, head, 10], grad: true}}",
    "with dropout": "dropout: true\nscore: [{expr: 'score + near[clamp(k - q + 9, 0, 18)]'}]\n"
    "inputs: {near: {axes: [batch, head, query, 19], grad: true}}",
}  # fmt: skip
DIFFERENTIATED = {"given", "given after a cap", "of both in one term", "of both, doubled"}
"""Those whose gradients kernels for Hopper GPUs compute: tables that learn have portable kernels."""


def text(name: str) -> str:
    """The spec of a name in SPECS."""
    return f"name: tables_of_rows\n{SPECS[name]}\n"
