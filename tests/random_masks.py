"""Random masks: conditions on positions and inputs.

Positions, and floats that the call passes, are the same numbers in every precision: they may be clamped, rounded and
compared. Nothing here is computed with a rounding error that could decide between two values.
"""

from __future__ import annotations

from collections.abc import Callable

from random_inputs import (
    ATOM,
    COMPARE,
    PRODUCT,
    SUM,
    Inputs,
    Text,
    binary,
    call,
    chosen,
    negated,
    opposite,
    power,
)  # fmt: skip

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class Conditions(Inputs):
    """Random whole numbers and conditions."""

    # -- whole numbers -------------------------------------------------------------------------------------------

    def constant(self) -> Text:
        """A whole number, sometimes as an expression of literals."""
        draw = self.draw
        number = Text(str(draw.pick((0, 1, 2, 3, 4, 5, 7, 8, 11, 16, 31, 32, 33, 40))))
        if draw.chance(0.1):
            return negated(number)
        return binary(draw.pick(("+", "-", "*", "//", "%")), number, Text("3")) if draw.chance(0.1) else number

    def divisor(self) -> Text:
        """A whole number that is not 0."""
        draw = self.draw
        if draw.chance(0.2) and (found := self.read("int")):
            text = found[0]
            return draw.pick((binary("+", call("abs", text), Text("1")), call("max", text, Text("1"))))
        number = Text(str(draw.pick((1, 2, 3, 5, 7, 8, 16, 32, 33))))
        return negated(number) if draw.chance(0.2) else number

    def integer(self, depth: int) -> Text:
        """A whole number of moderate size."""
        draw, q, k = self.draw, Text("q"), Text("k")
        if depth == 0:
            leaf = draw.pick(("q", "q", "k", "k", "q - k", "k - q", "h", "constant", "constant", "read", "read", "any"))
            if leaf == "read":
                found = self.read("int")
                return found[0] if found else q
            if leaf == "any":
                return Text(draw.pick(("b", "kv_h", "q_len", "k_len")))
            return self.constant() if leaf == "constant" else Text(leaf, SUM if "-" in leaf else ATOM)
        a = self.integer(depth - 1)
        ways: list[Callable[[], Text]] = [
            lambda: binary(draw.pick(("+", "-", "-")), a, self.integer(depth - 1)),
            lambda: binary(draw.pick(("//", "//", "%", "%")), a, self.divisor()),
            lambda: binary("*", *draw.pick(((a, self.constant()), (Text("2"), a), (negated(Text("3")), a)))),
            lambda: call(draw.pick(("min", "max")), a, self.integer(depth - 1)),
            lambda: call("clamp", a, Text("2"), Text("37")),
            lambda: call("abs", a),
            lambda: negated(a),
            lambda: chosen(self.condition(0), a, self.integer(depth - 1)),
            lambda: power(binary("-", draw.pick((q, k)), self.constant()), Text("2")),
        ]
        return draw.pick(ways)()

    # -- conditions ----------------------------------------------------------------------------------------------

    def condition(self, depth: int) -> Text:
        """A condition on positions and inputs, without any rounding."""
        draw = self.draw
        if depth == 0 or draw.chance(0.3):
            ways = (self._monotone, self._monotone, self._periodic, self._compared, self._compared, self._read)
            return draw.pick((*ways, self._float, self._certain))()
        a, b = self.condition(depth - 1), self.condition(depth - 1)
        ways_on: list[Callable[[], Text]] = [
            lambda: binary(draw.pick(("and", "or", "or")), a, b),
            lambda: binary(draw.pick(("and", "or", "or")), a, b),
            lambda: opposite(a),
            lambda: chosen(self.condition(0), a, b),
            lambda: binary(draw.pick(("<", "<=", ">=")), self.integer(2), self.integer(1)),
        ]
        return draw.pick(ways_on)()

    def degenerate(self) -> Text:
        """A condition that hides everything or shows everything, obviously or not."""
        texts = ["k < 0", "k >= 0", "q < q - 1", "q_len < 0", "1 < 2", "q - k < -5000", "k % 3 > 2", "k * k >= 0"]
        if found := self.read("int"):
            texts += [f"{found[0].text} {op} {found[0].text}" for op in ("==", "!=", "<", ">=")]
        return Text(self.draw.pick(texts), COMPARE)

    def _certain(self) -> Text:
        """A condition joined with one that holds everywhere or nowhere, which intervals cannot find out."""
        draw, found = self.draw, self.read("int")
        x, plain = found[0] if found else Text(draw.pick("qk")), self._monotone()
        always, never = (binary(op, x, x) for op in draw.pick((("==", "!="), ("<=", "<"), (">=", ">"))))
        ways = (("or", always), ("and", always), ("and", always), ("or", never), ("or", never))
        op, other = draw.pick(ways)
        return binary(op, *draw.pick(((plain, other), (other, plain))))

    def _monotone(self) -> Text:
        draw, n = self.draw, self.constant().within(SUM + 1)
        size = draw.pick((1, 2, 5, 16, 31, 32, 33))
        texts = (
            f"k <= q + {n}", f"q - k < {size}", f"abs(q - k) <= {size}", f"k // {size} <= q // {size}", f"q >= {n}",
            f"2 * k <= q + k + {n}", f"k < {size}", f"q // {size} == k // {size}", f"-{size} < q - k < {size}",
            f"abs(k - clamp(q, {size}, k_len - 1 - {size})) <= {size}",
            f"abs(k // {size} - clamp(q // {size}, 1, k_len // {size} - 2)) <= 1",
            f"k <= clamp(q, {n}, k_len - {size})", f"k // {size} < q // {size} - 1", f"k <= max(q, {size})",
            f"min(k, q - {size}) == k", f"k_len - k > {size}",
        )  # fmt: skip
        return Text(draw.pick(texts), COMPARE)

    def _periodic(self) -> Text:
        draw, m, r = self.draw, self.draw.pick((2, 3, 4, 7, 17, 33)), self.draw.below(3)
        texts = (
            f"(q - k) % {m} == {r % m}", f"k % {m} != {r}", f"q % {m} >= k % {m}", f"(q // 8 + k // 8) % 2 == {r % 2}",
            f"(k - q) % -{m} > -{m} + 1", f"q // {m} % 2 == k // {m} % 2", f"(q * 3 + k * 5) % {m} != {r}",
            f"(k + h) % {m} != {r}", f"(q * 99999989 + k * 123456789) % {m} != {r}",
            f"k * 268435399 // 64 % {m} >= {r}",
        )  # fmt: skip
        return Text(draw.pick(texts), COMPARE)

    def _compared(self) -> Text:
        a, b = self.integer(self.draw.below(3)), self.integer(self.draw.below(2))
        if self.draw.chance(0.1):
            c = self.integer(0)
            return Text(f"{a.within(SUM)} <= {b.within(SUM)} < {c.within(SUM)}", COMPARE)
        return binary(self.draw.pick(("<", "<=", ">", ">=", "!=")), a, b)

    def _read(self) -> Text:
        draw = self.draw
        if draw.chance(0.4) and (flag := self.read("bool")):
            text = flag[0]
            if draw.chance(0.3):
                other = self._monotone()
                return chosen(text, other, opposite(other))
            return opposite(text) if draw.chance(0.3) else text
        found = self.per_head() if draw.chance(0.3) else self.read("int")
        if found is None:
            return self._monotone()
        text, given = found
        if given.written == ("token",) and draw.chance(0.6):
            return Text(f"{given.name}[q] {draw.pick(('==', '<=', '!='))} {given.name}[k]", COMPARE)
        if given.rows:
            return binary(draw.pick(COMPARISONS), text, Text(draw.pick(("1", "2", "k % 3", "h"))))
        n = text.within(PRODUCT)
        texts = (f"k < {n}", f"q - k <= {n}", f"k >= q - {n} // 2", f"k // 8 <= {n}", f"q * 2 < {n} + 9", f"k != {n}")
        return Text(draw.pick(texts), COMPARE)

    def _float(self) -> Text:
        draw = self.draw
        found = None if draw.chance(0.3) else self.read("float")
        if found is None or found[1].scan:
            return Text(
                draw.pick(("k < 0.5 * q", "k / 4 <= q / 8 + 0.5", "k // 3.0 <= q // 2.5", "q % 2.5 < 2")), COMPARE
            )
        text, given = found
        if given.written == ("token",) and draw.chance(0.5):
            return Text(f"{given.name}[q] {draw.pick(('<', '>='))} {given.name}[k]", COMPARE)
        bound = Text(draw.pick(("0.5", "-0.75", "0", "0.25 * (q - k)", "k // 8 - 1")), SUM)
        return binary(draw.pick(("<", ">", "<=", "!=")), text, bound)
