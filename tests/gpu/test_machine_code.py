"""Faults of a kernel's machine code: registers shared by a warp that remain unset on some path."""

from __future__ import annotations

import pytest

from attnforge.gpu import machine_code

TWO_LOOPS = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   ULDC.64 UR4, c[0x0][0x210] ;
        /*0020*/                   R2UR UR6, R2 ;
{before}
        /*0030*/              @!P1 BRA `(.L_x_2) ;
{first}
.L_x_1:
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT ;
        /*0060*/               @P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0070*/                   UIADD3 UR12, UP0, UR8, 0x2, URZ ;
        /*0080*/               @P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR35+0x38a20], RZ ;
        /*0090*/                   LDG.E R0, desc[UR4][R26.64] ;
        /*00a0*/                   EXIT ;
.L_x_3:
        /*00b0*/                   BRA `(.L_x_3);
        /*00c0*/                   UMOV UR3, UR60 ;
"""
MADE = """        /*0040*/                   UIADD3.64 UR8, UR4, 0x2, URZ ;
        /*0048*/                   UIMAD.WIDE.U32 UR10, UR6, UR6, URZ ;"""


def test_what_is_set_before_the_first_loop_serves_the_second_one() -> None:
    assert machine_code.unset(TWO_LOOPS.format(before=MADE, first="")) == []


def test_what_is_set_in_the_first_loop_alone_is_told() -> None:
    assert machine_code.unset(TWO_LOOPS.format(before="", first=MADE)) == ["UR8"]


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24", ["UR8", "UR9", "UR10", "UR11"]),
        ("HGMMA.64x64x16.F32.BF16 R24, R116, gdesc[UR8].tnspB, R24", ["UR10", "UR11"]),
        ("LDG.E R0, desc[UR8][R26.64]", ["UR8", "UR9"]),
        ("UIADD3.64 UR4, UR8, 0x2, URZ", ["UR8", "UR9"]),
        ("UIADD3 UR4, UP0, UR8, UR9, URZ", ["UR8", "UR9"]),
        ("UMOV UR8, UR4", ["UR4"]),
        ("VOTEU.ANY UR6, UPT, P0", []),
        ("STS [UR7+0x10], R2", ["UR7"]),
        ("@P1 UMOV UR8, UR4", []),
        ("UMOV UR8, 0x4", []),
    ],
)
def test_instructions_tell_what_they_read(line: str, lost: list[str]) -> None:
    assert machine_code.unset(f"        /*0000*/                   {line} ;\n") == lost
