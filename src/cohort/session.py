"""A whole run: cold start, baseline evaluation, training, final evaluation, export, report.

Starting and resuming are one function: it does what is missing in the run folder. So a run that was killed, however often, ends with
the same weights as an uninterrupted one.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.files import UNWRITABLE
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
from cohort.training import launch

if TYPE_CHECKING:
    from cohort.data.prompts import PromptStream
    from cohort.evaluation.evaluate import Evaluation
    from cohort.model.optim import MasterWeights
    from cohort.model.policy import Policy
    from cohort.training.build import EncodedData
    from cohort.training.run import Run
    from cohort.training.state import TrainState


def start(recipe: Recipe, materials: Materials | None = None) -> RunResult:
    """Start a run on all ranks of the launch; resume it if torchrun has restarted them."""
    recipe = make_paths_absolute(recipe)
    world = launch.find_world(lambda: recipe.parallel.limit_s)
    if world.earlier_run and (Path(world.earlier_run) / "recipe.toml").is_file():
        return _resume(world.earlier_run, materials, world)
    with launch.end_together(world):
        launch.compare_ranks(world, lambda: launch.list_launch_facts(recipe))
        folder = launch.claim_folder(world, lambda: RunFolder.create(recipe))
        try:
            return launch.share_result(world, _execute(folder, recipe, materials, world))
        except Exception:
            folder.discard()
            raise


def resume(root: str | Path, materials: Materials | None = None) -> RunResult:
    return _resume(root, materials, launch.find_world(lambda: RunFolder.open(root).recipe().parallel.limit_s))


def _resume(root: str | Path, materials: Materials | None, world: World) -> RunResult:
    with launch.end_together(world):
        folder = launch.claim_folder(world, lambda: launch.lock_folder(root))
        summary = world.on_main(folder.read_summary)
        if summary.get("status") == "finished":
            folder.unlock()
            return RunResult(folder.root, "finished", summary)
        recipe = folder.recipe()
        launch.compare_ranks(world, lambda: launch.list_launch_facts(recipe))
        return launch.share_result(world, _execute(folder, recipe, materials, world))


def _execute(folder: RunFolder, recipe: Recipe, materials: Materials | None, world: World = ALONE) -> RunResult:
    # Reward workers start before torch is imported, so they stay small and inherit neither CUDA nor thread pools.
    try:
        with (
            handle_interrupts(joint=world.size > 1, apart=recipe.parallel.shard == "none"),
            RewardRunner.for_run(recipe, materials.functions if materials else {}) as rewards,
        ):
            rewards.world = world
            return Session(folder, recipe, rewards, materials, world).run()
    except Interrupted as signal:  # before the first phase, or after the last one
        if world.is_main and recipe.monitors.console:  # the console monitor may not exist yet
            print(f"{signal}: ended at once. Resume with: cohort resume {folder.root}")
        summary = begin_summary(recipe) | folder.read_summary() | {"status": "interrupted"}
        folder.write_json(folder.summary_file, summary)
        return RunResult(folder.root, "interrupted", summary)
    finally:
        folder.unlock()


class Session:
    """The phases of one run. Everything lasting is in the run folder."""

    def __init__(
        self, folder: RunFolder, recipe: Recipe, rewards: RewardRunner, materials: Materials | None, world: World = ALONE
    ):
        from cohort.observe.monitors import build_monitors
        from cohort.observe.monitors.base import Monitors

        self.world, self.started = world, time.monotonic()
        recipe = resolve_recipe(recipe)
        check_conditions(recipe)
        folder.keep_own_functions(recipe.algorithm)
        self.folder, self.recipe, self.rewards = folder, recipe, rewards
        self.materials = materials or Materials()
        self.found = launch.find_checkpoint(world, folder.checkpoints)
        self.saved = self.found.snapshot.document if self.found else {}
        lost_steps = 0 if self.found else len(folder.metrics())
        self.monitors = Monitors([])
        if world.is_main:  # drops the rows of steps that will be repeated
            step = self.saved.get("step", 0)
            self.monitors = build_monitors(recipe, folder.root, resume_step=step, handed_in=self.materials.monitors)
        if lost_steps:
            self._notify(f"warning: no checkpoint in checkpoints/: starting again; {lost_steps} finished steps are repeated")

    def _notify(self, *messages: str) -> None:
        for message in messages:
            self.monitors.on_message(message)

    def run(self) -> RunResult:
        """Do the missing phases in order. Whatever ends the run, its state is saved and summary.json records how it ended."""
        from cohort.ops import determinism, products
        from cohort.training.preflight import run_cheap_checks
        from cohort.training.stages import save_last_state, wait_for_save

        self._write_summary("running")
        run: Run | None = None
        state: TrainState | None = None
        with determinism.deterministic(self.recipe.train.deterministic), products.restore_products(), self.monitors:
            try:
                assembled = self.assemble()
                for check in [] if self.found else run_cheap_checks(assembled[0], assembled[2]):
                    if check.blocks:
                        raise RunError(f"{check.name}: {check.text}")
                    if check.level in ("warning", "failure"):
                        self._notify(f"warning: {check.name}: {check.text}")
                run, state, encoded = assembled  # only from here on is there a state to save
                state.saver.resume, state.saver.warn = self._resume_command(), self._notify
                self._cold_start(run, state, encoded)
                self._evaluate_if_missing("before", run, state)
                self._train(run, state, encoded)
                run.policy.save(self.folder.model, merge=self.recipe.model.lora.merge)
                self._evaluate_if_missing("after", run, state)
                wait_for_save(run, state)
                return self._finish("finished", run, state)
            except Interrupted as signal:
                saved = save_last_state(run, state, signal) if run and state else f"{signal}: nothing to save yet"
                self._notify(f"{saved}. Resume with: {self._resume_command()}")
                return self._finish("interrupted", run, state)
            except (Exception, SystemExit, KeyboardInterrupt) as happened:
                problem = self.world.explain(happened if isinstance(happened, Exception) else explain_exit(happened))
                if isinstance(problem, OSError) and problem.errno in UNWRITABLE:
                    where = f": {problem.filename}" if problem.filename else ""
                    problem = RunError(
                        f"{problem.strerror or problem}{where}. Make room or make it writable, then: {self._resume_command()}"
                    )
                self.world.fail(problem)
                if run and state:
                    save_last_state(run, state, None)
                with suppress(OSError):  # the disk may be full; the error itself is what counts
                    self._finish("failed", run, state, error=problem)
                raise problem from problem.__cause__ or happened
            finally:
                if state:
                    state.saver.close()

    # -- construction --------------------------------------------------------------------------------------------------

    def assemble(self) -> tuple[Run, TrainState, EncodedData]:
        """Build the components and the state of the run, or restore the state from the newest checkpoint."""
        import torch

        from cohort.model.optim import Adding
        from cohort.training import build
        from cohort.training.python_inputs import keep_rows
        from cohort.training.run import Run
        from cohort.training.run_weights import replace_sources, resolve_models

        sources, messages = self.world.on_main(lambda: resolve_models(self.recipe, self.folder, self.materials.model))
        recipe = self.recipe = replace_sources(self.recipe, sources)
        self._notify(*messages)
        if recipe.train.num_steps:
            iterations = recipe.reward_model.iterations
            learned = f"; the reward is a learned model's, fitted {iterations} times" if iterations else ""
            self._notify(f"algorithm {describe_algorithm(recipe.algorithm, recipe.teacher)}{learned}")
        for source in list_trusted_sources(recipe):
            self._notify(f"trust_remote_code: Python code from {source} runs here with your rights and outside the jail")
        self._notify(*(f"warning: {warning}" for warning in list_warnings(recipe)))
        self._notify(*filter(None, [describe_template(recipe.prompts)]))
        self.materials = keep_rows(recipe, self.folder, self.materials, self._notify)
        data = build.load_data(recipe, self.materials)
        self._notify(*data.notes)
        policy = build.load_policy(recipe, data)
        sampling = build.make_training_sampling(recipe, policy)
        encoded = build.encode_data(recipe, data, policy, sampling)
        policy.world = self.world
        threads, exact = torch.get_num_threads(), build.adds_exactly(recipe, self.saved.get("sums"))
        launch.compare_ranks(self.world, lambda: launch.list_run_facts(recipe, policy.model, encoded, threads * exact))
        self._notify(*launch.describe_ranks(self.world, policy.device, threads, exact, self.saved.get("threads")))
        products = build.settle_products(recipe, policy, self.saved.get("products", ""), self.folder)
        policy.set_longest(build.find_longest_sequence(recipe, encoded, sampling))
        weights = build.make_weights(recipe, policy, Adding(exact, self.world))
        stream = build.make_stream(recipe, encoded)
        state = self._make_or_restore_state(policy, weights, encoded, stream)
        engine, description = build.make_engine(recipe, policy, self.folder.root, self._notify, environments=data.environments)
        build.refuse_ahead(recipe, engine, self.world.is_alone)
        trained = policy.prepare(recipe.model.kernels, recipe.train.activation_checkpointing)
        # All ranks use the smallest number: a different one could flip near-ties.
        slots = state.slots or -self.world.max(-build.choose_slots(recipe, engine, encoded.train, sampling))
        state.slots = engine.slots = slots
        state.products, state.sums, state.threads = products, "exact" if exact else "fast", threads
        self._notify(f"policy of {policy.num_parameters / 1e6:.2f} M parameters; {description}; {trained}")
        self._notify(*launch.warn_of_batch_effects(self.world, exact, engine.name, engine.capabilities.steady))
        self._notify(*policy.notes, *build.describe_adapter(recipe, policy))
        for name, report in encoded.reports.items():
            if name == "prompts" or report.too_long or report.with_unknown:
                self._notify(f"{name}: {report}")
        self._notify(*self.rewards.notes)
        self.rewards.on_progress, self.rewards.on_sampled = self.monitors.on_scoring, self.monitors.on_sampling
        run = Run(
            recipe=recipe,
            folder=self.folder,
            policy=policy,
            engine=engine,
            engine_description=description,
            rewards=self.rewards,
            stream=stream,
            sampling=sampling,
            evaluation_sets=encoded.sets,
            monitors=self.monitors,
            began=self.started - state.seconds,
            world=self.world,
        )
        return run, state, encoded

    def _make_or_restore_state(
        self, policy: Policy, weights: MasterWeights, encoded: EncodedData, stream: PromptStream
    ) -> TrainState:
        from cohort.model.frozen import digest_base
        from cohort.training import resume_checks
        from cohort.training.run import make_optimizer
        from cohort.training.state import TrainState

        phase = self.saved.get("phase", "cold_start" if self.recipe.cold_start.num_steps else "train")
        state = TrainState(optimizer=make_optimizer(weights, self.recipe, phase), phase=phase)
        state.data_digest, state.kl_coef = encoded.digest(), self.recipe.algorithm.kl_coef
        state.base_digest = digest_base(policy.model) if policy.adapter else ""
        files = resume_checks.read_files(self.recipe, policy.model)
        if self.found:
            self._notify(*(f"warning: {edit}" for edit in resume_checks.describe_edits(self.saved, self.recipe, files)))
            resume_checks.refuse_changed_inputs(self.saved, state, encoded, self.recipe, files)
            name = self.found.folder.name
            self._notify(*(f"warning: {problem}; using {name} instead" for problem in self.found.problems))
            state.restore(self.found.snapshot, {prompt.index: prompt for prompt in stream.prompts}.__getitem__)
            # Only the document is needed later; the tensors would stay in host memory for the whole run.
            self.found = replace(self.found, snapshot=replace(self.found.snapshot, tensors={}))
            self._notify(f"resuming from {name}")
            if state.baseline and self.folder.evaluation("before", 0) != state.baseline:  # it cannot be measured again
                self.folder.keep_baseline(state.baseline)
                self._notify("warning: the baseline in evaluations.jsonl was lost or changed; restored from the checkpoint")
            self._notify(*(f"warning: {loss}" for loss in find_losses(self.folder, self.recipe, state.step)))
        resume_checks.record_inputs(state, encoded, self.recipe, files)
        return state

    # -- phases --------------------------------------------------------------------------------------------------------

    def _cold_start(self, run: Run, state: TrainState, encoded: EncodedData) -> None:
        from cohort.base.interrupts import defer_interrupts
        from cohort.training.cold_start import cold_start
        from cohort.training.run import make_optimizer
        from cohort.training.stages import save_run

        if state.phase != "cold_start":
            return
        if self.recipe.train.num_steps == 0 and state.cold_steps == 0:
            self._evaluate_if_missing("before", run, state)  # the cold start is the whole run, so "before" is before it
        self.monitors.on_stage("cold start", total=self.recipe.cold_start.num_steps, done=state.cold_steps)
        cold_start(run, state, encoded.demonstrations)
        with defer_interrupts():
            run.policy.save(self.folder.start)
            state.phase = "train"
            state.optimizer = make_optimizer(state.optimizer.weights, self.recipe, "train")
            save_run(run, state)

    def _train(self, run: Run, state: TrainState, encoded: EncodedData) -> None:
        from cohort.loop import train
        from cohort.loop_async import train_ahead
        from cohort.loop_iterative import train_in_iterations
        from cohort.training import build
        from cohort.training.run import make_training_run, samples_ahead
        from cohort.training.stages import save_run

        num_steps, learned = self.recipe.train.num_steps, self.recipe.reward_model.iterations > 0
        if (state.step < num_steps and not state.stopped) or (learned and not self.folder.reward_model.is_dir()):
            training = make_training_run(run, state, encoded, self.materials)
            self.monitors.on_stage("training", total=num_steps, done=state.step)
            if learned:
                train_in_iterations(training, state, build.compute_dtype(self.recipe))
            else:
                loop = train_ahead if samples_ahead(self.recipe, state) else train
                loop(training, state, until=num_steps)
            if state.stopped:
                self._notify(state.stopped)
        save_run(run, state)

    def _resume_command(self) -> str:
        """The command that resumes this run; functions that cannot be imported have to be passed again from Python."""
        environment = self.recipe.environment
        if any(name.startswith("python:") for name in (environment.source, *environment.sources.values(), *environment.tools)):
            return f"cohort.resume({str(self.folder.root)!r}, environment=..., tools=[...]) from Python, with the same classes and functions"
        if any(reward.function.startswith("python:") for reward in self.recipe.list_rewards().values()):
            return f"cohort.resume({str(self.folder.root)!r}, rewards=[...]) from Python, with the same functions"
        return f"cohort resume {self.folder.root}"

    def _evaluate_if_missing(self, label: str, run: Run, state: TrainState) -> None:
        """Evaluate, unless an earlier process of this run already did."""
        from cohort.training.stages import evaluate_policy, remember_best

        if not run.evaluation_sets:
            return
        result = self.world.on_main(lambda: self._find_evaluation(label, state))
        has_moved = state.policy_version > 0 if self.recipe.train.num_steps else state.cold_steps > 0
        if result is None and label == "before" and has_moved:
            self._notify(
                "warning: the evaluation before training is lost and cannot be repeated, since the policy has changed; the report has no "
                f"baseline. To measure the starting model: cohort evaluate {self.folder.root} --checkpoint start"
            )
            return
        if result is None:
            result = evaluate_policy(run, state, label, state.step)
        if label == "before":
            state.baseline = self.world.on_main(lambda: self.folder.evaluation(label, 0) or {})
        else:
            remember_best(run, state, result)

    def _find_evaluation(self, label: str, state: TrainState | None) -> Evaluation | None:
        """A recorded evaluation."""
        from cohort.evaluation.evaluate import Evaluation

        document = self.folder.evaluation(label, state.step if state and label == "after" else 0)
        return Evaluation.from_json(document) if document else None

    # -- end -----------------------------------------------------------------------------------------------------------

    def _finish(self, status: str, run: Run | None, state: TrainState | None, error: Exception | None = None) -> RunResult:
        from cohort.evaluation.evaluate import summarize
        from cohort.observe.card import write_card
        from cohort.observe.report.page import write_report
        from cohort.training.stages import describe_end

        if run:
            run.engine.close()
        if not self.world.is_main:
            return RunResult(self.folder.root, status, {"status": status})
        before, after = self._find_evaluation("before", state), self._find_evaluation("after", state)
        summary: dict[str, Any] = {"eval": summarize(before, after)}
        if run and state:
            summary |= describe_end(run, state)
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
            self._notify(f"report.html could not be written: {problem}. Later: cohort report {self.folder.root}")
        self.monitors.on_finish(written)
        return RunResult(self.folder.root, status, written)

    def _write_summary(self, status: str, **more: Any) -> dict[str, Any]:
        steps = {"steps": self.saved["step"]} if self.found else {}
        summary = begin_summary(self.recipe) | steps | {"status": status, **more}
        self.folder.write_json(self.folder.summary_file, summary)
        return summary
