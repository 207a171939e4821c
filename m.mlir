#loc = loc(unknown)
#loc1 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1006:0)
#loc2 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":119:0)
#loc3 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":120:0)
#loc4 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":121:0)
#loc5 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":136:0)
#loc6 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":139:0)
#loc7 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1196:0)
#loc8 = loc("model.layers.0")
#loc9 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":699:0)
#loc10 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":678:0)
#loc11 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":679:0)
#loc12 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":680:0)
#loc14 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":683:0)
#loc15 = loc("transformers/activations.py":103:0)
#loc17 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":721:0)
#loc18 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":722:0)
#loc20 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":725:0)
#loc21 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":727:0)
#loc22 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":743:0)
#loc23 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":69:0)
#loc24 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":73:0)
#loc25 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":768:0)
#loc26 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":926:0)
#loc28 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":784:0)
#loc29 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":839:0)
#loc30 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":840:0)
#loc31 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":841:0)
#loc32 = loc("transformers/integrations/moe.py":634:0)
#loc33 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":864:0)
#loc34 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":935:0)
#loc35 = loc("model.layers.1")
#loc36 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":289:0)
#loc37 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":271:0)
#loc38 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":270:0)
#loc39 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":276:0)
#loc40 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":277:0)
#loc41 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":280:0)
#loc42 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":301:0)
#loc43 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":303:0)
#loc44 = loc("prefill.phase.embed")
#loc46 = loc("prefill.phase.layer.0")
#loc47 = loc("prefill.phase.layer.1")
#loc48 = loc("prefill.phase.head")
#loc49 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1195:0)
#loc50 = loc("prefill")
#loc51 = loc("decode")
#loc52 = loc("score")
#loc53 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":118:0)
#loc54 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":762:0)
#loc55 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":763:0)
#loc56 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":72:0)
#loc59 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":843:0)
#loc60 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":866:0)
#loc61 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":867:0)
#loc62 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":273:0)
#loc63 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":275:0)
#map = affine_map<(d0) -> (d0)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1)>
#map2 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map3 = affine_map<(d0, d1, d2) -> (d2)>
#map4 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#map5 = affine_map<(d0, d1) -> (d0, d1)>
#map6 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d3)>
#map7 = affine_map<(d0, d1, d2, d3) -> (d1, d2, d3)>
#map8 = affine_map<(d0, d1, d2, d3) -> (d0, d1)>
#map9 = affine_map<(d0, d1, d2) -> (d0, d2)>
#map10 = affine_map<(d0, d1, d2) -> (d1, d2)>
#map11 = affine_map<(d0, d1) -> (d0, 0)>
#map12 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map13 = affine_map<(d0, d1) -> (d1)>
#map14 = affine_map<(d0, d1, d2, d3) -> (d2, d3)>
#map15 = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2)>
#map16 = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d1, d2, d3, d4, d5)>
#map17 = affine_map<(d0, d1, d2, d3, d4, d5) -> (d3, d4, d5)>
#map18 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, 0)>
#map19 = affine_map<(d0, d1, d2, d3, d4, d5) -> (d0, d3, d4, d5)>
#map20 = affine_map<(d0, d1, d2, d3, d4, d5) -> (d1, d2, d3, d4, d5)>
#map21 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, d3)>
#map22 = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1, 0)>
#map23 = affine_map<(d0, d1, d2, d3) -> (d3)>
#map24 = affine_map<(d0, d1, d2, d3) -> (d0, 0, d2, d3)>
#map25 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d3, d4)>
#map26 = affine_map<(d0, d1, d2, d3, d4) -> (d1, d2, d3, d4)>
#map27 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d2)>
#map28 = affine_map<(d0, d1, d2, d3, d4) -> (d0, d1, d3, d4)>
#map29 = affine_map<(d0, d1, d2, d3, d4) -> (d2, d3, d4)>
#map30 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d3)>
#map31 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2)>
#loc64 = loc("model.embed_tokens"(#loc1))
#loc65 = loc("model.rotary_emb"(#loc2))
#loc66 = loc("model.rotary_emb"(#loc3))
#loc67 = loc("model.rotary_emb"(#loc4))
#loc68 = loc("model.norm"(#loc5))
#loc69 = loc("model.norm"(#loc6))
#loc70 = loc("lm_head"(#loc7))
#loc71 = loc("model.layers.0.linear_attn"(#loc9))
#loc72 = loc("model.layers.0.input_layernorm"(#loc5))
#loc73 = loc("model.layers.0.input_layernorm"(#loc6))
#loc74 = loc("model.layers.0.linear_attn.in_proj_qkvz"(#loc10))
#loc75 = loc("model.layers.0.linear_attn.in_proj_ba"(#loc11))
#loc76 = loc("model.layers.0.linear_attn"(#loc12))
#loc78 = loc("model.layers.0.linear_attn"(#loc14))
#loc79 = loc("model.layers.0.linear_attn"(#loc15))
#loc81 = loc("model.layers.0.linear_attn"(#loc17))
#loc82 = loc("model.layers.0.linear_attn"(#loc18))
#loc84 = loc("model.layers.0.linear_attn"(#loc20))
#loc85 = loc("model.layers.0.linear_attn"(#loc21))
#loc86 = loc("model.layers.0.linear_attn"(#loc22))
#loc87 = loc("model.layers.0.linear_attn.norm"(#loc23))
#loc88 = loc("model.layers.0.linear_attn.norm"(#loc24))
#loc89 = loc("model.layers.0.linear_attn.out_proj"(#loc25))
#loc90 = loc("model.layers.0"(#loc26))
#loc93 = loc("model.layers.0.mlp.shared_expert.gate_proj"(#loc28))
#loc94 = loc("model.layers.0.mlp.shared_expert"(#loc28))
#loc95 = loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28))
#loc96 = loc("model.layers.0.mlp.gate"(#loc29))
#loc97 = loc("model.layers.0.mlp.gate"(#loc30))
#loc98 = loc("model.layers.0.mlp.gate"(#loc31))
#loc99 = loc("model.layers.0.mlp.experts"(#loc32))
#loc100 = loc("model.layers.0.mlp.shared_expert_gate"(#loc33))
#loc101 = loc("model.layers.0"(#loc34))
#loc102 = loc("model.layers.1.self_attn"(#loc36))
#loc105 = loc("model.layers.1.self_attn.q_proj"(#loc37))
#loc107 = loc("model.layers.1.self_attn"(#loc38))
#loc108 = loc("model.layers.1.self_attn.q_norm"(#loc5))
#loc109 = loc("model.layers.1.self_attn.k_proj"(#loc39))
#loc110 = loc("model.layers.1.self_attn.k_norm"(#loc5))
#loc112 = loc("model.layers.1.self_attn"(#loc41))
#loc113 = loc("model.layers.1.self_attn"(#loc42))
#loc114 = loc("model.layers.1.self_attn.o_proj"(#loc43))
#loc115 = loc("model.layers.1"(#loc26))
#loc125 = loc("model.layers.1"(#loc34))
#loc126 = loc("model.rotary_emb"(#loc53))
#loc127 = loc("model.layers.0.linear_attn"(#loc54))
#loc128 = loc("model.layers.0.linear_attn.norm"(#loc15))
#loc129 = loc("model.layers.0.linear_attn"(#loc55))
#loc130 = loc("model.layers.0.linear_attn.norm"(#loc56))
#loc133 = loc("model.layers.0.mlp.shared_expert.up_proj"(#loc28))
#loc135 = loc("model.layers.0.mlp.gate"(#loc59))
#loc136 = loc("model.layers.0.mlp"(#loc60))
#loc138 = loc("model.layers.0.mlp"(#loc61))
#loc140 = loc("model.layers.1.self_attn"(#loc62))
#loc141 = loc("model.layers.1.self_attn"(#loc63))
#loc142 = loc("model.layers.1.self_attn.q_norm"(#loc6))
#loc143 = loc("model.layers.1.self_attn"(#loc39))
#loc144 = loc("model.layers.1.self_attn.k_norm"(#loc6))
#loc145 = loc("model.layers.1.self_attn"(#loc40))
#loc146 = loc("compress.0"(#loc71))
#loc148 = loc("compress.1"(#loc102))
#geometry = {dtype = "model", max_context = 192 : i64, obs = 6 : i64, pool = 3 : i64, pool_mode = "avg", recent = 72 : i64, rows = "compact", sink = 4 : i64, topk = 12 : i64}
#groups = {convolution = {dtype = "model", max_context = 192 : i64, obs = 6 : i64, pool = 3 : i64, pool_mode = "avg", recent = 3 : i64, rows = "compact", sink = 0 : i64, topk = 0 : i64, window = 3 : i64}, recurrence = {dtype = "model", max_context = 192 : i64, obs = 6 : i64, pool = 3 : i64, pool_mode = "avg", recent = 1 : i64, rows = "compact", sink = 0 : i64, topk = 0 : i64, window = 1 : i64}}
#machine = "{\0A  \22format\22: 2,\0A  \22name\22: \22sn40l\22,\0A  \22note\22: \22A model of the published SN40L, one socket per device; not the vendor's product.\22,\0A  \22sockets\22: {\0A    \22value\22: 1,\0A    \22unit\22: \22\22,\0A    \22origin\22: \22chosen\22,\0A    \22note\22: \22sockets that work together; nodes have 8 or 16\22\0A  },\0A  \22levels\22: [\0A    {\0A      \22name\22: \22sram\22,\0A      \22capacity\22: {\0A        \22value\22: 545259520,\0A        \22unit\22: \22bytes per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \221040 pattern memory units of 512 KiB\22\0A      },\0A      \22bandwidth\22: {\0A        \22value\22: 100000000000000.0,\0A        \22unit\22: \22bytes/s per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22aggregate, given as more than this\22\0A      }\0A    },\0A    {\0A      \22name\22: \22hbm\22,\0A      \22capacity\22: {\0A        \22value\22: 68719476736,\0A        \22unit\22: \22bytes per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \2264 GiB\22\0A      },\0A      \22bandwidth\22: {\0A        \22value\22: 1600000000000.0,\0A        \22unit\22: \22bytes/s per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22sources say 1.6 to 1.8 TB/s\22\0A      }\0A    },\0A    {\0A      \22name\22: \22ddr\22,\0A      \22capacity\22: {\0A        \22value\22: 1500000000000,\0A        \22unit\22: \22bytes per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22up to 1.5 TB\22\0A      },\0A      \22bandwidth\22: {\0A        \22value\22: 100000000000.0,\0A        \22unit\22: \22bytes/s per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22sources say 100 to 200 GB/s\22\0A      }\0A    }\0A  ],\0A  \22units\22: {\0A    \22pcus\22: {\0A      \22value\22: 1040,\0A      \22unit\22: \22per socket\22,\0A      \22origin\22: \22published\22,\0A      \22note\22: \22pattern compute units\22\0A    },\0A    \22pmu_bytes\22: {\0A      \22value\22: 524288,\0A      \22unit\22: \22bytes\22,\0A      \22origin\22: \22published\22,\0A      \22note\22: \22SRAM of one pattern memory unit\22\0A    },\0A    \22bf16_flops\22: {\0A      \22value\22: 638000000000000.0,\0A      \22unit\22: \22FLOP/s per socket\22,\0A      \22origin\22: \22published\22,\0A      \22note\22: \22peak of dense BF16 products\22\0A    },\0A    \22f32_flops\22: {\0A      \22value\22: 319000000000000.0,\0A      \22unit\22: \22FLOP/s per socket\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22half the BF16 rate; not published\22\0A    },\0A    \22simd_lanes\22: {\0A      \22value\22: 32,\0A      \22unit\22: \22per PCU\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22elements per cycle; not published\22\0A    },\0A    \22simd_stages\22: {\0A      \22value\22: 6,\0A      \22unit\22: \22per PCU\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22chained operations; with the lanes and the clock they give the published peak\22\0A    },\0A    \22clock\22: {\0A      \22value\22: 1600000000.0,\0A      \22unit\22: \22Hz\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22not published\22\0A    }\0A  },\0A  \22costs\22: {\0A    \22launch_seconds\22: {\0A      \22value\22: 5e-06,\0A      \22unit\22: \22s\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22program load, argument load, execute; not published\22\0A    },\0A    \22firing_seconds\22: {\0A      \22value\22: 6.25e-08,\0A      \22unit\22: \22s\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22100 cycles: control token, address generators, fill of a PCU's pipeline; not published\22\0A    },\0A    \22boundary_seconds\22: {\0A      \22value\22: 2e-05,\0A      \22unit\22: \22s\22,\0A      \22origin\22: \22fitted\22,\0A      \22note\22: \22drain and refill at each launch; one value for all, fitted to the published speed-up of looping, up to 2.2x\22\0A    }\0A  },\0A  \22links\22: [\0A    {\0A      \22name\22: \22socket\22,\0A      \22bandwidth\22: {\0A        \22value\22: 100000000000.0,\0A        \22unit\22: \22bytes/s per link\22,\0A        \22origin\22: \22assumed\22,\0A        \22note\22: \22socket to socket, not published\22\0A      },\0A      \22latency\22: {\0A        \22value\22: 1e-06,\0A        \22unit\22: \22s\22,\0A        \22origin\22: \22assumed\22,\0A        \22note\22: \22of a message from one socket to another; not published\22\0A      }\0A    }\0A  ]\0A}\0A"
#passes = [
  "lower-torch",
  "split-layers",
  "repeat-layers",
  "absorb-latent",
  "thread-cache",
  "build-entries",
  "outline-kernels{granularity=layer}",
  "merge-equal-kernels",
  "kernel-looping",
  "fuse-compressed-attention",
  "form-stages"
]
#program = {batch = 2 : i64, chunk = 7 : i64, config = "{\22architectures\22: [\22Qwen3NextForCausalLM\22], \22attention_bias\22: false, \22attention_dropout\22: 0.0, \22bos_token_id\22: null, \22chunk_size_feed_forward\22: 0, \22decoder_sparse_step\22: 1, \22dtype\22: \22float32\22, \22eos_token_id\22: null, \22head_dim\22: 8, \22hidden_act\22: \22silu\22, \22hidden_size\22: 32, \22id2label\22: {\220\22: \22LABEL_0\22, \221\22: \22LABEL_1\22}, \22initializer_range\22: 0.3, \22intermediate_size\22: 48, \22is_encoder_decoder\22: false, \22label2id\22: {\22LABEL_0\22: 0, \22LABEL_1\22: 1}, \22layer_types\22: [\22linear_attention\22, \22full_attention\22], \22linear_conv_kernel_dim\22: 4, \22linear_key_head_dim\22: 8, \22linear_num_key_heads\22: 2, \22linear_num_value_heads\22: 4, \22linear_value_head_dim\22: 8, \22max_position_embeddings\22: 192, \22mlp_only_layers\22: [], \22model_type\22: \22qwen3_next\22, \22moe_intermediate_size\22: 16, \22norm_topk_prob\22: true, \22num_attention_heads\22: 4, \22num_experts\22: 6, \22num_experts_per_tok\22: 2, \22num_hidden_layers\22: 2, \22num_key_value_heads\22: 2, \22output_attentions\22: false, \22output_hidden_states\22: false, \22output_router_logits\22: false, \22pad_token_id\22: null, \22problem_type\22: null, \22return_dict\22: true, \22rms_norm_eps\22: 1e-06, \22rope_parameters\22: {\22partial_rotary_factor\22: 0.25, \22rope_theta\22: 10000.0, \22rope_type\22: \22default\22}, \22router_aux_loss_coef\22: 0.001, \22shared_expert_intermediate_size\22: 16, \22tie_word_embeddings\22: false, \22use_cache\22: true, \22vocab_size\22: 96}", digest = "", dtype = "f32", eos = "[]", layers = 2 : i64, vocab_size = 96 : i64}
module attributes {kv.geometry = #geometry, kv.groups = #groups, sscc.beside = ["recurrence"], sscc.layers = {convolution = array<i64: 0>, recurrence = array<i64: 0>}, sscc.level = "fused", sscc.machine = #machine, sscc.passes = #passes, sscc.program = #program} {
  func.func private @decode.embed(%model.embed_tokens.weight: tensor<96x32xf32> {sscc.weight = "model.embed_tokens.weight"} loc("model.embed_tokens"(#loc1)),
      %model.rotary_emb.inv_freq: tensor<1xf32> {sscc.constant = "model.rotary_emb.inv_freq"} loc("model.embed_tokens"(#loc1)),
      %ids: tensor<2x1xi64> {sscc.input = "ids"} loc("model.embed_tokens"(#loc1)),
      %positions: tensor<2x1xi64> {sscc.input = "positions"} loc("model.embed_tokens"(#loc1))) -> (tensor<2x1x32xf32> {sscc.output = "hidden"}, tensor<2x1x2xf32> {sscc.output = "table.0"}, tensor<2x1x2xf32> {sscc.output = "table.1"}) attributes {sscc.entry = "decode", sscc.kernel} {
    %0 = call @body.embed_tokens(%ids, %model.embed_tokens.weight) {df.stage = "embed_tokens"} : (tensor<2x1xi64>, tensor<96x32xf32>) -> tensor<2x1x32xf32> loc(#loc64)
    %1 = call @body.rotary_emb(%positions, %model.rotary_emb.inv_freq) {df.stage = "rotary_emb"} : (tensor<2x1xi64>, tensor<1xf32>) -> tensor<2x1x2xf32> loc(#loc65)
    %2 = call @body.rotary_emb.2(%1) {df.stage = "rotary_emb"} : (tensor<2x1x2xf32>) -> tensor<2x1x2xf32> loc(#loc66)
    %3 = call @body.rotary_emb.3(%1) {df.stage = "rotary_emb"} : (tensor<2x1x2xf32>) -> tensor<2x1x2xf32> loc(#loc67)
    return %0, %2, %3 : tensor<2x1x32xf32>, tensor<2x1x2xf32>, tensor<2x1x2xf32> loc(#loc64)
  } loc(#loc64)
  func.func private @decode.head(%hidden: tensor<2x1x32xf32> {sscc.input = "hidden"} loc("model.norm"(#loc5)),
      %model.norm.weight: tensor<32xf32> {sscc.weight = "model.norm.weight"} loc("model.norm"(#loc5)),
      %lm_head.weight: tensor<96x32xf32> {sscc.weight = "lm_head.weight"} loc("model.norm"(#loc5))) -> (tensor<2x1x96xf32> {sscc.output = "logits"}) attributes {sscc.entry = "decode", sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc68)
    %1 = call @body.norm(%hidden, %model.norm.weight) {df.stage = "norm"} : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc69)
    %2 = tensor.empty() : tensor<2x96xf32> loc(#loc70)
    %3 = call @body.lm_head(%lm_head.weight, %1) {df.stage = "lm_head"} : (tensor<96x32xf32>, tensor<2x1x32xf32>) -> tensor<2x96xf32> loc(#loc70)
    %expanded = tensor.expand_shape %3 [[0], [1, 2]] output_shape [2, 1, 96] : tensor<2x96xf32> into tensor<2x1x96xf32> loc(#loc70)
    return %expanded : tensor<2x1x96xf32> loc(#loc68)
  } loc(#loc68)
  func.func private @decode.layer.0(%hidden: tensor<2x1x32xf32> {sscc.input = "hidden"} loc("model.layers.0"),
      %table.0: tensor<2x1x2xf32> {sscc.input = "table.0"} loc("model.layers.0"),
      %table.1: tensor<2x1x2xf32> {sscc.input = "table.1"} loc("model.layers.0"),
      %linear_attn.dt_bias: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.dt_bias"} loc("model.layers.0"),
      %linear_attn.A_log: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.A_log"} loc("model.layers.0"),
      %linear_attn.conv1d.weight: tensor<64x1x4xf32> {sscc.weight = "model.layers.0.linear_attn.conv1d.weight"} loc("model.layers.0"),
      %linear_attn.in_proj_qkvz.weight: tensor<96x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_qkvz.weight"} loc("model.layers.0"),
      %linear_attn.in_proj_ba.weight: tensor<8x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_ba.weight"} loc("model.layers.0"),
      %linear_attn.norm.weight: tensor<8xf32> {sscc.weight = "model.layers.0.linear_attn.norm.weight"} loc("model.layers.0"),
      %linear_attn.out_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.linear_attn.out_proj.weight"} loc("model.layers.0"),
      %mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.0.mlp.gate.weight"} loc("model.layers.0"),
      %mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.0.mlp.experts.gate_up_proj"} loc("model.layers.0"),
      %mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.0.mlp.experts.down_proj"} loc("model.layers.0"),
      %shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.gate_proj.weight"} loc("model.layers.0"),
      %shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.up_proj.weight"} loc("model.layers.0"),
      %shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.down_proj.weight"} loc("model.layers.0"),
      %mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert_gate.weight"} loc("model.layers.0"),
      %input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.input_layernorm.weight"} loc("model.layers.0"),
      %post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.post_attention_layernorm.weight"} loc("model.layers.0"),
      %inputs_cache: tensor<2x1x3x64xf32> {sscc.state = "inputs_cache"} loc("model.layers.0"),
      %position: tensor<2xi64> {sscc.input = "position"} loc("model.layers.0"),
      %active: tensor<2xi1> {sscc.input = "active"} loc("model.layers.0"),
      %recurrent_cache.recurrence: tensor<2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"} loc("model.layers.0")) -> (tensor<2x1x32xf32> {sscc.output = "hidden"}, tensor<2x1x3x64xf32> {sscc.state = "inputs_cache"}, tensor<2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"}) attributes {sscc.entry = "decode", sscc.kernel, sscc.layer = 0 : i64} {
    %cst = arith.constant 0xFF800000 : f32 loc(#loc)
    %c0 = arith.constant 0 : index loc(#loc71)
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %cst_0 = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc72)
    %1 = call @body.norm(%hidden, %input_layernorm.weight) {df.stage = "input_layernorm"} : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc73)
    %collapsed = tensor.collapse_shape %1 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc74)
    %2 = tensor.empty() : tensor<2x96xf32> loc(#loc74)
    %3 = call @body.in_proj_qkvz(%linear_attn.in_proj_qkvz.weight, %collapsed) {df.stage = "in_proj_qkvz"} : (tensor<96x32xf32>, tensor<2x32xf32>) -> tensor<2x96xf32> loc(#loc74)
    %4 = tensor.empty() : tensor<2x8xf32> loc(#loc75)
    %5 = call @body.in_proj_ba(%linear_attn.in_proj_ba.weight, %collapsed) {df.stage = "in_proj_ba"} : (tensor<8x32xf32>, tensor<2x32xf32>) -> tensor<2x8xf32> loc(#loc75)
    %expanded = tensor.expand_shape %3 [[0], [1, 2, 3]] output_shape [2, 1, 2, 48] : tensor<2x96xf32> into tensor<2x1x2x48xf32> loc(#loc76)
    %expanded_1 = tensor.expand_shape %5 [[0], [1, 2, 3]] output_shape [2, 1, 2, 4] : tensor<2x8xf32> into tensor<2x1x2x4xf32> loc(#loc76)
    %extracted_slice = tensor.extract_slice %expanded[0, 0, 0, 0] [2, 1, 2, 8] [1, 1, 1, 1] : tensor<2x1x2x48xf32> to tensor<2x1x2x8xf32> loc(#loc76)
    %extracted_slice_2 = tensor.extract_slice %expanded[0, 0, 0, 8] [2, 1, 2, 8] [1, 1, 1, 1] : tensor<2x1x2x48xf32> to tensor<2x1x2x8xf32> loc(#loc76)
    %extracted_slice_3 = tensor.extract_slice %expanded[0, 0, 0, 16] [2, 1, 2, 16] [1, 1, 1, 1] : tensor<2x1x2x48xf32> to tensor<2x1x2x16xf32> loc(#loc76)
    %extracted_slice_4 = tensor.extract_slice %expanded[0, 0, 0, 32] [2, 1, 2, 16] [1, 1, 1, 1] : tensor<2x1x2x48xf32> to tensor<2x1x2x16xf32> loc(#loc76)
    %extracted_slice_5 = tensor.extract_slice %expanded_1[0, 0, 0, 0] [2, 1, 2, 2] [1, 1, 1, 1] : tensor<2x1x2x4xf32> to tensor<2x1x2x2xf32> loc(#loc76)
    %extracted_slice_6 = tensor.extract_slice %expanded_1[0, 0, 0, 2] [2, 1, 2, 2] [1, 1, 1, 1] : tensor<2x1x2x4xf32> to tensor<2x1x2x2xf32> loc(#loc76)
    %collapsed_7 = tensor.collapse_shape %extracted_slice_3 [[0], [1], [2, 3]] : tensor<2x1x2x16xf32> into tensor<2x1x32xf32> loc(#loc76)
    %collapsed_8 = tensor.collapse_shape %extracted_slice [[0], [1], [2, 3]] : tensor<2x1x2x8xf32> into tensor<2x1x16xf32> loc(#loc77)
    %collapsed_9 = tensor.collapse_shape %extracted_slice_2 [[0], [1], [2, 3]] : tensor<2x1x2x8xf32> into tensor<2x1x16xf32> loc(#loc77)
    %6 = call @body.linear_attn(%collapsed_7, %collapsed_8, %collapsed_9) {df.stage = "linear_attn"} : (tensor<2x1x32xf32>, tensor<2x1x16xf32>, tensor<2x1x16xf32>) -> tensor<2x1x64xf32> loc(#loc78)
    %7:2 = call @body.update(%6, %inputs_cache, %linear_attn.conv1d.weight, %position, %c0, %active) {df.stage = "update"} : (tensor<2x1x64xf32>, tensor<2x1x3x64xf32>, tensor<64x1x4xf32>, tensor<2xi64>, index, tensor<2xi1>) -> (tensor<2x64xf32>, tensor<2x1x3x64xf32>) loc(#loc71)
    %8 = call @body.linear_attn.13(%7#0) {df.stage = "linear_attn"} : (tensor<2x64xf32>) -> tensor<2x1x64xf32> loc(#loc79)
    %extracted_slice_10 = tensor.extract_slice %8[0, 0, 0] [2, 1, 16] [1, 1, 1] : tensor<2x1x64xf32> to tensor<2x1x16xf32> loc(#loc80)
    %extracted_slice_11 = tensor.extract_slice %8[0, 0, 16] [2, 1, 16] [1, 1, 1] : tensor<2x1x64xf32> to tensor<2x1x16xf32> loc(#loc80)
    %extracted_slice_12 = tensor.extract_slice %8[0, 0, 32] [2, 1, 32] [1, 1, 1] : tensor<2x1x64xf32> to tensor<2x1x32xf32> loc(#loc80)
    %expanded_13 = tensor.expand_shape %extracted_slice_10 [[0], [1], [2, 3]] output_shape [2, 1, 2, 8] : tensor<2x1x16xf32> into tensor<2x1x2x8xf32> loc(#loc81)
    %expanded_14 = tensor.expand_shape %extracted_slice_11 [[0], [1], [2, 3]] output_shape [2, 1, 2, 8] : tensor<2x1x16xf32> into tensor<2x1x2x8xf32> loc(#loc82)
    %expanded_15 = tensor.expand_shape %extracted_slice_12 [[0], [1], [2, 3]] output_shape [2, 1, 4, 8] : tensor<2x1x32xf32> into tensor<2x1x4x8xf32> loc(#loc83)
    %9 = call @body.linear_attn.10(%extracted_slice_5) {df.stage = "linear_attn"} : (tensor<2x1x2x2xf32>) -> tensor<2x1x4xf32> loc(#loc84)
    %10 = call @body.linear_attn.11(%extracted_slice_6, %linear_attn.A_log, %linear_attn.dt_bias) {df.stage = "linear_attn"} : (tensor<2x1x2x2xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x1x4xf32> loc(#loc85)
    %11 = tensor.empty() : tensor<2x1x2x1xf32> loc(#loc86)
    %12 = call @body.linear_attn.15(%expanded_14) {df.stage = "linear_attn"} : (tensor<2x1x2x8xf32>) -> tensor<2x1x2x8xf32> loc(#loc86)
    %13 = call @body.linear_attn.14(%expanded_13) {df.stage = "linear_attn"} : (tensor<2x1x2x8xf32>) -> tensor<2x1x2x8xf32> loc(#loc86)
    %14:2 = call @body.recurrent_step(%10, %13, %12, %expanded_15, %recurrent_cache.recurrence, %active, %9) {df.stage = "recurrent_step"} : (tensor<2x1x4xf32>, tensor<2x1x2x8xf32>, tensor<2x1x2x8xf32>, tensor<2x1x4x8xf32>, tensor<2x4x8x8xf32>, tensor<2xi1>, tensor<2x1x4xf32>) -> (tensor<2x1x4x8xf32>, tensor<2x4x8x8xf32>) loc(#loc86)
    %15 = tensor.empty() : tensor<8x1xf32> loc(#loc87)
    %collapsed_16 = tensor.collapse_shape %extracted_slice_4 [[0], [1], [2, 3]] : tensor<2x1x2x16xf32> into tensor<2x1x32xf32> loc(#loc76)
    %16 = call @body.norm.9(%14#0, %linear_attn.norm.weight, %collapsed_16) {df.stage = "norm"} : (tensor<2x1x4x8xf32>, tensor<8xf32>, tensor<2x1x32xf32>) -> tensor<8x8xf32> loc(#loc88)
    %17 = tensor.empty() : tensor<2x32xf32> loc(#loc89)
    %18 = call @body.out_proj(%16, %linear_attn.out_proj.weight, %hidden) {df.stage = "out_proj"} : (tensor<8x8xf32>, tensor<32x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %19 = call @body.norm(%18, %post_attention_layernorm.weight) {df.stage = "post_attention_layernorm"} : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc91)
    %collapsed_17 = tensor.collapse_shape %19 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc92)
    %20 = tensor.empty() : tensor<2x16xf32> loc(#loc93)
    %21 = call @"body.gate_proj+up_proj"(%shared_expert.gate_proj.weight, %collapsed_17, %shared_expert.up_proj.weight) {df.stage = "gate_proj+up_proj"} : (tensor<16x32xf32>, tensor<2x32xf32>, tensor<16x32xf32>) -> tensor<2x16xf32> loc(#loc94)
    %22 = call @body.down_proj(%shared_expert.down_proj.weight, %21) {df.stage = "down_proj"} : (tensor<32x16xf32>, tensor<2x16xf32>) -> tensor<2x32xf32> loc(#loc95)
    %23 = tensor.empty() : tensor<2x6xf32> loc(#loc96)
    %24 = call @body.gate(%mlp.gate.weight, %collapsed_17) {df.stage = "gate"} : (tensor<6x32xf32>, tensor<2x32xf32>) -> tensor<2x6xf32> loc(#loc96)
    %25 = tensor.empty() : tensor<2xf32> loc(#loc97)
    %26 = tensor.empty() : tensor<2xi64> loc(#loc97)
    %27 = tensor.empty() : tensor<2x1xf32> loc(#loc97)
    %28 = call @body.gate.21(%24) {df.stage = "gate"} : (tensor<2x6xf32>) -> tensor<2x6xf32> loc(#loc97)
    %29:2 = call @body.topk(%28) {df.stage = "topk"} : (tensor<2x6xf32>) -> (tensor<2x2xf32>, tensor<2x2xi64>) loc(#loc98)
    %30 = call @body.expert_product(%19, %mlp.experts.gate_up_proj, %29#1) {df.stage = "expert_product"} : (tensor<2x1x32xf32>, tensor<6x32x32xf32>, tensor<2x2xi64>) -> tensor<2x2x32xf32> loc(#loc99)
    %extracted_slice_18 = tensor.extract_slice %30[0, 0, 0] [2, 2, 16] [1, 1, 1] : tensor<2x2x32xf32> to tensor<2x2x16xf32> loc(#loc99)
    %extracted_slice_19 = tensor.extract_slice %30[0, 0, 16] [2, 2, 16] [1, 1, 1] : tensor<2x2x32xf32> to tensor<2x2x16xf32> loc(#loc99)
    %31 = call @body.experts(%extracted_slice_18, %extracted_slice_19) {df.stage = "experts"} : (tensor<2x2x16xf32>, tensor<2x2x16xf32>) -> tensor<2x2x16xf32> loc(#loc99)
    %32 = call @body.expert_product.26(%31, %mlp.experts.down_proj, %29#1) {df.stage = "expert_product"} : (tensor<2x2x16xf32>, tensor<6x32x16xf32>, tensor<2x2xi64>) -> tensor<2x2x32xf32> loc(#loc99)
    %33 = call @body.shared_expert_gate(%mlp.shared_expert_gate.weight, %collapsed_17) {df.stage = "shared_expert_gate"} : (tensor<1x32xf32>, tensor<2x32xf32>) -> tensor<2x1xf32> loc(#loc100)
    %34 = call @"body.gate+experts"(%29#0, %32, %33, %22, %18) {df.stage = "gate+experts"} : (tensor<2x2xf32>, tensor<2x2x32xf32>, tensor<2x1xf32>, tensor<2x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc101)
    return %34, %7#1, %14#1 : tensor<2x1x32xf32>, tensor<2x1x3x64xf32>, tensor<2x4x8x8xf32> loc(#loc8)
  } loc(#loc8)
  func.func private @decode.layer.1(%hidden: tensor<2x1x32xf32> {sscc.input = "hidden"} loc("model.layers.1"),
      %table.0: tensor<2x1x2xf32> {sscc.input = "table.0"} loc("model.layers.1"),
      %table.1: tensor<2x1x2xf32> {sscc.input = "table.1"} loc("model.layers.1"),
      %self_attn.q_proj.weight: tensor<64x32xf32> {sscc.weight = "model.layers.1.self_attn.q_proj.weight"} loc("model.layers.1"),
      %self_attn.k_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.k_proj.weight"} loc("model.layers.1"),
      %self_attn.v_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.v_proj.weight"} loc("model.layers.1"),
      %self_attn.o_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.self_attn.o_proj.weight"} loc("model.layers.1"),
      %self_attn.q_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.q_norm.weight"} loc("model.layers.1"),
      %self_attn.k_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.k_norm.weight"} loc("model.layers.1"),
      %mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.1.mlp.gate.weight"} loc("model.layers.1"),
      %mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.1.mlp.experts.gate_up_proj"} loc("model.layers.1"),
      %mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.1.mlp.experts.down_proj"} loc("model.layers.1"),
      %shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.gate_proj.weight"} loc("model.layers.1"),
      %shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.up_proj.weight"} loc("model.layers.1"),
      %shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.down_proj.weight"} loc("model.layers.1"),
      %mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert_gate.weight"} loc("model.layers.1"),
      %input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.input_layernorm.weight"} loc("model.layers.1"),
      %post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.post_attention_layernorm.weight"} loc("model.layers.1"),
      %k_cache: tensor<2x2x88x8xf32> {sscc.state = "k_cache"} loc("model.layers.1"),
      %v_cache: tensor<2x2x88x8xf32> {sscc.state = "v_cache"} loc("model.layers.1"),
      %position: tensor<2xi64> {sscc.input = "position"} loc("model.layers.1"),
      %base: tensor<2xi64> {sscc.input = "base"} loc("model.layers.1"),
      %active: tensor<2xi1> {sscc.input = "active"} loc("model.layers.1")) -> (tensor<2x1x32xf32> {sscc.output = "hidden"}, tensor<2x2x88x8xf32> {sscc.state = "k_cache"}, tensor<2x2x88x8xf32> {sscc.state = "v_cache"}) attributes {sscc.entry = "decode", sscc.kernel, sscc.layer = 1 : i64} {
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %cst = arith.constant 0xFF800000 : f32 loc(#loc)
    %c12 = arith.constant 12 : index loc(#loc102)
    %cst_0 = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc103)
    %1 = call @body.norm(%hidden, %input_layernorm.weight) {df.stage = "input_layernorm"} : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc104)
    %collapsed = tensor.collapse_shape %1 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc105)
    %2 = tensor.empty() : tensor<2x64xf32> loc(#loc105)
    %3 = call @body.q_proj(%self_attn.q_proj.weight, %collapsed) {df.stage = "q_proj"} : (tensor<64x32xf32>, tensor<2x32xf32>) -> tensor<2x64xf32> loc(#loc105)
    %expanded = tensor.expand_shape %3 [[0], [1, 2, 3]] output_shape [2, 1, 4, 16] : tensor<2x64xf32> into tensor<2x1x4x16xf32> loc(#loc106)
    %extracted_slice = tensor.extract_slice %expanded[0, 0, 0, 0] [2, 1, 4, 8] [1, 1, 1, 1] : tensor<2x1x4x16xf32> to tensor<2x1x4x8xf32> loc(#loc107)
    %extracted_slice_1 = tensor.extract_slice %expanded[0, 0, 0, 8] [2, 1, 4, 8] [1, 1, 1, 1] : tensor<2x1x4x16xf32> to tensor<2x1x4x8xf32> loc(#loc107)
    %4 = tensor.empty() : tensor<2x1x4x1xf32> loc(#loc108)
    %5 = tensor.empty() : tensor<2x16xf32> loc(#loc109)
    %6 = call @body.k_proj(%self_attn.k_proj.weight, %collapsed) {df.stage = "k_proj"} : (tensor<16x32xf32>, tensor<2x32xf32>) -> tensor<2x16xf32> loc(#loc109)
    %7 = tensor.empty() : tensor<2x1x2x1xf32> loc(#loc110)
    %8 = call @body.k_proj(%self_attn.v_proj.weight, %collapsed) {df.stage = "v_proj"} : (tensor<16x32xf32>, tensor<2x32xf32>) -> tensor<2x16xf32> loc(#loc111)
    %expanded_2 = tensor.expand_shape %table.0 [[0], [1, 2], [3]] output_shape [2, 1, 1, 2] : tensor<2x1x2xf32> into tensor<2x1x1x2xf32> loc(#loc112)
    %expanded_3 = tensor.expand_shape %table.1 [[0], [1, 2], [3]] output_shape [2, 1, 1, 2] : tensor<2x1x2xf32> into tensor<2x1x1x2xf32> loc(#loc112)
    %9 = call @body.q_norm(%extracted_slice, %self_attn.q_norm.weight, %expanded_2, %expanded_3) {df.stage = "q_norm"} : (tensor<2x1x4x8xf32>, tensor<8xf32>, tensor<2x1x1x2xf32>, tensor<2x1x1x2xf32>) -> tensor<2x4x1x8xf32> loc(#loc112)
    %10 = call @body.k_norm(%6, %self_attn.k_norm.weight, %expanded_2, %expanded_3) {df.stage = "k_norm"} : (tensor<2x16xf32>, tensor<8xf32>, tensor<2x1x1x2xf32>, tensor<2x1x1x2xf32>) -> tensor<2x2x1x8xf32> loc(#loc112)
    %11:3 = call @body.decode_attention(%8, %9, %10, %k_cache, %v_cache, %position, %base, %active, %c12) {df.stage = "decode_attention"} : (tensor<2x16xf32>, tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> (tensor<2x4x1x8xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>) loc(#loc102)
    %12 = call @body.self_attn(%extracted_slice_1, %11#0) {df.stage = "self_attn"} : (tensor<2x1x4x8xf32>, tensor<2x4x1x8xf32>) -> tensor<2x1x32xf32> loc(#loc113)
    %13 = tensor.empty() : tensor<2x32xf32> loc(#loc114)
    %14 = call @body.o_proj(%self_attn.o_proj.weight, %12, %hidden) {df.stage = "o_proj"} : (tensor<32x32xf32>, tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc115)
    %15 = call @body.norm(%14, %post_attention_layernorm.weight) {df.stage = "post_attention_layernorm"} : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc116)
    %collapsed_4 = tensor.collapse_shape %15 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc117)
    %16 = call @"body.gate_proj+up_proj"(%shared_expert.gate_proj.weight, %collapsed_4, %shared_expert.up_proj.weight) {df.stage = "gate_proj+up_proj"} : (tensor<16x32xf32>, tensor<2x32xf32>, tensor<16x32xf32>) -> tensor<2x16xf32> loc(#loc118)
    %17 = call @body.down_proj(%shared_expert.down_proj.weight, %16) {df.stage = "down_proj"} : (tensor<32x16xf32>, tensor<2x16xf32>) -> tensor<2x32xf32> loc(#loc119)
    %18 = tensor.empty() : tensor<2x6xf32> loc(#loc120)
    %19 = call @body.gate(%mlp.gate.weight, %collapsed_4) {df.stage = "gate"} : (tensor<6x32xf32>, tensor<2x32xf32>) -> tensor<2x6xf32> loc(#loc120)
    %20 = tensor.empty() : tensor<2xf32> loc(#loc121)
    %21 = tensor.empty() : tensor<2xi64> loc(#loc121)
    %22 = tensor.empty() : tensor<2x1xf32> loc(#loc121)
    %23 = call @body.gate.21(%19) {df.stage = "gate"} : (tensor<2x6xf32>) -> tensor<2x6xf32> loc(#loc121)
    %24:2 = call @body.topk(%23) {df.stage = "topk"} : (tensor<2x6xf32>) -> (tensor<2x2xf32>, tensor<2x2xi64>) loc(#loc122)
    %25 = call @body.expert_product(%15, %mlp.experts.gate_up_proj, %24#1) {df.stage = "expert_product"} : (tensor<2x1x32xf32>, tensor<6x32x32xf32>, tensor<2x2xi64>) -> tensor<2x2x32xf32> loc(#loc123)
    %extracted_slice_5 = tensor.extract_slice %25[0, 0, 0] [2, 2, 16] [1, 1, 1] : tensor<2x2x32xf32> to tensor<2x2x16xf32> loc(#loc123)
    %extracted_slice_6 = tensor.extract_slice %25[0, 0, 16] [2, 2, 16] [1, 1, 1] : tensor<2x2x32xf32> to tensor<2x2x16xf32> loc(#loc123)
    %26 = call @body.experts(%extracted_slice_5, %extracted_slice_6) {df.stage = "experts"} : (tensor<2x2x16xf32>, tensor<2x2x16xf32>) -> tensor<2x2x16xf32> loc(#loc123)
    %27 = call @body.expert_product.26(%26, %mlp.experts.down_proj, %24#1) {df.stage = "expert_product"} : (tensor<2x2x16xf32>, tensor<6x32x16xf32>, tensor<2x2xi64>) -> tensor<2x2x32xf32> loc(#loc123)
    %28 = call @body.shared_expert_gate(%mlp.shared_expert_gate.weight, %collapsed_4) {df.stage = "shared_expert_gate"} : (tensor<1x32xf32>, tensor<2x32xf32>) -> tensor<2x1xf32> loc(#loc124)
    %29 = call @"body.gate+experts"(%24#0, %27, %28, %17, %14) {df.stage = "gate+experts"} : (tensor<2x2xf32>, tensor<2x2x32xf32>, tensor<2x1xf32>, tensor<2x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc125)
    return %29, %11#1, %11#2 : tensor<2x1x32xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32> loc(#loc35)
  } loc(#loc35)
  func.func private @prefill.phase.embed(%begin: index {sscc.input = "begin"} loc("prefill.phase.embed"),
      %end: index {sscc.input = "end"} loc("prefill.phase.embed"),
      %chunks: index {sscc.input = "chunks"} loc("prefill.phase.embed"),
      %number: index {sscc.input = "number"} loc("prefill.phase.embed"),
      %length: index {sscc.input = "length"} loc("prefill.phase.embed"),
      %reused: index {sscc.input = "reused"} loc("prefill.phase.embed"),
      %tokens: tensor<1x196xi64> {sscc.input = "tokens"} loc("prefill.phase.embed"),
      %position_ids: tensor<1x196xi64> {sscc.input = "position_ids"} loc("prefill.phase.embed"),
      %hidden: tensor<1x196x32xf32> {sscc.state = "hidden"} loc("prefill.phase.embed"),
      %table.0: tensor<1x196x2xf32> {sscc.state = "table.0"} loc("prefill.phase.embed"),
      %table.1: tensor<1x196x2xf32> {sscc.state = "table.1"} loc("prefill.phase.embed"),
      %model.embed_tokens.weight: tensor<96x32xf32> {sscc.weight = "model.embed_tokens.weight"} loc("prefill.phase.embed"),
      %model.rotary_emb.inv_freq: tensor<1xf32> {sscc.constant = "model.rotary_emb.inv_freq"} loc("prefill.phase.embed")) -> (tensor<1x196x32xf32> {sscc.state = "hidden"}, tensor<1x196x2xf32> {sscc.state = "table.0"}, tensor<1x196x2xf32> {sscc.state = "table.1"}) attributes {sscc.kernel} {
    %c7 = arith.constant 7 : index loc(#loc44)
    %c1 = arith.constant 1 : index loc(#loc44)
    %c0 = arith.constant 0 : index loc(#loc45)
    %0 = arith.muli %number, %chunks : index loc(#loc45)
    %1 = arith.subi %begin, %0 : index loc(#loc45)
    %2 = arith.maxsi %1, %c0 : index loc(#loc45)
    %3 = arith.minsi %2, %chunks : index loc(#loc45)
    %4 = arith.subi %end, %0 : index loc(#loc45)
    %5 = arith.maxsi %4, %c0 : index loc(#loc45)
    %6 = arith.minsi %5, %chunks : index loc(#loc45)
    %7 = arith.ceildivsi %length, %c7 : index loc(#loc44)
    %8 = arith.addi %3, %reused : index loc(#loc44)
    %9 = arith.minsi %8, %7 : index loc(#loc44)
    %10 = arith.addi %6, %reused : index loc(#loc44)
    %11 = arith.minsi %10, %7 : index loc(#loc44)
    %12:3 = scf.for %arg13 = %9 to %11 step %c1 iter_args(%arg14 = %hidden, %arg15 = %table.0, %arg16 = %table.1) -> (tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32>) {
      %13 = arith.muli %arg13, %c7 : index loc(#loc44)
      %extracted_slice = tensor.extract_slice %tokens[0, %13] [1, 7] [1, 1] : tensor<1x196xi64> to tensor<1x7xi64> loc(#loc44)
      %extracted_slice_0 = tensor.extract_slice %position_ids[0, %13] [1, 7] [1, 1] : tensor<1x196xi64> to tensor<1x7xi64> loc(#loc44)
      %14 = func.call @body.embed_tokens.35(%extracted_slice, %model.embed_tokens.weight) {df.stage = "embed_tokens"} : (tensor<1x7xi64>, tensor<96x32xf32>) -> tensor<1x7x32xf32> loc(#loc64)
      %15 = func.call @body.rotary_emb.36(%extracted_slice_0, %model.rotary_emb.inv_freq) {df.stage = "rotary_emb"} : (tensor<1x7xi64>, tensor<1xf32>) -> tensor<1x7x2xf32> loc(#loc65)
      %16 = func.call @body.rotary_emb.37(%15) {df.stage = "rotary_emb"} : (tensor<1x7x2xf32>) -> tensor<1x7x2xf32> loc(#loc66)
      %17 = func.call @body.rotary_emb.38(%15) {df.stage = "rotary_emb"} : (tensor<1x7x2xf32>) -> tensor<1x7x2xf32> loc(#loc67)
      %inserted_slice = tensor.insert_slice %14 into %arg14[0, %13, 0] [1, 7, 32] [1, 1, 1] : tensor<1x7x32xf32> into tensor<1x196x32xf32> loc(#loc44)
      %inserted_slice_1 = tensor.insert_slice %16 into %arg15[0, %13, 0] [1, 7, 2] [1, 1, 1] : tensor<1x7x2xf32> into tensor<1x196x2xf32> loc(#loc44)
      %inserted_slice_2 = tensor.insert_slice %17 into %arg16[0, %13, 0] [1, 7, 2] [1, 1, 1] : tensor<1x7x2xf32> into tensor<1x196x2xf32> loc(#loc44)
      scf.yield %inserted_slice, %inserted_slice_1, %inserted_slice_2 : tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32> loc(#loc44)
    } loc(#loc44)
    return %12#0, %12#1, %12#2 : tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32> loc(#loc44)
  } loc(#loc44)
  func.func private @prefill.phase.layer.0(%begin: index {sscc.input = "begin"} loc("prefill.phase.layer.0"),
      %end: index {sscc.input = "end"} loc("prefill.phase.layer.0"),
      %chunks: index {sscc.input = "chunks"} loc("prefill.phase.layer.0"),
      %number: index {sscc.input = "number"} loc("prefill.phase.layer.0"),
      %length: index {sscc.input = "length"} loc("prefill.phase.layer.0"),
      %slot: index {sscc.input = "slot"} loc("prefill.phase.layer.0"),
      %reused: index {sscc.input = "reused"} loc("prefill.phase.layer.0"),
      %hidden: tensor<1x196x32xf32> {sscc.state = "hidden"} loc("prefill.phase.layer.0"),
      %table.0: tensor<1x196x2xf32> {sscc.state = "table.0"} loc("prefill.phase.layer.0"),
      %table.1: tensor<1x196x2xf32> {sscc.state = "table.1"} loc("prefill.phase.layer.0"),
      %inputs_scratch: tensor<1x1x3x64xf32> {sscc.state = "inputs_scratch"} loc("prefill.phase.layer.0"),
      %recurrent_scratch.recurrence: tensor<1x4x8x8xf32> {sscc.state = "recurrent_scratch.recurrence"} loc("prefill.phase.layer.0"),
      %inputs_cache: tensor<2x1x3x64xf32> {sscc.state = "inputs_cache"} loc("prefill.phase.layer.0"),
      %recurrent_cache.recurrence: tensor<2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"} loc("prefill.phase.layer.0"),
      %linear_attn.dt_bias: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.dt_bias"} loc("prefill.phase.layer.0"),
      %linear_attn.A_log: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.A_log"} loc("prefill.phase.layer.0"),
      %linear_attn.conv1d.weight: tensor<64x1x4xf32> {sscc.weight = "model.layers.0.linear_attn.conv1d.weight"} loc("prefill.phase.layer.0"),
      %linear_attn.in_proj_qkvz.weight: tensor<96x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_qkvz.weight"} loc("prefill.phase.layer.0"),
      %linear_attn.in_proj_ba.weight: tensor<8x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_ba.weight"} loc("prefill.phase.layer.0"),
      %linear_attn.norm.weight: tensor<8xf32> {sscc.weight = "model.layers.0.linear_attn.norm.weight"} loc("prefill.phase.layer.0"),
      %linear_attn.out_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.linear_attn.out_proj.weight"} loc("prefill.phase.layer.0"),
      %mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.0.mlp.gate.weight"} loc("prefill.phase.layer.0"),
      %mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.0.mlp.experts.gate_up_proj"} loc("prefill.phase.layer.0"),
      %mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.0.mlp.experts.down_proj"} loc("prefill.phase.layer.0"),
      %shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.gate_proj.weight"} loc("prefill.phase.layer.0"),
      %shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.up_proj.weight"} loc("prefill.phase.layer.0"),
      %shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.down_proj.weight"} loc("prefill.phase.layer.0"),
      %mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert_gate.weight"} loc("prefill.phase.layer.0"),
      %input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.input_layernorm.weight"} loc("prefill.phase.layer.0"),
      %post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.post_attention_layernorm.weight"} loc("prefill.phase.layer.0")) -> (tensor<1x196x32xf32> {sscc.state = "hidden"}, tensor<1x1x3x64xf32> {sscc.state = "inputs_scratch"}, tensor<1x4x8x8xf32> {sscc.state = "recurrent_scratch.recurrence"}, tensor<2x1x3x64xf32> {sscc.state = "inputs_cache"}, tensor<2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"}) attributes {sscc.kernel} {
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %cst = arith.constant 0xFF800000 : f32 loc(#loc)
    %cst_0 = arith.constant 0.000000e+00 : f32 loc(#loc)
    %c7 = arith.constant 7 : index loc(#loc46)
    %c1 = arith.constant 1 : index loc(#loc46)
    %c0 = arith.constant 0 : index loc(#loc45)
    %0 = arith.muli %number, %chunks : index loc(#loc45)
    %1 = arith.subi %begin, %0 : index loc(#loc45)
    %2 = arith.maxsi %1, %c0 : index loc(#loc45)
    %3 = arith.minsi %2, %chunks : index loc(#loc45)
    %4 = arith.subi %end, %0 : index loc(#loc45)
    %5 = arith.maxsi %4, %c0 : index loc(#loc45)
    %6 = arith.minsi %5, %chunks : index loc(#loc45)
    %7 = arith.cmpi slt, %3, %6 : index loc(#loc45)
    %8 = arith.cmpi eq, %6, %chunks : index loc(#loc45)
    %9 = arith.andi %7, %8 : i1 loc(#loc45)
    %10 = arith.ceildivsi %length, %c7 : index loc(#loc46)
    %11 = arith.addi %3, %reused : index loc(#loc46)
    %12 = arith.minsi %11, %10 : index loc(#loc46)
    %13 = arith.addi %6, %reused : index loc(#loc46)
    %14 = arith.minsi %13, %10 : index loc(#loc46)
    %15:3 = scf.for %arg30 = %12 to %14 step %c1 iter_args(%arg31 = %hidden, %arg32 = %inputs_scratch, %arg33 = %recurrent_scratch.recurrence) -> (tensor<1x196x32xf32>, tensor<1x1x3x64xf32>, tensor<1x4x8x8xf32>) {
      %18 = arith.muli %arg30, %c7 : index loc(#loc46)
      %extracted_slice = tensor.extract_slice %arg31[0, %18, 0] [1, 7, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x7x32xf32> loc(#loc46)
      %19 = tensor.empty() : tensor<1x7x1xf32> loc(#loc72)
      %20 = func.call @body.input_layernorm(%extracted_slice, %input_layernorm.weight) {df.stage = "input_layernorm"} : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc73)
      %collapsed = tensor.collapse_shape %20 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc74)
      %21 = tensor.empty() : tensor<7x96xf32> loc(#loc74)
      %22 = func.call @body.in_proj_qkvz.40(%linear_attn.in_proj_qkvz.weight, %collapsed) {df.stage = "in_proj_qkvz"} : (tensor<96x32xf32>, tensor<7x32xf32>) -> tensor<7x96xf32> loc(#loc74)
      %23 = tensor.empty() : tensor<7x8xf32> loc(#loc75)
      %24 = func.call @body.in_proj_ba.41(%linear_attn.in_proj_ba.weight, %collapsed) {df.stage = "in_proj_ba"} : (tensor<8x32xf32>, tensor<7x32xf32>) -> tensor<7x8xf32> loc(#loc75)
      %expanded = tensor.expand_shape %22 [[0, 1], [2, 3]] output_shape [1, 7, 2, 48] : tensor<7x96xf32> into tensor<1x7x2x48xf32> loc(#loc76)
      %expanded_1 = tensor.expand_shape %24 [[0, 1], [2, 3]] output_shape [1, 7, 2, 4] : tensor<7x8xf32> into tensor<1x7x2x4xf32> loc(#loc76)
      %extracted_slice_2 = tensor.extract_slice %expanded[0, 0, 0, 0] [1, 7, 2, 8] [1, 1, 1, 1] : tensor<1x7x2x48xf32> to tensor<1x7x2x8xf32> loc(#loc76)
      %extracted_slice_3 = tensor.extract_slice %expanded[0, 0, 0, 8] [1, 7, 2, 8] [1, 1, 1, 1] : tensor<1x7x2x48xf32> to tensor<1x7x2x8xf32> loc(#loc76)
      %extracted_slice_4 = tensor.extract_slice %expanded[0, 0, 0, 16] [1, 7, 2, 16] [1, 1, 1, 1] : tensor<1x7x2x48xf32> to tensor<1x7x2x16xf32> loc(#loc76)
      %extracted_slice_5 = tensor.extract_slice %expanded[0, 0, 0, 32] [1, 7, 2, 16] [1, 1, 1, 1] : tensor<1x7x2x48xf32> to tensor<1x7x2x16xf32> loc(#loc76)
      %extracted_slice_6 = tensor.extract_slice %expanded_1[0, 0, 0, 0] [1, 7, 2, 2] [1, 1, 1, 1] : tensor<1x7x2x4xf32> to tensor<1x7x2x2xf32> loc(#loc76)
      %extracted_slice_7 = tensor.extract_slice %expanded_1[0, 0, 0, 2] [1, 7, 2, 2] [1, 1, 1, 1] : tensor<1x7x2x4xf32> to tensor<1x7x2x2xf32> loc(#loc76)
      %collapsed_8 = tensor.collapse_shape %extracted_slice_4 [[0], [1], [2, 3]] : tensor<1x7x2x16xf32> into tensor<1x7x32xf32> loc(#loc76)
      %collapsed_9 = tensor.collapse_shape %extracted_slice_2 [[0], [1], [2, 3]] : tensor<1x7x2x8xf32> into tensor<1x7x16xf32> loc(#loc77)
      %collapsed_10 = tensor.collapse_shape %extracted_slice_3 [[0], [1], [2, 3]] : tensor<1x7x2x8xf32> into tensor<1x7x16xf32> loc(#loc77)
      %25 = func.call @body.linear_attn.42(%collapsed_8, %collapsed_9, %collapsed_10) {df.stage = "linear_attn"} : (tensor<1x7x32xf32>, tensor<1x7x16xf32>, tensor<1x7x16xf32>) -> tensor<1x7x64xf32> loc(#loc78)
      %26 = arith.subi %length, %18 : index loc(#loc71)
      %27 = arith.minsi %26, %c7 : index loc(#loc71)
      %28:2 = func.call @body.gather(%25, %arg32, %18, %linear_attn.conv1d.weight, %27) {df.stage = "gather"} : (tensor<1x7x64xf32>, tensor<1x1x3x64xf32>, index, tensor<64x1x4xf32>, index) -> (tensor<7x64xf32>, tensor<1x1x3x64xf32>) loc(#loc71)
      %29 = func.call @body.linear_attn.47(%28#0) {df.stage = "linear_attn"} : (tensor<7x64xf32>) -> tensor<1x7x64xf32> loc(#loc79)
      %extracted_slice_11 = tensor.extract_slice %29[0, 0, 0] [1, 7, 16] [1, 1, 1] : tensor<1x7x64xf32> to tensor<1x7x16xf32> loc(#loc80)
      %extracted_slice_12 = tensor.extract_slice %29[0, 0, 16] [1, 7, 16] [1, 1, 1] : tensor<1x7x64xf32> to tensor<1x7x16xf32> loc(#loc80)
      %extracted_slice_13 = tensor.extract_slice %29[0, 0, 32] [1, 7, 32] [1, 1, 1] : tensor<1x7x64xf32> to tensor<1x7x32xf32> loc(#loc80)
      %expanded_14 = tensor.expand_shape %extracted_slice_11 [[0], [1], [2, 3]] output_shape [1, 7, 2, 8] : tensor<1x7x16xf32> into tensor<1x7x2x8xf32> loc(#loc81)
      %expanded_15 = tensor.expand_shape %extracted_slice_12 [[0], [1], [2, 3]] output_shape [1, 7, 2, 8] : tensor<1x7x16xf32> into tensor<1x7x2x8xf32> loc(#loc82)
      %expanded_16 = tensor.expand_shape %extracted_slice_13 [[0], [1], [2, 3]] output_shape [1, 7, 4, 8] : tensor<1x7x32xf32> into tensor<1x7x4x8xf32> loc(#loc83)
      %30 = func.call @body.linear_attn.44(%extracted_slice_6) {df.stage = "linear_attn"} : (tensor<1x7x2x2xf32>) -> tensor<1x7x4xf32> loc(#loc84)
      %31 = func.call @body.linear_attn.45(%extracted_slice_7, %linear_attn.A_log, %linear_attn.dt_bias) {df.stage = "linear_attn"} : (tensor<1x7x2x2xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<1x7x4xf32> loc(#loc85)
      %32 = tensor.empty() : tensor<1x7x2x1xf32> loc(#loc86)
      %33 = func.call @body.linear_attn.49(%expanded_15) {df.stage = "linear_attn"} : (tensor<1x7x2x8xf32>) -> tensor<1x7x2x8xf32> loc(#loc86)
      %34 = func.call @body.linear_attn.48(%expanded_14) {df.stage = "linear_attn"} : (tensor<1x7x2x8xf32>) -> tensor<1x7x2x8xf32> loc(#loc86)
      %35:2 = func.call @body.recurrent_chunk(%31, %34, %33, %expanded_16, %arg33, %18, %length, %30) {df.stage = "recurrent_chunk"} : (tensor<1x7x4xf32>, tensor<1x7x2x8xf32>, tensor<1x7x2x8xf32>, tensor<1x7x4x8xf32>, tensor<1x4x8x8xf32>, index, index, tensor<1x7x4xf32>) -> (tensor<1x7x4x8xf32>, tensor<1x4x8x8xf32>) loc(#loc86)
      %36 = tensor.empty() : tensor<28x1xf32> loc(#loc87)
      %collapsed_17 = tensor.collapse_shape %extracted_slice_5 [[0], [1], [2, 3]] : tensor<1x7x2x16xf32> into tensor<1x7x32xf32> loc(#loc76)
      %37 = func.call @body.norm.43(%35#0, %linear_attn.norm.weight, %collapsed_17) {df.stage = "norm"} : (tensor<1x7x4x8xf32>, tensor<8xf32>, tensor<1x7x32xf32>) -> tensor<28x8xf32> loc(#loc88)
      %38 = tensor.empty() : tensor<7x32xf32> loc(#loc89)
      %39 = func.call @body.out_proj.51(%37, %linear_attn.out_proj.weight, %extracted_slice) {df.stage = "out_proj"} : (tensor<28x8xf32>, tensor<32x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %40 = func.call @body.input_layernorm(%39, %post_attention_layernorm.weight) {df.stage = "post_attention_layernorm"} : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc91)
      %collapsed_18 = tensor.collapse_shape %40 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc92)
      %41 = tensor.empty() : tensor<7x16xf32> loc(#loc93)
      %42 = func.call @"body.gate_proj+up_proj.52"(%shared_expert.gate_proj.weight, %collapsed_18, %shared_expert.up_proj.weight) {df.stage = "gate_proj+up_proj"} : (tensor<16x32xf32>, tensor<7x32xf32>, tensor<16x32xf32>) -> tensor<7x16xf32> loc(#loc94)
      %43 = func.call @body.down_proj.53(%shared_expert.down_proj.weight, %42) {df.stage = "down_proj"} : (tensor<32x16xf32>, tensor<7x16xf32>) -> tensor<7x32xf32> loc(#loc95)
      %44 = tensor.empty() : tensor<7x6xf32> loc(#loc96)
      %45 = func.call @body.gate.54(%mlp.gate.weight, %collapsed_18) {df.stage = "gate"} : (tensor<6x32xf32>, tensor<7x32xf32>) -> tensor<7x6xf32> loc(#loc96)
      %46 = tensor.empty() : tensor<7xf32> loc(#loc97)
      %47 = tensor.empty() : tensor<7xi64> loc(#loc97)
      %48 = tensor.empty() : tensor<7x1xf32> loc(#loc97)
      %49 = func.call @body.gate.55(%45) {df.stage = "gate"} : (tensor<7x6xf32>) -> tensor<7x6xf32> loc(#loc97)
      %50:2 = func.call @body.topk.56(%49) {df.stage = "topk"} : (tensor<7x6xf32>) -> (tensor<7x2xf32>, tensor<7x2xi64>) loc(#loc98)
      %51 = func.call @body.expert_product.58(%collapsed_18, %mlp.experts.gate_up_proj, %50#1) {df.stage = "expert_product"} : (tensor<7x32xf32>, tensor<6x32x32xf32>, tensor<7x2xi64>) -> tensor<7x2x32xf32> loc(#loc99)
      %extracted_slice_19 = tensor.extract_slice %51[0, 0, 0] [7, 2, 16] [1, 1, 1] : tensor<7x2x32xf32> to tensor<7x2x16xf32> loc(#loc99)
      %extracted_slice_20 = tensor.extract_slice %51[0, 0, 16] [7, 2, 16] [1, 1, 1] : tensor<7x2x32xf32> to tensor<7x2x16xf32> loc(#loc99)
      %52 = func.call @body.experts.59(%extracted_slice_19, %extracted_slice_20) {df.stage = "experts"} : (tensor<7x2x16xf32>, tensor<7x2x16xf32>) -> tensor<7x2x16xf32> loc(#loc99)
      %53 = func.call @body.expert_product.60(%52, %mlp.experts.down_proj, %50#1) {df.stage = "expert_product"} : (tensor<7x2x16xf32>, tensor<6x32x16xf32>, tensor<7x2xi64>) -> tensor<7x2x32xf32> loc(#loc99)
      %54 = func.call @body.shared_expert_gate.61(%mlp.shared_expert_gate.weight, %collapsed_18) {df.stage = "shared_expert_gate"} : (tensor<1x32xf32>, tensor<7x32xf32>) -> tensor<7x1xf32> loc(#loc100)
      %55 = func.call @"body.gate+experts.57"(%50#0, %53, %54, %43, %39) {df.stage = "gate+experts"} : (tensor<7x2xf32>, tensor<7x2x32xf32>, tensor<7x1xf32>, tensor<7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc101)
      %inserted_slice = tensor.insert_slice %55 into %arg31[0, %18, 0] [1, 7, 32] [1, 1, 1] : tensor<1x7x32xf32> into tensor<1x196x32xf32> loc(#loc46)
      scf.yield %inserted_slice, %28#1, %35#1 : tensor<1x196x32xf32>, tensor<1x1x3x64xf32>, tensor<1x4x8x8xf32> loc(#loc46)
    } loc(#loc46)
    %16 = scf.if %9 -> (tensor<2x1x3x64xf32>) {
      %18 = func.call @body.index_cast(%length) {df.stage = "index_cast"} : (index) -> tensor<1x3xi64> loc(#loc146)
      %extracted_slice = tensor.extract_slice %inputs_cache[%slot, 0, 0, 0] [1, 1, 3, 64] [1, 1, 1, 1] : tensor<2x1x3x64xf32> to tensor<1x1x3x64xf32> loc(#loc146)
      %19 = func.call @body.gather.63(%15#1, %18, %extracted_slice) {df.stage = "gather"} : (tensor<1x1x3x64xf32>, tensor<1x3xi64>, tensor<1x1x3x64xf32>) -> tensor<1x1x3x64xf32> loc(#loc146)
      %inserted_slice = tensor.insert_slice %19 into %inputs_cache[%slot, 0, 0, 0] [1, 1, 3, 64] [1, 1, 1, 1] : tensor<1x1x3x64xf32> into tensor<2x1x3x64xf32> loc(#loc146)
      scf.yield %inserted_slice : tensor<2x1x3x64xf32> loc(#loc46)
    } else {
      scf.yield %inputs_cache : tensor<2x1x3x64xf32> loc(#loc46)
    } loc(#loc46)
    %17 = scf.if %9 -> (tensor<2x4x8x8xf32>) {
      %inserted_slice = tensor.insert_slice %15#2 into %recurrent_cache.recurrence[%slot, 0, 0, 0] [1, 4, 8, 8] [1, 1, 1, 1] : tensor<1x4x8x8xf32> into tensor<2x4x8x8xf32> loc(#loc147)
      scf.yield %inserted_slice : tensor<2x4x8x8xf32> loc(#loc46)
    } else {
      scf.yield %recurrent_cache.recurrence : tensor<2x4x8x8xf32> loc(#loc46)
    } loc(#loc46)
    return %15#0, %15#1, %15#2, %16, %17 : tensor<1x196x32xf32>, tensor<1x1x3x64xf32>, tensor<1x4x8x8xf32>, tensor<2x1x3x64xf32>, tensor<2x4x8x8xf32> loc(#loc46)
  } loc(#loc46)
  func.func private @prefill.phase.layer.1(%begin: index {sscc.input = "begin"} loc("prefill.phase.layer.1"),
      %end: index {sscc.input = "end"} loc("prefill.phase.layer.1"),
      %chunks: index {sscc.input = "chunks"} loc("prefill.phase.layer.1"),
      %number: index {sscc.input = "number"} loc("prefill.phase.layer.1"),
      %length: index {sscc.input = "length"} loc("prefill.phase.layer.1"),
      %slot: index {sscc.input = "slot"} loc("prefill.phase.layer.1"),
      %reused: index {sscc.input = "reused"} loc("prefill.phase.layer.1"),
      %hidden: tensor<1x196x32xf32> {sscc.state = "hidden"} loc("prefill.phase.layer.1"),
      %table.0: tensor<1x196x2xf32> {sscc.state = "table.0"} loc("prefill.phase.layer.1"),
      %table.1: tensor<1x196x2xf32> {sscc.state = "table.1"} loc("prefill.phase.layer.1"),
      %k_scratch: tensor<1x2x196x8xf32> {sscc.state = "k_scratch"} loc("prefill.phase.layer.1"),
      %v_scratch: tensor<1x2x196x8xf32> {sscc.state = "v_scratch"} loc("prefill.phase.layer.1"),
      %observed: tensor<1x4x6x8xf32> {sscc.state = "observed"} loc("prefill.phase.layer.1"),
      %log_sum_exp: tensor<1x4x6x1xf32> {sscc.state = "log_sum_exp"} loc("prefill.phase.layer.1"),
      %k_cache: tensor<2x2x88x8xf32> {sscc.state = "k_cache"} loc("prefill.phase.layer.1"),
      %v_cache: tensor<2x2x88x8xf32> {sscc.state = "v_cache"} loc("prefill.phase.layer.1"),
      %selected: tensor<2x12xi64> {sscc.state = "selected"} loc("prefill.phase.layer.1"),
      %self_attn.q_proj.weight: tensor<64x32xf32> {sscc.weight = "model.layers.1.self_attn.q_proj.weight"} loc("prefill.phase.layer.1"),
      %self_attn.k_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.k_proj.weight"} loc("prefill.phase.layer.1"),
      %self_attn.v_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.v_proj.weight"} loc("prefill.phase.layer.1"),
      %self_attn.o_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.self_attn.o_proj.weight"} loc("prefill.phase.layer.1"),
      %self_attn.q_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.q_norm.weight"} loc("prefill.phase.layer.1"),
      %self_attn.k_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.k_norm.weight"} loc("prefill.phase.layer.1"),
      %mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.1.mlp.gate.weight"} loc("prefill.phase.layer.1"),
      %mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.1.mlp.experts.gate_up_proj"} loc("prefill.phase.layer.1"),
      %mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.1.mlp.experts.down_proj"} loc("prefill.phase.layer.1"),
      %shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.gate_proj.weight"} loc("prefill.phase.layer.1"),
      %shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.up_proj.weight"} loc("prefill.phase.layer.1"),
      %shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.down_proj.weight"} loc("prefill.phase.layer.1"),
      %mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert_gate.weight"} loc("prefill.phase.layer.1"),
      %input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.input_layernorm.weight"} loc("prefill.phase.layer.1"),
      %post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.post_attention_layernorm.weight"} loc("prefill.phase.layer.1")) -> (tensor<1x196x32xf32> {sscc.state = "hidden"}, tensor<1x2x196x8xf32> {sscc.state = "k_scratch"}, tensor<1x2x196x8xf32> {sscc.state = "v_scratch"}, tensor<1x4x6x8xf32> {sscc.state = "observed"}, tensor<1x4x6x1xf32> {sscc.state = "log_sum_exp"}, tensor<2x2x88x8xf32> {sscc.state = "k_cache"}, tensor<2x2x88x8xf32> {sscc.state = "v_cache"}, tensor<2x12xi64> {sscc.state = "selected"}) attributes {sscc.kernel} {
    %c12 = arith.constant 12 : index loc(#loc)
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %cst = arith.constant 0xFF800000 : f32 loc(#loc)
    %cst_0 = arith.constant 0.000000e+00 : f32 loc(#loc)
    %c7 = arith.constant 7 : index loc(#loc47)
    %c1 = arith.constant 1 : index loc(#loc47)
    %c0 = arith.constant 0 : index loc(#loc45)
    %0 = arith.muli %number, %chunks : index loc(#loc45)
    %1 = arith.subi %begin, %0 : index loc(#loc45)
    %2 = arith.maxsi %1, %c0 : index loc(#loc45)
    %3 = arith.minsi %2, %chunks : index loc(#loc45)
    %4 = arith.subi %end, %0 : index loc(#loc45)
    %5 = arith.maxsi %4, %c0 : index loc(#loc45)
    %6 = arith.minsi %5, %chunks : index loc(#loc45)
    %7 = arith.cmpi slt, %3, %6 : index loc(#loc45)
    %8 = arith.cmpi eq, %6, %chunks : index loc(#loc45)
    %9 = arith.andi %7, %8 : i1 loc(#loc45)
    %10 = arith.ceildivsi %length, %c7 : index loc(#loc47)
    %11 = arith.addi %3, %reused : index loc(#loc47)
    %12 = arith.minsi %11, %10 : index loc(#loc47)
    %13 = arith.addi %6, %reused : index loc(#loc47)
    %14 = arith.minsi %13, %10 : index loc(#loc47)
    %15:5 = scf.for %arg32 = %12 to %14 step %c1 iter_args(%arg33 = %hidden, %arg34 = %k_scratch, %arg35 = %v_scratch, %arg36 = %observed, %arg37 = %log_sum_exp) -> (tensor<1x196x32xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32>) {
      %17 = arith.muli %arg32, %c7 : index loc(#loc47)
      %extracted_slice = tensor.extract_slice %table.0[0, %17, 0] [1, 7, 2] [1, 1, 1] : tensor<1x196x2xf32> to tensor<1x7x2xf32> loc(#loc47)
      %extracted_slice_1 = tensor.extract_slice %table.1[0, %17, 0] [1, 7, 2] [1, 1, 1] : tensor<1x196x2xf32> to tensor<1x7x2xf32> loc(#loc47)
      %extracted_slice_2 = tensor.extract_slice %arg33[0, %17, 0] [1, 7, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x7x32xf32> loc(#loc47)
      %18 = tensor.empty() : tensor<1x7x1xf32> loc(#loc103)
      %19 = func.call @body.input_layernorm(%extracted_slice_2, %input_layernorm.weight) {df.stage = "input_layernorm"} : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc104)
      %collapsed = tensor.collapse_shape %19 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc105)
      %20 = tensor.empty() : tensor<7x64xf32> loc(#loc105)
      %21 = func.call @body.q_proj.64(%self_attn.q_proj.weight, %collapsed) {df.stage = "q_proj"} : (tensor<64x32xf32>, tensor<7x32xf32>) -> tensor<7x64xf32> loc(#loc105)
      %expanded = tensor.expand_shape %21 [[0, 1], [2, 3]] output_shape [1, 7, 4, 16] : tensor<7x64xf32> into tensor<1x7x4x16xf32> loc(#loc106)
      %extracted_slice_3 = tensor.extract_slice %expanded[0, 0, 0, 0] [1, 7, 4, 8] [1, 1, 1, 1] : tensor<1x7x4x16xf32> to tensor<1x7x4x8xf32> loc(#loc107)
      %extracted_slice_4 = tensor.extract_slice %expanded[0, 0, 0, 8] [1, 7, 4, 8] [1, 1, 1, 1] : tensor<1x7x4x16xf32> to tensor<1x7x4x8xf32> loc(#loc107)
      %22 = tensor.empty() : tensor<1x7x4x1xf32> loc(#loc108)
      %23 = tensor.empty() : tensor<7x16xf32> loc(#loc109)
      %24 = func.call @body.k_proj.67(%self_attn.k_proj.weight, %collapsed) {df.stage = "k_proj"} : (tensor<16x32xf32>, tensor<7x32xf32>) -> tensor<7x16xf32> loc(#loc109)
      %25 = tensor.empty() : tensor<1x7x2x1xf32> loc(#loc110)
      %26 = func.call @body.k_proj.67(%self_attn.v_proj.weight, %collapsed) {df.stage = "v_proj"} : (tensor<16x32xf32>, tensor<7x32xf32>) -> tensor<7x16xf32> loc(#loc111)
      %expanded_5 = tensor.expand_shape %extracted_slice [[0], [1, 2], [3]] output_shape [1, 1, 7, 2] : tensor<1x7x2xf32> into tensor<1x1x7x2xf32> loc(#loc112)
      %expanded_6 = tensor.expand_shape %extracted_slice_1 [[0], [1, 2], [3]] output_shape [1, 1, 7, 2] : tensor<1x7x2xf32> into tensor<1x1x7x2xf32> loc(#loc112)
      %27 = func.call @body.q_norm.66(%extracted_slice_3, %self_attn.q_norm.weight, %expanded_5, %expanded_6) {df.stage = "q_norm"} : (tensor<1x7x4x8xf32>, tensor<8xf32>, tensor<1x1x7x2xf32>, tensor<1x1x7x2xf32>) -> tensor<1x4x7x8xf32> loc(#loc112)
      %28 = func.call @body.k_norm.68(%24, %self_attn.k_norm.weight, %expanded_5, %expanded_6) {df.stage = "k_norm"} : (tensor<7x16xf32>, tensor<8xf32>, tensor<1x1x7x2xf32>, tensor<1x1x7x2xf32>) -> tensor<1x2x7x8xf32> loc(#loc112)
      %29:4 = func.call @body.chunk_attention(%26, %27, %28, %arg34, %arg35, %17, %length) {df.stage = "chunk_attention"} : (tensor<7x16xf32>, tensor<1x4x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, index, index) -> (tensor<1x4x7x8xf32>, tensor<1x4x7x1xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>) loc(#loc102)
      %30 = func.call @body.observe(%arg36, %27, %17, %length) {df.stage = "observe"} : (tensor<1x4x6x8xf32>, tensor<1x4x7x8xf32>, index, index) -> tensor<1x4x6x8xf32> loc(#loc102)
      %31 = func.call @body.observe.71(%arg37, %29#1, %17, %length) {df.stage = "observe"} : (tensor<1x4x6x1xf32>, tensor<1x4x7x1xf32>, index, index) -> tensor<1x4x6x1xf32> loc(#loc102)
      %32 = func.call @body.self_attn.65(%extracted_slice_4, %29#0) {df.stage = "self_attn"} : (tensor<1x7x4x8xf32>, tensor<1x4x7x8xf32>) -> tensor<1x7x32xf32> loc(#loc113)
      %33 = tensor.empty() : tensor<7x32xf32> loc(#loc114)
      %34 = func.call @body.o_proj.72(%self_attn.o_proj.weight, %32, %extracted_slice_2) {df.stage = "o_proj"} : (tensor<32x32xf32>, tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc115)
      %35 = func.call @body.input_layernorm(%34, %post_attention_layernorm.weight) {df.stage = "post_attention_layernorm"} : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc116)
      %collapsed_7 = tensor.collapse_shape %35 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc117)
      %36 = func.call @"body.gate_proj+up_proj.52"(%shared_expert.gate_proj.weight, %collapsed_7, %shared_expert.up_proj.weight) {df.stage = "gate_proj+up_proj"} : (tensor<16x32xf32>, tensor<7x32xf32>, tensor<16x32xf32>) -> tensor<7x16xf32> loc(#loc118)
      %37 = func.call @body.down_proj.53(%shared_expert.down_proj.weight, %36) {df.stage = "down_proj"} : (tensor<32x16xf32>, tensor<7x16xf32>) -> tensor<7x32xf32> loc(#loc119)
      %38 = tensor.empty() : tensor<7x6xf32> loc(#loc120)
      %39 = func.call @body.gate.54(%mlp.gate.weight, %collapsed_7) {df.stage = "gate"} : (tensor<6x32xf32>, tensor<7x32xf32>) -> tensor<7x6xf32> loc(#loc120)
      %40 = tensor.empty() : tensor<7xf32> loc(#loc121)
      %41 = tensor.empty() : tensor<7xi64> loc(#loc121)
      %42 = tensor.empty() : tensor<7x1xf32> loc(#loc121)
      %43 = func.call @body.gate.55(%39) {df.stage = "gate"} : (tensor<7x6xf32>) -> tensor<7x6xf32> loc(#loc121)
      %44:2 = func.call @body.topk.56(%43) {df.stage = "topk"} : (tensor<7x6xf32>) -> (tensor<7x2xf32>, tensor<7x2xi64>) loc(#loc122)
      %45 = func.call @body.expert_product.58(%collapsed_7, %mlp.experts.gate_up_proj, %44#1) {df.stage = "expert_product"} : (tensor<7x32xf32>, tensor<6x32x32xf32>, tensor<7x2xi64>) -> tensor<7x2x32xf32> loc(#loc123)
      %extracted_slice_8 = tensor.extract_slice %45[0, 0, 0] [7, 2, 16] [1, 1, 1] : tensor<7x2x32xf32> to tensor<7x2x16xf32> loc(#loc123)
      %extracted_slice_9 = tensor.extract_slice %45[0, 0, 16] [7, 2, 16] [1, 1, 1] : tensor<7x2x32xf32> to tensor<7x2x16xf32> loc(#loc123)
      %46 = func.call @body.experts.59(%extracted_slice_8, %extracted_slice_9) {df.stage = "experts"} : (tensor<7x2x16xf32>, tensor<7x2x16xf32>) -> tensor<7x2x16xf32> loc(#loc123)
      %47 = func.call @body.expert_product.60(%46, %mlp.experts.down_proj, %44#1) {df.stage = "expert_product"} : (tensor<7x2x16xf32>, tensor<6x32x16xf32>, tensor<7x2xi64>) -> tensor<7x2x32xf32> loc(#loc123)
      %48 = func.call @body.shared_expert_gate.61(%mlp.shared_expert_gate.weight, %collapsed_7) {df.stage = "shared_expert_gate"} : (tensor<1x32xf32>, tensor<7x32xf32>) -> tensor<7x1xf32> loc(#loc124)
      %49 = func.call @"body.gate+experts.57"(%44#0, %47, %48, %37, %34) {df.stage = "gate+experts"} : (tensor<7x2xf32>, tensor<7x2x32xf32>, tensor<7x1xf32>, tensor<7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc125)
      %inserted_slice = tensor.insert_slice %49 into %arg33[0, %17, 0] [1, 7, 32] [1, 1, 1] : tensor<1x7x32xf32> into tensor<1x196x32xf32> loc(#loc47)
      scf.yield %inserted_slice, %29#2, %29#3, %30, %31 : tensor<1x196x32xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32> loc(#loc47)
    } loc(#loc47)
    %16:3 = scf.if %9 -> (tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x12xi64>) {
      %17 = func.call @body.select(%15#3, %15#4, %15#1, %length, %c12) {df.stage = "select"} : (tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32>, tensor<1x2x196x8xf32>, index, index) -> tensor<2x12xi64> loc(#loc148)
      %18 = func.call @body.kept_positions(%length, %c12, %17) {df.stage = "kept_positions"} : (index, index, tensor<2x12xi64>) -> tensor<2x88xi64> loc(#loc148)
      %extracted_slice = tensor.extract_slice %k_cache[%slot, 0, 0, 0] [1, 2, 88, 8] [1, 1, 1, 1] : tensor<2x2x88x8xf32> to tensor<1x2x88x8xf32> loc(#loc148)
      %19 = func.call @body.gather.75(%15#1, %18, %extracted_slice) {df.stage = "gather"} : (tensor<1x2x196x8xf32>, tensor<2x88xi64>, tensor<1x2x88x8xf32>) -> tensor<1x2x88x8xf32> loc(#loc148)
      %inserted_slice = tensor.insert_slice %19 into %k_cache[%slot, 0, 0, 0] [1, 2, 88, 8] [1, 1, 1, 1] : tensor<1x2x88x8xf32> into tensor<2x2x88x8xf32> loc(#loc148)
      %extracted_slice_1 = tensor.extract_slice %v_cache[%slot, 0, 0, 0] [1, 2, 88, 8] [1, 1, 1, 1] : tensor<2x2x88x8xf32> to tensor<1x2x88x8xf32> loc(#loc148)
      %20 = func.call @body.gather.75(%15#2, %18, %extracted_slice_1) {df.stage = "gather"} : (tensor<1x2x196x8xf32>, tensor<2x88xi64>, tensor<1x2x88x8xf32>) -> tensor<1x2x88x8xf32> loc(#loc148)
      %inserted_slice_2 = tensor.insert_slice %20 into %v_cache[%slot, 0, 0, 0] [1, 2, 88, 8] [1, 1, 1, 1] : tensor<1x2x88x8xf32> into tensor<2x2x88x8xf32> loc(#loc148)
      scf.yield %inserted_slice, %inserted_slice_2, %17 : tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x12xi64> loc(#loc47)
    } else {
      scf.yield %k_cache, %v_cache, %selected : tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x12xi64> loc(#loc47)
    } loc(#loc47)
    return %15#0, %15#1, %15#2, %15#3, %15#4, %16#0, %16#1, %16#2 : tensor<1x196x32xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x12xi64> loc(#loc47)
  } loc(#loc47)
  func.func private @prefill.phase.head(%begin: index {sscc.input = "begin"} loc("prefill.phase.head"),
      %end: index {sscc.input = "end"} loc("prefill.phase.head"),
      %chunks: index {sscc.input = "chunks"} loc("prefill.phase.head"),
      %number: index {sscc.input = "number"} loc("prefill.phase.head"),
      %length: index {sscc.input = "length"} loc("prefill.phase.head"),
      %hidden: tensor<1x196x32xf32> {sscc.state = "hidden"} loc("prefill.phase.head"),
      %prefill_logits: tensor<1x96xf32> {sscc.output = "prefill_logits"} loc("prefill.phase.head"),
      %model.norm.weight: tensor<32xf32> {sscc.weight = "model.norm.weight"} loc("prefill.phase.head"),
      %lm_head.weight: tensor<96x32xf32> {sscc.weight = "lm_head.weight"} loc("prefill.phase.head")) -> (tensor<1x96xf32> {sscc.output = "prefill_logits"}) attributes {sscc.kernel} {
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %c0 = arith.constant 0 : index loc(#loc45)
    %c7 = arith.constant 7 : index loc(#loc48)
    %c1 = arith.constant 1 : index loc(#loc48)
    %0 = arith.ceildivsi %length, %c7 : index loc(#loc48)
    %1 = arith.muli %number, %chunks : index loc(#loc45)
    %2 = arith.subi %begin, %1 : index loc(#loc45)
    %3 = arith.maxsi %2, %c0 : index loc(#loc45)
    %4 = arith.minsi %3, %c1 : index loc(#loc45)
    %5 = arith.subi %end, %1 : index loc(#loc45)
    %6 = arith.maxsi %5, %c0 : index loc(#loc45)
    %7 = arith.minsi %6, %c1 : index loc(#loc45)
    %8 = arith.cmpi slt, %4, %7 : index loc(#loc45)
    %9 = arith.cmpi eq, %7, %c1 : index loc(#loc45)
    %10 = arith.andi %8, %9 : i1 loc(#loc45)
    %11 = scf.if %10 -> (tensor<1x96xf32>) {
      %12 = arith.subi %0, %c1 : index loc(#loc48)
      %13 = arith.muli %12, %c7 : index loc(#loc48)
      %14 = arith.subi %length, %c1 : index loc(#loc48)
      %15 = arith.subi %14, %13 : index loc(#loc48)
      %extracted_slice = tensor.extract_slice %hidden[0, %13, 0] [1, 7, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x7x32xf32> loc(#loc48)
      %16 = tensor.empty() : tensor<1xi64> loc(#loc48)
      %17 = tensor.empty() : tensor<1x7x1xf32> loc(#loc68)
      %18 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel"]} outs(%16 : tensor<1xi64>) {
      ^bb0(%out: i64 loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1195:0)):
        linalg.yield %c0_i64 : i64 loc(#loc49)
      } -> tensor<1xi64> loc(#loc49)
      %19 = func.call @body.norm.76(%15, %extracted_slice, %model.norm.weight) {df.stage = "norm"} : (index, tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x1x32xf32> loc(#loc49)
      %20 = tensor.empty() : tensor<1x96xf32> loc(#loc70)
      %21 = func.call @body.lm_head.77(%lm_head.weight, %19) {df.stage = "lm_head"} : (tensor<96x32xf32>, tensor<1x1x32xf32>) -> tensor<1x96xf32> loc(#loc70)
      scf.yield %21 : tensor<1x96xf32> loc(#loc48)
    } else {
      scf.yield %prefill_logits : tensor<1x96xf32> loc(#loc48)
    } loc(#loc48)
    return %11 : tensor<1x96xf32> loc(#loc48)
  } loc(#loc48)
  func.func public @prefill(%tokens: tensor<1x196xi64> {sscc.input = "tokens"} loc("prefill"),
      %position_ids: tensor<1x196xi64> {sscc.input = "position_ids"} loc("prefill"),
      %length: index {sscc.input = "length"} loc("prefill"),
      %slot: index {sscc.input = "slot"} loc("prefill"),
      %phase: index {sscc.input = "phase"} loc("prefill"),
      %chunk: index {sscc.input = "chunk"} loc("prefill"),
      %steps: index {sscc.input = "steps"} loc("prefill"),
      %reused: index {sscc.input = "reused"} loc("prefill"),
      %prefill_logits: tensor<1x96xf32> {sscc.output = "prefill_logits"} loc("prefill"),
      %hidden: tensor<1x196x32xf32> {sscc.state = "hidden"} loc("prefill"),
      %table.0: tensor<1x196x2xf32> {sscc.state = "table.0"} loc("prefill"),
      %table.1: tensor<1x196x2xf32> {sscc.state = "table.1"} loc("prefill"),
      %inputs_scratch.convolution: tensor<1x1x3x64xf32> {sscc.state = "inputs_scratch.convolution"} loc("prefill"),
      %recurrent_scratch.recurrence: tensor<1x4x8x8xf32> {sscc.state = "recurrent_scratch.recurrence"} loc("prefill"),
      %k_scratch: tensor<1x2x196x8xf32> {sscc.state = "k_scratch"} loc("prefill"),
      %v_scratch: tensor<1x2x196x8xf32> {sscc.state = "v_scratch"} loc("prefill"),
      %observed: tensor<1x4x6x8xf32> {sscc.state = "observed"} loc("prefill"),
      %log_sum_exp: tensor<1x4x6x1xf32> {sscc.state = "log_sum_exp"} loc("prefill"),
      %inputs_cache.convolution: tensor<1x2x1x3x64xf32> {sscc.state = "inputs_cache.convolution"} loc("prefill"),
      %recurrent_cache.recurrence: tensor<1x2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"} loc("prefill"),
      %k_cache: tensor<1x2x2x88x8xf32> {sscc.state = "k_cache"} loc("prefill"),
      %v_cache: tensor<1x2x2x88x8xf32> {sscc.state = "v_cache"} loc("prefill"),
      %selected: tensor<1x2x12xi64> {sscc.state = "selected"} loc("prefill"),
      %model.embed_tokens.weight: tensor<96x32xf32> {sscc.weight = "model.embed_tokens.weight"} loc("prefill"),
      %model.rotary_emb.inv_freq: tensor<1xf32> {sscc.constant = "model.rotary_emb.inv_freq"} loc("prefill"),
      %linear_attn.dt_bias: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.dt_bias"} loc("prefill"),
      %linear_attn.A_log: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.A_log"} loc("prefill"),
      %linear_attn.conv1d.weight: tensor<64x1x4xf32> {sscc.weight = "model.layers.0.linear_attn.conv1d.weight"} loc("prefill"),
      %linear_attn.in_proj_qkvz.weight: tensor<96x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_qkvz.weight"} loc("prefill"),
      %linear_attn.in_proj_ba.weight: tensor<8x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_ba.weight"} loc("prefill"),
      %linear_attn.norm.weight: tensor<8xf32> {sscc.weight = "model.layers.0.linear_attn.norm.weight"} loc("prefill"),
      %linear_attn.out_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.linear_attn.out_proj.weight"} loc("prefill"),
      %model.layers.0.mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.0.mlp.gate.weight"} loc("prefill"),
      %model.layers.0.mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.0.mlp.experts.gate_up_proj"} loc("prefill"),
      %model.layers.0.mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.0.mlp.experts.down_proj"} loc("prefill"),
      %model.layers.0.mlp.shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.gate_proj.weight"} loc("prefill"),
      %model.layers.0.mlp.shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.up_proj.weight"} loc("prefill"),
      %model.layers.0.mlp.shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.down_proj.weight"} loc("prefill"),
      %model.layers.0.mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert_gate.weight"} loc("prefill"),
      %model.layers.0.input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.input_layernorm.weight"} loc("prefill"),
      %model.layers.0.post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.post_attention_layernorm.weight"} loc("prefill"),
      %self_attn.q_proj.weight: tensor<64x32xf32> {sscc.weight = "model.layers.1.self_attn.q_proj.weight"} loc("prefill"),
      %self_attn.k_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.k_proj.weight"} loc("prefill"),
      %self_attn.v_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.v_proj.weight"} loc("prefill"),
      %self_attn.o_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.self_attn.o_proj.weight"} loc("prefill"),
      %self_attn.q_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.q_norm.weight"} loc("prefill"),
      %self_attn.k_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.k_norm.weight"} loc("prefill"),
      %model.layers.1.mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.1.mlp.gate.weight"} loc("prefill"),
      %model.layers.1.mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.1.mlp.experts.gate_up_proj"} loc("prefill"),
      %model.layers.1.mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.1.mlp.experts.down_proj"} loc("prefill"),
      %model.layers.1.mlp.shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.gate_proj.weight"} loc("prefill"),
      %model.layers.1.mlp.shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.up_proj.weight"} loc("prefill"),
      %model.layers.1.mlp.shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.down_proj.weight"} loc("prefill"),
      %model.layers.1.mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert_gate.weight"} loc("prefill"),
      %model.layers.1.input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.input_layernorm.weight"} loc("prefill"),
      %model.layers.1.post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.post_attention_layernorm.weight"} loc("prefill"),
      %model.norm.weight: tensor<32xf32> {sscc.weight = "model.norm.weight"} loc("prefill"),
      %lm_head.weight: tensor<96x32xf32> {sscc.weight = "lm_head.weight"} loc("prefill")) -> (tensor<1x96xf32> {sscc.output = "prefill_logits"}, index {sscc.output = "phase"}, index {sscc.output = "chunk"}, tensor<1x196x32xf32> {sscc.state = "hidden"}, tensor<1x196x2xf32> {sscc.state = "table.0"}, tensor<1x196x2xf32> {sscc.state = "table.1"}, tensor<1x1x3x64xf32> {sscc.state = "inputs_scratch.convolution"}, tensor<1x4x8x8xf32> {sscc.state = "recurrent_scratch.recurrence"}, tensor<1x2x196x8xf32> {sscc.state = "k_scratch"}, tensor<1x2x196x8xf32> {sscc.state = "v_scratch"}, tensor<1x4x6x8xf32> {sscc.state = "observed"}, tensor<1x4x6x1xf32> {sscc.state = "log_sum_exp"}, tensor<1x2x1x3x64xf32> {sscc.state = "inputs_cache.convolution"}, tensor<1x2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"}, tensor<1x2x2x88x8xf32> {sscc.state = "k_cache"}, tensor<1x2x2x88x8xf32> {sscc.state = "v_cache"}, tensor<1x2x12xi64> {sscc.state = "selected"}) {
    %c4 = arith.constant 4 : index loc(#loc50)
    %c2 = arith.constant 2 : index loc(#loc50)
    %c0 = arith.constant 0 : index loc(#loc50)
    %c3 = arith.constant 3 : index loc(#loc50)
    %c1 = arith.constant 1 : index loc(#loc50)
    %c7 = arith.constant 7 : index loc(#loc50)
    %0 = arith.ceildivsi %length, %c7 : index loc(#loc50)
    %1 = arith.subi %0, %reused : index loc(#loc50)
    %2 = arith.maxsi %1, %c1 : index loc(#loc50)
    %3 = arith.muli %phase, %2 : index loc(#loc50)
    %4 = arith.addi %3, %chunk : index loc(#loc50)
    %5 = arith.muli %2, %c3 : index loc(#loc50)
    %6 = arith.addi %5, %c1 : index loc(#loc50)
    %7 = arith.addi %4, %steps : index loc(#loc50)
    %8 = arith.minsi %7, %6 : index loc(#loc50)
    %9:3 = call @prefill.phase.embed(%4, %8, %2, %c0, %length, %reused, %tokens, %position_ids, %hidden, %table.0, %table.1, %model.embed_tokens.weight, %model.rotary_emb.inv_freq) : (index, index, index, index, index, index, tensor<1x196xi64>, tensor<1x196xi64>, tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32>, tensor<96x32xf32>, tensor<1xf32>) -> (tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32>) loc(#loc44)
    %extracted_slice = tensor.extract_slice %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 64] [1, 1, 1, 1, 1] : tensor<1x2x1x3x64xf32> to tensor<2x1x3x64xf32> loc(#loc50)
    %extracted_slice_0 = tensor.extract_slice %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 4, 8, 8] [1, 1, 1, 1, 1] : tensor<1x2x4x8x8xf32> to tensor<2x4x8x8xf32> loc(#loc50)
    %10:5 = call @prefill.phase.layer.0(%4, %8, %2, %c1, %length, %slot, %reused, %9#0, %9#1, %9#2, %inputs_scratch.convolution, %recurrent_scratch.recurrence, %extracted_slice, %extracted_slice_0, %linear_attn.dt_bias, %linear_attn.A_log, %linear_attn.conv1d.weight, %linear_attn.in_proj_qkvz.weight, %linear_attn.in_proj_ba.weight, %linear_attn.norm.weight, %linear_attn.out_proj.weight, %model.layers.0.mlp.gate.weight, %model.layers.0.mlp.experts.gate_up_proj, %model.layers.0.mlp.experts.down_proj, %model.layers.0.mlp.shared_expert.gate_proj.weight, %model.layers.0.mlp.shared_expert.up_proj.weight, %model.layers.0.mlp.shared_expert.down_proj.weight, %model.layers.0.mlp.shared_expert_gate.weight, %model.layers.0.input_layernorm.weight, %model.layers.0.post_attention_layernorm.weight) : (index, index, index, index, index, index, index, tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32>, tensor<1x1x3x64xf32>, tensor<1x4x8x8xf32>, tensor<2x1x3x64xf32>, tensor<2x4x8x8xf32>, tensor<4xf32>, tensor<4xf32>, tensor<64x1x4xf32>, tensor<96x32xf32>, tensor<8x32xf32>, tensor<8xf32>, tensor<32x32xf32>, tensor<6x32xf32>, tensor<6x32x32xf32>, tensor<6x32x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<1x32xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<1x196x32xf32>, tensor<1x1x3x64xf32>, tensor<1x4x8x8xf32>, tensor<2x1x3x64xf32>, tensor<2x4x8x8xf32>) loc(#loc46)
    %inserted_slice = tensor.insert_slice %10#3 into %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 64] [1, 1, 1, 1, 1] : tensor<2x1x3x64xf32> into tensor<1x2x1x3x64xf32> loc(#loc50)
    %inserted_slice_1 = tensor.insert_slice %10#4 into %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 4, 8, 8] [1, 1, 1, 1, 1] : tensor<2x4x8x8xf32> into tensor<1x2x4x8x8xf32> loc(#loc50)
    %extracted_slice_2 = tensor.extract_slice %k_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<1x2x2x88x8xf32> to tensor<2x2x88x8xf32> loc(#loc50)
    %extracted_slice_3 = tensor.extract_slice %v_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<1x2x2x88x8xf32> to tensor<2x2x88x8xf32> loc(#loc50)
    %extracted_slice_4 = tensor.extract_slice %selected[0, 0, 0] [1, 2, 12] [1, 1, 1] : tensor<1x2x12xi64> to tensor<2x12xi64> loc(#loc50)
    %11:8 = call @prefill.phase.layer.1(%4, %8, %2, %c2, %length, %slot, %reused, %10#0, %9#1, %9#2, %k_scratch, %v_scratch, %observed, %log_sum_exp, %extracted_slice_2, %extracted_slice_3, %extracted_slice_4, %self_attn.q_proj.weight, %self_attn.k_proj.weight, %self_attn.v_proj.weight, %self_attn.o_proj.weight, %self_attn.q_norm.weight, %self_attn.k_norm.weight, %model.layers.1.mlp.gate.weight, %model.layers.1.mlp.experts.gate_up_proj, %model.layers.1.mlp.experts.down_proj, %model.layers.1.mlp.shared_expert.gate_proj.weight, %model.layers.1.mlp.shared_expert.up_proj.weight, %model.layers.1.mlp.shared_expert.down_proj.weight, %model.layers.1.mlp.shared_expert_gate.weight, %model.layers.1.input_layernorm.weight, %model.layers.1.post_attention_layernorm.weight) : (index, index, index, index, index, index, index, tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x12xi64>, tensor<64x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x32xf32>, tensor<8xf32>, tensor<8xf32>, tensor<6x32xf32>, tensor<6x32x32xf32>, tensor<6x32x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<1x32xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<1x196x32xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x12xi64>) loc(#loc47)
    %inserted_slice_5 = tensor.insert_slice %11#5 into %k_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<2x2x88x8xf32> into tensor<1x2x2x88x8xf32> loc(#loc50)
    %inserted_slice_6 = tensor.insert_slice %11#6 into %v_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<2x2x88x8xf32> into tensor<1x2x2x88x8xf32> loc(#loc50)
    %inserted_slice_7 = tensor.insert_slice %11#7 into %selected[0, 0, 0] [1, 2, 12] [1, 1, 1] : tensor<2x12xi64> into tensor<1x2x12xi64> loc(#loc50)
    %12 = call @prefill.phase.head(%4, %8, %2, %c3, %length, %11#0, %prefill_logits, %model.norm.weight, %lm_head.weight) : (index, index, index, index, index, tensor<1x196x32xf32>, tensor<1x96xf32>, tensor<32xf32>, tensor<96x32xf32>) -> tensor<1x96xf32> loc(#loc48)
    %13 = arith.cmpi eq, %8, %6 : index loc(#loc50)
    %14 = arith.floordivsi %8, %2 : index loc(#loc50)
    %15 = arith.muli %14, %2 : index loc(#loc50)
    %16 = arith.subi %8, %15 : index loc(#loc50)
    %17 = arith.select %13, %c4, %14 : index loc(#loc50)
    %18 = arith.select %13, %c0, %16 : index loc(#loc50)
    return %12, %17, %18, %11#0, %9#1, %9#2, %10#1, %10#2, %11#1, %11#2, %11#3, %11#4, %inserted_slice, %inserted_slice_1, %inserted_slice_5, %inserted_slice_6, %inserted_slice_7 : tensor<1x96xf32>, index, index, tensor<1x196x32xf32>, tensor<1x196x2xf32>, tensor<1x196x2xf32>, tensor<1x1x3x64xf32>, tensor<1x4x8x8xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32>, tensor<1x2x1x3x64xf32>, tensor<1x2x4x8x8xf32>, tensor<1x2x2x88x8xf32>, tensor<1x2x2x88x8xf32>, tensor<1x2x12xi64> loc(#loc50)
  } loc(#loc50)
  func.func public @decode(%token: tensor<2x1xi64> {sscc.input = "token"} loc("decode"),
      %position_id: tensor<2x1xi64> {sscc.input = "position_id"} loc("decode"),
      %position: tensor<2xi64> {sscc.input = "position"} loc("decode"),
      %base: tensor<2xi64> {sscc.input = "base"} loc("decode"),
      %active: tensor<2xi1> {sscc.input = "active"} loc("decode"),
      %inputs_cache.convolution: tensor<1x2x1x3x64xf32> {sscc.state = "inputs_cache.convolution"} loc("decode"),
      %recurrent_cache.recurrence: tensor<1x2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"} loc("decode"),
      %k_cache: tensor<1x2x2x88x8xf32> {sscc.state = "k_cache"} loc("decode"),
      %v_cache: tensor<1x2x2x88x8xf32> {sscc.state = "v_cache"} loc("decode"),
      %model.embed_tokens.weight: tensor<96x32xf32> {sscc.weight = "model.embed_tokens.weight"} loc("decode"),
      %model.rotary_emb.inv_freq: tensor<1xf32> {sscc.constant = "model.rotary_emb.inv_freq"} loc("decode"),
      %linear_attn.dt_bias: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.dt_bias"} loc("decode"),
      %linear_attn.A_log: tensor<4xf32> {sscc.weight = "model.layers.0.linear_attn.A_log"} loc("decode"),
      %linear_attn.conv1d.weight: tensor<64x1x4xf32> {sscc.weight = "model.layers.0.linear_attn.conv1d.weight"} loc("decode"),
      %linear_attn.in_proj_qkvz.weight: tensor<96x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_qkvz.weight"} loc("decode"),
      %linear_attn.in_proj_ba.weight: tensor<8x32xf32> {sscc.weight = "model.layers.0.linear_attn.in_proj_ba.weight"} loc("decode"),
      %linear_attn.norm.weight: tensor<8xf32> {sscc.weight = "model.layers.0.linear_attn.norm.weight"} loc("decode"),
      %linear_attn.out_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.linear_attn.out_proj.weight"} loc("decode"),
      %model.layers.0.mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.0.mlp.gate.weight"} loc("decode"),
      %model.layers.0.mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.0.mlp.experts.gate_up_proj"} loc("decode"),
      %model.layers.0.mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.0.mlp.experts.down_proj"} loc("decode"),
      %model.layers.0.mlp.shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.gate_proj.weight"} loc("decode"),
      %model.layers.0.mlp.shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.up_proj.weight"} loc("decode"),
      %model.layers.0.mlp.shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.0.mlp.shared_expert.down_proj.weight"} loc("decode"),
      %model.layers.0.mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.0.mlp.shared_expert_gate.weight"} loc("decode"),
      %model.layers.0.input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.input_layernorm.weight"} loc("decode"),
      %model.layers.0.post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.post_attention_layernorm.weight"} loc("decode"),
      %self_attn.q_proj.weight: tensor<64x32xf32> {sscc.weight = "model.layers.1.self_attn.q_proj.weight"} loc("decode"),
      %self_attn.k_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.k_proj.weight"} loc("decode"),
      %self_attn.v_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.self_attn.v_proj.weight"} loc("decode"),
      %self_attn.o_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.self_attn.o_proj.weight"} loc("decode"),
      %self_attn.q_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.q_norm.weight"} loc("decode"),
      %self_attn.k_norm.weight: tensor<8xf32> {sscc.weight = "model.layers.1.self_attn.k_norm.weight"} loc("decode"),
      %model.layers.1.mlp.gate.weight: tensor<6x32xf32> {sscc.weight = "model.layers.1.mlp.gate.weight"} loc("decode"),
      %model.layers.1.mlp.experts.gate_up_proj: tensor<6x32x32xf32> {sscc.weight = "model.layers.1.mlp.experts.gate_up_proj"} loc("decode"),
      %model.layers.1.mlp.experts.down_proj: tensor<6x32x16xf32> {sscc.weight = "model.layers.1.mlp.experts.down_proj"} loc("decode"),
      %model.layers.1.mlp.shared_expert.gate_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.gate_proj.weight"} loc("decode"),
      %model.layers.1.mlp.shared_expert.up_proj.weight: tensor<16x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.up_proj.weight"} loc("decode"),
      %model.layers.1.mlp.shared_expert.down_proj.weight: tensor<32x16xf32> {sscc.weight = "model.layers.1.mlp.shared_expert.down_proj.weight"} loc("decode"),
      %model.layers.1.mlp.shared_expert_gate.weight: tensor<1x32xf32> {sscc.weight = "model.layers.1.mlp.shared_expert_gate.weight"} loc("decode"),
      %model.layers.1.input_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.input_layernorm.weight"} loc("decode"),
      %model.layers.1.post_attention_layernorm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.post_attention_layernorm.weight"} loc("decode"),
      %model.norm.weight: tensor<32xf32> {sscc.weight = "model.norm.weight"} loc("decode"),
      %lm_head.weight: tensor<96x32xf32> {sscc.weight = "lm_head.weight"} loc("decode")) -> (tensor<2x96xf32> {sscc.output = "logits"}, tensor<1x2x1x3x64xf32> {sscc.state = "inputs_cache.convolution"}, tensor<1x2x4x8x8xf32> {sscc.state = "recurrent_cache.recurrence"}, tensor<1x2x2x88x8xf32> {sscc.state = "k_cache"}, tensor<1x2x2x88x8xf32> {sscc.state = "v_cache"}) {
    %0:3 = call @decode.embed(%model.embed_tokens.weight, %model.rotary_emb.inv_freq, %token, %position_id) : (tensor<96x32xf32>, tensor<1xf32>, tensor<2x1xi64>, tensor<2x1xi64>) -> (tensor<2x1x32xf32>, tensor<2x1x2xf32>, tensor<2x1x2xf32>) loc(#loc64)
    %extracted_slice = tensor.extract_slice %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 64] [1, 1, 1, 1, 1] : tensor<1x2x1x3x64xf32> to tensor<2x1x3x64xf32> loc(#loc51)
    %extracted_slice_0 = tensor.extract_slice %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 4, 8, 8] [1, 1, 1, 1, 1] : tensor<1x2x4x8x8xf32> to tensor<2x4x8x8xf32> loc(#loc51)
    %1:3 = call @decode.layer.0(%0#0, %0#1, %0#2, %linear_attn.dt_bias, %linear_attn.A_log, %linear_attn.conv1d.weight, %linear_attn.in_proj_qkvz.weight, %linear_attn.in_proj_ba.weight, %linear_attn.norm.weight, %linear_attn.out_proj.weight, %model.layers.0.mlp.gate.weight, %model.layers.0.mlp.experts.gate_up_proj, %model.layers.0.mlp.experts.down_proj, %model.layers.0.mlp.shared_expert.gate_proj.weight, %model.layers.0.mlp.shared_expert.up_proj.weight, %model.layers.0.mlp.shared_expert.down_proj.weight, %model.layers.0.mlp.shared_expert_gate.weight, %model.layers.0.input_layernorm.weight, %model.layers.0.post_attention_layernorm.weight, %extracted_slice, %position, %active, %extracted_slice_0) : (tensor<2x1x32xf32>, tensor<2x1x2xf32>, tensor<2x1x2xf32>, tensor<4xf32>, tensor<4xf32>, tensor<64x1x4xf32>, tensor<96x32xf32>, tensor<8x32xf32>, tensor<8xf32>, tensor<32x32xf32>, tensor<6x32xf32>, tensor<6x32x32xf32>, tensor<6x32x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<1x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<2x1x3x64xf32>, tensor<2xi64>, tensor<2xi1>, tensor<2x4x8x8xf32>) -> (tensor<2x1x32xf32>, tensor<2x1x3x64xf32>, tensor<2x4x8x8xf32>) loc(#loc8)
    %inserted_slice = tensor.insert_slice %1#1 into %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 64] [1, 1, 1, 1, 1] : tensor<2x1x3x64xf32> into tensor<1x2x1x3x64xf32> loc(#loc51)
    %inserted_slice_1 = tensor.insert_slice %1#2 into %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 4, 8, 8] [1, 1, 1, 1, 1] : tensor<2x4x8x8xf32> into tensor<1x2x4x8x8xf32> loc(#loc51)
    %extracted_slice_2 = tensor.extract_slice %k_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<1x2x2x88x8xf32> to tensor<2x2x88x8xf32> loc(#loc51)
    %extracted_slice_3 = tensor.extract_slice %v_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<1x2x2x88x8xf32> to tensor<2x2x88x8xf32> loc(#loc51)
    %2:3 = call @decode.layer.1(%1#0, %0#1, %0#2, %self_attn.q_proj.weight, %self_attn.k_proj.weight, %self_attn.v_proj.weight, %self_attn.o_proj.weight, %self_attn.q_norm.weight, %self_attn.k_norm.weight, %model.layers.1.mlp.gate.weight, %model.layers.1.mlp.experts.gate_up_proj, %model.layers.1.mlp.experts.down_proj, %model.layers.1.mlp.shared_expert.gate_proj.weight, %model.layers.1.mlp.shared_expert.up_proj.weight, %model.layers.1.mlp.shared_expert.down_proj.weight, %model.layers.1.mlp.shared_expert_gate.weight, %model.layers.1.input_layernorm.weight, %model.layers.1.post_attention_layernorm.weight, %extracted_slice_2, %extracted_slice_3, %position, %base, %active) : (tensor<2x1x32xf32>, tensor<2x1x2xf32>, tensor<2x1x2xf32>, tensor<64x32xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x32xf32>, tensor<8xf32>, tensor<8xf32>, tensor<6x32xf32>, tensor<6x32x32xf32>, tensor<6x32x16xf32>, tensor<16x32xf32>, tensor<16x32xf32>, tensor<32x16xf32>, tensor<1x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>) -> (tensor<2x1x32xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>) loc(#loc35)
    %inserted_slice_4 = tensor.insert_slice %2#1 into %k_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<2x2x88x8xf32> into tensor<1x2x2x88x8xf32> loc(#loc51)
    %inserted_slice_5 = tensor.insert_slice %2#2 into %v_cache[0, 0, 0, 0, 0] [1, 2, 2, 88, 8] [1, 1, 1, 1, 1] : tensor<2x2x88x8xf32> into tensor<1x2x2x88x8xf32> loc(#loc51)
    %3 = call @decode.head(%2#0, %model.norm.weight, %lm_head.weight) : (tensor<2x1x32xf32>, tensor<32xf32>, tensor<96x32xf32>) -> tensor<2x1x96xf32> loc(#loc68)
    %collapsed = tensor.collapse_shape %3 [[0, 1], [2]] : tensor<2x1x96xf32> into tensor<2x96xf32> loc(#loc51)
    return %collapsed, %inserted_slice, %inserted_slice_1, %inserted_slice_4, %inserted_slice_5 : tensor<2x96xf32>, tensor<1x2x1x3x64xf32>, tensor<1x2x4x8x8xf32>, tensor<1x2x2x88x8xf32>, tensor<1x2x2x88x8xf32> loc(#loc51)
  } loc(#loc51)
  func.func public @score(%first: index {sscc.input = "first"} loc("score"),
      %hidden: tensor<1x196x32xf32> {sscc.state = "hidden"} loc("score"),
      %model.norm.weight: tensor<32xf32> {sscc.weight = "model.norm.weight"} loc("score"),
      %lm_head.weight: tensor<96x32xf32> {sscc.weight = "lm_head.weight"} loc("score")) -> (tensor<2x96xf32> {sscc.output = "logits"}) {
    %extracted_slice = tensor.extract_slice %hidden[0, %first, 0] [1, 2, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x2x32xf32> loc(#loc52)
    %collapsed = tensor.collapse_shape %extracted_slice [[0, 1], [2]] : tensor<1x2x32xf32> into tensor<2x32xf32> loc(#loc52)
    %expanded = tensor.expand_shape %collapsed [[0, 1], [2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc52)
    %0 = call @decode.head(%expanded, %model.norm.weight, %lm_head.weight) : (tensor<2x1x32xf32>, tensor<32xf32>, tensor<96x32xf32>) -> tensor<2x1x96xf32> loc(#loc68)
    %collapsed_0 = tensor.collapse_shape %0 [[0, 1], [2]] : tensor<2x1x96xf32> into tensor<2x96xf32> loc(#loc52)
    return %collapsed_0 : tensor<2x96xf32> loc(#loc52)
  } loc(#loc52)
  func.func private @body.embed_tokens(%x0: tensor<2x1xi64> {sscc.input = "x0"} loc("model.embed_tokens"(#loc1)),
      %x1: tensor<96x32xf32> {sscc.input = "x1"} loc("model.embed_tokens"(#loc1))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc64)
    %1 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1xi64>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: i64 loc("model.embed_tokens"(#loc1)), %out: f32 loc("model.embed_tokens"(#loc1))):
      %2 = arith.index_cast %in : i64 to index loc(#loc64)
      %3 = linalg.index 2 : index loc(#loc64)
      %extracted = tensor.extract %x1[%2, %3] : tensor<96x32xf32> loc(#loc64)
      linalg.yield %extracted : f32 loc(#loc64)
    } -> tensor<2x1x32xf32> loc(#loc64)
    return %1 : tensor<2x1x32xf32> loc(#loc64)
  } loc(#loc64)
  func.func private @body.rotary_emb(%x0: tensor<2x1xi64> {sscc.input = "x0"} loc("model.rotary_emb"(#loc2)),
      %x1: tensor<1xf32> {sscc.input = "x1"} loc("model.rotary_emb"(#loc2))) -> (tensor<2x1x2xf32> {sscc.output = "y0"}) attributes {df.body} {
    %expanded = tensor.expand_shape %x0 [[0], [1, 2]] output_shape [2, 1, 1] : tensor<2x1xi64> into tensor<2x1x1xi64> loc(#loc126)
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc126)
    %1 = linalg.generic {indexing_maps = [#map2, #map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %x1 : tensor<2x1x1xi64>, tensor<1xf32>) outs(%0 : tensor<2x1x1xf32>) {
    ^bb0(%in: i64 loc("model.rotary_emb"(#loc53)), %in_0: f32 loc("model.rotary_emb"(#loc53)), %out: f32 loc("model.rotary_emb"(#loc53))):
      %2 = arith.sitofp %in : i64 to f32 loc(#loc126)
      %3 = arith.mulf %2, %in_0 : f32 loc(#loc126)
      linalg.yield %3 : f32 loc(#loc126)
    } -> tensor<2x1x1xf32> loc(#loc126)
    %concat = tensor.concat dim(2) %1, %1 : (tensor<2x1x1xf32>, tensor<2x1x1xf32>) -> tensor<2x1x2xf32> loc(#loc65)
    return %concat : tensor<2x1x2xf32> loc(#loc65)
  } loc(#loc65)
  func.func private @body.rotary_emb.2(%x0: tensor<2x1x2xf32> {sscc.input = "x0"} loc("model.rotary_emb"(#loc3))) -> (tensor<2x1x2xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = tensor.empty() : tensor<2x1x2xf32> loc(#loc66)
    %1 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x2xf32>) outs(%0 : tensor<2x1x2xf32>) {
    ^bb0(%in: f32 loc("model.rotary_emb"(#loc2)), %out: f32 loc("model.rotary_emb"(#loc3))):
      %2 = math.cos %in : f32 loc(#loc66)
      linalg.yield %2 : f32 loc(#loc66)
    } -> tensor<2x1x2xf32> loc(#loc66)
    return %1 : tensor<2x1x2xf32> loc(#loc66)
  } loc(#loc66)
  func.func private @body.rotary_emb.3(%x0: tensor<2x1x2xf32> {sscc.input = "x0"} loc("model.rotary_emb"(#loc4))) -> (tensor<2x1x2xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = tensor.empty() : tensor<2x1x2xf32> loc(#loc66)
    %1 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x2xf32>) outs(%0 : tensor<2x1x2xf32>) {
    ^bb0(%in: f32 loc("model.rotary_emb"(#loc2)), %out: f32 loc("model.rotary_emb"(#loc4))):
      %2 = math.sin %in : f32 loc(#loc67)
      linalg.yield %2 : f32 loc(#loc67)
    } -> tensor<2x1x2xf32> loc(#loc67)
    return %1 : tensor<2x1x2xf32> loc(#loc67)
  } loc(#loc67)
  func.func private @body.norm(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.norm"(#loc6)),
      %x1: tensor<32xf32> {sscc.input = "x1"} loc("model.norm"(#loc6))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc72)
    %cst_2 = arith.constant 3.200000e+01 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc68)
    %1 = tensor.empty() : tensor<2x1x1xf32> loc(#loc68)
    %2 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%1 : tensor<2x1x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1x1xf32> loc(#loc68)
    %3 = linalg.generic {indexing_maps = [#map2, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x0 : tensor<2x1x32xf32>) outs(%2 : tensor<2x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1"(#loc34)), %out: f32 loc("model.norm"(#loc5))):
      %5 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc68)
      %6 = arith.addf %5, %out : f32 loc(#loc68)
      linalg.yield %6 : f32 loc(#loc68)
    } -> tensor<2x1x1xf32> loc(#loc68)
    %4 = linalg.generic {indexing_maps = [#map2, #map4, #map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %3, %x1 : tensor<2x1x32xf32>, tensor<2x1x1xf32>, tensor<32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.1"(#loc34)), %in_3: f32 loc("model.norm"(#loc5)), %in_4: f32 loc("model.norm"(#loc6)), %out: f32 loc("model.norm"(#loc6))):
      %5 = arith.addf %in_4, %cst_0 : f32 loc(#loc69)
      %6 = arith.divf %in_3, %cst_2 : f32 loc(#loc68)
      %7 = arith.truncf %cst_1 : f64 to f32 loc(#loc68)
      %8 = arith.addf %6, %7 : f32 loc(#loc68)
      %9 = math.rsqrt %8 : f32 loc(#loc68)
      %10 = arith.mulf %in, %9 : f32 loc(#loc68)
      %11 = arith.mulf %10, %5 : f32 loc(#loc69)
      linalg.yield %11 : f32 loc(#loc69)
    } -> tensor<2x1x32xf32> loc(#loc69)
    return %4 : tensor<2x1x32xf32> loc(#loc69)
  } loc(#loc69)
  func.func private @body.lm_head(%x0: tensor<96x32xf32> {sscc.input = "x0"} loc("lm_head"(#loc7)),
      %x1: tensor<2x1x32xf32> {sscc.input = "x1"} loc("lm_head"(#loc7))) -> (tensor<2x96xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x96xf32> loc(#loc70)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x96xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x96xf32> loc(#loc70)
    %expanded = tensor.expand_shape %x0 [[0], [1, 2]] output_shape [96, 1, 32] : tensor<96x32xf32> into tensor<96x1x32xf32> loc(#loc70)
    %2 = linalg.generic {indexing_maps = [#map6, #map7, #map8], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x1, %expanded : tensor<2x1x32xf32>, tensor<96x1x32xf32>) outs(%1 : tensor<2x96xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("lm_head"(#loc7)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc70)
    } -> tensor<2x96xf32> loc(#loc70)
    return %2 : tensor<2x96xf32> loc(#loc70)
  } loc(#loc70)
  func.func private @body.in_proj_qkvz(%x0: tensor<96x32xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn.in_proj_qkvz"(#loc10)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn.in_proj_qkvz"(#loc10))) -> (tensor<2x96xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x96xf32> loc(#loc74)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x96xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x96xf32> loc(#loc74)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x32xf32>, tensor<96x32xf32>) outs(%1 : tensor<2x96xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.linear_attn.in_proj_qkvz"(#loc10)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc74)
    } -> tensor<2x96xf32> loc(#loc74)
    return %2 : tensor<2x96xf32> loc(#loc74)
  } loc(#loc74)
  func.func private @body.in_proj_ba(%x0: tensor<8x32xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn.in_proj_ba"(#loc11)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn.in_proj_ba"(#loc11))) -> (tensor<2x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x8xf32> loc(#loc75)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x8xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x8xf32> loc(#loc75)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x32xf32>, tensor<8x32xf32>) outs(%1 : tensor<2x8xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.linear_attn.in_proj_ba"(#loc11)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc75)
    } -> tensor<2x8xf32> loc(#loc75)
    return %2 : tensor<2x8xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @body.linear_attn(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc14)),
      %x1: tensor<2x1x16xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc14)),
      %x2: tensor<2x1x16xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc14))) -> (tensor<2x1x64xf32> {sscc.output = "y0"}) attributes {df.body} {
    %concat = tensor.concat dim(2) %x1, %x2, %x0 : (tensor<2x1x16xf32>, tensor<2x1x16xf32>, tensor<2x1x32xf32>) -> tensor<2x1x64xf32> loc(#loc78)
    return %concat : tensor<2x1x64xf32> loc(#loc78)
  } loc(#loc78)
  func.func private @body.norm.9(%x0: tensor<2x1x4x8xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn.norm"(#loc24)),
      %x1: tensor<8xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn.norm"(#loc24)),
      %x2: tensor<2x1x32xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn.norm"(#loc24))) -> (tensor<8x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc72)
    %cst_2 = arith.constant 8.000000e+00 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc71)
    %expanded = tensor.expand_shape %x2 [[0], [1], [2, 3]] output_shape [2, 1, 4, 8] : tensor<2x1x32xf32> into tensor<2x1x4x8xf32> loc(#loc76)
    %collapsed = tensor.collapse_shape %x0 [[0, 1, 2], [3]] : tensor<2x1x4x8xf32> into tensor<8x8xf32> loc(#loc127)
    %0 = tensor.empty() : tensor<8x8xf32> loc(#loc87)
    %1 = tensor.empty() : tensor<8x1xf32> loc(#loc87)
    %2 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%1 : tensor<8x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<8x1xf32> loc(#loc87)
    %3 = linalg.generic {indexing_maps = [#map5, #map11], iterator_types = ["parallel", "reduction"]} ins(%collapsed : tensor<8x8xf32>) outs(%2 : tensor<8x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc54)), %out: f32 loc("model.layers.0.linear_attn.norm"(#loc23))):
      %7 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc87)
      %8 = arith.addf %7, %out : f32 loc(#loc87)
      linalg.yield %8 : f32 loc(#loc87)
    } -> tensor<8x1xf32> loc(#loc87)
    %4 = tensor.empty() : tensor<2x1x4x8xf32> loc(#loc128)
    %5 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded : tensor<2x1x4x8xf32>) outs(%4 : tensor<2x1x4x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc55)), %out: f32 loc("model.layers.0.linear_attn.norm"(#loc23))):
      %7 = arith.negf %in : f32 loc(#loc128)
      %8 = math.exp %7 : f32 loc(#loc128)
      %9 = arith.addf %8, %cst_0 : f32 loc(#loc128)
      %10 = arith.divf %cst_0, %9 : f32 loc(#loc128)
      %11 = arith.mulf %in, %10 : f32 loc(#loc128)
      linalg.yield %11 : f32 loc(#loc128)
    } -> tensor<2x1x4x8xf32> loc(#loc128)
    %collapsed_3 = tensor.collapse_shape %5 [[0, 1, 2], [3]] : tensor<2x1x4x8xf32> into tensor<8x8xf32> loc(#loc128)
    %6 = linalg.generic {indexing_maps = [#map13, #map5, #map11, #map5, #map5], iterator_types = ["parallel", "parallel"]} ins(%x1, %collapsed, %3, %collapsed_3 : tensor<8xf32>, tensor<8x8xf32>, tensor<8x1xf32>, tensor<8x8xf32>) outs(%0 : tensor<8x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn.norm"(#loc56)), %in_4: f32 loc("model.layers.0.linear_attn"(#loc54)), %in_5: f32 loc("model.layers.0.linear_attn.norm"(#loc23)), %in_6: f32 loc("model.layers.0.linear_attn.norm"(#loc15)), %out: f32 loc("model.layers.0.linear_attn.norm"(#loc24))):
      %7 = arith.divf %in_5, %cst_2 : f32 loc(#loc87)
      %8 = arith.truncf %cst_1 : f64 to f32 loc(#loc131)
      %9 = arith.addf %7, %8 : f32 loc(#loc131)
      %10 = math.rsqrt %9 : f32 loc(#loc131)
      %11 = arith.mulf %in_4, %10 : f32 loc(#loc131)
      %12 = arith.mulf %in, %11 : f32 loc(#loc130)
      %13 = arith.mulf %12, %in_6 : f32 loc(#loc88)
      linalg.yield %13 : f32 loc(#loc88)
    } -> tensor<8x8xf32> loc(#loc88)
    return %6 : tensor<8x8xf32> loc(#loc88)
  } loc(#loc88)
  func.func private @body.linear_attn.10(%x0: tensor<2x1x2x2xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc20))) -> (tensor<2x1x4xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x2x2xf32> loc(#loc84)
    %1 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x2x2xf32>) outs(%0 : tensor<2x1x2x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc12)), %out: f32 loc("model.layers.0.linear_attn"(#loc20))):
      %2 = arith.negf %in : f32 loc(#loc84)
      %3 = math.exp %2 : f32 loc(#loc84)
      %4 = arith.addf %3, %cst : f32 loc(#loc84)
      %5 = arith.divf %cst, %4 : f32 loc(#loc84)
      linalg.yield %5 : f32 loc(#loc84)
    } -> tensor<2x1x2x2xf32> loc(#loc84)
    %collapsed = tensor.collapse_shape %1 [[0], [1], [2, 3]] : tensor<2x1x2x2xf32> into tensor<2x1x4xf32> loc(#loc84)
    return %collapsed : tensor<2x1x4xf32> loc(#loc84)
  } loc(#loc84)
  func.func private @body.linear_attn.11(%x0: tensor<2x1x2x2xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc21)),
      %x1: tensor<4xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc21)),
      %x2: tensor<4xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc21))) -> (tensor<2x1x4xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 2.000000e+01 : f32 loc(#loc85)
    %expanded = tensor.expand_shape %x2 [[0, 1]] output_shape [2, 2] : tensor<4xf32> into tensor<2x2xf32> loc(#loc85)
    %expanded_0 = tensor.expand_shape %x1 [[0, 1]] output_shape [2, 2] : tensor<4xf32> into tensor<2x2xf32> loc(#loc85)
    %0 = tensor.empty() : tensor<2x1x2x2xf32> loc(#loc85)
    %1 = linalg.generic {indexing_maps = [#map14, #map12, #map14, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_0, %x0, %expanded : tensor<2x2xf32>, tensor<2x1x2x2xf32>, tensor<2x2xf32>) outs(%0 : tensor<2x1x2x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc21)), %in_1: f32 loc("model.layers.0.linear_attn"(#loc12)), %in_2: f32 loc("model.layers.0.linear_attn"(#loc21)), %out: f32 loc("model.layers.0.linear_attn"(#loc21))):
      %2 = arith.addf %in_1, %in_2 : f32 loc(#loc85)
      %3 = math.exp %2 : f32 loc(#loc85)
      %4 = math.log1p %3 : f32 loc(#loc85)
      %5 = arith.cmpf ogt, %2, %cst : f32 loc(#loc85)
      %6 = arith.select %5, %2, %4 : f32 loc(#loc85)
      %7 = math.exp %in : f32 loc(#loc85)
      %8 = arith.negf %7 : f32 loc(#loc85)
      %9 = arith.mulf %8, %6 : f32 loc(#loc85)
      linalg.yield %9 : f32 loc(#loc85)
    } -> tensor<2x1x2x2xf32> loc(#loc85)
    %collapsed = tensor.collapse_shape %1 [[0], [1], [2, 3]] : tensor<2x1x2x2xf32> into tensor<2x1x4xf32> loc(#loc85)
    return %collapsed : tensor<2x1x4xf32> loc(#loc85)
  } loc(#loc85)
  func.func private @body.update(%x0: tensor<2x1x64xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc9)),
      %x1: tensor<2x1x3x64xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc9)),
      %x2: tensor<64x1x4xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc9)),
      %x3: tensor<2xi64> {sscc.input = "x3"} loc("model.layers.0.linear_attn"(#loc9)),
      %x4: index {sscc.input = "x4"} loc("model.layers.0.linear_attn"(#loc9)),
      %x5: tensor<2xi1> {sscc.input = "x5"} loc("model.layers.0.linear_attn"(#loc9))) -> (tensor<2x64xf32> {sscc.output = "y0"}, tensor<2x1x3x64xf32> {sscc.output = "y1"}) attributes {df.body} {
    %c2_i64 = arith.constant 2 : i64 loc(#loc71)
    %c1_i64 = arith.constant 1 : i64 loc(#loc)
    %c3_i64 = arith.constant 3 : i64 loc(#loc)
    %extracted_slice = tensor.extract_slice %x1[0, 0, 0, 0] [2, 1, 1, 64] [1, 1, 1, 1] {df.together} : tensor<2x1x3x64xf32> to tensor<2x1x1x64xf32> loc(#loc71)
    %extracted_slice_0 = tensor.extract_slice %x1[0, 0, 1, 0] [2, 1, 1, 64] [1, 1, 1, 1] {df.together} : tensor<2x1x3x64xf32> to tensor<2x1x1x64xf32> loc(#loc71)
    %extracted_slice_1 = tensor.extract_slice %x1[0, 0, 2, 0] [2, 1, 1, 64] [1, 1, 1, 1] {df.together} : tensor<2x1x3x64xf32> to tensor<2x1x1x64xf32> loc(#loc71)
    %extracted_slice_2 = tensor.extract_slice %x2[0, 0, 0] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %extracted_slice_3 = tensor.extract_slice %x2[0, 0, 1] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %extracted_slice_4 = tensor.extract_slice %x2[0, 0, 2] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %extracted_slice_5 = tensor.extract_slice %x2[0, 0, 3] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %expanded = tensor.expand_shape %x3 [[0, 1, 2]] output_shape [2, 1, 1] : tensor<2xi64> into tensor<2x1x1xi64> loc(#loc71)
    %expanded_6 = tensor.expand_shape %extracted_slice [[0], [1], [2], [3, 4, 5]] output_shape [2, 1, 1, 64, 1, 1] : tensor<2x1x1x64xf32> into tensor<2x1x1x64x1x1xf32> loc(#loc71)
    %expanded_7 = tensor.expand_shape %extracted_slice_0 [[0], [1], [2], [3, 4, 5]] output_shape [2, 1, 1, 64, 1, 1] : tensor<2x1x1x64xf32> into tensor<2x1x1x64x1x1xf32> loc(#loc71)
    %expanded_8 = tensor.expand_shape %extracted_slice_1 [[0], [1], [2], [3, 4, 5]] output_shape [2, 1, 1, 64, 1, 1] : tensor<2x1x1x64xf32> into tensor<2x1x1x64x1x1xf32> loc(#loc71)
    %expanded_9 = tensor.expand_shape %x0 [[0], [1, 2], [3, 4, 5]] output_shape [2, 1, 1, 64, 1, 1] : tensor<2x1x64xf32> into tensor<2x1x1x64x1x1xf32> loc(#loc71)
    %0 = tensor.empty() : tensor<2x1x1x64x1x1xf32> loc(#loc71)
    %1 = linalg.generic {indexing_maps = [#map15, #map16, #map16, #map16, #map16, #map17, #map17, #map17, #map17, #map16], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%expanded, %expanded_6, %expanded_7, %expanded_8, %expanded_9, %extracted_slice_2, %extracted_slice_3, %extracted_slice_4, %extracted_slice_5 : tensor<2x1x1xi64>, tensor<2x1x1x64x1x1xf32>, tensor<2x1x1x64x1x1xf32>, tensor<2x1x1x64x1x1xf32>, tensor<2x1x1x64x1x1xf32>, tensor<64x1x1xf32>, tensor<64x1x1xf32>, tensor<64x1x1xf32>, tensor<64x1x1xf32>) outs(%0 : tensor<2x1x1x64x1x1xf32>) {
    ^bb0(%in: i64 loc("model.layers.0.linear_attn"(#loc9)), %in_11: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_12: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_13: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_14: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_15: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_16: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_17: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_18: f32 loc("model.layers.0.linear_attn"(#loc9)), %out: f32 loc("model.layers.0.linear_attn"(#loc9))):
      %4 = arith.remsi %in, %c3_i64 : i64 loc(#loc71)
      %5 = arith.cmpi eq, %4, %c1_i64 : i64 loc(#loc71)
      %6 = arith.select %5, %in_12, %in_11 : f32 loc(#loc71)
      %7 = arith.cmpi eq, %4, %c2_i64 : i64 loc(#loc71)
      %8 = arith.select %7, %in_13, %6 : f32 loc(#loc71)
      %9 = arith.addi %in, %c1_i64 : i64 loc(#loc71)
      %10 = arith.remsi %9, %c3_i64 : i64 loc(#loc71)
      %11 = arith.cmpi eq, %10, %c1_i64 : i64 loc(#loc71)
      %12 = arith.select %11, %in_12, %in_11 : f32 loc(#loc71)
      %13 = arith.cmpi eq, %10, %c2_i64 : i64 loc(#loc71)
      %14 = arith.select %13, %in_13, %12 : f32 loc(#loc71)
      %15 = arith.addi %in, %c2_i64 : i64 loc(#loc71)
      %16 = arith.remsi %15, %c3_i64 : i64 loc(#loc71)
      %17 = arith.cmpi eq, %16, %c1_i64 : i64 loc(#loc71)
      %18 = arith.select %17, %in_12, %in_11 : f32 loc(#loc71)
      %19 = arith.cmpi eq, %16, %c2_i64 : i64 loc(#loc71)
      %20 = arith.select %19, %in_13, %18 : f32 loc(#loc71)
      %21 = arith.mulf %in_15, %8 : f32 loc(#loc71)
      %22 = arith.mulf %in_16, %14 : f32 loc(#loc71)
      %23 = arith.mulf %in_17, %20 : f32 loc(#loc71)
      %24 = arith.mulf %in_18, %in_14 : f32 loc(#loc71)
      %25 = arith.addf %21, %22 : f32 loc(#loc71)
      %26 = arith.addf %25, %23 : f32 loc(#loc71)
      %27 = arith.addf %26, %24 : f32 loc(#loc71)
      linalg.yield %27 : f32 loc(#loc71)
    } -> tensor<2x1x1x64x1x1xf32> loc(#loc71)
    %collapsed = tensor.collapse_shape %1 [[0, 1, 2], [3, 4, 5]] : tensor<2x1x1x64x1x1xf32> into tensor<2x64xf32> loc(#loc71)
    %2 = "kv.row"(%x3, %x3, %x4) {df.together, kv.group = "convolution"} : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64> loc(#loc71)
    %expanded_10 = tensor.expand_shape %x0 [[0], [1, 2], [3]] output_shape [2, 1, 1, 64] : tensor<2x1x64xf32> into tensor<2x1x1x64xf32> loc(#loc71)
    %3 = "kv.update"(%x1, %expanded_10, %2, %x5) {df.together, kv.group = "convolution"} : (tensor<2x1x3x64xf32>, tensor<2x1x1x64xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x1x3x64xf32> loc(#loc71)
    return %collapsed, %3 : tensor<2x64xf32>, tensor<2x1x3x64xf32> loc(#loc71)
  } loc(#loc71)
  func.func private @body.linear_attn.13(%x0: tensor<2x64xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc15))) -> (tensor<2x1x64xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %expanded = tensor.expand_shape %x0 [[0, 1], [2]] output_shape [2, 1, 64] : tensor<2x64xf32> into tensor<2x1x64xf32> loc(#loc71)
    %0 = tensor.empty() : tensor<2x1x64xf32> loc(#loc79)
    %1 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded : tensor<2x1x64xf32>) outs(%0 : tensor<2x1x64xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc9)), %out: f32 loc("model.layers.0.linear_attn"(#loc15))):
      %2 = arith.negf %in : f32 loc(#loc79)
      %3 = math.exp %2 : f32 loc(#loc79)
      %4 = arith.addf %3, %cst : f32 loc(#loc79)
      %5 = arith.divf %cst, %4 : f32 loc(#loc79)
      %6 = arith.mulf %in, %5 : f32 loc(#loc79)
      linalg.yield %6 : f32 loc(#loc79)
    } -> tensor<2x1x64xf32> loc(#loc79)
    return %1 : tensor<2x1x64xf32> loc(#loc79)
  } loc(#loc79)
  func.func private @body.linear_attn.14(%x0: tensor<2x1x2x8xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc22))) -> (tensor<2x1x2x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 2.8284271247461903 : f64 loc(#loc86)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc72)
    %0 = tensor.empty() : tensor<2x1x2x8xf32> loc(#loc86)
    %1 = tensor.empty() : tensor<2x1x2x1xf32> loc(#loc86)
    %2 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%1 : tensor<2x1x2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1x2x1xf32> loc(#loc86)
    %3 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x0 : tensor<2x1x2x8xf32>) outs(%2 : tensor<2x1x2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.mulf %in, %in : f32 loc(#loc86)
      %6 = arith.addf %5, %out : f32 loc(#loc86)
      linalg.yield %6 : f32 loc(#loc86)
    } -> tensor<2x1x2x1xf32> loc(#loc86)
    %4 = linalg.generic {indexing_maps = [#map12, #map18, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %3 : tensor<2x1x2x8xf32>, tensor<2x1x2x1xf32>) outs(%0 : tensor<2x1x2x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc17)), %in_2: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.truncf %cst_1 : f64 to f32 loc(#loc86)
      %6 = arith.addf %in_2, %5 : f32 loc(#loc86)
      %7 = math.rsqrt %6 : f32 loc(#loc86)
      %8 = arith.mulf %in, %7 : f32 loc(#loc86)
      %9 = arith.truncf %cst_0 : f64 to f32 loc(#loc86)
      %10 = arith.divf %8, %9 : f32 loc(#loc86)
      linalg.yield %10 : f32 loc(#loc86)
    } -> tensor<2x1x2x8xf32> loc(#loc86)
    return %4 : tensor<2x1x2x8xf32> loc(#loc86)
  } loc(#loc86)
  func.func private @body.linear_attn.15(%x0: tensor<2x1x2x8xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc22))) -> (tensor<2x1x2x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc72)
    %0 = tensor.empty() : tensor<2x1x2x8xf32> loc(#loc86)
    %1 = tensor.empty() : tensor<2x1x2x1xf32> loc(#loc86)
    %2 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%1 : tensor<2x1x2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1x2x1xf32> loc(#loc86)
    %3 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x0 : tensor<2x1x2x8xf32>) outs(%2 : tensor<2x1x2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.mulf %in, %in : f32 loc(#loc86)
      %6 = arith.addf %5, %out : f32 loc(#loc86)
      linalg.yield %6 : f32 loc(#loc86)
    } -> tensor<2x1x2x1xf32> loc(#loc86)
    %4 = linalg.generic {indexing_maps = [#map12, #map18, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %3 : tensor<2x1x2x8xf32>, tensor<2x1x2x1xf32>) outs(%0 : tensor<2x1x2x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc18)), %in_1: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.truncf %cst_0 : f64 to f32 loc(#loc86)
      %6 = arith.addf %in_1, %5 : f32 loc(#loc86)
      %7 = math.rsqrt %6 : f32 loc(#loc86)
      %8 = arith.mulf %in, %7 : f32 loc(#loc86)
      linalg.yield %8 : f32 loc(#loc86)
    } -> tensor<2x1x2x8xf32> loc(#loc86)
    return %4 : tensor<2x1x2x8xf32> loc(#loc86)
  } loc(#loc86)
  func.func private @body.recurrent_step(%x0: tensor<2x1x4xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc22)),
      %x1: tensor<2x1x2x8xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc22)),
      %x2: tensor<2x1x2x8xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc22)),
      %x3: tensor<2x1x4x8xf32> {sscc.input = "x3"} loc("model.layers.0.linear_attn"(#loc22)),
      %x4: tensor<2x4x8x8xf32> {sscc.input = "x4"} loc("model.layers.0.linear_attn"(#loc22)),
      %x5: tensor<2xi1> {sscc.input = "x5"} loc("model.layers.0.linear_attn"(#loc22)),
      %x6: tensor<2x1x4xf32> {sscc.input = "x6"} loc("model.layers.0.linear_attn"(#loc22))) -> (tensor<2x1x4x8xf32> {sscc.output = "y0"}, tensor<2x4x8x8xf32> {sscc.output = "y1"}) attributes {df.body} {
    %expanded = tensor.expand_shape %x0 [[0], [1], [2, 3]] output_shape [2, 1, 4, 1] : tensor<2x1x4xf32> into tensor<2x1x4x1xf32> loc(#loc86)
    %0:2 = "kv.recurrent_step"(%x1, %x2, %x3, %expanded, %x4, %x5, %x6) {kv.group = "recurrence", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 1>} : (tensor<2x1x2x8xf32>, tensor<2x1x2x8xf32>, tensor<2x1x4x8xf32>, tensor<2x1x4x1xf32>, tensor<2x4x8x8xf32>, tensor<2xi1>, tensor<2x1x4xf32>) -> (tensor<2x1x4x8xf32>, tensor<2x4x8x8xf32>) loc(#loc86)
    return %0#0, %0#1 : tensor<2x1x4x8xf32>, tensor<2x4x8x8xf32> loc(#loc86)
  } loc(#loc86)
  func.func private @body.out_proj(%x0: tensor<8x8xf32> {sscc.input = "x0"} loc("model.layers.0"(#loc26)),
      %x1: tensor<32x32xf32> {sscc.input = "x1"} loc("model.layers.0"(#loc26)),
      %x2: tensor<2x1x32xf32> {sscc.input = "x2"} loc("model.layers.0"(#loc26))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %expanded = tensor.expand_shape %x0 [[0, 1, 2], [3]] output_shape [2, 1, 4, 8] : tensor<8x8xf32> into tensor<2x1x4x8xf32> loc(#loc132)
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc89)
    %1 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1x32xf32> loc(#loc89)
    %expanded_0 = tensor.expand_shape %x1 [[0, 1], [2, 3, 4]] output_shape [1, 32, 1, 4, 8] : tensor<32x32xf32> into tensor<1x32x1x4x8xf32> loc(#loc89)
    %2 = linalg.generic {indexing_maps = [#map19, #map20, #map15], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]} ins(%expanded, %expanded_0 : tensor<2x1x4x8xf32>, tensor<1x32x1x4x8xf32>) outs(%1 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_1: f32 loc("model.layers.0.linear_attn.out_proj"(#loc25)), %out: f32 loc(unknown)):
      %4 = arith.mulf %in, %in_1 : f32 loc(#loc)
      %5 = arith.addf %out, %4 : f32 loc(#loc)
      linalg.yield %5 : f32 loc(#loc89)
    } -> tensor<2x1x32xf32> loc(#loc89)
    %3 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x2, %2 : tensor<2x1x32xf32>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.embed_tokens"(#loc1)), %in_1: f32 loc("model.layers.0.linear_attn.out_proj"(#loc25)), %out: f32 loc("model.layers.0"(#loc26))):
      %4 = arith.addf %in, %in_1 : f32 loc(#loc90)
      linalg.yield %4 : f32 loc(#loc90)
    } -> tensor<2x1x32xf32> loc(#loc90)
    return %3 : tensor<2x1x32xf32> loc(#loc90)
  } loc(#loc90)
  func.func private @"body.gate_proj+up_proj"(%x0: tensor<16x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.shared_expert"(#loc28)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.shared_expert"(#loc28)),
      %x2: tensor<16x32xf32> {sscc.input = "x2"} loc("model.layers.0.mlp.shared_expert"(#loc28))) -> (tensor<2x16xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x16xf32> loc(#loc93)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x16xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x16xf32> loc(#loc93)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x32xf32>, tensor<16x32xf32>) outs(%1 : tensor<2x16xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_1: f32 loc("model.layers.0.mlp.shared_expert.gate_proj"(#loc28)), %out: f32 loc(unknown)):
      %5 = arith.mulf %in, %in_1 : f32 loc(#loc)
      %6 = arith.addf %out, %5 : f32 loc(#loc)
      linalg.yield %6 : f32 loc(#loc93)
    } -> tensor<2x16xf32> loc(#loc93)
    %3 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x2 : tensor<2x32xf32>, tensor<16x32xf32>) outs(%1 : tensor<2x16xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_1: f32 loc("model.layers.0.mlp.shared_expert.up_proj"(#loc28)), %out: f32 loc(unknown)):
      %5 = arith.mulf %in, %in_1 : f32 loc(#loc)
      %6 = arith.addf %out, %5 : f32 loc(#loc)
      linalg.yield %6 : f32 loc(#loc133)
    } -> tensor<2x16xf32> loc(#loc133)
    %4 = linalg.generic {indexing_maps = [#map5, #map5, #map5], iterator_types = ["parallel", "parallel"]} ins(%2, %3 : tensor<2x16xf32>, tensor<2x16xf32>) outs(%0 : tensor<2x16xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.shared_expert.gate_proj"(#loc28)), %in_1: f32 loc("model.layers.0.mlp.shared_expert.up_proj"(#loc28)), %out: f32 loc("model.layers.0.mlp.shared_expert"(#loc28))):
      %5 = arith.negf %in : f32 loc(#loc134)
      %6 = math.exp %5 : f32 loc(#loc134)
      %7 = arith.addf %6, %cst_0 : f32 loc(#loc134)
      %8 = arith.divf %cst_0, %7 : f32 loc(#loc134)
      %9 = arith.mulf %in, %8 : f32 loc(#loc134)
      %10 = arith.mulf %9, %in_1 : f32 loc(#loc94)
      linalg.yield %10 : f32 loc(#loc94)
    } -> tensor<2x16xf32> loc(#loc94)
    return %4 : tensor<2x16xf32> loc(#loc94)
  } loc(#loc94)
  func.func private @body.down_proj(%x0: tensor<32x16xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28)),
      %x1: tensor<2x16xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28))) -> (tensor<2x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x32xf32> loc(#loc89)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x32xf32> loc(#loc89)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x16xf32>, tensor<32x16xf32>) outs(%1 : tensor<2x32xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc95)
    } -> tensor<2x32xf32> loc(#loc95)
    return %2 : tensor<2x32xf32> loc(#loc95)
  } loc(#loc95)
  func.func private @body.gate(%x0: tensor<6x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.gate"(#loc29)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.gate"(#loc29))) -> (tensor<2x6xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x6xf32> loc(#loc96)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x6xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x6xf32> loc(#loc96)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x32xf32>, tensor<6x32xf32>) outs(%1 : tensor<2x6xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.mlp.gate"(#loc29)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc96)
    } -> tensor<2x6xf32> loc(#loc96)
    return %2 : tensor<2x6xf32> loc(#loc96)
  } loc(#loc96)
  func.func private @body.gate.21(%x0: tensor<2x6xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.gate"(#loc30))) -> (tensor<2x6xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 0xFF800000 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1xf32> loc(#loc97)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst_0 : f32 loc(#loc)
    } -> tensor<2x1xf32> loc(#loc97)
    %expanded = tensor.expand_shape %x0 [[0, 1], [2]] output_shape [2, 1, 6] : tensor<2x6xf32> into tensor<2x1x6xf32> loc(#loc97)
    %2 = linalg.generic {indexing_maps = [#map2, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<2x1x6xf32>) outs(%1 : tensor<2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.maximumf %in, %out : f32 loc(#loc97)
      linalg.yield %8 : f32 loc(#loc97)
    } -> tensor<2x1xf32> loc(#loc97)
    %3 = tensor.empty() : tensor<2x6xf32> loc(#loc96)
    %4 = linalg.generic {indexing_maps = [#map5, #map11, #map5], iterator_types = ["parallel", "parallel"]} ins(%x0, %2 : tensor<2x6xf32>, tensor<2x1xf32>) outs(%3 : tensor<2x6xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc29)), %in_1: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.subf %in, %in_1 : f32 loc(#loc97)
      %9 = math.exp %8 : f32 loc(#loc97)
      linalg.yield %9 : f32 loc(#loc97)
    } -> tensor<2x6xf32> loc(#loc97)
    %5 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1xf32> loc(#loc97)
    %6 = linalg.generic {indexing_maps = [#map5, #map11], iterator_types = ["parallel", "reduction"]} ins(%4 : tensor<2x6xf32>) outs(%5 : tensor<2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.addf %in, %out : f32 loc(#loc97)
      linalg.yield %8 : f32 loc(#loc97)
    } -> tensor<2x1xf32> loc(#loc97)
    %7 = linalg.generic {indexing_maps = [#map5, #map11, #map5], iterator_types = ["parallel", "parallel"]} ins(%4, %6 : tensor<2x6xf32>, tensor<2x1xf32>) outs(%3 : tensor<2x6xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc30)), %in_1: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.divf %in, %in_1 : f32 loc(#loc97)
      linalg.yield %8 : f32 loc(#loc97)
    } -> tensor<2x6xf32> loc(#loc97)
    return %7 : tensor<2x6xf32> loc(#loc97)
  } loc(#loc97)
  func.func private @body.topk(%x0: tensor<2x6xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.gate"(#loc31))) -> (tensor<2x2xf32> {sscc.output = "y0"}, tensor<2x2xi64> {sscc.output = "y1"}) attributes {df.body} {
    %0:2 = "kv.topk"(%x0) : (tensor<2x6xf32>) -> (tensor<2x2xf32>, tensor<2x2xi64>) loc(#loc98)
    return %0#0, %0#1 : tensor<2x2xf32>, tensor<2x2xi64> loc(#loc98)
  } loc(#loc98)
  func.func private @"body.gate+experts"(%x0: tensor<2x2xf32> {sscc.input = "x0"} loc("model.layers.0"(#loc34)),
      %x1: tensor<2x2x32xf32> {sscc.input = "x1"} loc("model.layers.0"(#loc34)),
      %x2: tensor<2x1xf32> {sscc.input = "x2"} loc("model.layers.0"(#loc34)),
      %x3: tensor<2x32xf32> {sscc.input = "x3"} loc("model.layers.0"(#loc34)),
      %x4: tensor<2x1x32xf32> {sscc.input = "x4"} loc("model.layers.0"(#loc34))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1xf32> loc(#loc97)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1xf32> loc(#loc97)
    %2 = linalg.generic {indexing_maps = [#map5, #map11], iterator_types = ["parallel", "reduction"]} ins(%x0 : tensor<2x2xf32>) outs(%1 : tensor<2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc31)), %out: f32 loc("model.layers.0.mlp.gate"(#loc59))):
      %11 = arith.addf %in, %out : f32 loc(#loc135)
      linalg.yield %11 : f32 loc(#loc135)
    } -> tensor<2x1xf32> loc(#loc135)
    %3 = tensor.empty() : tensor<2x2xf32> loc(#loc135)
    %4 = linalg.generic {indexing_maps = [#map5, #map11, #map5], iterator_types = ["parallel", "parallel"]} ins(%x0, %2 : tensor<2x2xf32>, tensor<2x1xf32>) outs(%3 : tensor<2x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc31)), %in_2: f32 loc("model.layers.0.mlp.gate"(#loc59)), %out: f32 loc("model.layers.0.mlp.gate"(#loc59))):
      %11 = arith.divf %in, %in_2 : f32 loc(#loc135)
      linalg.yield %11 : f32 loc(#loc135)
    } -> tensor<2x2xf32> loc(#loc135)
    %expanded = tensor.expand_shape %4 [[0], [1, 2]] output_shape [2, 2, 1] : tensor<2x2xf32> into tensor<2x2x1xf32> loc(#loc99)
    %5 = tensor.empty() : tensor<2x32xf32> loc(#loc89)
    %6 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%5 : tensor<2x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x32xf32> loc(#loc89)
    %7 = linalg.generic {indexing_maps = [#map2, #map4, #map9], iterator_types = ["parallel", "reduction", "parallel"]} ins(%x1, %expanded : tensor<2x2x32xf32>, tensor<2x2x1xf32>) outs(%6 : tensor<2x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.experts"(#loc32)), %in_2: f32 loc("model.layers.0.mlp.experts"(#loc32)), %out: f32 loc("model.layers.0.mlp.experts"(#loc32))):
      %11 = arith.mulf %in, %in_2 : f32 loc(#loc99)
      %12 = arith.addf %11, %out : f32 loc(#loc99)
      linalg.yield %12 : f32 loc(#loc99)
    } -> tensor<2x32xf32> loc(#loc99)
    %8 = linalg.generic {indexing_maps = [#map5, #map11, #map5, #map5], iterator_types = ["parallel", "parallel"]} ins(%7, %x2, %x3 : tensor<2x32xf32>, tensor<2x1xf32>, tensor<2x32xf32>) outs(%5 : tensor<2x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.experts"(#loc32)), %in_2: f32 loc("model.layers.0.mlp.shared_expert_gate"(#loc33)), %in_3: f32 loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28)), %out: f32 loc("model.layers.0.mlp"(#loc60))):
      %11 = arith.negf %in_2 : f32 loc(#loc137)
      %12 = math.exp %11 : f32 loc(#loc137)
      %13 = arith.addf %12, %cst_0 : f32 loc(#loc137)
      %14 = arith.divf %cst_0, %13 : f32 loc(#loc137)
      %15 = arith.mulf %14, %in_3 : f32 loc(#loc137)
      %16 = arith.addf %in, %15 : f32 loc(#loc136)
      linalg.yield %16 : f32 loc(#loc136)
    } -> tensor<2x32xf32> loc(#loc136)
    %expanded_1 = tensor.expand_shape %8 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc138)
    %9 = tensor.empty() : tensor<2x1x32xf32> loc(#loc72)
    %10 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x4, %expanded_1 : tensor<2x1x32xf32>, tensor<2x1x32xf32>) outs(%9 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0"(#loc26)), %in_2: f32 loc("model.layers.0.mlp"(#loc61)), %out: f32 loc("model.layers.0"(#loc34))):
      %11 = arith.addf %in, %in_2 : f32 loc(#loc101)
      linalg.yield %11 : f32 loc(#loc101)
    } -> tensor<2x1x32xf32> loc(#loc101)
    return %10 : tensor<2x1x32xf32> loc(#loc101)
  } loc(#loc101)
  func.func private @body.expert_product(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x1: tensor<6x32x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x2: tensor<2x2xi64> {sscc.input = "x2"} loc("model.layers.0.mlp.experts"(#loc32))) -> (tensor<2x2x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.expert_product"(%x0, %x1, %x2) : (tensor<2x1x32xf32>, tensor<6x32x32xf32>, tensor<2x2xi64>) -> tensor<2x2x32xf32> loc(#loc99)
    return %0 : tensor<2x2x32xf32> loc(#loc99)
  } loc(#loc99)
  func.func private @body.experts(%x0: tensor<2x2x16xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x1: tensor<2x2x16xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.experts"(#loc32))) -> (tensor<2x2x16xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x2x16xf32> loc(#loc139)
    %1 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x2x16xf32>, tensor<2x2x16xf32>) outs(%0 : tensor<2x2x16xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.experts"(#loc32)), %in_0: f32 loc("model.layers.0.mlp.experts"(#loc32)), %out: f32 loc("model.layers.0.mlp.experts"(#loc32))):
      %2 = arith.negf %in : f32 loc(#loc139)
      %3 = math.exp %2 : f32 loc(#loc139)
      %4 = arith.addf %3, %cst : f32 loc(#loc139)
      %5 = arith.divf %cst, %4 : f32 loc(#loc139)
      %6 = arith.mulf %in, %5 : f32 loc(#loc139)
      %7 = arith.mulf %6, %in_0 : f32 loc(#loc99)
      linalg.yield %7 : f32 loc(#loc99)
    } -> tensor<2x2x16xf32> loc(#loc99)
    return %1 : tensor<2x2x16xf32> loc(#loc99)
  } loc(#loc99)
  func.func private @body.expert_product.26(%x0: tensor<2x2x16xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x1: tensor<6x32x16xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x2: tensor<2x2xi64> {sscc.input = "x2"} loc("model.layers.0.mlp.experts"(#loc32))) -> (tensor<2x2x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.expert_product"(%x0, %x1, %x2) : (tensor<2x2x16xf32>, tensor<6x32x16xf32>, tensor<2x2xi64>) -> tensor<2x2x32xf32> loc(#loc99)
    return %0 : tensor<2x2x32xf32> loc(#loc99)
  } loc(#loc99)
  func.func private @body.shared_expert_gate(%x0: tensor<1x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.shared_expert_gate"(#loc33)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.shared_expert_gate"(#loc33))) -> (tensor<2x1xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1xf32> loc(#loc97)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1xf32> loc(#loc97)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x32xf32>, tensor<1x32xf32>) outs(%1 : tensor<2x1xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.mlp.shared_expert_gate"(#loc33)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc100)
    } -> tensor<2x1xf32> loc(#loc100)
    return %2 : tensor<2x1xf32> loc(#loc100)
  } loc(#loc100)
  func.func private @body.q_proj(%x0: tensor<64x32xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn.q_proj"(#loc37)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn.q_proj"(#loc37))) -> (tensor<2x64xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x64xf32> loc(#loc105)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x64xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x64xf32> loc(#loc105)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x32xf32>, tensor<64x32xf32>) outs(%1 : tensor<2x64xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.1.self_attn.q_proj"(#loc37)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc105)
    } -> tensor<2x64xf32> loc(#loc105)
    return %2 : tensor<2x64xf32> loc(#loc105)
  } loc(#loc105)
  func.func private @body.self_attn(%x0: tensor<2x1x4x8xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc42)),
      %x1: tensor<2x4x1x8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc42))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x4x8xf32> loc(#loc113)
    %1 = linalg.generic {indexing_maps = [#map21, #map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x1, %x0 : tensor<2x4x1x8xf32>, tensor<2x1x4x8xf32>) outs(%0 : tensor<2x1x4x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc36)), %in_0: f32 loc("model.layers.1.self_attn"(#loc62)), %out: f32 loc("model.layers.1.self_attn"(#loc42))):
      %2 = arith.negf %in_0 : f32 loc(#loc113)
      %3 = math.exp %2 : f32 loc(#loc113)
      %4 = arith.addf %3, %cst : f32 loc(#loc113)
      %5 = arith.divf %cst, %4 : f32 loc(#loc113)
      %6 = arith.mulf %in, %5 : f32 loc(#loc113)
      linalg.yield %6 : f32 loc(#loc113)
    } -> tensor<2x1x4x8xf32> loc(#loc113)
    %collapsed = tensor.collapse_shape %1 [[0], [1], [2, 3]] : tensor<2x1x4x8xf32> into tensor<2x1x32xf32> loc(#loc113)
    return %collapsed : tensor<2x1x32xf32> loc(#loc113)
  } loc(#loc113)
  func.func private @body.q_norm(%x0: tensor<2x1x4x8xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc41)),
      %x1: tensor<8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc41)),
      %x2: tensor<2x1x1x2xf32> {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc41)),
      %x3: tensor<2x1x1x2xf32> {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc41))) -> (tensor<2x4x1x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc72)
    %cst_2 = arith.constant 8.000000e+00 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x4x1xf32> loc(#loc108)
    %1 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<2x1x4x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1x4x1xf32> loc(#loc108)
    %2 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x0 : tensor<2x1x4x8xf32>) outs(%1 : tensor<2x1x4x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc38)), %out: f32 loc("model.layers.1.self_attn.q_norm"(#loc5))):
      %9 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc108)
      %10 = arith.addf %9, %out : f32 loc(#loc108)
      linalg.yield %10 : f32 loc(#loc108)
    } -> tensor<2x1x4x1xf32> loc(#loc108)
    %3 = tensor.empty() : tensor<2x4x1x8xf32> loc(#loc141)
    %4 = linalg.generic {indexing_maps = [#map21, #map22, #map23, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %2, %x1 : tensor<2x1x4x8xf32>, tensor<2x1x4x1xf32>, tensor<8xf32>) outs(%3 : tensor<2x4x1x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc38)), %in_7: f32 loc("model.layers.1.self_attn.q_norm"(#loc5)), %in_8: f32 loc("model.layers.1.self_attn.q_norm"(#loc6)), %out: f32 loc("model.layers.1.self_attn"(#loc63))):
      %9 = arith.addf %in_8, %cst_0 : f32 loc(#loc142)
      %10 = arith.divf %in_7, %cst_2 : f32 loc(#loc108)
      %11 = arith.truncf %cst_1 : f64 to f32 loc(#loc108)
      %12 = arith.addf %10, %11 : f32 loc(#loc108)
      %13 = math.rsqrt %12 : f32 loc(#loc108)
      %14 = arith.mulf %in, %13 : f32 loc(#loc108)
      %15 = arith.mulf %14, %9 : f32 loc(#loc142)
      linalg.yield %15 : f32 loc(#loc141)
    } -> tensor<2x4x1x8xf32> loc(#loc141)
    %extracted_slice = tensor.extract_slice %4[0, 0, 0, 0] [2, 4, 1, 2] [1, 1, 1, 1] : tensor<2x4x1x8xf32> to tensor<2x4x1x2xf32> loc(#loc112)
    %extracted_slice_3 = tensor.extract_slice %4[0, 0, 0, 2] [2, 4, 1, 6] [1, 1, 1, 1] : tensor<2x4x1x8xf32> to tensor<2x4x1x6xf32> loc(#loc112)
    %5 = tensor.empty() : tensor<2x4x1x2xf32> loc(#loc112)
    %extracted_slice_4 = tensor.extract_slice %extracted_slice[0, 0, 0, 0] [2, 4, 1, 1] [1, 1, 1, 1] : tensor<2x4x1x2xf32> to tensor<2x4x1x1xf32> loc(#loc112)
    %extracted_slice_5 = tensor.extract_slice %extracted_slice[0, 0, 0, 1] [2, 4, 1, 1] [1, 1, 1, 1] : tensor<2x4x1x2xf32> to tensor<2x4x1x1xf32> loc(#loc112)
    %6 = tensor.empty() : tensor<2x4x1x1xf32> loc(#loc112)
    %7 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice_5 : tensor<2x4x1x1xf32>) outs(%6 : tensor<2x4x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.negf %in : f32 loc(#loc112)
      linalg.yield %9 : f32 loc(#loc112)
    } -> tensor<2x4x1x1xf32> loc(#loc112)
    %concat = tensor.concat dim(3) %7, %extracted_slice_4 : (tensor<2x4x1x1xf32>, tensor<2x4x1x1xf32>) -> tensor<2x4x1x2xf32> loc(#loc112)
    %8 = linalg.generic {indexing_maps = [#map12, #map24, #map12, #map24, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice, %x2, %concat, %x3 : tensor<2x4x1x2xf32>, tensor<2x1x1x2xf32>, tensor<2x4x1x2xf32>, tensor<2x1x1x2xf32>) outs(%5 : tensor<2x4x1x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %in_7: f32 loc("model.layers.1.self_attn"(#loc41)), %in_8: f32 loc("model.layers.1.self_attn"(#loc41)), %in_9: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.mulf %in_8, %in_9 : f32 loc(#loc112)
      %10 = arith.mulf %in, %in_7 : f32 loc(#loc112)
      %11 = arith.addf %10, %9 : f32 loc(#loc112)
      linalg.yield %11 : f32 loc(#loc112)
    } -> tensor<2x4x1x2xf32> loc(#loc112)
    %concat_6 = tensor.concat dim(3) %8, %extracted_slice_3 : (tensor<2x4x1x2xf32>, tensor<2x4x1x6xf32>) -> tensor<2x4x1x8xf32> loc(#loc112)
    return %concat_6 : tensor<2x4x1x8xf32> loc(#loc112)
  } loc(#loc112)
  func.func private @body.k_proj(%x0: tensor<16x32xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn.k_proj"(#loc39)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn.k_proj"(#loc39))) -> (tensor<2x16xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x16xf32> loc(#loc109)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<2x16xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x16xf32> loc(#loc109)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<2x32xf32>, tensor<16x32xf32>) outs(%1 : tensor<2x16xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.1.self_attn.k_proj"(#loc39)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc109)
    } -> tensor<2x16xf32> loc(#loc109)
    return %2 : tensor<2x16xf32> loc(#loc109)
  } loc(#loc109)
  func.func private @body.k_norm(%x0: tensor<2x16xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc41)),
      %x1: tensor<8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc41)),
      %x2: tensor<2x1x1x2xf32> {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc41)),
      %x3: tensor<2x1x1x2xf32> {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc41))) -> (tensor<2x2x1x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc72)
    %cst_2 = arith.constant 8.000000e+00 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %expanded = tensor.expand_shape %x0 [[0], [1, 2, 3]] output_shape [2, 1, 2, 8] : tensor<2x16xf32> into tensor<2x1x2x8xf32> loc(#loc143)
    %0 = tensor.empty() : tensor<2x1x2x1xf32> loc(#loc110)
    %1 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<2x1x2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1x2x1xf32> loc(#loc110)
    %2 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%expanded : tensor<2x1x2x8xf32>) outs(%1 : tensor<2x1x2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc39)), %out: f32 loc("model.layers.1.self_attn.k_norm"(#loc5))):
      %9 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc110)
      %10 = arith.addf %9, %out : f32 loc(#loc110)
      linalg.yield %10 : f32 loc(#loc110)
    } -> tensor<2x1x2x1xf32> loc(#loc110)
    %3 = tensor.empty() : tensor<2x2x1x8xf32> loc(#loc143)
    %4 = linalg.generic {indexing_maps = [#map21, #map22, #map23, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded, %2, %x1 : tensor<2x1x2x8xf32>, tensor<2x1x2x1xf32>, tensor<8xf32>) outs(%3 : tensor<2x2x1x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc39)), %in_7: f32 loc("model.layers.1.self_attn.k_norm"(#loc5)), %in_8: f32 loc("model.layers.1.self_attn.k_norm"(#loc6)), %out: f32 loc("model.layers.1.self_attn"(#loc39))):
      %9 = arith.addf %in_8, %cst_0 : f32 loc(#loc144)
      %10 = arith.divf %in_7, %cst_2 : f32 loc(#loc110)
      %11 = arith.truncf %cst_1 : f64 to f32 loc(#loc110)
      %12 = arith.addf %10, %11 : f32 loc(#loc110)
      %13 = math.rsqrt %12 : f32 loc(#loc110)
      %14 = arith.mulf %in, %13 : f32 loc(#loc110)
      %15 = arith.mulf %14, %9 : f32 loc(#loc144)
      linalg.yield %15 : f32 loc(#loc143)
    } -> tensor<2x2x1x8xf32> loc(#loc143)
    %extracted_slice = tensor.extract_slice %4[0, 0, 0, 0] [2, 2, 1, 2] [1, 1, 1, 1] : tensor<2x2x1x8xf32> to tensor<2x2x1x2xf32> loc(#loc112)
    %extracted_slice_3 = tensor.extract_slice %4[0, 0, 0, 2] [2, 2, 1, 6] [1, 1, 1, 1] : tensor<2x2x1x8xf32> to tensor<2x2x1x6xf32> loc(#loc112)
    %5 = tensor.empty() : tensor<2x2x1x2xf32> loc(#loc112)
    %extracted_slice_4 = tensor.extract_slice %extracted_slice[0, 0, 0, 0] [2, 2, 1, 1] [1, 1, 1, 1] : tensor<2x2x1x2xf32> to tensor<2x2x1x1xf32> loc(#loc112)
    %extracted_slice_5 = tensor.extract_slice %extracted_slice[0, 0, 0, 1] [2, 2, 1, 1] [1, 1, 1, 1] : tensor<2x2x1x2xf32> to tensor<2x2x1x1xf32> loc(#loc112)
    %6 = tensor.empty() : tensor<2x2x1x1xf32> loc(#loc112)
    %7 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice_5 : tensor<2x2x1x1xf32>) outs(%6 : tensor<2x2x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.negf %in : f32 loc(#loc112)
      linalg.yield %9 : f32 loc(#loc112)
    } -> tensor<2x2x1x1xf32> loc(#loc112)
    %concat = tensor.concat dim(3) %7, %extracted_slice_4 : (tensor<2x2x1x1xf32>, tensor<2x2x1x1xf32>) -> tensor<2x2x1x2xf32> loc(#loc112)
    %8 = linalg.generic {indexing_maps = [#map12, #map24, #map12, #map24, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice, %x2, %concat, %x3 : tensor<2x2x1x2xf32>, tensor<2x1x1x2xf32>, tensor<2x2x1x2xf32>, tensor<2x1x1x2xf32>) outs(%5 : tensor<2x2x1x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %in_7: f32 loc("model.layers.1.self_attn"(#loc41)), %in_8: f32 loc("model.layers.1.self_attn"(#loc41)), %in_9: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.mulf %in_8, %in_9 : f32 loc(#loc112)
      %10 = arith.mulf %in, %in_7 : f32 loc(#loc112)
      %11 = arith.addf %10, %9 : f32 loc(#loc112)
      linalg.yield %11 : f32 loc(#loc112)
    } -> tensor<2x2x1x2xf32> loc(#loc112)
    %concat_6 = tensor.concat dim(3) %8, %extracted_slice_3 : (tensor<2x2x1x2xf32>, tensor<2x2x1x6xf32>) -> tensor<2x2x1x8xf32> loc(#loc112)
    return %concat_6 : tensor<2x2x1x8xf32> loc(#loc112)
  } loc(#loc112)
  func.func private @body.decode_attention(%x0: tensor<2x16xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc36)),
      %x1: tensor<2x4x1x8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc36)),
      %x2: tensor<2x2x1x8xf32> {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc36)),
      %x3: tensor<2x2x88x8xf32> {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc36)),
      %x4: tensor<2x2x88x8xf32> {sscc.input = "x4"} loc("model.layers.1.self_attn"(#loc36)),
      %x5: tensor<2xi64> {sscc.input = "x5"} loc("model.layers.1.self_attn"(#loc36)),
      %x6: tensor<2xi64> {sscc.input = "x6"} loc("model.layers.1.self_attn"(#loc36)),
      %x7: tensor<2xi1> {sscc.input = "x7"} loc("model.layers.1.self_attn"(#loc36)),
      %x8: index {sscc.input = "x8"} loc("model.layers.1.self_attn"(#loc36))) -> (tensor<2x4x1x8xf32> {sscc.output = "y0"}, tensor<2x2x88x8xf32> {sscc.output = "y1"}, tensor<2x2x88x8xf32> {sscc.output = "y2"}) attributes {df.body} {
    %expanded = tensor.expand_shape %x0 [[0], [1, 2, 3]] output_shape [2, 1, 2, 8] : tensor<2x16xf32> into tensor<2x1x2x8xf32> loc(#loc145)
    %0 = tensor.empty() : tensor<2x2x1x8xf32> loc(#loc143)
    %1 = linalg.generic {indexing_maps = [#map21, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded : tensor<2x1x2x8xf32>) outs(%0 : tensor<2x2x1x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc40)), %out: f32 loc("model.layers.1.self_attn"(#loc40))):
      linalg.yield %in : f32 loc(#loc145)
    } -> tensor<2x2x1x8xf32> loc(#loc145)
    %2:3 = "kv.decode_attention"(%x1, %x2, %1, %x3, %x4, %x3, %x4, %x5, %x6, %x7, %x8) {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 1>, scale = 0.35355339059327379 : f64} : (tensor<2x4x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x1x8xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi1>, index) -> (tensor<2x4x1x8xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32>) loc(#loc102)
    return %2#0, %2#1, %2#2 : tensor<2x4x1x8xf32>, tensor<2x2x88x8xf32>, tensor<2x2x88x8xf32> loc(#loc102)
  } loc(#loc102)
  func.func private @body.o_proj(%x0: tensor<32x32xf32> {sscc.input = "x0"} loc("model.layers.1"(#loc26)),
      %x1: tensor<2x1x32xf32> {sscc.input = "x1"} loc("model.layers.1"(#loc26)),
      %x2: tensor<2x1x32xf32> {sscc.input = "x2"} loc("model.layers.1"(#loc26))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc114)
    %1 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<2x1x32xf32> loc(#loc114)
    %expanded = tensor.expand_shape %x0 [[0, 1], [2, 3]] output_shape [1, 32, 1, 32] : tensor<32x32xf32> into tensor<1x32x1x32xf32> loc(#loc114)
    %2 = linalg.generic {indexing_maps = [#map25, #map26, #map27], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%x1, %expanded : tensor<2x1x32xf32>, tensor<1x32x1x32xf32>) outs(%1 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.1.self_attn.o_proj"(#loc43)), %out: f32 loc(unknown)):
      %4 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %5 = arith.addf %out, %4 : f32 loc(#loc)
      linalg.yield %5 : f32 loc(#loc114)
    } -> tensor<2x1x32xf32> loc(#loc114)
    %3 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x2, %2 : tensor<2x1x32xf32>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0"(#loc34)), %in_0: f32 loc("model.layers.1.self_attn.o_proj"(#loc43)), %out: f32 loc("model.layers.1"(#loc26))):
      %4 = arith.addf %in, %in_0 : f32 loc(#loc115)
      linalg.yield %4 : f32 loc(#loc115)
    } -> tensor<2x1x32xf32> loc(#loc115)
    return %3 : tensor<2x1x32xf32> loc(#loc115)
  } loc(#loc115)
  func.func private @body.embed_tokens.35(%x0: tensor<1x7xi64> {sscc.input = "x0"} loc("model.embed_tokens"(#loc1)),
      %x1: tensor<96x32xf32> {sscc.input = "x1"} loc("model.embed_tokens"(#loc1))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc64)
    %1 = linalg.generic {indexing_maps = [#map1, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7xi64>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: i64 loc("model.embed_tokens"(#loc1)), %out: f32 loc("model.embed_tokens"(#loc1))):
      %2 = arith.index_cast %in : i64 to index loc(#loc64)
      %3 = linalg.index 2 : index loc(#loc64)
      %extracted = tensor.extract %x1[%2, %3] : tensor<96x32xf32> loc(#loc64)
      linalg.yield %extracted : f32 loc(#loc64)
    } -> tensor<1x7x32xf32> loc(#loc64)
    return %1 : tensor<1x7x32xf32> loc(#loc64)
  } loc(#loc64)
  func.func private @body.rotary_emb.36(%x0: tensor<1x7xi64> {sscc.input = "x0"} loc("model.rotary_emb"(#loc2)),
      %x1: tensor<1xf32> {sscc.input = "x1"} loc("model.rotary_emb"(#loc2))) -> (tensor<1x7x2xf32> {sscc.output = "y0"}) attributes {df.body} {
    %expanded = tensor.expand_shape %x0 [[0], [1, 2]] output_shape [1, 7, 1] : tensor<1x7xi64> into tensor<1x7x1xi64> loc(#loc126)
    %0 = tensor.empty() : tensor<1x7x1xf32> loc(#loc126)
    %1 = linalg.generic {indexing_maps = [#map2, #map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %x1 : tensor<1x7x1xi64>, tensor<1xf32>) outs(%0 : tensor<1x7x1xf32>) {
    ^bb0(%in: i64 loc("model.rotary_emb"(#loc53)), %in_0: f32 loc("model.rotary_emb"(#loc53)), %out: f32 loc("model.rotary_emb"(#loc53))):
      %2 = arith.sitofp %in : i64 to f32 loc(#loc126)
      %3 = arith.mulf %2, %in_0 : f32 loc(#loc126)
      linalg.yield %3 : f32 loc(#loc126)
    } -> tensor<1x7x1xf32> loc(#loc126)
    %concat = tensor.concat dim(2) %1, %1 : (tensor<1x7x1xf32>, tensor<1x7x1xf32>) -> tensor<1x7x2xf32> loc(#loc65)
    return %concat : tensor<1x7x2xf32> loc(#loc65)
  } loc(#loc65)
  func.func private @body.rotary_emb.37(%x0: tensor<1x7x2xf32> {sscc.input = "x0"} loc("model.rotary_emb"(#loc3))) -> (tensor<1x7x2xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = tensor.empty() : tensor<1x7x2xf32> loc(#loc66)
    %1 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x2xf32>) outs(%0 : tensor<1x7x2xf32>) {
    ^bb0(%in: f32 loc("model.rotary_emb"(#loc2)), %out: f32 loc("model.rotary_emb"(#loc3))):
      %2 = math.cos %in : f32 loc(#loc66)
      linalg.yield %2 : f32 loc(#loc66)
    } -> tensor<1x7x2xf32> loc(#loc66)
    return %1 : tensor<1x7x2xf32> loc(#loc66)
  } loc(#loc66)
  func.func private @body.rotary_emb.38(%x0: tensor<1x7x2xf32> {sscc.input = "x0"} loc("model.rotary_emb"(#loc4))) -> (tensor<1x7x2xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = tensor.empty() : tensor<1x7x2xf32> loc(#loc66)
    %1 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x2xf32>) outs(%0 : tensor<1x7x2xf32>) {
    ^bb0(%in: f32 loc("model.rotary_emb"(#loc2)), %out: f32 loc("model.rotary_emb"(#loc4))):
      %2 = math.sin %in : f32 loc(#loc67)
      linalg.yield %2 : f32 loc(#loc67)
    } -> tensor<1x7x2xf32> loc(#loc67)
    return %1 : tensor<1x7x2xf32> loc(#loc67)
  } loc(#loc67)
  func.func private @body.input_layernorm(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.input_layernorm"(#loc6)),
      %x1: tensor<32xf32> {sscc.input = "x1"} loc("model.layers.0.input_layernorm"(#loc6))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc)
    %cst_2 = arith.constant 3.200000e+01 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc72)
    %1 = tensor.empty() : tensor<1x7x1xf32> loc(#loc72)
    %2 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%1 : tensor<1x7x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x1xf32> loc(#loc72)
    %3 = linalg.generic {indexing_maps = [#map2, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x0 : tensor<1x7x32xf32>) outs(%2 : tensor<1x7x1xf32>) {
    ^bb0(%in: f32 loc("model.embed_tokens"(#loc1)), %out: f32 loc("model.layers.0.input_layernorm"(#loc5))):
      %5 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc72)
      %6 = arith.addf %5, %out : f32 loc(#loc72)
      linalg.yield %6 : f32 loc(#loc72)
    } -> tensor<1x7x1xf32> loc(#loc72)
    %4 = linalg.generic {indexing_maps = [#map2, #map4, #map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %3, %x1 : tensor<1x7x32xf32>, tensor<1x7x1xf32>, tensor<32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.embed_tokens"(#loc1)), %in_3: f32 loc("model.layers.0.input_layernorm"(#loc5)), %in_4: f32 loc("model.layers.0.input_layernorm"(#loc6)), %out: f32 loc("model.layers.0.input_layernorm"(#loc6))):
      %5 = arith.addf %in_4, %cst_0 : f32 loc(#loc73)
      %6 = arith.divf %in_3, %cst_2 : f32 loc(#loc72)
      %7 = arith.truncf %cst_1 : f64 to f32 loc(#loc72)
      %8 = arith.addf %6, %7 : f32 loc(#loc72)
      %9 = math.rsqrt %8 : f32 loc(#loc72)
      %10 = arith.mulf %in, %9 : f32 loc(#loc72)
      %11 = arith.mulf %10, %5 : f32 loc(#loc73)
      linalg.yield %11 : f32 loc(#loc73)
    } -> tensor<1x7x32xf32> loc(#loc73)
    return %4 : tensor<1x7x32xf32> loc(#loc73)
  } loc(#loc73)
  func.func private @body.in_proj_qkvz.40(%x0: tensor<96x32xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn.in_proj_qkvz"(#loc10)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn.in_proj_qkvz"(#loc10))) -> (tensor<7x96xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x96xf32> loc(#loc74)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x96xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x96xf32> loc(#loc74)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x32xf32>, tensor<96x32xf32>) outs(%1 : tensor<7x96xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.linear_attn.in_proj_qkvz"(#loc10)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc74)
    } -> tensor<7x96xf32> loc(#loc74)
    return %2 : tensor<7x96xf32> loc(#loc74)
  } loc(#loc74)
  func.func private @body.in_proj_ba.41(%x0: tensor<8x32xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn.in_proj_ba"(#loc11)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn.in_proj_ba"(#loc11))) -> (tensor<7x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x8xf32> loc(#loc75)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x8xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x8xf32> loc(#loc75)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x32xf32>, tensor<8x32xf32>) outs(%1 : tensor<7x8xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.linear_attn.in_proj_ba"(#loc11)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc75)
    } -> tensor<7x8xf32> loc(#loc75)
    return %2 : tensor<7x8xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @body.linear_attn.42(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc14)),
      %x1: tensor<1x7x16xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc14)),
      %x2: tensor<1x7x16xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc14))) -> (tensor<1x7x64xf32> {sscc.output = "y0"}) attributes {df.body} {
    %concat = tensor.concat dim(2) %x1, %x2, %x0 : (tensor<1x7x16xf32>, tensor<1x7x16xf32>, tensor<1x7x32xf32>) -> tensor<1x7x64xf32> loc(#loc78)
    return %concat : tensor<1x7x64xf32> loc(#loc78)
  } loc(#loc78)
  func.func private @body.norm.43(%x0: tensor<1x7x4x8xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn.norm"(#loc24)),
      %x1: tensor<8xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn.norm"(#loc24)),
      %x2: tensor<1x7x32xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn.norm"(#loc24))) -> (tensor<28x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc)
    %cst_2 = arith.constant 8.000000e+00 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %expanded = tensor.expand_shape %x2 [[0], [1], [2, 3]] output_shape [1, 7, 4, 8] : tensor<1x7x32xf32> into tensor<1x7x4x8xf32> loc(#loc76)
    %collapsed = tensor.collapse_shape %x0 [[0, 1, 2], [3]] : tensor<1x7x4x8xf32> into tensor<28x8xf32> loc(#loc127)
    %0 = tensor.empty() : tensor<28x8xf32> loc(#loc87)
    %1 = tensor.empty() : tensor<28x1xf32> loc(#loc87)
    %2 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%1 : tensor<28x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<28x1xf32> loc(#loc87)
    %3 = linalg.generic {indexing_maps = [#map5, #map11], iterator_types = ["parallel", "reduction"]} ins(%collapsed : tensor<28x8xf32>) outs(%2 : tensor<28x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc54)), %out: f32 loc("model.layers.0.linear_attn.norm"(#loc23))):
      %7 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc87)
      %8 = arith.addf %7, %out : f32 loc(#loc87)
      linalg.yield %8 : f32 loc(#loc87)
    } -> tensor<28x1xf32> loc(#loc87)
    %4 = tensor.empty() : tensor<1x7x4x8xf32> loc(#loc128)
    %5 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded : tensor<1x7x4x8xf32>) outs(%4 : tensor<1x7x4x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc55)), %out: f32 loc("model.layers.0.linear_attn.norm"(#loc23))):
      %7 = arith.negf %in : f32 loc(#loc128)
      %8 = math.exp %7 : f32 loc(#loc128)
      %9 = arith.addf %8, %cst_0 : f32 loc(#loc128)
      %10 = arith.divf %cst_0, %9 : f32 loc(#loc128)
      %11 = arith.mulf %in, %10 : f32 loc(#loc128)
      linalg.yield %11 : f32 loc(#loc128)
    } -> tensor<1x7x4x8xf32> loc(#loc128)
    %collapsed_3 = tensor.collapse_shape %5 [[0, 1, 2], [3]] : tensor<1x7x4x8xf32> into tensor<28x8xf32> loc(#loc128)
    %6 = linalg.generic {indexing_maps = [#map13, #map5, #map11, #map5, #map5], iterator_types = ["parallel", "parallel"]} ins(%x1, %collapsed, %3, %collapsed_3 : tensor<8xf32>, tensor<28x8xf32>, tensor<28x1xf32>, tensor<28x8xf32>) outs(%0 : tensor<28x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn.norm"(#loc56)), %in_4: f32 loc("model.layers.0.linear_attn"(#loc54)), %in_5: f32 loc("model.layers.0.linear_attn.norm"(#loc23)), %in_6: f32 loc("model.layers.0.linear_attn.norm"(#loc15)), %out: f32 loc("model.layers.0.linear_attn.norm"(#loc24))):
      %7 = arith.divf %in_5, %cst_2 : f32 loc(#loc87)
      %8 = arith.truncf %cst_1 : f64 to f32 loc(#loc131)
      %9 = arith.addf %7, %8 : f32 loc(#loc131)
      %10 = math.rsqrt %9 : f32 loc(#loc131)
      %11 = arith.mulf %in_4, %10 : f32 loc(#loc131)
      %12 = arith.mulf %in, %11 : f32 loc(#loc130)
      %13 = arith.mulf %12, %in_6 : f32 loc(#loc88)
      linalg.yield %13 : f32 loc(#loc88)
    } -> tensor<28x8xf32> loc(#loc88)
    return %6 : tensor<28x8xf32> loc(#loc88)
  } loc(#loc88)
  func.func private @body.linear_attn.44(%x0: tensor<1x7x2x2xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc20))) -> (tensor<1x7x4xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x2x2xf32> loc(#loc84)
    %1 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x2x2xf32>) outs(%0 : tensor<1x7x2x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc12)), %out: f32 loc("model.layers.0.linear_attn"(#loc20))):
      %2 = arith.negf %in : f32 loc(#loc84)
      %3 = math.exp %2 : f32 loc(#loc84)
      %4 = arith.addf %3, %cst : f32 loc(#loc84)
      %5 = arith.divf %cst, %4 : f32 loc(#loc84)
      linalg.yield %5 : f32 loc(#loc84)
    } -> tensor<1x7x2x2xf32> loc(#loc84)
    %collapsed = tensor.collapse_shape %1 [[0], [1], [2, 3]] : tensor<1x7x2x2xf32> into tensor<1x7x4xf32> loc(#loc84)
    return %collapsed : tensor<1x7x4xf32> loc(#loc84)
  } loc(#loc84)
  func.func private @body.linear_attn.45(%x0: tensor<1x7x2x2xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc21)),
      %x1: tensor<4xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc21)),
      %x2: tensor<4xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc21))) -> (tensor<1x7x4xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 2.000000e+01 : f32 loc(#loc)
    %expanded = tensor.expand_shape %x2 [[0, 1]] output_shape [2, 2] : tensor<4xf32> into tensor<2x2xf32> loc(#loc85)
    %expanded_0 = tensor.expand_shape %x1 [[0, 1]] output_shape [2, 2] : tensor<4xf32> into tensor<2x2xf32> loc(#loc85)
    %0 = tensor.empty() : tensor<1x7x2x2xf32> loc(#loc85)
    %1 = linalg.generic {indexing_maps = [#map14, #map12, #map14, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded_0, %x0, %expanded : tensor<2x2xf32>, tensor<1x7x2x2xf32>, tensor<2x2xf32>) outs(%0 : tensor<1x7x2x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc21)), %in_1: f32 loc("model.layers.0.linear_attn"(#loc12)), %in_2: f32 loc("model.layers.0.linear_attn"(#loc21)), %out: f32 loc("model.layers.0.linear_attn"(#loc21))):
      %2 = arith.addf %in_1, %in_2 : f32 loc(#loc85)
      %3 = math.exp %2 : f32 loc(#loc85)
      %4 = math.log1p %3 : f32 loc(#loc85)
      %5 = arith.cmpf ogt, %2, %cst : f32 loc(#loc85)
      %6 = arith.select %5, %2, %4 : f32 loc(#loc85)
      %7 = math.exp %in : f32 loc(#loc85)
      %8 = arith.negf %7 : f32 loc(#loc85)
      %9 = arith.mulf %8, %6 : f32 loc(#loc85)
      linalg.yield %9 : f32 loc(#loc85)
    } -> tensor<1x7x2x2xf32> loc(#loc85)
    %collapsed = tensor.collapse_shape %1 [[0], [1], [2, 3]] : tensor<1x7x2x2xf32> into tensor<1x7x4xf32> loc(#loc85)
    return %collapsed : tensor<1x7x4xf32> loc(#loc85)
  } loc(#loc85)
  func.func private @body.gather(%x0: tensor<1x7x64xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc9)),
      %x1: tensor<1x1x3x64xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc9)),
      %x2: index {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc9)),
      %x3: tensor<64x1x4xf32> {sscc.input = "x3"} loc("model.layers.0.linear_attn"(#loc9)),
      %x4: index {sscc.input = "x4"} loc("model.layers.0.linear_attn"(#loc9))) -> (tensor<7x64xf32> {sscc.output = "y0"}, tensor<1x1x3x64xf32> {sscc.output = "y1"}) attributes {df.body} {
    %c9 = arith.constant 9 : index loc(#loc)
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %c0 = arith.constant 0 : index loc(#loc45)
    %expanded = tensor.expand_shape %x0 [[0, 1], [2], [3]] output_shape [1, 1, 7, 64] : tensor<1x7x64xf32> into tensor<1x1x7x64xf32> loc(#loc71)
    %0 = tensor.empty() : tensor<1x1x3x64xf32> loc(#loc71)
    %1 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x1 : tensor<1x1x3x64xf32>) outs(%0 : tensor<1x1x3x64xf32>) attrs =  {df.together} {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc9)), %out: f32 loc("model.layers.0.linear_attn"(#loc9))):
      %7 = arith.cmpi sgt, %x2, %c0 : index loc(#loc71)
      %8 = arith.select %7, %in, %cst : f32 loc(#loc71)
      linalg.yield %8 : f32 loc(#loc71)
    } -> tensor<1x1x3x64xf32> loc(#loc71)
    %concat = tensor.concat dim(2) %1, %expanded {df.together} : (tensor<1x1x3x64xf32>, tensor<1x1x7x64xf32>) -> tensor<1x1x10x64xf32> loc(#loc71)
    %extracted_slice = tensor.extract_slice %concat[0, 0, 0, 0] [1, 1, 7, 64] [1, 1, 1, 1] {df.together} : tensor<1x1x10x64xf32> to tensor<1x1x7x64xf32> loc(#loc71)
    %extracted_slice_0 = tensor.extract_slice %concat[0, 0, 1, 0] [1, 1, 7, 64] [1, 1, 1, 1] {df.together} : tensor<1x1x10x64xf32> to tensor<1x1x7x64xf32> loc(#loc71)
    %extracted_slice_1 = tensor.extract_slice %concat[0, 0, 2, 0] [1, 1, 7, 64] [1, 1, 1, 1] {df.together} : tensor<1x1x10x64xf32> to tensor<1x1x7x64xf32> loc(#loc71)
    %extracted_slice_2 = tensor.extract_slice %concat[0, 0, 3, 0] [1, 1, 7, 64] [1, 1, 1, 1] {df.together} : tensor<1x1x10x64xf32> to tensor<1x1x7x64xf32> loc(#loc71)
    %extracted_slice_3 = tensor.extract_slice %x3[0, 0, 0] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %extracted_slice_4 = tensor.extract_slice %x3[0, 0, 1] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %extracted_slice_5 = tensor.extract_slice %x3[0, 0, 2] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %extracted_slice_6 = tensor.extract_slice %x3[0, 0, 3] [64, 1, 1] [1, 1, 1] {df.together} : tensor<64x1x4xf32> to tensor<64x1x1xf32> loc(#loc71)
    %expanded_7 = tensor.expand_shape %extracted_slice [[0], [1], [2], [3, 4, 5]] output_shape [1, 1, 7, 64, 1, 1] : tensor<1x1x7x64xf32> into tensor<1x1x7x64x1x1xf32> loc(#loc71)
    %expanded_8 = tensor.expand_shape %extracted_slice_0 [[0], [1], [2], [3, 4, 5]] output_shape [1, 1, 7, 64, 1, 1] : tensor<1x1x7x64xf32> into tensor<1x1x7x64x1x1xf32> loc(#loc71)
    %expanded_9 = tensor.expand_shape %extracted_slice_1 [[0], [1], [2], [3, 4, 5]] output_shape [1, 1, 7, 64, 1, 1] : tensor<1x1x7x64xf32> into tensor<1x1x7x64x1x1xf32> loc(#loc71)
    %expanded_10 = tensor.expand_shape %extracted_slice_2 [[0], [1], [2], [3, 4, 5]] output_shape [1, 1, 7, 64, 1, 1] : tensor<1x1x7x64xf32> into tensor<1x1x7x64x1x1xf32> loc(#loc71)
    %2 = tensor.empty() : tensor<1x1x7x64x1x1xf32> loc(#loc71)
    %3 = linalg.generic {indexing_maps = [#map16, #map16, #map16, #map16, #map17, #map17, #map17, #map17, #map16], iterator_types = ["parallel", "parallel", "parallel", "parallel", "parallel", "parallel"]} ins(%expanded_7, %expanded_8, %expanded_9, %expanded_10, %extracted_slice_3, %extracted_slice_4, %extracted_slice_5, %extracted_slice_6 : tensor<1x1x7x64x1x1xf32>, tensor<1x1x7x64x1x1xf32>, tensor<1x1x7x64x1x1xf32>, tensor<1x1x7x64x1x1xf32>, tensor<64x1x1xf32>, tensor<64x1x1xf32>, tensor<64x1x1xf32>, tensor<64x1x1xf32>) outs(%2 : tensor<1x1x7x64x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_11: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_12: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_13: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_14: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_15: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_16: f32 loc("model.layers.0.linear_attn"(#loc9)), %in_17: f32 loc("model.layers.0.linear_attn"(#loc9)), %out: f32 loc("model.layers.0.linear_attn"(#loc9))):
      %7 = arith.mulf %in_14, %in : f32 loc(#loc71)
      %8 = arith.mulf %in_15, %in_11 : f32 loc(#loc71)
      %9 = arith.mulf %in_16, %in_12 : f32 loc(#loc71)
      %10 = arith.mulf %in_17, %in_13 : f32 loc(#loc71)
      %11 = arith.addf %7, %8 : f32 loc(#loc71)
      %12 = arith.addf %11, %9 : f32 loc(#loc71)
      %13 = arith.addf %12, %10 : f32 loc(#loc71)
      linalg.yield %13 : f32 loc(#loc71)
    } -> tensor<1x1x7x64x1x1xf32> loc(#loc71)
    %collapsed = tensor.collapse_shape %3 [[0, 1, 2], [3, 4, 5]] : tensor<1x1x7x64x1x1xf32> into tensor<7x64xf32> loc(#loc71)
    %4 = tensor.empty() : tensor<1x3xi64> loc(#loc71)
    %5 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%4 : tensor<1x3xi64>) attrs =  {df.together} {
    ^bb0(%out: i64 loc("model.layers.0.linear_attn"(#loc9))):
      %7 = linalg.index 1 : index loc(#loc71)
      %8 = arith.addi %x4, %7 : index loc(#loc71)
      %9 = arith.minsi %8, %c9 : index loc(#loc71)
      %10 = arith.index_cast %9 : index to i64 loc(#loc71)
      linalg.yield %10 : i64 loc(#loc71)
    } -> tensor<1x3xi64> loc(#loc71)
    %6 = "kv.gather"(%concat, %5, %x1) {df.together, kv.group = "convolution"} : (tensor<1x1x10x64xf32>, tensor<1x3xi64>, tensor<1x1x3x64xf32>) -> tensor<1x1x3x64xf32> loc(#loc71)
    return %collapsed, %6 : tensor<7x64xf32>, tensor<1x1x3x64xf32> loc(#loc71)
  } loc(#loc71)
  func.func private @body.linear_attn.47(%x0: tensor<7x64xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc15))) -> (tensor<1x7x64xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %expanded = tensor.expand_shape %x0 [[0, 1], [2]] output_shape [1, 7, 64] : tensor<7x64xf32> into tensor<1x7x64xf32> loc(#loc71)
    %0 = tensor.empty() : tensor<1x7x64xf32> loc(#loc79)
    %1 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded : tensor<1x7x64xf32>) outs(%0 : tensor<1x7x64xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc9)), %out: f32 loc("model.layers.0.linear_attn"(#loc15))):
      %2 = arith.negf %in : f32 loc(#loc79)
      %3 = math.exp %2 : f32 loc(#loc79)
      %4 = arith.addf %3, %cst : f32 loc(#loc79)
      %5 = arith.divf %cst, %4 : f32 loc(#loc79)
      %6 = arith.mulf %in, %5 : f32 loc(#loc79)
      linalg.yield %6 : f32 loc(#loc79)
    } -> tensor<1x7x64xf32> loc(#loc79)
    return %1 : tensor<1x7x64xf32> loc(#loc79)
  } loc(#loc79)
  func.func private @body.linear_attn.48(%x0: tensor<1x7x2x8xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc22))) -> (tensor<1x7x2x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 2.8284271247461903 : f64 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x2x8xf32> loc(#loc86)
    %1 = tensor.empty() : tensor<1x7x2x1xf32> loc(#loc86)
    %2 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%1 : tensor<1x7x2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x2x1xf32> loc(#loc86)
    %3 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x0 : tensor<1x7x2x8xf32>) outs(%2 : tensor<1x7x2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.mulf %in, %in : f32 loc(#loc86)
      %6 = arith.addf %5, %out : f32 loc(#loc86)
      linalg.yield %6 : f32 loc(#loc86)
    } -> tensor<1x7x2x1xf32> loc(#loc86)
    %4 = linalg.generic {indexing_maps = [#map12, #map18, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %3 : tensor<1x7x2x8xf32>, tensor<1x7x2x1xf32>) outs(%0 : tensor<1x7x2x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc17)), %in_2: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.truncf %cst_1 : f64 to f32 loc(#loc86)
      %6 = arith.addf %in_2, %5 : f32 loc(#loc86)
      %7 = math.rsqrt %6 : f32 loc(#loc86)
      %8 = arith.mulf %in, %7 : f32 loc(#loc86)
      %9 = arith.truncf %cst_0 : f64 to f32 loc(#loc86)
      %10 = arith.divf %8, %9 : f32 loc(#loc86)
      linalg.yield %10 : f32 loc(#loc86)
    } -> tensor<1x7x2x8xf32> loc(#loc86)
    return %4 : tensor<1x7x2x8xf32> loc(#loc86)
  } loc(#loc86)
  func.func private @body.linear_attn.49(%x0: tensor<1x7x2x8xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc22))) -> (tensor<1x7x2x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x2x8xf32> loc(#loc86)
    %1 = tensor.empty() : tensor<1x7x2x1xf32> loc(#loc86)
    %2 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%1 : tensor<1x7x2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x2x1xf32> loc(#loc86)
    %3 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x0 : tensor<1x7x2x8xf32>) outs(%2 : tensor<1x7x2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.mulf %in, %in : f32 loc(#loc86)
      %6 = arith.addf %5, %out : f32 loc(#loc86)
      linalg.yield %6 : f32 loc(#loc86)
    } -> tensor<1x7x2x1xf32> loc(#loc86)
    %4 = linalg.generic {indexing_maps = [#map12, #map18, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %3 : tensor<1x7x2x8xf32>, tensor<1x7x2x1xf32>) outs(%0 : tensor<1x7x2x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.linear_attn"(#loc18)), %in_1: f32 loc("model.layers.0.linear_attn"(#loc22)), %out: f32 loc("model.layers.0.linear_attn"(#loc22))):
      %5 = arith.truncf %cst_0 : f64 to f32 loc(#loc86)
      %6 = arith.addf %in_1, %5 : f32 loc(#loc86)
      %7 = math.rsqrt %6 : f32 loc(#loc86)
      %8 = arith.mulf %in, %7 : f32 loc(#loc86)
      linalg.yield %8 : f32 loc(#loc86)
    } -> tensor<1x7x2x8xf32> loc(#loc86)
    return %4 : tensor<1x7x2x8xf32> loc(#loc86)
  } loc(#loc86)
  func.func private @body.recurrent_chunk(%x0: tensor<1x7x4xf32> {sscc.input = "x0"} loc("model.layers.0.linear_attn"(#loc22)),
      %x1: tensor<1x7x2x8xf32> {sscc.input = "x1"} loc("model.layers.0.linear_attn"(#loc22)),
      %x2: tensor<1x7x2x8xf32> {sscc.input = "x2"} loc("model.layers.0.linear_attn"(#loc22)),
      %x3: tensor<1x7x4x8xf32> {sscc.input = "x3"} loc("model.layers.0.linear_attn"(#loc22)),
      %x4: tensor<1x4x8x8xf32> {sscc.input = "x4"} loc("model.layers.0.linear_attn"(#loc22)),
      %x5: index {sscc.input = "x5"} loc("model.layers.0.linear_attn"(#loc22)),
      %x6: index {sscc.input = "x6"} loc("model.layers.0.linear_attn"(#loc22)),
      %x7: tensor<1x7x4xf32> {sscc.input = "x7"} loc("model.layers.0.linear_attn"(#loc22))) -> (tensor<1x7x4x8xf32> {sscc.output = "y0"}, tensor<1x4x8x8xf32> {sscc.output = "y1"}) attributes {df.body} {
    %expanded = tensor.expand_shape %x0 [[0], [1], [2, 3]] output_shape [1, 7, 4, 1] : tensor<1x7x4xf32> into tensor<1x7x4x1xf32> loc(#loc86)
    %0:2 = "kv.recurrent_chunk"(%x1, %x2, %x3, %expanded, %x4, %x5, %x6, %x7) {kv.group = "recurrence", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0, 1>} : (tensor<1x7x2x8xf32>, tensor<1x7x2x8xf32>, tensor<1x7x4x8xf32>, tensor<1x7x4x1xf32>, tensor<1x4x8x8xf32>, index, index, tensor<1x7x4xf32>) -> (tensor<1x7x4x8xf32>, tensor<1x4x8x8xf32>) loc(#loc86)
    return %0#0, %0#1 : tensor<1x7x4x8xf32>, tensor<1x4x8x8xf32> loc(#loc86)
  } loc(#loc86)
  func.func private @body.out_proj.51(%x0: tensor<28x8xf32> {sscc.input = "x0"} loc("model.layers.0"(#loc26)),
      %x1: tensor<32x32xf32> {sscc.input = "x1"} loc("model.layers.0"(#loc26)),
      %x2: tensor<1x7x32xf32> {sscc.input = "x2"} loc("model.layers.0"(#loc26))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %expanded = tensor.expand_shape %x0 [[0, 1, 2], [3]] output_shape [1, 7, 4, 8] : tensor<28x8xf32> into tensor<1x7x4x8xf32> loc(#loc132)
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc89)
    %1 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x32xf32> loc(#loc89)
    %expanded_0 = tensor.expand_shape %x1 [[0], [1, 2]] output_shape [32, 4, 8] : tensor<32x32xf32> into tensor<32x4x8xf32> loc(#loc89)
    %2 = linalg.generic {indexing_maps = [#map28, #map29, #map27], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction"]} ins(%expanded, %expanded_0 : tensor<1x7x4x8xf32>, tensor<32x4x8xf32>) outs(%1 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_1: f32 loc("model.layers.0.linear_attn.out_proj"(#loc25)), %out: f32 loc(unknown)):
      %4 = arith.mulf %in, %in_1 : f32 loc(#loc)
      %5 = arith.addf %out, %4 : f32 loc(#loc)
      linalg.yield %5 : f32 loc(#loc89)
    } -> tensor<1x7x32xf32> loc(#loc89)
    %3 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x2, %2 : tensor<1x7x32xf32>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.embed_tokens"(#loc1)), %in_1: f32 loc("model.layers.0.linear_attn.out_proj"(#loc25)), %out: f32 loc("model.layers.0"(#loc26))):
      %4 = arith.addf %in, %in_1 : f32 loc(#loc90)
      linalg.yield %4 : f32 loc(#loc90)
    } -> tensor<1x7x32xf32> loc(#loc90)
    return %3 : tensor<1x7x32xf32> loc(#loc90)
  } loc(#loc90)
  func.func private @"body.gate_proj+up_proj.52"(%x0: tensor<16x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.shared_expert"(#loc28)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.shared_expert"(#loc28)),
      %x2: tensor<16x32xf32> {sscc.input = "x2"} loc("model.layers.0.mlp.shared_expert"(#loc28))) -> (tensor<7x16xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x16xf32> loc(#loc93)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x16xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x16xf32> loc(#loc93)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x32xf32>, tensor<16x32xf32>) outs(%1 : tensor<7x16xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_1: f32 loc("model.layers.0.mlp.shared_expert.gate_proj"(#loc28)), %out: f32 loc(unknown)):
      %5 = arith.mulf %in, %in_1 : f32 loc(#loc)
      %6 = arith.addf %out, %5 : f32 loc(#loc)
      linalg.yield %6 : f32 loc(#loc93)
    } -> tensor<7x16xf32> loc(#loc93)
    %3 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x2 : tensor<7x32xf32>, tensor<16x32xf32>) outs(%1 : tensor<7x16xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_1: f32 loc("model.layers.0.mlp.shared_expert.up_proj"(#loc28)), %out: f32 loc(unknown)):
      %5 = arith.mulf %in, %in_1 : f32 loc(#loc)
      %6 = arith.addf %out, %5 : f32 loc(#loc)
      linalg.yield %6 : f32 loc(#loc133)
    } -> tensor<7x16xf32> loc(#loc133)
    %4 = linalg.generic {indexing_maps = [#map5, #map5, #map5], iterator_types = ["parallel", "parallel"]} ins(%2, %3 : tensor<7x16xf32>, tensor<7x16xf32>) outs(%0 : tensor<7x16xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.shared_expert.gate_proj"(#loc28)), %in_1: f32 loc("model.layers.0.mlp.shared_expert.up_proj"(#loc28)), %out: f32 loc("model.layers.0.mlp.shared_expert"(#loc28))):
      %5 = arith.negf %in : f32 loc(#loc134)
      %6 = math.exp %5 : f32 loc(#loc134)
      %7 = arith.addf %6, %cst_0 : f32 loc(#loc134)
      %8 = arith.divf %cst_0, %7 : f32 loc(#loc134)
      %9 = arith.mulf %in, %8 : f32 loc(#loc134)
      %10 = arith.mulf %9, %in_1 : f32 loc(#loc94)
      linalg.yield %10 : f32 loc(#loc94)
    } -> tensor<7x16xf32> loc(#loc94)
    return %4 : tensor<7x16xf32> loc(#loc94)
  } loc(#loc94)
  func.func private @body.down_proj.53(%x0: tensor<32x16xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28)),
      %x1: tensor<7x16xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28))) -> (tensor<7x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x32xf32> loc(#loc89)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x32xf32> loc(#loc89)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x16xf32>, tensor<32x16xf32>) outs(%1 : tensor<7x32xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc95)
    } -> tensor<7x32xf32> loc(#loc95)
    return %2 : tensor<7x32xf32> loc(#loc95)
  } loc(#loc95)
  func.func private @body.gate.54(%x0: tensor<6x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.gate"(#loc29)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.gate"(#loc29))) -> (tensor<7x6xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x6xf32> loc(#loc96)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x6xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x6xf32> loc(#loc96)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x32xf32>, tensor<6x32xf32>) outs(%1 : tensor<7x6xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.mlp.gate"(#loc29)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc96)
    } -> tensor<7x6xf32> loc(#loc96)
    return %2 : tensor<7x6xf32> loc(#loc96)
  } loc(#loc96)
  func.func private @body.gate.55(%x0: tensor<7x6xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.gate"(#loc30))) -> (tensor<7x6xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 0xFF800000 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x1xf32> loc(#loc97)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst_0 : f32 loc(#loc)
    } -> tensor<7x1xf32> loc(#loc97)
    %expanded = tensor.expand_shape %x0 [[0, 1], [2]] output_shape [7, 1, 6] : tensor<7x6xf32> into tensor<7x1x6xf32> loc(#loc97)
    %2 = linalg.generic {indexing_maps = [#map2, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%expanded : tensor<7x1x6xf32>) outs(%1 : tensor<7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.maximumf %in, %out : f32 loc(#loc97)
      linalg.yield %8 : f32 loc(#loc97)
    } -> tensor<7x1xf32> loc(#loc97)
    %3 = tensor.empty() : tensor<7x6xf32> loc(#loc96)
    %4 = linalg.generic {indexing_maps = [#map5, #map11, #map5], iterator_types = ["parallel", "parallel"]} ins(%x0, %2 : tensor<7x6xf32>, tensor<7x1xf32>) outs(%3 : tensor<7x6xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc29)), %in_1: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.subf %in, %in_1 : f32 loc(#loc97)
      %9 = math.exp %8 : f32 loc(#loc97)
      linalg.yield %9 : f32 loc(#loc97)
    } -> tensor<7x6xf32> loc(#loc97)
    %5 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x1xf32> loc(#loc97)
    %6 = linalg.generic {indexing_maps = [#map5, #map11], iterator_types = ["parallel", "reduction"]} ins(%4 : tensor<7x6xf32>) outs(%5 : tensor<7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.addf %in, %out : f32 loc(#loc97)
      linalg.yield %8 : f32 loc(#loc97)
    } -> tensor<7x1xf32> loc(#loc97)
    %7 = linalg.generic {indexing_maps = [#map5, #map11, #map5], iterator_types = ["parallel", "parallel"]} ins(%4, %6 : tensor<7x6xf32>, tensor<7x1xf32>) outs(%3 : tensor<7x6xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc30)), %in_1: f32 loc("model.layers.0.mlp.gate"(#loc30)), %out: f32 loc("model.layers.0.mlp.gate"(#loc30))):
      %8 = arith.divf %in, %in_1 : f32 loc(#loc97)
      linalg.yield %8 : f32 loc(#loc97)
    } -> tensor<7x6xf32> loc(#loc97)
    return %7 : tensor<7x6xf32> loc(#loc97)
  } loc(#loc97)
  func.func private @body.topk.56(%x0: tensor<7x6xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.gate"(#loc31))) -> (tensor<7x2xf32> {sscc.output = "y0"}, tensor<7x2xi64> {sscc.output = "y1"}) attributes {df.body} {
    %0:2 = "kv.topk"(%x0) : (tensor<7x6xf32>) -> (tensor<7x2xf32>, tensor<7x2xi64>) loc(#loc98)
    return %0#0, %0#1 : tensor<7x2xf32>, tensor<7x2xi64> loc(#loc98)
  } loc(#loc98)
  func.func private @"body.gate+experts.57"(%x0: tensor<7x2xf32> {sscc.input = "x0"} loc("model.layers.0"(#loc34)),
      %x1: tensor<7x2x32xf32> {sscc.input = "x1"} loc("model.layers.0"(#loc34)),
      %x2: tensor<7x1xf32> {sscc.input = "x2"} loc("model.layers.0"(#loc34)),
      %x3: tensor<7x32xf32> {sscc.input = "x3"} loc("model.layers.0"(#loc34)),
      %x4: tensor<1x7x32xf32> {sscc.input = "x4"} loc("model.layers.0"(#loc34))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x1xf32> loc(#loc97)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x1xf32> loc(#loc97)
    %2 = linalg.generic {indexing_maps = [#map5, #map11], iterator_types = ["parallel", "reduction"]} ins(%x0 : tensor<7x2xf32>) outs(%1 : tensor<7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc31)), %out: f32 loc("model.layers.0.mlp.gate"(#loc59))):
      %11 = arith.addf %in, %out : f32 loc(#loc135)
      linalg.yield %11 : f32 loc(#loc135)
    } -> tensor<7x1xf32> loc(#loc135)
    %3 = tensor.empty() : tensor<7x2xf32> loc(#loc135)
    %4 = linalg.generic {indexing_maps = [#map5, #map11, #map5], iterator_types = ["parallel", "parallel"]} ins(%x0, %2 : tensor<7x2xf32>, tensor<7x1xf32>) outs(%3 : tensor<7x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.gate"(#loc31)), %in_2: f32 loc("model.layers.0.mlp.gate"(#loc59)), %out: f32 loc("model.layers.0.mlp.gate"(#loc59))):
      %11 = arith.divf %in, %in_2 : f32 loc(#loc135)
      linalg.yield %11 : f32 loc(#loc135)
    } -> tensor<7x2xf32> loc(#loc135)
    %expanded = tensor.expand_shape %4 [[0], [1, 2]] output_shape [7, 2, 1] : tensor<7x2xf32> into tensor<7x2x1xf32> loc(#loc99)
    %5 = tensor.empty() : tensor<7x32xf32> loc(#loc89)
    %6 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%5 : tensor<7x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x32xf32> loc(#loc89)
    %7 = linalg.generic {indexing_maps = [#map2, #map4, #map9], iterator_types = ["parallel", "reduction", "parallel"]} ins(%x1, %expanded : tensor<7x2x32xf32>, tensor<7x2x1xf32>) outs(%6 : tensor<7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.experts"(#loc32)), %in_2: f32 loc("model.layers.0.mlp.experts"(#loc32)), %out: f32 loc("model.layers.0.mlp.experts"(#loc32))):
      %11 = arith.mulf %in, %in_2 : f32 loc(#loc99)
      %12 = arith.addf %11, %out : f32 loc(#loc99)
      linalg.yield %12 : f32 loc(#loc99)
    } -> tensor<7x32xf32> loc(#loc99)
    %8 = linalg.generic {indexing_maps = [#map5, #map11, #map5, #map5], iterator_types = ["parallel", "parallel"]} ins(%7, %x2, %x3 : tensor<7x32xf32>, tensor<7x1xf32>, tensor<7x32xf32>) outs(%5 : tensor<7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.experts"(#loc32)), %in_2: f32 loc("model.layers.0.mlp.shared_expert_gate"(#loc33)), %in_3: f32 loc("model.layers.0.mlp.shared_expert.down_proj"(#loc28)), %out: f32 loc("model.layers.0.mlp"(#loc60))):
      %11 = arith.negf %in_2 : f32 loc(#loc137)
      %12 = math.exp %11 : f32 loc(#loc137)
      %13 = arith.addf %12, %cst_0 : f32 loc(#loc137)
      %14 = arith.divf %cst_0, %13 : f32 loc(#loc137)
      %15 = arith.mulf %14, %in_3 : f32 loc(#loc137)
      %16 = arith.addf %in, %15 : f32 loc(#loc136)
      linalg.yield %16 : f32 loc(#loc136)
    } -> tensor<7x32xf32> loc(#loc136)
    %expanded_1 = tensor.expand_shape %8 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc138)
    %9 = tensor.empty() : tensor<1x7x32xf32> loc(#loc72)
    %10 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x4, %expanded_1 : tensor<1x7x32xf32>, tensor<1x7x32xf32>) outs(%9 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0"(#loc26)), %in_2: f32 loc("model.layers.0.mlp"(#loc61)), %out: f32 loc("model.layers.0"(#loc34))):
      %11 = arith.addf %in, %in_2 : f32 loc(#loc101)
      linalg.yield %11 : f32 loc(#loc101)
    } -> tensor<1x7x32xf32> loc(#loc101)
    return %10 : tensor<1x7x32xf32> loc(#loc101)
  } loc(#loc101)
  func.func private @body.expert_product.58(%x0: tensor<7x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x1: tensor<6x32x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x2: tensor<7x2xi64> {sscc.input = "x2"} loc("model.layers.0.mlp.experts"(#loc32))) -> (tensor<7x2x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %expanded = tensor.expand_shape %x0 [[0], [1, 2]] output_shape [7, 1, 32] : tensor<7x32xf32> into tensor<7x1x32xf32> loc(#loc99)
    %0 = "kv.expert_product"(%expanded, %x1, %x2) : (tensor<7x1x32xf32>, tensor<6x32x32xf32>, tensor<7x2xi64>) -> tensor<7x2x32xf32> loc(#loc99)
    return %0 : tensor<7x2x32xf32> loc(#loc99)
  } loc(#loc99)
  func.func private @body.experts.59(%x0: tensor<7x2x16xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x1: tensor<7x2x16xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.experts"(#loc32))) -> (tensor<7x2x16xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x2x16xf32> loc(#loc139)
    %1 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<7x2x16xf32>, tensor<7x2x16xf32>) outs(%0 : tensor<7x2x16xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp.experts"(#loc32)), %in_0: f32 loc("model.layers.0.mlp.experts"(#loc32)), %out: f32 loc("model.layers.0.mlp.experts"(#loc32))):
      %2 = arith.negf %in : f32 loc(#loc139)
      %3 = math.exp %2 : f32 loc(#loc139)
      %4 = arith.addf %3, %cst : f32 loc(#loc139)
      %5 = arith.divf %cst, %4 : f32 loc(#loc139)
      %6 = arith.mulf %in, %5 : f32 loc(#loc139)
      %7 = arith.mulf %6, %in_0 : f32 loc(#loc99)
      linalg.yield %7 : f32 loc(#loc99)
    } -> tensor<7x2x16xf32> loc(#loc99)
    return %1 : tensor<7x2x16xf32> loc(#loc99)
  } loc(#loc99)
  func.func private @body.expert_product.60(%x0: tensor<7x2x16xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x1: tensor<6x32x16xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.experts"(#loc32)),
      %x2: tensor<7x2xi64> {sscc.input = "x2"} loc("model.layers.0.mlp.experts"(#loc32))) -> (tensor<7x2x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.expert_product"(%x0, %x1, %x2) : (tensor<7x2x16xf32>, tensor<6x32x16xf32>, tensor<7x2xi64>) -> tensor<7x2x32xf32> loc(#loc99)
    return %0 : tensor<7x2x32xf32> loc(#loc99)
  } loc(#loc99)
  func.func private @body.shared_expert_gate.61(%x0: tensor<1x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp.shared_expert_gate"(#loc33)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp.shared_expert_gate"(#loc33))) -> (tensor<7x1xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x1xf32> loc(#loc97)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x1xf32> loc(#loc97)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x32xf32>, tensor<1x32xf32>) outs(%1 : tensor<7x1xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.0.mlp.shared_expert_gate"(#loc33)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc100)
    } -> tensor<7x1xf32> loc(#loc100)
    return %2 : tensor<7x1xf32> loc(#loc100)
  } loc(#loc100)
  func.func private @body.index_cast(%x0: index {sscc.input = "x0"} loc("compress.0"(#loc71))) -> (tensor<1x3xi64> {sscc.output = "y0"}) attributes {df.body} {
    %c3 = arith.constant 3 : index loc(#loc)
    %c2 = arith.constant 2 : index loc(#loc)
    %0 = tensor.empty() : tensor<1x3xi64> loc(#loc146)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<1x3xi64>) {
    ^bb0(%out: i64 loc("compress.0"(#loc71))):
      %2 = arith.muli %x0, %c2 : index loc(#loc146)
      %3 = linalg.index 1 : index loc(#loc146)
      %4 = arith.addi %3, %2 : index loc(#loc146)
      %5 = arith.remsi %4, %c3 : index loc(#loc146)
      %6 = arith.index_cast %5 : index to i64 loc(#loc146)
      linalg.yield %6 : i64 loc(#loc146)
    } -> tensor<1x3xi64> loc(#loc146)
    return %1 : tensor<1x3xi64> loc(#loc146)
  } loc(#loc146)
  func.func private @body.gather.63(%x0: tensor<1x1x3x64xf32> {sscc.input = "x0"} loc("compress.0"(#loc71)),
      %x1: tensor<1x3xi64> {sscc.input = "x1"} loc("compress.0"(#loc71)),
      %x2: tensor<1x1x3x64xf32> {sscc.input = "x2"} loc("compress.0"(#loc71))) -> (tensor<1x1x3x64xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.gather"(%x0, %x1, %x2) {kv.group = "convolution"} : (tensor<1x1x3x64xf32>, tensor<1x3xi64>, tensor<1x1x3x64xf32>) -> tensor<1x1x3x64xf32> loc(#loc146)
    return %0 : tensor<1x1x3x64xf32> loc(#loc146)
  } loc(#loc146)
  func.func private @body.q_proj.64(%x0: tensor<64x32xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn.q_proj"(#loc37)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn.q_proj"(#loc37))) -> (tensor<7x64xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x64xf32> loc(#loc105)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x64xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x64xf32> loc(#loc105)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x32xf32>, tensor<64x32xf32>) outs(%1 : tensor<7x64xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.1.self_attn.q_proj"(#loc37)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc105)
    } -> tensor<7x64xf32> loc(#loc105)
    return %2 : tensor<7x64xf32> loc(#loc105)
  } loc(#loc105)
  func.func private @body.self_attn.65(%x0: tensor<1x7x4x8xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc42)),
      %x1: tensor<1x4x7x8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc42))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x4x8xf32> loc(#loc113)
    %1 = linalg.generic {indexing_maps = [#map21, #map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x1, %x0 : tensor<1x4x7x8xf32>, tensor<1x7x4x8xf32>) outs(%0 : tensor<1x7x4x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc36)), %in_0: f32 loc("model.layers.1.self_attn"(#loc62)), %out: f32 loc("model.layers.1.self_attn"(#loc42))):
      %2 = arith.negf %in_0 : f32 loc(#loc113)
      %3 = math.exp %2 : f32 loc(#loc113)
      %4 = arith.addf %3, %cst : f32 loc(#loc113)
      %5 = arith.divf %cst, %4 : f32 loc(#loc113)
      %6 = arith.mulf %in, %5 : f32 loc(#loc113)
      linalg.yield %6 : f32 loc(#loc113)
    } -> tensor<1x7x4x8xf32> loc(#loc113)
    %collapsed = tensor.collapse_shape %1 [[0], [1], [2, 3]] : tensor<1x7x4x8xf32> into tensor<1x7x32xf32> loc(#loc113)
    return %collapsed : tensor<1x7x32xf32> loc(#loc113)
  } loc(#loc113)
  func.func private @body.q_norm.66(%x0: tensor<1x7x4x8xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc41)),
      %x1: tensor<8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc41)),
      %x2: tensor<1x1x7x2xf32> {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc41)),
      %x3: tensor<1x1x7x2xf32> {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc41))) -> (tensor<1x4x7x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc)
    %cst_2 = arith.constant 8.000000e+00 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x4x1xf32> loc(#loc108)
    %1 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<1x7x4x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x4x1xf32> loc(#loc108)
    %2 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x0 : tensor<1x7x4x8xf32>) outs(%1 : tensor<1x7x4x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc38)), %out: f32 loc("model.layers.1.self_attn.q_norm"(#loc5))):
      %9 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc108)
      %10 = arith.addf %9, %out : f32 loc(#loc108)
      linalg.yield %10 : f32 loc(#loc108)
    } -> tensor<1x7x4x1xf32> loc(#loc108)
    %3 = tensor.empty() : tensor<1x4x7x8xf32> loc(#loc141)
    %4 = linalg.generic {indexing_maps = [#map21, #map22, #map23, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %2, %x1 : tensor<1x7x4x8xf32>, tensor<1x7x4x1xf32>, tensor<8xf32>) outs(%3 : tensor<1x4x7x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc38)), %in_7: f32 loc("model.layers.1.self_attn.q_norm"(#loc5)), %in_8: f32 loc("model.layers.1.self_attn.q_norm"(#loc6)), %out: f32 loc("model.layers.1.self_attn"(#loc63))):
      %9 = arith.addf %in_8, %cst_0 : f32 loc(#loc142)
      %10 = arith.divf %in_7, %cst_2 : f32 loc(#loc108)
      %11 = arith.truncf %cst_1 : f64 to f32 loc(#loc108)
      %12 = arith.addf %10, %11 : f32 loc(#loc108)
      %13 = math.rsqrt %12 : f32 loc(#loc108)
      %14 = arith.mulf %in, %13 : f32 loc(#loc108)
      %15 = arith.mulf %14, %9 : f32 loc(#loc142)
      linalg.yield %15 : f32 loc(#loc141)
    } -> tensor<1x4x7x8xf32> loc(#loc141)
    %extracted_slice = tensor.extract_slice %4[0, 0, 0, 0] [1, 4, 7, 2] [1, 1, 1, 1] : tensor<1x4x7x8xf32> to tensor<1x4x7x2xf32> loc(#loc112)
    %extracted_slice_3 = tensor.extract_slice %4[0, 0, 0, 2] [1, 4, 7, 6] [1, 1, 1, 1] : tensor<1x4x7x8xf32> to tensor<1x4x7x6xf32> loc(#loc112)
    %5 = tensor.empty() : tensor<1x4x7x2xf32> loc(#loc112)
    %extracted_slice_4 = tensor.extract_slice %extracted_slice[0, 0, 0, 0] [1, 4, 7, 1] [1, 1, 1, 1] : tensor<1x4x7x2xf32> to tensor<1x4x7x1xf32> loc(#loc112)
    %extracted_slice_5 = tensor.extract_slice %extracted_slice[0, 0, 0, 1] [1, 4, 7, 1] [1, 1, 1, 1] : tensor<1x4x7x2xf32> to tensor<1x4x7x1xf32> loc(#loc112)
    %6 = tensor.empty() : tensor<1x4x7x1xf32> loc(#loc112)
    %7 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice_5 : tensor<1x4x7x1xf32>) outs(%6 : tensor<1x4x7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.negf %in : f32 loc(#loc112)
      linalg.yield %9 : f32 loc(#loc112)
    } -> tensor<1x4x7x1xf32> loc(#loc112)
    %concat = tensor.concat dim(3) %7, %extracted_slice_4 : (tensor<1x4x7x1xf32>, tensor<1x4x7x1xf32>) -> tensor<1x4x7x2xf32> loc(#loc112)
    %8 = linalg.generic {indexing_maps = [#map12, #map24, #map12, #map24, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice, %x2, %concat, %x3 : tensor<1x4x7x2xf32>, tensor<1x1x7x2xf32>, tensor<1x4x7x2xf32>, tensor<1x1x7x2xf32>) outs(%5 : tensor<1x4x7x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %in_7: f32 loc("model.layers.1.self_attn"(#loc41)), %in_8: f32 loc("model.layers.1.self_attn"(#loc41)), %in_9: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.mulf %in_8, %in_9 : f32 loc(#loc112)
      %10 = arith.mulf %in, %in_7 : f32 loc(#loc112)
      %11 = arith.addf %10, %9 : f32 loc(#loc112)
      linalg.yield %11 : f32 loc(#loc112)
    } -> tensor<1x4x7x2xf32> loc(#loc112)
    %concat_6 = tensor.concat dim(3) %8, %extracted_slice_3 : (tensor<1x4x7x2xf32>, tensor<1x4x7x6xf32>) -> tensor<1x4x7x8xf32> loc(#loc112)
    return %concat_6 : tensor<1x4x7x8xf32> loc(#loc112)
  } loc(#loc112)
  func.func private @body.k_proj.67(%x0: tensor<16x32xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn.k_proj"(#loc39)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn.k_proj"(#loc39))) -> (tensor<7x16xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<7x16xf32> loc(#loc109)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<7x16xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<7x16xf32> loc(#loc109)
    %2 = linalg.generic {indexing_maps = [#map9, #map10, #map1], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<7x32xf32>, tensor<16x32xf32>) outs(%1 : tensor<7x16xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.1.self_attn.k_proj"(#loc39)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc109)
    } -> tensor<7x16xf32> loc(#loc109)
    return %2 : tensor<7x16xf32> loc(#loc109)
  } loc(#loc109)
  func.func private @body.k_norm.68(%x0: tensor<7x16xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc41)),
      %x1: tensor<8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc41)),
      %x2: tensor<1x1x7x2xf32> {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc41)),
      %x3: tensor<1x1x7x2xf32> {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc41))) -> (tensor<1x2x7x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc)
    %cst_2 = arith.constant 8.000000e+00 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %expanded = tensor.expand_shape %x0 [[0, 1], [2, 3]] output_shape [1, 7, 2, 8] : tensor<7x16xf32> into tensor<1x7x2x8xf32> loc(#loc143)
    %0 = tensor.empty() : tensor<1x7x2x1xf32> loc(#loc110)
    %1 = linalg.generic {indexing_maps = [#map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} outs(%0 : tensor<1x7x2x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x2x1xf32> loc(#loc110)
    %2 = linalg.generic {indexing_maps = [#map12, #map18], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%expanded : tensor<1x7x2x8xf32>) outs(%1 : tensor<1x7x2x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc39)), %out: f32 loc("model.layers.1.self_attn.k_norm"(#loc5))):
      %9 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc110)
      %10 = arith.addf %9, %out : f32 loc(#loc110)
      linalg.yield %10 : f32 loc(#loc110)
    } -> tensor<1x7x2x1xf32> loc(#loc110)
    %3 = tensor.empty() : tensor<1x2x7x8xf32> loc(#loc143)
    %4 = linalg.generic {indexing_maps = [#map21, #map22, #map23, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded, %2, %x1 : tensor<1x7x2x8xf32>, tensor<1x7x2x1xf32>, tensor<8xf32>) outs(%3 : tensor<1x2x7x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc39)), %in_7: f32 loc("model.layers.1.self_attn.k_norm"(#loc5)), %in_8: f32 loc("model.layers.1.self_attn.k_norm"(#loc6)), %out: f32 loc("model.layers.1.self_attn"(#loc39))):
      %9 = arith.addf %in_8, %cst_0 : f32 loc(#loc144)
      %10 = arith.divf %in_7, %cst_2 : f32 loc(#loc110)
      %11 = arith.truncf %cst_1 : f64 to f32 loc(#loc110)
      %12 = arith.addf %10, %11 : f32 loc(#loc110)
      %13 = math.rsqrt %12 : f32 loc(#loc110)
      %14 = arith.mulf %in, %13 : f32 loc(#loc110)
      %15 = arith.mulf %14, %9 : f32 loc(#loc144)
      linalg.yield %15 : f32 loc(#loc143)
    } -> tensor<1x2x7x8xf32> loc(#loc143)
    %extracted_slice = tensor.extract_slice %4[0, 0, 0, 0] [1, 2, 7, 2] [1, 1, 1, 1] : tensor<1x2x7x8xf32> to tensor<1x2x7x2xf32> loc(#loc112)
    %extracted_slice_3 = tensor.extract_slice %4[0, 0, 0, 2] [1, 2, 7, 6] [1, 1, 1, 1] : tensor<1x2x7x8xf32> to tensor<1x2x7x6xf32> loc(#loc112)
    %5 = tensor.empty() : tensor<1x2x7x2xf32> loc(#loc112)
    %extracted_slice_4 = tensor.extract_slice %extracted_slice[0, 0, 0, 0] [1, 2, 7, 1] [1, 1, 1, 1] : tensor<1x2x7x2xf32> to tensor<1x2x7x1xf32> loc(#loc112)
    %extracted_slice_5 = tensor.extract_slice %extracted_slice[0, 0, 0, 1] [1, 2, 7, 1] [1, 1, 1, 1] : tensor<1x2x7x2xf32> to tensor<1x2x7x1xf32> loc(#loc112)
    %6 = tensor.empty() : tensor<1x2x7x1xf32> loc(#loc112)
    %7 = linalg.generic {indexing_maps = [#map12, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice_5 : tensor<1x2x7x1xf32>) outs(%6 : tensor<1x2x7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.negf %in : f32 loc(#loc112)
      linalg.yield %9 : f32 loc(#loc112)
    } -> tensor<1x2x7x1xf32> loc(#loc112)
    %concat = tensor.concat dim(3) %7, %extracted_slice_4 : (tensor<1x2x7x1xf32>, tensor<1x2x7x1xf32>) -> tensor<1x2x7x2xf32> loc(#loc112)
    %8 = linalg.generic {indexing_maps = [#map12, #map24, #map12, #map24, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%extracted_slice, %x2, %concat, %x3 : tensor<1x2x7x2xf32>, tensor<1x1x7x2xf32>, tensor<1x2x7x2xf32>, tensor<1x1x7x2xf32>) outs(%5 : tensor<1x2x7x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc41)), %in_7: f32 loc("model.layers.1.self_attn"(#loc41)), %in_8: f32 loc("model.layers.1.self_attn"(#loc41)), %in_9: f32 loc("model.layers.1.self_attn"(#loc41)), %out: f32 loc("model.layers.1.self_attn"(#loc41))):
      %9 = arith.mulf %in_8, %in_9 : f32 loc(#loc112)
      %10 = arith.mulf %in, %in_7 : f32 loc(#loc112)
      %11 = arith.addf %10, %9 : f32 loc(#loc112)
      linalg.yield %11 : f32 loc(#loc112)
    } -> tensor<1x2x7x2xf32> loc(#loc112)
    %concat_6 = tensor.concat dim(3) %8, %extracted_slice_3 : (tensor<1x2x7x2xf32>, tensor<1x2x7x6xf32>) -> tensor<1x2x7x8xf32> loc(#loc112)
    return %concat_6 : tensor<1x2x7x8xf32> loc(#loc112)
  } loc(#loc112)
  func.func private @body.chunk_attention(%x0: tensor<7x16xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc36)),
      %x1: tensor<1x4x7x8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc36)),
      %x2: tensor<1x2x7x8xf32> {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc36)),
      %x3: tensor<1x2x196x8xf32> {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc36)),
      %x4: tensor<1x2x196x8xf32> {sscc.input = "x4"} loc("model.layers.1.self_attn"(#loc36)),
      %x5: index {sscc.input = "x5"} loc("model.layers.1.self_attn"(#loc36)),
      %x6: index {sscc.input = "x6"} loc("model.layers.1.self_attn"(#loc36))) -> (tensor<1x4x7x8xf32> {sscc.output = "y0"}, tensor<1x4x7x1xf32> {sscc.output = "y1"}, tensor<1x2x196x8xf32> {sscc.output = "y2"}, tensor<1x2x196x8xf32> {sscc.output = "y3"}) attributes {df.body} {
    %expanded = tensor.expand_shape %x0 [[0, 1], [2, 3]] output_shape [1, 7, 2, 8] : tensor<7x16xf32> into tensor<1x7x2x8xf32> loc(#loc145)
    %0 = tensor.empty() : tensor<1x2x7x8xf32> loc(#loc143)
    %1 = linalg.generic {indexing_maps = [#map21, #map12], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%expanded : tensor<1x7x2x8xf32>) outs(%0 : tensor<1x2x7x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.1.self_attn"(#loc40)), %out: f32 loc("model.layers.1.self_attn"(#loc40))):
      linalg.yield %in : f32 loc(#loc145)
    } -> tensor<1x2x7x8xf32> loc(#loc145)
    %2:4 = "kv.chunk_attention"(%x1, %x2, %1, %x3, %x4, %x5, %x6) {scale = 0.35355339059327379 : f64} : (tensor<1x4x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>, index, index) -> (tensor<1x4x7x8xf32>, tensor<1x4x7x1xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32>) loc(#loc102)
    return %2#0, %2#1, %2#2, %2#3 : tensor<1x4x7x8xf32>, tensor<1x4x7x1xf32>, tensor<1x2x196x8xf32>, tensor<1x2x196x8xf32> loc(#loc102)
  } loc(#loc102)
  func.func private @body.observe(%x0: tensor<1x4x6x8xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc36)),
      %x1: tensor<1x4x7x8xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc36)),
      %x2: index {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc36)),
      %x3: index {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc36))) -> (tensor<1x4x6x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.observe"(%x0, %x1, %x2, %x3) : (tensor<1x4x6x8xf32>, tensor<1x4x7x8xf32>, index, index) -> tensor<1x4x6x8xf32> loc(#loc102)
    return %0 : tensor<1x4x6x8xf32> loc(#loc102)
  } loc(#loc102)
  func.func private @body.observe.71(%x0: tensor<1x4x6x1xf32> {sscc.input = "x0"} loc("model.layers.1.self_attn"(#loc36)),
      %x1: tensor<1x4x7x1xf32> {sscc.input = "x1"} loc("model.layers.1.self_attn"(#loc36)),
      %x2: index {sscc.input = "x2"} loc("model.layers.1.self_attn"(#loc36)),
      %x3: index {sscc.input = "x3"} loc("model.layers.1.self_attn"(#loc36))) -> (tensor<1x4x6x1xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.observe"(%x0, %x1, %x2, %x3) : (tensor<1x4x6x1xf32>, tensor<1x4x7x1xf32>, index, index) -> tensor<1x4x6x1xf32> loc(#loc102)
    return %0 : tensor<1x4x6x1xf32> loc(#loc102)
  } loc(#loc102)
  func.func private @body.o_proj.72(%x0: tensor<32x32xf32> {sscc.input = "x0"} loc("model.layers.1"(#loc26)),
      %x1: tensor<1x7x32xf32> {sscc.input = "x1"} loc("model.layers.1"(#loc26)),
      %x2: tensor<1x7x32xf32> {sscc.input = "x2"} loc("model.layers.1"(#loc26))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc114)
    %1 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x32xf32> loc(#loc114)
    %2 = linalg.generic {indexing_maps = [#map30, #map14, #map31], iterator_types = ["parallel", "parallel", "parallel", "reduction"]} ins(%x1, %x0 : tensor<1x7x32xf32>, tensor<32x32xf32>) outs(%1 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("model.layers.1.self_attn.o_proj"(#loc43)), %out: f32 loc(unknown)):
      %4 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %5 = arith.addf %out, %4 : f32 loc(#loc)
      linalg.yield %5 : f32 loc(#loc114)
    } -> tensor<1x7x32xf32> loc(#loc114)
    %3 = linalg.generic {indexing_maps = [#map2, #map2, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x2, %2 : tensor<1x7x32xf32>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0"(#loc34)), %in_0: f32 loc("model.layers.1.self_attn.o_proj"(#loc43)), %out: f32 loc("model.layers.1"(#loc26))):
      %4 = arith.addf %in, %in_0 : f32 loc(#loc115)
      linalg.yield %4 : f32 loc(#loc115)
    } -> tensor<1x7x32xf32> loc(#loc115)
    return %3 : tensor<1x7x32xf32> loc(#loc115)
  } loc(#loc115)
  func.func private @body.select(%x0: tensor<1x4x6x8xf32> {sscc.input = "x0"} loc("compress.1"(#loc102)),
      %x1: tensor<1x4x6x1xf32> {sscc.input = "x1"} loc("compress.1"(#loc102)),
      %x2: tensor<1x2x196x8xf32> {sscc.input = "x2"} loc("compress.1"(#loc102)),
      %x3: index {sscc.input = "x3"} loc("compress.1"(#loc102)),
      %x4: index {sscc.input = "x4"} loc("compress.1"(#loc102))) -> (tensor<2x12xi64> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.observation_scores"(%x0, %x1, %x2, %x3) {scale = 0.35355339059327379 : f64} : (tensor<1x4x6x8xf32>, tensor<1x4x6x1xf32>, tensor<1x2x196x8xf32>, index) -> tensor<2x196xf32> loc(#loc148)
    %1 = "kv.pool"(%0, %x3) : (tensor<2x196xf32>, index) -> tensor<2x196xf32> loc(#loc148)
    %2 = "kv.select"(%1, %x3, %x4) : (tensor<2x196xf32>, index, index) -> tensor<2x12xi64> loc(#loc148)
    return %2 : tensor<2x12xi64> loc(#loc148)
  } loc(#loc148)
  func.func private @body.kept_positions(%x0: index {sscc.input = "x0"} loc("compress.1"(#loc102)),
      %x1: index {sscc.input = "x1"} loc("compress.1"(#loc102)),
      %x2: tensor<2x12xi64> {sscc.input = "x2"} loc("compress.1"(#loc102))) -> (tensor<2x88xi64> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.kept_positions"(%x0, %x1, %x2) : (index, index, tensor<2x12xi64>) -> tensor<2x88xi64> loc(#loc148)
    return %0 : tensor<2x88xi64> loc(#loc148)
  } loc(#loc148)
  func.func private @body.gather.75(%x0: tensor<1x2x196x8xf32> {sscc.input = "x0"} loc("compress.1"(#loc102)),
      %x1: tensor<2x88xi64> {sscc.input = "x1"} loc("compress.1"(#loc102)),
      %x2: tensor<1x2x88x8xf32> {sscc.input = "x2"} loc("compress.1"(#loc102))) -> (tensor<1x2x88x8xf32> {sscc.output = "y0"}) attributes {df.body} {
    %0 = "kv.gather"(%x0, %x1, %x2) : (tensor<1x2x196x8xf32>, tensor<2x88xi64>, tensor<1x2x88x8xf32>) -> tensor<1x2x88x8xf32> loc(#loc148)
    return %0 : tensor<1x2x88x8xf32> loc(#loc148)
  } loc(#loc148)
  func.func private @body.norm.76(%x0: index {sscc.input = "x0"} loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1195:0),
      %x1: tensor<1x7x32xf32> {sscc.input = "x1"} loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1195:0),
      %x2: tensor<32xf32> {sscc.input = "x2"} loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1195:0)) -> (tensor<1x1x32xf32> {sscc.output = "y0"}) attributes {df.body} {
    %c0 = arith.constant 0 : index loc(#loc)
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %c32_i64 = arith.constant 32 : i64 loc(#loc)
    %c7_i64 = arith.constant 7 : i64 loc(#loc)
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %cst_0 = arith.constant 1.000000e+00 : f32 loc(#loc)
    %cst_1 = arith.constant 9.9999999999999995E-7 : f64 loc(#loc)
    %cst_2 = arith.constant 3.200000e+01 : f32 loc(#loc)
    %c2_i64 = arith.constant 2 : i64 loc(#loc)
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc68)
    %1 = tensor.empty() : tensor<1x7x1xf32> loc(#loc68)
    %2 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%1 : tensor<1x7x1xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x7x1xf32> loc(#loc68)
    %3 = linalg.generic {indexing_maps = [#map2, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x1 : tensor<1x7x32xf32>) outs(%2 : tensor<1x7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.1"(#loc34)), %out: f32 loc("model.norm"(#loc5))):
      %7 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc68)
      %8 = arith.addf %7, %out : f32 loc(#loc68)
      linalg.yield %8 : f32 loc(#loc68)
    } -> tensor<1x7x1xf32> loc(#loc68)
    %4 = linalg.generic {indexing_maps = [#map2, #map4, #map3, #map2], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x1, %3, %x2 : tensor<1x7x32xf32>, tensor<1x7x1xf32>, tensor<32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.1"(#loc34)), %in_3: f32 loc("model.norm"(#loc5)), %in_4: f32 loc("model.norm"(#loc6)), %out: f32 loc("model.norm"(#loc6))):
      %7 = arith.addf %in_4, %cst_0 : f32 loc(#loc69)
      %8 = arith.divf %in_3, %cst_2 : f32 loc(#loc68)
      %9 = arith.truncf %cst_1 : f64 to f32 loc(#loc68)
      %10 = arith.addf %8, %9 : f32 loc(#loc68)
      %11 = math.rsqrt %10 : f32 loc(#loc68)
      %12 = arith.mulf %in, %11 : f32 loc(#loc68)
      %13 = arith.mulf %12, %7 : f32 loc(#loc69)
      linalg.yield %13 : f32 loc(#loc69)
    } -> tensor<1x7x32xf32> loc(#loc69)
    %5 = tensor.empty() : tensor<1x1x32xf32> loc(#loc49)
    %6 = linalg.generic {indexing_maps = [#map2], iterator_types = ["parallel", "parallel", "parallel"]} outs(%5 : tensor<1x1x32xf32>) {
    ^bb0(%out: f32 loc("transformers/models/qwen3_next/modeling_qwen3_next.py":1195:0)):
      %7 = linalg.index 2 : index loc(#loc49)
      %8 = arith.index_cast %7 : index to i64 loc(#loc49)
      %9 = arith.index_cast %x0 : index to i64 loc(#loc48)
      %10 = arith.cmpi slt, %9, %c0_i64 : i64 loc(#loc49)
      %11 = arith.addi %9, %c7_i64 : i64 loc(#loc49)
      %12 = arith.select %10, %11, %9 : i64 loc(#loc49)
      %13 = arith.index_cast %12 : i64 to index loc(#loc49)
      %14 = arith.cmpi slt, %8, %c0_i64 : i64 loc(#loc49)
      %15 = arith.addi %8, %c32_i64 : i64 loc(#loc49)
      %16 = arith.select %14, %15, %8 : i64 loc(#loc49)
      %17 = arith.index_cast %16 : i64 to index loc(#loc49)
      %extracted = tensor.extract %4[%c0, %13, %17] : tensor<1x7x32xf32> loc(#loc49)
      linalg.yield %extracted : f32 loc(#loc49)
    } -> tensor<1x1x32xf32> loc(#loc49)
    return %6 : tensor<1x1x32xf32> loc(#loc49)
  } loc(#loc49)
  func.func private @body.lm_head.77(%x0: tensor<96x32xf32> {sscc.input = "x0"} loc("lm_head"(#loc7)),
      %x1: tensor<1x1x32xf32> {sscc.input = "x1"} loc("lm_head"(#loc7))) -> (tensor<1x96xf32> {sscc.output = "y0"}) attributes {df.body} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<1x96xf32> loc(#loc70)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<1x96xf32>) {
    ^bb0(%out: f32 loc(unknown)):
      linalg.yield %cst : f32 loc(#loc)
    } -> tensor<1x96xf32> loc(#loc70)
    %expanded = tensor.expand_shape %x0 [[0], [1, 2]] output_shape [96, 1, 32] : tensor<96x32xf32> into tensor<96x1x32xf32> loc(#loc70)
    %2 = linalg.generic {indexing_maps = [#map6, #map7, #map8], iterator_types = ["parallel", "parallel", "reduction", "reduction"]} ins(%x1, %expanded : tensor<1x1x32xf32>, tensor<96x1x32xf32>) outs(%1 : tensor<1x96xf32>) {
    ^bb0(%in: f32 loc(unknown), %in_0: f32 loc("lm_head"(#loc7)), %out: f32 loc(unknown)):
      %3 = arith.mulf %in, %in_0 : f32 loc(#loc)
      %4 = arith.addf %out, %3 : f32 loc(#loc)
      linalg.yield %4 : f32 loc(#loc70)
    } -> tensor<1x96xf32> loc(#loc70)
    return %2 : tensor<1x96xf32> loc(#loc70)
  } loc(#loc70)
} loc(#loc)
#loc13 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":681:0)
#loc16 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":712:0)
#loc19 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":723:0)
#loc27 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":859:0)
#loc45 = loc("progress")
#loc57 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":71:0)
#loc58 = loc("transformers/models/qwen3_next/modeling_qwen3_next.py":765:0)
#loc77 = loc("model.layers.0.linear_attn"(#loc13))
#loc80 = loc("model.layers.0.linear_attn"(#loc16))
#loc83 = loc("model.layers.0.linear_attn"(#loc19))
#loc91 = loc("model.layers.0.post_attention_layernorm"(#loc6))
#loc92 = loc("model.layers.0.mlp"(#loc27))
#loc103 = loc("model.layers.1.input_layernorm"(#loc5))
#loc104 = loc("model.layers.1.input_layernorm"(#loc6))
#loc106 = loc("model.layers.1.self_attn"(#loc37))
#loc111 = loc("model.layers.1.self_attn.v_proj"(#loc40))
#loc116 = loc("model.layers.1.post_attention_layernorm"(#loc6))
#loc117 = loc("model.layers.1.mlp"(#loc27))
#loc118 = loc("model.layers.1.mlp.shared_expert"(#loc28))
#loc119 = loc("model.layers.1.mlp.shared_expert.down_proj"(#loc28))
#loc120 = loc("model.layers.1.mlp.gate"(#loc29))
#loc121 = loc("model.layers.1.mlp.gate"(#loc30))
#loc122 = loc("model.layers.1.mlp.gate"(#loc31))
#loc123 = loc("model.layers.1.mlp.experts"(#loc32))
#loc124 = loc("model.layers.1.mlp.shared_expert_gate"(#loc33))
#loc131 = loc("model.layers.0.linear_attn.norm"(#loc57))
#loc132 = loc("model.layers.0.linear_attn"(#loc58))
#loc134 = loc("model.layers.0.mlp.shared_expert.act_fn"(#loc15))
#loc137 = loc("model.layers.0.mlp"(#loc33))
#loc139 = loc("model.layers.0.mlp.experts.act_fn"(#loc15))
#loc147 = loc("compress.0.recurrence"(#loc86))
