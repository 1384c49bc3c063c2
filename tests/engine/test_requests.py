"""Requests: completions continued from a prefix, reported as they finish, and engines found by name."""

from dataclasses import replace

import pytest
from test_engines import TRAIN, make_model, make_prompts, sampling, text_of

from cohort.engine import build_engine, make_requests, regroup, sample_groups
from cohort.engine.cached import CachedEngine
from cohort.engine.hf import HFEngine
from cohort.engine.local import LocalEngine
from cohort.engine.protocol import EngineSetup
from cohort.engine.requests import find_single_token
from cohort.errors import EngineError
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import ScratchConfig
from cohort.recipe.values import ENGINES, EngineEntry
from cohort.types import Completion, NoiseKey, Request

ALL = pytest.mark.parametrize("kind", [LocalEngine, CachedEngine, HFEngine])


def head(completion: Completion, count: int) -> Completion:
    return Completion(completion.token_ids[:count], completion.sampling_logprobs[:count], "length", "")


def continued(requests: list[Request], whole: list[Completion], counts: list[int]) -> list[Request]:
    return [
        replace(request, prefix=head(completion, count))
        for request, completion, count in zip(requests, whole, counts, strict=True)
    ]


@pytest.mark.parametrize(("kind", "slots"), [(HFEngine, 0), (LocalEngine, 3), (LocalEngine, 64), (CachedEngine, 3)])
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_completion_continued_from_its_own_prefix_is_the_uninterrupted_one(kind, slots, temperature):
    """Prefixes of every length, including none and complete ones. There are no near-ties here."""
    model, prompts, wanted = make_model(), make_prompts(5), sampling(group_size=4, temperature=temperature)
    engine = kind(EngineSetup(model, text_of, slots)) if slots else kind(EngineSetup(model, text_of))
    requests = make_requests(prompts, 4, first_draw=3)
    whole = engine.generate(requests, wanted, TRAIN)
    counts = [number % len(completion.token_ids) for number, completion in enumerate(whole)]
    counts[-1] = len(whole[-1].token_ids)
    found = engine.generate(continued(requests, whole, counts), wanted, TRAIN)
    assert [completion.token_ids for completion in found] == [completion.token_ids for completion in whole]
    assert [completion.end for completion in found] == [completion.end for completion in whole]
    for ours, theirs, count in zip(found, whole, counts, strict=True):
        assert ours.sampling_logprobs == pytest.approx(theirs.sampling_logprobs, abs=1e-5)
        assert ours.sampling_logprobs[:count] == theirs.sampling_logprobs[:count], "the prefix is handed back as it came"
        assert ours.text == theirs.text or count == len(theirs.token_ids)
    if kind is HFEngine:
        assert [completion.sampling_logprobs for completion in found] == [one.sampling_logprobs for one in whole]


@ALL
def test_a_prefix_that_is_whole_comes_back_as_it_is(kind):
    (prompt,), engine = make_prompts(1), kind(EngineSetup(make_model(), text_of))
    stopped = Completion((9, 2), (-0.5, -0.25), "length", "as written")
    full = Completion((9, 8, 7), (-0.5, -0.25, -1.0), "stop", "")
    told = Completion((9, 2), (-0.5, -0.25), "length", "", sampled_mask=(True, False))  # a stop that nobody sampled
    requests = [Request(prompt, 0, sample, prefix) for sample, prefix in enumerate((stopped, full, told))]
    seen = []
    first, second, third = engine.generate(
        requests, sampling(max_completion_tokens=3), TRAIN, on_finish=lambda request, completion: seen.append(request.sample)
    )
    assert first == replace(stopped, end="stop")
    assert second == replace(full, end="length")
    assert (third.token_ids[:2], third.sampled_mask) == ((9, 2), (True, False, *(True,) * (len(third.token_ids) - 2)))
    assert third.length == 3 or third.end == "stop", "only sampled tokens count"
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "apart"), [(LocalEngine, None), (CachedEngine, None), (CachedEngine, "a test"), (HFEngine, None)]
)
def test_progress_rises_to_one_within_a_call(kind, apart):
    """Also if rows of different lengths are decoded one batch after the other, and with fewer slots than completions."""
    engine, prompts = kind(EngineSetup(make_model(), text_of, 0 if kind is HFEngine else 3)), make_prompts(4)
    if kind is CachedEngine:
        engine.why_equal = apart
    shares: list[float] = []
    engine.on_progress = shares.append
    for wanted in (sampling(max_completion_tokens=6, stop_ids=()), sampling(max_completion_tokens=6)):
        shares.clear()
        engine.generate(make_requests(prompts, 2), wanted, TRAIN)
        assert len(shares) >= 8
        assert shares == sorted(shares)
        assert 0 < shares[0] <= 0.5
        assert shares[-1] == 1.0


@ALL
def test_noise_may_begin_at_a_later_position(kind):
    """A later turn: the conversation is the prompt, and its completion continues the noise of the earlier turns."""
    model, (prompt,), wanted = make_model(), make_prompts(1), sampling(stop_ids=(), max_completion_tokens=8)
    engine = kind(EngineSetup(model, text_of))
    (whole,) = engine.generate([Request(prompt, 4, 1)], wanted, TRAIN)
    longer = replace(prompt, token_ids=prompt.token_ids + whole.token_ids[:5])
    short = replace(wanted, max_completion_tokens=3)
    turn, again = engine.generate([Request(longer, 4, 1, position=5), Request(longer, 4, 1)], short, TRAIN)
    assert turn.token_ids == whole.token_ids[5:]
    assert turn.sampling_logprobs == pytest.approx(whole.sampling_logprobs[5:], abs=1e-5)
    assert again.token_ids != turn.token_ids
    prefix = head(turn, 2)
    assert engine.generate([Request(longer, 4, 1, prefix, 5)], short, TRAIN)[0].token_ids == turn.token_ids


@ALL
def test_every_completion_is_handed_back_once_and_is_the_one_that_returns(kind):
    prompts, wanted = make_prompts(4), sampling(group_size=3)
    engine, seen = kind(EngineSetup(make_model(), text_of)), {}
    requests = make_requests(prompts, 3)

    def note(request, completion):
        assert (request.draw, request.sample) not in seen
        seen[request.draw, request.sample] = completion

    found = engine.generate(requests, wanted, TRAIN, on_finish=note)
    assert found == [seen[request.draw, request.sample] for request in requests]
    assert found == engine.generate(requests, wanted, TRAIN)


def test_completions_come_as_they_finish():
    engine, order = LocalEngine(EngineSetup(make_model(), text_of, 8)), []
    requests = make_requests(make_prompts(1), 3)
    engine.generate(
        requests, sampling(stop_ids=()), TRAIN, lambda request, completion: order.append(request.sample), limits=[9, 2, 5]
    )
    assert order == [1, 2, 0]


@ALL
def test_the_versions_of_a_prefix_are_kept_and_the_engine_adds_its_own(kind):
    (prompt,), engine = make_prompts(1), kind(EngineSetup(make_model(), text_of))
    engine.sync({}, 7)
    wanted = sampling(stop_ids=(), max_completion_tokens=6)
    (fresh,) = engine.generate([Request(prompt, 0, 0)], wanted, TRAIN)
    assert fresh.versions == ()
    old = replace(head(fresh, 4), versions=((5, 3), (6, 1)))
    (found,) = engine.generate([Request(prompt, 0, 0, old)], wanted, TRAIN)
    assert found.versions == ((5, 3), (6, 1), (7, 2))


@ALL
def test_requests_that_say_too_little(kind):
    (prompt,), engine = make_prompts(1), kind(EngineSetup(make_model(), text_of))
    with pytest.raises(EngineError, match="the prefix has 2 tokens but 1 log-probs"):
        engine.generate([Request(prompt, 0, 0, Completion((7, 8), (0.0,), "length", ""))], sampling(), TRAIN)
    with pytest.raises(EngineError, match="noise position -1"):
        engine.generate([Request(prompt, 0, 0, position=-1)], sampling(), TRAIN)


def test_groups_come_back_in_the_order_of_the_prompts():
    prompts, engine, wanted = make_prompts(3), LocalEngine(EngineSetup(make_model(), text_of)), sampling(group_size=2)
    requests = make_requests(prompts, 2, first_draw=5)
    assert [(request.prompt.index, request.draw, request.sample) for request in requests] == [
        (prompt.index, 5 + place, sample) for place, prompt in enumerate(prompts) for sample in (0, 1)
    ]
    groups = sample_groups(engine, prompts, wanted, TRAIN, first_draw=5)
    assert groups == regroup(engine.generate(requests, wanted, TRAIN), 3, 2)
    assert sample_groups(engine, prompts, replace(wanted, group_size=0), TRAIN) == [[], [], []]


# -- by name -----------------------------------------------------------------------------------------------------------


@ALL
def test_what_an_engine_says_of_itself(kind):
    engine = kind(EngineSetup(make_model(), text_of))
    able = engine.capabilities
    assert able.keyed_noise
    assert able.shares_weights
    assert (able.own_kernels, able.most_slots) == (kind is LocalEngine, 1 if kind is HFEngine else 512)
    assert engine.choose_slots(40) == (0 if kind is HFEngine else 512)
    before = sample_groups(engine, make_prompts(2), sampling(), TRAIN)
    engine.close()
    assert sample_groups(engine, make_prompts(2), sampling(), TRAIN) == before


def make_echo(setup):
    """An engine in a separate file: the constructor function named in the table."""
    return Echo(setup.slots), "engine echo: says what it is told"


class Echo:
    name = "echo"

    def __init__(self, slots):
        self.slots = slots

    def generate(self, requests, sampling, noise, on_finish=None):
        return [Completion(request.prompt.token_ids[:1], (0.0,), "length", noise.stream) for request in requests]


def test_an_engine_is_one_line_in_the_table(monkeypatch):
    monkeypatch.setitem(ENGINES, "echo", EngineEntry("test_requests:make_echo", "says what it is told"))
    engine, sentence = build_engine("echo", EngineSetup(None, text_of, 3))
    assert (engine.name, engine.slots, sentence) == ("echo", 3, "engine echo: says what it is told")
    (prompt,) = make_prompts(1)
    ((completion,),) = sample_groups(engine, [prompt], sampling(), NoiseKey(0, "evaluate", 0))
    assert (completion.token_ids, completion.text) == (prompt.token_ids[:1], "evaluate")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(
        EngineError, match=r"sampling\.engine: 'locla' is not an engine .*auto, local, cached, hf.*did you mean 'local'"
    ):
        build_engine("locla", EngineSetup(make_model(), text_of))


def test_a_stop_that_the_tokenizer_does_not_know_is_named():
    _, tokenizer = build_scratch(ScratchConfig(), ["0123456789+=>"], seed=0)
    assert find_single_token(tokenizer, "=") == tokenizer.get_vocab()["="]
    assert find_single_token(tokenizer, tokenizer.unk_token) == tokenizer.unk_token_id
    for text, said in (
        ("#", "'#' is not in the tokenizer's vocabulary and would become '<unk>'"),
        ("###", "'###' is not in the tokenizer's vocabulary"),
        ("=>", "'=>' is 2 tokens for this tokenizer"),
        ("=#", "'=#' is 2 tokens"),
        ("", "'' is 0 tokens"),
        ("<eoss>", "did you mean '<eos>'?"),
    ):
        with pytest.raises(EngineError, match=r"^sampling\.stop: ") as raised:
            find_single_token(tokenizer, text)
        assert said in str(raised.value)
        assert "Special tokens: <eos>" in str(raised.value)
