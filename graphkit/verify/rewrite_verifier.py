"""The proof of a rewrite: original and result at several sizes of their dims, every output compared.

Normal forms come first. Where they show all outputs to be equal bit for bit, the original does not run: it is enough
that the rewritten model loads and runs once at onnxruntime's default level. Of float16, which onnxruntime rounds where
operators happen to meet, both run once. Else, or where such a run fails, there are all of the runs.

onnxruntime runs without graph optimizations, so that equal arithmetic gives equal bits; then the rewritten model once
more at the default level, with a tolerance of its own (see `graphkit.verify.proof_runs`). Functions that
onnxruntime has kernels for run inlined too. Weights of one name are compared byte by byte. Sizes are legal for both
models. Inputs of one boolean, such as `use_cache_branch`, get both values. Each model is loaded in a process of its
own, and fails if it ends that or takes too much. An original whose declared dims contradict its nodes runs with these
corrected, and a note tells that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from onnx import helper

from graphkit.dtypes import inline_array
from graphkit.equivalence.check import check_equivalence
from graphkit.equivalence.equivalence_summary import EquivalenceSummary, limited_equivalence
from graphkit.equivalence.interface import cut_open
from graphkit.equivalence.loading import loadable_copy, loading_refusal
from graphkit.equivalence.result import Equivalence, ExprPair
from graphkit.errors import ModelError
from graphkit.graph.names import join_words
from graphkit.graph.operator_traits import RANDOM
from graphkit.graph.view import Node, all_nodes, key_of
from graphkit.io.byte_source import source_of
from graphkit.model import Model, ModelLike, as_model
from graphkit.options import RewriteProofOptions
from graphkit.progress import Progress, portion_of, with_share
from graphkit.rewrite.base import copy_proto
from graphkit.runtime.session import RunError, Runner, as_provider, check_files, is_timeout
from graphkit.shapes import AS_DECLARED, DimSpec, declarations, infer, is_known
from graphkit.shapes.constraints.dim_equalities import RANK_OF, fed_inputs, fixed_by, solve_dims
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.shapes.graph_inputs import Inputs
from graphkit.verify.comparator import (
    element_counts,
    float16_tolerance,
    has_bfloat16,
    has_float16,
    level_tolerance,
    rounds_activations,
)
from graphkit.verify.feeder import KINDS, Feeder, Run
from graphkit.verify.input_elements import Kind
from graphkit.verify.interface_changes import Change, Part, computed_dims, find_narrowing, input_changes, output_changes
from graphkit.verify.proof_engine import Counted, fatal_error, repeat_calls, run_isolated
from graphkit.verify.proof_runs import (
    RunRecord,
    TwoModels,
    at_both_levels,
    compare_runs,
    coverage_text,
    proof_caveats,
    prove_level,
    run_original,
    unsteady_runs,
    with_empty_outputs,
    with_level,
    with_weights,
    with_zeros,
)
from graphkit.verify.rewrite_proof import RewriteProof, RunProof, SkippedRun, placement_fault
from graphkit.verify.run_sizes import LARGEST, Edges

if TYPE_CHECKING:
    from graphkit.verify.rounding import RoundingJudge

FLOAT16_NOTE = (
    "It has float16 tensors: onnxruntime computes with them in float32 and rounds where operators happen to meet, "
    "so that bits may differ."
)
KERNELS = ("", "ai.onnx", "com.microsoft")  # domains of the operators that onnxruntime runs without a function
LARGE = 1 << 28  # bytes of a model that is not loaded for a dim of 0 alone, where it is proven at every other size
NO_KERNELS = "the roundings of bfloat16, for which onnxruntime has no kernels, so that both ran in float32"
NOT_IMPLEMENTED = "Could not find an implementation"  # a part of onnxruntime's message
SEEDED = "random numbers other than those of the seeds that both models were given"
UNSTEADY = "it gives other outputs each time"


def verify_rewrite(
    original: ModelLike,
    rewritten: ModelLike,
    spec: DimSpec = AS_DECLARED,
    options: RewriteProofOptions = RewriteProofOptions(),
    *,
    progress: Progress = lambda _: None,
) -> RewriteProof:
    """Run a model and its rewrite at several sizes, and compare outputs: see `graphkit.verify.rewrite_verifier`.

    Args:
        original: A model file, which onnxruntime then reads itself; or a model as it is in memory.
        rewritten: The rewritten model, as a file or in memory too. It may lack inputs, but no outputs.
        spec: The known facts about the original's input dims.
        options: How to prove it.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof: `proof.passed` says whether it holds. An original that never runs fails it, and so does a random
        operator that cannot be given a seed.

    Raises:
        UsageError: The models have not the same inputs, or a symbol or input does not exist.
        ModelError: A data file is missing, onnxruntime does not load the original, or no input can be made for it.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> graphkit.verify_rewrite(model, graphkit.fold(model).model).passed
        True
    """
    with run_isolated(options.limits):
        models = _load_source(original), _load_source(rewritten)
        sources = _runtime_source(original, models[0]), _runtime_source(rewritten, models[1])
        return RewriteVerifier(models, sources, spec, options, progress).run()


def verify_extract(
    original: ModelLike,
    extracted: ModelLike,
    spec: DimSpec = AS_DECLARED,
    options: RewriteProofOptions = RewriteProofOptions(),
    *,
    progress: Progress = lambda _: None,
) -> RewriteProof:
    """Run a model at several sizes, feed its values to a subgraph of it, and compare the outputs of that.

    Args:
        original: A model file, or a model as it is in memory.
        extracted: The same of the subgraph, whose values have the names that they have in the original.
        spec: The known facts about the original's input dims.
        options: How to prove it.
        progress: Called with the name of each step before it starts.

    Returns:
        The proof: `proof.passed` says whether it holds.

    Raises:
        UsageError: The original has no values of these names, or inputs of other dtypes or ranks.
        ModelError: A data file is missing, onnxruntime does not load the original, or no input can be made for it.

    Example:
        >>> from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
        >>> model = graphkit.load("example:causal-attention")
        >>> part = ExtractSubgraph(outputs=("logits",), inputs=("/norm/LayerNormalization",)).run(model).model
        >>> graphkit.verify.verify_extract(model, part).passed
        True
    """
    from graphkit.rewrite.new_interface import with_exposed

    with run_isolated(options.limits):
        before, after = _load_source(original), _load_source(extracted)
        cuts = tuple(name for name in fed_inputs(after) if name not in fed_inputs(before))
        part = Part(cuts, tuple(value.name for value in after.graph.outputs))
        exposed = with_exposed(before, (*part.cuts, *part.ends))
        sources = exposed, _runtime_source(extracted, after)
        return RewriteVerifier((exposed, after), sources, spec, options, progress, part).run()


class RewriteVerifier:
    """A proof of a rewrite to run; its spec, options and progress are those of `verify_rewrite`.

    Args:
        models: The original, and what was made of it.
        sources: What onnxruntime is to load of each.
        part: Which part of the original the other model is; None for a rewrite of the whole.

    Attributes:
        fixed: Dims that the rewritten model fixes.
        unsure: Dims that depend on data, which it fixes too.
        blank: The proof before anything ran.
        gaps: What the runs do not cover, at whatever sizes.
        unlike: Runs of the original at which dims of one name differ, which a claim need not be about.
        begun: What waits for the rewritten model, which is loaded while its normal forms are made.

    Raises:
        UsageError: They have not the same inputs, or a symbol or input does not exist.
    """

    def __init__(
        self,
        models: tuple[Model, Model],
        sources: tuple[Path | Model, Path | Model],
        spec: DimSpec,
        options: RewriteProofOptions,
        progress: Progress,
        part: Part | None = None,
    ) -> None:
        (before, after), (source, target) = models, sources
        names = {new: old for old, new in options.names}
        if names:
            from graphkit.rewrite.new_interface import with_names  # which few proofs need

            after = with_names(after, names)
        seeded = _with_seeds(before, after) if part is None else None
        if seeded is not None:
            before, after = source, target = seeded
        declared, contradictions = declarations(before).model, declarations(before).notes
        source = source if declared is before else declared  # onnxruntime plans its memory by symbols that are equal
        before, after = declared, declarations(after).model
        if (copy := loadable_copy(before)) is not None:
            source = copy.model
        copies = None  # in float32, of models in bfloat16 that onnxruntime has no kernels for
        if any(map(has_bfloat16, (before, after))) and NOT_IMPLEMENTED in loading_refusal(before):
            from graphkit.verify.rounding import bfloat16_in_float32  # which few proofs need

            wide = bfloat16_in_float32(before), bfloat16_in_float32(after)
            copies = None if wide[0] is None or wide[1] is None else (wide[0], wide[1])
        source, target = copies or (source, target)
        arrays = {name: np.asarray(value) for name, value in options.values.items()}
        spec = DimSpec.of(inputs={name: array.shape for name, array in arrays.items()}) | spec
        cuts = part.cuts if part is not None else ()
        fixed, spec = fixed_by(before, after, spec, computed_dims(before, cuts))
        # those that depend on data: no size of an input tells whether they hold
        self.unsure = [pair for pair in fixed if not (is_known(pair.dim) and is_known(pair.size))]
        self.fixed = [pair for pair in fixed if pair not in self.unsure]
        numbers, relations = solve_dims(self.fixed, Inputs(before, spec).numbers)
        titles = (before.name, after.name) if before.name != after.name else (before.label, after.label)
        provider = as_provider(options.provider)
        is_default = options.tolerance is None and has_float16(before) and copies is None and provider.is_cpu
        tolerance = options.tolerance or (float16_tolerance(before) if is_default else 0.0)
        of_magnitude = options.of_magnitude or is_default
        if not provider.is_cpu and options.tolerance is None:
            tolerance, of_magnitude = max(level_tolerance(model, provider) for model in models), True
        self.blank = RewriteProof(
            *titles, tolerance=tolerance, fixed=numbers, of_magnitude=of_magnitude, provider=str(provider)
        )
        legal = legal_sizes(before, spec | DimSpec.of(numbers), relations)
        kinds: Sequence[Kind] = KINDS if not tolerance else ("edges",)
        others = (after,) if part is None or part.branch is not None else ()
        is_unpadded = options.is_unpadded
        feeder = Feeder(before, legal, arrays, options.seed, others=others, kinds=kinds, is_unpadded=is_unpadded)
        inputs = frozenset(value.name for value in after.graph.inputs)
        self.two = TwoModels((source, target), (before, after), feeder, inputs, names, part=part, provider=provider)
        self.spec, self.options, self.progress = spec, options, progress
        of_copy, of_float16 = [copy.note] if copy is not None else [], [FLOAT16_NOTE] if is_default else []
        self.notes = (*contradictions, *of_copy, *of_float16)
        self.gaps = (*[NO_KERNELS] * (copies is not None), *[SEEDED] * (seeded is not None))
        self.unlike: Sequence[Run] = ()
        self.begun: list[Callable[[], Runner]] = []

    def run(self) -> RewriteProof:
        """Run both models, and compare."""
        part, (before, after) = self.two.part, self.two.models
        if part is not None and (fault := part.fault(after)):
            return replace(self.blank, failures=(fault,))
        whole = before if part is None else after
        random = next(chain(_unseeded_nodes(whole), _unseeded_nodes(after)), None)
        if random is not None or not whole.graph.outputs:
            what = "the original has no outputs" if random is None else f"'{random.path}' is random ({random.op_type})"
            return replace(self.blank, failures=(f"{what}, so nothing can be proven",), is_unrun=True)
        if not self.two.provider.is_cpu:  # what normal forms say of the models is not what a device makes of them
            return self._test_runs(self.options.runs)
        is_run_once = not part and not has_float16(before)
        self.begun = [self.two.begin_loading()] if is_run_once else []
        forms = self.forms
        shown = EquivalenceSummary.of(forms)
        if shown.is_exact:
            proof = self._run_once() if is_run_once else self._test_runs(1, has_edges=False)
            feeder, ran = self.two.feeder, [dict(run.dims) for run in proof.runs]
            found = (Edges(feeder, each, ran, forms.differing).where_models_differ() for each in feeder.flags())
            # models may part at sizes that people have, or where one of them turns
            ends_early = any(limit.most < LARGEST[0] for limit in forms.limits)
            if proof.passed and (ends_early or any(edge.choices for edges in found for edge in edges)):
                proof = self._test_runs(1, has_edges=ends_early, differing=forms.differing)
            if proof.passed and any(proof.largest):  # float16 is rounded elsewhere: the runs measure that
                forms = forms.without_rounding()
            elif proof.passed and _proven_at(forms, proof) is forms:
                return replace(proof, equivalence=shown)
        self.begun.clear()
        proof = self._test_runs(self.options.runs, differing=forms.differing)
        return replace(proof, equivalence=EquivalenceSummary.of(_proven_at(forms, proof))) if proof.passed else proof

    def _run_once(self) -> RewriteProof:
        """Run the rewritten model once at the default level, where it is known what it gives."""
        (before, after), feeder = self.two.models, self.two.feeder
        self._tell_step(0.3, "loading the rewritten model, default level")
        try:
            session = self.begun.pop()()
        except ModelError as error:
            return replace(self.blank, failures=(error.problem,), is_unrun=is_timeout(error))
        self._tell_step(0.85, "running it once")
        record = run_original(session, feeder, 1, has_edges=False)
        del session  # so that the two are not in memory at once
        # no length is too short for a caller, and normal forms begin at 1
        is_large = sum(source_of(path).size for path in before.files) > LARGE
        agrees, refused = (True, {}) if is_large else self._beside_original(record)
        if not agrees:
            return self._test_runs(1, has_edges=False)
        changes = self._input_changes()
        changes += output_changes(before, after, record.runs, [feeder.shapes(run) for run in record.runs])
        runs = tuple(RunProof(run.dims, run.flags, run.seed, None, None, "") for run in record.runs)
        proof = replace(self._begun_proof(record, is_exact=True), runs=runs)
        same = [run for run in record.empty if join_words(run.empty) not in refused]
        zeros = dict.fromkeys(chain.from_iterable(run.empty for run in [*same, *(record.refused if is_large else ())]))
        if is_large and zeros:
            proof = proof.plus(caveats=[f"{join_words(list(zeros))} of 0, at which so large a model is not compared"])
        proof = with_zeros(proof, () if is_large else zeros, refused)
        names = record.runs[0].expected if record.runs else ()
        empty = [name for name in names if not any(element_counts(run.expected[name])[1] for run in record.runs)]
        return with_empty_outputs(_with_interface(proof, changes), empty, self.empty_outputs)

    def _begun_proof(self, record: RunRecord, *, is_exact: bool) -> RewriteProof:
        feeder = self.two.feeder
        return replace(
            self.blank,
            notes=(*self.notes, *record.notes),
            coverage=coverage_text(feeder, record.runs),
            caveats=(*self.gaps, *proof_caveats(feeder, record, is_exact=is_exact)),
        )

    def _beside_original(self, record: RunRecord) -> tuple[bool, dict[str, None]]:
        """Return whether the original gives the same with dims of 0, and the dims with a 0 that it alone takes."""
        two, agrees, taken = self.two, True, dict[str, None]()
        if not (record.empty or record.refused):
            return agrees, taken
        self._tell_step(0.9, "loading the original, to see what it gives with dims of 0")
        with suppress(ModelError):
            session = two.original()
            found = [*repeat_calls(record.empty, lambda run: session.run(two.feed(run)))]
            for run in record.refused:
                with suppress(RunError):
                    session.run(two.feed(run))
                    taken[join_words(run.empty)] = None
            bare = [o for o in found if not element_counts([*o.call.expected.values(), *o.actual.values()])[0]]
            taken |= {join_words(each.call.empty): None for each in bare if not all(d.exact for d in each.differences)}
            differences = [d for outcome in found if outcome not in bare for d in outcome.differences]
            agrees, tolerance = all(each.within(0.0) for each in differences), level_tolerance(two.models[0])
            if not agrees and all(each.within(tolerance, of_magnitude=True) for each in differences):
                plain = two.rewritten_session()  # the default level may have rounded
                ran = [replace(outcome.call, expected=outcome.actual) for outcome in found if outcome.error is None]
                again = repeat_calls(ran, lambda run: plain.run(two.known(run)))
                agrees = all(o.error is None and all(each.within(0.0) for each in o.differences) for o in again)
        return agrees, taken

    def _tell_step(self, share: float, step: str) -> None:
        self.progress(with_share(share, f"proving: {step}"))

    def _test_runs(self, count: int, *, has_edges: bool = True, differing: Sequence[ExprPair] = ()) -> RewriteProof:
        two, feeder = self.two, self.two.feeder
        self._tell_step(0.3, "loading the original")
        total, progress = count * len(feeder.flags()), portion_of(self.progress, 0.4, 0.6)
        session = Counted(two.original(), "proving: the original, plain level", total, progress)
        record = run_original(session, feeder, count, has_edges=has_edges, differing=differing)
        del session  # so that the two are not in memory at once
        changes = self._input_changes()
        proof = self._begun_proof(record, is_exact=not has_edges or not self.blank.tolerance)
        proof = replace(proof, skipped=tuple(record.skipped))
        self.unlike = record.unlike
        if not record.runs:
            for run, problem in record.fatal:
                raise fatal_error(two.models[0], two.feed(run), problem)
            reason = "the original runs at no sizes that were tried, so nothing is proven"
            return replace(proof, failures=(reason,), is_unrun=True)
        self._tell_step(0.6, "loading the rewritten model")
        return self._compare_models(proof, [*record.runs, *record.empty], changes)

    @cached_property
    def forms(self) -> Equivalence:
        """The equivalence by normal forms: it holds at every size and for every input."""
        self._tell_step(0.0, "normal forms of both models")
        (before, after), part = self.two.models, self.two.part
        try:
            if part is not None and part.branch is None:
                before = cut_open(before, after, computed_dims(before, part.cuts))
        except ModelError as error:
            return Equivalence.unknown((value.name for value in after.graph.outputs), str(error))
        if self.unsure:
            pair = self.unsure[0]
            what = "the rank" if str(pair.dim).startswith(RANK_OF) else "a dim"
            reason = f"{what} of input {pair.name} depends on data: it is not known that it is {pair.size}"
            return Equivalence.unknown((value.name for value in after.graph.outputs), reason)
        check = partial(
            check_equivalence,
            before,
            after,
            narrower=bool(self.fixed or self.options.symbols) or part is not None,
            unread=[] if part is None else part.unread(before),
            unwritten=[] if part is None else part.unwritten_outputs(before),
            values=self.options.values,
            seed=self.options.seed,
            computed=() if part is None else part.cuts,
        )
        return limited_equivalence(check, after, self.options.limits.seconds)

    def _input_changes(self) -> list[Change]:
        (before, after), part = self.two.models, self.two.part
        symbols = {new: old for old, new in self.options.symbols}
        changes = input_changes(before, after, list(self.options.values), symbols) if part is None else []
        fixed = self.fixed  # a branch may take one size alone: a step takes one token
        if part is not None and part.branch is not None:
            fixed = [pair for pair in fixed if pair.size.constant is None]
        open_original, feeder = self.two.original, self.two.feeder
        return changes + find_narrowing(open_original, feeder, after, fixed, self.spec, self.options.symbols)

    def _compare_models(self, proof: RewriteProof, runs: Sequence[Run], changes: list[Change]) -> RewriteProof:
        """Run the rewritten model on the inputs of the original, at both levels, and compare the weights."""
        from graphkit.verify.weight_comparison import changed_weights  # which what is proven bit for bit needs not

        two, (before, after), rounding, blank = self.two, self.two.models, self.rounding_judge, proof
        proof, steady = self._compare_plainly(proof, runs)
        if rounding is not None and not rounding.is_half and rounding.explained and not proof.passed:
            rounding.excuses = True
            proof, steady = self._compare_plainly(blank, runs)
        if two.provider.is_cpu:
            proof = self._prove_inlined(proof, steady)
        if two.part is None:
            changes += output_changes(before, after, steady, [two.feeder.shapes(run) for run in steady])
        proof = _with_interface(proof, changes)
        self.progress(with_share(0.8, "comparing the weights"))
        is_rounded = rounding is not None and not rounding.is_half and bool(rounding.explained)
        weights = two.part.weights(after) if two.part is not None else None
        weights = weights or changed_weights(before, after, only_partly_read=is_rounded)
        proof = with_weights(proof, weights, is_exact=not self.options.tolerance)
        if not two.provider.is_cpu:
            fault, hint = placement_fault(two.placed, two.provider), f"compare A B --provider B={two.provider}"
            notes = [] if proof.passed else [f"`graphkit {hint}` names the layer at which the two part."]
            return replace(proof.plus(failures=filter(None, [fault]), notes=notes), placed=dict(two.placed))
        proof = self._at_default(proof, at_both_levels(steady)) if proof.passed else proof
        if rounding is None or not rounding.explained:
            return proof
        if not rounding.is_half:
            tolerance = max(proof.tolerance, rounding.tolerance)
            proof = replace(proof, tolerance=tolerance, of_magnitude=True, is_rounded=True)
        return proof.plus(caveats=rounding.caveats(), notes=[rounding.note()])

    def _prove_inlined(self, proof: RewriteProof, runs: Sequence[Run]) -> RewriteProof:
        """Add to a proof the runs of the rewritten model with such functions inlined as onnxruntime has kernels for.

        Functions that the original calls as often are its own: what onnxruntime has for them is what its users get.
        """
        before, after = self.two.models
        called, was = _count_calls(after), _count_calls(before)
        if not proof.passed or all(count <= was[key] for key, count in called.items()):
            return proof
        from graphkit.passes.control_flow.inline_functions import InlineFunctions  # which few proofs need

        self.progress("proving: the rewritten model with its functions inlined")
        inlined = InlineFunctions().run(after)
        if _count_calls(inlined.model):
            reasons = "; ".join(map(str, inlined.declined))
            return replace(proof, failures=(f"its functions cannot be inlined, as other runtimes do: {reasons}",))
        two = structs.replace(self.two, sources=(self.two.sources[0], inlined.model), models=(before, inlined.model))
        result = self._run_rewritten(proof, runs, two)
        if result.failures:
            condition = "with its functions inlined, as other runtimes run it"
            return replace(proof, failures=tuple(f"{condition}: {failure}" for failure in result.failures))
        worst = max((output.absolute or 0.0 for output in result.outputs), default=0.0)
        verdict = f"differ by at most {worst:.3g}" if worst else "are equal to the last bit"
        return proof.plus(notes=[f"With its functions inlined, as other runtimes run it, outputs {verdict}."])

    @cached_property
    def rounding_judge(self) -> RoundingJudge | None:
        """The judge of differences above the tolerance, None where there are none that it may excuse."""
        if self.two.part is not None or not self.two.provider.is_cpu:
            return None
        from graphkit.verify.rounding import RoundingJudge  # which what is proven bit for bit needs not

        if self.blank.tolerance and has_float16(self.two.models[0]):
            return RoundingJudge(self.two, is_half=True, progress=self.progress)
        is_asked = self.options.exact or not (self.options.tolerance is None or self.options.of_magnitude)
        if is_asked or rounds_activations(self.two.models[0]):  # which may flip, and move by a step of 8 bits
            return None
        proven = [output.name for output in self.forms.proven]
        return RoundingJudge(self.two, is_half=False, proven=proven, progress=self.progress)

    @cached_property
    def empty_outputs(self) -> frozenset[str]:
        """The outputs that have no elements at any size, or in none of a merged decoder's later steps."""
        model = self.two.models[0]
        shapes, empty = infer(model, self.spec), model.roles.empty
        outputs = (v for v in model.graph.outputs if any(dim.constant == 0 for dim in shapes[v].dims or ()))
        return frozenset(value.name for value in (*empty, *outputs))

    def _compare_plainly(self, proof: RewriteProof, runs: Sequence[Run]) -> tuple[RewriteProof, Sequence[Run]]:
        """Compare without optimizations, and return the runs that count: those that the original repeats."""
        result = self._run_rewritten(proof, runs, self.two)
        if not any(run.failure for run in result.runs):
            return result, runs
        progress = portion_of(self.progress, 0.7, 0.8)
        again = Counted(self.two.original(), "proving: the original again", 2 * len(runs), progress)
        if not (unsteady := unsteady_runs(again, self.two.feeder, runs)):
            return result, runs
        proof = proof.plus(skipped=[SkippedRun(run.dims, run.flags, UNSTEADY) for run in unsteady])
        if not (steady := [run for run in runs if run not in unsteady]):
            return replace(proof, failures=("the original gives other outputs each time",)), steady
        proof = proof.plus(notes=[f"{len(unsteady)} runs of the original do not count."])
        return self._run_rewritten(proof, steady, self.two), steady

    def _at_default(self, proof: RewriteProof, runs: Sequence[Run]) -> RewriteProof:
        self._tell_step(0.85, "loading the rewritten model, default level")
        tolerance = max(level_tolerance(self.two.models[0]), self.options.tolerance or 0.0)
        progress, outputs = portion_of(self.progress, 0.9, 1.0), self.two.outputs(runs[0])
        sessions = self.two.at_default(len(runs), progress)
        if self.rounding_judge is not None and self.rounding_judge.is_half:
            return with_level(proof, prove_level(tolerance, runs, outputs, *sessions, self.rounding_judge.explains))
        moved = self.two.moved_originals(len(runs), progress)
        return with_level(proof, prove_level(tolerance, runs, outputs, *sessions, moved=moved))

    def _run_rewritten(self, proof: RewriteProof, runs: Sequence[Run], two: TwoModels) -> RewriteProof:
        try:
            session = two.rewritten_session()
        except ModelError as error:
            return replace(proof, failures=(f"the rewritten model: {error.problem}",), is_unrun=is_timeout(error))
        progress = portion_of(self.progress, 0.65, 0.8)
        counted = Counted(session, "proving: the rewritten model, plain level", len(runs), progress)
        proven = [output.name for output in self.forms.proven] if self.two.provider.is_cpu else []
        explains = (lambda *_: False) if self.rounding_judge is None else self.rounding_judge.explains
        what = two.known, two.outputs(runs[0]), self.empty_outputs, proven, explains
        proof = compare_runs(proof, runs, counted, *what)
        blank = replace(self.blank, tolerance=proof.tolerance)
        for run in self.unlike if proof.passed and two.part is None else ():
            (result,) = compare_runs(blank, [run], session, *what).runs
            if result.failure:
                return proof.plus(caveats=[f"unlike sizes of dims of one name, as at {run}, where the original runs"])
        return proof


def _count_calls(model: Model) -> Counter[tuple[str, str, str]]:
    functions = {(f.domain, f.name, f.overload) for f in model.proto.functions if f.domain in KERNELS}
    return Counter(key for node in all_nodes(model.scopes) if (key := key_of(node.proto)) in functions)


def _proven_at(forms: Equivalence, proof: RewriteProof) -> Equivalence:
    """Return what is proven, of the sizes at which both models ran."""
    return forms.at([{**proof.fixed, **run.dims} for run in proof.runs])


def _with_interface(proof: RewriteProof, changes: Sequence[Change]) -> RewriteProof:
    failures = [change.text for change in changes if change.narrows]
    harmless = tuple(change.text for change in changes if not change.narrows)
    proof = proof.plus(caveats=[change.gap for change in changes if change.gap], failures=failures)
    return replace(proof, interface=harmless)


def _with_seeds(before: Model, after: Model) -> tuple[Model, Model] | None:
    """Return both models with a seed for each node that draws random numbers without one; None if these differ."""
    drawn = [{(node.op_type, *node.proto.output) for node in _unseeded_nodes(model)} for model in (before, after)]
    seeds = {key: float(seed) for seed, key in enumerate(sorted(drawn[0]), start=1)}
    if not seeds or not drawn[1] <= drawn[0] or any("Dropout" in op for op, *_ in seeds):
        return None
    protos = copy_proto(before), copy_proto(after)
    for node in (node for proto in protos for node in proto.graph.node):
        if (seed := seeds.get((node.op_type, *node.output))) is not None:
            node.attribute.append(helper.make_attribute("seed", seed))
    return before.with_proto(protos[0]), after.with_proto(protos[1])


def _unseeded_nodes(model: Model) -> Iterator[Node]:
    nodes = (node for node in all_nodes(model.scopes) if node.operator in RANDOM)
    return (node for node in nodes if "seed" not in node.attributes and _draws_random_numbers(node))


def _load_source(source: ModelLike) -> Model:
    model = as_model(source)
    check_files(model)
    return model


def _runtime_source(source: ModelLike, model: Model) -> Path | Model:
    """Return the source for onnxruntime to load: the file itself where there is one, to trust no reader of ours."""
    return model if isinstance(source, Model) or model.path is None else model.path


def _draws_random_numbers(node: Node) -> bool:
    """Whether a random operator draws: a Dropout does where an input says that this is training, or is no constant."""
    if "Dropout" not in node.op_type:
        return True
    if (flag := node.input(4 if "Bias" in node.op_type else 2)) is None:
        return False
    array = inline_array(flag.constant)
    return array is None or bool(array.any())
