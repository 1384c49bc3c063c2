"""Every metric a run writes: unit, formula, healthy range, and what a bad value means. No torch.

This table is the one place where metrics are explained: `docs/metrics.md` is written from it (docs/generators/metrics_page.py),
the report and the dashboard take their captions from it, and a test holds the file to it. Names are `<area>/<what>`,
areas in data-flow order. `<part>` stands for a reward function's name, `<set>` for an evaluation set, `<logged>` for a
number that a reward function logged, `<k>` for a number of completions, `<stage>` for a stage of the step.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AREAS = {
    "rollout": "What the policy wrote in this step, before anything was scored.",
    "reward": "What the reward functions said. Rewards are never normalised.",
    "advantage": "How the rewards of each group became a training signal.",
    "teacher": "How far the policy is from its teacher (`[teacher]` alone), on its own completions.",
    "loss": "The objective, averaged over the tokens and minibatches of the step.",
    "optim": "What the optimizer did with the gradient.",
    "critic": 'PPO\'s value function (`advantage = "gae"` alone).',
    "reward_model": "The last fit of a learned reward model (`[reward_model]` alone); the same in every step until the next fit.",
    "eval": "Held-out problems, sampled with the settings under [evaluation] and the same noise every time.",
    "time": "Wall-clock seconds of each stage of the step; on a GPU a stage ends when the device has finished it. They add up to time/step.",
    "perf": "Throughput, use of the device, and memory: which stage to look at.",
    "ahead": "What was sampled before its step (`ahead.lag` above 0 alone), and how much older it is than the policy that trains on it.",
    "ranks": "How the processes of a run went together (torchrun with several ranks alone); `ranks.jsonl` has every rank's seconds, waiting, tokens and memory by stage.",
    "servers": "The vLLM servers that sample (`sampling.servers` alone), as the main rank sees them; `<n>` is a server's place in the list, from 1.",
}

LARGEST = 1e100
"""What a reader takes for a number: beyond it sums and squares are infinite, and JSON's whole numbers larger than any float."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of docs/metrics.md."""

    name: str
    unit: str
    formula: str
    healthy: str
    bad: str
    """What a value outside the healthy range means, and where to look next."""
    reduce: str = "mean"
    """How several values of one step become one, over its optimizer steps or rounds of prompts: mean, sum, max, first or last."""

    @property
    def area(self) -> str:
        return self.name.partition("/")[0]

    @property
    def pattern(self) -> re.Pattern[str]:
        """The name with placeholders turned into wildcards. Only <logged> may hold a slash."""
        text = re.escape(self.name).replace("<logged>", ".+").replace("<k>", r"\d+")
        return re.compile(re.sub(r"<\w+>", "[^/]+", text))


METRICS: tuple[Metric, ...] = (
    # rollout -----------------------------------------------------------------------------------------------------
    Metric("rollout/completions", "count", "prompts_per_step × group_size", "constant", "A drop means prompts ran out or groups were left out."),
    Metric("rollout/tokens", "count", "sampled tokens of all completions, stop tokens included", "follows length_mean", "Explains changes in step time: sampling cost is proportional to it."),
    Metric("rollout/length_mean", "tokens", "mean sampled tokens per completion", "stable, or rising slowly with success", "A rise without a rise in success is padding; a fall to a handful of tokens is a policy that gave up reasoning."),
    Metric("rollout/length_max", "tokens", "longest completion of the step", "below sampling.max_completion_tokens", "At the limit in every step: some completions are being cut, see rollout/truncated."),
    Metric("rollout/length_right", "tokens", "mean sampled tokens of successes", "stable", "Falling towards a handful: successes without reasoning."),
    Metric("rollout/length_wrong", "tokens", "the same of failures", "near length_right", "Growing alone: what cannot be solved is padded."),
    Metric("rollout/truncated", "share", "completions that ended at max_completion_tokens ÷ all", "below 0.1", "Cut completions rarely hold an answer, so they score 0 for being long, not for being wrong. Raise sampling.max_completion_tokens, or check that the model knows its stop token."),
    Metric("rollout/distinct", "share", "mean over groups of distinct completions ÷ group_size", "above 0.5 for open tasks", "At 1 ÷ group_size every group holds copies of one completion: no variance, no signal. Raise the temperature, or accept that the task is solved."),
    Metric("rollout/shared_rewarded", "share", "successes that hold one string, unexplained by their gold ÷ all successes (docs/hacking-alarms.md)", "0", "Above 0.5 in several steps: the verifier may be fooled, or a form is being learned; evidence in the row names rollouts."),
    Metric("rollout/other_number", "share", "successes whose extracted answer is another number than their gold ÷ successes where both are numbers", "0; constant where several numbers are right", "Rising: the verifier takes wrong numbers for right ones, and the policy learns which."),
    Metric("rollout/prompt_tokens_mean", "tokens", "mean prompt length, template included", "constant", "A jump means that the mix of prompts changed."),
    Metric("rollout/epoch", "epochs", "prompts drawn so far ÷ prompts in the source", "below about 10", "Many passes over few prompts invite memorising; watch held-out pass@1 rather than reward."),
    Metric("rollout/mismatch_mean", "nats", "mean |log π_trainer − log π_engine| over sampled tokens, before the first update of the step", "below 0.01 (bfloat16), 1e-5 (float32)", "Engine and trainer disagree on the policy they are both supposed to be. The mean hides outliers: read p95 and max.", reduce="first"),
    Metric("rollout/mismatch_p95", "nats", "95th percentile of the same", "below 0.05", "One token in twenty is off by this much: look for a temperature, template or dtype that differs.", reduce="first"),
    Metric("rollout/mismatch_max", "nats", "maximum of the same", "below 1", "A single large value is usually one very unlikely token; large p95 and max together are a bug or a stale weight.", reduce="first"),
    Metric("rollout/rounds", "count", "rounds of prompts drawn, the first included (`refill_rounds`)", "1 to 2", "At the cap in every step: few groups hold both outcomes; the message in the log says whether the task is too easy or too hard."),
    Metric("rollout/groups_drawn", "count", "groups sampled in the step, trained on or not", "up to twice prompts_per_step", "What dynamic sampling costs: rollouts are paid for, kept or not."),
    Metric("rollout/groups_too_easy", "count", "groups drawn in which every verdict is a success", "below half of those drawn", "Rising: the prompts are solved; add harder ones, or prompt_choice = \"informative\"."),
    Metric("rollout/groups_too_hard", "count", "groups drawn in which every verdict is a failure", "below half of those drawn", "Larger groups, easier prompts, or a cold start."),
    Metric("rollout/groups_surplus", "count", "useful groups beyond the batch, not trained on", "small", "Thrown away; lower prompts_per_step wastes less."),
    Metric("rollout/prompts_seen", "share", "prompts visited at least once, before this step (`prompt_choice = \"informative\"`)", "rising to 1", "Standing still below 1: the set is larger than the run."),
    Metric("rollout/prompts_retired", "share", "prompts at the floor because they are solved", "rising", "Near 1: the set is learned."),
    Metric("rollout/prompts_hopeless", "share", "prompts at the floor because recent visits all failed", "small", "Large: much of the set is out of reach for this policy."),
    Metric("rollout/expected_success", "share", "mean estimated success of the prompts seen", "rising", "Falling: the policy forgets."),
    # reward ------------------------------------------------------------------------------------------------------
    Metric("reward/mean", "reward", "mean weighted sum of parts over scored completions", "rising", "Flat from the start: no useful groups, or a learning rate that is too small. Falling: the update is too large."),
    Metric("reward/std", "reward", "standard deviation over scored completions", "above 0", "0: every completion scored the same, so nothing can be learned from the step."),
    Metric("reward/success", "share", "completions whose outcome part reached its threshold ÷ those with a verdict", "rising; learning is fastest near 0.5", "0 for many steps: the base model is too weak for the task, or the answer is not being parsed. Read some rollouts."),
    Metric("reward/unscored", "count", "completions for which no part with a weight gave a value", "0", "They are out of both sides of every mean. Many of them means that a reward function keeps abstaining or failing.", reduce="sum"),
    Metric("reward/faults", "count", "exceptions, NaN, wrong types and the like, of the reward functions", "0", "A bug in a reward function. Past train.max_fault_share of a step the run stops.", reduce="sum"),
    Metric("reward/timeouts", "count", "completions that ran into the time limit of the verifier or the jail; they score 0", "near 0", "Rising: the policy is writing what the verifier cannot digest, for instance endless loops or huge numbers.", reduce="sum"),
    Metric("reward/inconsistent", "share", "sets of equal completions of one group whose rewards differ ÷ all such sets (absent where no completion comes twice)", "0", "The reward of a completion is partly chance: a judge that samples, or a function that depends on something else."),
    Metric("reward/failed_extracts", "count", "completions whose answer could not be extracted because `extract` itself failed", "0", "They do not vote in maj@k; their reward is unaffected. Fix the function's `extract`.", reduce="sum"),
    Metric("reward/<part>/mean", "reward", "mean of one reward function before weighting, where it spoke", "rising", "One part rising while the outcome part falls is reward hacking: the policy found the cheaper points."),
    Metric("reward/<part>/std", "reward", "standard deviation of the same", "above 0", "0: this part no longer separates completions and contributes nothing."),
    Metric("reward/<part>/none", "count", "completions on which this part abstained (returned None)", "0 unless it abstains by design", "The part is silent there; the other parts still count.", reduce="sum"),
    Metric("reward/<part>/faults", "count", "completions on which this part failed: exception, NaN, wrong type", "0", "A bug in this function. The completion is unscored by it and the fault is in the rollouts' `faults` column.", reduce="sum"),
    Metric("reward/<part>/timeouts", "count", "completions that ran into this part's time limit", "near 0", "Honest answers that need longer: raise its timeout_s. Otherwise the policy is writing what it cannot digest.", reduce="sum"),
    Metric("reward/<part>/retried", "count", "completions scored one by one after a call on many of them failed", "0", "Slow, and a sign of one completion that breaks the whole call.", reduce="sum"),
    Metric("reward/<part>/verdict/<word>", "count", "completions by what became of them: right, wrong, unevaluated, no_answer, unparsed, timeout, memory, output, files, crash, error, infrastructure", "right rising", "`no_answer` or `unparsed` high: the policy does not write the answer where the verifier looks. `unevaluated` high: it copies the question instead of working it out. A limit rising: it writes what cannot be digested. `infrastructure`: the verifier's own machinery fails, and those completions are unscored.", reduce="sum"),
    Metric("reward/<part>/dropped_logs", "count", "logged values that could not be kept", "absent", "What the function logged is not all in the rollouts.", reduce="sum"),
    Metric("reward/<part>/steps", "count", "mean number of step rewards per completion (process rewards alone)", "as many as the task has steps", "At 1 where more are expected: no steps were found, and a completion without any counts as one wrong step."),
    Metric("reward/overlong/mean", "reward", "mean soft overlong penalty, 0 to −1 (`overlong_share`)", "near 0", "Far below 0: completions run into the limit; raise sampling.max_completion_tokens."),
    Metric("reward/verifier_agreement", "share", "AUC of the learned reward against the verifier's success in this step", "above 0.8", "Falling towards 0.5 within an iteration: the policy has found what the reward model likes and the verifier does not."),
    Metric("reward/<part>/seconds", "seconds", "wall clock in which this reward function was called, sampling or not", "small beside time/rollout", "The slowest part sets time/reward. Larger than time/reward: the rest of it went by while others were sampled.", reduce="sum"),
    Metric("reward/<part>/<logged>", "as logged", "mean of a number that the function logged itself", "as its author says", "Whatever the function's author meant by it."),
    # advantage ---------------------------------------------------------------------------------------------------
    Metric("advantage/useful_groups", "share", "groups whose rewards are not all equal ÷ all groups; 0 where dynamic sampling found none to train on", "above 0.3; expected 1 − pᴳ − (1−p)ᴳ at success rate p", "The share of the step that teaches anything. Low: problems too easy or too hard for this policy, or groups too small."),
    Metric("advantage/zero_variance_groups", "count", "groups whose rewards are all exactly equal", "below two thirds of the groups", "Their advantage is 0 for every member: sampled and paid for, without signal."),
    Metric("advantage/dropped_groups", "count", "groups taken out of the batch (fewer than two scores, zero_variance = \"drop\", or no useful one in dynamic sampling)", "0 with \"keep\"", "With \"keep\", every dropped group lost its scores to faults or abstentions."),
    Metric("advantage/all_correct_groups", "count", "groups in which every completion succeeded", "below half of the groups", "The prompts are too easy now: move to harder ones."),
    Metric("advantage/all_wrong_groups", "count", "groups in which every completion failed", "below half of the groups", "The prompts are too hard: larger groups, easier prompts, or a cold start on demonstrations."),
    Metric("advantage/std", "—", "standard deviation of all advantages of the step", "about √useful_groups for group_normalized", "Near 0: the step carries almost no gradient."),
    Metric("advantage/abs_max", "—", "largest |advantage|", "at most √(group_size − 1) for group_normalized", "Above that bound the normalisation is broken (a group that is nearly but not exactly constant)."),
    Metric("advantage/lopsided_share", "share", "Σ |A| of groups with at most one success, or at most one failure ÷ Σ |A| of all", "below 0.5 for groups of 8; means nothing below 5", "The step is mostly about prompts that are nearly always failed or nearly always solved. Dividing by the std adds to it: a group of 8 with a single success weighs 0.66 of an even one, and 0.44 with advantage = \"group_centered\" (difficulty bias)."),
    # teacher -----------------------------------------------------------------------------------------------------
    Metric("teacher/gap", "nats per token", "mean of log π_sampled − log π_teacher over trained tokens: an estimate of the reverse KL", "falling towards 0", "Not falling: the learning rate or teacher.coef is too small, or the policy too small for its teacher. Below 0 it is noise: too few tokens."),
    Metric("teacher/gap_per_completion", "nats", "the same summed over each completion, mean over completions", "falling towards 0", "Falling only because rollout/length_mean falls: shorter completions, not closer ones."),
    # loss --------------------------------------------------------------------------------------------------------
    Metric("loss/total", "—", "loss/policy + loss/kl_term − entropy_coef × entropy", "near 0", "Not a measure of progress: exactly on-policy it is 0 by construction while the gradient is not. Read reward and grad_norm."),
    Metric("loss/policy", "—", "the surrogate of the recipe's region (clip: −min(ρA, clip(ρ)A)), weighted by the aggregation", "near 0", "As above. A large magnitude means very off-policy minibatches."),
    Metric("loss/kl", "nats per token", "mean of k3 = exp(log π_ref − log π) − (log π_ref − log π) − 1", "0 at step 1, then slowly rising", "Not 0 at step 1: reference and policy differ from the start. Exploding: lower the learning rate or raise kl_coef."),
    Metric("loss/kl_coef", "—", "weight of the KL in this step", "constant; moving with kl_target", "At a bound of a thousandth or a thousand times its start: the target cannot be held."),
    Metric("loss/kl_term", "—", "the KL's part of loss/total: kl_coef × the estimator of the recipe, weighted", "small beside loss/policy's gradient", "Large: the pull to the reference outweighs the reward."),
    Metric("loss/kl_per_completion", "nats", "k3 summed over each completion, mean over completions", "below 5", "Over 5 to 10 nats the policy has left the reference's neighbourhood; gains there are often reward hacking."),
    Metric("loss/entropy", "nats per token", "mean of −Σ π log π over trained tokens", "falling slowly, above a tenth of its start", "Collapse: the policy has stopped exploring, groups become copies. Raise clip_high, temperature or entropy_coef."),
    Metric("loss/clip_low", "share", "trained tokens whose gradient the region took away below 1 − clip_low (with A < 0)", "below 0.2; 0 on-policy", "Large: minibatches drift too far from the policy that sampled. Fewer of them, or a smaller learning rate."),
    Metric("loss/clip_high", "share", "the same above 1 + clip_high (with A > 0); dual_clip: also above its limit with A < 0; cispo: tokens at ratio_cap", "below 0.2; 0 on-policy", "As clip_low. If it is much larger than clip_low, a higher clip_high (0.28) keeps exploration alive."),
    Metric("loss/ratio_max", "ratio", "largest π ÷ π_old over trained tokens (sequence regions: over completions)", "1 on-policy; below 10", "Very large ratios come from tokens that were nearly impossible when sampled.", reduce="max"),
    Metric("loss/coefficient_mean", "—", "mean of −∂loss/∂log π over trained tokens: the gradient coefficient (on-policy GRPO: A + kl_coef (π_ref/π − 1))", "near 0 with a group baseline", "Far above 0: everything is pushed up (as in SFT). Far below: everything is pushed down, and the policy falls apart."),
    Metric("loss/coefficient_p05", "—", "5th percentile of the same", "about −1 to −3", "The hardest push down. 0: nothing is pushed down."),
    Metric("loss/coefficient_p95", "—", "95th percentile of the same", "about 0.5 to 3", "The hardest push up. 0 with useful groups: the trust region holds everything."),
    Metric("loss/coefficient_abs_max", "—", "largest |coefficient|", "below 10", "One token dominates the update: an exploding ratio, or a reference that finds a token far likelier than the policy does.", reduce="max"),
    Metric("loss/margin", "nats", "DPO: mean over pairs of beta × (log-ratio of chosen − of rejected)", "rising from 0", "Large and still rising: the pairs are memorised."),
    Metric("loss/preferred", "share", "DPO: pairs whose chosen completion has the larger log-ratio", "rising from 0.5 to 1", "Near 0.5: the pairs hold nothing that the policy can tell apart."),
    Metric("loss/chosen_gain", "nats", "DPO: mean of log π − log π_ref summed over the chosen completion", "near or above 0", "Far below 0: chosen completions become unlikely too, only less so than rejected ones. DPO constrains the difference alone; where the two share most of their text, pushing one down drags the other along. Raise kl_coef, lower the learning rate, or use a method that rewards the right answer itself."),
    Metric("loss/rejected_gain", "nats", "the same of the rejected completion", "below chosen_gain", "Falling without end: the pairs are memorised."),
    Metric("loss/mismatch_weight", "ratio", "mean importance weight π_old ÷ π_engine (`mismatch_weight`)", "about 1", "Far from 1: engine and trainer are different policies."),
    Metric("loss/mismatch_cut", "share", "trained tokens whose weight was cut at the cap, or masked", "below 0.01", "Large: most of the batch is corrected away; mend the engine instead."),
    Metric("loss/trained_tokens", "count", "tokens with a non-zero weight in the loss", "close to rollout/tokens", "Much smaller: masks, drops or skipped zero-variance groups. 0: the gradient of the step was zero; with every completion masked, unscored or dropped no update was made at all.", reduce="sum"),
    # optim -------------------------------------------------------------------------------------------------------
    Metric("optim/learning_rate", "—", "learning rate of the last optimizer step", "follows the schedule", "0 for the whole run: warm-up longer than the run.", reduce="last"),
    Metric("optim/grad_norm", "—", "global norm before clipping, mean over optimizer steps", "above 0, without trend", "0: nothing to learn from (no useful group). Spikes: a few extreme tokens; clipping contains them."),
    Metric("optim/clipped", "share", "optimizer steps whose gradient was clipped to max_grad_norm ÷ all", "any; constant 1 is a rescaled learning rate", "At 1 throughout, max_grad_norm sets the step size rather than the learning rate."),
    Metric("optim/skipped", "count", "optimizer steps left out because loss or gradient was not finite", "0", "Weights stay as they were; three in a row stop the run. Lower the learning rate, check for extreme log-probs.", reduce="sum"),
    Metric("optim/policy_version", "count", "optimizer steps taken since the start", "rises by minibatches × passes", "Standing still: every step was skipped or empty."),
    Metric("optim/weight_change", "—", "largest |change| of any parameter at the first update; absent where that has no gradient", "about the learning rate with AdamW", "0: the update was lost to rounding or the learning rate is 0; training is running without training.", reduce="first"),
    # critic ------------------------------------------------------------------------------------------------------
    Metric("critic/loss", "—", "clipped squared error of the value, halved, weighted as the policy's loss", "falling", "Rising: the critic lags behind the policy; raise critic.learning_rate."),
    Metric("critic/explained_variance", "share", "1 − Var(return − value) ÷ Var(return)", "rising towards 1", "At or below 0 the critic is no better than a constant: PPO is then REINFORCE with noise."),
    Metric("critic/value_mean", "reward", "mean value over trained tokens", "near reward/mean", "Far off: the critic is biased, and so are the advantages before whitening."),
    Metric("critic/grad_norm", "—", "gradient norm of the critic before clipping", "without trend", "Spikes: returns with outliers."),
    Metric("critic/clipped_share", "share", "trained tokens whose value the clip held", "below 0.3", "Near 1: critic.clip is too small for the scale of the returns."),
    Metric("critic/skipped", "count", "updates of the critic left out because its gradient was not finite", "0", "Three in a row stop the run.", reduce="sum"),
    # reward_model ------------------------------------------------------------------------------------------------
    Metric("reward_model/iteration", "count", "iteration of the step, from 1", "rises to reward_model.iterations", "Standing still: the run is in its last iteration."),
    Metric("reward_model/accuracy", "share", "pairs of right and wrong completions of held-back prompts that it ranks right", "above 0.8", "Near 0.5: it has learned nothing; more prompts, epochs, or a larger learning rate."),
    Metric("reward_model/accuracy_before", "share", "the same before this fit", "below accuracy; from the second iteration on it shows how far the policy had moved", "Falling from one iteration to the next: the policy outgrows the reward model; shorten the iterations."),
    Metric("reward_model/auc", "share", "probability that a right held-back completion scores above a wrong one, of any prompts", "above 0.8", "Far below accuracy: scores are not comparable between prompts, which groups do not need."),
    Metric("reward_model/loss", "—", "mean loss of the last pass over the labelled data", "below log 2 = 0.69", "At 0.69: no better than a coin."),
    Metric("reward_model/held_back_loss", "—", "the same loss on held-back prompts", "near reward_model/loss", "Far above it: overfitted; fewer epochs."),
    Metric("reward_model/pairs", "count", "pairs it was fitted on", "hundreds", "Few: groups are all right or all wrong."),
    Metric("reward_model/held_back_pairs", "count", "pairs it was measured on", "tens at least", "Few: accuracy is a rough number."),
    Metric("reward_model/completions", "count", "completions it was fitted on", "reward_model.prompts × group_size, less what is held back", "Fewer: the verifier gave no verdict on the rest."),
    Metric("reward_model/tokens", "count", "tokens sampled to be labelled before this iteration", "stated beside rollout/tokens", "They are part of the budget: a learned reward is not free."),
    Metric("reward_model/seconds", "seconds", "labelling and fitting before this iteration", "a part of the iteration's time", "Longer than the steps it serves: fewer prompts or epochs, or longer iterations."),
    Metric("reward_model/replayed", "count", "of these, from earlier iterations", "a tenth of the new ones", "0 after the first iteration: replay_share is 0."),
    # eval --------------------------------------------------------------------------------------------------------
    Metric("eval/<set>/pass@<k>", "share", "mean over problems of 1 − C(n−c, k) ÷ C(n, k), with c successes of n completions", "rising; pass@1 most of all", "pass@1 up while pass@8 falls: the policy is sharpening what it could already do and forgetting the rest."),
    Metric("eval/<set>/maj@<k>", "share", "credit of the answer most of k completions agree on; ties share it", "above pass@1", "Below pass@1: the policy's most common answer is wrong, so it errs systematically. Null: no reward exposes an answer."),
    Metric("eval/<set>/mean@<k>", "share", "mean success over the k completions of each problem", "equal to pass@1", "Printed because papers use the name."),
    Metric("eval/<set>/greedy", "share", "success of one completion at temperature 0", "at or above pass@1", "Far above pass@1: the sampling temperature costs accuracy. Far below: greedy decoding loops."),
    Metric("eval/<set>/reward", "reward", "mean weighted reward over scored completions", "rising with pass@1", "Rising alone: shaping parts improve and the outcome does not."),
    Metric("eval/<set>/truncated", "share", "completions cut at the token limit ÷ all", "below 0.1", "Accuracy is limited by the token budget, not only by the policy."),
    Metric("eval/<set>/length_mean", "tokens", "mean sampled tokens per completion", "stable", "Tells longer reasoning from mere padding, next to pass@1."),
    Metric("eval/<set>/unscored", "count", "completions without a verdict", "0", "They are out of both sides; many make the numbers a statement about fewer completions."),
    # time --------------------------------------------------------------------------------------------------------
    Metric("time/wait", "seconds", "waiting for what is sampled and scored ahead (`ahead.lag` above 0 alone)", "near 0", "Training waits. ahead/sample_seconds and ahead/score_seconds say for whom, and the report what to change."),
    Metric("time/rollout", "seconds", "sampling the completions, their copy to the host included", "the largest stage", "Grows with length. Shorter limits or a faster engine; see perf/engine_occupancy."),
    Metric("time/reward", "seconds", "reward functions, from the last sampled completion on", "below a quarter of time/step", "The accelerator waits for the verifier. Look at reward/<part>/seconds."),
    Metric("time/prepare", "seconds", "rollouts become examples with advantages; host only", "below 5 % of time/step", "Grows with rollout/tokens alone."),
    Metric("time/old", "seconds", "log-probs of the policy before its first update, where something reads them", "absent on-policy", "One minibatch and one pass per step need none."),
    Metric("time/reference", "seconds", "log-probs of the reference, and a moving reference following the policy", "below half of time/update", "kl_coef = 0 without monitors.kl saves it."),
    Metric("time/teacher", "seconds", "log-probs of the teacher", "below time/update for a teacher of the policy's size", "Grows with the teacher; a smaller one, or fewer completions."),
    Metric("time/critic", "seconds", "PPO's values before the update", "below half of time/update", "Every advantage but \"gae\" does without a critic."),
    Metric("time/pack", "seconds", "laying out micro-batches; host only", "below 5 % of time/step", "Grows with the tokens of the batch; larger micro_batch_tokens help a little."),
    Metric("time/update", "seconds", "forward and backward of every micro-batch", "below or near time/rollout", "Larger micro-batches (micro_batch_tokens) while memory lasts; results do not change. See perf/update_mfu."),
    Metric("time/optimizer", "seconds", "clipping, the optimizer steps, and the metrics of the update", "small beside time/update", "Does not depend on the batch: more prompts_per_step or fewer minibatches_per_step."),
    Metric("time/observe", "seconds", "metrics, signs of hacking, rollouts/, monitors (these: of the step before)", "below 5 % of time/step", "Raise monitors.rollouts_every, or write to a faster disk."),
    Metric("time/evaluate", "seconds", "held-out evaluation, when the step evaluated", "a small share over the run", "Raise evaluation.every_steps or lower evaluation.every_problems."),
    Metric("time/checkpoint", "seconds", "saving, when the step before saved: nothing is trained meanwhile. Saves that no row comes after are in summary.json (`saving`)", "a small share over the run", "Raise checkpoints.every_steps, or write to a faster disk; see perf/checkpoint_bytes_per_second."),
    Metric("time/step", "seconds", "the whole step: the sum of the stages above", "steady", "A slow rise follows length; a jump is usually another process on the machine."),
    # perf --------------------------------------------------------------------------------------------------------
    Metric("perf/slowest_stage_share", "share", "the largest of the stages above ÷ time/step", "rollout or update, below 0.9", "The report names the stage and what to change; making any other stage faster can gain no more than the rest."),
    Metric("perf/host_share", "share", "(time/prepare + time/pack + time/observe) ÷ time/step", "below 0.05 on a GPU", "The accelerator waits for Python; the three stages say where."),
    Metric("perf/rollout_tokens_per_second", "tokens/s", "rollout/tokens ÷ time/rollout", "steady", "Falls when a few long completions keep the engine busy alone."),
    Metric("perf/engine_occupancy", "share", "rows that decoded ÷ slots, mean over decode steps", "above 0.7", "Slots stand empty: fewer of them, more prompts_per_step, or a limit on the few long completions that are waited for."),
    Metric("perf/engine_slots", "count", "completions that the engine decodes side by side", "constant", "Few, with memory to spare: raise sampling.slots."),
    Metric("perf/engine_decode_steps", "count", "times that all live rows decoded one token", "near rollout/tokens ÷ slots", "Far above: slots stand empty, see engine_occupancy.", reduce="sum"),
    Metric("perf/engine_checks", "count", "times that the host waited for the device to see which rows have finished", "far below decode_steps on a GPU", "Near decode_steps: the device waits for Python after every token.", reduce="sum"),
    Metric("perf/engine_prefills", "count", "batches of prompts that were run", "a few", "Many: prompts come in small batches; more slots.", reduce="sum"),
    Metric("perf/engine_graphs", "count", "CUDA graphs held", "constant after the first steps; 0 on a CPU, and where a step of the model makes the host wait", "Growing: shapes keep changing, and each is captured anew."),
    Metric("perf/engine_<figure>", "as counted", "what else the engine counted in its last call", "as its engine says", "Compare between runs of the same recipe."),
    Metric("perf/train_tokens_per_second", "tokens/s", "loss/trained_tokens ÷ time/update", "steady", "Falls with short completions behind long prompts, and with small micro-batches."),
    Metric("perf/executed_tokens_per_second", "tokens/s", "tokens run through the policy (prompts, and padding if any) ÷ time/update", "steady", "The rate of the hardware; far above train_tokens_per_second, most work goes into prompts."),
    Metric("perf/update_mfu", "share", "6 × (body × tokens run + head × tokens trained) ÷ (time/update × peak); 4 × with a frozen base; known GPUs in 16 bits only", "above 0.3", "Low: micro-batches too small to fill the device (micro_batch_tokens), or a very small model."),
    Metric("perf/micro_batches", "count", "forward-backward passes of the step, of all ranks", "several for each rank and optimizer step", "Fewer than ranks: some stand by. Lower train.micro_batch_tokens, or use fewer ranks.", reduce="sum"),
    Metric("perf/padding_share", "share", "padding ÷ tokens run", "0", "Rows of different lengths side by side; a model that cannot be packed pays for it."),
    Metric("perf/shared_share", "share", "tokens not run because a group's prompt is run once ÷ tokens of the rows trained on", "up to prompt ÷ (prompt + completion)", "0 with long prompts: the model cannot share them, or sharing did not pay."),
    Metric("perf/skipped_share", "share", "tokens not run because nothing pushes on them (advantage 0) ÷ tokens that could be trained on", "1 − useful_groups, or 0 where a KL or entropy term acts on all", "High: most rollouts are paid for and teach nothing; see advantage/useful_groups."),
    Metric("perf/tokens_per_second", "tokens/s", "rollout/tokens ÷ time/step", "steady", "The number that decides how long the run takes."),
    Metric("perf/peak_memory_gib", "GiB", "peak memory of the device (CUDA) or of the process (CPU)", "flat after the first steps", "Rising steadily: a leak. Near the limit: smaller micro_batch_tokens or fewer slots."),
    Metric("perf/checkpoint_bytes_per_second", "bytes/s", "bytes of the checkpoint ÷ the seconds in which saving it stopped training, when the step before saved", "near what the disk can do", "Far below: a busy or distant disk. Raise checkpoints.every_steps, or set runs_folder to a nearer one."),
    # ahead -------------------------------------------------------------------------------------------------------
    Metric("ahead/staleness_mean", "updates", "optimizer updates between the policy that sampled a token and the one that trains on it, mean over tokens", "lag × updates per step, less in the first steps", "Older rollouts teach less; see loss/clip_low, loss/clip_high, loss/ratio_max. Lower ahead.lag."),
    Metric("ahead/staleness_max", "updates", "the oldest token of the same", "lag × updates per step", "As above."),
    Metric("ahead/staleness_steps", "steps", "the oldest token of the step, in steps (`ahead.in_flight` alone)", "at most ahead.max_staleness, by construction", "As above."),
    Metric("ahead/groups", "count", "groups that were being sampled or scored, or waited, when the step took its own (`ahead.in_flight` alone)", "prompts_per_step × max_staleness", "Fewer only at the end of a run."),
    Metric("ahead/dropped_groups", "count", "groups that had become older than ahead.max_staleness and were not trained on (`ahead.in_flight` alone)", "0 in most steps", "Rollouts thrown away: a few completions take longer than whole steps. Raise ahead.max_staleness, or lower sampling.max_completion_tokens."),
    Metric("ahead/batches", "count", "batches of later steps that were begun when the step took its own", "ahead.lag; fewer at the end", "More: the lag was lowered, and what was sampled before is trained on first."),
    Metric("ahead/sample_seconds", "seconds", "sampling this batch, in its own thread; with in_flight: its slowest group, from asking to the last token", "below the seconds of training in a step", "Above: training waits for sampling. More servers or shorter completions; a larger lag does not help."),
    Metric("ahead/score_seconds", "seconds", "scoring this batch, in its own thread", "below the seconds of training in a step", "Above: training waits for the reward functions. Make them faster; a larger lag does not help. Below, and training waits: a larger lag lets scoring, sampling and training overlap."),
    # ranks -------------------------------------------------------------------------------------------------------
    Metric("ranks/count", "count", "ranks that train together", "constant", "Changes only where a run was resumed on another number of ranks."),
    Metric("ranks/wait_share", "share", "seconds of all ranks spent until the last of them had come ÷ their seconds", "below 0.1", "That part of the devices stands by: ranks/slowest and ranks/behind/<stage> say for whom."),
    Metric("ranks/slowest", "rank", "the rank with the most seconds of work: its seconds without its waiting", "now this one, now that", "The same in every step: the others wait for it; the report says why."),
    Metric("ranks/behind", "seconds", "work of the slowest rank − mean work of the others", "below 5 % of time/step", "About as long the others wait for it in every step."),
    Metric("ranks/behind/<stage>", "seconds", "the same in the one stage where it is largest", "small", "rollout, update: uneven shares or a slower device. reward: slow reward functions there. observe, checkpoint: the main rank writes."),
    Metric("ranks/explained_by_tokens", "share", "(tokens of the slowest rank ÷ mean of the others − 1) × their seconds in that stage ÷ ranks/behind/<stage>; sampled tokens for rollout and reward, run ones for stages of training; 1 where the others have none", "any", "Above 0.5 the slowest rank simply has more to do: uneven shares. Near 0 it, its device or its host is slower."),
    Metric("ranks/tokens_per_second", "tokens/s", "rollout/tokens (trained tokens where nothing is sampled) ÷ time/step ÷ ranks/count", "near that of a single device", "What each device yields: its fall from one device to several is the price of working together."),
    # servers -----------------------------------------------------------------------------------------------------
    Metric("servers/ready", "count", "servers that have the weights of the step", "all of them", "Fewer: some are lost, and the others have their work. The run's messages name them and say why.", reduce="last"),
    Metric("servers/lost", "count", "servers lost while the step was sampled", "0", "Their completions were asked for elsewhere, with the same seeds: nothing is lost but time.", reduce="sum"),
    Metric("servers/moved", "count", "requests that moved to another server", "0", "Follows servers/lost.", reduce="sum"),
    Metric("servers/push_seconds", "seconds", "the last push of weights, from the pause to the last server that goes on", "a small part of time/rollout", "Large: a slow network between trainer and servers, or files on a slow disk (vllm.push).", reduce="last"),
    Metric("servers/<n>/tokens_per_second", "tokens/s", "tokens sampled there ÷ seconds until its last completion", "alike for all", "One below the others: a slower or shared device, or a queue that never fills."),
    Metric("servers/<n>/waiting", "count", "most requests that waited there for their turn (vLLM's num_requests_waiting, seen every second)", "above 0 for most of the step", "Always 0: the server could take more; fewer servers would do, or more prompts_per_step. Large on all: more servers would help.", reduce="max"),
)  # fmt: skip
"""In data-flow order. One line per metric reads better as a table, hence no line wrapping."""


def find_metric(name: str) -> Metric | None:
    """The row that explains a concrete name: exact names first, then placeholders. None: not a metric of ours."""
    exact = (metric for metric in METRICS if metric.name == name)
    return next(exact, None) or next((metric for metric in METRICS if metric.pattern.fullmatch(name)), None)


REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "max": max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


@functools.cache
def find_reduction(name: str) -> Callable[[Sequence[float]], float] | None:
    """How values of this name become one; None: by their mean, which who asks takes with its own weights."""
    metric = find_metric(name)
    return REDUCTIONS.get(metric.reduce) if metric else None
