"""One rank of several: `python tests/rank.py FOLDER RANK COUNT` computes its part of the calls in a folder.

A call is a file with the package, its keywords, the token axes of those that are split, and the order of the parts;
rank 0 gathers results and gradients and stores them next to it. The same holds for the results of `page.py`.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import devices
import torch
import torch.distributed as dist

from attnforge.gpu import interpreter


def attended(call: dict[str, Any]) -> dict[str, Any]:
    """Output, LSE and gradients of all ranks, in token order; gradients of inputs that are not split are summed."""
    module = importlib.import_module(f"{call['package']}.context_parallel")
    order = {"zigzag": call["zigzag"]}
    module.ranks.ALIGNED, gathered = call["aligned"], module.ranks.Parts.gathered
    gathers = []
    module.ranks.Parts.gathered = lambda *given: gathers.append(0) or gathered(*given)
    given, axes = devices.moved(call["inputs"]), call["axes"]
    given |= {name: module.part(given[name], axis, **order) for name, axis in axes.items()}
    learned = {name: given[name].detach().requires_grad_() for name in call["learned"]}
    results = zip(call["upstream"], call["results"], strict=True)
    upstream = [module.part(devices.moved(x), axis, **order) for x, axis in results]
    found = module.attention(**given | learned, **order, return_lse=True)
    module.ranks.Parts.gathered = gathered
    gradients = dict(zip(learned, torch.autograd.grad(found, list(learned.values()), upstream), strict=True))
    cut = dict(zip(("out", "lse"), zip(found, call["results"], strict=True), strict=True))
    cut |= {f"d{name}": (gradients[name], axes[name]) for name in learned if name in axes}
    whole = {name: module.whole(x.detach(), axis, **order) for name, (x, axis) in cut.items()}
    for name in (x for x in learned if x not in axes):  # in the same order on all ranks
        dist.all_reduce(gradients[name])
        whole[f"d{name}"] = gradients[name]
    return {name: x.cpu() for name, x in whole.items()} | {"gathers": bool(gathers)}


if __name__ == "__main__":
    folder, rank, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sys.path.insert(0, str(folder))
    place, waits = f"file://{folder}/rendezvous", timedelta(minutes=2)
    if devices.GPU:
        torch.cuda.set_device(rank)
    else:
        interpreter.hasten()
    backend = "nccl" if devices.GPU else "gloo"
    dist.init_process_group(backend, init_method=place, rank=rank, world_size=count, timeout=waits)
    for path in sorted(folder.glob("*.call")):
        try:
            found = attended(torch.load(path))
        except Exception:  # the same on all ranks
            found = {"error": traceback.format_exc()}
        if rank == 0:
            torch.save(found, path.with_suffix(".found"))
    names = runpy.run_path(str(folder / "page.py"))
    if rank == 0:
        torch.save(
            (names["x"].cpu(), names["mine"].grad.cpu(), names["everything"].detach().cpu()), folder / "page.found"
        )
    dist.destroy_process_group()
