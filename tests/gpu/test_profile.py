"""The reports of `profile`: which tensors kernels move, how ncu is called and read, and what happens if it fails."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

import attnforge
from attnforge.cli import arguments, commands
from attnforge.gpu import counters, profile
from attnforge.gpu.calls import Sizes
from attnforge.gpu.counters import Reading
from attnforge.gpu.profile import Launch, Least, Profile
from attnforge.gpu.results import Machine
from attnforge.plan import plan
from attnforge.render import emit

ROOT = Path(attnforge.__file__).parents[2]
SMALL = Sizes(2, 40, 40, 4, 2, 16, 16, "bf16")
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
NAMES = (
    "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "launch__registers_per_thread", "lts__t_bytes.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    *(STALL.format(reason) for reason in ("barrier", "gmma", "long_scoreboard", "selected")),
)  # fmt: skip
UNITS = ("byte", "byte", "ns", "", "", "register/thread", "byte", "%", "%", "inst", "inst", "inst", "inst")


def line(*cells: str) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


def launched(number: int, kernel: str, *values: str) -> str:
    return line(str(number), "4321", "python3.12", "127.0.0.1", kernel, "1", "7", "(128, 1, 1)", "(64, 32, 1)", "0",
                "9.0", *values)  # fmt: skip


PAGE = "\n".join(
    [
        "==PROF== Connected to process 4321 (/usr/bin/python3.12)",
        '==PROF== Profiling "forward": 0%....50%....100% - 12 passes',
        "a word of the command's own",
        "==PROF== Disconnected from process 4321",
        line("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
             "Grid Size", "Device", "CC", *NAMES),
        line(*[""] * 11, *UNITS),
        launched(0, "forward", "104,857,600", "31,457,280", "1,250,000", "1,000", "8,000", "168", "2,097,152,000",
                 "61.5", "12.25", "0.50", "n/a", "2.00", "1.00"),
        launched(1, "vectorized_elementwise_kernel", "2,097,152", "0", "5,000", "0", "0", "16", "3,145,728", "0",
                 "80", "n/a", "n/a", "3", "1"),
        launched(2, "backward_dq", "209,715,200", "", "2,500,000", "0", "0", "255", "", "n/a", "nan", "1.0", "6.0",
                 "2.0", "1.0"),
    ]
)  # fmt: skip


# -- what ncu says -------------------------------------------------------------------------------------------------


def test_a_raw_page_is_read_past_what_else_is_said() -> None:
    forward, fill, dq = counters.rows(PAGE)
    assert forward["Kernel Name"] == "forward" and fill["dram__bytes_read.sum"] == 2097152
    assert forward["gpu__time_duration.sum"] == pytest.approx(1.25e-3)
    assert forward["launch__registers_per_thread"] == 168 and STALL.format("gmma") not in forward
    missing = {"dram__bytes_write.sum", "lts__t_bytes.sum"} | {name for name in NAMES if name.startswith("sm__")}
    assert missing.isdisjoint(dq) and dq["dram__bytes_read.sum"] == 209715200


def test_units_are_brought_to_bytes_and_seconds() -> None:
    page = "\n".join([line("ID", "a", "b", "c", "d"), line("", "Mbyte", "us", "msecond", "%"),
                      line("0", "1,234.5", "2.5", "0.5", "7")])  # fmt: skip
    (row,) = counters.rows(page)
    assert [row[name] for name in "abcd"] == pytest.approx([1234.5e6, 2.5e-6, 5e-4, 7])


def test_a_page_without_units_and_a_second_page_are_read() -> None:
    page = "\n".join(
        [line("ID", "a"), line("0", "1"), line("ID", "b", "c"), line("", "byte", "ms"), line("1", "2", "3")]
    )
    assert list(counters.rows(page)) == [{"ID": 0, "a": 1}, {"ID": 1, "b": 2, "c": pytest.approx(3e-3)}]


# -- how ncu is asked ----------------------------------------------------------------------------------------------

FAKE = """#!{python}
import json, sys
from pathlib import Path

here = Path(__file__).parent
asked = here / "asked.json"
calls = json.loads(asked.read_text()) if asked.exists() else []
asked.write_text(json.dumps([*calls, sys.argv[1:]]))
metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
lacking = [m for m in json.loads((here / "lacking.json").read_text()) if m in metrics]
if lacking:
    print("==PROF== Connected to process 1")
    print(f"==ERROR== Failed to find metric {{lacking[0]}}")
    sys.exit(1)
if (here / "failure").exists():
    print("==PROF== Connected to process 1")
    print("RuntimeError: out of something", file=sys.stderr)
    sys.exit(print((here / "failure").read_text()) or 1)
job = Path(sys.argv[-1])
if job.suffix == ".json":
    told = json.loads(job.read_text())
    (here / "job.json").write_text(json.dumps(told))
    assert (Path(told["package"]) / "kernels.py").exists() and Path(told["spec"]).exists()
    Path(told["answer"]).write_text((here / "answer.json").read_text())
print((here / "page.csv").read_text())
"""
LEAST = [Least("forward", 62914560, 20971520), Least("backward_dq", 104857600, 10485760)]


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH whose `ncu` records how it is called and answers with a page."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ncu"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    (folder / "page.csv").write_text(PAGE)
    (folder / "lacking.json").write_text("[]")
    answer = {"least": [dataclasses.asdict(one) for one in LEAST], "kernels": {"forward": "hopper"}}
    (folder / "answer.json").write_text(json.dumps(answer))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(Machine, "here", lambda: Machine("a GPU", "2.11", "3.6"))
    return folder


def asked(folder: Path) -> list[list[str]]:
    found: list[list[str]] = json.loads((folder / "asked.json").read_text())
    return found


def test_readings_have_their_columns(ncu: Path) -> None:
    forward, _, dq = counters.measured(str(ncu / "ncu"), ["true"])
    assert forward == Reading("forward", 1.25e-3, 104857600, 31457280, 2097152000, 12.25, 61.5, 1000, 8000, 168,
                              {"barrier": 0.5 / 3.5, "long_scoreboard": 2 / 3.5})  # fmt: skip
    assert forward.stall == "long_scoreboard" and dq.stall == "gmma"
    assert dq.written is dq.matrix is dq.occupancy is None and dq.stalls["gmma"] == 0.6
    assert Reading("forward").stall is None


def test_only_the_calls_between_start_and_stop_are_counted(ncu: Path) -> None:
    counters.measured(str(ncu / "ncu"), ["python", "-m", "it"])
    (arguments,) = asked(ncu)
    assert arguments[-3:] == ["python", "-m", "it"] and arguments[-5] == "--metrics"
    options = dict(itertools.pairwise(arguments))
    assert options["--profile-from-start"] == "off" and options["--clock-control"] == "none"
    assert "--csv" in options and options["--page"] == "raw" and options["--print-units"] == "base"
    names = arguments[-4].split(",")
    assert set(NAMES) <= set(names) and len(set(names)) == len(names)


def test_counters_that_a_gpu_lacks_are_asked_by_another_name_or_left_out(ncu: Path) -> None:
    lacking = ["dram__bytes_read.sum", STALL.format("gmma"), "lts__t_bytes.sum"]
    (ncu / "lacking.json").write_text(json.dumps(lacking))
    page = PAGE.replace("dram__bytes_read.sum", "dram__bytes_op_read.sum").replace("lts__t_bytes.sum", "other")
    (ncu / "page.csv").write_text(page)
    forward, *_ = counters.measured(str(ncu / "ncu"), ["true"])
    assert forward.read == 104857600 and forward.l2 is None
    assert len(asked(ncu)) == 4
    assert not set(lacking) & set(asked(ncu)[-1][-2].split(","))


def test_lacking_counters_are_known_as_ncu_writes_them() -> None:
    names = ["dram__bytes_read.sum", "dram__bytes_write.sum", "launch__registers_per_thread"]
    said = (
        "==ERROR== Failed to find metric regex:^dram__bytes_read\\.(sum|min|max|avg)$\n==PROF== dram__bytes_write.sum"
    )
    assert counters._unknown(said, dict.fromkeys(names, "")) == names[:1]


@pytest.mark.parametrize(
    "why",
    [
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access GPU Performance Counters.",
        "==ERROR== LibraryNotLoaded\n==WARNING== No kernels were profiled.",
        PAGE + '\n==ERROR== Failed to profile "backward_dkv" in process 4321',
    ],
)
def test_why_ncu_fails_is_passed_on(ncu: Path, why: str) -> None:
    (ncu / "failure").write_text(why)
    with pytest.raises(click.ClickException) as caught:
        counters.measured(str(ncu / "ncu"), ["true"])
    told = caught.value.message.splitlines()
    marked = [said.split("== ")[1] for said in why.splitlines() if said.startswith(("==ERROR", "==WARNING"))]
    assert told == ["ncu failed:", *marked, "RuntimeError: out of something"]


def test_silence_is_told_as_such(ncu: Path) -> None:
    (ncu / "page.csv").write_text("==PROF== Connected to process 1\n")
    with pytest.raises(click.ClickException, match="it says nothing of why"):
        counters.measured(str(ncu / "ncu"), ["true"])


# -- what is told ----------------------------------------------------------------------------------------------------


def shown(found: Profile) -> dict[str, list[str]]:
    console = Console(file=io.StringIO(), width=150)
    console.print(profile.table(found))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [line.split("│")[1:-1] for line in text.splitlines() if "│" in line]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_launches_are_told_beside_their_least() -> None:
    reading = Reading("forward", 1.25e-3, 100 * 2**20, 20 * 2**20, 2000 * 2**20, 12.25, 61.5, 1000, 8000, 168,
                      {"barrier": 0.25, "long_scoreboard": 0.5})  # fmt: skip
    own = Launch("forward", reading, Least("forward", 60 * 2**20, 20 * 2**20))
    found = Profile("causal", SMALL, (own, Launch("rotate", Reading("rotate"))))
    rows = shown(found)
    assert own.ratio == 1.5
    assert rows["forward"] == ["1.250", "100.0", "60.0", "20.0", "20.0", "1.50", "2000", "12", "62", "12", "168",
                               "long scoreboard 50 %"]  # fmt: skip
    assert rows["rotate"] == [""] * 12
    widest = dataclasses.replace(own, name="backward_dkv", reading=dataclasses.replace(
        reading, seconds=0.2, read=9e9, written=9e9, l2=9e11, stalls={"math_pipe_throttle": 0.5}
    ))  # fmt: skip
    assert shown(dataclasses.replace(found, launches=(widest,)))["backward_dkv"][-1] == "math pipe throttle 50 %"
    assert profile.meanings(found) == ["long scoreboard: waits for global memory"]


def test_second_launches_and_those_of_others_are_told_apart() -> None:
    names = ("rotate", "copy", "forward", "rotate", "fill")
    readings = [Reading(name, seconds=i, read=10.0 * i, l2=1.0) for i, name in enumerate(names)]
    least = [Least("rotate", 1, 1), Least("forward", 2, 2), Least("rotate", 3, 3), Least("forward", 4, 4)]
    found = list(profile.joined(readings, least, ["forward", "rotate"]))
    assert [(one.name, one.least) for one in found] == [
        ("rotate", least[0]), ("forward", None), ("rotate 2", least[2]), ("others (2)", None)
    ]  # fmt: skip
    assert found[-1].reading == Reading("others", seconds=5, read=50, written=0, l2=2)
    assert found[0].ratio is None, "what was written is not known"


def test_the_command_tells_and_keeps_a_profile(ncu: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = CliRunner().invoke(
        commands.main, ["profile", "causal", "--length", "512", "--heads", "8:2", "--forward", "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    assert "causal: batch 32, length 512, heads 8:2, head size 128, bf16, hopper kernels" in done.output
    assert "long scoreboard: waits for global memory" in done.output and "others (1)" in done.output
    (arguments,) = asked(ncu)
    assert arguments[-4:-1] == [sys.executable, "-m", "attnforge.gpu.profile"]
    job = json.loads((ncu / "job.json").read_text())
    assert job["sizes"] == dataclasses.asdict(Sizes(32, 512, 512, 8, 2, 128, 128, "bf16")) and not job["backward"]
    kept = json.loads(file.read_text())
    (one,) = kept["profiles"]
    assert kept["machine"]["device"] == "a GPU" and one["launches"][0]["name"] == "forward"
    assert one["launches"][0]["least"] == dataclasses.asdict(LEAST[0])
    assert one["launches"][0]["reading"]["read"] == 104857600


def test_without_ncu_it_says_so(ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(commands.main, ["profile", "causal"])
    assert done.exit_code == 2 and "needs Nsight Compute: no `ncu` is on the PATH" in done.output
    done = CliRunner().invoke(commands.main, ["profile", "causal", "--ncu", str(tmp_path / "no")])
    assert done.exit_code == 2 and "no is no program" in done.output
    done = CliRunner().invoke(commands.main, ["profile", "causal", "--ncu", str(ncu / "ncu")])
    assert done.exit_code == 0, done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = CliRunner().invoke(commands.main, ["profile", "causal"])
    assert done.exit_code == 2 and "this needs a GPU that torch can use" in done.output


# -- what kernels move -----------------------------------------------------------------------------------------------

MOVED = """
import json, sys
from pathlib import Path
import torch
from attnforge.gpu import calls, profile
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.source import resources

torch.use_deterministic_algorithms(True)  # what is made empty holds no number that a kernel may write
wrong = []
for name in sys.argv[2:]:
    path = resources.variants()[name]
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    call = calls.make(planned, calls.Sizes(2, 40, 40, 4, 2, 16, 16, "fp32").of(planned.spec), "cpu")
    for a in planned.arguments:
        if a.scan:  # such decays that weights vanish within a sequence
            call.keywords[a.name].data.mul_(1000)
    attention, runtime = profile.package(Path(sys.argv[1]) / name)
    by_distance = planned.by_distance.kernels if planned.by_distance else ()
    signatures = {kernel.name: kernel for kernel in (*planned.kernels.all, *by_distance)}
    start = runtime.launch

    def watched(cache, kernel, blocks, given, **more):
        tensors = {key: x for key, x in zip(kernel.arg_names, given) if isinstance(x, torch.Tensor)}
        before = {key: x.detach().clone() for key, x in tensors.items()}
        start(cache, kernel, blocks, given, **more)
        changed = {key for key, x in tensors.items() if not torch.equal(bits(x), bits(before[key]))}
        written = {key for key in signatures[kernel.__name__].written & set(tensors) if tensors[key].numel()}
        # one tensor under two names changes under both
        places = {tensors[key].data_ptr() for key in written}
        if written - changed or any(tensors[key].data_ptr() not in places for key in changed):
            wrong.append((name, kernel.__name__, sorted(written), sorted(changed)))

    def bits(x):
        return x.detach().contiguous().view(torch.uint8)

    runtime.launch = watched
    profile.passes(attention, call, backward=True)()
    runtime.launch = start
print(json.dumps(wrong))
"""
MANY = ("causal", "rope_swa_softcap", "packed_rope", "packed_log_decay", "llama3_documents", "pair_bias", "t5_decoder",
        "shaw", "gpt2_dropout", "gpt_oss_window", "alibi", "block_sparse", "kerple", "flash1",
        "flash2_strided_k", "swin")  # fmt: skip


def interpreted(script: str, *arguments: str) -> str:
    env = os.environ | {"PYTHONPATH": str(Path(attnforge.__file__).parents[1]), "TRITON_INTERPRET": "1"}
    hastened = f"from attnforge.gpu import interpreter\ninterpreter.hasten()\n{script}"
    done = subprocess.run([sys.executable, "-c", hastened, *arguments], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_kernels_write_what_their_faces_tell() -> None:
    assert json.loads(interpreted(MOVED, str(ROOT / "generated"), *MANY)) == []


NOTED = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from attnforge.gpu import calls, profile
from attnforge.language import spec
from attnforge.plan import plan
from attnforge.source import resources

for name in ("causal", "rope_swa_softcap"):
    path = resources.variants()[name]
    planned = plan.build(spec.load(path, terms=resources.terms_for(path)))
    call = calls.make(planned, calls.Sizes(2, 40, 40, 4, 2, 16, 16, "fp32"), "cpu")
    attention, runtime = profile.package(Path(sys.argv[1]) / name)
    for backward in (False, True):
        start, once = runtime.launch, profile.passes(attention, call, backward=backward)
        print(json.dumps([asdict(one) for one in profile.least(planned, runtime, once)]))
        assert runtime.launch is start
"""


@pytest.mark.slow
def test_each_tensor_of_a_launch_is_counted_once() -> None:
    q, kv, lse, angles = 2 * 40 * 4 * 16 * 4, 2 * 40 * 2 * 16 * 4, 2 * 4 * 40 * 4, 40 * 8 * 4
    forward = Least("forward", q + 2 * kv, q + lse)
    backward = [Least("backward_dq", 3 * q + 2 * kv + lse, q + lse),
                Least("backward_dkv", 2 * q + 2 * kv + 2 * lse, 2 * kv)]  # fmt: skip
    turn = Least("rotate", q + kv + 2 * angles, q + kv)
    turned_back = [Least(one.kernel, one.read + 2 * angles, one.written) for one in backward]
    found = [[Least(**one) for one in json.loads(line)] for line in
             interpreted(NOTED, str(ROOT / "generated")).splitlines()]  # fmt: skip
    assert found == [[forward], [forward, *backward], [turn, forward], [turn, forward, *turned_back]]


def test_kernels_of_all_targets_are_known() -> None:
    made = profile.written(plan.build(next(iter(arguments.load(["rope_gqa"]).values()))))
    assert {"forward", "backward_dq", "prepare", "backward", "finish", "turn_back"} <= set(made)
    assert made["backward"] == {"dq_sum_desc", "dq_sum_ptr", "taken_ptr", "dk_ptr", "dv_ptr"}
    assert made["prepare"] == {"dq_sum_ptr", "taken_ptr", "delta_ptr"} and "out_ptr" in made["forward"]


def test_a_place_is_counted_once() -> None:
    x = torch.zeros(4, 8)
    assert profile._bytes({"a": x, "b": x, "none": None, "number": 3}) == 4 * 8 * 4
    assert profile._bytes({"a": x[:1].expand(100, 8)}) == 8 * 4
    assert profile._bytes({"a": x, "b": x[0]}) == 4 * 8 * 4
    assert profile._bytes({"a": x[:2], "b": x[2:].half()}) == 2 * 8 * 4 + 2 * 8 * 2
    assert profile._bytes({"empty": x[:0]}) == 0


def test_the_call_that_is_looked_at_is_the_third_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of `main` except the GPU: on a CPU, with plain PyTorch in place of the package."""
    loaded = arguments.load(["causal"])
    ((path, spec),), (package,) = loaded.items(), arguments.packages(loaded)
    emit.write([package], tmp_path)
    said: list[str] = []
    asked: list[str] = []
    monkeypatch.delenv("ATTNFORGE_TARGET", raising=False)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        said.append("call")
        asked.append(os.environ["ATTNFORGE_TARGET"])
        return (q + k + v).relu()

    class Profiler:
        def __enter__(self) -> None:
            said.append("start")

        def __exit__(self, *_: object) -> None:
            said.append("stop")

    class Runtime:
        launch = None
        LaunchCache = SimpleNamespace(
            known={"call": SimpleNamespace(tiles={"forward": (64, 64, 4, 2)}, hopper_tiles={})}
        )

    make = profile.calls.make
    monkeypatch.setattr(profile.calls, "make", lambda planned, sizes, device: make(planned, sizes, "cpu"))
    monkeypatch.setattr(profile, "package", lambda folder: (attention, Runtime))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait"))
    monkeypatch.setattr(torch.cuda.profiler, "profile", Profiler)
    job, answer = tmp_path / "job.json", tmp_path / "answer.json"
    sizes = dataclasses.asdict(Sizes(1, 8, 8, 2, 2, 16, 16, "fp32"))
    told = {"spec": str(path), "package": str(tmp_path / spec.name), "answer": str(answer), "sizes": sizes}
    job.write_text(json.dumps(told | {"backward": True, "target": "hopper"}))
    profile.main(job)
    assert asked == ["hopper"] * 4 and "ATTNFORGE_TARGET" not in os.environ
    assert said == ["call", "call", "call", "wait", "start", "call", "wait", "stop"]
    assert json.loads(answer.read_text()) == {"least": [], "kernels": {"forward": "portable"}}
