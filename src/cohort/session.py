"""A whole run: cold start, baseline evaluation, training, final evaluation, export, report.

The same function starts and resumes. It looks at what the run folder holds and does what is missing, so a run that was
killed anywhere, however often, ends with the same weights as one that was not.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.interrupts import handle_interrupts
from cohort.base.world import ALONE, World
from cohort.errors import Interrupted, RunError
from cohort.observe.early_stop import check_conditions
from cohort.observe.outcome import RunResult, begin_summary, describe_failure, explain_exit
from cohort.observe.run_folder import RunFolder, find_losses, make_paths_absolute
from cohort.recipe.describe import describe_algorithm, describe_template
from cohort.recipe.rules import list_trusted_sources, list_warnings
from cohort.recipe.schema import Recipe
from cohort.recipe.user_functions import resolve_recipe
from cohort.recipe.values import Materials
from cohort.rewards.runner import RewardRunner
from cohort.training import agreement

if TYPE_CHECKING:
    from cohort.data.prompts import PromptStream
    from cohort.evaluation.evaluate import Evaluation
    from cohort.model.optim import MasterWeights
    from cohort.model.policy import Policy
    from cohort.training.build import EncodedData
    from cohort.training.parts import Parts
    from cohort.training.state import TrainState


def start(recipe: Recipe, materials: Materials | None = None) -> RunResult:
    """Begin a run; under torchrun, with all of its processes. One that torchrun has restarted goes on where it was."""
    recipe = make_paths_absolute(recipe)
    world = agreement.find_world(lambda: recipe.parallel.limit_s)
    if world.earlier_run and (Path(world.earlier_run) / "recipe.toml").is_file():
        return _resume(world.earlier_run, materials, world)
    with agreement.end_together(world):
        agreement.compare_ranks(world, lambda: agreement.list_launch_facts(recipe))
        folder = agreement.claim_folder(world, lambda: RunFolder.create(recipe))
        try:
            return agreement.share_result(world, _execute(folder, recipe, materials, world))
        except Exception:
            folder.discard()
            raise


def resume(root: str | Path, materials: Materials | None = None) -> RunResult:
    return _resume(root, materials, agreement.find_world(lambda: RunFolder.open(root).recipe().parallel.limit_s))


def _resume(root: str | Path, materials: Materials | None, world: World) -> RunResult:
    with agreement.end_together(world):
        folder = agreement.claim_folder(world, lambda: agreement.lock_folder(root))
        summary = world.on_main(folder.read_summary)
        if summary.get("status") == "finished":
            folder.unlock()
            return RunResult(folder.root, "finished", summary)
        recipe = folder.recipe()
        agreement.compare_ranks(world, lambda: agreement.list_launch_facts(recipe))
        return agreement.share_result(world, _execute(folder, recipe, materials, world))


def _execute(folder: RunFolder, recipe: Recipe, materials: Materials | None, world: World = ALONE) -> RunResult:
    # Reward workers start before torch is imported: they are small, and nothing of CUDA or of thread pools leaks into them.
    try:
        with (
            handle_interrupts(joint=world.size > 1, apart=recipe.parallel.shard == "none"),
            RewardRunner.for_run(recipe, materials.functions if materials else {}) as rewards,
        ):
            rewards.world = world
            return Session(folder, recipe, rewards, materials, world).run()
    except Interrupted as signal:  # before the phases began, or after they had ended
        if world.is_main and recipe.monitors.console:  # which may not be there yet
            print(f"{signal}: ended at once. Go on with: cohort resume {folder.root}")
        summary = begin_summary(recipe) | folder.read_summary() | {"status": "interrupted"}
        folder.write_json(folder.summary_file, summary)
        return RunResult(folder.root, "interrupted", summary)
    finally:
        folder.unlock()


class Session:
    """The phases of one run. Everything that lasts is in the folder; an instance only walks through it."""

    def __init__(
        self, folder: RunFolder, recipe: Recipe, rewards: RewardRunner, materials: Materials | None, world: World = ALONE
    ):
        from cohort.observe.monitors import build_monitors
        from cohort.observe.monitors.base import Monitors
        from cohort.training.state import add_missing_fields

        self.world, self.started = world, time.monotonic()
        recipe = resolve_recipe(recipe)
        check_conditions(recipe)
        folder.keep_own_functions(recipe.algorithm)
        self.folder, self.recipe, self.rewards = folder, recipe, rewards
        self.materials = materials or Materials()
        self.found = agreement.find_checkpoint(world, folder.checkpoints)
        self.saved = add_missing_fields(self.found.snapshot.document) if self.found else {}
        # Rows of steps that this process is about to repeat are cut off, so that no step appears twice.
        done = self.saved.get("step", 0)
        again = 0 if self.found else len(folder.metrics())
        self.monitors = Monitors([])
        if world.is_main:
            self.monitors = build_monitors(recipe, folder.root, resume_step=done, handed_in=self.materials.monitors)
        if again:
            self._say(f"warning: checkpoints/ holds none: starting anew, with the {again} steps that were done before")

    def _say(self, *sentences: str) -> None:
        for sentence in sentences:
            self.monitors.on_message(sentence)

    def run(self) -> RunResult:
        """Walk through what is missing. However it ends, what was earned is saved and the folder says how it ended."""
        from cohort.ops import determinism, products

        with determinism.deterministic(self.recipe.train.deterministic), products.restore_products():
            return self._run()

    def _run(self) -> RunResult:
        self._write_summary("running")
        state: TrainState | None = None
        parts: Parts | None = None
        with self.monitors:
            try:
                assembled = self.assemble()
                self._preflight(*assembled)
                parts, state, encoded = assembled  # from here on there is something to save; before, the name stays free
                self._cold_start(parts, state, encoded)
                self._evaluate_if_missing("before", parts, state)
                self._train(parts, state, encoded)
                parts.policy.save(self.folder.model, merge=self.recipe.model.lora.merge)
                self._evaluate_if_missing("after", parts, state)
                return self._finish("finished", parts, state)
            except Interrupted as signal:
                self._say(f"{self._save_last_state(parts, state, signal)}. Go on with: {self._resume_command()}")
                return self._finish("interrupted", parts, state)
            except (Exception, SystemExit) as happened:
                problem = self.world.explain(explain_exit(happened) if isinstance(happened, SystemExit) else happened)
                self.world.fail(problem)
                self._save_last_state(parts, state)
                self._finish("failed", parts, state, error=problem)
                raise problem from problem.__cause__

    # -- building ------------------------------------------------------------------------------------------------------

    def assemble(self) -> tuple[Parts, TrainState, EncodedData]:
        import torch

        from cohort.model.optim import Adding
        from cohort.training import build
        from cohort.training.handed_in import keep_rows
        from cohort.training.parts import Clock, Parts
        from cohort.training.run_weights import replace_sources, settle_models

        sources, settled = self.world.on_main(lambda: settle_models(self.recipe, self.folder, self.materials.model))
        recipe = self.recipe = replace_sources(self.recipe, sources)
        self._say(*settled)
        if recipe.train.num_steps:
            iterations = recipe.reward_model.iterations
            learned = f"; the reward is a learned model's, fitted {iterations} times" if iterations else ""
            self._say(f"algorithm {describe_algorithm(recipe.algorithm, recipe.teacher)}{learned}")
        for source in list_trusted_sources(recipe):
            self._say(
                f"trust_remote_code: Python code that ships with {source} runs here, with your rights and outside of every jail"
            )
        self._say(*(f"warning: {warning}" for warning in list_warnings(recipe)))
        self._say(*filter(None, [describe_template(recipe.prompts)]))
        self.materials = keep_rows(recipe, self.folder, self.materials, self._say)
        data = build.load_data(recipe, self.materials)
        self._say(*data.notes)
        policy = build.load_policy(recipe, data)
        sampling = build.make_training_sampling(recipe, policy)
        encoded = build.encode_data(recipe, data, policy, sampling)
        policy.world = self.world
        threads, exact = torch.get_num_threads(), build.adds_exactly(recipe, self.saved.get("sums"))
        agreement.compare_ranks(self.world, lambda: agreement.list_run_facts(recipe, policy.model, encoded, threads * exact))
        self._say(*agreement.describe_ranks(self.world, policy.device, threads, exact, self.saved.get("threads")))
        products = build.settle_products(recipe, policy, self.saved.get("products", ""), self.folder)
        policy.hold_lengths(build.find_longest_sequence(recipe, encoded, sampling))
        weights = build.make_weights(recipe, policy, Adding(exact, self.world))
        stream = build.make_stream(recipe, encoded)
        state = self._make_or_restore_state(policy, weights, encoded, stream)
        engine, sentence = build.make_engine(recipe, policy, self.folder.root, self._say)
        build.refuse_ahead(recipe, engine, self.world.is_alone)
        trained = policy.prepare(recipe.model.kernels, recipe.train.activation_checkpointing)
        # The fewest that any rank has room for: another number could flip near-ties.
        slots = state.slots or -self.world.max(-build.choose_slots(recipe, engine, encoded.train, sampling))
        state.slots = engine.slots = slots
        state.products, state.sums, state.threads = products, "exact" if exact else "fast", threads
        self._say(f"policy of {policy.num_parameters / 1e6:.2f} M parameters; {sentence}; {trained}")
        self._say(*agreement.describe_company(self.world, exact, engine.name, engine.capabilities.steady))
        self._say(*policy.notes, *build.describe_adapter(recipe, policy))
        for name, report in encoded.reports.items():
            if name == "prompts" or report.too_long or report.with_unknown:
                self._say(f"{name}: {report}")
        self._say(*self.rewards.notes)
        self.rewards.on_progress, self.rewards.on_sampled = self.monitors.on_scoring, self.monitors.on_sampling
        parts = Parts(
            recipe=recipe,
            folder=self.folder,
            policy=policy,
            engine=engine,
            engine_words=sentence,
            rewards=self.rewards,
            stream=stream,
            sampling=sampling,
            evaluation_sets=encoded.sets,
            monitors=self.monitors,
            clock=Clock(state.seconds, self.started),
            world=self.world,
        )
        return parts, state, encoded

    def _make_or_restore_state(
        self, policy: Policy, weights: MasterWeights, encoded: EncodedData, stream: PromptStream
    ) -> TrainState:
        """The state of the newest whole checkpoint, or the beginning."""
        from cohort.model.lora import digest_base
        from cohort.training import read_again
        from cohort.training.state import TrainState
        from cohort.training.training_parts import make_optimizer

        phase = self.saved.get("phase", "cold_start" if self.recipe.cold_start.num_steps else "train")
        state = TrainState(optimizer=make_optimizer(weights, self.recipe, phase), phase=phase)
        state.data_digest, state.kl_coef = encoded.digest(), self.recipe.algorithm.kl_coef
        files = read_again.read_files(self.recipe, policy.model)
        if self.found:
            state.base_digest = digest_base(policy.model, like=self.saved["base_digest"]) if policy.adapter else ""
            self._say(*(f"warning: {sentence}" for sentence in read_again.mention_changes(self.saved, self.recipe, files)))
            read_again.refuse_mixtures(self.saved, state, encoded, self.recipe, files)
            name = self.found.folder.name
            self._say(*(f"warning: {problem}; using {name} instead" for problem in self.found.problems))
            state.restore(self.found.snapshot, {prompt.index: prompt for prompt in stream.prompts}.__getitem__)
            # Of what was read the document alone is looked at again; the weights would stay in the host's memory for the whole run.
            self.found = replace(self.found, snapshot=replace(self.found.snapshot, tensors={}))
            self._say(f"resuming from {name}")
            self._restore_baseline_and_warn(state)
        elif policy.adapter:
            state.base_digest = digest_base(policy.model)
        read_again.write_down(state, encoded, self.recipe, files)
        return state

    def _restore_baseline_and_warn(self, state: TrainState) -> None:
        """What finished steps wrote is there; a baseline that is not is restored, for it cannot be measured again."""
        if state.baseline and self.folder.evaluation("before", 0) != state.baseline:
            self.folder.keep_baseline(state.baseline)
            self._say("warning: evaluations.jsonl had lost or changed the baseline; restored from the checkpoint")
        for loss in find_losses(self.folder, self.recipe, state.step):
            self._say(f"warning: {loss}")

    def _preflight(self, parts: Parts, state: TrainState, encoded: EncodedData) -> None:
        """The cheap part of the doctor, at the start of a run: what is wrong is said, what cannot work stops."""
        from cohort.training.preflight import run_cheap_checks

        if self.found:
            return
        for check in run_cheap_checks(parts, encoded):
            if check.blocks:
                raise RunError(f"{check.name}: {check.text}")
            if check.level != "ok":
                self._say(f"warning: {check.name}: {check.text}")

    # -- phases --------------------------------------------------------------------------------------------------------

    def _cold_start(self, parts: Parts, state: TrainState, encoded: EncodedData) -> None:
        from cohort.base.interrupts import defer_interrupts
        from cohort.training.cold_start import cold_start
        from cohort.training.stages import save_run
        from cohort.training.training_parts import make_optimizer

        if state.phase != "cold_start":
            return
        if self.recipe.train.num_steps == 0 and state.cold_steps == 0:
            self._evaluate_if_missing("before", parts, state)  # the cold start is the whole run, so "before" is before it
        self.monitors.on_stage("cold start", total=self.recipe.cold_start.num_steps, done=state.cold_steps)
        cold_start(parts, state, encoded.demonstrations)
        with defer_interrupts():
            parts.policy.save(self.folder.start)
            state.phase = "train"
            state.optimizer = make_optimizer(state.optimizer.weights, self.recipe, "train")
            save_run(parts, state)

    def _train(self, parts: Parts, state: TrainState, encoded: EncodedData) -> None:
        from cohort.loop import train
        from cohort.loop_iterative import train_in_iterations
        from cohort.training import build
        from cohort.training.stages import save_run
        from cohort.training.training_parts import make_training_parts, samples_ahead

        learned = self.recipe.reward_model.iterations > 0
        if (state.step < self.recipe.train.num_steps and not state.stopped) or (
            learned and not self.folder.reward_model.is_dir()
        ):
            training = make_training_parts(parts, state, encoded, self.materials)
            self.monitors.on_stage("training", total=self.recipe.train.num_steps, done=state.step)
            if learned:
                train_in_iterations(training, state, build.compute_dtype(self.recipe))
            elif samples_ahead(self.recipe, state):
                from cohort.loop_async import train_ahead

                train_ahead(training, state, until=self.recipe.train.num_steps)
            else:
                train(training, state, until=self.recipe.train.num_steps)
            if state.stopped:
                self._say(state.stopped)
        save_run(parts, state)

    def _resume_command(self) -> str:
        """Functions that no other process can import must be handed in again, from Python."""
        if any(reward.function.startswith("python:") for reward in self.recipe.list_rewards().values()):
            return f"cohort.resume({str(self.folder.root)!r}, rewards=[...]) from Python, with the same functions"
        return f"cohort resume {self.folder.root}"

    def _evaluate_if_missing(self, label: str, parts: Parts, state: TrainState) -> None:
        """Evaluate, unless an earlier process of this run already did."""
        from cohort.training.stages import evaluate_policy, remember_best

        if not parts.evaluation_sets:
            return
        result = self.world.on_main(lambda: self._find_evaluation(label, state))
        if result is None and label == "before" and self._has_moved(state):
            self._say(
                "warning: the evaluation before training is lost, and the policy is no longer what it was then: the report has no "
                f"before. The start alone can still be measured: cohort evaluate {self.folder.root} --checkpoint start"
            )
            return
        if result is None:
            self.monitors.on_stage("baseline evaluation" if label == "before" else "final evaluation")
            result = evaluate_policy(parts, state, label, state.step)
        if label == "before":
            state.baseline = self.world.on_main(lambda: self.folder.evaluation(label, 0) or {})
        else:
            remember_best(parts, state, result)

    def _has_moved(self, state: TrainState) -> bool:
        """Whether the weights have moved since the moment that "before" speaks of."""
        return state.policy_version > 0 if self.recipe.train.num_steps else state.cold_steps > 0

    def _find_evaluation(self, label: str, state: TrainState | None) -> Evaluation | None:
        """An evaluation that is already written down."""
        from cohort.evaluation.evaluate import Evaluation

        document = self.folder.evaluation(label, state.step if state and label == "after" else 0)
        return Evaluation.from_json(document) if document else None

    # -- ending --------------------------------------------------------------------------------------------------------

    def _save_last_state(self, parts: Parts | None, state: TrainState | None, signal: Interrupted | None = None) -> str:
        """Save what can be saved, and return a sentence about it for a run that ends by a signal."""
        from cohort.training.stages import save_last_state

        return save_last_state(parts, state, signal) if parts and state else f"{signal}: nothing to save yet"

    def _finish(self, status: str, parts: Parts | None, state: TrainState | None, error: Exception | None = None) -> RunResult:
        from cohort.evaluation.evaluate import summarize
        from cohort.observe.card import write_card
        from cohort.observe.report.page import write_report
        from cohort.training.stages import describe_end

        if parts:
            parts.engine.close()
        if not self.world.is_main:
            return RunResult(self.folder.root, status, {"status": status})
        before, after = self._find_evaluation("before", state), self._find_evaluation("after", state)
        summary: dict[str, Any] = {"eval": summarize(before, after)}
        if parts and state:
            summary |= describe_end(parts, state)
        if error:
            summary |= describe_failure(error)
        if status == "interrupted":
            summary["resume"] = self._resume_command()
        written = self._write_summary(status, **summary)
        try:
            if status == "finished":
                write_card(self.folder.root, self.folder.model)
            write_report(self.folder.root)
        except OSError as problem:
            self._say(f"report.html could not be written: {problem}. Later: cohort report {self.folder.root}")
        self.monitors.on_finish(written)
        return RunResult(self.folder.root, status, written)

    def _write_summary(self, status: str, **more: Any) -> dict[str, Any]:
        found = {"steps": self.saved["step"]} if self.found else {}
        summary = begin_summary(self.recipe) | found | {"status": status, **more}
        self.folder.write_json(self.folder.summary_file, summary)
        return summary
