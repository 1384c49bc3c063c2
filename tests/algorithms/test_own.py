"""A user's functions among the choices: what is imported and when, what is refused and in which words, what is written down."""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import torch

from cohort.algorithms.advantages import TokenCredit
from cohort.algorithms.compatibility import explain_idle
from cohort.algorithms.named import OWN_KINDS
from cohort.algorithms.regions import unbounded
from cohort.algorithms.registry import READABLE, AdvantageTraits, BadChoice, Kind, RegionTraits, make_choice
from cohort.errors import RecipeError, RunError
from cohort.model.examples import make_examples
from cohort.model.packing import pack
from cohort.observe.diagnosis.checks import diagnose
from cohort.observe.monitors import build_monitors, drop_monitors
from cohort.observe.report.page import write_report
from cohort.observe.run_folder import RunFolder
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.describe import describe_algorithm
from cohort.recipe.file import build_recipe, load_recipe
from cohort.recipe.user_functions import make_document, parse_own, resolve_own, resolve_recipe
from cohort.training.credit import Credit, check_rows
from cohort.training.objective import has_ratio, pushes_on_all_tokens, token_loss, weigh_tokens
from conftest import library_loss_and_gradients, ragged_examples, rollout, tiny_policy

SOURCE = '''
"""Functions of somebody's own."""
import functools
from pathlib import Path
import torch
from cohort.algorithms.registry import Setting, advantage, aggregation, region

Path(__file__).with_name("imported").write_text("the module was imported")


def centred(rewards_PG, scored_PG, *, scale=1.0, clip_low):
    """Reward minus the mean,
    of its group.

    More about it.
    """
    return scale * (rewards_PG - rewards_PG.mean(1, keepdim=True))


@advantage(compares_group=False, never_negative=True)
def raw(rewards_PG, scored_PG):
    return rewards_PG


@region(needs_ratio=False, idle_at_zero=True, settings=[Setting("power", 2, "An exponent.", gt=0, le=4)])
def powered(tokens, *, power, floor):
    return -tokens.advantages_M * tokens.policy_logprobs_M * (floor + power)


def bare(tokens):
    return -tokens.advantages_M * torch.exp(tokens.policy_logprobs_M - tokens.old_logprobs_M)


def halves(lengths_N, *, share=0.5, capped=False, word="x", parts=(1, 2)):
    return [share for _ in lengths_N]


def reads_odd(reward_PG):
    return reward_PG


def open_ended(rewards_PG, **rest):
    return rewards_PG


def doubled(function):
    @functools.wraps(function)
    def call(*inputs, **told):
        return 2 * function(*inputs, **told)

    return call


@doubled
@advantage(compares_group=False)
def twice(rewards_PG, *, scale=1.0):
    return scale * rewards_PG


@advantage(per_token=True)
def discounted(token_rewards_N, *, share=0.5):
    return [rewards_M.flip(0).cumsum(0).flip(0) * share for rewards_M in token_rewards_N]


number = 3
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with somebody's module in it, which is the current one."""
    (tmp_path / "somebodys.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "somebodys", raising=False)
    importlib.invalidate_caches()
    yield tmp_path
    sys.modules.pop("somebodys", None)


def words(**changed):
    return AlgorithmConfig(**changed).model_dump()


def algorithm(**changed) -> AlgorithmConfig:
    made = AlgorithmConfig(**changed)
    return made.resolved(resolve_own(made.model_dump()))


# -- resolving -----------------------------------------------------------------------------------------------------------


def test_a_function_without_a_decorator_compares_its_group_and_nothing_else_is_assumed(mine):
    own = resolve_own(words(advantage="somebodys:centred", region="somebodys:bare", aggregation="somebodys:halves"))
    assert list(own) == ["advantage", "region", "aggregation"]
    chosen = own["advantage"]
    assert (chosen.name, chosen.sentence) == ("somebodys:centred", "Reward minus the mean, of its group.")
    assert (chosen.reads, chosen.parameters) == (("rewards_PG", "scored_PG"), ("scale", "clip_low"))
    assert (chosen.traits, own["region"].traits) == (AdvantageTraits(), RegionTraits())
    assert chosen.digest == hashlib.sha256(SOURCE.encode()).hexdigest() == own["region"].digest
    made = algorithm(region="somebodys:bare", kl_coef=0.0)
    assert has_ratio(made)  # so old log-probs are computed
    assert pushes_on_all_tokens(made)  # so no forward is left out


def test_a_decorator_states_traits_and_the_recipe_the_name(mine):
    made = algorithm(advantage="somebodys:raw", region="somebodys:powered", args={"floor": 0.5}, kl_coef=0.0)
    assert made.chosen.advantage.name == "somebodys:raw"
    assert made.chosen.advantage.traits == AdvantageTraits(compares_group=False, never_negative=True)
    assert not has_ratio(made)
    assert not pushes_on_all_tokens(made)
    assert made.read_parameters(made.chosen.region) == {"power": 2, "floor": 0.5}


def test_a_decorator_above_ours_is_called_too_and_keeps_the_facts(mine):
    choice = algorithm(advantage="somebodys:twice", kl_coef=0.0).chosen.advantage
    assert choice.traits.compares_group is False
    assert choice.call({"scale": 3.0}, rewards_PG=torch.ones(1, 2)).tolist() == [[6.0, 6.0]]


def test_parameters_are_words_of_the_algorithm_or_of_args_and_else_their_own_default(mine):
    made = algorithm(advantage="somebodys:centred", clip_low=0.1)
    assert made.read_parameters(made.chosen.advantage) == {"scale": 1.0, "clip_low": 0.1}
    made = algorithm(advantage="somebodys:centred", args={"scale": 3})  # a whole number will do for a float
    assert made.read_parameters(made.chosen.advantage) == {"scale": 3, "clip_low": 0.2}


REFUSED = {
    "no module": ({"advantage": "nowhere_at_all:f"}, "algorithm.advantage: cannot import nowhere_at_all:f"),
    "no function": ({"advantage": "somebodys:centered"}, r"has no function 'centered'; did you mean 'centred'\?"),
    "no function, but a number": ({"region": "somebodys:number"}, "algorithm.region: cannot use somebodys:number: it is of type int"),
    "unknown input": ({"advantage": "somebodys:reads_odd"}, "reads 'reward_PG'; the inputs are rewards_PG, scored_PG"),
    "open signature": ({"advantage": "somebodys:open_ended"}, r"takes \*\*rest: name its inputs"),
    "another kind": ({"advantage": "somebodys:powered"}, "is decorated as @region; use it for algorithm.region"),
    "no signature": ({"advantage": "builtins:print"}, "algorithm.advantage: "),
    "no source": ({"aggregation": "builtins:sorted"}, "algorithm.aggregation: "),
    "missing": ({"region": "somebodys:powered"}, r"needs 'floor', which has no default: set algorithm\.args\.floor"),
    "unknown": ({"advantage": "somebodys:centred", "args": {"scaled": 1.0}}, r"args\.scaled: .* did you mean 'scale'\? Known parameters: scale\."),
    "a word": ({"advantage": "somebodys:centred", "args": {"clip_low": 0.1}}, r"this is a key of \[algorithm\]; set algorithm\.clip_low"),
    "type": ({"advantage": "somebodys:centred", "args": {"scale": "two"}}, r"args\.scale: Input should be a valid number .*\(got 'two', its default is 1\.0"),
    "no boolean": ({"aggregation": "somebodys:halves", "args": {"share": True}}, r"args\.share: Input should be a valid number .*got True"),
    "boolean": ({"aggregation": "somebodys:halves", "args": {"capped": 1}}, r"args\.capped: Input should be a valid boolean .*got 1"),
    "text": ({"aggregation": "somebodys:halves", "args": {"word": 1}}, r"args\.word: Input should be a valid string .*got 1"),
    "list": ({"aggregation": "somebodys:halves", "args": {"parts": 1}}, r"args\.parts: Input should be a valid list .*got 1"),
    "infinite": ({"advantage": "somebodys:centred", "args": {"scale": float("inf")}}, r"args\.scale: Input should be a finite number .*got inf"),
    "below": ({"region": "somebodys:powered", "args": {"floor": 1.0, "power": 0}}, r"args\.power: Input should be greater than 0 \(got 0, its default is 2"),
    "above": ({"region": "somebodys:powered", "args": {"floor": 1.0, "power": 5}}, "less than or equal to 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_with_the_field_and_the_fix(mine, case):
    given, said = REFUSED[case]
    with pytest.raises(RecipeError, match=said):
        resolve_own(words(**given))


def test_rules_for_built_in_choices_hold_for_a_users_function_once_it_is_known(mine):
    def resolve(**changed):
        return resolve_recipe(build_recipe(changed))

    own = {"advantage": "somebodys:centred"}
    build_recipe({"algorithm": own, "train": {"group_size": 1}})  # nothing is known of it yet, so nothing is refused
    with pytest.raises(
        RecipeError, match=r"train\.group_size: with advantage 'somebodys:centred' the group is its own baseline"
    ):
        resolve(algorithm=own, train={"group_size": 1})
    resolve(algorithm={"advantage": "somebodys:raw"}, train={"group_size": 1})  # its decorator says that it compares nothing
    with pytest.raises(
        RecipeError, match=r'zero_variance "drop" does not fit: advantage .* also learns from groups with equal rewards'
    ):
        resolve(algorithm={"advantage": "somebodys:raw", "zero_variance": "drop"})
    with pytest.raises(RecipeError, match="data 'start' is never sampled again"):
        resolve(algorithm={"region": "somebodys:bare", "data": "start", "kl_coef": 0.0})
    whole = {"region": "sequence", "kl_coef": 0.0}
    build_recipe({"algorithm": whole | {"advantage": "global_normalized"}})  # undiscounted, so one value for all tokens
    with pytest.raises(RecipeError, match="region 'sequence' needs one advantage per completion"):
        resolve(algorithm=whole | {"advantage": "somebodys:discounted"})
    with pytest.raises(RecipeError, match="region 'dpo' and advantage 'best_and_worst' belong together"):
        resolve(algorithm=own | {"region": "dpo", "aggregation": "prompt_mean"})


def test_reading_a_recipe_and_a_run_folder_imports_nothing(mine):
    recipe = load_recipe(values={"advantage": "somebodys:centred", "algorithm.args": {"scale": 2.0}})
    assert "somebodys:centred" in describe_algorithm(recipe.algorithm)
    run = mine / "run"
    run.mkdir()
    (run / "recipe.toml").write_text('[algorithm]\nadvantage = "somebodys:centred"\n')
    assert RunFolder(run).recipe().algorithm.chosen.known is False
    write_report(run)
    assert "somebodys:centred" in (run / "report.html").read_text()
    assert not (mine / "imported").exists()
    resolve_recipe(recipe)
    assert (mine / "imported").exists()  # the canary sings


def test_the_page_lists_what_a_function_may_read():
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = [f"| {kind} | `{name}` | {said} |" for kind in OWN_KINDS for name, said in READABLE[kind].items()]
    assert "| of | it may name | which is |\n|---|---|---|\n" + "\n".join(rows) + "\n\n" in page


# -- words ---------------------------------------------------------------------------------------------------------------


def test_a_word_that_a_users_function_names_has_an_effect(mine):
    made = algorithm(advantage="somebodys:centred", region="none", clip_low=0.1)
    without = explain_idle(made.model_dump(), made.own)
    assert "clip_low" not in without  # region none reads no clip range; the advantage does
    assert "clip_high" in without
    assert explain_idle(made.model_dump()) == {}  # unresolved: nothing is said


def test_an_algorithm_is_described_with_what_its_functions_are_told(mine):
    given = {"advantage": "somebodys:centred", "region": "somebodys:powered", "args": {"floor": 0.5, "scale": 2.0}}
    text = describe_algorithm(algorithm(**given))
    assert "-> somebodys:centred (scale 2, clip_low 0.2) -> somebodys:powered (power 2, floor 0.5) -> sequence_mean;" in text
    assert "advantage somebodys:centred instead of group_normalized" in text
    assert "args" not in text


# -- algorithm.json ------------------------------------------------------------------------------------------------------


@pytest.fixture
def known(mine):
    made = algorithm(advantage="somebodys:raw", region="somebodys:powered", args={"floor": 0.5})
    return made, json.loads(json.dumps(make_document(made.own, made.args)))


def test_facts_come_back_from_the_document_as_they_were_without_the_function(known):
    made, document = known
    assert document["region"]["args"] == {"floor": 0.5}
    assert document["region"]["parameters"] == {"power": {"default": 2}, "floor": {}}
    read = made.resolved(parse_own(document, made.model_dump()))
    for kind in ("advantage", "region"):
        now, then = read.own[kind], made.own[kind]
        assert now.function is None
        assert (now.name, now.digest, now.traits, now.reads, now.parameters, now.sentence) == (
            then.name, then.digest, then.traits, then.reads, then.parameters, then.sentence
        )  # fmt: skip
    assert describe_algorithm(read) == describe_algorithm(made)
    assert explain_idle(read.model_dump(), read.own) == explain_idle(made.model_dump(), made.own)


def test_arguments_that_json_has_no_word_for_are_written_as_text(mine):
    made = algorithm(aggregation="somebodys:halves", args={"parts": [1, 2]})
    later = {"parts": date(2026, 1, 2), "share": 0.25}
    assert json.loads(json.dumps(make_document(made.own, later)))["aggregation"]["args"] == {
        "share": 0.25,
        "parts": "2026-01-02",
    }


def test_an_entry_of_a_function_that_the_recipe_no_longer_names_is_not_used(known):
    document = known[1]
    assert list(parse_own(document, words(region="somebodys:powered", args={"floor": 1}))) == ["region"]


DAMAGED = {
    "a list": (lambda d: [], "object"),
    "from the future": (lambda d: d | {"version": 2}, "version: Input should be 1"),
    "unknown key": (lambda d: d | {"kl": {}}, "kl: Extra inputs are not permitted"),
    "no table": (lambda d: d | {"region": "x"}, "region: "),
    "another key": (lambda d: set_in(d, "region", "code", value="import os"), "region.code: Extra inputs"),
    "function": (lambda d: set_in(d, "region", "function", value="os.system('x')"), "region.function"),
    "digest": (lambda d: set_in(d, "region", "digest", value="../../x"), "region.digest"),
    "sentence": (lambda d: set_in(d, "region", "sentence", value=[1]), "region.sentence"),
    "reads": (lambda d: set_in(d, "region", "reads", value=["__class__"]), "region.reads"),
    "reads no list": (lambda d: set_in(d, "region", "reads", value={"tokens": 1}), "region.reads"),
    "unknown trait": (lambda d: set_in(d, "region", "traits", "magic", value=True), "region.traits.magic: "),
    "trait of another type": (lambda d: set_in(d, "region", "traits", "needs_ratio", value="no"), "region.traits.needs_ratio"),
    "fits no list": (lambda d: set_in(d, "advantage", "traits", "fits", value="policy"), "advantage.traits.fits"),
    "traits no table": (lambda d: set_in(d, "region", "traits", value=[]), "region.traits"),
    "parameter name": (lambda d: set_in(d, "region", "parameters", "a b", value={}), "region.parameters.a b"),
    "parameter": (lambda d: set_in(d, "region", "parameters", "floor", value=3), "region.parameters.floor"),
    "default": (lambda d: set_in(d, "region", "parameters", "floor", value={"default": {"a": 1}}), "floor.default"),
    "default not finite": (lambda d: set_in(d, "region", "parameters", "floor", value={"default": float("nan")}), "floor.default"),
    "no value": (lambda d: set_in(d, "region", "parameters", "more", value={}), "does not fit the recipe: .* needs 'more'"),
}  # fmt: skip


def set_in(document, *path, value):
    changed = node = copy.deepcopy(document)
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return changed


@pytest.mark.parametrize("case", DAMAGED)
def test_a_strangers_document_is_data_and_held_to_its_form(known, case):
    made, document = known
    damage, said = DAMAGED[case]
    with pytest.raises(BadChoice, match=said):
        parse_own(damage(document), made.model_dump())


def test_a_damaged_document_is_said_by_the_run_folder_and_does_not_stop_the_report(known):
    made, _ = known
    run = RunFolder.create(build_recipe({"name": "run", "algorithm": made.model_dump()}))
    run.keep_own_functions(made)
    run.unlock()
    assert run.recipe().algorithm.chosen.region.traits.needs_ratio is False
    assert "somebodys:powered (power 2, floor 0.5)" in report_of(run)
    for text in ("{", "[" * 100_000, '{"version": 1, "region": {}}', "x" * (1 << 21)):
        run.own_file.write_text(text)
        with pytest.raises(RunError, match=r"algorithm\.json cannot be used"):
            run.recipe()
        page = report_of(run)
        assert "algorithm.json cannot be used" in page
        assert "somebodys:powered" in page


def report_of(run: RunFolder) -> str:
    return write_report(run.root).read_text()


def test_what_a_function_says_of_itself_is_escaped_in_the_report(known):
    made, document = known
    run = RunFolder.create(build_recipe({"name": "run", "algorithm": made.model_dump()}))
    run.write_json(run.own_file, set_in(document, "region", "sentence", value="<script>alert(1)</script>\x1b[2J\x07"))
    page = report_of(run)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\x07" in page  # nor does it steer a terminal that shows the page
    assert "<script>alert" not in page
    assert "\x1b" not in page


def test_another_source_is_refused_with_both_digests(known):
    made, document = known
    run = RunFolder.create(build_recipe({"name": "run", "algorithm": made.model_dump()}))
    run.keep_own_functions(made)
    run.keep_own_functions(made)  # as it was: nothing to say
    other = set_in(document, "region", "digest", value="0" * 64)
    run.write_json(run.own_file, other)
    with pytest.raises(
        RunError, match=f"source of somebodys:powered .*then {'0' * 64}, now {made.own['region'].digest}.*restore"
    ):
        run.keep_own_functions(made)
    run.own_file.unlink()
    run.metrics_file.write_text("{}\n")
    with pytest.raises(RunError, match=r"algorithm\.json is missing"):
        run.keep_own_functions(made)


def test_diagnosis_asks_the_document_whether_the_advantage_compares_groups(known):
    made, _ = known
    rows = [{"step": step, "advantage/useful_groups": 0.0, "reward/success": 0.5, "reward/mean": 0.5} for step in range(1, 30)]
    recipe = {"algorithm": made.model_dump()}
    keys = {finding.name for finding in diagnose(rows, recipe)}
    assert keys - {finding.name for finding in diagnose(rows, recipe, own=made.own)} == {"no_useful_groups"}
    built = build_recipe({"name": "run", "algorithm": made.model_dump()})
    run = RunFolder.create(built)
    run.keep_own_functions(made)
    watch = build_monitors(drop_monitors(built), run.root).watch
    assert watch.own["advantage"].traits.compares_group is False
    assert build_monitors(drop_monitors(build_recipe({})), run.root).watch.own == {}


# -- what they give ------------------------------------------------------------------------------------------------------


def credit(function, **traits):
    """Examples that a user's advantage credited: two groups of two, completions of 3 tokens, rewards 0, 1, 2, 3."""
    rollouts = [rollout(place // 2, place % 2, float(place), length=3) for place in range(4)]
    made = with_function("advantage", function, **traits)
    scored_PG = torch.ones(2, 2, dtype=torch.bool)
    return Credit(rollouts, scored_PG, made, 0.0, lambda ids: "").advantages(make_examples(rollouts))


def with_function(kind: Kind, function, **traits) -> AlgorithmConfig:
    choice = replace(make_choice(kind, function, "mine:f", (), traits), digest="d" * 64)
    return AlgorithmConfig(**{kind: "mine:f"}, kl_coef=0.0).resolved({kind: choice})


def test_an_advantage_is_laid_on_the_tokens_of_its_completion():
    examples = credit(lambda rewards_PG, scored_PG: rewards_PG * 10)
    assert [example.advantages_T.tolist() for example in examples] == [[0.0] * 3, [10.0] * 3, [20.0] * 3, [30.0] * 3]
    examples = credit(lambda lengths_N: [torch.arange(3.0) for _ in lengths_N], per_token=True)
    assert [example.advantages_T.tolist() for example in examples] == [[0.0, 1.0, 2.0]] * 4
    examples = credit(lambda lengths_N: [torch.ones(3, requires_grad=True) for _ in lengths_N], per_token=True)
    assert examples.has_gradient_N.all()
    assert not examples.advantages_C.requires_grad


@pytest.mark.parametrize(
    ("function", "traits", "said"),
    [
        (lambda rewards_PG: rewards_PG[:1], {}, r"'mine:f' returned \(1, 2\); expected a finite number for each of \(2, 2\)"),
        (lambda rewards_PG: rewards_PG / 0, {}, "values that are not finite"),
        (lambda rewards_PG: rewards_PG.tolist(), {}, "returned a list. An advantage per token"),
        (lambda rewards_PG: None, {}, "returned a NoneType"),
        (lambda rewards_PG: rewards_PG, {"per_token": True}, "returned a Tensor. An advantage per token"),
        (lambda rewards_PG: 3, {"per_token": True}, "returned a int; expected a list"),
        (
            lambda rewards_PG: [torch.zeros(3)],
            {"per_token": True},
            "returned 1; expected a list with one vector for each of 4 completions",
        ),
        (lambda rewards_PG: [torch.zeros(2)] * 4, {"per_token": True}, r"returned \(2,\) for a completion of 3 tokens"),
        (lambda rewards_PG: [torch.full((3,), torch.nan)] * 4, {"per_token": True}, "not finite"),
        (lambda rewards_PG: sys.exit(3), {}, r"mine:f failed \(SystemExit: 3, in .*test_own.py, line"),
        (lambda rewards_PG: rewards_PG + torch.zeros(7), {}, r"mine:f failed \(RuntimeError: .*, in .*test_own.py, line"),
    ],
)
def test_an_advantage_that_gives_something_else_is_refused_by_name(function, traits, said):
    with pytest.raises(RecipeError, match=f"algorithm.advantage: .*{said}"):
        credit(function, **traits)


def test_an_advantage_that_reads_the_critic_says_what_the_critic_should_have_said():
    rows = make_examples([rollout(0, 0, 1.0, length=2)])
    choice = with_function("advantage", lambda values_N: [torch.zeros(2)], per_token=True).own["advantage"]
    with pytest.raises(RecipeError, match=r"reads values_N, so a critic is trained and it must return .*TokenCredit"):
        check_rows([torch.zeros(2)], rows, choice)
    with pytest.raises(RecipeError, match="returned 0; expected a list"):
        check_rows(TokenCredit([torch.zeros(2)], []), rows, choice)
    check_rows(TokenCredit([torch.zeros(2)], [torch.ones(2)]), rows, choice)


def loss_and_gradients(made: AlgorithmConfig):
    policy = tiny_policy()
    return library_loss_and_gradients(policy, ragged_examples(policy, off_policy=0.3), made)


def test_a_region_that_says_what_clip_says_gives_its_loss_and_gradient_bit_for_bit():
    def twin(tokens, *, clip_low, clip_high):
        ratio_M = torch.exp((tokens.policy_logprobs_M - tokens.old_logprobs_M).clamp(-20.0, 20.0))
        clipped_M = ratio_M.clamp(1.0 - clip_low, 1.0 + clip_high)
        return -torch.minimum(ratio_M * tokens.advantages_M, clipped_M * tokens.advantages_M)

    loss, gradient = loss_and_gradients(with_function("region", twin))
    expected_loss, expected = loss_and_gradients(AlgorithmConfig(kl_coef=0.0))
    assert loss == expected_loss
    assert torch.equal(gradient, expected)
    assert gradient.abs().max() > 0


def test_a_bare_loss_is_measured_with_the_ratio_it_was_given():
    policy = tiny_policy()
    examples = ragged_examples(policy, off_policy=0.3)
    whole = {"max_completion_tokens": 8, "micro_batch_tokens": 10_000, "skip_zero_advantage": False}
    minibatch = pack(examples, aggregation="token_mean", **whole)
    (micro,) = minibatch.micro_batches
    scores = policy.compute_logprobs(micro)
    made = with_function("region", lambda tokens: -tokens.policy_logprobs_M)
    surrogate = token_loss(scores, micro, made, 0.0).surrogate
    assert torch.equal(surrogate.ratio_M, torch.exp(scores.logprobs_M - micro.old_logprobs_M).detach())
    assert not surrogate.below_M.any()
    without = with_function("region", lambda tokens: -tokens.policy_logprobs_M, needs_ratio=False)
    assert (token_loss(scores, micro, without, 0.0).surrogate.ratio_M == 1).all()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda tokens: tokens.policy_logprobs_M.mean(), r"returned loss_M of shape \(\) for 31 tokens"),
        (lambda tokens: tokens.policy_logprobs_M[1:], r"returned loss_M of shape \(30,\)"),
        (lambda tokens: tokens.policy_logprobs_M * torch.inf, "returned a loss that is not finite"),
        (lambda tokens: tokens.policy_logprobs_M.detach(), "returned a loss without a gradient"),
        (lambda tokens: tokens.policy_logprobs_M.tolist(), "returned list; a region returns a tensor"),
        (
            lambda tokens: replace(unbounded(tokens.policy_logprobs_M), ratio_M=torch.ones(2)),
            r"returned ratio_M of shape \(2,\)",
        ),
        (
            lambda tokens: replace(unbounded(tokens.policy_logprobs_M), ratio_M=None),
            "returned ratio_M as NoneType; it has to be a tensor on cpu",
        ),
        (lambda tokens: replace(unbounded(tokens.policy_logprobs_M), below_M=[False]), "returned below_M as list"),
        (lambda tokens: tokens.policy_logprobs_M.to("meta"), "returned loss_M on meta; it has to be a tensor on cpu"),
        (
            lambda tokens: unbounded(tokens.policy_logprobs_M, tokens.advantages_M),
            "returned margin_M, which only a preference has",
        ),
    ],
)
def test_a_region_that_gives_something_else_is_refused_by_name(function, said):
    with pytest.raises(RecipeError, match=f"algorithm.region: mine:f {said}"):
        loss_and_gradients(with_function("region", function))


def test_an_aggregation_weighs_completions_and_what_is_no_weight_is_refused_by_name():
    def weigh(function):
        return weigh_tokens(with_function("aggregation", function))([2, 4], [0, 0], 8)

    assert weigh(lambda lengths_N, max_completion_tokens: [n / max_completion_tokens for n in lengths_N]) == [0.25, 0.5]
    assert weigh(lambda lengths_N: torch.tensor(lengths_N) / 8) == [0.25, 0.5]
    for function, said in (
        (lambda lengths_N: [1.0], "returned 1 weights for 2 completions"),
        (lambda lengths_N: [1.0, -1.0], "negative or not finite"),
        (lambda lengths_N: [1.0, float("nan")], "negative or not finite"),
        (lambda lengths_N: 1.0, "returned float"),
        (lambda lengths_N: ["a", "b"], "returned list"),
        (
            lambda lengths_N: (1 / 0 for _ in lengths_N),
            r"returned generator; .* \(ZeroDivisionError: .*, in .*test_own.py, line",
        ),
    ):
        with pytest.raises(RecipeError, match=f"algorithm.aggregation: mine:f .*{said}"):
            weigh(function)


def test_a_minibatch_in_which_nothing_is_trained_is_not_weighed():
    made = with_function("aggregation", lambda lengths_N: [1 / sum(lengths_N)] * len(lengths_N))
    assert weigh_tokens(made)([0, 0], [0, 1], 8) == [0.0, 0.0]
    assert weigh_tokens(made)([], [], 8) == []
