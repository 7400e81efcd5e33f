"""The plan that templates print, made from a spec: what kernels take, load, visit, add, mask and differentiate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..expressions.inputs import Input
from ..language.spec import Spec
from . import (
    arguments,
    backward_passes,
    by_distance,
    by_distance_file,
    cached_training,
    common_values,
    positions,
    reach,
    rotation,
    running_sums,
    sections,
    tile_ranges,
    tiles,
    uniform_entries,
    variant_tiles,
)
from .analysis import Analysis, analyse
from .arguments import Argument
from .backward_passes import Pass, Passes
from .by_distance import ByDistance
from .by_distance_file import ByDistanceFile
from .cached_training import CachedTraining
from .common_values import CommonValues
from .families import statistics
from .families.decode import decode, latent_on_hopper
from .families.decode.decode import Decode
from .families.decode.latent_on_hopper import DecodeHopper
from .families.hopper import additions, hopper
from .families.hopper.hopper import Hopper
from .families.statistics import Statistics
from .kernel_terms import KernelTerms, Sum
from .layout import reduced, scan_view
from .names_in_code import in_code
from .package_kernels import PackageKernels
from .reach import Reach
from .reduction import Reduction
from .sections import Section
from .shared_parameters import SharedParameters
from .statements import names
from .storage import Storage
from .tile_ranges import TileRange
from .tile_states import TileStates
from .vanishing_calls import VanishingCalls


@dataclass(frozen=True)
class Plan:
    """All that templates know about a variant."""

    spec: Spec  # with the names in code for inputs and options
    arguments: tuple[Argument, ...]
    divisors: tuple[tuple[str, str], ...]  # computed from a call's numbers: as the spec writes them, and as Python
    kernels: PackageKernels
    by_distance: ByDistanceFile | None  # the parts of scores that are evaluated once for every distance
    sections: tuple[Section, ...]  # of the file of kernels
    tuned: tuple[tiles.Row | tiles.Limit, ...]  # of this variant alone
    tables: tiles.Tables
    reach: Reach | None  # how far back queries see, if masks hide early keys
    hopper: Hopper | None  # the kernels for Hopper GPUs, if there are any
    decode: Decode | None  # the decode kernels, if the spec asks for them
    decode_hopper: DecodeHopper | None  # the decode kernel for Hopper GPUs, if there is one
    statistics: Statistics | None  # the kernel of further results, if the spec asks for it

    rotation = rotation
    positions = positions

    @property
    def analysis(self) -> Analysis:
        """The analysis of what portable kernels read: parts of scores by distance, if there are any."""
        return self.kernels.analysis

    @property
    def widest(self) -> tuple[int, int]:
        """The largest head size of q and k, and that of v."""
        return tiles.widest(self.spec.latent)

    @property
    def far(self) -> str:
        """The host's text of how far back queries see, if numbers determine it and Hopper GPUs have kernels."""
        return self.reach.reach if self.reach and self.reach.known and self.hopper else ""

    def visible_keys(self, keys: int, numbers: Mapping[str, float]) -> int:
        """The most of so many keys that a query can see, as far as the host can tell from these numbers of a call."""
        if not self.reach or not self.far or not numbers.keys() >= set(self.reach.numbers):
            return keys
        return min(keys, self.reach.of(numbers) + 1)

    @property
    def by_query(self) -> KernelTerms:
        """The terms as read by kernels whose programs own queries."""
        return self.analysis.by_query

    @property
    def by_key(self) -> KernelTerms:
        """The terms as read by kernels whose programs own keys."""
        return self.analysis.by_key

    @property
    def key_states(self) -> TileStates | None:
        """The tile states by which programs that own queries skip tiles, based on the call's tensors."""
        return self.analysis.key_states

    @property
    def storage(self) -> Storage:
        """The layout of rows in the tensors of a call."""
        return self.analysis.storage

    @property
    def constants(self) -> tuple[tuple[str, int, str], ...]:
        """The names, values and reasons of numbers that kernels share."""
        why = "queries or keys per part: the ranges of tiles are computed part by part"
        found = (("GRAIN", 32, why),) if self.kernels.ranges else ()
        why = "a weight is 0 in float32 if its score lies so far below that of another key; 1 more, for rounding"
        return (*found, ("VANISHED", 105, why)) if self.kernels.vanishing else found

    @cached_property
    def learned(self) -> tuple[Reduction, ...]:
        """The inputs that get a gradient."""
        sums = (*self.by_query.learned, *self.by_key.learned, *(Sum(pair.access) for pair in self.kernels.pairs))
        found = []
        for given in self.spec.inputs:
            if given.grad:
                mine = tuple(s for s in sums if s.access.input == given)
                idle = tuple(s for s in mine if self.by_query.idle(s))
                found.append(Reduction(given, mine, idle if len(idle) < len(mine) else (), reduced(given, self.spec)))
        return tuple(found)

    @property
    def watched(self) -> tuple[TileRange, ...]:
        """The tile ranges that suites check directly against the mask: lengths and numbers fully determine them."""
        if self.analysis.keys.whole or self.key_states:
            return ()
        walks = {"k": self.analysis.keys, "q": self.analysis.queries}
        rendered = (walk for side, walk in walks.items() if side in self.spec.algorithm.walks)
        return tuple(walk for walk in rendered if walk.plain is not None)

    @property
    def folds_by_tile(self) -> bool:
        """Whether the bits of a row's result depend on where its tile begins.

        Running sums are taken relative to a tile's first row; and if tiles are examined one by one, those that need a
        mask are visited first.
        """
        one_by_one = self.key_states is not None and not self.key_states.ranged
        return one_by_one or any(given.scan for given in self.spec.inputs)

    @property
    def not_as_training(self) -> str:
        """Why decoding cannot have the bits of training, or ""."""
        return cached_training.refusal(self.spec, self.folds_by_tile)

    @cached_property
    def decode_training(self) -> CachedTraining | None:
        """How decoding has the bits of training, if it can."""
        if not self.decode or self.not_as_training:
            return None
        return CachedTraining(self.decode.spec, self.decode.arguments)

    @property
    def turned_apart(self) -> bool:
        """Whether something besides attention runs the forward pass over queries and keys that are rotated already."""
        return self.spec.rope is not None and self.decode_training is not None

    # -- the host ------------------------------------------------------------------------------------------------

    @property
    def tensors(self) -> tuple[str, ...]:
        """The operator's tensors that the backward pass needs."""
        given = (a.code for a in self.arguments if a.kind == "tensor")
        return ("q", "k", "v", *self.storage.cuts, *self.storage.entries, *given)

    @property
    def numbers(self) -> tuple[str, ...]:
        """The operator's numbers that the backward pass needs."""
        return (*self.storage.limits, *(a.code for a in self.arguments if a.kind == "scalar"), "scale")

    @property
    def prepared(self) -> tuple[str, ...]:
        """The tensors that the forward pass computes before it attends, besides rotated queries and keys."""
        return (*self.kernels.sums, *(x.ranges for x in self.kernels.ranged))

    @property
    def kept(self) -> tuple[str, ...]:
        """The tensors that the forward pass saves for the backward pass, besides out and LSE."""
        turned = ("q_turned", "k_turned") if self.spec.rope else ()
        return (*self.prepared, *turned) if self.spec.algorithm.backward else ()

    @cached_property
    def vanishing(self) -> VanishingCalls:
        """How the host finds out which keys have no weight because scores fall with the distance."""
        return VanishingCalls(self.kernels, self.tensors[3:], self.numbers, self.arguments)

    @property
    def seen(self) -> tuple[str, ...]:
        """The arguments that tell calls apart in the launch cache: tensors by their shapes, numbers by their values."""
        return (*self.tensors, *self.storage.limits, *(("_seed_kind(seed)",) if self.spec.dropout else ()))

    @property
    def bounding(self) -> tuple[str, ...]:
        """The arguments besides q, k and v that the host needs to compute which tiles to skip."""
        small = (self.kernels.bounds, self.kernels.ranges, *self.kernels.lists)
        kernels = (kernel for kernel in small if kernel)
        texts = (p.value for kernel in kernels for p in kernel.parts)
        read = names(*texts, *self.storage.longest, self.storage.sequences)
        return tuple(name for name in (*self.tensors[3:], *self.numbers) if name in read)

    @property
    def given_forward(self) -> tuple[str, ...]:
        """The arguments of a launch of the forward pass for Hopper GPUs: all that it reads, and what it fills in."""
        return (*self._taken(self.hopper.reads_forward if self.hopper else ()), "out", "lse")

    @property
    def given_back(self) -> tuple[str, ...]:
        """The arguments of a launch of the whole backward pass: all that it reads, and the results that it fills in."""
        results = ("out", "lse", "dout", "dlse", "delta", "dq", "dk", "dv", *(s.name for s in self.summed_at_once))
        stored = ("stored",) if self.stored is not None else ()
        return (*self._taken(self.hopper.reads_back if self.hopper else ()), *results, *stored)

    def _taken(self, read: Iterable[str]) -> tuple[str, ...]:
        """The operator's arguments and prepared tensors, of those that launches for Hopper GPUs read."""
        read = {*read, *(self.bounding if self.kernels.listed else ())}
        found = ("horizons",) if self.vanishing.falling else ()
        return tuple(name for name in (*self.tensors, *self.prepared, *found, *self.numbers) if name in read)

    @property
    def least_scale(self) -> str:
        """The host's text of the least scale for kernels that take maxima before they scale; "" if none does."""
        return additions.LEAST_SCALE if self.hopper and self.hopper.added else "" if self.spec.scores else "1e-37"

    @property
    def floats(self) -> tuple[Argument, ...]:
        """The tensors besides q, k and v whose gradient a caller could want."""
        return tuple(a for a in self.arguments if (a.kind, a.dtype) == ("tensor", "float"))

    @property
    def renamed(self) -> bool:
        """Whether generated code has names of its own for some arguments."""
        return any(a.renamed for a in self.arguments)

    @property
    def summed_at_once(self) -> tuple[Sum, ...]:
        """The inputs' gradients from the kernels for Hopper GPUs that compute those of q, k and v all at once."""
        return self.hopper.summed if self.hopper else ()

    @property
    def at_once(self) -> str:
        """The host's text of whether such kernels may serve a call: it wants no gradient that they do not compute."""
        return backward_passes.at_once(self.hopper, self.learned, self.kernels.tables) if self.hopper else ""

    @cached_property
    def back(self) -> Passes:
        """The backward pass as the host launches it."""
        stored = self.hopper is not None and self.hopper.backward is not None and self.hopper.backward.stores_pairs
        total = self.hopper.pairs.total if self.hopper and stored else None
        return Passes(self.kernels, self.learned, self.summed_at_once, total)

    @property
    def stored(self) -> int | None:
        """The index of the gradient that kernels for Hopper GPUs may store as dS, if there is one."""
        return None if self.back.stored is None else self.back.places[self.back.stored]

    @property
    def learned_names(self) -> tuple[str, ...]:
        """The learned inputs, and the sinks if there are any."""
        return (*(r.input.name for r in self.learned), *(("sinks",) if self.spec.sink else ()))

    @property
    def learned_places(self) -> tuple[int, ...]:
        """The indices of q, k, v and the other learned arguments among the operator's arguments."""
        return tuple(self.tensors.index(name) for name in ("q", "k", "v", *self.learned_names))

    @cached_property
    def common(self) -> CommonValues:
        """The values that the kernels of attention and its gradients have in common."""
        tables = (part.name for part in (self.tabled.parts if self.tabled else ()))
        names = (*self.tensors, *self.prepared, *self.numbers, *tables, "lse", "block_m", "block_n")
        back = (one.kernel for one in (*self.passes, *self.passes_apart))
        return common_values.of([self.kernels.forward, *back], names)

    def reset(self, given: Input) -> str:
        """Text of the largest value of a running sum's input that begins a document."""
        return running_sums.reset(self.spec, given)

    def scan_texts(self, given: Input) -> tuple[str, str]:
        """The host's texts that pass an input to the scan, and bring the result back to the input's axes."""
        return scan_view(given, self.spec)

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The parts of the backward pass."""
        return self.back.all

    @cached_property
    def passes_apart(self) -> tuple[Pass, ...]:
        """Those that compute gradients of inputs apart from the others, whichever kernels compute these."""
        return tuple(self.back.apart)

    @property
    def continues(self) -> bool:
        """Whether something is left to do after the kernels for Hopper GPUs that compute gradients at once."""
        at_once = self.hopper is not None and self.hopper.backward is not None
        return bool(self.summed_at_once) or (at_once and bool(self.passes_apart))

    @property
    def tabled(self) -> ByDistance | None:
        """What portable kernels read by distance, if there is anything."""
        return self.by_distance.portable if self.by_distance else None

    @property
    def made_back(self) -> tuple[str, ...]:
        """The host's statements that evaluate it, and what else gradients need."""
        found = self.tabled.made_back(self.by_query.learned) if self.tabled else ()
        more = (f"{x} = {call} if wanted[{self.back.places[s]}] else {without}" for s, x, call, without in found)
        return (*(self.tabled.made if self.tabled else ()), *more)

    @property
    def room_for_sums(self) -> tuple[str, ...]:
        """The host's statements that allocate the gradients in `summed_at_once`."""
        return tuple(map(self.back.room, self.summed_at_once))


def build(spec: Spec) -> Plan:
    """Computes all that the templates print."""
    taken, divided, spec = arguments.build(spec), arguments.made_divisors(spec), in_code(spec)
    whole = SharedParameters(analyse(spec))
    every = by_distance.build(whole)
    parts = every.portable if every else None
    analysis = parts.analysis if parts else whole.analysis
    kernels = PackageKernels(analysis)
    apart = (*kernels.pairs, *((kernels.tables,) if kernels.tables else ()))
    all_terms = (analysis.by_query, analysis.by_key, *(one.terms for one in apart))
    helpers = {name for terms in all_terms for name in terms.helpers} | set(tile_ranges.helpers(spec))
    helpers |= {name for terms in all_terms for name in uniform_entries.of(terms).helpers}
    helpers |= {name for found in (analysis.key_states, analysis.query_states) if found for name in found.helpers}
    evaluated = every if hopper.serves(spec) else parts
    helpers |= evaluated.helpers if evaluated else set()
    tuned = tiles.tuned(spec.path)
    far = reach.build(spec) if analysis.keys.left and reach.hides_early_keys(spec) else None

    written = sections.build(kernels, frozenset(helpers), tuple(x for x in spec.inputs if x.default))
    names = frozenset(function.defines for section in written for function in section.functions) | {"LOG2E", "GRAIN"}
    on_hopper = hopper.build(whole, names, evaluated)
    decoding = decode.build(spec, taken, names)
    return Plan(
        spec,
        taken,
        divided,
        kernels,
        by_distance_file.build(evaluated, parts, on_hopper, names),
        written,
        tuned,
        variant_tiles.build(spec, kernels, on_hopper, far, tuned),
        far,
        on_hopper,
        decoding,
        latent_on_hopper.build(decoding, names),
        statistics.build(analysis.spec, names, analysis.by_query.by_distance),
    )
