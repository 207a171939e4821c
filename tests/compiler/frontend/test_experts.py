"""The experts implementation, compared with transformers' own in every form of its interface; and its refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.aria.modeling_aria import AriaExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.muse_spark.modeling_muse_spark import MuseSparkExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

from sscc.compiler.driver.driver import compile_model
from sscc.compiler.frontend import experts
from sscc.compiler.frontend.capture import Captured, CaptureErrors, check_experts
from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.decompositions import scatter_value, topk
from sscc.compiler.frontend.experts import ExpertErrors
from sscc.compiler.frontend.naming import NamingErrors
from sscc.compiler.frontend.probe import load_model
from sscc.compiler.options.compile_options import CompileOptions
from tests import tiny_configs
from tests.errors import raises
from tests.families import EXPERTS, random_model, random_tokens
from tests.tiny_configs import tiny_config

T, K = 7, 2
FORMS: dict[str, tuple[type[torch.nn.Module], str, dict[str, Any]]] = {
    "plain": (MixtralExperts, "mixtral", {}),
    "transposed, with biases, interleaved": (GptOssExperts, "gpt_oss", {}),
    "transposed": (AriaExperts, "aria_text", {"moe_num_experts": 4}),
    "without a gate": (NemotronHExperts, "nemotron_h", {"n_routed_experts": 4, "moe_latent_size": None}),
    "with a norm of each expert's result": (MuseSparkExperts, "muse_spark_text", {"moe_hidden_size": 32}),
}


def config_of(model_type: str, **changes: Any) -> PreTrainedConfig:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 10, "moe_intermediate_size": 10}
    sizes |= {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": K}
    return AutoConfig.for_model(model_type, **(sizes | changes))


def made(form: str) -> torch.nn.Module:
    cls, model_type, changes = FORMS[form]
    config = config_of(model_type, **changes)
    config._experts_implementation = "eager"
    module = cls(config)
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape) * 0.3
    return module.requires_grad_(False)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_experts_is_transformers_own(form: str) -> None:
    module = made(form)
    width = module.down_proj.shape[2 if module.is_transposed else 1]
    hidden, weights = torch.randn(T, width), torch.rand(T, K)
    chosen = torch.stack([torch.randperm(4)[:K] for _ in range(T)])
    expected = module(hidden, chosen, weights)
    torch.testing.assert_close(experts.experts_forward(module, hidden, chosen, weights), expected, rtol=1e-5, atol=1e-5)


def test_experts_that_are_divided_or_of_another_shape_are_refused() -> None:
    module = made("plain")
    hidden, chosen, weights = torch.randn(T, 32), torch.zeros(T, K, dtype=torch.int64), torch.rand(T, K)
    with raises(ExpertErrors.SHAPES, shapes=["[7, 32]", "[7, 2]", "[7, 3]"]):
        experts.experts_forward(module, hidden, chosen, torch.rand(T, 3))
    with raises(ExpertErrors.DTYPES, dtype="torch.bfloat16", weight="gate_up_proj", weight_dtype="torch.float32"):
        experts.experts_forward(module, hidden.bfloat16(), chosen, weights)
    module._is_expert_parallel = True
    with raises(ExpertErrors.PARALLEL):
        experts.experts_forward(module, hidden, chosen, weights)


def test_topk_takes_the_first_of_equals_in_descending_order() -> None:
    numbers = torch.tensor([[1.0, 3.0, 3.0, -0.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0]])
    values, indices = topk(numbers.reshape(2, 1, 5), 3)
    assert indices.tolist() == [[[1, 2, 0]], [[0, 1, 2]]]
    assert values.tolist() == [[[3.0, 3.0, 1.0]], [[2.0, 2.0, 2.0]]]
    assert topk(numbers, 1, dim=0) is NotImplemented
    assert topk(numbers, 1, largest=False) is NotImplemented


def test_a_scatter_along_the_last_axis() -> None:
    x, index = torch.randn(3, 6), torch.tensor([[0, 5], [2, 2], [4, 1]])
    assert torch.equal(scatter_value(x, -1, index, 7.0), x.scatter(-1, index, 7.0))
    assert scatter_value(x, 0, index, 7.0) is NotImplemented


def test_each_module_of_experts_multiplies_twice() -> None:
    graph = torch.fx.Graph()
    product = graph.call_function(torch.ops.sscc.expert_product.default, ())
    product.meta["nn_module_stack"] = {"": ("model.layers.0.mlp.experts", torch.nn.Module)}
    captured = Captured(graph, {}, {}, {}, {}, "")
    for modules in (["layers.0.mlp.experts"], []):
        with raises(CaptureErrors.EXPERT_PRODUCTS, module="layers.0.mlp.experts", products=1):
            check_experts(captured, modules)
    with raises(CaptureErrors.EXPERT_PRODUCTS, module="layers.1.mlp.experts", products=0):
        check_experts(Captured(torch.fx.Graph(), {}, {}, {}, {}, ""), ["layers.1.mlp.experts"])
    check_experts(Captured(torch.fx.Graph(), {}, {}, {}, {}, ""), [])


@pytest.mark.parametrize("family", EXPERTS)
def test_matrices_that_are_stored_one_by_one_are_joined(family: str, tmp_path: Path) -> None:
    model = random_model(family)
    model.save_pretrained(tmp_path)  # published checkpoints have a tensor for each matrix of each expert
    checkpoint = open_checkpoint(tmp_path)
    expected = model.state_dict()
    names = checkpoint.names()
    assert {name: tuple(value.shape) for name, value in expected.items()} == {n: s for n, (s, _) in names.items()}
    for name, value in expected.items():
        assert torch.equal(checkpoint.tensor(name), value)


def test_experts_of_different_shapes_cannot_be_joined(tmp_path: Path) -> None:
    model = random_model("experts-softmax")
    model.save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    name = next(name for name in tensors if ".experts.3." in name)
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, str(file))
    with raises(NamingErrors.NOT_JOINED):
        compile_model(CompileOptions(tmp_path, tmp_path / "x.rdu", max_context=64, kv_budget=48))


def test_what_transformers_keeps_in_f32_stays_f32(tmp_path: Path) -> None:
    """Biases by which a router chooses, as `from_pretrained` loads them; bf16 would make these ones equal."""
    config = tiny_config("deepseek_v3")
    config.first_k_dense_replace = 0
    original = tiny_configs.random_model(config).to(torch.bfloat16)
    biases = {name: buffer for name, buffer in original.named_buffers() if name.endswith("e_score_correction_bias")}
    for buffer in biases.values():
        buffer.data = 1e5 + 1.5 * torch.randperm(buffer.numel())
    original.save_pretrained(tmp_path / "model")
    checkpoint = open_checkpoint(tmp_path / "model")
    ours = load_model(checkpoint, torch.bfloat16)
    assert {dict(ours.named_buffers())[name].dtype for name in biases} == {torch.float32}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    ids = torch.tensor([random_tokens(20)])
    expected = theirs(ids).logits.float()
    distance = (ours(ids, position_ids=torch.arange(20)[None], use_cache=False).logits - expected).norm()
    assert distance < 0.05 * expected.norm()  # 0.2 with equal biases
