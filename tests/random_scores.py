"""Random score terms, with slopes that keep rounding errors small, and smooth wherever rounding could matter.

Numbers computed from the score or by a function only go through smooth functions: an error in the last bit must never
decide between two values or two slopes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from random_inputs import ATOM, PRODUCT, SUM, TERNARY, Text, binary, call, chosen, negated, power
from random_masks import Conditions

ONE = Text("1")


class Number(NamedTuple):
    """A float expression; `size` is its usual magnitude, `exact` means that it involves no rounding."""

    text: Text
    size: float = 1.0
    exact: bool = False


class Scores(Conditions):
    """Random numbers of moderate size, and the terms that they make."""

    # -- numbers -------------------------------------------------------------------------------------------------

    def number(self, depth: int) -> Number:
        """A float expression of positions and inputs."""
        x = self._leaf() if depth == 0 or self.draw.chance(0.2) else self._composed(depth)
        return x if x.size <= 4 else Number(binary("*", Text(f"{4 / x.size:.2g}"), x.text), 4.0)

    def _leaf(self) -> Number:
        draw = self.draw
        if draw.chance(0.6) and (found := self.read("float")):
            text, given = found
            if given.scan:
                return Number(Text(f"{given.name}[q] - {given.name}[k]", SUM), 4.0)
            return Number(text, 3.0 if given.rows else 0.5, exact=True)
        return draw.pick((self._of_positions, self._of_positions, self._of_integers))()

    def _of_positions(self) -> Number:
        # the arguments of sin and cos are exact, because they grow with the position
        texts = (
            ("tanh((q - k) / 16)", 1), ("sin(k * 0.25)", 1), ("cos((q - k) / 8)", 1), ("exp(-abs(q - k) / 32)", 1),
            ("log(1 + abs(q - k)) / 2", 2), ("sqrt(1 + k) / 8", 2), ("1 / (1 + abs(q - k))", 1), ("(k + 1) / k_len", 1),
            ("sin(0.3 * (k % 16))", 1), ("softplus((k - q) / 64.0)", 1), ("2 ** (-h)", 1), ("h * 0.125", 1),
            ("0.5 ** (1 + abs(q - k) % 5)", 1), ("-abs(q - k) / 64", 2), ("(1 + abs(q - k)) ** -0.5", 1),
            ("floor((q - k) / 4) % 3 / 2", 1), ("(q - k) // 2.5 % 4 / 4", 1), ("(k % 7 - 3) ** 3 / 32", 1),
            # these exceed 2**31 at the first keys already
            ("(q - k) * 123456789 % 1009 / 1009", 1), ("k * 7919 * 104729 % 64 / 64", 1),
            ("max(k - q, -16) / 16", 2), ("b % 3 / 4", 1), ("kv_h / (1 + h)", 1), ("(q - k) % 2.5 - 1", 1.5),
        )  # fmt: skip
        text, size = self.draw.pick(texts)
        return Number(Text(text, TERNARY), size)

    def _of_integers(self) -> Number:
        draw = self.draw
        if draw.chance(0.3) and (flag := self.read("bool")):
            return Number(chosen(flag[0], Text("0.5"), negated(Text("0.25"))), 0.5, exact=True)
        inner = self.integer(1 + draw.below(2))
        if draw.chance(0.5):
            return Number(binary("/", binary("%", inner, Text(str(draw.pick((3, 4, 7))))), Text("4")), 1.75, exact=True)
        return Number(binary("/", call("clamp", inner, negated(Text("4")), Text("6")), Text("4")), 1.5, exact=True)

    def _composed(self, depth: int) -> Number:
        draw = self.draw
        x, y = self.number(depth - 1), self.number(depth - 1)
        a, b, s, t = x.text, y.text, x.size, y.size
        square = binary("*", a, a) if a.level == ATOM else power(a, Text("2"))
        ways: list[Callable[[], Number]] = [
            lambda: Number(call(draw.pick(("tanh", "sin", "cos", "sigmoid", "erf")), a)),
            lambda: Number(call("softplus", a), s + 0.7),
            lambda: Number(call("sqrt", binary("+", ONE, square)), s + 1),
            lambda: Number(call("log", binary("+", ONE, square)), s),
            lambda: Number(call("log", binary("+", Text("1.5"), call("sin", a)))),
            lambda: Number(call("log1p", square), s),
            lambda: Number(call("exp", call("tanh", a)), 2.7),
            lambda: Number(call("exp", negated(call("softplus", a)))),
            lambda: Number(binary(draw.pick(("+", "-")), a, b), s + t),
            lambda: Number(binary("*", a, b), s * t),
            lambda: Number(binary("*", a, call("tanh", b)), s),
            lambda: Number(binary("/", a, Text(f"1 + {binary('*', b, b).text}", SUM)), s),
            lambda: Number(binary("/", a, Text(f"2 + {call('sin', b).text}", SUM)), s),
            lambda: Number(negated(a), s),
            lambda: Number(chosen(self.condition(1), a, b), max(s, t)),
            lambda: Number(call("where", self.condition(0), a, b), max(s, t)),
            lambda: Number(power(binary("+", ONE, square), Text(draw.pick(("0.5", "-1", "-0.5", "-1.5")))), s + 1),
            # powers with larger exponents have larger rounding errors
            lambda: Number(power(Text(f"1 + {call('sigmoid', a).text}", SUM), call("tanh", b)), 2),
            lambda: Number(power(Text(draw.pick(("2", "1.5", "0.5"))), call("tanh", a)), 2),
            lambda: Number(binary("/", power(a, Text("3")), Text("8")), s**3 / 8),
            *([lambda: self._cut(x)] * (4 if x.exact else 0)),
            lambda: self._bent(x),
        ]
        return draw.pick(ways)()

    def _cut(self, x: Number) -> Number:
        """Operations that only exact numbers allow."""
        a, draw = x.text, self.draw
        found = self.read("float")
        other = found[0] if found and not found[1].scan else Text("0.5")
        ways: list[Callable[[], Number]] = [
            lambda: Number(call("abs", a), x.size),
            lambda: Number(call(draw.pick(("max", "min")), a, other), max(x.size, 3.0)),
            lambda: Number(call("clamp", a, negated(Text("0.75")), ONE)),
            lambda: Number(binary("%", a, Text(draw.pick(("0.75", "2", "-1.5"))))),
            lambda: Number(binary("//", a, Text(draw.pick(("0.5", "1", "-2")))), 2 * x.size),
            lambda: Number(call("floor", a), x.size + 1),
            lambda: Number(chosen(binary(">", a, Text("0.25")), a, negated(other)), max(x.size, 3.0)),
        ]
        return draw.pick(ways)()

    def _bent(self, x: Number) -> Number:
        """Functions with kinks only in the second derivative."""
        a, s = x.text, x.size
        part = call("clamp", a, negated(ONE), ONE)
        texts = (
            (f"{binary('*', a, call('abs', a)).text} / 4", s * s / 4), (f"max({a.text}, 0) ** 2 / 4", s * s / 4),
            (f"{a.within(PRODUCT)} / (1 + abs({a.text}))", 1.0), (f"{part.text} * (3 - {part.text} ** 2) / 2", 1.0),
        )  # fmt: skip
        text, size = self.draw.pick(texts)
        return Number(Text(text, PRODUCT), size)

    # -- terms ---------------------------------------------------------------------------------------------------

    def term(self, size: float) -> tuple[str, float]:
        """The text of a score term, for scores of a usual size, and the size of its results.

        If scores were almost 0, their gradients would be rounding errors only.
        """
        x = self.number(self.draw.below(3))
        a = x.text
        half, c, d = binary("*", Text("0.5"), a).text, self._plain(0), self._plain(1)
        ways = [
            (f"score + {a.within(PRODUCT)}", size + x.size), (f"score - {half}", size + x.size / 2),
            (f"{a.within(SUM)} + score", size + x.size), (f"score * (1 + 0.25 * tanh({a.text}))", size * 1.25),
            (f"score * sigmoid({a.text})", size), (f"score / (1 + {binary('*', a, a).text})", size),
            (f"score * exp(0.25 * sin({a.text}))", size * 1.3), (f"2 * tanh(score * sigmoid({a.text}))", 2),
            ("3 * tanh(score / 3)", 3), ("score / sqrt(1 + score * score / 16)", 4), ("softplus(score)", size + 0.7),
            ("score * sigmoid(score)", size), ("sin(score)", 1), ("cos(score) + score / 2", size / 2 + 1),
            ("log(1 + score ** 2)", size / 2), ("(1 + score * score) ** 0.5", size + 1), ("exp(-score * score / 8)", 1),
            ("score / (1 + abs(score))", 1), ("2 * exp(tanh(score))", 5.4), ("-score", size), (a.text, x.size),
            (f"tanh(score) * {a.within(PRODUCT + 1)}", x.size), (f"sigmoid(score - {a.within(PRODUCT)}) * 4", 4),
            (f"score if {c} else score * 0.5", size), (f"where({d}, score, {a.text})", size + 1),
            (f"score + {a.within(PRODUCT)} if {c} else -score", size + x.size),
            (f"log(exp(clamp(score, -20, 20)) + exp({a.text}))", size + x.size),
            (f"{a.within(PRODUCT)} * score", size * x.size), *self._risky(a, size),
        ]  # fmt: skip
        if size <= 6:
            ways += [("score ** 2 / 8", size**2 / 8), ("score * abs(score) / 8", size**2 / 8),
                     ("max(score, 0) ** 2 / 4", size**2 / 4), ("score ** 3 / 32", size**3 / 32)]  # fmt: skip
        return self.draw.pick([way for way in ways if 1 <= way[1] <= 10] or [("6 * tanh(score / 6)", 6.0)])

    def _risky(self, a: Text, size: float) -> list[tuple[str, float]]:
        """Terms that divide by 0 in the branch that is not taken; the condition is never close to a tie."""
        sign, square = self.draw.pick(("1 - 2 * (k % 2)", "1 if k <= q else -1")), "1 + score * score"
        other = f"{a.within(PRODUCT)} / max(-({sign}), 0)"
        return [
            ("score / (q - k) if q > k else score", size), ("score if k % 3 == 0 else score / (k % 3)", size),
            (f"sqrt(max(({square}) * ({sign}), 0))", size), (f"log(max(({square}) * ({sign}), 0) + 1)", size),
            (f"score / max(({square}) * ({sign}), 0) if ({sign}) > 0 else {a.text}", 2.0),
            (f"score + ({a.within(TERNARY + 1)} if ({sign}) > 0 else {other})", size + 1),
        ]  # fmt: skip

    def _plain(self, depth: int) -> str:
        condition = self.condition(depth)
        return condition.within(TERNARY + 1)
