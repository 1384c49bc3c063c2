"""Every metric that a run writes: unit, formula, healthy range, and the meaning of a bad value. No torch.

`docs/metrics.md` is generated from this table (docs/generators/metrics_page.py), and the dashboard takes its captions from it. A test
checks that every written metric has a row. Names are `<area>/<name>`, areas in data-flow order. `<part>` stands for a reward function,
`<set>` for an evaluation set, `<logged>` for a number that a reward function logged, `<k>` for a number of completions, `<stage>` for a
stage of the step.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

AREAS = {
    "rollout": "The completions of the step, before scoring.",
    "turns": "The turns of episodes (only with `[environment]`).",
    "tools": "Tool calls in these turns.",
    "reward": "The results of the reward functions. Rewards are never normalised.",
    "advantage": "The training signal computed from each group's rewards.",
    "teacher": "The distance from the policy to its teacher on the policy's own completions (only with `[teacher]`).",
    "loss": "The objective, averaged over the tokens and minibatches of the step.",
    "optim": "Gradients and optimizer steps.",
    "critic": 'PPO\'s value function (only with `advantage = "gae"`).',
    "reward_model": "The last fit of a learned reward model (only with `[reward_model]`); unchanged until the next fit.",
    "eval": "Results on held-out problems, sampled with the settings of [evaluation] and the same random numbers every time.",
    "time": "Wall-clock seconds of each stage of the step; on a GPU a stage ends when the device has finished it. They add up to time/step.",
    "perf": "Throughput, device utilisation and memory, to find the stage to optimise.",
    "ahead": "Rollouts sampled before their step (only with `ahead.lag` above 0), and how much older they are than the policy that trains on them.",
    "ranks": "Balance between the processes of a run (only with several ranks under torchrun); `ranks.jsonl` has every rank's seconds, waiting, tokens and memory by stage.",
    "servers": "The vLLM servers used for sampling (only with `sampling.servers`), as seen from the main rank; `<n>` is a server's place in the list, from 1.",
}

LARGEST = 1e100
"""Larger numbers are ignored when metrics are read: their sums and squares overflow, and JSON integers can exceed any float."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of docs/metrics.md."""

    name: str
    unit: str
    formula: str
    healthy: str
    bad: str
    """What a value outside the healthy range means, and what to check next."""
    reduce: str = "mean"
    """How the values of one step's optimizer steps or rounds of prompts are combined: mean, sum, max, first or last."""

    @property
    def area(self) -> str:
        return self.name.partition("/")[0]

    @property
    def pattern(self) -> re.Pattern[str]:
        """The name with placeholders as wildcards. Only <logged> may contain a slash."""
        text = re.escape(self.name).replace("<logged>", ".+").replace("<k>", r"\d+")
        return re.compile(re.sub(r"<\w+>", "[^/]+", text))


METRICS: tuple[Metric, ...] = (
    # rollout -----------------------------------------------------------------------------------------------------
    Metric("rollout/completions", "count", "prompts_per_step × group_size", "constant", "A drop means that prompts ran out or groups were dropped."),
    Metric("rollout/tokens", "count", "sampled tokens of all completions, stop tokens included", "follows length_mean", "Explains changes in step time, since sampling cost is proportional to it."),
    Metric("rollout/length_mean", "tokens", "mean sampled tokens per completion", "stable, or rising slowly with success", "A rise without a rise in success is padding; a fall to a few tokens means that the policy stopped reasoning."),
    Metric("rollout/length_max", "tokens", "longest completion of the step", "below sampling.max_completion_tokens", "At the limit in every step, some completions are truncated: see rollout/truncated."),
    Metric("rollout/length_right", "tokens", "mean sampled tokens of successes", "stable", "A fall to a few tokens means successes without reasoning."),
    Metric("rollout/length_wrong", "tokens", "the same for failures", "near length_right", "If only this grows, the policy pads what it cannot solve."),
    Metric("rollout/truncated", "share", "completions that ended at max_completion_tokens ÷ all", "below 0.1", "Truncated completions rarely contain an answer, so they score 0 for being long, not for being wrong. Raise sampling.max_completion_tokens, or check that the model knows its stop token."),
    Metric("rollout/distinct", "share", "mean over groups of distinct completions ÷ group_size", "above 0.5 for open tasks", "At 1 ÷ group_size every group consists of copies: no variance, no signal. Raise the temperature, unless the task is solved."),
    Metric("rollout/entropy", "nats per token", "mean of −log π_engine over sampled tokens, an estimate of the entropy that also covers groups without a gradient", "falling slowly", "A fall to a tenth or a threefold rise within one step: that update destroyed the policy. Lower the learning rate."),
    Metric("rollout/shared_rewarded", "share", "successes that contain one shared string, not explained by their reference answers ÷ all successes (docs/hacking-alarms.md)", "0", "Above 0.5 in several steps, the policy may exploit the verifier, or it is learning a required form; `evidence` in the row names rollouts."),
    Metric("rollout/other_number", "share", "successes whose extracted answer is another number than the reference answer ÷ successes where both are numbers", "0; constant if several numbers are right", "A rise means that the verifier accepts wrong numbers and the policy learns which."),
    Metric("rollout/prompt_tokens_mean", "tokens", "mean prompt length, template included", "constant", "A jump means that the mix of prompts has changed."),
    Metric("rollout/epoch", "epochs", "prompts drawn since the start ÷ prompts in the source", "below about 10", "Many passes over few prompts lead to memorisation; watch held-out pass@1 instead of the reward."),
    Metric("rollout/mismatch_mean", "nats", "mean |log π_trainer − log π_engine| over sampled tokens, before the first update of the step", "below 0.01 (bfloat16), 1e-5 (float32)", "Engine and trainer give different probabilities for the same policy. The mean hides outliers: check p95 and max.", reduce="first"),
    Metric("rollout/mismatch_p95", "nats", "95th percentile of the same", "below 0.05", "One token in twenty differs by at least this much: check for a different temperature, template or dtype.", reduce="first"),
    Metric("rollout/mismatch_max", "nats", "maximum of the same", "below 1", "A single large value is usually one very unlikely token; if p95 is large too, there is a bug or a stale weight.", reduce="first"),
    Metric("rollout/rounds", "count", "rounds of prompts drawn, the first included (`refill_rounds`)", "1 to 2", "At the limit in every step, few groups have both outcomes; a message says whether the task is too easy or too hard."),
    Metric("rollout/groups_drawn", "count", "groups sampled in the step, trained on or not", "up to twice prompts_per_step", "The cost of dynamic sampling: dropped rollouts take as long as kept ones."),
    Metric("rollout/groups_too_easy", "count", "groups drawn in which every verdict is a success", "below half of those drawn", "A rise means that the prompts are solved: add harder ones, or set prompt_choice = \"informative\"."),
    Metric("rollout/groups_too_hard", "count", "groups drawn in which every verdict is a failure", "below half of those drawn", "Use larger groups, easier prompts, or a cold start."),
    Metric("rollout/groups_surplus", "count", "useful groups beyond the batch, not trained on", "small", "These are discarded; fewer prompts_per_step waste less."),
    Metric("rollout/prompts_seen", "share", "prompts drawn at least once before this step (`prompt_choice = \"informative\"`)", "rising to 1", "Constant below 1: the run is too short to reach all prompts."),
    Metric("rollout/prompts_retired", "share", "prompts with the lowest probability because they are solved", "rising", "Near 1: the policy has learned the set."),
    Metric("rollout/prompts_hopeless", "share", "prompts with the lowest probability because their recent groups all failed", "small", "Large: much of the set is too hard for this policy."),
    Metric("rollout/expected_success", "share", "mean estimated success of all prompts drawn until now", "rising", "A fall means that the policy forgets."),
    # turns and tools -----------------------------------------------------------------------------------------------------
    Metric("turns/mean", "count", "the policy's turns per episode", "follows the task", "1 in every episode: the policy never acts. At environment.max_turns: see turns/at_limit."),
    Metric("turns/max", "count", "turns of the longest episode", "at most environment.max_turns", "At the limit in most steps, episodes do not finish: see turns/at_limit.", reduce="max"),
    Metric("turns/at_limit", "share", "episodes ended by environment.max_turns ÷ all", "below 0.1", "The policy does not finish: raise max_turns, or score unfinished episodes lower."),
    Metric("turns/read_tokens", "tokens", "tokens of replies per episode; they are not trained on and count in no length", "stable", "Long replies fill the memory: lower environment.max_observation_tokens, or shorten them at the source."),
    Metric("turns/read_share", "share", "tokens of replies ÷ all tokens of the episodes", "below 0.8", "Replies fill the context, and little of it is the policy's own text."),
    Metric("turns/cut", "count", "replies cut at environment.max_observation_tokens", "0", "The policy reads incomplete replies: raise the limit, or shorten them at the source.", reduce="sum"),
    Metric("turns/faults", "count", "episodes left unscored by a time-out, crash or exception of the environment", "0", "Read the fault in rollouts/; above train.max_fault_share the run stops.", reduce="sum"),
    Metric("turns/mean_seconds", "s", "seconds of the environment per turn", "below a decode step × tokens of a turn", "A slow environment: make its methods async, or raise environment.workers."),
    Metric("turns/max_seconds", "s", "the slowest turn", "well below environment.step_timeout_s", "Near the limit, episodes are lost to time-outs.", reduce="max"),
    Metric("tools/calls", "count", "tool calls per episode", "follows the task", "A fall to 0 while success does not rise: the policy has stopped asking. See tools/used."),
    Metric("tools/used", "share", "episodes with at least one call ÷ all", "follows the task", "A fall to 0 while success does not rise means that calls have become costly before they became useful."),
    Metric("tools/mistakes", "share", "calls that could not be read, named no tool, did not fit its types, or raised ÷ all calls", "below 0.1, falling", "The policy does not know the format: a cold start on demonstrations teaches it."),
    Metric("tools/mistakes/syntax", "count", "calls that could not be read", "0", "Not valid in the format of environment.format.", reduce="sum"),
    Metric("tools/mistakes/unknown_tool", "count", "calls of a tool that does not exist", "0", "The prompt may describe other tools.", reduce="sum"),
    Metric("tools/mistakes/arguments", "count", "calls whose arguments do not fit the annotations", "0", "Describe the arguments in the docstring.", reduce="sum"),
    Metric("tools/mistakes/raised", "count", "calls that raised an exception, whose text the policy has read", "0", "Bad input from the policy, or an error in the tool.", reduce="sum"),
    # reward ------------------------------------------------------------------------------------------------------
    Metric("reward/mean", "reward", "mean weighted sum of parts over scored completions", "rising", "Flat from the start: no useful groups, or too small a learning rate. Falling: the updates are too large."),
    Metric("reward/std", "reward", "standard deviation over scored completions", "above 0", "0: every completion has the same score, so the step teaches nothing."),
    Metric("reward/success", "share", "completions whose outcome part reached its threshold ÷ those with a verdict", "rising; learning is fastest near 0.5", "0 for many steps: the model is too weak for the task, or the verifier does not find the answers. Read some rollouts."),
    Metric("reward/unscored", "count", "completions without a value from any weighted part", "0", "They are excluded from every mean. Many of them mean that a reward function often abstains or fails.", reduce="sum"),
    Metric("reward/faults", "count", "exceptions, NaN, wrong types and similar faults of the reward functions", "0", "A bug in a reward function. The run stops if the share exceeds train.max_fault_share.", reduce="sum"),
    Metric("reward/timeouts", "count", "completions that hit the time limit of the verifier or the jail; they score 0", "near 0", "A rise means that the policy writes text that the verifier cannot handle, such as endless loops or huge numbers.", reduce="sum"),
    Metric("reward/inconsistent", "share", "sets of identical completions of one group whose rewards differ ÷ all such sets (absent without identical completions)", "0", "The reward is partly random: an LLM grader that samples, or a function that depends on something else."),
    Metric("reward/failed_extracts", "count", "completions whose answer could not be extracted because `extract` itself failed", "0", "They do not vote in maj@k; their rewards are not affected. Fix the function's `extract`.", reduce="sum"),
    Metric("reward/<part>/mean", "reward", "mean of one reward function before weighting, over its values other than None", "rising", "If one part rises while the outcome part falls, that is reward hacking: the policy takes the easier reward."),
    Metric("reward/<part>/std", "reward", "standard deviation of the same", "above 0", "0: this part no longer distinguishes completions and contributes nothing."),
    Metric("reward/<part>/none", "count", "completions on which this part abstained (returned None)", "0 unless it abstains by design", "The other parts still count.", reduce="sum"),
    Metric("reward/<part>/faults", "count", "completions on which this part failed: exception, NaN, wrong type", "0", "A bug in this function. The part has no value for these completions; their faults are in the `faults` column of rollouts/.", reduce="sum"),
    Metric("reward/<part>/timeouts", "count", "completions that hit this part's time limit", "near 0", "If honest answers need longer, raise its timeout_s. Otherwise the policy writes text that the part cannot handle.", reduce="sum"),
    Metric("reward/<part>/retried", "count", "completions scored one by one after a call on many of them failed", "0", "Slow; a single completion probably makes the batch call fail.", reduce="sum"),
    Metric("reward/<part>/verdict/<word>", "count", "completions by verdict: right, wrong, unevaluated, no_answer, unparsed, timeout, memory, output, files, crash, error, infrastructure", "right rising", "Many `no_answer` or `unparsed`: the policy does not write the answer where the verifier expects it. Many `unevaluated`: it copies the question instead of solving it. A rising limit such as `timeout`: it writes text that the verifier cannot handle. `infrastructure`: the verifier itself failed, and these completions are unscored.", reduce="sum"),
    Metric("reward/<part>/dropped_logs", "count", "logged values that could not be saved", "absent", "The rollouts do not contain everything that the function logged.", reduce="sum"),
    Metric("reward/<part>/steps", "count", "mean number of step rewards per completion (only with process rewards)", "the number of steps of the task", "1 instead of more: no steps were found, and a completion without steps counts as one wrong step."),
    Metric("reward/overlong/mean", "reward", "mean soft overlong penalty, 0 to −1 (`overlong_share`)", "near 0", "Far below 0: completions reach the limit; raise sampling.max_completion_tokens."),
    Metric("reward/verifier_agreement", "share", "AUC of the learned reward against the verifier's success in this step", "above 0.8", "A fall towards 0.5 within an iteration means that the policy found text that the reward model likes and the verifier rejects."),
    Metric("reward/<part>/seconds", "seconds", "wall-clock seconds spent in this reward function, also during sampling", "small compared with time/rollout", "The slowest part determines time/reward. If this is larger than time/reward, the rest overlapped with sampling.", reduce="sum"),
    Metric("reward/<part>/<logged>", "as logged", "mean of a number that the function logged", "see the function", "See the function."),
    # advantage ---------------------------------------------------------------------------------------------------
    Metric("advantage/useful_groups", "share", "groups whose rewards are not all equal ÷ all groups; 0 if dynamic sampling found none to train on", "above 0.3; expected 1 − pᴳ − (1−p)ᴳ at success rate p", "Only these groups teach. Low: the problems are too easy or too hard for this policy, or the groups too small."),
    Metric("advantage/zero_variance_groups", "count", "groups with exactly equal rewards", "below two thirds of the groups", "Every advantage is 0: these groups cost sampling time and give no signal."),
    Metric("advantage/dropped_groups", "count", "groups removed from the batch (fewer than two scores, zero_variance = \"drop\", or no useful one in dynamic sampling)", "0 with \"keep\"", "With \"keep\", every dropped group lost its scores to faults or abstentions."),
    Metric("advantage/all_correct_groups", "count", "groups in which every completion succeeded", "below half of the groups", "The prompts are now too easy: use harder ones."),
    Metric("advantage/all_wrong_groups", "count", "groups in which every completion failed", "below half of the groups", "The prompts are too hard: use larger groups, easier prompts, or a cold start on demonstrations."),
    Metric("advantage/std", "—", "standard deviation of all advantages of the step", "about √useful_groups for group_normalized", "Near 0: the step has almost no gradient."),
    Metric("advantage/abs_max", "—", "largest |advantage|", "at most √(group_size − 1) for group_normalized", "Above that bound the normalisation fails, usually for a group with nearly equal rewards."),
    Metric("advantage/lopsided_share", "share", "Σ |A| of groups with at most one success or at most one failure ÷ Σ |A| of all groups", "below 0.5 for groups of 8; not meaningful below 5", "Most of the gradient comes from prompts that nearly always fail or nearly always succeed. Dividing by the std increases it: a group of 8 with a single success has 0.66 of the weight of an even group, and 0.44 with advantage = \"group_centered\" (difficulty bias)."),
    # teacher -----------------------------------------------------------------------------------------------------
    Metric("teacher/gap", "nats per token", "mean of log π_sampled − log π_teacher over trained tokens: an estimate of the reverse KL", "falling towards 0", "If it does not fall, the learning rate or teacher.coef is too small, or the policy too small for its teacher. Values below 0 are noise from too few tokens."),
    Metric("teacher/gap_per_completion", "nats", "the same summed over each completion, mean over completions", "falling towards 0", "If it falls only with rollout/length_mean, completions get shorter, not closer to the teacher."),
    # loss --------------------------------------------------------------------------------------------------------
    Metric("loss/total", "—", "loss/policy + loss/kl_term − entropy_coef × entropy", "near 0", "Not a measure of progress: exactly on-policy it is 0 by construction, but its gradient is not. Watch reward and grad_norm."),
    Metric("loss/policy", "—", "the surrogate of the recipe's region (clip: −min(ρA, clip(ρ)A)), weighted by the aggregation", "near 0", "As above. A large magnitude means that minibatches are far off-policy."),
    Metric("loss/kl", "nats per token", "mean of k3 = exp(log π_ref − log π) − (log π_ref − log π) − 1", "0 at step 1, then slowly rising", "Not 0 at step 1: reference and policy differ from the start. Exploding: lower the learning rate or raise kl_coef."),
    Metric("loss/kl_coef", "—", "weight of the KL in this step", "constant; moving with kl_target", "At its bounds, a thousandth or a thousand times its start, the target cannot be reached."),
    Metric("loss/kl_term", "—", "the KL's part of loss/total: kl_coef × the recipe's estimator, weighted", "small compared with loss/policy's gradient", "Large: the pull to the reference outweighs the reward."),
    Metric("loss/kl_per_completion", "nats", "k3 summed over each completion, mean over completions", "below 5", "Beyond 5 to 10 nats the policy is far from the reference; gains are then often reward hacking."),
    Metric("loss/entropy", "nats per token", "mean of −Σ π log π over trained tokens", "falling slowly, above a tenth of its start", "After a collapse the policy stops exploring and groups consist of copies. Raise clip_high, temperature or entropy_coef."),
    Metric("loss/clip_low", "share", "trained tokens without gradient because their ratio is below 1 − clip_low (with A < 0)", "below 0.2; 0 on-policy", "Large: later minibatches are too far from the sampling policy. Use fewer minibatches or a lower learning rate."),
    Metric("loss/clip_high", "share", "the same above 1 + clip_high (with A > 0); dual_clip: also above its limit with A < 0; cispo: tokens at ratio_cap", "below 0.2; 0 on-policy", "As clip_low. If it is much larger than clip_low, a higher clip_high (0.28) preserves exploration."),
    Metric("loss/ratio_max", "ratio", "largest π ÷ π_old over trained tokens (sequence regions: over completions)", "1 on-policy; below 10", "Very large ratios come from tokens with almost no probability when they were sampled.", reduce="max"),
    Metric("loss/coefficient_mean", "—", "mean of −∂loss/∂log π over trained tokens: the gradient coefficient (on-policy GRPO: A + kl_coef (π_ref/π − 1))", "near 0 with a group baseline", "Far above 0: all tokens are pushed up (as in SFT). Far below: all tokens are pushed down, and the policy degenerates."),
    Metric("loss/coefficient_p05", "—", "5th percentile of the same", "about −1 to −3", "The strongest downward pushes. 0: nothing is pushed down."),
    Metric("loss/coefficient_p95", "—", "95th percentile of the same", "about 0.5 to 3", "The strongest upward pushes. 0 despite useful groups: the trust region clips everything."),
    Metric("loss/coefficient_abs_max", "—", "largest |coefficient|", "below 10", "One token dominates the update, because of an exploding ratio, or a reference that gives a token a much higher probability.", reduce="max"),
    Metric("loss/margin", "nats", "DPO: mean over pairs of beta × (log-ratio of chosen − of rejected)", "rising from 0", "Large and still rising: the policy memorises the pairs."),
    Metric("loss/preferred", "share", "DPO: pairs whose chosen completion has the larger log-ratio", "rising from 0.5 to 1", "Near 0.5: the policy cannot distinguish chosen from rejected."),
    Metric("loss/chosen_gain", "nats", "DPO: mean of log π − log π_ref summed over the chosen completion", "near or above 0", "Far below 0: chosen completions become less likely too, only less so than rejected ones. DPO constrains only the difference; if the two share most of their text, lowering one lowers the other. Raise kl_coef, lower the learning rate, or use a method that rewards the right answer itself."),
    Metric("loss/rejected_gain", "nats", "the same for the rejected completion", "below chosen_gain", "A fall without end means that the policy memorises the pairs."),
    Metric("loss/mismatch_weight", "ratio", "mean importance weight π_old ÷ π_engine (`mismatch_weight`)", "about 1", "Far from 1: engine and trainer are different policies."),
    Metric("loss/mismatch_cut", "share", "trained tokens whose weight was capped or masked", "below 0.01", "Large: the correction removes much of the batch; fix the engine instead."),
    Metric("loss/trained_tokens", "count", "tokens with a non-zero weight in the loss", "close to rollout/tokens", "Much smaller: masked tokens, dropped groups, or skipped zero-variance groups. 0: the step had no gradient; if every completion was masked, unscored or dropped, there was no update at all.", reduce="sum"),
    # optim -------------------------------------------------------------------------------------------------------
    Metric("optim/learning_rate", "—", "learning rate of the last optimizer step", "follows the schedule", "0 for the whole run: the warm-up is longer than the run.", reduce="last"),
    Metric("optim/grad_norm", "—", "global norm before clipping, mean over optimizer steps", "above 0, without trend", "0: nothing to learn (no useful group). Spikes: a few extreme tokens; clipping limits them."),
    Metric("optim/clipped", "share", "optimizer steps whose gradient was clipped to max_grad_norm ÷ all", "any; constant 1 is a rescaled learning rate", "Constantly 1: max_grad_norm determines the step size instead of the learning rate."),
    Metric("optim/skipped", "count", "optimizer steps skipped because loss or gradient was not finite", "0", "The weights do not change; three in a row stop the run. Lower the learning rate and check for extreme log-probs.", reduce="sum"),
    Metric("optim/policy_version", "count", "optimizer steps taken since the start", "rises by minibatches × passes", "Constant: every step was skipped or empty."),
    Metric("optim/weight_change", "—", "largest |change| of any parameter at the first update; absent if that has no gradient", "about the learning rate with AdamW", "0: the update was lost to rounding, or the learning rate is 0; the run does not train.", reduce="first"),
    # critic ------------------------------------------------------------------------------------------------------
    Metric("critic/loss", "—", "half the clipped squared error of the value, weighted like the policy's loss", "falling", "A rise means that the critic lags behind the policy; raise critic.learning_rate."),
    Metric("critic/explained_variance", "share", "1 − Var(return − value) ÷ Var(return)", "rising towards 1", "At or below 0 the critic is no better than a constant: PPO is then noisy REINFORCE."),
    Metric("critic/value_mean", "reward", "mean value over trained tokens", "near reward/mean", "Far off: the critic is biased, and so are the advantages before whitening."),
    Metric("critic/grad_norm", "—", "gradient norm of the critic before clipping", "without trend", "Spikes: returns with outliers."),
    Metric("critic/clipped_share", "share", "trained tokens whose value was clipped", "below 0.3", "Near 1: critic.clip is too small for the scale of the returns."),
    Metric("critic/skipped", "count", "updates of the critic skipped because its gradient was not finite", "0", "Three in a row stop the run.", reduce="sum"),
    # reward_model ------------------------------------------------------------------------------------------------
    Metric("reward_model/iteration", "count", "iteration of the step, from 1", "rises to reward_model.iterations", "Constant: the run is in its last iteration."),
    Metric("reward_model/accuracy", "share", "pairs of a right and a wrong completion of held-back prompts that the model ranks correctly", "above 0.8", "Near 0.5: it has learned nothing; use more prompts or epochs, or a larger learning rate."),
    Metric("reward_model/accuracy_before", "share", "the same before this fit", "below accuracy; from the second iteration on it shows how far the policy has moved", "A fall between iterations means that the policy outgrows the reward model; shorten the iterations."),
    Metric("reward_model/auc", "share", "probability that a right held-back completion scores above a wrong one, of any prompts", "above 0.8", "Far below accuracy: scores are not comparable between prompts, which training in groups does not need."),
    Metric("reward_model/loss", "—", "mean loss of the last pass over the labelled data", "below log 2 = 0.69", "At 0.69: no better than chance."),
    Metric("reward_model/held_back_loss", "—", "the same loss on held-back prompts", "near reward_model/loss", "Far above it: the model overfits; use fewer epochs."),
    Metric("reward_model/pairs", "count", "pairs that the model was fitted on", "hundreds", "Few: most groups are all right or all wrong."),
    Metric("reward_model/held_back_pairs", "count", "pairs that the model was evaluated on", "tens at least", "Few: the accuracy is a rough estimate."),
    Metric("reward_model/completions", "count", "completions that the model was fitted on", "reward_model.prompts × group_size, minus the held-back ones", "Fewer: the verifier gave no verdict on the rest."),
    Metric("reward_model/tokens", "count", "tokens sampled for labelling before this iteration", "in proportion to rollout/tokens", "They count towards the sampling budget of the run."),
    Metric("reward_model/seconds", "seconds", "labelling and fitting before this iteration", "a fraction of the iteration's time", "If it takes longer than the iteration's steps, use fewer prompts or epochs, or longer iterations."),
    Metric("reward_model/replayed", "count", "completions from earlier iterations that the model was fitted on", "a tenth of the new ones", "0 after the first iteration: replay_share is 0."),
    # eval --------------------------------------------------------------------------------------------------------
    Metric("eval/<set>/pass@<k>", "share", "mean over problems of 1 − C(n−c, k) ÷ C(n, k), with c successes of n completions", "rising; pass@1 most of all", "If pass@1 rises while pass@8 falls, the policy gets more certain of what it could already do and forgets the rest."),
    Metric("eval/<set>/maj@<k>", "share", "share of problems whose most common answer among k completions is right; ties count in part", "above pass@1", "Below pass@1: the policy's most common answer is often wrong, so its errors are systematic. Null: no reward extracts an answer."),
    Metric("eval/<set>/mean@<k>", "share", "mean success over the k completions of each problem", "equal to pass@1", "Included because papers use this name."),
    Metric("eval/<set>/greedy", "share", "success of one completion at temperature 0", "at or above pass@1", "Far above pass@1: the sampling temperature costs accuracy. Far below: greedy decoding loops."),
    Metric("eval/<set>/reward", "reward", "mean weighted reward over scored completions", "rising with pass@1", "If only this rises, other parts of the reward improve and the outcome does not."),
    Metric("eval/<set>/truncated", "share", "completions truncated at the token limit ÷ all", "below 0.1", "The token limit reduces accuracy."),
    Metric("eval/<set>/length_mean", "tokens", "mean sampled tokens per completion", "stable", "With pass@1 it distinguishes longer reasoning from padding."),
    Metric("eval/<set>/unscored", "count", "completions without a verdict", "0", "They are excluded; with many of them the results describe fewer completions."),
    # time --------------------------------------------------------------------------------------------------------
    Metric("time/wait", "seconds", "waiting for rollouts sampled ahead (only with `ahead.lag` above 0)", "near 0", "Training waits. ahead/sample_seconds and ahead/score_seconds show for what, and the report what to change."),
    Metric("time/rollout", "seconds", "sampling the completions, including the copy to the host", "the largest stage", "Grows with length. Use a shorter limit or a faster engine; see perf/engine_occupancy."),
    Metric("time/reward", "seconds", "reward functions, after the last sampled completion", "below a quarter of time/step", "The GPU waits for the reward functions. See reward/<part>/seconds."),
    Metric("time/prepare", "seconds", "turning rollouts into examples with advantages; host only", "below 5 % of time/step", "Grows only with rollout/tokens."),
    Metric("time/old", "seconds", "log-probs of the policy before its first update, if needed", "absent on-policy", "Not needed with one minibatch and one pass per step."),
    Metric("time/reference", "seconds", "log-probs of the reference, and updates of a moving reference", "below half of time/update", "Not needed with kl_coef = 0 and without monitors.kl."),
    Metric("time/teacher", "seconds", "log-probs of the teacher", "below time/update for a teacher of the policy's size", "Grows with the teacher; use a smaller one, or fewer completions."),
    Metric("time/critic", "seconds", "PPO's values before the update", "below half of time/update", "Every advantage except \"gae\" needs no critic."),
    Metric("time/pack", "seconds", "laying out micro-batches; host only", "below 5 % of time/step", "Grows with the tokens of the batch; larger micro_batch_tokens help a little."),
    Metric("time/update", "seconds", "forward and backward of every micro-batch", "below or near time/rollout", "Use larger micro-batches (micro_batch_tokens) while memory lasts; results do not change. See perf/update_mfu."),
    Metric("time/optimizer", "seconds", "gradient clipping, the optimizer steps, and the metrics of the update", "small compared with time/update", "Does not depend on the batch: use more prompts_per_step or fewer minibatches_per_step."),
    Metric("time/observe", "seconds", "metrics, signs of hacking, rollouts/, and the monitors of the previous step", "below 5 % of time/step", "Raise monitors.rollouts_every, or write to a faster disk."),
    Metric("time/evaluate", "seconds", "held-out evaluation, when the step evaluated", "a small share over the run", "Raise evaluation.every_steps or lower evaluation.every_problems."),
    Metric("time/checkpoint", "seconds", "copying the state after the previous step, and waiting for a checkpoint that is still being written; summary.json (`saving`) also covers saves after the last step", "at most 2 % of a run", "Waits: raise checkpoints.every_steps, or write to a faster disk; see perf/checkpoint_seconds. Every save warns if no host memory is free for the copy."),
    Metric("time/step", "seconds", "the whole step: the sum of the stages above", "steady", "A slow rise follows completion length; a jump usually means another process on the machine."),
    # perf --------------------------------------------------------------------------------------------------------
    Metric("perf/slowest_stage_share", "share", "the longest of the stages above ÷ time/step", "rollout or update, below 0.9", "The report names the stage and what to change; speeding up all others can gain at most the rest."),
    Metric("perf/host_share", "share", "(time/prepare + time/pack + time/observe) ÷ time/step", "below 0.05 on a GPU", "The GPU waits for Python; the three stages show where."),
    Metric("perf/rollout_tokens_per_second", "tokens/s", "rollout/tokens ÷ time/rollout", "steady", "Falls when only a few long completions are still being sampled."),
    Metric("perf/engine_occupancy", "share", "rows that decoded ÷ slots, mean over decode steps", "above 0.7", "Slots are idle: use fewer slots, more prompts_per_step, or a lower limit for the few long completions."),
    Metric("perf/engine_slots", "count", "completions decoded in parallel", "constant", "If few, and memory is free, raise sampling.slots."),
    Metric("perf/engine_decode_steps", "count", "decode steps: one token for every active completion", "near rollout/tokens ÷ slots", "Far above: slots are idle, see engine_occupancy.", reduce="sum"),
    Metric("perf/engine_checks", "count", "times that the host waited for the device to learn which completions have finished", "far below decode_steps on a GPU", "Near decode_steps: the device waits for Python after every token.", reduce="sum"),
    Metric("perf/engine_prefills", "count", "batches of prompts that were run", "a few", "Many: prompts arrive in small batches; use more slots.", reduce="sum"),
    Metric("perf/engine_graphs", "count", "CUDA graphs held", "constant after the first steps; 0 on a CPU, or if the model synchronises with the host", "If it grows, shapes keep changing and each needs a new capture."),
    Metric("perf/engine_<figure>", "as counted", "any other count of the engine's last call", "depends on the engine", "Compare between runs of the same recipe."),
    Metric("perf/train_tokens_per_second", "tokens/s", "loss/trained_tokens ÷ time/update", "steady", "Low with short completions after long prompts, and with small micro-batches."),
    Metric("perf/executed_tokens_per_second", "tokens/s", "tokens run through the policy (prompts, and padding if any) ÷ time/update", "steady", "The hardware's rate. If far above train_tokens_per_second, most work goes into prompts."),
    Metric("perf/update_mfu", "share", "6 × (body × tokens run + head × tokens trained) ÷ (time/update × peak); 4 × with a frozen base; known GPUs in 16 bits only", "above 0.3", "Low: micro-batches too small to fill the device (micro_batch_tokens), or a very small model."),
    Metric("perf/micro_batches", "count", "forward-backward passes of the step, over all ranks", "several per rank and optimizer step", "Fewer than ranks: some ranks are idle. Lower train.micro_batch_tokens, or use fewer ranks.", reduce="sum"),
    Metric("perf/padding_share", "share", "padding ÷ tokens run", "0", "Rows of different lengths are padded because the model cannot be packed."),
    Metric("perf/shared_share", "share", "tokens saved by running each group's prompt only once ÷ tokens of the rows trained on", "up to prompt ÷ (prompt + completion)", "0 with long prompts: the model cannot share prompts, or sharing saves too little."),
    Metric("perf/skipped_share", "share", "tokens not run because they have no gradient (advantage 0) ÷ tokens that could be trained on", "1 − useful_groups, or 0 if a KL or entropy term applies to all tokens", "High: most rollouts teach nothing; see advantage/useful_groups."),
    Metric("perf/tokens_per_second", "tokens/s", "rollout/tokens ÷ time/step", "steady", "Determines how long the run takes."),
    Metric("perf/peak_memory_gib", "GiB", "peak memory of the device (CUDA) or of the process (CPU)", "flat after the first steps", "A steady rise is a leak. Near the limit, use smaller micro_batch_tokens or fewer slots."),
    Metric("perf/checkpoint_seconds", "seconds", "writing, hashing and syncing the last checkpoint, while training continued; in the first row after it was complete", "below the time of checkpoints.every_steps steps", "Longer: the next save waits for it. Raise checkpoints.every_steps, or set runs_folder to a faster disk."),
    Metric("perf/checkpoint_bytes_per_second", "bytes/s", "bytes of the checkpoint ÷ perf/checkpoint_seconds", "near the speed of the disk", "Far below: a busy or remote disk. Raise checkpoints.every_steps, or set runs_folder to a faster disk."),
    # ahead -------------------------------------------------------------------------------------------------------
    Metric("ahead/staleness_mean", "updates", "optimizer updates between the policy that sampled a token and the one that trains on it, mean over tokens", "lag × updates per step, less in the first steps", "Older rollouts teach less; see loss/clip_low, loss/clip_high, loss/ratio_max. Lower ahead.lag."),
    Metric("ahead/staleness_max", "updates", "the oldest token of the same", "lag × updates per step", "As above."),
    Metric("ahead/staleness_steps", "steps", "the oldest token of the step, in steps (only with `ahead.in_flight`)", "at most ahead.max_staleness, by construction", "As above."),
    Metric("ahead/groups", "count", "groups in sampling, in scoring or ready when the step took its own (only with `ahead.in_flight`)", "prompts_per_step × max_staleness", "Fewer only at the end of a run."),
    Metric("ahead/dropped_groups", "count", "groups not trained on because they were older than ahead.max_staleness (only with `ahead.in_flight`)", "0 in most steps", "Rollouts are discarded because a few completions take longer than whole steps. Raise ahead.max_staleness, or lower sampling.max_completion_tokens."),
    Metric("ahead/batches", "count", "batches of later steps already started when the step took its own", "ahead.lag; fewer at the end", "More: the lag was lowered, and batches sampled before are trained on first."),
    Metric("ahead/sample_seconds", "seconds", "sampling this batch, in its own thread; with in_flight: its slowest group, from request to last token", "below the training seconds of a step", "Above: training waits for sampling. Use more servers or shorter completions; a larger lag does not help."),
    Metric("ahead/score_seconds", "seconds", "scoring this batch, in its own thread", "below the training seconds of a step", "Above: training waits for the reward functions. Make them faster; a larger lag does not help. If it is below and training still waits, a larger lag lets sampling, scoring and training overlap."),
    # ranks -------------------------------------------------------------------------------------------------------
    Metric("ranks/count", "count", "ranks that train together", "constant", "Changes only when a run is resumed on another number of ranks."),
    Metric("ranks/wait_share", "share", "seconds that ranks waited for the slowest one ÷ seconds of all ranks", "below 0.1", "The devices are idle for this share: ranks/slowest and ranks/behind/<stage> show which rank they wait for."),
    Metric("ranks/slowest", "rank", "the rank with the most work, in seconds without waiting", "varies", "The same in every step: the others wait for it; the report says why."),
    Metric("ranks/behind", "seconds", "work of the slowest rank − mean work of the others", "below 5 % of time/step", "The others wait for it about this long in every step."),
    Metric("ranks/behind/<stage>", "seconds", "the same in the stage where it is largest", "small", "rollout, update: uneven shares or a slower device. reward: slow reward functions on that rank. observe, checkpoint: the main rank writes files."),
    Metric("ranks/explained_by_tokens", "share", "(tokens of the slowest rank ÷ mean of the others − 1) × their seconds in that stage ÷ ranks/behind/<stage>; sampled tokens for rollout and reward, executed tokens for training stages; 1 if the others have none", "any", "Above 0.5, the slowest rank has more tokens to process. Near 0, its device or host is slower."),
    Metric("ranks/tokens_per_second", "tokens/s", "rollout/tokens (trained tokens if nothing is sampled) ÷ time/step ÷ ranks/count", "near that of a single device", "Throughput per device; the loss from one device to several is the cost of parallelism."),
    # servers -----------------------------------------------------------------------------------------------------
    Metric("servers/ready", "count", "servers that have the weights of the step", "all of them", "Fewer: some servers are lost and the others do their work. Messages name the lost servers and the reasons.", reduce="last"),
    Metric("servers/lost", "count", "servers lost while the step was sampled", "0", "Their completions were requested from other servers with the same seeds: only time is lost.", reduce="sum"),
    Metric("servers/moved", "count", "requests moved to another server", "0", "See servers/lost.", reduce="sum"),
    Metric("servers/push_seconds", "seconds", "the last weight update of the servers, from pausing them until all have resumed", "a small part of time/rollout", "Large: a slow network between trainer and servers, or files on a slow disk (vllm.push).", reduce="last"),
    Metric("servers/<n>/tokens_per_second", "tokens/s", "tokens sampled on the server ÷ seconds until its last completion", "similar for all", "If one is below the others, its device is slower or shared, or its queue never fills."),
    Metric("servers/<n>/waiting", "count", "largest number of waiting requests on the server (vLLM's num_requests_waiting, polled every second)", "above 0 for most of the step", "Always 0: the server has spare capacity; use fewer servers, or more prompts_per_step. Large on all servers: more servers would help.", reduce="max"),
)  # fmt: skip
"""In data-flow order. Not wrapped, so that it reads like a table."""


def find_metric(name: str) -> Metric | None:
    """The row for a concrete metric name, exact names before placeholders; None if it is not a metric of Cohort."""
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
    """The function that combines several values of this metric; None for the mean, which the caller computes with its own weights."""
    metric = find_metric(name)
    return REDUCTIONS.get(metric.reduce) if metric else None
