"""`sscc.compile` of a model in memory, and `sscc.LLM`, which is vLLM's interface over the engine."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedTokenizerFast

import sscc
from sscc.compiler.driver.api import CompileCallErrors
from sscc.compiler.driver.llm import LlmErrors
from sscc.compiler.frontend.in_memory import InMemoryErrors
from sscc.compiler.options.compile_options import OptionErrors
from sscc.ir.errors import ErrorKind
from sscc.runtime.serving.engine.constraints import ConstraintErrors
from sscc.runtime.session.session_errors import SessionErrors
from tests.errors import like, raises
from tests.tiny_configs import random_model

WORDS = "<eos> user : assistant once upon a time the end".split()
TEMPLATE = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}assistant :"
CONFIG = LlamaConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    initializer_range=0.5,
    bos_token_id=None,
    eos_token_id=0,
)
SHAPE: dict[str, Any] = {"max_context": 64, "prefill_chunk": 8, "batch": 2}


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: token for token, word in enumerate([*WORDS, *map(str, range(40 - len(WORDS)))])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    made: LlamaForCausalLM = random_model(CONFIG)
    return made


@pytest.fixture(scope="module")
def artifact(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    return sscc.compile(model, tokenizer=tokenizer(), output=folder / "model.rdu", **SHAPE).path


@pytest.fixture(scope="module")
def llm(artifact: Path) -> Iterator[sscc.LLM]:
    with sscc.LLM(artifact) as opened:
        yield opened


# ---------------------------------------------------------------------------------------------------- models in memory


def files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_model_in_memory_gives_what_its_folder_does(model: LlamaForCausalLM, artifact: Path, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    result = sscc.compile(tmp_path / "model", output=tmp_path / "model.rdu", **SHAPE)
    assert files(result.path) == files(artifact)
    dumps = [
        sscc.compile(source, output=tmp_path / f"{i}.mlir", compile_to="import", **SHAPE).path.read_text()
        for i, source in enumerate((model, tmp_path / "model"))
    ]
    assert dumps[0] == dumps[1]  # which have the digest of the checkpoint


def test_the_model_stays_as_it_is(model: LlamaForCausalLM, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config, modes = model.config.to_dict(), [module.training for module in model.train().modules()]
    attention = model.config._attn_implementation
    sscc.compile(model, output=tmp_path / "out.mlir", compile_to="import", **SHAPE)
    assert model.config.to_dict() == config
    assert model.config._attn_implementation == attention
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class Louder(LlamaForCausalLM):
    pass


def with_other_module(model: LlamaForCausalLM) -> LlamaForCausalLM:
    class Other(torch.nn.Linear):
        pass

    model.model.layers[1].mlp.up_proj = Other(16, 24, bias=False)
    return model


def hooked(model: LlamaForCausalLM) -> LlamaForCausalLM:
    model.model.layers[0].register_forward_hook(lambda module, args, output: output * 2)
    return model


def fresh() -> LlamaForCausalLM:
    made: LlamaForCausalLM = random_model(CONFIG)
    return made


@pytest.mark.parametrize(
    ("broken", "kind", "error_kind", "fields"),
    [
        (lambda: LlamaModel(CONFIG), sscc.UnsupportedError, InMemoryErrors.WRONG_CLASS, {"name": "LlamaModel"}),
        (lambda: torch.nn.Linear(2, 2), sscc.UnsupportedError, InMemoryErrors.NOT_OF_TRANSFORMERS, {"name": "Linear"}),
        (lambda: {"a": 1}, sscc.UsageError, InMemoryErrors.NOT_A_MODULE, {"name": "dict"}),
        (lambda: Louder(CONFIG), sscc.UnsupportedError, InMemoryErrors.OWN_CLASS, {"name": "Louder"}),
        (
            lambda: fresh().to("meta"), sscc.UnsupportedError, InMemoryErrors.NO_VALUES,
            {"tensor": "model.embed_tokens.weight"},
        ),
        (
            lambda: with_other_module(fresh()), sscc.UnsupportedError, InMemoryErrors.MODULE_REPLACED,
            {"module": "model.layers.1.mlp.up_proj"},
        ),
        (lambda: hooked(fresh()), sscc.UnsupportedError, InMemoryErrors.DIFFERS, {}),
    ],
)
def test_what_is_refused(
    broken: Any, kind: type[Exception], error_kind: ErrorKind, fields: dict[str, Any], tmp_path: Path
) -> None:
    with raises(error_kind, **fields):
        sscc.compile(broken(), output=tmp_path / "out.rdu", **SHAPE)
    assert not (tmp_path / "out.rdu").exists()


@pytest.mark.parametrize(
    ("options", "kind", "fields"),
    [
        ({"weights": "reference"}, CompileCallErrors.NO_REFERENCE, {}),
        ({"config": "config.json"}, CompileCallErrors.OPTION_OF_FILES, {"option": "config"}),
        ({"tokenizer": "gpt2"}, InMemoryErrors.TOKENIZER, {"form": "str"}),
        ({"kv_budgte": 8}, OptionErrors.UNKNOWN, {"option": "kv_budgte"}),
    ],
)
def test_options_that_do_not_go_with_it(
    model: LlamaForCausalLM, options: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        sscc.compile(model, **options)
    with raises(CompileCallErrors.OWN_TOKENIZER):
        sscc.compile("model.gguf", tokenizer=tokenizer())


# ----------------------------------------------------------------------------------------------------------------- text


def test_answers_are_those_of_a_session(llm: sscc.LLM, artifact: Path) -> None:
    """Whatever is made beside them, and by any of the ways to ask."""
    greedy = sscc.SamplingParams(temperature=0, max_tokens=9)
    prompts = ["once upon a time", "the end", [4, 5, 6], "a", "time time"]
    outputs = llm.generate(prompts, greedy)
    session = sscc.load(artifact)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = llm.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        assert output.prompt == (prompt if isinstance(prompt, str) else None)
        assert output.prompt_token_ids == (*tokens,)
        assert output.outputs[0].token_ids == (*session.generate(tokens, 9),)
        if isinstance(prompt, str):
            assert output.text == "".join(llm.stream(prompt, greedy)) == "".join(session.generate(prompt, 9))
    assert llm.generate([4, 5, 6], greedy)[0].outputs[0].token_ids == outputs[2].outputs[0].token_ids
    assert llm.generate("a", greedy)[0].text == outputs[3].text
    chat = llm.chat([{"role": "user", "content": "once upon"}], greedy)
    assert chat[0].prompt == "user : once upon assistant :"
    assert chat[0].text == llm.generate("user : once upon assistant :", greedy)[0].text
    both = llm.chat([[{"role": "user", "content": "once upon"}], [{"role": "user", "content": "the"}]], greedy)
    assert (len(both), both[0].text) == (2, chat[0].text)


def test_sampling(llm: sscc.LLM) -> None:
    params = sscc.SamplingParams(n=3, temperature=0.8, seed=5, max_tokens=6, logprobs=2, ignore_eos=True)
    (three,) = llm.generate("the end", params)
    assert [each.index for each in three.outputs] == [0, 1, 2]
    assert len({each.token_ids for each in three.outputs}) > 1
    (second,) = llm.generate("the end", sscc.SamplingParams(temperature=0.8, seed=6, max_tokens=6, ignore_eos=True))
    assert second.outputs[0].token_ids == three.outputs[1].token_ids
    first = three.outputs[0]
    assert first.cumulative_logprob == pytest.approx(sum(each.logprob for each in first.logprobs))
    assert second.outputs[0].cumulative_logprob is None
    hot = sscc.SamplingParams(temperature=1, max_tokens=8, ignore_eos=True)
    random = [llm.generate("the end", hot)[0].text for _ in range(4)]
    assert len(set(random)) > 1  # without a seed every answer is another one
    greedy = sscc.SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    whole = llm.generate("the end", greedy)[0].outputs[0]
    unsaid = sscc.SamplingParams(max_tokens=9, ignore_eos=True)
    assert llm.generate("the end", unsaid)[0].outputs[0].token_ids == whole.token_ids, "the model says: greedy"
    assert whole.finish_reason == "length"
    word = whole.text.split()[2]
    stopped = llm.generate("the end", sscc.SamplingParams(temperature=0, max_tokens=9, stop=word, ignore_eos=True))[0]
    assert (stopped.text, stopped.outputs[0].finish_reason) == (whole.text[: whole.text.index(word)], "stop")
    ended = sscc.SamplingParams(temperature=0, max_tokens=9, stop_token_ids=[whole.token_ids[2]], ignore_eos=True)
    assert llm.generate("the end", ended)[0].outputs[0].finish_reason == "stop"
    each = llm.generate(["a", "a"], [greedy, sscc.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)])
    assert [len(output.outputs[0].token_ids) for output in each] == [9, 2]


def test_how_likely_a_prompt_is(llm: sscc.LLM) -> None:
    params = sscc.SamplingParams(n=2, max_tokens=1, prompt_logprobs=1, temperature=1, seed=1)
    (output,) = llm.generate("the end of the", params)
    assert [one.token for one in output.prompt_logprobs] == list(output.prompt_token_ids[1:])
    assert {len(one.top) for one in output.prompt_logprobs} == {1}
    assert llm.generate("the end", sscc.SamplingParams(max_tokens=1))[0].prompt_logprobs == ()


def test_a_grammar_needs_tokens_that_are_parts_of_texts(llm: sscc.LLM) -> None:
    """The tokens of this tokenizer are words, and no token has the spaces between words."""
    with raises(ConstraintErrors.NOT_JOINED):
        llm.generate("the end", sscc.SamplingParams(grammar=sscc.Grammar.choice(["once"])))
    least = sscc.SamplingParams(temperature=0, max_tokens=5, min_tokens=5)
    assert len(llm.generate("the end", least)[0].outputs[0].token_ids) == 5
    only = sscc.SamplingParams(temperature=0, max_tokens=5, allowed_token_ids=[3, 4], ignore_eos=True)
    assert set(llm.generate("the end", only)[0].outputs[0].token_ids) <= {3, 4}


def test_what_cannot_be_answered(llm: sscc.LLM) -> None:
    with raises(LlmErrors.PROMPT, number=1, cause=like(SessionErrors.PROMPT_TOO_LONG, tokens=70, max_context=64)):
        llm.generate(["a", [3] * 70])
    with raises(LlmErrors.PARAMETERS_DIFFER, parameters=2, prompts=1):
        llm.generate("a", [sscc.SamplingParams()] * 2)
    with raises(LlmErrors.SEVERAL_STREAMED):
        llm.stream("a", sscc.SamplingParams(n=2))
    for wrong in ({"temperature": -1}, {"n": 0}, {"max_tokens": 0}, {"stop": [""]}, {"logprobs": -1}):
        with pytest.raises(sscc.UsageError):
            sscc.SamplingParams(**wrong)  # type: ignore[arg-type]
    assert llm.generate([]) == []
    assert llm.engine.metrics().running == 0


def test_how_they_are_shown(llm: sscc.LLM) -> None:
    (output,) = llm.generate("the end", sscc.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    assert repr(llm).startswith("LLM(model.rdu: ")
    kept = "length after 2 tokens, 3 rows kept, 0 evicted"
    assert repr(output) == f"RequestOutput(prompt 'the end', CompletionOutput({output.text!r}, {kept}))"


def test_an_artifact_without_a_tokenizer_takes_tokens(model: LlamaForCausalLM, tmp_path: Path) -> None:
    result = sscc.compile(model, output=tmp_path / "out.rdu", **SHAPE)
    pieces = sscc.LLM(result).stream([3, 4], sscc.SamplingParams(temperature=0))
    with sscc.LLM(result) as llm:
        (output,) = llm.generate([[3, 4]], sscc.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        assert (output.text, len(output.outputs[0].token_ids)) == ("", 3)
        with raises(SessionErrors.NO_TOKENIZER):
            llm.generate("a")
        with raises(LlmErrors.NO_CHAT_TEMPLATE):
            llm.chat([{"role": "user", "content": "a"}])
    assert list(pieces) == []  # whose engine is open as long as they are read


# ----------------------------------------------------------------------------------------------------- documentation

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_examples_of_the_documentation_run(
    model: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)):
        exec(compile(block, f"{PAGE}, block {number}", "exec"), names)
    assert "once upon a time -> " in capsys.readouterr().out


def test_importing_names_imports_no_torch() -> None:
    # A prompt is what rules are called with: it has tensors of torch.
    names = ", ".join(name for name in sscc.__all__ if not name.startswith("_") and name != "Prompt")
    heavy = {"torch", "torch_mlir", "transformers"}
    code = f"import sys; from sscc import {names}; assert not {heavy} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
