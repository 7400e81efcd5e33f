# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/host/runtime.py.jinja
#   content hash  2ea1612e9128cde6
#   text hash     0da1939d17e32ccf
#   render with   attnforge render SPEC
"""The machinery of launching; all use of private interfaces of PyTorch and Triton stands here.

In this order
    operators      what PyTorch traces and differentiates: Operator, needs_dispatcher, on_its_device
    launches       what the next call with tensors of the same shapes does at once: LaunchCache, launch, starter, grid
    counters       zeros in which programs of several kernels count: Counters, counters
    choice         the tile and the kernels that a GPU takes: launch_on_hopper, launch_tuned, launch_with_room
    Hopper GPUs    whether their kernels run, and names of Gluon that moved: target, on_hopper, hopper_kernels, in_gluon
    order          how programs in Gluon take tiles: in_turns, in_slots, by_groups
    tensors        sizes of tiles, room for results, and what kernels read tiles by: vector_source, tile_source, refill
"""

import bisect
import collections
import concurrent.futures
import copy
import functools
import importlib
import operator
import os
import threading
import warnings

import torch

try:
    import triton
except ModuleNotFoundError as error:
    why = "attention needs triton, which PyTorch brings along on Linux; `reference` runs without it, on any system"
    raise ModuleNotFoundError(why, name="triton") from error
import triton.language as tl
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch._C._dynamo.guards import TensorGuards
from torch._C._functorch import is_legacy_batchedtensor
from torch._library.custom_ops import get_library_allowing_overwrite
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.compiler import is_compiling
from torch.utils import _python_dispatch
from triton.runtime import driver
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

INTERPRETED = triton.knobs.runtime.interpret
if INTERPRETED and isinstance(tl.sum, triton.JITFunction):  # a kernel would end in an error that says nothing of it
    came_late = "TRITON_INTERPRET=1 came after triton was imported, as torch.compile and transformers do"
    raise RuntimeError(f"{came_late}: set it before Python starts")


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Operator:
    """A function that PyTorch can trace, and differentiate once `register_autograd` has told it how.

    It is named after its module, so that each copy of a package has operators of its own. PyTorch's way through an
    operator takes longer than a launch: where its dispatcher has nothing to do, the function is called as such. It
    writes to the arguments that it `mutates`, by name.
    """

    def __init__(self, function, mutates=()):
        self.function = on_its_device(function)
        self.derived = None
        self.name = function.__module__.replace("_", "__").replace(".", "_") + function.__name__
        # with `custom_op` of torch.library a compiled step takes the host a sixth longer
        self.library = get_library_allowing_overwrite("attnforge", self.name)
        schema = torch.library.infer_schema(function, mutates_args=mutates)
        self.library.define(self.name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.library.impl(self.name, self.function, "CompositeExplicitAutograd")
        self.traced = getattr(torch.ops.attnforge, self.name).default
        torch.library.register_vmap(self.traced, _refuse_vmap, lib=self.library)

    def register_fake(self, fake):
        """Tells what comes back for tensors without values, as `register_fake` of torch.library takes it."""
        return torch.library.register_fake(self.traced, fake, lib=self.library)

    def register_autograd(self, backward, setup_context):
        """Tells the derivative, as `register_autograd` of torch.library takes it."""
        torch.library.register_autograd(self.traced, backward, setup_context=setup_context, lib=self.library)
        parts = {"forward": self.function, "setup_context": setup_context, "backward": backward}
        parts |= {"vmap": _refuse_vmap, "jvp": _refuse_jvp}
        parts = {name: staticmethod(part) for name, part in parts.items()}
        self.derived = type(self.function.__name__, (torch.autograd.Function,), parts)

    def register_gradients(self, differentiate, learned, tensors, remade=0):
        """Makes an operator tell its gradients: those of the arguments at the places `learned`.

        Its arguments are as many `tensors`, then numbers. It returns out, LSE, what it has worked out, and then the
        first `remade` arguments as they are to be differentiated. `differentiate` takes out, LSE, their gradients,
        which gradients are wanted, what was worked out, and the arguments; it has no derivative of its own.
        """

        def keep(ctx, inputs, output):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*output, *inputs[remade:tensors])
            ctx.numbers = inputs[tensors:]

        def backward(ctx, dout, dlse, *_):
            out, lse, *given = ctx.saved_tensors
            if any(x is not None and is_legacy_batchedtensor(x) for x in (dout, dlse)):
                _refuse_vmap()
            if dout is None:
                dout = torch.zeros_like(out)
            wanted = [ctx.needs_input_grad[i] for i in learned]
            gradients = differentiate(out, lse, dout, dlse, wanted, *given, *ctx.numbers)
            found = [None] * len(ctx.needs_input_grad)
            for i, need, gradient in zip(learned, wanted, gradients):
                found[i] = gradient if need else None
            return tuple(found)

        self.register_autograd(backward, setup_context=keep)
        differentiate.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)

    def __call__(self, *args):
        if needs_dispatcher(args):
            return self.traced(*args)
        if _are_functorch_transforms_active():
            return self.derived.apply(*args) if self.derived else self.traced(*args)
        if not torch.is_grad_enabled() or self.derived is None:
            return self.function(*args)
        # what `apply` comes to, but for its look at the signature of forward
        return super(torch.autograd.Function, self.derived).apply(*args)


def needs_dispatcher(args):
    """Whether PyTorch has a say: a compiler, a mode, a tensor of a class of its own, one still to be negated."""
    if is_compiling() or has_mode():
        return True
    for x in args:
        # isinstance takes longest of what is no tensor
        if x is None or type(x) is float:
            continue
        if type(x) in _PLAIN:
            if x.is_neg():
                return True
        elif isinstance(x, torch.Tensor):
            return True
    return False


def has_mode():
    """Whether this thread is within a mode of PyTorch's, if only one that stands aside for an operator that it has seen.

    PyTorch's own flag is one for all threads: where modes of several overlap, it may be unset too soon, or stay set.
    """
    if _len_torch_dispatch_stack():
        return True
    if not _python_dispatch._is_in_torch_dispatch_mode:
        return False
    aside = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.PythonTLSSnapshot)
    return aside or _len_torch_dispatch_stack_pre_dispatch() > 0


def is_watched():
    """Whether a mode of PyTorch's is to see this call; it stands aside while an operator that it has seen runs."""
    if not has_mode():
        return False
    if not _len_torch_dispatch_stack() and not _len_torch_dispatch_stack_pre_dispatch():
        return False
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)


def _refuse(ctx, *gradients):
    raise RuntimeError("attention has no second derivative")


def _refuse_vmap(*_):
    raise RuntimeError("attention cannot be mapped by vmap: put the mapped axis into the batch, or loop over it")


def _refuse_jvp(*_):
    raise RuntimeError("attention has no forward-mode derivative, only gradients")


def on_its_device(function):
    """The function, run on the device of its first tensor."""

    @functools.wraps(function)
    def run(*args):
        # a device's type is a text that takes longer to find
        x = args[0]
        if x.is_cpu or x.get_device() == torch.cuda.current_device():
            return function(*args)
        with torch.cuda.device(x.device):
            return function(*args)

    return run


def keep(known, key, value):
    """Notes a value by its key, in the place of the oldest where there are many: some lengths never come again."""
    if len(known) >= 1024:
        known.popitem(last=False)
    known[key] = value


class LaunchCache:
    """What calls with tensors of some shapes worked out, so that the next call with such tensors launches at once."""

    known = collections.OrderedDict()

    def __init__(self, reach):
        self.reach = reach  # how many keys before its own a query may see
        self.unreadable = None  # which tensors tiles cannot be read from
        self.tiles = {}  # by kernel
        self.launches = {}  # by kernel and tile

    @classmethod
    def of(cls, name, *given, reach=2**28):
        """The cache of a function's tensors, by all that tells their launches apart; numbers count by their values."""
        told = [
            x if x is None or not isinstance(x, torch.Tensor) else (x.shape, x.stride(), x.dtype, x.data_ptr() % 16)
            for x in given
        ]
        key = (name, given[0].device, precision(given[0]), reach, *told)
        cache = cls.known.get(key)
        if cache is None:
            cache = cls(reach)
            keep(cls.known, key, cache)
        return cache

    def readable(self, *tensors):
        """The tensors, or copies of those that tiles cannot be read from."""
        if self.unreadable is None:
            self.unreadable = [i for i, x in enumerate(tensors) if not is_readable(x)]
        if not self.unreadable:
            return tensors
        return [empty_rows(x).copy_(x) if i in self.unreadable else x for i, x in enumerate(tensors)]


def launch(cache, kernel, blocks, given, grid, from_shapes):
    """Launches a kernel, from the second time on without a thought about what shapes tell.

    `given` is what each call gives anew, in the kernel's order; what shapes tell follows it there, or says how it is
    loaded. `from_shapes` may tell more than the kernel takes.
    """
    key = (kernel.fn, *blocks)
    remembered = cache.launches.get(key)
    if remembered is None:
        grid, told = grid(), from_shapes()
        if "num_stages" in told and not INTERPRETED and kernel.is_gluon():
            # told of as one that is not in Gluon
            grid, told = in_gluon(kernel, grid, told)
        taken = {*kernel.arg_names, "num_warps", "num_stages", "maxnreg"}
        told = {name: value for name, value in told.items() if name in taken}
        arguments = dict(zip(kernel.arg_names, given)) | told
        if told.get("OVERLAP"):
            # the kernel itself waits for the one before it
            arguments["launch_pdl"] = True
        compiled = kernel[grid](**arguments)
        if not INTERPRETED:
            rest = [arguments[name] for name in kernel.arg_names[len(given) :]]
            fill = [refill(arguments[name], x) for name, x in zip(kernel.arg_names, given)]
            cache.launches[key] = starter(compiled, (*grid, 1, 1)[:3]), fill, rest
        return
    start, fill, rest = remembered
    start(*[x if f is None else f(x) for f, x in zip(fill, given)], *rest)


def launch_again(cache, *values):
    """Launches the kernels of a function once more, each with what it is given anew, and tells whether it has had them."""
    if not cache.launches:
        return False
    stream = driver.active.get_current_stream(values[0][0].get_device())
    for (start, fill, rest), given in zip(cache.launches.values(), values):
        start(*[x if f is None else f(x) for f, x in zip(fill, given)], *rest, stream=stream)
    return True


@functools.lru_cache(1024)
def starter(compiled, grid):
    """What launches a compiled kernel, on the current stream where none is given.

    Triton works out anew on each call what is the same for all of a kernel and a grid: 4 us of the host's time. What it
    comes to is observed once. Where a hook of Triton's wants to know of launches, as profilers do, all goes its own way.
    """
    usual, run = compiled[grid], compiled.run
    if not hasattr(run, "launch") or any(getattr(run, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
        return usual
    passed, stream_of_call, value = [], object(), object()
    observed = copy.copy(run)
    observed.launch = lambda *given: passed.extend(given)
    observed(*grid, stream_of_call, compiled.function, compiled.packed_metadata, None, None, None, value)
    # a kernel's arguments come last: one by one until triton 3.6, as a tuple since then
    last, place = passed.pop(), passed.index(stream_of_call)
    if last not in (value, (value,)):
        return usual
    begin, before, behind, spread = run.launch, passed[:place], passed[place + 1 :], last is value
    hooks = triton.knobs.runtime

    def start(*given, stream=None):
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            return usual(*given, stream=stream)
        if stream is None:
            stream = driver.active.get_current_stream(driver.active.get_current_device())
        if spread:
            begin(*before, stream, *behind, *given)
        else:
            begin(*before, stream, *behind, given)

    return start


def grid(heads, rows, block, *walked, sequences=1):
    """A grid of heads of a group, tiles of rows, and groups: what a group's programs walk along stays in the cache.

    Where tensors hold so many `sequences` of each head, programs walk along one of them.
    """
    tiles = cdiv(rows, block)
    size = sum(x.numel() * x.element_size() for x in walked)
    most = min(heads * sequences * cache_share(walked[0].device) // size, heads)
    group = next((n for n in range(most, 1, -1) if heads % n == 0), 1)
    # of a grid's axes the first alone takes more than 65535
    if tile_axis(rows, block) == 0:
        return tiles, group, heads // group
    return (group, tiles, heads // group) if heads // group < 2**16 else (heads, tiles, 1)


def tile_axis(rows, block):
    """The axis of a grid that holds the tiles: the second, as heads run fastest; the first where they are too many."""
    return 1 if cdiv(rows, block) < 2**16 else 0


def cache_share(device):
    """Bytes of a GPU's cache that a group of heads may take: others come while it still works."""
    return 2**15 if INTERPRETED else torch.cuda.get_device_properties(device).L2_cache_size // 3


class Planned(threading.local):
    """Whether a compiler plans the memory of what runs now: of what is made then nothing may stay."""

    depth = 0

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1


planned = Planned()


class Counters:
    """Zeros of a GPU in which programs of kernels count: they leave zeros, so that no kernel has to clear them.

    Calls of a stream run one after the other, and count in the same ones. A call that a CUDA graph captures may run again
    at any time, beside any other: it has some of its own, for good.
    """

    SIZE, OF_STREAM = 2**18, 2**12  # of a block, of which few calls leave much, and of a stream

    def __init__(self, device):
        self.device, self.of_stream, self.lock = device, {}, threading.Lock()
        self.blocks, self.used = [], self.SIZE  # graphs know addresses alone: no block is ever let go

    def zeros(self, count):
        """New ones."""
        return torch.zeros(count, dtype=torch.int32, device=self.device)

    def take(self, count):
        """Some of the last block that nobody else has; new ones where it has no room."""
        with self.lock:
            first = self.used
            if first + count > self.SIZE:
                return self.zeros(count)
            self.used += cdiv(count, 32) * 32
            return self.blocks[-1][first : first + count]

    def make_room(self):
        """Puts a new block behind one of which half is taken; between captures, as what they make is the graph's.

        So is what this thread makes while a compiler gets ready for one: a block is made by a thread of its own.
        """
        with self.lock:
            if 2 * self.used > self.SIZE:
                with concurrent.futures.ThreadPoolExecutor(1) as other:
                    self.blocks.append(other.submit(self.new_block).result())
                self.used = 0

    def new_block(self):
        """Zeros that are there for all streams."""
        block = self.zeros(self.SIZE)
        torch.cuda.current_stream(self.device).synchronize()
        return block

    def current(self, count):
        """Those of the stream that launches now."""
        if 2 * self.used > self.SIZE:
            self.make_room()
        stream = driver.active.get_current_stream(self.device.index)
        found = self.of_stream.get(stream)
        if found is None or found.shape[0] < count:
            found = self.of_stream[stream] = self.take(max(count, self.OF_STREAM))
        return found


counters_of = functools.cache(Counters)


def counters(count, device):
    """At least so many zeros for the programs of a call to count in; None if it has none that count."""
    if not count:
        return None
    if device.type == "cpu":
        # an interpreter may be stopped amid a kernel
        return torch.zeros(count, dtype=torch.int32)
    found = counters_of(device)
    return found.take(count) if torch.cuda.is_current_stream_capturing() else found.current(count)


def launch_on_hopper(cache, tables, name, launch, q, v, keys):
    """Calls `launch` with a tile and a module of kernels for Hopper GPUs, and tells whether it could."""
    best = cache.tiles.get(name)
    if best is None:
        best = () if INTERPRETED else on_hopper(tables, name, q, v, keys, cache.reach)
        return launch_first(cache, tables.__package__, name, launch, best)
    if best:
        launch(*best)
    return bool(best)


failed = set()  # tiles and modules of kernels that do not compile here


def launch_first(cache, package, name, launch, best):
    """Calls `launch` with what is taken for the best of a package, if there is any, remembers whether it could, and tells."""
    if best in failed and target() != "hopper":
        best = ()
    if best:
        try:
            launch(*best)
        except torch.cuda.OutOfMemoryError:
            raise  # says nothing of the kernels
        except (MemoryError, OSError) as error:
            # nor does a full disk: the next call tries again
            not_on_hopper(package, error)
            return False
        except Exception as error:
            wait_for_gpu()
            not_on_hopper(package, error)
            failed.add(best)
            best = ()
    cache.tiles[name] = best
    return bool(best)


def wait_for_gpu():
    """Fails where a kernel that began before now failed: whatever comes next tells of that, and nothing runs any more."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def differentiated(cache, tables, wanted, keys, q, k, v, *given):
    """Launches a package's whole backward pass for Hopper GPUs with what is given, and tells whether it could.

    It adds dQ and sums of rows up as programs come: who wants the same bits each time gets them from other kernels.
    """
    if not all(wanted) or torch.are_deterministic_algorithms_enabled():
        return False

    def launch(*tile_and_kernels):
        *tile, kernels = tile_and_kernels
        kernels.differentiate(cache, *tile, q, k, v, *given)

    return launch_on_hopper(cache, tables, "backward", launch, q, v, keys)


def one_by_one(launch, made):
    """A function of a tile that launches once for each of two gradients: registers do not hold two wide ones."""

    def each(*tile):
        for name in made:
            launch(*tile, name)

    return each


def launch_tuned(cache, tables, name, launch, q, v, keys, entries=None):
    """Calls `launch` with the best tile that this GPU has the shared memory for; `tables` is tiles.py.

    Beside a tile goes the module of the kernels, where they are not the portable ones: these alone know of `entries`.
    """
    if name == "backward_dkv" and max(q.shape[-1], v.shape[-1]) > 256:
        launch = one_by_one(launch, ("dk", "dv"))
    if INTERPRETED:
        return launch(32, 32, 4, 1)
    best = cache.tiles.get(name)
    if best:
        return launch(*best)
    if entries is None and launch_on_hopper(cache, tables, name, launch, q, v, keys):
        return
    table = (tables.TILES_FP32 if q.dtype == torch.float32 else tables.TILES_16BIT[architecture(q.device)])[name]
    size = next(size for size in table if max(q.shape[-1], v.shape[-1]) <= size)
    # tried anew for each call unlike those before: what else a kernel reads takes shared memory too
    cache.tiles[name] = table[size][first_with_room(launch, table[size])]


def launch_with_room(launch, stages):
    """Calls `launch` with so many stages, or with fewer where this GPU's shared memory is smaller: no bits hang on them."""
    first_with_room(launch, [(x,) for x in range(stages, 0, -1)])


def first_with_room(launch, tiles):
    """Calls `launch` with each of the tiles until this GPU has the shared memory for one, and tells which that is."""
    for i, tile in enumerate(tiles):
        try:
            launch(*tile)
        except OutOfResources:
            if i + 1 == len(tiles):
                raise
        else:
            return i


@functools.cache
def architecture(device):
    """The architecture whose tile shapes serve a GPU."""
    return "sm_90" if capability(device)[0] in (9, 10) else "sm_80"


def target():
    """What ATTNFORGE_TARGET asks for: portable, hopper, or nothing."""
    wanted = os.environ.get("ATTNFORGE_TARGET", "")
    if wanted not in ("", "portable", "hopper"):
        raise ValueError(f"ATTNFORGE_TARGET: expected portable or hopper, got {wanted!r}")
    return wanted


def on_hopper(tables, name, q, v, keys, reach):
    """The tile and the module of a pass's kernels for Hopper GPUs, or () where they do not run or are slower.

    `keys` is how many keys the longest sequence has, `reach` how many before its own a query may see.
    """
    wanted, tiles = target(), getattr(tables, "TILES_HOPPER", {}).get(name, {})
    widths = padded_width(q), padded_width(v)
    # what is stored takes the place of what is loaded in shared memory, whole or by strips of 64 columns: that of v has no
    # room for dk of more columns, but wide heads' dk takes that of q
    narrow = widths[0] > widths[1] and widths[1] % 64 == 0 and (name == "forward" or widths[0] > 128)
    room = widths[0] == widths[1] or narrow
    if wanted == "portable" or widths[0] not in tiles or q.dtype == torch.float32 or not room:
        return ()
    limits, least = tables.HOPPER_IS_FASTER[name], getattr(tables, "HOPPER_REACH", {}).get(name, {}).get(widths[0], 0)
    faster = bisect.bisect(limits.get(widths, limits.get(widths[0], ())), keys) % 2 and reach >= least
    if wanted != "hopper" and not faster:
        return ()
    kernels = hopper_kernels(tables.__package__, name, q.device)
    by_length, seen = tiles[widths[0]], min(keys, reach + 1)
    return (*by_length[max(least for least in by_length if least <= seen)], kernels) if kernels else ()


# what is called with a tile: a kernel, or what launches several
HOPPER_FILES = {"forward": ".hopper", "backward": ".hopper_launch", "decode": ".decode_hopper"}


@functools.cache
def hopper_kernels(package, name, device):
    """The module of a package's kernels for Hopper GPUs; None where the GPU is none, or triton has no Gluon."""
    if capability(device) != (9, 0):
        return None
    try:
        return importlib.import_module(HOPPER_FILES[name], package)
    except (ImportError, AttributeError) as error:
        not_on_hopper(package, error)


unwilling = set()  # packages whose kernels for Hopper GPUs do not compile here


def not_on_hopper(package, error):
    """Tell once that the portable kernels take the place of those for Hopper GPUs; where these are asked for, fail."""
    if target() == "hopper":
        raise error
    if package not in unwilling:
        unwilling.add(package)
        why = f"{type(error).__name__}: {str(error).strip()}".splitlines()
        warnings.warn(f"{package}: portable kernels take the place of those for Hopper GPUs: {why[0]}", stacklevel=2)


def gluon_copy_of_tiles():
    """What has a tile copied into shared memory in Gluon: its name is another one from triton 3.9 on."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


def gluon_view_of_tiles():
    """What takes memory of tiles for that of others in Gluon: its name is another one from triton 3.9 on."""
    from triton.experimental.gluon.language import shared_memory_descriptor as tiles

    return tiles.reinterpret if hasattr(tiles, "reinterpret") else tiles._reinterpret


def gluon_store_of_tiles():
    """What has a tile in shared memory stored to memory in Gluon: its name is another one from triton 3.9 on."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


def gluon_sum_of_tiles():
    """What has a tile in shared memory added to memory in Gluon: before triton 3.8 the compiler alone knows it."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    if hasattr(tma, "async_atomic_add"):
        return tma.async_atomic_add
    from triton._C.libtriton import ir
    from triton.experimental.gluon.language._core import builtin

    @builtin
    def add_tile(tensor_desc, coord, src, _semantic=None):
        places = _semantic._convert_to_ir_values(coord, require_i64=False)
        kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
        _semantic.builder.create_async_tma_reduce(kind, tensor_desc.handle, places, src.handle)

    return add_tile


def gluon_barrier_of_threads():
    """What has the warps of a group wait for each other in Gluon: its name is another one from triton 3.7 on."""
    from triton.experimental.gluon import language

    return language.barrier if hasattr(language, "barrier") else language.thread_barrier


def in_gluon(kernel, grid, told):
    """Grid and arguments of a kernel in Gluon, out of those of one that is not."""
    # the interpreter has neither
    from triton.experimental.gluon import language
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    forward = "out_ptr" in kernel.arg_names
    # what workers have 64 rows of each
    shared = ("q_desc",) if forward else ("k_desc", "v_desc")
    # registers of a thread before some groups of warps take over those of others: of three groups, or of two
    three = told["BLOCK_M"] == 192 if forward else told["BLOCK_N"] == 64
    told |= dict(STAGES=told.pop("num_stages"), num_warps=4, maxnreg=128 if three else 168)
    grid, told = (in_turns if forward else by_groups)(grid, told)
    for name, x in told.items():
        if isinstance(x, TensorDescriptor):
            block = list(x.block_shape)
            if x.base.dtype == torch.float32 and len(block) > 1:
                layout = language.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
                told[name] = GluonDescriptor(x.base, x.shape, x.strides, block, layout)
            elif len(block) > 1:
                block[-2] = 64 if name in shared else block[-2]
                told[name] = in_layout(x, block)
            else:
                told[name] = x.base
    return grid, told


def in_layout(x, block):
    """What Gluon loads tiles of 16 bits by, out of what else would load them: it knows how they lie in shared memory."""
    from triton.experimental.gluon import language
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    element = language.bfloat16 if x.base.dtype == torch.bfloat16 else language.float16
    layout = language.NVMMASharedLayout.get_default_for(block, element)
    return GluonDescriptor(x.base, x.shape, x.strides, block, layout)


def strip_source(x, rows):
    """What kernels in Gluon load rows of a cache by, 64 columns at a time: [pages, heads, places in a page, columns].

    Of float8, which they make float16 of: where its pages, places in a page and heads stand, in steps of 16 bytes.
    """
    if x.element_size() == 1:
        return (x, *(s // 16 for s in x.stride()[:3]))
    return in_layout(tile_source(x, rows), [1, 1, rows, 64])


@functools.cache
def overlaps(device):
    """Whether a GPU starts a kernel that says so while the one before it ends."""
    return not INTERPRETED and capability(device) >= (9, 0)


def capability(device):
    """The compute capability of an NVIDIA GPU; (0, 0) of what is none."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return torch.cuda.get_device_capability(device) if nvidia else (0, 0)


@functools.cache
def multiprocessors(device):
    """How many multiprocessors a GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def in_turns(grid, told):
    """Grid and arguments of a kernel in Gluon whose programs go through tiles in turns, out of a portable one's.

    Each multiprocessor has one program, which loads the next tile while it finishes one, where all items have as much to
    do: by `balance`, "tiles" of a head do, or "pairs" of a late and an early one; in a narrow window, of `reach` keys, tiles
    do; of others, pairs do where there are few. Elsewhere each tile has a program, but for tiles of three workers in windows.
    Packed sequences have "slots" of tiles.
    """
    axis, balance, wide = told["TILE_AXIS"], told.get("balance"), told["BLOCK_D"] > 128
    told |= dict(Q_STAGES=1 if wide else 2)
    if balance == "slots":
        return in_slots(told)
    tiles, group = grid[axis], grid[1 - axis]
    heads, reach = group * grid[2], told.get("reach")
    window = reach is not None and not wide
    narrow = window and reach <= 2048 and 4 * reach <= tiles * told["BLOCK_M"]
    alike = balance == "tiles" or narrow
    programs = multiprocessors(told["q_desc"].base.device)
    pairs, most = cdiv(tiles, 2) * heads, 64 if balance == "pairs" and not wide else 31
    paired = not alike and tiles <= most and pairs >= 0.85 * programs * cdiv(pairs, programs)
    items = pairs if paired else tiles * heads
    # where all tiles are alike, those of a head come one after the other, as they read the same keys
    told |= dict(items=items, tiles=tiles, group=1 if alike else group, per_item=2 if paired else 1)
    steady = alike or paired or (window and told["BLOCK_M"] == 192)
    return (min(programs, items) if steady else items,), told


def in_slots(told):
    """Grid and arguments of such a kernel for packed sequences: one behind the other, with room for a tile that is not full.

    How long each is the GPU alone knows, and programs find: of tiles up to the longest one's length most would be empty.
    """
    rows, Hq = told["BLOCK_M"], told["Hq"]
    slots = told["q_total"] // rows + told["sequences"]
    walked = (told[name].base for name in ("k_desc", "v_desc"))
    shape = grid(Hq, slots * rows, rows, *walked, sequences=told["sequences"])
    told |= dict(items=slots * Hq, slots=slots, group=shape[1 - tile_axis(slots * rows, rows)])
    return (min(multiprocessors(told["q_desc"].base.device), slots * Hq),), told


def by_groups(grid, told):
    """Grid and arguments of a kernel in Gluon whose programs take one tile of keys after the other, out of a portable one's.

    Tiles of a group of heads come one after the other, as they read the same queries. Where there are many, each
    multiprocessor has one program, which takes the next tile that none has taken. Where there are few, or two stages of keys
    do not fit, or sequences have more than `turns_to` queries on average, each tile has one, and the last heads are joined in
    one group: as many as run at once, or where there are few slots of packed sequences, which come one behind the other, all.
    Early tiles have the most to do where late queries see more, so that the last to run are those that have the least.
    """
    axis, columns = told["TILE_AXIS"], told["BLOCK_D"]
    tiles, group, groups = grid[axis], grid[1 - axis], grid[2]
    programs = multiprocessors(told["q_desc"].base.device)
    items, heads = tiles * group * groups, group * groups
    few = items < 12 * programs
    long = "turns_to" in told and told["q_total"] > told["turns_to"] * told.get("sequences", 1)
    stages = 1 if few or columns > 64 or long else 2
    if stages == 2:
        joined = 0
    elif few and told.get("balance") == "slots":
        joined = heads
    else:
        joined = min(heads, cdiv(programs, tiles * group) * group)
    told |= dict(group=group, grouped=heads - joined, joined=joined, tiles=tiles, items=items, K_STAGES=stages)
    return (items if stages == 1 else programs,), told


def precision(x):
    """How kernels multiply values of x's dtype: float32 by tf32 where PyTorch does."""
    tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if tf32 else "ieee"


# triton's own take microseconds outside of kernels
def cdiv(a, b):
    """a / b, rounded up."""
    return -(-a // b)


def power_of_2(n):
    """The least power of 2 that is no less than n."""
    return 1 << (n - 1).bit_length()


def padded_width(x):
    """Columns of a tile that holds x's, or the first 512."""
    return min(max(16, power_of_2(x.shape[-1])), 512)


def alike(given):
    """A function that tells of others whether they are what these are: tensors of one shape, type and device, or None.

    It takes a third of the time that looking at each takes. Those beside multiples of 16 bytes are like none, nor are any while
    PyTorch's dispatcher has a mode to ask: guards do not see each.
    """
    there = operator.itemgetter(*(i for i, x in enumerate(given) if x is not None))
    absent = [i for i, x in enumerate(given) if x is None]
    agree = TensorGuards(*there(given), dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    reduce, either, data_ptr = functools.reduce, operator.or_, torch.Tensor.data_ptr

    def compare(given):
        tensors = there(given)
        if _len_torch_dispatch_stack():
            return False
        if not agree(*tensors) or reduce(either, map(data_ptr, tensors)) % 16:
            return False
        for i in absent:
            if given[i] is not None:
                return False
        return True

    return compare if compare(given) else lambda given: False


def rest(x):
    """The columns of x that a tile of `padded_width` columns leaves out; None where it leaves out none."""
    return x[..., 512:] if x.shape[-1] > 512 else None


def rest_width(x):
    """Columns of a tile that holds those."""
    return max(16, power_of_2(max(x.shape[-1] - 512, 1)))


def is_readable(x):
    """Whether tiles can be read from x: columns stand side by side, rows on 16-byte boundaries."""
    *sizes, width = x.shape
    *strides, column = x.stride()
    step = 16 // x.element_size()
    if (column != 1 and width != 1) or x.data_ptr() % 16:
        return False
    return all(n == 1 or (s % step == 0 and 0 < s < 2**36 * step) for n, s in zip(sizes, strides))


def empty_rows(x):
    """An empty tensor of x's shape whose rows begin on 16-byte boundaries."""
    *sizes, width = x.shape
    step = 16 // x.element_size()
    return empty_like(x) if width % step == 0 else x.new_empty(*sizes, cdiv(width, step) * step)[..., :width]


def empty_turned(q, k, entries=None):
    """Room for q and k as their positions turn them; with `entries` 0: no program writes rows that are left out."""
    found = empty_rows(q), empty_rows(k)
    return found if entries is None else tuple(x.zero_() for x in found)


def empty_like(x):
    """An empty tensor of x's shape; in half the time that new_empty takes for one."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def empty_gradients(wanted, *tensors, entries=None):
    """An empty tensor like each tensor whose gradient is wanted, and one of no size for each other.

    With `entries` they are 0: no program writes rows that are left out.
    """
    found = [empty_like(x) if want else tensors[0].new_empty(0) for want, x in zip(wanted, tensors)]
    return found if entries is None else [x.zero_() for x in found]


def outputs(q, out, lse, entries):
    """Room for out and the LSE, of these shapes; with `entries` 0 and inf: no program writes rows that are left out."""
    if entries is None:
        return q.new_empty(out), q.new_empty(lse, dtype=torch.float32)
    return q.new_zeros(out), q.new_full(lse, float("inf"), dtype=torch.float32)


def aligned_length(count, cu_seqlens):
    """Rows of a vector of the package's own: a sequence begins at a multiple of 4 there, where descriptors can read."""
    return (count // 4 + max(cu_seqlens.shape[0] - 1, 1)) * 4


def stride(x, axis):
    """0 for an axis of size 1, which stands for any size, and where nothing is given."""
    return x.stride(axis) if x is not None and x.shape[axis] > 1 else 0


def stride_in_steps(x, axis):
    """A stride in units of 16 bytes, on whole ones of which rows begin."""
    return x.stride(axis) * x.element_size() // 16


@functools.cache
def copies_tiles(device):
    """Whether the GPU copies tiles by itself; the interpreter does."""
    return INTERPRETED or capability(device)[0] >= 9


def vector_source(x, rows):
    """What kernels load values of rows by: a descriptor of all that lies in memory from first to last, or x."""
    if rows is None or x.shape[-1] == 1:
        # one value may stand for all
        return x
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
    step = 16 // x.element_size()
    aligned = all(n == 1 or s % step == 0 for n, s in zip(x.shape[:-1], x.stride())) and x.data_ptr() % 16 == 0
    if aligned and x.stride(-1) == 1 and span < 2**31 and step in (4, 8) and copies_tiles(x.device):
        return TensorDescriptor(x, [span], [1], [rows & -rows])
    return x


def fragment_source(x):
    """What products of 64 rows and 64 columns are added up in x by, in the order in which they stand in registers."""
    return TensorDescriptor(x, [x.numel() // 256, 256], [256, 1], [16, 256])


def tile_source(x, rows, entries=None):
    """What kernels load tiles of one head by, [rows, columns]: a descriptor, or where the rows of x stand.

    A descriptor leaves out no row before the last: with `entries`, tiles end sooner.
    """
    if x is None:
        return None
    *lead, count, heads, width = x.shape
    *lead_strides, row_stride, head_stride, _ = x.stride()
    # heads before rows: axes of 1 that lead drop out of a tile without a trace in the compiled code
    sizes = *lead, heads, count
    strides = *lead_strides, head_stride, row_stride
    # the stride of an axis of size 1 means nothing, but must be a multiple of 16 bytes
    strides = [s if n > 1 else 16 for n, s in zip(sizes, strides)]
    if entries is None and copies_tiles(x.device):
        # of 192 rows, a third at a time
        return TensorDescriptor(
            x, [*sizes, width], [*strides, 1], [*(1 for _ in lead), 1, rows & -rows, padded_width(x)]
        )
    step = 16 // x.element_size()
    return (x, tl.constexpr(width), *(s // step for s in strides))


address = torch.Tensor.data_ptr


def refill(source, x):
    """What makes the like of another x of its shape, without the checks that a descriptor goes through.

    Of a tensor that a kernel gets as such it is the address: of a tensor Triton asks the driver whose memory it is.
    None for what is no tensor. It keeps nothing of x itself.
    """
    if source is x:
        return address if isinstance(x, torch.Tensor) else None
    if isinstance(source, tuple):
        more = source[1:]
        return lambda x: (x, *more)
    kind, known = type(source), {name: value for name, value in vars(source).items() if name != "base"}

    def fill(x):
        descriptor = object.__new__(kind)
        descriptor.__dict__.update(known, base=x)
        return descriptor

    return fill


def assert_on_device(holds, told):
    """Fails behind what runs on the device so far, which nothing waits for, if a tensor of one truth value is false."""
    torch._assert_async(holds, told)
