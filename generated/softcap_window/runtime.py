# Written by attnforge. Do not edit: it is the same in every package.
#
#   made from     templates/host/runtime.py.jinja
#   content hash  d0f90942f36bd6b0
#   text hash     ce50f7dc586a07f3
#   render with   attnforge render SPEC
"""The launching code; all private interfaces of PyTorch and Triton are used in this file only.

In this order
    operators      functions that PyTorch traces and differentiates: Operator, needs_dispatcher, on_its_device
    launches       launches, and what shapes determine about them: LaunchCache, launch, interpret, launch_again, grid
    again          the same launches with tensors at other addresses: repeated, refill, laid_out, starter, launcher
    counters       zeros that programs of several kernels use as counters: Counters, counters
    choice         the tile and the kernels for a GPU: portable, attended, differentiated, launch_tuned, launch_with_room
    Hopper GPUs    whether their kernels run, and renamed parts of Gluon: target, on_hopper, hopper_kernels, in_gluon
    order          how Gluon programs take tiles: in_turns, in_slots, by_groups
    tensors        tile sizes, room for results, and the sources of tiles: vector_source, tile_source
"""

import bisect
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import functools
import importlib
import operator
import os
import threading
import types
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
if INTERPRETED and isinstance(tl.sum, triton.JITFunction):  # a kernel would fail with an unrelated error
    came_late = "TRITON_INTERPRET=1 came after triton was imported, as torch.compile and transformers do"
    raise RuntimeError(f"{came_late}: set it before Python starts")


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Operator:
    """A function that PyTorch can trace, and differentiate once `register_autograd` was called.

    It is named after its module, so that each copy of a package has its own operators. PyTorch's path through an
    operator takes longer than a launch: if its dispatcher has nothing to do, the function is called directly. The
    names in `mutates` are the arguments that it writes to.
    """

    def __init__(self, function, mutates=()):
        self.function = on_its_device(function)
        self.derived = None
        self.name = function.__module__.replace("_", "__").replace(".", "_") + function.__name__
        # with `custom_op` of torch.library, the host takes a sixth longer for a compiled step
        self.library = get_library_allowing_overwrite("attnforge", self.name)
        schema = torch.library.infer_schema(function, mutates_args=mutates)
        self.library.define(self.name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.library.impl(self.name, self.function, "CompositeExplicitAutograd")
        self.traced = getattr(torch.ops.attnforge, self.name).default
        torch.library.register_vmap(self.traced, _refuse_vmap, lib=self.library)

    def register_fake(self, fake):
        """Registers the results for tensors without values, like `register_fake` of torch.library."""
        return torch.library.register_fake(self.traced, fake, lib=self.library)

    def register_autograd(self, backward, setup_context):
        """Registers the derivative, like `register_autograd` of torch.library."""
        torch.library.register_autograd(self.traced, backward, setup_context=setup_context, lib=self.library)
        parts = {"forward": self.function, "setup_context": setup_context, "backward": backward}
        parts |= {"vmap": _refuse_vmap, "jvp": _refuse_jvp}
        parts = {name: staticmethod(part) for name, part in parts.items()}
        self.derived = type(self.function.__name__, (torch.autograd.Function,), parts)

    def register_gradients(self, differentiate, learned, tensors, remade=0):
        """Registers the gradients of the arguments at the places `learned`.

        The arguments are `tensors` tensors, then numbers. The operator returns out, LSE, intermediate results, and then
        the first `remade` arguments in the form to be differentiated. `differentiate` takes out, LSE, their gradients,
        which gradients are wanted, the intermediate results, and the arguments; it has no derivative of its own.
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
            needed = ctx.needs_input_grad  # each access builds a new tuple
            wanted = [needed[i] for i in learned]
            gradients = differentiate(out, lse, dout, dlse, wanted, *given, *ctx.numbers)
            found = [None] * len(needed)
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
        # what `apply` does, except for its inspection of the signature of forward
        return super(torch.autograd.Function, self.derived).apply(*args)


def needs_dispatcher(args):
    """Whether PyTorch must see the call: a compiler, a mode, a tensor subclass, a tensor that is lazily negated."""
    if is_compiling() or has_mode():
        return True
    for x in args:
        # isinstance is slowest for objects that are no tensors
        if x is None or type(x) is float:
            continue
        if type(x) in _PLAIN:
            if x.is_neg():
                return True
        elif isinstance(x, torch.Tensor):
            return True
    return False


def has_mode():
    """Whether this thread is within a mode of PyTorch's, even one that is disabled while an operator it saw runs.

    PyTorch's own flag is shared by all threads: if modes of several overlap, it may be unset too soon, or stay set.
    """
    if _len_torch_dispatch_stack():
        return True
    if not _python_dispatch._is_in_torch_dispatch_mode:
        return False
    aside = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.PythonTLSSnapshot)
    return aside or _len_torch_dispatch_stack_pre_dispatch() > 0


def is_watched():
    """Whether a mode of PyTorch's is to see this call; it is disabled while an operator that it saw runs."""
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
        # comparing device types, which are strings, takes longer
        x = args[0]
        if x.is_cpu or x.get_device() == torch.cuda.current_device():
            return function(*args)
        with torch.cuda.device(x.device):
            return function(*args)

    return run


def keep(known, key, value):
    """Stores a value by its key; drops the oldest of many, as some lengths never recur."""
    if len(known) >= 1024:
        known.popitem(last=False)
    known[key] = value


only_portable = contextvars.ContextVar("only_portable", default=False)


class LaunchCache:
    """What earlier calls computed for tensors of some shapes, so that the next such call launches at once."""

    known = collections.OrderedDict()

    def __init__(self, reach, portable=False, given=()):
        self.reach = reach  # how many keys before its own position a query may see
        self.portable = portable  # whether its calls take no kernels for Hopper GPUs
        self.unreadable = None  # indices of tensors from which tiles cannot be read
        self.tiles = {}  # of portable kernels, by kernel
        self.hopper_tiles = {}  # with their modules, of kernels for Hopper GPUs; empty ones if those do not run
        self.launches = {}  # functions that launch again, by kernel and tile
        self.agrees = alike(given)

    @classmethod
    def of(cls, name, *given, reach=2**28):
        """The cache for a function's arguments: the key is all that launches depend on; numbers count by value.

        That of the function's last call is tried first, as comparing tensors takes less time than building their key.
        """
        portable = only_portable.get()
        given = (*given, precision(given[0]), reach, portable)
        last = cls.known.get(name)
        if last is not None and last.agrees(given):
            return last
        told = [
            x if x is None or not isinstance(x, torch.Tensor) else (x.shape, x.stride(), x.dtype, x.data_ptr() % 16)
            for x in given
        ]
        key = (name, given[0].device, *told)
        cache = cls.known.get(key)
        if cache is None:
            cache = cls(reach, portable, given)
            keep(cls.known, key, cache)
        cls.known[name] = cache
        return cache

    def readable(self, *tensors):
        """The tensors, with copies in place of those from which tiles cannot be read."""
        if self.unreadable is None:
            self.unreadable = [i for i, x in enumerate(tensors) if not is_readable(x)]
        if not self.unreadable:
            return tensors
        return [empty_rows(x).copy_(x) if i in self.unreadable else x for i, x in enumerate(tensors)]


def launch(cache, kernel, blocks, given, grid, from_shapes):
    """Launches a kernel; from the second time on, nothing that shapes determine is computed again.

    `given` holds the values of each call, in the kernel's order. `from_shapes` returns what shapes determine: arguments
    that follow these, and sources of tiles or vectors in place of tensors; it may return more than the kernel takes.
    """
    key = (kernel.fn, *blocks)
    again = cache.launches.get(key)
    if again is not None:
        return again(given)
    grid, told = grid(), from_shapes()
    if "num_stages" in told and not INTERPRETED and kernel.is_gluon():
        # these describe a kernel that is not in Gluon
        grid, told = in_gluon(kernel, grid, told)
    taken = {*kernel.arg_names, "num_warps", "num_stages", "maxnreg"}
    told = {name: value for name, value in told.items() if name in taken}
    arguments = dict(zip(kernel.arg_names, given)) | told
    if told.get("OVERLAP"):
        # the kernel itself waits for the previous one
        arguments["launch_pdl"] = True
    if INTERPRETED:
        return interpret(kernel, grid, arguments)
    compiled = kernel[grid](**arguments)
    sources = [arguments[name] for name in kernel.arg_names]
    cache.launches[key] = repeated(compiled, (*grid, 1, 1)[:3], sources, given)


def interpret(kernel, grid, arguments):
    """Runs a kernel in Triton's interpreter; as on a GPU, infinities and NaN are no reason for warnings."""
    from triton.runtime import interpreter

    with interpreter.np.errstate(all="ignore"):
        kernel[grid](**arguments)


def launch_again(cache, *values):
    """Launches the kernels of a function again, each with its new `values`; False if none was launched before."""
    if not cache.launches:
        return False
    stream = driver.active.get_current_stream(values[0][0].get_device())
    for again, given in zip(cache.launches.values(), values):
        again(given, stream)
    return True


def grid(heads, rows, block, *walked, sequences=1):
    """A grid of heads of a group, tiles of rows, and groups: rows that the programs of a group loop over stay cached.

    If tensors hold several `sequences` of each head, programs loop over one of them.
    """
    tiles = cdiv(rows, block)
    size = sum(x.numel() * x.element_size() for x in walked)
    most = min(heads * sequences * cache_share(walked[0].device) // size, heads)
    group = next((n for n in range(most, 1, -1) if heads % n == 0), 1)
    # only the first axis of a grid may exceed 65535
    if tile_axis(rows, block) == 0:
        return tiles, group, heads // group
    return (group, tiles, heads // group) if heads // group < 2**16 else (heads, tiles, 1)


def tile_axis(rows, block):
    """The grid axis of the tiles: the second, so that heads vary fastest, or the first if there are too many tiles."""
    return 1 if cdiv(rows, block) < 2**16 else 0


def cache_share(device):
    """Bytes of a GPU's cache that a group of heads may take: the next groups start while it still runs."""
    return 2**15 if INTERPRETED else torch.cuda.get_device_properties(device).L2_cache_size // 3


def repeated(compiled, grid, sources, given):
    """A function that launches a compiled kernel with other values than `given`, on the current stream or a given one.

    `sources` are the kernel's arguments of the first launch, the first of which were made from `given`. If a hook of
    Triton's is to see launches, as for profilers, Triton's own path is taken. The function holds no tensors.
    """
    usual, (direct, spread) = compiled[grid], starter(compiled, grid)
    fill = [refill(source, x) for source, x in zip(sources, given)]
    count, hooks = len(given), triton.knobs.runtime
    rest = sources[count:]
    tiles = [i for i, source in enumerate(sources) if hasattr(source, "base")]

    def by_triton(given, stream=None):
        usual(*[x if f is None else f(x) for f, x in zip(fill, given)], *rest, stream=stream)

    if direct is None:
        return by_triton
    begin = [source if i in tiles else object() for i, source in enumerate(sources[:count])]
    shown = {id(x): place for place, x in enumerate(spread([*begin, *rest]))}
    others = [(i, fill[i], shown[id(x)]) for i, x in enumerate(begin) if i not in tiles]

    def lay_out(addresses):
        """The arguments for the launcher in C, with descriptors of these addresses, without other values of a call."""
        values = [None] * count + rest
        for i, place in zip(tiles, addresses):
            values[i] = fill[i](Address(place))
        return spread(values)

    def again(given, stream=None):
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            return by_triton(given, stream)
        passed = laid_out(lay_out, tuple([given[i].data_ptr() for i in tiles])).copy()
        for i, f, place in others:
            x = given[i]
            passed[place] = x if f is None else f(x)
        if stream is None:
            stream = driver.active.get_current_stream(driver.active.get_current_device())
        direct(stream, passed)

    return again


address = torch.Tensor.data_ptr


def refill(source, x):
    """A function that builds the same source from another x of this shape, without the checks of a descriptor.

    For a tensor that a kernel takes directly, it returns the address: for a tensor, Triton asks the driver whose memory
    it is. None if x is not a tensor. The function keeps no reference to x.
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


class Address(int):
    """The address of a tensor, in its place in a descriptor."""

    data_ptr = int.__int__


@functools.lru_cache(4096)
def laid_out(lay_out, addresses):
    """What a launch lays out for these addresses: they recur in a training loop, and a descriptor takes 3 us."""
    return lay_out(addresses)


@functools.lru_cache(1024)
def starter(compiled, grid):
    """Two functions: one that calls a compiled kernel's launcher in C, and one that lists what Triton passes to it.

    On each call, Triton recomputes what is the same for a kernel and a grid: 4 us of the host's time. The resulting
    arguments are recorded once. Both are None if Triton does more than that.
    """
    run = compiled.run
    if not hasattr(run, "launch") or any(getattr(run, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
        return None, None
    passed, stream_of_call, value = [], object(), object()
    observed = copy.copy(run)
    observed.launch = lambda *given: passed.extend(given)
    observed(*grid, stream_of_call, compiled.function, compiled.packed_metadata, None, None, None, value)
    # a kernel's arguments are last: one by one until triton 3.6, as a tuple since then
    last, place = passed.pop(), passed.index(stream_of_call)
    if last not in (value, (value,)):
        return None, None
    before, behind, one_by_one = passed[:place], passed[place + 1 :], last is value
    launch, unfold = launcher(run.launch)

    def direct(stream, given):
        if one_by_one:
            launch(*before, stream, *behind, *given)
        else:
            launch(*before, stream, *behind, given)

    def spread(given):
        if one_by_one:
            return list(unfold(*before, None, *behind, *given)[len(before) + 1 + len(behind) :])
        return list(unfold(*before, None, *behind, given)[-1])

    return direct, spread


def launcher(launch):
    """The launcher in C that a function of Triton's calls, and the function with one that returns what it is given.

    Unless a kernel has no descriptors, that function replaces them by their contents.
    """

    def observe(*given):
        return given

    names = getattr(getattr(launch, "__code__", None), "co_freevars", ())
    if "launcher" not in names:
        return launch, observe
    cells = list(launch.__closure__)
    place = names.index("launcher")
    found = cells[place].cell_contents
    cells[place] = types.CellType(observe)
    return found, types.FunctionType(launch.__code__, launch.__globals__, closure=tuple(cells))


class Planned(threading.local):
    """Whether a compiler plans the memory of code that runs now: nothing allocated then may be kept."""

    depth = 0

    def __enter__(self):
        self.depth += 1

    def __exit__(self, *_):
        self.depth -= 1


planned = Planned()


class Counters:
    """Counters of a GPU for programs of kernels: programs leave zeros behind, so that no kernel has to clear them.

    Calls on a stream run one after the other and share counters. A call captured by a CUDA graph may run again at any
    time, in parallel to any other: it gets counters of its own, for good.
    """

    SIZE, OF_STREAM = 2**18, 2**12  # counters of a block, and of a stream

    def __init__(self, device):
        self.device, self.of_stream, self.lock = device, {}, threading.Lock()
        self.blocks, self.used = [], self.SIZE  # graphs hold raw addresses: no block is ever freed

    def zeros(self, count):
        """New counters."""
        return torch.zeros(count, dtype=torch.int32, device=self.device)

    def take(self, count):
        """Unused counters of the last block; new ones if it has no room."""
        with self.lock:
            first = self.used
            if first + count > self.SIZE:
                return self.zeros(count)
            self.used += cdiv(count, 32) * 32
            return self.blocks[-1][first : first + count]

    def make_room(self):
        """Appends a new block once half of the last one is taken; not in a capture, as its graph would own the block.

        The same holds for allocations of this thread while a compiler warms up for one: another thread makes the block.
        """
        with self.lock:
            if 2 * self.used > self.SIZE:
                with concurrent.futures.ThreadPoolExecutor(1) as other:
                    self.blocks.append(other.submit(self.new_block).result())
                self.used = 0

    def new_block(self):
        """A block of zeros, ready for all streams."""
        block = self.zeros(self.SIZE)
        torch.cuda.current_stream(self.device).synchronize()
        return block

    def current(self, count):
        """The counters of the current stream."""
        if 2 * self.used > self.SIZE:
            self.make_room()
        stream = driver.active.get_current_stream(self.device.index)
        found = self.of_stream.get(stream)
        if found is None or found.shape[0] < count:
            found = self.of_stream[stream] = self.take(max(count, self.OF_STREAM))
        return found


counters_of = functools.cache(Counters)


def counters(count, device):
    """At least `count` zeros for the programs of a call to count in; None if `count` is 0."""
    if not count:
        return None
    if device.type == "cpu":
        # the interpreter may be stopped in the middle of a kernel
        return torch.zeros(count, dtype=torch.int32)
    found = counters_of(device)
    return found.take(count) if torch.cuda.is_current_stream_capturing() else found.current(count)


def launch_on_hopper(cache, tables, name, launch, q, v, keys):
    """Calls `launch` with a tile and a module of kernels for Hopper GPUs if there is one; returns whether it did."""
    best = cache.hopper_tiles.get(name)
    if best is None:
        best = () if INTERPRETED or cache.portable else on_hopper(tables, name, q, v, keys, cache.reach)
        return launch_first(cache, tables.__package__, name, launch, best)
    if best:
        launch(*best)
    return bool(best)


@contextlib.contextmanager
def portable():
    """While this lasts, calls of this thread take portable kernels."""
    before = only_portable.set(True)
    try:
        yield
    finally:
        only_portable.reset(before)


failed = set()  # tiles and modules of kernels that failed to compile or launch here


def launch_first(cache, package, name, launch, best):
    """Calls `launch` with the choice `best` of a package, if not empty; remembers and returns whether that worked."""
    if best in failed and target() != "hopper":
        best = ()
    if best:
        try:
            launch(*best)
        except torch.cuda.OutOfMemoryError:
            raise  # not a fault of the kernels
        except (MemoryError, OSError) as error:
            # nor is a full disk: the next call tries again
            not_on_hopper(package, error)
            return False
        except Exception as error:
            wait_for_gpu()
            not_on_hopper(package, error)
            failed.add(best)
            best = ()
    cache.hopper_tiles[name] = best
    return bool(best)


def wait_for_gpu():
    """Raises if a kernel launched earlier has failed: every later call reports it, and nothing runs any more."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def attended(cache, tables, keys, q, k, v, *given):
    """Launches a package's forward pass for Hopper GPUs, if it can run; returns whether it did."""

    def launch(*tile_and_kernels):
        *tile, kernels = tile_and_kernels
        kernels.launch_forward(cache, *tile, q, k, v, *given)

    return launch_on_hopper(cache, tables, "forward", launch, q, v, keys)


def differentiated(cache, tables, wanted, keys, q, k, v, *given):
    """Launches a package's whole backward pass for Hopper GPUs, if it can run; returns whether it did.

    It adds up dQ and other sums in the order in which programs finish, so deterministic mode takes other kernels.
    """
    if not all(wanted) or torch.are_deterministic_algorithms_enabled():
        return False

    def launch(*tile_and_kernels):
        *tile, kernels = tile_and_kernels
        kernels.differentiate(cache, *tile, q, k, v, *given)

    return launch_on_hopper(cache, tables, "backward", launch, q, v, keys)


def one_by_one(launch, made):
    """A function of a tile that launches once for each gradient in `made`: registers cannot hold two wide ones."""

    def each(*tile):
        for name in made:
            launch(*tile, name)

    return each


def launch_tuned(cache, tables, name, launch, q, v):
    """Calls `launch` of portable kernels with the best tile that fits this GPU's memory; `tables` is tiles.py."""
    if name == "backward_dkv" and max(q.shape[-1], v.shape[-1]) > 256:
        launch = one_by_one(launch, ("dk", "dv"))
    if INTERPRETED:
        return launch(32, 32, 4, 1)
    best = cache.tiles.get(name)
    if best:
        return launch(*best)
    table = (tables.TILES_FP32 if q.dtype == torch.float32 else tables.TILES_16BIT[architecture(q.device)])[name]
    size = next(size for size in table if max(q.shape[-1], v.shape[-1]) <= size)
    # tried for each new kind of call: the other inputs of a kernel take shared memory too
    cache.tiles[name] = table[size][first_with_room(launch, table[size])]


def launch_with_room(launch, stages):
    """Calls `launch` with as many of `stages` stages as fit shared memory; they do not affect the bits of results."""
    first_with_room(launch, [(x,) for x in range(stages, 0, -1)])


def first_with_room(launch, tiles):
    """Calls `launch` with each of the tiles until one fits this GPU's shared memory; returns its index."""
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
    """The architecture whose tile shapes a GPU uses."""
    return "sm_90" if capability(device)[0] in (9, 10) else "sm_80"


def target():
    """The value of ATTNFORGE_TARGET: portable, hopper, or empty."""
    wanted = os.environ.get("ATTNFORGE_TARGET", "")
    if wanted not in ("", "portable", "hopper"):
        raise ValueError(f"ATTNFORGE_TARGET: expected portable or hopper, got {wanted!r}")
    return wanted


def on_hopper(tables, name, q, v, keys, reach):
    """The tile and the module of a pass's kernels for Hopper GPUs, or () if they do not run or are slower.

    `keys` is the number of keys of the longest sequence, `reach` how many keys before its own position a query may see.
    """
    wanted, tiles = target(), getattr(tables, "TILES_HOPPER", {}).get(name, {})
    columns = tuple(max(padded_width(x), 32) for x in (q, v))
    widths = tuple(max(n, 64) for n in columns)  # of tiles
    # stored tiles reuse the shared memory of loaded ones, whole or in strips of 64 columns: the memory of v has no room
    # for a dk with more columns, but for wide heads dk reuses that of q
    narrow = widths[0] > widths[1] and widths[1] % 64 == 0 and (name == "forward" or widths[0] > 128)
    room = widths[0] == widths[1] or narrow
    if wanted == "portable" or columns[0] not in tiles or q.dtype == torch.float32 or not room:
        return ()
    limits, least = tables.HOPPER_IS_FASTER[name], getattr(tables, "HOPPER_REACH", {}).get(name, {}).get(columns[0], 0)
    faster = bisect.bisect(limits.get(columns, limits.get(columns[0], ())), keys) % 2 and reach >= least
    if wanted != "hopper" and not faster:
        return ()
    kernels = hopper_kernels(tables.__package__, name, q.device)
    by_length, seen = tiles[columns[0]], min(keys, reach + 1)
    return (*by_length[max(least for least in by_length if least <= seen)], kernels) if kernels else ()


# modules whose functions are called with a tile: a kernel, or a launcher of several
HOPPER_FILES = {"forward": ".hopper", "backward": ".hopper_launch", "decode": ".decode_hopper"}


@functools.cache
def hopper_kernels(package, name, device):
    """The module of a package's kernels for Hopper GPUs; None if the GPU is not one, or triton has no Gluon."""
    if capability(device) != (9, 0):
        return None
    try:
        return importlib.import_module(HOPPER_FILES[name], package)
    except (ImportError, AttributeError) as error:
        not_on_hopper(package, error)


unwilling = set()  # packages whose kernels for Hopper GPUs do not compile here


def not_on_hopper(package, error):
    """Warns once that portable kernels replace those for Hopper GPUs; raises the error if the latter are asked for."""
    if target() == "hopper":
        raise error
    if package not in unwilling:
        unwilling.add(package)
        why = f"{type(error).__name__}: {str(error).strip()}".splitlines()
        warnings.warn(f"{package}: portable kernels take the place of those for Hopper GPUs: {why[0]}", stacklevel=2)


def gluon_copy_of_tiles():
    """Gluon's function that copies a tile to shared memory; renamed in triton 3.9."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


def gluon_view_of_tiles():
    """Gluon's function that reinterprets the memory of tiles; renamed in triton 3.9."""
    from triton.experimental.gluon.language import shared_memory_descriptor as tiles

    return tiles.reinterpret if hasattr(tiles, "reinterpret") else tiles._reinterpret


def gluon_store_of_tiles():
    """Gluon's function that stores a tile from shared to global memory; renamed in triton 3.9."""
    from triton.experimental.gluon.language.nvidia.hopper import tma

    return tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


def gluon_sum_of_tiles():
    """Gluon's function that adds a tile in shared memory to global memory; before triton 3.8, the compiler's own."""
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
    """Gluon's barrier for the warps of a group; renamed in triton 3.7."""
    from triton.experimental.gluon import language

    return language.barrier if hasattr(language, "barrier") else language.thread_barrier


def in_gluon(kernel, grid, told):
    """Grid and arguments of a Gluon kernel, from those of a portable kernel, but with 32 columns or more in a tile.

    Beside more columns there are 64 or more, as tiles of q and of v reuse each other's shared memory.
    """
    # the interpreter has neither
    from triton.experimental.gluon import language
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    forward = "out_ptr" in kernel.arg_names
    # tensors of which each worker has 64 rows
    shared = ("q_desc",) if forward else ("k_desc", "v_desc")
    # registers per thread before groups of warps redistribute them, for three groups or for two
    three = told["BLOCK_M"] == 192 if forward else told["BLOCK_N"] == 64
    told |= dict(STAGES=told.pop("num_stages"), num_warps=4, maxnreg=128 if three else 168)
    least = piece(told["q_desc"].base, told["v_desc"].base)
    told |= {name: max(told[name], least) for name in ("BLOCK_D", "BLOCK_DV") if name in told}
    grid, told = (in_turns if forward else by_groups)(grid, told)
    for name, x in told.items():
        if isinstance(x, TensorDescriptor):
            block = list(x.block_shape)
            if x.base.dtype == torch.float32 and len(block) > 1:
                layout = language.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
                told[name] = GluonDescriptor(x.base, x.shape, x.strides, block, layout)
            elif len(block) > 1:
                block[-2:] = 64 if name in shared else block[-2], max(block[-1], least)
                told[name] = in_layout(x, block)
            else:
                told[name] = x.base
    return grid, told


def in_layout(x, block):
    """Gluon's descriptor for tiles, from a portable one: it includes their layout in shared memory."""
    from triton.experimental.gluon import language
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    element = getattr(language, str(x.base.dtype).removeprefix("torch."))
    layout = language.NVMMASharedLayout.get_default_for(block, element)
    return GluonDescriptor(x.base, x.shape, x.strides, block, layout)


def strip_source(x, rows):
    """Gluon's source for rows of a cache, 64 columns at a time: [pages, heads, places in a page, columns].

    For float8, which kernels convert to float16: x and the strides of pages, places and heads, in units of 16 bytes.
    """
    if x.element_size() == 1:
        return (x, *(s // 16 for s in x.stride()[:3]))
    return in_layout(tile_source(x, rows), [1, 1, rows, 64])


@functools.cache
def overlaps(device):
    """Whether a GPU can start a kernel while the previous one ends (programmatic dependent launch)."""
    return not INTERPRETED and capability(device) >= (9, 0)


def capability(device):
    """The compute capability of an NVIDIA GPU; (0, 0) for any other device."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return torch.cuda.get_device_capability(device) if nvidia else (0, 0)


@functools.cache
def multiprocessors(device):
    """The number of multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def has_tiles(x, q, k):
    """Whether tiles of such a tensor can be copied: of 16-bit values, as wider ones find no room, for each query and key.

    A value that all queries or keys share would have to be expanded in memory first.
    """
    return x.element_size() == 2 and x.shape[-2:] == (q.shape[1], k.shape[1])


def pair_rows(x):
    """A tensor with values for pairs as one with four axes from which tiles can be read, a copy if necessary.

    Along axes of batch entries and heads whose entries are all the same, one is left.
    """
    for axis, step in enumerate(x.stride()[:-2]):
        x = x if step else x.narrow(axis, 0, 1)
    x = x[(None,) * (4 - x.dim())]
    return x if is_readable(x) else empty_rows(x).copy_(x)


def pair_source(x, rows, columns):
    """Gluon's descriptor for [rows, columns] tiles of such a tensor."""
    if x is None:
        return None
    # the stride of an axis of size 1 is meaningless, but must be a multiple of 16 bytes
    *strides, _ = (s if n > 1 else 16 for n, s in zip(x.shape, x.stride()))
    block = [*(1 for _ in strides[1:]), rows, columns]
    return in_layout(TensorDescriptor(x, [*x.shape], [*strides, 1], block), block)


def is_of_scores(x, q, k):
    """Whether such a tensor has a value for each score, of q's type."""
    return x.dtype == q.dtype and x.shape == (q.shape[0], q.shape[2], q.shape[1], k.shape[1])


def room_for_pairs(x, whole):
    """Room for tiles of the gradient of such a tensor: zeros unless kernels write the `whole` of it."""
    return empty_rows(x) if whole else empty_rows(x).zero_()


def room_for_sums(x, *shape):
    """Room for sums that make up the gradient of such a tensor: of its type if they need not be added up, or float32."""
    return x.new_empty(shape, dtype=x.dtype if x.numel() == torch.Size(shape).numel() else torch.float32)


def in_turns(grid, told):
    """Grid and arguments of a Gluon kernel whose programs go from tile to tile, from those of a portable kernel.

    If all items have equal work, each multiprocessor has one persistent program, which loads the next tile while it
    finishes one. Tiles have equal work if `balance` is "tiles", or in a narrow window, of `reach` keys; otherwise a few
    tiles, or more if `balance` is "pairs", are taken as pairs of a late and an early one. Else each tile has a program,
    except tiles of three workers in windows. Packed sequences have "slots" of tiles. If several batch entries
    leave rows out, tiles are `ranked` by their work, and persistent programs take them in turns. If heads reach
    differently far, work is `uneven`: tiles of 128 columns have a program each, as multiprocessors take the next one
    when they are free. With 64 or 256 columns, loading the next tile early gains as much or more.
    """
    axis, balance, wide = told["TILE_AXIS"], told.get("balance"), told["BLOCK_D"] > 128
    told |= dict(Q_STAGES=1 if wide else 2)
    if balance == "slots":
        return in_slots(told)
    tiles, group = grid[axis], grid[1 - axis]
    heads, reach, even = group * grid[2], told.get("reach"), not (told.get("uneven") and told["BLOCK_D"] == 128)
    window = even and reach is not None and not wide
    narrow = window and reach <= 2048 and 4 * reach <= tiles * told["BLOCK_M"]
    alike = balance == "tiles" or narrow
    programs = multiprocessors(told["q_desc"].base.device)
    if told.get("ranked"):
        told |= dict(items=tiles * heads, tiles=tiles, group=1, per_item=1)
        return (min(programs, tiles * heads),), told
    pairs, most = cdiv(tiles, 2) * heads, 64 if balance == "pairs" and not wide else 31
    paired = even and not alike and tiles <= most and pairs >= 0.85 * programs * cdiv(pairs, programs)
    items = pairs if paired else tiles * heads
    # if all tiles have equal work, those of a head are consecutive, as they read the same keys
    told |= dict(items=items, tiles=tiles, group=1 if alike else group, per_item=2 if paired else 1)
    steady = alike or paired or (window and told["BLOCK_M"] == 192)
    return (min(programs, items) if steady else items,), told


def in_slots(told):
    """Grid and arguments of such a kernel for packed sequences: consecutive slots, with room for partial tiles.

    Only the GPU knows their lengths, and programs look them up: of tiles up to the longest length, most would be empty.
    """
    rows, Hq = told["BLOCK_M"], told["Hq"]
    slots = told["q_total"] // rows + told["sequences"]
    walked = (told[name].base for name in ("k_desc", "v_desc"))
    shape = grid(Hq, slots * rows, rows, *walked, sequences=told["sequences"])
    told |= dict(items=slots * Hq, slots=slots, group=shape[1 - tile_axis(slots * rows, rows)])
    return (min(multiprocessors(told["q_desc"].base.device), slots * Hq),), told


def by_groups(grid, told):
    """Grid and arguments of a Gluon kernel whose programs own tiles of keys, from those of a portable kernel.

    Tiles of a group of heads are consecutive, as they read the same queries. If there are many tiles, each
    multiprocessor has one persistent program, which takes the next free tile. If there are few, or two stages of keys
    do not fit, or sequences have more than `turns_to` queries on average, each tile has a program, and the last heads
    form one group: as many as run at once, or all, if packed sequences have few slots, which are consecutive. Early
    tiles have the most work where late queries see more, so that the tiles with the least work run last.
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
    """How kernels multiply values of x's dtype: float32 as tf32 if PyTorch does."""
    tf32 = x.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if tf32 else "ieee"


# triton's versions take microseconds outside of kernels
def cdiv(a, b):
    """a / b, rounded up."""
    return -(-a // b)


def power_of_2(n):
    """The smallest power of 2 that is at least n."""
    return 1 << (n - 1).bit_length()


def padded_width(x):
    """Columns of a tile that holds the columns of x, or the first 512 of them."""
    return min(max(16, power_of_2(x.shape[-1])), 512)


def alike(given):
    """A function that returns whether values match the given ones: tensors of the same shape, type and device, or equal.

    It takes a third of the time of comparing each. Tensors that are not 16-byte aligned never match, nor do any while a
    PyTorch dispatch mode is active, as guards do not see each tensor.
    """
    places = [i for i, x in enumerate(given) if isinstance(x, torch.Tensor)]
    if len(places) < 2:
        return lambda given: False
    there, others = operator.itemgetter(*places), [(i, x) for i, x in enumerate(given) if i not in places]
    agree = TensorGuards(*there(given), dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    reduce, either, data_ptr = functools.reduce, operator.or_, torch.Tensor.data_ptr

    def compare(given):
        tensors = there(given)
        if _len_torch_dispatch_stack():
            return False
        if not agree(*tensors) or reduce(either, map(data_ptr, tensors)) % 16:
            return False
        for i, x in others:
            if type(given[i]) is not type(x) or given[i] != x:
                return False
        return True

    return compare if compare(given) else lambda given: False


def rest(x):
    """The columns of x that a tile of `padded_width` columns leaves out; None if there are none."""
    return x[..., 512:] if x.shape[-1] > 512 else None


def rest_width(x):
    """Columns of a tile that holds `rest(x)`."""
    return max(16, power_of_2(max(x.shape[-1] - 512, 1)))


def is_readable(x):
    """Whether tiles can be read from x: columns are contiguous, rows begin on 16-byte boundaries."""
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


def empty_like(x):
    """An empty tensor of x's shape, in half the time of new_empty."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def empty_gradients(wanted, *tensors):
    """An empty tensor like each tensor whose gradient is wanted, and one of size 0 for each of the others."""
    return [empty_like(x) if want else tensors[0].new_empty(0) for want, x in zip(wanted, tensors)]


def outputs(q, out, lse, entries):
    """Room for out and the LSE; with `entries`, the LSE is inf, as no program writes that of rows left out."""
    if entries is None:
        return q.new_empty(out), q.new_empty(lse, dtype=torch.float32)
    return q.new_empty(out), q.new_full(lse, float("inf"), dtype=torch.float32)


def aligned_length(count, cu_seqlens):
    """Length of a vector in which each sequence begins at a multiple of 4, so that descriptors can read it."""
    return (count // 4 + max(cu_seqlens.shape[0] - 1, 1)) * 4


def stride(x, axis):
    """The stride of an axis; 0 for an axis of size 1, which stands for any size, and if x is None."""
    return x.stride(axis) if x is not None and x.shape[axis] > 1 else 0


def stride_in_steps(x, axis):
    """A stride in units of 16 bytes, on multiples of which rows begin."""
    return x.stride(axis) * x.element_size() // 16


@functools.cache
def copies_tiles(device):
    """Whether the GPU has hardware to copy tiles (TMA); the interpreter copies them as well."""
    return INTERPRETED or capability(device)[0] >= 9


def vector_source(x, rows):
    """The source of row values for kernels: a descriptor of the memory from the first to the last one, or x."""
    if rows is None or x.shape[-1] == 1:
        # one value may stand for all rows
        return x
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))
    step = 16 // x.element_size()
    aligned = all(n == 1 or s % step == 0 for n, s in zip(x.shape[:-1], x.stride())) and x.data_ptr() % 16 == 0
    if aligned and x.stride(-1) == 1 and span < 2**31 and step in (4, 8) and copies_tiles(x.device):
        return TensorDescriptor(x, [span], [1], [rows & -rows])
    return x


def piece(q, v):
    """Columns of the pieces of 64 rows in which kernels for Hopper GPUs add up dQ, and the fewest that their tiles have."""
    return 32 if max(q.shape[-1], v.shape[-1]) <= 32 else 64


def fragment_source(x, columns):
    """A descriptor for adding products of 64 rows and so many columns to x, in the order of their registers."""
    return TensorDescriptor(x, [x.numel() // 256, 256], [256, 1], [columns // 4, 256])


def tile_source(x, rows, entries=None):
    """The source of [rows, columns] tiles of one head for kernels: a descriptor, or x with its width and strides.

    A descriptor cannot mask rows, as needed with `entries`, where tiles may end earlier.
    """
    if x is None:
        return None
    *lead, count, heads, width = x.shape
    *lead_strides, row_stride, head_stride, _ = x.stride()
    # heads before rows: leading axes of 1 drop out of a tile without any compiled code
    sizes = *lead, heads, count
    strides = *lead_strides, head_stride, row_stride
    # the stride of an axis of size 1 is meaningless, but must be a multiple of 16 bytes
    strides = [s if n > 1 else 16 for n, s in zip(sizes, strides)]
    if entries is None and copies_tiles(x.device):
        # 192 rows are loaded in thirds
        return TensorDescriptor(
            x, [*sizes, width], [*strides, 1], [*(1 for _ in lead), 1, rows & -rows, padded_width(x)]
        )
    step = 16 // x.element_size()
    return (x, tl.constexpr(width), *(s // step for s in strides))


def assert_on_device(holds, told):
    """Fails if a tensor of one boolean is false: on the device, after all work so far, without a wait of the host."""
    torch._assert_async(holds, told)
