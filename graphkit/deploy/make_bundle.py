"""Make a bundle of an export: methods over one state, laid out once and updated in place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from msgspec import Struct, field, structs
from onnx import TensorProto

from graphkit import hosts
from graphkit.analysis.bundle_overview import BundleOverview, overview_of
from graphkit.analysis.cost_changes import CostChange, cost_change_blocks
from graphkit.contract import BundleContract, BundledWith
from graphkit.contract.bundle_contract import LegalSize
from graphkit.deploy.bundle_description import Initial, described_methods, method_chains
from graphkit.deploy.bundle_layout import build_bundle, init_method, reorder_method, with_initial
from graphkit.deploy.bundle_methods import MethodModel, derive_methods, unpacked_logits
from graphkit.deploy.deploy_sizes import (
    DeploySizes,
    check_dtypes,
    check_request,
    check_source,
    resolve_sizes,
    with_input_sizes,
)
from graphkit.deploy.export_inputs import find_least_prompt
from graphkit.deploy.export_pipeline import Pipeline, TokenSettings, find_pipeline, read_token_settings
from graphkit.deploy.lowering_checks import check_prompt
from graphkit.deploy.write_proven import DeployFolder, bundling_costs, write_proven
from graphkit.equivalence.originals import Originals
from graphkit.errors import UsageError
from graphkit.graph.mask_polarity import POLARITIES
from graphkit.graph.names import name_of
from graphkit.io.byte_source import shown_path
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model
from graphkit.options import BundleOptions, DeploymentProofOptions, Update
from graphkit.progress import DEFAULT_LIMITS, Limits, Progress, portion_of, with_share
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.runtime.session import as_provider
from graphkit.shapes import infer
from graphkit.shapes.constraints.failing_sizes import find_triggers
from graphkit.shapes.constraints.size_grid import SizeRule
from graphkit.verify.bundle_verifier import verify_bundle
from graphkit.verify.deployment_proofs import BundleProof, with_device
from graphkit.verify.described_bundle_verifier import Chain, verify_methods
from graphkit.verify.proof_engine import run_isolated
from graphkit.verify.rewrite_proof import ProvenReport, proof_outcome

DATA = "bundle.data"
MADE, WRITTEN, PROVEN = 0.07, 0.09, 0.98  # shares of the work that are done then, of a model with large weights
JAVASCRIPT_HOST = Path(hosts.__file__).parent / "javascript" / "bundle.mjs"  # where a wheel has it
if not JAVASCRIPT_HOST.is_file():
    JAVASCRIPT_HOST = Path(__file__).parents[2] / "packages" / "js" / "src" / "bundle.mjs"
JAVASCRIPT_FILES = [JAVASCRIPT_HOST.with_name(f"{name}.mjs") for name in ("bundle", "folder", "tokens", "values")]


@dataclass(frozen=True)
class BundleReport(ProvenReport):
    """A bundle that was written: its origin, its methods and its proof.

    Attributes:
        source: The export.
        overview: The bundle.
        changes: What was done for each method, a sentence each.
        proof: None where it was not run.
        costs: Costs of each method, and of the models that it was made of.
    """

    title: ClassVar[str] = "Bundle"
    source: str
    overview: BundleOverview
    changes: tuple[tuple[str, str], ...]
    proof: BundleProof | None
    costs: tuple[CostChange, ...] = ()

    def blocks(self) -> Iterator[Block]:
        methods = ", ".join(method.name for method in self.overview.contract.methods)
        yield proof_outcome(f"Methods over one state: {methods}.", self.proof)
        yield from self.overview.blocks()
        yield Heading("What was done")
        yield table("Method:code | Change", self.changes)
        yield Heading("Proof")
        if self.proof is None:
            yield Prose("Not run: the bundle is unverified.", "warning")
        else:
            yield from self.proof.blocks()
        yield from cost_change_blocks(self.costs)


def bundle_folder(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str],
    options: BundleOptions = BundleOptions(),
    *,
    progress: Progress = lambda _: None,
) -> BundleReport:
    """Make a bundle of an export: write its methods, one data file and `bundle.json`; prove it.

        report = graphkit.bundle_folder("opus-mt-en-fr", "opus.bundle", graphkit.BundleOptions(max_cache=128))

    An encoder-decoder gets the methods `encode` (encoder, cross-attention cache and first step) and `step`, a
    decoder-only model `prefill` and `step`. `init` and `reorder` are made for each.

    Args:
        path: The folder of an export, or a model file.
        output: The folder to write to.
        options: Sizes, proof and files.
        progress: Called with the name of each step before it starts.

    Returns:
        The report; `report.proof.passed` says whether the proof holds. The files get their names when the proof has
        ended, whether it holds or not, and `bundle.json` says which.

    Raises:
        UsageError: The export has no state to share, or cannot be kept in slots, with the reason.
        OutputError: The files cannot be written; nothing is left behind.
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    path, output = Path(path), Path(output)
    check_request(path, output, options, [] if options.dry_run else [BundleContract.FILE])
    progress("reading")
    export = BundleExport.of(path, apart=options.encode_apart is True)
    progress("making the methods")
    if options.verify and not options.dry_run:
        check_dtypes(export.models)
    options = with_input_sizes(options, export.models)
    draft = _draft_bundle(export, options)
    proof = None

    def prove(stage: Path) -> BundleProof:
        told = portion_of(progress, WRITTEN, PROVEN)
        proof = export.prove(stage, DeploymentProofOptions(limits=options.limits), told, exact=draft.is_exact)
        if as_provider(options.provider).is_cpu or not proof.passed:
            return proof
        asked = DeploymentProofOptions(limits=options.limits, provider=options.provider)
        return with_device(proof, export.prove(stage, asked, progress, exact=False))

    if not options.dry_run:
        progress(with_share(MADE, "writing"))
        proof, _ = write_proven(output, draft.folder, prove if options.verify else None, overwrite=options.overwrite)
    changes = tuple((method.name, change) for method in draft.methods for change in method.changes)
    progress(with_share(PROVEN, "counting costs"))
    costs = tuple(bundling_costs(draft.methods, export.pipeline or export.chains, draft.sizes, output, options))
    return BundleReport(name_of(path), overview_of(name_of(output), draft.contract), changes, proof, costs)


class BundleDraft(Struct, frozen=True, eq=False):
    """A bundle before it is written: its methods, their sizes, the contract, and the model of each file."""

    methods: tuple[MethodModel, ...]
    sizes: DeploySizes
    contract: BundleContract
    models: Mapping[str, Model]

    @property
    def is_exact(self) -> bool:
        return all(method.is_exact for method in self.methods)

    @property
    def folder(self) -> DeployFolder:
        copied = {file.name: file.read_bytes() for file in JAVASCRIPT_FILES if self.contract.options.copy_host}
        return DeployFolder(self.contract, self.models, copied, "shared", DATA)


def bundle_again(export: BundleExport, used: BundledWith, *, limits: Limits = DEFAULT_LIMITS) -> BundleDraft:
    """Make the methods of an export once more, with the options that a contract records; nothing is written."""
    given = {name: value for name, value in vars(used).items() if value is not None}
    return _draft_bundle(export, BundleOptions(**{**given, "dims": tuple(used.dims.items())}, limits=limits))


def _draft_bundle(export: BundleExport, options: BundleOptions) -> BundleDraft:
    encoder, first, step = None, None, None
    if export.pipeline is not None:
        encoder, first, step = export.pipeline.encoder, export.pipeline.first, export.pipeline.step
    elif len(export.chains) == len(export.models) == 1 and export.models[0].roles.pasts:
        step = export.models[0]
    sizes = resolve_sizes(options, export.models, encoder=encoder, step=step, first=first)
    with run_isolated(options.limits):
        methods = export.methods(sizes, options.update)
    contract, arrays = with_initial(_make_contract(methods, export, sizes), export.initial)
    has_slots = any(state.update in ("slots", "ring") for state in contract.states)
    used = BundledWith(
        batch=sizes.batch,
        max_cache=sizes.slots if contract.lengths or not {"tokens", "slots"}.isdisjoint(contract.sizes) else None,
        max_source=sizes.source if "source" in contract.sizes else None,
        update=options.update if has_slots else BundledWith().update,
        encode_apart=options.encode_apart is True,
        copy_host=options.copy_host,
        dims=dict(sizes.dims),
    )
    generated = [init_method(contract, arrays)]
    if any(state.batch is not None for state in contract.states):  # of one row there is nothing to choose
        generated.append(reorder_method(contract))
    every = (*contract.methods, *(method for method, _ in generated))
    models = {method.file: method.model for method in methods} | {method.file: model for method, model in generated}
    return BundleDraft(methods, sizes, replace(contract, options=used, methods=every), models)


class BundleExport(Struct, frozen=True, eq=False, dict=True):
    """The source of a bundle: the models of an export, or the chains that a `bundle.toml` names."""

    pipeline: Pipeline | None  # the models of the export; None where there are chains
    chains: tuple[Chain, ...]  # the methods that a `bundle.toml` names, or those of models with recurrent state
    settings: TokenSettings  # what the export says of tokens
    initial: Initial = field(default_factory=dict)  # the initial values of states

    @classmethod
    def of(cls, path: Path, *, apart: bool = False) -> BundleExport:
        """Read an export; with its encoder apart, where that is asked for. Refuse one without state to share."""
        chains, initial = method_chains(path)
        if chains:
            if apart:
                raise UsageError("--encode-apart: its methods are as it describes them - leave the option out")
            return cls(None, chains, read_token_settings(path, has_encoder=False), initial)
        pipeline = find_pipeline(path)
        if pipeline.step is None:
            problem = "it has no decoder with a cache, so that there is no state to share"
            hint = "export one with a past; a model that runs once needs no bundle: fold or lower it"
            raise UsageError(f"{shown_path(path)}: {problem} - {hint}")
        pipeline.check_static_cache(path)
        return cls(pipeline.with_encoder_apart() if apart else pipeline, (), pipeline.settings)

    @property
    def models(self) -> Sequence[Model]:
        if self.pipeline is not None:
            return self.pipeline.models
        return [model for chain in self.chains for model in chain.models]

    @cached_property
    def decoders(self) -> Pipeline:
        """Its pipeline with the decoders apart, of which methods are made."""
        assert self.pipeline is not None
        return self.pipeline.with_decoders()

    def methods(self, sizes: DeploySizes, update: Update) -> tuple[MethodModel, ...]:
        for model, mask, polarity in ((each, *pair) for each in self.models for pair in each.roles.polarities.items()):
            if polarity not in ("keeps", None):
                raise UsageError(
                    f"{model.name}: its mask '{mask.name}' is {POLARITIES[polarity]}, and the hosts of bundles make it "
                    "1 for what counts - export it with such a mask"
                )
        if self.pipeline is None:
            methods = described_methods(self.chains, sizes.slots, update)
        else:
            if self.pipeline.encoder is not None:
                check_source(self.pipeline.encoder, sizes)
            methods = derive_methods(self.decoders, sizes.slots, update)
            methods = tuple(structs.replace(each, changes=(*self.pipeline.changes, *each.changes)) for each in methods)
        return tuple(map(unpacked_logits, methods)) if sizes.batch == 1 else methods

    def prove(self, folder: Path, options: DeploymentProofOptions, progress: Progress, *, exact: bool) -> BundleProof:
        """Prove a bundle that was made of it; refuse steps that do not read a prompt as the export does."""
        with run_isolated(options.limits):
            for chain in self.chains:
                check_prompt(Originals(None, chain.prompt, chain.models[0]))
        if self.pipeline is None:
            return verify_methods(self.chains, folder, options, exact=exact, initial=self.initial, progress=progress)
        return verify_bundle(self.pipeline.originals, folder, options, exact=exact, progress=progress)


def _make_contract(methods: Sequence[MethodModel], export: BundleExport, sizes: DeploySizes) -> BundleContract:
    opset = max(method.model.graph.opset() for method in methods)
    tensors = (tensor for method in methods for tensor, _ in walk_tensors(method.model.proto))
    has_data = any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors)  # small ones are in the models
    contract = build_bundle(methods, sizes, export.settings, DATA if has_data else "", opset)
    pipeline = export.pipeline
    encoder = pipeline.encoder if pipeline is not None else None
    rules = dict(_legal_inputs(encoder, contract)) if encoder is not None else {}
    if (prompt := _legal_prompt(export, contract)) is not None:
        rules["tokens"] = prompt
    kept = [each.name for each in fields(LegalSize) if each.name != "words"]
    legal = {
        name: LegalSize(**{each: getattr(rule, each) for each in kept}, words=str(rule)) for name, rule in rules.items()
    }
    loop = [*contract.loop]
    if pipeline is not None and pipeline.is_apart:
        loop.append("What encoder gives of the source is what prefill reads of it, with the mask of the source.")
    if pipeline is not None and pipeline.parts:
        image, names = contract.tokens.get("image"), [model.name.removesuffix(".onnx") for model in pipeline.parts]
        where = f" at tokens equal to {image}" if image is not None else ""
        rows = f"those of a picture go{where} in the place of others"
        loop.append(f"The rows that prefill takes come from {' and '.join(names)}: {rows}.")
    loop += [f"Give sizes at which the export runs: {name} is {size.words}." for name, size in legal.items()]
    return replace(contract, legal=legal, loop=tuple(loop))


def _legal_prompt(export: BundleExport, contract: BundleContract) -> SizeRule | None:
    """Return the legal lengths of a prompt where another model than that of later steps reads it; None for any."""
    steps = [port.shape for method in contract.methods if method.when == "step" for port in method.inputs]
    if any("tokens" in shape for shape in steps):
        return None
    if export.pipeline is not None:
        pair = export.decoders.first, export.decoders.step
    else:
        models = {chain.when: chain.models[0] for chain in export.chains if len(chain.models) == 1}
        pair = models.get("once"), models.get("step")
    first, step = pair
    if first is None or step is None or first is step:
        return None
    rule = dict(_legal_inputs(first, contract)).get("tokens", SizeRule("tokens", 1, 1, None))
    shortest = find_least_prompt(first, step)
    least = max(rule.least, -(-shortest // rule.step) * rule.step)
    if (rule.step, least, shortest) == (1, 1, 1) and rule.most is None:
        return None
    return structs.replace(rule, least=least, shortest=shortest)


def _legal_inputs(encoder: Model, contract: BundleContract) -> Iterator[tuple[str, SizeRule]]:
    """Yield the legal sizes of an encoder's inputs, by their names in the contract, where not all sizes are legal."""
    method, shapes = contract.method("encoder") or contract.method("once"), infer(encoder)
    rules = {rule.name: rule for rule in find_triggers(shapes).rules if rule.is_exact}
    ports = {port.name: port for port in method.inputs} if method is not None and rules else {}
    for value in encoder.graph.inputs:
        dims = (shapes[value].dims or ()) if value.name in ports else ()
        for dim, name in zip(dims, ports[value.name].shape if dims else (), strict=False):
            if (rule := rules.get(dim.declared)) is not None and isinstance(name, str) and name in contract.sizes:
                yield name, rule
