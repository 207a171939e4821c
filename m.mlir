#loc1 = loc("prefill")
#loc4 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":646:0)
#loc5 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0)
#loc7 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":55:0)
#loc8 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":58:0)
#loc9 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":426:0)
#loc10 = loc("transformers/activations.py":51:0)
#loc12 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":455:0)
#loc13 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":307:0)
#loc16 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":312:0)
#loc17 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":313:0)
#loc19 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":316:0)
#loc20 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":319:0)
#loc21 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":320:0)
#loc22 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":321:0)
#loc24 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":328:0)
#loc25 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":271:0)
#loc26 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":329:0)
#loc28 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":332:0)
#loc32 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":487:0)
#loc33 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":488:0)
#loc40 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":105:0)
#loc41 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":106:0)
#loc42 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":107:0)
#loc43 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":108:0)
#loc44 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":238:0)
#loc45 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":247:0)
#loc47 = loc("prefill.phase.head")
#loc48 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0)
#loc49 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":742:0)
#loc50 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)
#loc51 = loc("decode")
#loc52 = loc("score")
#map = affine_map<(d0, d1, d2) -> (d0, d1)>
#map1 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#map2 = affine_map<() -> ()>
#map3 = affine_map<(d0, d1, d2) -> ()>
#map4 = affine_map<(d0, d1, d2) -> (d0, d1, 0)>
#map5 = affine_map<(d0) -> (d0)>
#map6 = affine_map<(d0, d1, d2) -> (d2)>
#map7 = affine_map<(d0, d1) -> (d0, d1)>
#map8 = affine_map<(d0, d1) -> (d1)>
#map9 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#map10 = affine_map<(d0, d1, d2) -> (d0, 0, d2)>
#map11 = affine_map<(d0, d1, d2, d3) -> (d0, 0, d2, d3)>
#map12 = affine_map<(d0, d1, d2) -> (0, 0, 0)>
#map13 = affine_map<(d0, d1, d2) -> (0, 0)>
#map14 = affine_map<(d0, d1) -> (d0)>
#loc53 = loc("model.embed_tokens"(#loc4))
#loc54 = loc("model.layers.0.temporal_pre_norm"(#loc7))
#loc55 = loc("model.layers.0.temporal_pre_norm"(#loc8))
#loc56 = loc("model.layers.0.temporal_block.linear_y"(#loc9))
#loc57 = loc("model.layers.0.temporal_block.act_fn"(#loc10))
#loc59 = loc("model.layers.0.temporal_block"(#loc12))
#loc60 = loc("model.layers.0.temporal_block.rg_lru"(#loc13))
#loc63 = loc("model.layers.0.temporal_block.rg_lru"(#loc16))
#loc64 = loc("model.layers.0.temporal_block.rg_lru"(#loc17))
#loc66 = loc("model.layers.0.temporal_block.rg_lru"(#loc19))
#loc67 = loc("model.layers.0.temporal_block.rg_lru"(#loc20))
#loc68 = loc("model.layers.0.temporal_block.rg_lru"(#loc21))
#loc69 = loc("model.layers.0.temporal_block.rg_lru"(#loc22))
#loc71 = loc("model.layers.0.temporal_block.rg_lru"(#loc24))
#loc72 = loc("model.layers.0.temporal_block.rg_lru"(#loc25))
#loc73 = loc("model.layers.0.temporal_block.rg_lru"(#loc26))
#loc75 = loc("model.layers.0.temporal_block.rg_lru"(#loc28))
#loc81 = loc("model.layers.0.mlp_block.gate_proj"(#loc32))
#loc82 = loc("model.layers.0.mlp_block.act_fn"(#loc10))
#loc85 = loc("model.layers.0.mlp_block.down_proj"(#loc33))
#loc128 = loc("model.layers.2.temporal_block.rotary_emb"(#loc40))
#loc129 = loc("model.layers.2.temporal_block.rotary_emb"(#loc41))
#loc130 = loc("model.layers.2.temporal_block.rotary_emb"(#loc42))
#loc131 = loc("model.layers.2.temporal_block.rotary_emb"(#loc43))
#loc132 = loc("model.layers.2.temporal_block"(#loc44))
#loc133 = loc("model.layers.2.temporal_block"(#loc45))
#loc146 = loc("lm_head"(#loc49))
#loc147 = loc("compress.0"(#loc59))
#loc151 = loc("compress.2"(#loc133))
#geometry = {dtype = "model", max_context = 192 : i64, obs = 6 : i64, pool = 3 : i64, pool_mode = "avg", recent = 72 : i64, rows = "compact", sink = 4 : i64, topk = 12 : i64}
#groups = {convolution = {dtype = "model", max_context = 192 : i64, obs = 6 : i64, pool = 3 : i64, pool_mode = "avg", recent = 3 : i64, rows = "compact", sink = 0 : i64, topk = 0 : i64, window = 3 : i64}, recurrence = {dtype = "model", max_context = 192 : i64, obs = 6 : i64, pool = 3 : i64, pool_mode = "avg", recent = 1 : i64, rows = "compact", sink = 0 : i64, topk = 0 : i64, window = 1 : i64}, window10 = {dtype = "model", max_context = 192 : i64, obs = 6 : i64, pool = 3 : i64, pool_mode = "avg", recent = 10 : i64, rows = "compact", sink = 0 : i64, topk = 0 : i64, window = 10 : i64}}
#machine = "{\0A  \22format\22: 2,\0A  \22name\22: \22sn40l\22,\0A  \22note\22: \22A model of the published SN40L, one socket per device; not the vendor's product.\22,\0A  \22sockets\22: {\0A    \22value\22: 1,\0A    \22unit\22: \22\22,\0A    \22origin\22: \22chosen\22,\0A    \22note\22: \22sockets that work together; nodes have 8 or 16\22\0A  },\0A  \22levels\22: [\0A    {\0A      \22name\22: \22sram\22,\0A      \22capacity\22: {\0A        \22value\22: 545259520,\0A        \22unit\22: \22bytes per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \221040 pattern memory units of 512 KiB\22\0A      },\0A      \22bandwidth\22: {\0A        \22value\22: 100000000000000.0,\0A        \22unit\22: \22bytes/s per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22aggregate, given as more than this\22\0A      }\0A    },\0A    {\0A      \22name\22: \22hbm\22,\0A      \22capacity\22: {\0A        \22value\22: 68719476736,\0A        \22unit\22: \22bytes per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \2264 GiB\22\0A      },\0A      \22bandwidth\22: {\0A        \22value\22: 1600000000000.0,\0A        \22unit\22: \22bytes/s per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22sources say 1.6 to 1.8 TB/s\22\0A      }\0A    },\0A    {\0A      \22name\22: \22ddr\22,\0A      \22capacity\22: {\0A        \22value\22: 1500000000000,\0A        \22unit\22: \22bytes per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22up to 1.5 TB\22\0A      },\0A      \22bandwidth\22: {\0A        \22value\22: 100000000000.0,\0A        \22unit\22: \22bytes/s per socket\22,\0A        \22origin\22: \22published\22,\0A        \22note\22: \22sources say 100 to 200 GB/s\22\0A      }\0A    }\0A  ],\0A  \22units\22: {\0A    \22pcus\22: {\0A      \22value\22: 1040,\0A      \22unit\22: \22per socket\22,\0A      \22origin\22: \22published\22,\0A      \22note\22: \22pattern compute units\22\0A    },\0A    \22pmu_bytes\22: {\0A      \22value\22: 524288,\0A      \22unit\22: \22bytes\22,\0A      \22origin\22: \22published\22,\0A      \22note\22: \22SRAM of one pattern memory unit\22\0A    },\0A    \22bf16_flops\22: {\0A      \22value\22: 638000000000000.0,\0A      \22unit\22: \22FLOP/s per socket\22,\0A      \22origin\22: \22published\22,\0A      \22note\22: \22peak of dense BF16 products\22\0A    },\0A    \22f32_flops\22: {\0A      \22value\22: 319000000000000.0,\0A      \22unit\22: \22FLOP/s per socket\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22half the BF16 rate; not published\22\0A    },\0A    \22simd_lanes\22: {\0A      \22value\22: 32,\0A      \22unit\22: \22per PCU\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22elements per cycle; not published\22\0A    },\0A    \22simd_stages\22: {\0A      \22value\22: 6,\0A      \22unit\22: \22per PCU\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22chained operations; with the lanes and the clock they give the published peak\22\0A    },\0A    \22clock\22: {\0A      \22value\22: 1600000000.0,\0A      \22unit\22: \22Hz\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22not published\22\0A    }\0A  },\0A  \22costs\22: {\0A    \22launch_seconds\22: {\0A      \22value\22: 5e-06,\0A      \22unit\22: \22s\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22program load, argument load, execute; not published\22\0A    },\0A    \22firing_seconds\22: {\0A      \22value\22: 6.25e-08,\0A      \22unit\22: \22s\22,\0A      \22origin\22: \22assumed\22,\0A      \22note\22: \22100 cycles: control token, address generators, fill of a PCU's pipeline; not published\22\0A    },\0A    \22boundary_seconds\22: {\0A      \22value\22: 2e-05,\0A      \22unit\22: \22s\22,\0A      \22origin\22: \22fitted\22,\0A      \22note\22: \22drain and refill at each launch; one value for all, fitted to the published speed-up of looping, up to 2.2x\22\0A    }\0A  },\0A  \22links\22: [\0A    {\0A      \22name\22: \22socket\22,\0A      \22bandwidth\22: {\0A        \22value\22: 100000000000.0,\0A        \22unit\22: \22bytes/s per link\22,\0A        \22origin\22: \22assumed\22,\0A        \22note\22: \22socket to socket, not published\22\0A      },\0A      \22latency\22: {\0A        \22value\22: 1e-06,\0A        \22unit\22: \22s\22,\0A        \22origin\22: \22assumed\22,\0A        \22note\22: \22of a message from one socket to another; not published\22\0A      }\0A    }\0A  ]\0A}\0A"
#passes = [
  "lower-torch",
  "split-layers",
  "repeat-layers",
  "absorb-latent",
  "thread-cache",
  "build-entries",
  "outline-kernels",
  "merge-equal-kernels"
]
#program = {batch = 2 : i64, chunk = 7 : i64, config = "{\22architectures\22: [\22RecurrentGemmaForCausalLM\22], \22attention_bias\22: false, \22attention_dropout\22: 0.0, \22attention_window_size\22: 10, \22block_types\22: [\22recurrent\22, \22recurrent\22, \22attention\22], \22bos_token_id\22: 2, \22chunk_size_feed_forward\22: 0, \22conv1d_width\22: 4, \22dtype\22: \22float32\22, \22eos_token_id\22: 1, \22final_w_init_variance_scale\22: 0.07692307692307693, \22head_dim\22: 8, \22hidden_activation\22: \22gelu_pytorch_tanh\22, \22hidden_size\22: 32, \22id2label\22: {\220\22: \22LABEL_0\22, \221\22: \22LABEL_1\22}, \22intermediate_size\22: 48, \22is_encoder_decoder\22: false, \22label2id\22: {\22LABEL_0\22: 0, \22LABEL_1\22: 1}, \22logits_soft_cap\22: 30.0, \22lru_width\22: 32, \22model_type\22: \22recurrent_gemma\22, \22num_attention_heads\22: 4, \22num_hidden_layers\22: 3, \22num_key_value_heads\22: 4, \22output_attentions\22: false, \22output_hidden_states\22: false, \22pad_token_id\22: 0, \22problem_type\22: null, \22return_dict\22: true, \22rms_norm_eps\22: 1e-06, \22rope_parameters\22: {\22partial_rotary_factor\22: 0.5, \22rope_theta\22: 10000.0, \22rope_type\22: \22default\22}, \22tie_word_embeddings\22: true, \22use_cache\22: true, \22vocab_size\22: 96, \22w_init_variance_scale\22: 0.01}", digest = "", dtype = "f32", eos = "[1]", layers = 3 : i64, vocab_size = 96 : i64}
module attributes {kv.geometry = #geometry, kv.groups = #groups, sscc.beside = ["recurrence"], sscc.layers = {convolution = array<i64: 0, 1>, recurrence = array<i64: 0, 1>, window10 = array<i64: 2>}, sscc.level = "kernels", sscc.machine = #machine, sscc.passes = #passes, sscc.program = #program} {
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
      %inputs_scratch.convolution: tensor<1x1x3x32xf32> {sscc.state = "inputs_scratch.convolution"} loc("prefill"),
      %recurrent_scratch.recurrence: tensor<1x32x1x1xf32> {sscc.state = "recurrent_scratch.recurrence"} loc("prefill"),
      %k_scratch.window10: tensor<1x4x196x8xf32> {sscc.state = "k_scratch.window10"} loc("prefill"),
      %v_scratch.window10: tensor<1x4x196x8xf32> {sscc.state = "v_scratch.window10"} loc("prefill"),
      %inputs_cache.convolution: tensor<2x2x1x3x32xf32> {sscc.state = "inputs_cache.convolution"} loc("prefill"),
      %recurrent_cache.recurrence: tensor<2x2x32x1x1xf32> {sscc.state = "recurrent_cache.recurrence"} loc("prefill"),
      %k_cache.window10: tensor<1x2x4x10x8xf32> {sscc.state = "k_cache.window10"} loc("prefill"),
      %v_cache.window10: tensor<1x2x4x10x8xf32> {sscc.state = "v_cache.window10"} loc("prefill"),
      %model.embed_tokens.weight: tensor<96x32xf32> {sscc.weight = "model.embed_tokens.weight"} loc("prefill"),
      %model.normalizer: tensor<bf16> {sscc.constant = "model.normalizer"} loc("prefill"),
      %model.layers.0.temporal_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_pre_norm.weight"} loc("prefill"),
      %model.layers.0.temporal_block.linear_y.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_y.weight"} loc("prefill"),
      %model.layers.0.temporal_block.linear_y.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_y.bias"} loc("prefill"),
      %model.layers.0.temporal_block.linear_x.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_x.weight"} loc("prefill"),
      %model.layers.0.temporal_block.linear_x.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_x.bias"} loc("prefill"),
      %model.layers.0.temporal_block.linear_out.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_out.weight"} loc("prefill"),
      %model.layers.0.temporal_block.linear_out.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_out.bias"} loc("prefill"),
      %model.layers.0.temporal_block.conv_1d.weight: tensor<32x1x4xf32> {sscc.weight = "model.layers.0.temporal_block.conv_1d.weight"} loc("prefill"),
      %model.layers.0.temporal_block.conv_1d.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.conv_1d.bias"} loc("prefill"),
      %model.layers.0.temporal_block.rg_lru.recurrent_param: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.recurrent_param"} loc("prefill"),
      %model.layers.0.temporal_block.rg_lru.input_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.input_gate_weight"} loc("prefill"),
      %model.layers.0.temporal_block.rg_lru.input_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.input_gate_bias"} loc("prefill"),
      %model.layers.0.temporal_block.rg_lru.recurrent_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.recurrent_gate_weight"} loc("prefill"),
      %model.layers.0.temporal_block.rg_lru.recurrent_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.recurrent_gate_bias"} loc("prefill"),
      %model.layers.0.channel_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.channel_pre_norm.weight"} loc("prefill"),
      %model.layers.0.mlp_block.gate_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.0.mlp_block.gate_proj.weight"} loc("prefill"),
      %model.layers.0.mlp_block.gate_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.0.mlp_block.gate_proj.bias"} loc("prefill"),
      %model.layers.0.mlp_block.up_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.0.mlp_block.up_proj.weight"} loc("prefill"),
      %model.layers.0.mlp_block.up_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.0.mlp_block.up_proj.bias"} loc("prefill"),
      %model.layers.0.mlp_block.down_proj.weight: tensor<32x24xf32> {sscc.weight = "model.layers.0.mlp_block.down_proj.weight"} loc("prefill"),
      %model.layers.0.mlp_block.down_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.0.mlp_block.down_proj.bias"} loc("prefill"),
      %model.layers.1.temporal_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_pre_norm.weight"} loc("prefill"),
      %model.layers.1.temporal_block.linear_y.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_y.weight"} loc("prefill"),
      %model.layers.1.temporal_block.linear_y.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_y.bias"} loc("prefill"),
      %model.layers.1.temporal_block.linear_x.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_x.weight"} loc("prefill"),
      %model.layers.1.temporal_block.linear_x.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_x.bias"} loc("prefill"),
      %model.layers.1.temporal_block.linear_out.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_out.weight"} loc("prefill"),
      %model.layers.1.temporal_block.linear_out.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_out.bias"} loc("prefill"),
      %model.layers.1.temporal_block.conv_1d.weight: tensor<32x1x4xf32> {sscc.weight = "model.layers.1.temporal_block.conv_1d.weight"} loc("prefill"),
      %model.layers.1.temporal_block.conv_1d.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.conv_1d.bias"} loc("prefill"),
      %model.layers.1.temporal_block.rg_lru.recurrent_param: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.recurrent_param"} loc("prefill"),
      %model.layers.1.temporal_block.rg_lru.input_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.input_gate_weight"} loc("prefill"),
      %model.layers.1.temporal_block.rg_lru.input_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.input_gate_bias"} loc("prefill"),
      %model.layers.1.temporal_block.rg_lru.recurrent_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.recurrent_gate_weight"} loc("prefill"),
      %model.layers.1.temporal_block.rg_lru.recurrent_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.recurrent_gate_bias"} loc("prefill"),
      %model.layers.1.channel_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.channel_pre_norm.weight"} loc("prefill"),
      %model.layers.1.mlp_block.gate_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.1.mlp_block.gate_proj.weight"} loc("prefill"),
      %model.layers.1.mlp_block.gate_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.1.mlp_block.gate_proj.bias"} loc("prefill"),
      %model.layers.1.mlp_block.up_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.1.mlp_block.up_proj.weight"} loc("prefill"),
      %model.layers.1.mlp_block.up_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.1.mlp_block.up_proj.bias"} loc("prefill"),
      %model.layers.1.mlp_block.down_proj.weight: tensor<32x24xf32> {sscc.weight = "model.layers.1.mlp_block.down_proj.weight"} loc("prefill"),
      %model.layers.1.mlp_block.down_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.1.mlp_block.down_proj.bias"} loc("prefill"),
      %model.layers.2.temporal_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.2.temporal_pre_norm.weight"} loc("prefill"),
      %temporal_block.q_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.q_proj.weight"} loc("prefill"),
      %temporal_block.k_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.k_proj.weight"} loc("prefill"),
      %temporal_block.v_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.v_proj.weight"} loc("prefill"),
      %temporal_block.o_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.o_proj.weight"} loc("prefill"),
      %temporal_block.o_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.2.temporal_block.o_proj.bias"} loc("prefill"),
      %model.layers.2.channel_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.2.channel_pre_norm.weight"} loc("prefill"),
      %model.layers.2.mlp_block.gate_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.2.mlp_block.gate_proj.weight"} loc("prefill"),
      %model.layers.2.mlp_block.gate_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.2.mlp_block.gate_proj.bias"} loc("prefill"),
      %model.layers.2.mlp_block.up_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.2.mlp_block.up_proj.weight"} loc("prefill"),
      %model.layers.2.mlp_block.up_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.2.mlp_block.up_proj.bias"} loc("prefill"),
      %model.layers.2.mlp_block.down_proj.weight: tensor<32x24xf32> {sscc.weight = "model.layers.2.mlp_block.down_proj.weight"} loc("prefill"),
      %model.layers.2.mlp_block.down_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.2.mlp_block.down_proj.bias"} loc("prefill"),
      %temporal_block.rotary_emb.inv_freq: tensor<2xf32> {sscc.constant = "model.layers.2.temporal_block.rotary_emb.inv_freq"} loc("prefill"),
      %model.final_norm.weight: tensor<32xf32> {sscc.weight = "model.final_norm.weight"} loc("prefill")) -> (tensor<1x96xf32> {sscc.output = "prefill_logits"}, index {sscc.output = "phase"}, index {sscc.output = "chunk"}, tensor<1x196x32xf32> {sscc.state = "hidden"}, tensor<1x1x3x32xf32> {sscc.state = "inputs_scratch.convolution"}, tensor<1x32x1x1xf32> {sscc.state = "recurrent_scratch.recurrence"}, tensor<1x4x196x8xf32> {sscc.state = "k_scratch.window10"}, tensor<1x4x196x8xf32> {sscc.state = "v_scratch.window10"}, tensor<2x2x1x3x32xf32> {sscc.state = "inputs_cache.convolution"}, tensor<2x2x32x1x1xf32> {sscc.state = "recurrent_cache.recurrence"}, tensor<1x2x4x10x8xf32> {sscc.state = "k_cache.window10"}, tensor<1x2x4x10x8xf32> {sscc.state = "v_cache.window10"}) {
    %c7 = arith.constant 7 : index loc(#loc1)
    %0 = arith.ceildivsi %length, %c7 : index loc(#loc1)
    %1 = arith.subi %0, %reused : index loc(#loc1)
    %c1 = arith.constant 1 : index loc(#loc1)
    %2 = arith.maxsi %1, %c1 : index loc(#loc1)
    %3 = arith.muli %phase, %2 : index loc(#loc1)
    %4 = arith.addi %3, %chunk : index loc(#loc1)
    %c4 = arith.constant 4 : index loc(#loc1)
    %5 = arith.muli %c4, %2 : index loc(#loc1)
    %6 = arith.addi %5, %c1 : index loc(#loc1)
    %7 = arith.addi %4, %steps : index loc(#loc1)
    %8 = arith.minsi %7, %6 : index loc(#loc1)
    %c0 = arith.constant 0 : index loc(#loc1)
    %9 = arith.muli %c0, %2 : index loc(#loc2)
    %10 = arith.subi %4, %9 : index loc(#loc2)
    %11 = arith.maxsi %10, %c0 : index loc(#loc2)
    %12 = arith.minsi %11, %2 : index loc(#loc2)
    %13 = arith.subi %8, %9 : index loc(#loc2)
    %14 = arith.maxsi %13, %c0 : index loc(#loc2)
    %15 = arith.minsi %14, %2 : index loc(#loc2)
    %16 = arith.addi %12, %reused : index loc(#loc3)
    %17 = arith.minsi %16, %0 : index loc(#loc3)
    %18 = arith.addi %15, %reused : index loc(#loc3)
    %19 = arith.minsi %18, %0 : index loc(#loc3)
    %20 = scf.for %arg77 = %17 to %19 step %c1 iter_args(%arg78 = %hidden) -> (tensor<1x196x32xf32>) {
      %87 = arith.muli %arg77, %c7 : index loc(#loc3)
      %extracted_slice_10 = tensor.extract_slice %tokens[0, %87] [1, 7] [1, 1] : tensor<1x196xi64> to tensor<1x7xi64> loc(#loc3)
      %88 = func.call @extract.0(%extracted_slice_10, %model.embed_tokens.weight) : (tensor<1x7xi64>, tensor<96x32xf32>) -> tensor<1x7x32xf32> loc(#loc53)
      %89 = func.call @extf.1(%model.normalizer) : (tensor<bf16>) -> tensor<f32> loc(#loc5)
      %90 = func.call @mulf.2(%88, %89) : (tensor<1x7x32xf32>, tensor<f32>) -> tensor<1x7x32xf32> loc(#loc5)
      %inserted_slice_11 = tensor.insert_slice %90 into %arg78[0, %87, 0] [1, 7, 32] [1, 1, 1] : tensor<1x7x32xf32> into tensor<1x196x32xf32> loc(#loc3)
      scf.yield %inserted_slice_11 : tensor<1x196x32xf32> loc(#loc3)
    } loc(#loc3)
    %extracted_slice = tensor.extract_slice %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x2x1x3x32xf32> to tensor<2x1x3x32xf32> loc(#loc1)
    %extracted_slice_0 = tensor.extract_slice %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x2x32x1x1xf32> to tensor<2x32x1x1xf32> loc(#loc1)
    %21 = arith.muli %c1, %2 : index loc(#loc2)
    %22 = arith.subi %4, %21 : index loc(#loc2)
    %23 = arith.maxsi %22, %c0 : index loc(#loc2)
    %24 = arith.minsi %23, %2 : index loc(#loc2)
    %25 = arith.subi %8, %21 : index loc(#loc2)
    %26 = arith.maxsi %25, %c0 : index loc(#loc2)
    %27 = arith.minsi %26, %2 : index loc(#loc2)
    %28 = arith.cmpi slt, %24, %27 : index loc(#loc2)
    %29 = arith.cmpi eq, %27, %2 : index loc(#loc2)
    %30 = arith.andi %28, %29 : i1 loc(#loc2)
    %31 = arith.addi %24, %reused : index loc(#loc6)
    %32 = arith.minsi %31, %0 : index loc(#loc6)
    %33 = arith.addi %27, %reused : index loc(#loc6)
    %34 = arith.minsi %33, %0 : index loc(#loc6)
    %35:3 = scf.for %arg77 = %32 to %34 step %c1 iter_args(%arg78 = %20, %arg79 = %inputs_scratch.convolution, %arg80 = %recurrent_scratch.recurrence) -> (tensor<1x196x32xf32>, tensor<1x1x3x32xf32>, tensor<1x32x1x1xf32>) {
      %87 = arith.muli %arg77, %c7 : index loc(#loc6)
      %extracted_slice_10 = tensor.extract_slice %arg78[0, %87, 0] [1, 7, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x7x32xf32> loc(#loc6)
      %extracted_slice_11 = tensor.extract_slice %position_ids[0, %87] [1, 7] [1, 1] : tensor<1x196xi64> to tensor<1x7xi64> loc(#loc6)
      %88 = func.call @fpowi.3(%extracted_slice_10) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc54)
      %89 = func.call @addf.4(%88) : (tensor<1x7x32xf32>) -> tensor<1x7x1xf32> loc(#loc54)
      %90 = func.call @divf.5(%89) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc54)
      %91 = func.call @addf.6(%90) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc54)
      %92 = func.call @rsqrt.7(%91) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc54)
      %93 = func.call @mulf.8(%extracted_slice_10, %92) : (tensor<1x7x32xf32>, tensor<1x7x1xf32>) -> tensor<1x7x32xf32> loc(#loc54)
      %94 = func.call @addf.9(%model.layers.0.temporal_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc55)
      %95 = func.call @mulf.10(%93, %94) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc55)
      %collapsed = tensor.collapse_shape %95 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc56)
      %96 = tensor.empty() : tensor<32x32xf32> loc(#loc56)
      %transposed = linalg.transpose ins(%model.layers.0.temporal_block.linear_y.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc56)
      %97 = func.call @matmul.11(%collapsed, %transposed) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc56)
      %98 = func.call @addf.12(%97, %model.layers.0.temporal_block.linear_y.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc56)
      %expanded = tensor.expand_shape %98 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc56)
      %99 = func.call @mulf.13(%expanded) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %100 = func.call @mulf.14(%99, %expanded) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %101 = func.call @mulf.15(%100) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %102 = func.call @addf.16(%expanded, %101) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %103 = func.call @mulf.17(%102) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %104 = func.call @mulf.18(%expanded) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %105 = func.call @tanh.19(%103) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %106 = func.call @addf.20(%105) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %107 = func.call @mulf.14(%104, %106) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc57)
      %transposed_12 = linalg.transpose ins(%model.layers.0.temporal_block.linear_x.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc58)
      %108 = func.call @matmul.11(%collapsed, %transposed_12) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc58)
      %109 = func.call @addf.12(%108, %model.layers.0.temporal_block.linear_x.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc58)
      %expanded_13 = tensor.expand_shape %109 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc58)
      %expanded_14 = tensor.expand_shape %expanded_13 [[0, 1], [2], [3]] output_shape [1, 1, 7, 32] : tensor<1x7x32xf32> into tensor<1x1x7x32xf32> loc(#loc59)
      %110 = func.call @select.24(%arg79, %87) : (tensor<1x1x3x32xf32>, index) -> tensor<1x1x3x32xf32> loc(#loc59)
      %111 = func.call @concat.25(%110, %expanded_14) : (tensor<1x1x3x32xf32>, tensor<1x1x7x32xf32>) -> tensor<1x1x10x32xf32> loc(#loc59)
      %extracted_slice_15 = tensor.extract_slice %111[0, 0, 0, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc59)
      %extracted_slice_16 = tensor.extract_slice %111[0, 0, 1, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc59)
      %extracted_slice_17 = tensor.extract_slice %111[0, 0, 2, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc59)
      %extracted_slice_18 = tensor.extract_slice %111[0, 0, 3, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc59)
      %collapsed_19 = tensor.collapse_shape %extracted_slice_15 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc59)
      %collapsed_20 = tensor.collapse_shape %extracted_slice_16 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc59)
      %collapsed_21 = tensor.collapse_shape %extracted_slice_17 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc59)
      %collapsed_22 = tensor.collapse_shape %extracted_slice_18 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc59)
      %extracted_slice_23 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 0] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
      %extracted_slice_24 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 1] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
      %extracted_slice_25 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 2] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
      %extracted_slice_26 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 3] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
      %collapsed_27 = tensor.collapse_shape %extracted_slice_23 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
      %collapsed_28 = tensor.collapse_shape %extracted_slice_24 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
      %collapsed_29 = tensor.collapse_shape %extracted_slice_25 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
      %collapsed_30 = tensor.collapse_shape %extracted_slice_26 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
      %112 = func.call @addf.26(%collapsed_19, %collapsed_20, %collapsed_21, %collapsed_22, %collapsed_27, %collapsed_28, %collapsed_29, %collapsed_30, %model.layers.0.temporal_block.conv_1d.bias) : (tensor<7x32xf32>, tensor<7x32xf32>, tensor<7x32xf32>, tensor<7x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc59)
      %113 = arith.subi %length, %87 : index loc(#loc59)
      %114 = arith.minsi %113, %c7 : index loc(#loc59)
      %115 = func.call @index_cast.27(%114) : (index) -> tensor<1x3xi64> loc(#loc59)
      %116 = func.call @gather.28(%111, %115, %arg79) : (tensor<1x1x10x32xf32>, tensor<1x3xi64>, tensor<1x1x3x32xf32>) -> tensor<1x1x3x32xf32> loc(#loc59)
      %expanded_31 = tensor.expand_shape %112 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc59)
      %expanded_32 = tensor.expand_shape %extracted_slice_11 [[0], [1, 2]] output_shape [1, 7, 1] : tensor<1x7xi64> into tensor<1x7x1xi64> loc(#loc60)
      %117 = func.call @cmpi.29(%expanded_32) : (tensor<1x7x1xi64>) -> tensor<1x7x1xi1> loc(#loc60)
      %collapsed_33 = tensor.collapse_shape %expanded_31 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc61)
      %expanded_34 = tensor.expand_shape %collapsed_33 [[0], [1, 2]] output_shape [7, 4, 8] : tensor<7x32xf32> into tensor<7x4x8xf32> loc(#loc61)
      %118 = tensor.empty() : tensor<4x7x8xf32> loc(#loc62)
      %transposed_35 = linalg.transpose ins(%expanded_34 : tensor<7x4x8xf32>) outs(%118 : tensor<4x7x8xf32>) permutation = [1, 0, 2]  loc(#loc62)
      %expanded_36 = tensor.expand_shape %model.layers.0.temporal_block.rg_lru.input_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc63)
      %119 = func.call @batch_matmul.30(%transposed_35, %model.layers.0.temporal_block.rg_lru.input_gate_weight) : (tensor<4x7x8xf32>, tensor<4x8x8xf32>) -> tensor<4x7x8xf32> loc(#loc63)
      %120 = func.call @addf.31(%expanded_36, %119) : (tensor<4x1x8xf32>, tensor<4x7x8xf32>) -> tensor<4x7x8xf32> loc(#loc63)
      %121 = tensor.empty() : tensor<7x4x8xf32> loc(#loc64)
      %transposed_37 = linalg.transpose ins(%120 : tensor<4x7x8xf32>) outs(%121 : tensor<7x4x8xf32>) permutation = [1, 0, 2]  loc(#loc64)
      %collapsed_38 = tensor.collapse_shape %transposed_37 [[0], [1, 2]] : tensor<7x4x8xf32> into tensor<7x32xf32> loc(#loc64)
      %expanded_39 = tensor.expand_shape %collapsed_38 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc64)
      %122 = func.call @divf.32(%expanded_39) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc64)
      %expanded_40 = tensor.expand_shape %model.layers.0.temporal_block.rg_lru.recurrent_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc65)
      %123 = func.call @batch_matmul.30(%transposed_35, %model.layers.0.temporal_block.rg_lru.recurrent_gate_weight) : (tensor<4x7x8xf32>, tensor<4x8x8xf32>) -> tensor<4x7x8xf32> loc(#loc65)
      %124 = func.call @addf.31(%expanded_40, %123) : (tensor<4x1x8xf32>, tensor<4x7x8xf32>) -> tensor<4x7x8xf32> loc(#loc65)
      %transposed_41 = linalg.transpose ins(%124 : tensor<4x7x8xf32>) outs(%121 : tensor<7x4x8xf32>) permutation = [1, 0, 2]  loc(#loc66)
      %collapsed_42 = tensor.collapse_shape %transposed_41 [[0], [1, 2]] : tensor<7x4x8xf32> into tensor<7x32xf32> loc(#loc66)
      %expanded_43 = tensor.expand_shape %collapsed_42 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc66)
      %125 = func.call @divf.32(%expanded_43) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc66)
      %126 = func.call @mulf.36(%125) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc67)
      %127 = func.call @exp.37(%model.layers.0.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc67)
      %128 = func.call @log1p.38(%127) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc67)
      %129 = func.call @cmpf.39(%model.layers.0.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xi1> loc(#loc67)
      %130 = func.call @select.40(%129, %model.layers.0.temporal_block.rg_lru.recurrent_param, %128) : (tensor<32xi1>, tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32> loc(#loc67)
      %131 = func.call @mulf.10(%126, %130) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc67)
      %132 = func.call @exp.42(%131) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc68)
      %133 = func.call @mulf.43(%131) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc69)
      %134 = func.call @exp.42(%133) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc69)
      %135 = func.call @mulf.14(%expanded_31, %122) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc70)
      %136 = func.call @subf.46(%134) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc71)
      %137 = func.call @sqrt.47(%136) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc72)
      %138 = func.call @xori.48(%117) : (tensor<1x7x1xi1>) -> tensor<1x7x1xi1> loc(#loc73)
      %139 = func.call @mulf.49(%138, %137) : (tensor<1x7x1xi1>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc73)
      %140 = func.call @addf.50(%117, %139) : (tensor<1x7x1xi1>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc73)
      %141 = func.call @mulf.14(%135, %140) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc74)
      %142 = func.call @mulf.52(%132, %138) : (tensor<1x7x32xf32>, tensor<1x7x1xi1>) -> tensor<1x7x32xf32> loc(#loc75)
      %expanded_44 = tensor.expand_shape %141 [[0], [1], [2, 3]] output_shape [1, 7, 32, 1] : tensor<1x7x32xf32> into tensor<1x7x32x1xf32> loc(#loc75)
      %143 = func.call @log.53(%142) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc75)
      %expanded_45 = tensor.expand_shape %143 [[0], [1], [2, 3]] output_shape [1, 7, 32, 1] : tensor<1x7x32xf32> into tensor<1x7x32x1xf32> loc(#loc75)
      %144:2 = func.call @recurrent_chunk.54(%expanded_44, %expanded_45, %arg80, %87, %length) : (tensor<1x7x32x1xf32>, tensor<1x7x32x1xf32>, tensor<1x32x1x1xf32>, index, index) -> (tensor<1x7x32x1xf32>, tensor<1x32x1x1xf32>) loc(#loc75)
      %collapsed_46 = tensor.collapse_shape %144#0 [[0], [1], [2, 3]] : tensor<1x7x32x1xf32> into tensor<1x7x32xf32> loc(#loc75)
      %145 = func.call @mulf.14(%collapsed_46, %107) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc76)
      %collapsed_47 = tensor.collapse_shape %145 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc77)
      %transposed_48 = linalg.transpose ins(%model.layers.0.temporal_block.linear_out.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc77)
      %146 = func.call @matmul.11(%collapsed_47, %transposed_48) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc77)
      %147 = func.call @addf.12(%146, %model.layers.0.temporal_block.linear_out.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc77)
      %expanded_49 = tensor.expand_shape %147 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc77)
      %148 = func.call @addf.16(%expanded_49, %extracted_slice_10) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc78)
      %149 = func.call @fpowi.3(%148) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc79)
      %150 = func.call @addf.4(%149) : (tensor<1x7x32xf32>) -> tensor<1x7x1xf32> loc(#loc79)
      %151 = func.call @divf.5(%150) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc79)
      %152 = func.call @addf.6(%151) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc79)
      %153 = func.call @rsqrt.7(%152) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc79)
      %154 = func.call @mulf.8(%148, %153) : (tensor<1x7x32xf32>, tensor<1x7x1xf32>) -> tensor<1x7x32xf32> loc(#loc79)
      %155 = func.call @addf.9(%model.layers.0.channel_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc80)
      %156 = func.call @mulf.10(%154, %155) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc80)
      %collapsed_50 = tensor.collapse_shape %156 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc81)
      %157 = tensor.empty() : tensor<32x24xf32> loc(#loc81)
      %transposed_51 = linalg.transpose ins(%model.layers.0.mlp_block.gate_proj.weight : tensor<24x32xf32>) outs(%157 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc81)
      %158 = func.call @matmul.67(%collapsed_50, %transposed_51) : (tensor<7x32xf32>, tensor<32x24xf32>) -> tensor<7x24xf32> loc(#loc81)
      %159 = func.call @addf.68(%158, %model.layers.0.mlp_block.gate_proj.bias) : (tensor<7x24xf32>, tensor<24xf32>) -> tensor<7x24xf32> loc(#loc81)
      %expanded_52 = tensor.expand_shape %159 [[0, 1], [2]] output_shape [1, 7, 24] : tensor<7x24xf32> into tensor<1x7x24xf32> loc(#loc81)
      %160 = func.call @mulf.69(%expanded_52) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %161 = func.call @mulf.70(%160, %expanded_52) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %162 = func.call @mulf.71(%161) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %163 = func.call @addf.72(%expanded_52, %162) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %164 = func.call @mulf.73(%163) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %165 = func.call @mulf.74(%expanded_52) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %166 = func.call @tanh.75(%164) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %167 = func.call @addf.76(%166) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %168 = func.call @mulf.70(%165, %167) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc82)
      %transposed_53 = linalg.transpose ins(%model.layers.0.mlp_block.up_proj.weight : tensor<24x32xf32>) outs(%157 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc83)
      %169 = func.call @matmul.67(%collapsed_50, %transposed_53) : (tensor<7x32xf32>, tensor<32x24xf32>) -> tensor<7x24xf32> loc(#loc83)
      %170 = func.call @addf.68(%169, %model.layers.0.mlp_block.up_proj.bias) : (tensor<7x24xf32>, tensor<24xf32>) -> tensor<7x24xf32> loc(#loc83)
      %expanded_54 = tensor.expand_shape %170 [[0, 1], [2]] output_shape [1, 7, 24] : tensor<7x24xf32> into tensor<1x7x24xf32> loc(#loc83)
      %171 = func.call @mulf.70(%168, %expanded_54) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc84)
      %collapsed_55 = tensor.collapse_shape %171 [[0, 1], [2]] : tensor<1x7x24xf32> into tensor<7x24xf32> loc(#loc85)
      %172 = tensor.empty() : tensor<24x32xf32> loc(#loc85)
      %transposed_56 = linalg.transpose ins(%model.layers.0.mlp_block.down_proj.weight : tensor<32x24xf32>) outs(%172 : tensor<24x32xf32>) permutation = [1, 0]  loc(#loc85)
      %173 = func.call @matmul.81(%collapsed_55, %transposed_56) : (tensor<7x24xf32>, tensor<24x32xf32>) -> tensor<7x32xf32> loc(#loc85)
      %174 = func.call @addf.12(%173, %model.layers.0.mlp_block.down_proj.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc85)
      %expanded_57 = tensor.expand_shape %174 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc85)
      %175 = func.call @addf.16(%expanded_57, %148) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc86)
      %inserted_slice_58 = tensor.insert_slice %175 into %arg78[0, %87, 0] [1, 7, 32] [1, 1, 1] : tensor<1x7x32xf32> into tensor<1x196x32xf32> loc(#loc6)
      scf.yield %inserted_slice_58, %116, %144#1 : tensor<1x196x32xf32>, tensor<1x1x3x32xf32>, tensor<1x32x1x1xf32> loc(#loc6)
    } loc(#loc6)
    %36 = scf.if %30 -> (tensor<2x1x3x32xf32>) {
      %87 = func.call @index_cast.84(%length) : (index) -> tensor<1x3xi64> loc(#loc147)
      %extracted_slice_10 = tensor.extract_slice %extracted_slice[%slot, 0, 0, 0] [1, 1, 3, 32] [1, 1, 1, 1] : tensor<2x1x3x32xf32> to tensor<1x1x3x32xf32> loc(#loc147)
      %88 = func.call @gather.85(%35#1, %87, %extracted_slice_10) : (tensor<1x1x3x32xf32>, tensor<1x3xi64>, tensor<1x1x3x32xf32>) -> tensor<1x1x3x32xf32> loc(#loc147)
      %inserted_slice_11 = tensor.insert_slice %88 into %extracted_slice[%slot, 0, 0, 0] [1, 1, 3, 32] [1, 1, 1, 1] : tensor<1x1x3x32xf32> into tensor<2x1x3x32xf32> loc(#loc147)
      scf.yield %inserted_slice_11 : tensor<2x1x3x32xf32> loc(#loc6)
    } else {
      scf.yield %extracted_slice : tensor<2x1x3x32xf32> loc(#loc6)
    } loc(#loc6)
    %37 = scf.if %30 -> (tensor<2x32x1x1xf32>) {
      %inserted_slice_10 = tensor.insert_slice %35#2 into %extracted_slice_0[%slot, 0, 0, 0] [1, 32, 1, 1] [1, 1, 1, 1] : tensor<1x32x1x1xf32> into tensor<2x32x1x1xf32> loc(#loc148)
      scf.yield %inserted_slice_10 : tensor<2x32x1x1xf32> loc(#loc6)
    } else {
      scf.yield %extracted_slice_0 : tensor<2x32x1x1xf32> loc(#loc6)
    } loc(#loc6)
    %inserted_slice = tensor.insert_slice %36 into %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x1x3x32xf32> into tensor<2x2x1x3x32xf32> loc(#loc1)
    %inserted_slice_1 = tensor.insert_slice %37 into %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x32x1x1xf32> into tensor<2x2x32x1x1xf32> loc(#loc1)
    %c2 = arith.constant 2 : index loc(#loc1)
    %extracted_slice_2 = tensor.extract_slice %inserted_slice[1, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x2x1x3x32xf32> to tensor<2x1x3x32xf32> loc(#loc1)
    %extracted_slice_3 = tensor.extract_slice %inserted_slice_1[1, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x2x32x1x1xf32> to tensor<2x32x1x1xf32> loc(#loc1)
    %38 = arith.muli %c2, %2 : index loc(#loc2)
    %39 = arith.subi %4, %38 : index loc(#loc2)
    %40 = arith.maxsi %39, %c0 : index loc(#loc2)
    %41 = arith.minsi %40, %2 : index loc(#loc2)
    %42 = arith.subi %8, %38 : index loc(#loc2)
    %43 = arith.maxsi %42, %c0 : index loc(#loc2)
    %44 = arith.minsi %43, %2 : index loc(#loc2)
    %45 = arith.cmpi slt, %41, %44 : index loc(#loc2)
    %46 = arith.cmpi eq, %44, %2 : index loc(#loc2)
    %47 = arith.andi %45, %46 : i1 loc(#loc2)
    %48 = arith.addi %41, %reused : index loc(#loc35)
    %49 = arith.minsi %48, %0 : index loc(#loc35)
    %50 = arith.addi %44, %reused : index loc(#loc35)
    %51 = arith.minsi %50, %0 : index loc(#loc35)
    %52:3 = scf.for %arg77 = %49 to %51 step %c1 iter_args(%arg78 = %35#0, %arg79 = %35#1, %arg80 = %35#2) -> (tensor<1x196x32xf32>, tensor<1x1x3x32xf32>, tensor<1x32x1x1xf32>) {
      %87 = arith.muli %arg77, %c7 : index loc(#loc35)
      %extracted_slice_10 = tensor.extract_slice %arg78[0, %87, 0] [1, 7, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x7x32xf32> loc(#loc35)
      %extracted_slice_11 = tensor.extract_slice %position_ids[0, %87] [1, 7] [1, 1] : tensor<1x196xi64> to tensor<1x7xi64> loc(#loc35)
      %88 = func.call @fpowi.3(%extracted_slice_10) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc87)
      %89 = func.call @addf.4(%88) : (tensor<1x7x32xf32>) -> tensor<1x7x1xf32> loc(#loc87)
      %90 = func.call @divf.5(%89) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc87)
      %91 = func.call @addf.6(%90) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc87)
      %92 = func.call @rsqrt.7(%91) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc87)
      %93 = func.call @mulf.8(%extracted_slice_10, %92) : (tensor<1x7x32xf32>, tensor<1x7x1xf32>) -> tensor<1x7x32xf32> loc(#loc87)
      %94 = func.call @addf.9(%model.layers.1.temporal_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc88)
      %95 = func.call @mulf.10(%93, %94) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc88)
      %collapsed = tensor.collapse_shape %95 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc89)
      %96 = tensor.empty() : tensor<32x32xf32> loc(#loc89)
      %transposed = linalg.transpose ins(%model.layers.1.temporal_block.linear_y.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc89)
      %97 = func.call @matmul.11(%collapsed, %transposed) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc89)
      %98 = func.call @addf.12(%97, %model.layers.1.temporal_block.linear_y.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc89)
      %expanded = tensor.expand_shape %98 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc89)
      %99 = func.call @mulf.13(%expanded) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %100 = func.call @mulf.14(%99, %expanded) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %101 = func.call @mulf.15(%100) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %102 = func.call @addf.16(%expanded, %101) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %103 = func.call @mulf.17(%102) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %104 = func.call @mulf.18(%expanded) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %105 = func.call @tanh.19(%103) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %106 = func.call @addf.20(%105) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %107 = func.call @mulf.14(%104, %106) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc90)
      %transposed_12 = linalg.transpose ins(%model.layers.1.temporal_block.linear_x.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc91)
      %108 = func.call @matmul.11(%collapsed, %transposed_12) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc91)
      %109 = func.call @addf.12(%108, %model.layers.1.temporal_block.linear_x.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc91)
      %expanded_13 = tensor.expand_shape %109 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc91)
      %expanded_14 = tensor.expand_shape %expanded_13 [[0, 1], [2], [3]] output_shape [1, 1, 7, 32] : tensor<1x7x32xf32> into tensor<1x1x7x32xf32> loc(#loc92)
      %110 = func.call @select.24(%arg79, %87) : (tensor<1x1x3x32xf32>, index) -> tensor<1x1x3x32xf32> loc(#loc92)
      %111 = func.call @concat.25(%110, %expanded_14) : (tensor<1x1x3x32xf32>, tensor<1x1x7x32xf32>) -> tensor<1x1x10x32xf32> loc(#loc92)
      %extracted_slice_15 = tensor.extract_slice %111[0, 0, 0, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc92)
      %extracted_slice_16 = tensor.extract_slice %111[0, 0, 1, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc92)
      %extracted_slice_17 = tensor.extract_slice %111[0, 0, 2, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc92)
      %extracted_slice_18 = tensor.extract_slice %111[0, 0, 3, 0] [1, 1, 7, 32] [1, 1, 1, 1] {df.together} : tensor<1x1x10x32xf32> to tensor<1x1x7x32xf32> loc(#loc92)
      %collapsed_19 = tensor.collapse_shape %extracted_slice_15 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc92)
      %collapsed_20 = tensor.collapse_shape %extracted_slice_16 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc92)
      %collapsed_21 = tensor.collapse_shape %extracted_slice_17 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc92)
      %collapsed_22 = tensor.collapse_shape %extracted_slice_18 [[0, 1, 2], [3]] {df.together} : tensor<1x1x7x32xf32> into tensor<7x32xf32> loc(#loc92)
      %extracted_slice_23 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 0] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
      %extracted_slice_24 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 1] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
      %extracted_slice_25 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 2] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
      %extracted_slice_26 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 3] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
      %collapsed_27 = tensor.collapse_shape %extracted_slice_23 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
      %collapsed_28 = tensor.collapse_shape %extracted_slice_24 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
      %collapsed_29 = tensor.collapse_shape %extracted_slice_25 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
      %collapsed_30 = tensor.collapse_shape %extracted_slice_26 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
      %112 = func.call @addf.26(%collapsed_19, %collapsed_20, %collapsed_21, %collapsed_22, %collapsed_27, %collapsed_28, %collapsed_29, %collapsed_30, %model.layers.1.temporal_block.conv_1d.bias) : (tensor<7x32xf32>, tensor<7x32xf32>, tensor<7x32xf32>, tensor<7x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc92)
      %113 = arith.subi %length, %87 : index loc(#loc92)
      %114 = arith.minsi %113, %c7 : index loc(#loc92)
      %115 = func.call @index_cast.27(%114) : (index) -> tensor<1x3xi64> loc(#loc92)
      %116 = func.call @gather.28(%111, %115, %arg79) : (tensor<1x1x10x32xf32>, tensor<1x3xi64>, tensor<1x1x3x32xf32>) -> tensor<1x1x3x32xf32> loc(#loc92)
      %expanded_31 = tensor.expand_shape %112 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc92)
      %expanded_32 = tensor.expand_shape %extracted_slice_11 [[0], [1, 2]] output_shape [1, 7, 1] : tensor<1x7xi64> into tensor<1x7x1xi64> loc(#loc93)
      %117 = func.call @cmpi.29(%expanded_32) : (tensor<1x7x1xi64>) -> tensor<1x7x1xi1> loc(#loc93)
      %collapsed_33 = tensor.collapse_shape %expanded_31 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc94)
      %expanded_34 = tensor.expand_shape %collapsed_33 [[0], [1, 2]] output_shape [7, 4, 8] : tensor<7x32xf32> into tensor<7x4x8xf32> loc(#loc94)
      %118 = tensor.empty() : tensor<4x7x8xf32> loc(#loc95)
      %transposed_35 = linalg.transpose ins(%expanded_34 : tensor<7x4x8xf32>) outs(%118 : tensor<4x7x8xf32>) permutation = [1, 0, 2]  loc(#loc95)
      %expanded_36 = tensor.expand_shape %model.layers.1.temporal_block.rg_lru.input_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc96)
      %119 = func.call @batch_matmul.30(%transposed_35, %model.layers.1.temporal_block.rg_lru.input_gate_weight) : (tensor<4x7x8xf32>, tensor<4x8x8xf32>) -> tensor<4x7x8xf32> loc(#loc96)
      %120 = func.call @addf.31(%expanded_36, %119) : (tensor<4x1x8xf32>, tensor<4x7x8xf32>) -> tensor<4x7x8xf32> loc(#loc96)
      %121 = tensor.empty() : tensor<7x4x8xf32> loc(#loc97)
      %transposed_37 = linalg.transpose ins(%120 : tensor<4x7x8xf32>) outs(%121 : tensor<7x4x8xf32>) permutation = [1, 0, 2]  loc(#loc97)
      %collapsed_38 = tensor.collapse_shape %transposed_37 [[0], [1, 2]] : tensor<7x4x8xf32> into tensor<7x32xf32> loc(#loc97)
      %expanded_39 = tensor.expand_shape %collapsed_38 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc97)
      %122 = func.call @divf.32(%expanded_39) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc97)
      %expanded_40 = tensor.expand_shape %model.layers.1.temporal_block.rg_lru.recurrent_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc98)
      %123 = func.call @batch_matmul.30(%transposed_35, %model.layers.1.temporal_block.rg_lru.recurrent_gate_weight) : (tensor<4x7x8xf32>, tensor<4x8x8xf32>) -> tensor<4x7x8xf32> loc(#loc98)
      %124 = func.call @addf.31(%expanded_40, %123) : (tensor<4x1x8xf32>, tensor<4x7x8xf32>) -> tensor<4x7x8xf32> loc(#loc98)
      %transposed_41 = linalg.transpose ins(%124 : tensor<4x7x8xf32>) outs(%121 : tensor<7x4x8xf32>) permutation = [1, 0, 2]  loc(#loc99)
      %collapsed_42 = tensor.collapse_shape %transposed_41 [[0], [1, 2]] : tensor<7x4x8xf32> into tensor<7x32xf32> loc(#loc99)
      %expanded_43 = tensor.expand_shape %collapsed_42 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc99)
      %125 = func.call @divf.32(%expanded_43) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc99)
      %126 = func.call @mulf.36(%125) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc100)
      %127 = func.call @exp.37(%model.layers.1.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc100)
      %128 = func.call @log1p.38(%127) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc100)
      %129 = func.call @cmpf.39(%model.layers.1.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xi1> loc(#loc100)
      %130 = func.call @select.40(%129, %model.layers.1.temporal_block.rg_lru.recurrent_param, %128) : (tensor<32xi1>, tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32> loc(#loc100)
      %131 = func.call @mulf.10(%126, %130) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc100)
      %132 = func.call @exp.42(%131) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc101)
      %133 = func.call @mulf.43(%131) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc102)
      %134 = func.call @exp.42(%133) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc102)
      %135 = func.call @mulf.14(%expanded_31, %122) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc103)
      %136 = func.call @subf.46(%134) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc104)
      %137 = func.call @sqrt.47(%136) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc105)
      %138 = func.call @xori.48(%117) : (tensor<1x7x1xi1>) -> tensor<1x7x1xi1> loc(#loc106)
      %139 = func.call @mulf.49(%138, %137) : (tensor<1x7x1xi1>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc106)
      %140 = func.call @addf.50(%117, %139) : (tensor<1x7x1xi1>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc106)
      %141 = func.call @mulf.14(%135, %140) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc107)
      %142 = func.call @mulf.52(%132, %138) : (tensor<1x7x32xf32>, tensor<1x7x1xi1>) -> tensor<1x7x32xf32> loc(#loc108)
      %expanded_44 = tensor.expand_shape %141 [[0], [1], [2, 3]] output_shape [1, 7, 32, 1] : tensor<1x7x32xf32> into tensor<1x7x32x1xf32> loc(#loc108)
      %143 = func.call @log.53(%142) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc108)
      %expanded_45 = tensor.expand_shape %143 [[0], [1], [2, 3]] output_shape [1, 7, 32, 1] : tensor<1x7x32xf32> into tensor<1x7x32x1xf32> loc(#loc108)
      %144:2 = func.call @recurrent_chunk.54(%expanded_44, %expanded_45, %arg80, %87, %length) : (tensor<1x7x32x1xf32>, tensor<1x7x32x1xf32>, tensor<1x32x1x1xf32>, index, index) -> (tensor<1x7x32x1xf32>, tensor<1x32x1x1xf32>) loc(#loc108)
      %collapsed_46 = tensor.collapse_shape %144#0 [[0], [1], [2, 3]] : tensor<1x7x32x1xf32> into tensor<1x7x32xf32> loc(#loc108)
      %145 = func.call @mulf.14(%collapsed_46, %107) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc109)
      %collapsed_47 = tensor.collapse_shape %145 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc110)
      %transposed_48 = linalg.transpose ins(%model.layers.1.temporal_block.linear_out.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc110)
      %146 = func.call @matmul.11(%collapsed_47, %transposed_48) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc110)
      %147 = func.call @addf.12(%146, %model.layers.1.temporal_block.linear_out.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc110)
      %expanded_49 = tensor.expand_shape %147 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc110)
      %148 = func.call @addf.16(%expanded_49, %extracted_slice_10) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc111)
      %149 = func.call @fpowi.3(%148) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc112)
      %150 = func.call @addf.4(%149) : (tensor<1x7x32xf32>) -> tensor<1x7x1xf32> loc(#loc112)
      %151 = func.call @divf.5(%150) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc112)
      %152 = func.call @addf.6(%151) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc112)
      %153 = func.call @rsqrt.7(%152) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc112)
      %154 = func.call @mulf.8(%148, %153) : (tensor<1x7x32xf32>, tensor<1x7x1xf32>) -> tensor<1x7x32xf32> loc(#loc112)
      %155 = func.call @addf.9(%model.layers.1.channel_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc113)
      %156 = func.call @mulf.10(%154, %155) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc113)
      %collapsed_50 = tensor.collapse_shape %156 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc114)
      %157 = tensor.empty() : tensor<32x24xf32> loc(#loc114)
      %transposed_51 = linalg.transpose ins(%model.layers.1.mlp_block.gate_proj.weight : tensor<24x32xf32>) outs(%157 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc114)
      %158 = func.call @matmul.67(%collapsed_50, %transposed_51) : (tensor<7x32xf32>, tensor<32x24xf32>) -> tensor<7x24xf32> loc(#loc114)
      %159 = func.call @addf.68(%158, %model.layers.1.mlp_block.gate_proj.bias) : (tensor<7x24xf32>, tensor<24xf32>) -> tensor<7x24xf32> loc(#loc114)
      %expanded_52 = tensor.expand_shape %159 [[0, 1], [2]] output_shape [1, 7, 24] : tensor<7x24xf32> into tensor<1x7x24xf32> loc(#loc114)
      %160 = func.call @mulf.69(%expanded_52) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %161 = func.call @mulf.70(%160, %expanded_52) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %162 = func.call @mulf.71(%161) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %163 = func.call @addf.72(%expanded_52, %162) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %164 = func.call @mulf.73(%163) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %165 = func.call @mulf.74(%expanded_52) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %166 = func.call @tanh.75(%164) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %167 = func.call @addf.76(%166) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %168 = func.call @mulf.70(%165, %167) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc115)
      %transposed_53 = linalg.transpose ins(%model.layers.1.mlp_block.up_proj.weight : tensor<24x32xf32>) outs(%157 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc116)
      %169 = func.call @matmul.67(%collapsed_50, %transposed_53) : (tensor<7x32xf32>, tensor<32x24xf32>) -> tensor<7x24xf32> loc(#loc116)
      %170 = func.call @addf.68(%169, %model.layers.1.mlp_block.up_proj.bias) : (tensor<7x24xf32>, tensor<24xf32>) -> tensor<7x24xf32> loc(#loc116)
      %expanded_54 = tensor.expand_shape %170 [[0, 1], [2]] output_shape [1, 7, 24] : tensor<7x24xf32> into tensor<1x7x24xf32> loc(#loc116)
      %171 = func.call @mulf.70(%168, %expanded_54) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc117)
      %collapsed_55 = tensor.collapse_shape %171 [[0, 1], [2]] : tensor<1x7x24xf32> into tensor<7x24xf32> loc(#loc118)
      %172 = tensor.empty() : tensor<24x32xf32> loc(#loc118)
      %transposed_56 = linalg.transpose ins(%model.layers.1.mlp_block.down_proj.weight : tensor<32x24xf32>) outs(%172 : tensor<24x32xf32>) permutation = [1, 0]  loc(#loc118)
      %173 = func.call @matmul.81(%collapsed_55, %transposed_56) : (tensor<7x24xf32>, tensor<24x32xf32>) -> tensor<7x32xf32> loc(#loc118)
      %174 = func.call @addf.12(%173, %model.layers.1.mlp_block.down_proj.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc118)
      %expanded_57 = tensor.expand_shape %174 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc118)
      %175 = func.call @addf.16(%expanded_57, %148) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc119)
      %inserted_slice_58 = tensor.insert_slice %175 into %arg78[0, %87, 0] [1, 7, 32] [1, 1, 1] : tensor<1x7x32xf32> into tensor<1x196x32xf32> loc(#loc35)
      scf.yield %inserted_slice_58, %116, %144#1 : tensor<1x196x32xf32>, tensor<1x1x3x32xf32>, tensor<1x32x1x1xf32> loc(#loc35)
    } loc(#loc35)
    %53 = scf.if %47 -> (tensor<2x1x3x32xf32>) {
      %87 = func.call @index_cast.84(%length) : (index) -> tensor<1x3xi64> loc(#loc149)
      %extracted_slice_10 = tensor.extract_slice %extracted_slice_2[%slot, 0, 0, 0] [1, 1, 3, 32] [1, 1, 1, 1] : tensor<2x1x3x32xf32> to tensor<1x1x3x32xf32> loc(#loc149)
      %88 = func.call @gather.85(%52#1, %87, %extracted_slice_10) : (tensor<1x1x3x32xf32>, tensor<1x3xi64>, tensor<1x1x3x32xf32>) -> tensor<1x1x3x32xf32> loc(#loc149)
      %inserted_slice_11 = tensor.insert_slice %88 into %extracted_slice_2[%slot, 0, 0, 0] [1, 1, 3, 32] [1, 1, 1, 1] : tensor<1x1x3x32xf32> into tensor<2x1x3x32xf32> loc(#loc149)
      scf.yield %inserted_slice_11 : tensor<2x1x3x32xf32> loc(#loc35)
    } else {
      scf.yield %extracted_slice_2 : tensor<2x1x3x32xf32> loc(#loc35)
    } loc(#loc35)
    %54 = scf.if %47 -> (tensor<2x32x1x1xf32>) {
      %inserted_slice_10 = tensor.insert_slice %52#2 into %extracted_slice_3[%slot, 0, 0, 0] [1, 32, 1, 1] [1, 1, 1, 1] : tensor<1x32x1x1xf32> into tensor<2x32x1x1xf32> loc(#loc150)
      scf.yield %inserted_slice_10 : tensor<2x32x1x1xf32> loc(#loc35)
    } else {
      scf.yield %extracted_slice_3 : tensor<2x32x1x1xf32> loc(#loc35)
    } loc(#loc35)
    %inserted_slice_4 = tensor.insert_slice %53 into %inserted_slice[1, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x1x3x32xf32> into tensor<2x2x1x3x32xf32> loc(#loc1)
    %inserted_slice_5 = tensor.insert_slice %54 into %inserted_slice_1[1, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x32x1x1xf32> into tensor<2x2x32x1x1xf32> loc(#loc1)
    %c3 = arith.constant 3 : index loc(#loc1)
    %extracted_slice_6 = tensor.extract_slice %k_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<1x2x4x10x8xf32> to tensor<2x4x10x8xf32> loc(#loc1)
    %extracted_slice_7 = tensor.extract_slice %v_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<1x2x4x10x8xf32> to tensor<2x4x10x8xf32> loc(#loc1)
    %55 = arith.muli %c3, %2 : index loc(#loc2)
    %56 = arith.subi %4, %55 : index loc(#loc2)
    %57 = arith.maxsi %56, %c0 : index loc(#loc2)
    %58 = arith.minsi %57, %2 : index loc(#loc2)
    %59 = arith.subi %8, %55 : index loc(#loc2)
    %60 = arith.maxsi %59, %c0 : index loc(#loc2)
    %61 = arith.minsi %60, %2 : index loc(#loc2)
    %62 = arith.cmpi slt, %58, %61 : index loc(#loc2)
    %63 = arith.cmpi eq, %61, %2 : index loc(#loc2)
    %64 = arith.andi %62, %63 : i1 loc(#loc2)
    %65 = arith.addi %58, %reused : index loc(#loc36)
    %66 = arith.minsi %65, %0 : index loc(#loc36)
    %67 = arith.addi %61, %reused : index loc(#loc36)
    %68 = arith.minsi %67, %0 : index loc(#loc36)
    %69:3 = scf.for %arg77 = %66 to %68 step %c1 iter_args(%arg78 = %52#0, %arg79 = %k_scratch.window10, %arg80 = %v_scratch.window10) -> (tensor<1x196x32xf32>, tensor<1x4x196x8xf32>, tensor<1x4x196x8xf32>) {
      %87 = arith.muli %arg77, %c7 : index loc(#loc36)
      %extracted_slice_10 = tensor.extract_slice %arg78[0, %87, 0] [1, 7, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x7x32xf32> loc(#loc36)
      %extracted_slice_11 = tensor.extract_slice %position_ids[0, %87] [1, 7] [1, 1] : tensor<1x196xi64> to tensor<1x7xi64> loc(#loc36)
      %88 = func.call @fpowi.3(%extracted_slice_10) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc120)
      %89 = func.call @addf.4(%88) : (tensor<1x7x32xf32>) -> tensor<1x7x1xf32> loc(#loc120)
      %90 = func.call @divf.5(%89) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc120)
      %91 = func.call @addf.6(%90) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc120)
      %92 = func.call @rsqrt.7(%91) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc120)
      %93 = func.call @mulf.8(%extracted_slice_10, %92) : (tensor<1x7x32xf32>, tensor<1x7x1xf32>) -> tensor<1x7x32xf32> loc(#loc120)
      %94 = func.call @addf.9(%model.layers.2.temporal_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc121)
      %95 = func.call @mulf.10(%93, %94) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc121)
      %96 = tensor.empty() : tensor<32x32xf32> loc(#loc122)
      %transposed = linalg.transpose ins(%temporal_block.q_proj.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc122)
      %collapsed = tensor.collapse_shape %95 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc122)
      %97 = func.call @matmul.11(%collapsed, %transposed) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc122)
      %expanded = tensor.expand_shape %97 [[0, 1], [2, 3]] output_shape [1, 7, 4, 8] : tensor<7x32xf32> into tensor<1x7x4x8xf32> loc(#loc123)
      %98 = tensor.empty() : tensor<1x4x7x8xf32> loc(#loc123)
      %transposed_12 = linalg.transpose ins(%expanded : tensor<1x7x4x8xf32>) outs(%98 : tensor<1x4x7x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc123)
      %transposed_13 = linalg.transpose ins(%temporal_block.k_proj.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc124)
      %99 = func.call @matmul.11(%collapsed, %transposed_13) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc124)
      %expanded_14 = tensor.expand_shape %99 [[0, 1], [2, 3]] output_shape [1, 7, 4, 8] : tensor<7x32xf32> into tensor<1x7x4x8xf32> loc(#loc125)
      %transposed_15 = linalg.transpose ins(%expanded_14 : tensor<1x7x4x8xf32>) outs(%98 : tensor<1x4x7x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc125)
      %transposed_16 = linalg.transpose ins(%temporal_block.v_proj.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc126)
      %100 = func.call @matmul.11(%collapsed, %transposed_16) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc126)
      %expanded_17 = tensor.expand_shape %100 [[0, 1], [2, 3]] output_shape [1, 7, 4, 8] : tensor<7x32xf32> into tensor<1x7x4x8xf32> loc(#loc127)
      %transposed_18 = linalg.transpose ins(%expanded_17 : tensor<1x7x4x8xf32>) outs(%98 : tensor<1x4x7x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc127)
      %expanded_19 = tensor.expand_shape %extracted_slice_11 [[0], [1, 2]] output_shape [1, 7, 1] : tensor<1x7xi64> into tensor<1x7x1xi64> loc(#loc128)
      %101 = func.call @sitofp.180(%expanded_19) : (tensor<1x7x1xi64>) -> tensor<1x7x1xf32> loc(#loc128)
      %102 = func.call @mulf.181(%101, %temporal_block.rotary_emb.inv_freq) : (tensor<1x7x1xf32>, tensor<2xf32>) -> tensor<1x7x2xf32> loc(#loc128)
      %103 = func.call @concat.182(%102) : (tensor<1x7x2xf32>) -> tensor<1x7x4xf32> loc(#loc129)
      %104 = func.call @cos.183(%103) : (tensor<1x7x4xf32>) -> tensor<1x7x4xf32> loc(#loc130)
      %105 = func.call @sin.184(%103) : (tensor<1x7x4xf32>) -> tensor<1x7x4xf32> loc(#loc131)
      %expanded_20 = tensor.expand_shape %104 [[0], [1, 2], [3]] output_shape [1, 1, 7, 4] : tensor<1x7x4xf32> into tensor<1x1x7x4xf32> loc(#loc132)
      %expanded_21 = tensor.expand_shape %105 [[0], [1, 2], [3]] output_shape [1, 1, 7, 4] : tensor<1x7x4xf32> into tensor<1x1x7x4xf32> loc(#loc132)
      %extracted_slice_22 = tensor.extract_slice %transposed_12[0, 0, 0, 0] [1, 4, 7, 4] [1, 1, 1, 1] : tensor<1x4x7x8xf32> to tensor<1x4x7x4xf32> loc(#loc132)
      %extracted_slice_23 = tensor.extract_slice %transposed_12[0, 0, 0, 4] [1, 4, 7, 4] [1, 1, 1, 1] : tensor<1x4x7x8xf32> to tensor<1x4x7x4xf32> loc(#loc132)
      %extracted_slice_24 = tensor.extract_slice %transposed_15[0, 0, 0, 0] [1, 4, 7, 4] [1, 1, 1, 1] : tensor<1x4x7x8xf32> to tensor<1x4x7x4xf32> loc(#loc132)
      %extracted_slice_25 = tensor.extract_slice %transposed_15[0, 0, 0, 4] [1, 4, 7, 4] [1, 1, 1, 1] : tensor<1x4x7x8xf32> to tensor<1x4x7x4xf32> loc(#loc132)
      %106 = func.call @mulf.185(%extracted_slice_22, %expanded_20) : (tensor<1x4x7x4xf32>, tensor<1x1x7x4xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %extracted_slice_26 = tensor.extract_slice %extracted_slice_22[0, 0, 0, 0] [1, 4, 7, 2] [1, 1, 1, 1] : tensor<1x4x7x4xf32> to tensor<1x4x7x2xf32> loc(#loc132)
      %extracted_slice_27 = tensor.extract_slice %extracted_slice_22[0, 0, 0, 2] [1, 4, 7, 2] [1, 1, 1, 1] : tensor<1x4x7x4xf32> to tensor<1x4x7x2xf32> loc(#loc132)
      %107 = func.call @negf.186(%extracted_slice_27) : (tensor<1x4x7x2xf32>) -> tensor<1x4x7x2xf32> loc(#loc132)
      %108 = func.call @concat.187(%107, %extracted_slice_26) : (tensor<1x4x7x2xf32>, tensor<1x4x7x2xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %109 = func.call @mulf.185(%108, %expanded_21) : (tensor<1x4x7x4xf32>, tensor<1x1x7x4xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %110 = func.call @addf.189(%106, %109) : (tensor<1x4x7x4xf32>, tensor<1x4x7x4xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %111 = func.call @mulf.185(%extracted_slice_24, %expanded_20) : (tensor<1x4x7x4xf32>, tensor<1x1x7x4xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %extracted_slice_28 = tensor.extract_slice %extracted_slice_24[0, 0, 0, 0] [1, 4, 7, 2] [1, 1, 1, 1] : tensor<1x4x7x4xf32> to tensor<1x4x7x2xf32> loc(#loc132)
      %extracted_slice_29 = tensor.extract_slice %extracted_slice_24[0, 0, 0, 2] [1, 4, 7, 2] [1, 1, 1, 1] : tensor<1x4x7x4xf32> to tensor<1x4x7x2xf32> loc(#loc132)
      %112 = func.call @negf.186(%extracted_slice_29) : (tensor<1x4x7x2xf32>) -> tensor<1x4x7x2xf32> loc(#loc132)
      %113 = func.call @concat.187(%112, %extracted_slice_28) : (tensor<1x4x7x2xf32>, tensor<1x4x7x2xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %114 = func.call @mulf.185(%113, %expanded_21) : (tensor<1x4x7x4xf32>, tensor<1x1x7x4xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %115 = func.call @addf.189(%111, %114) : (tensor<1x4x7x4xf32>, tensor<1x4x7x4xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
      %116 = func.call @concat.195(%110, %extracted_slice_23) : (tensor<1x4x7x4xf32>, tensor<1x4x7x4xf32>) -> tensor<1x4x7x8xf32> loc(#loc132)
      %117 = func.call @concat.195(%115, %extracted_slice_25) : (tensor<1x4x7x4xf32>, tensor<1x4x7x4xf32>) -> tensor<1x4x7x8xf32> loc(#loc132)
      %inserted_slice_30 = tensor.insert_slice %117 into %arg79[0, 0, %87, 0] [1, 4, 7, 8] [1, 1, 1, 1] : tensor<1x4x7x8xf32> into tensor<1x4x196x8xf32> loc(#loc133)
      %inserted_slice_31 = tensor.insert_slice %transposed_18 into %arg80[0, 0, %87, 0] [1, 4, 7, 8] [1, 1, 1, 1] : tensor<1x4x7x8xf32> into tensor<1x4x196x8xf32> loc(#loc133)
      %118 = func.call @causal_attention.197(%116, %inserted_slice_30, %inserted_slice_31, %87, %length) : (tensor<1x4x7x8xf32>, tensor<1x4x196x8xf32>, tensor<1x4x196x8xf32>, index, index) -> tensor<1x4x7x8xf32> loc(#loc133)
      %119 = tensor.empty() : tensor<1x7x4x8xf32> loc(#loc133)
      %transposed_32 = linalg.transpose ins(%118 : tensor<1x4x7x8xf32>) outs(%119 : tensor<1x7x4x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc133)
      %collapsed_33 = tensor.collapse_shape %transposed_32 [[0, 1], [2, 3]] : tensor<1x7x4x8xf32> into tensor<7x32xf32> loc(#loc134)
      %transposed_34 = linalg.transpose ins(%temporal_block.o_proj.weight : tensor<32x32xf32>) outs(%96 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc134)
      %120 = func.call @matmul.11(%collapsed_33, %transposed_34) : (tensor<7x32xf32>, tensor<32x32xf32>) -> tensor<7x32xf32> loc(#loc134)
      %121 = func.call @addf.12(%120, %temporal_block.o_proj.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc134)
      %expanded_35 = tensor.expand_shape %121 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc134)
      %122 = func.call @addf.16(%expanded_35, %extracted_slice_10) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc135)
      %123 = func.call @fpowi.3(%122) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc136)
      %124 = func.call @addf.4(%123) : (tensor<1x7x32xf32>) -> tensor<1x7x1xf32> loc(#loc136)
      %125 = func.call @divf.5(%124) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc136)
      %126 = func.call @addf.6(%125) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc136)
      %127 = func.call @rsqrt.7(%126) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc136)
      %128 = func.call @mulf.8(%122, %127) : (tensor<1x7x32xf32>, tensor<1x7x1xf32>) -> tensor<1x7x32xf32> loc(#loc136)
      %129 = func.call @addf.9(%model.layers.2.channel_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc137)
      %130 = func.call @mulf.10(%128, %129) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc137)
      %collapsed_36 = tensor.collapse_shape %130 [[0, 1], [2]] : tensor<1x7x32xf32> into tensor<7x32xf32> loc(#loc138)
      %131 = tensor.empty() : tensor<32x24xf32> loc(#loc138)
      %transposed_37 = linalg.transpose ins(%model.layers.2.mlp_block.gate_proj.weight : tensor<24x32xf32>) outs(%131 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc138)
      %132 = func.call @matmul.67(%collapsed_36, %transposed_37) : (tensor<7x32xf32>, tensor<32x24xf32>) -> tensor<7x24xf32> loc(#loc138)
      %133 = func.call @addf.68(%132, %model.layers.2.mlp_block.gate_proj.bias) : (tensor<7x24xf32>, tensor<24xf32>) -> tensor<7x24xf32> loc(#loc138)
      %expanded_38 = tensor.expand_shape %133 [[0, 1], [2]] output_shape [1, 7, 24] : tensor<7x24xf32> into tensor<1x7x24xf32> loc(#loc138)
      %134 = func.call @mulf.69(%expanded_38) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %135 = func.call @mulf.70(%134, %expanded_38) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %136 = func.call @mulf.71(%135) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %137 = func.call @addf.72(%expanded_38, %136) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %138 = func.call @mulf.73(%137) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %139 = func.call @mulf.74(%expanded_38) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %140 = func.call @tanh.75(%138) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %141 = func.call @addf.76(%140) : (tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %142 = func.call @mulf.70(%139, %141) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc139)
      %transposed_39 = linalg.transpose ins(%model.layers.2.mlp_block.up_proj.weight : tensor<24x32xf32>) outs(%131 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc140)
      %143 = func.call @matmul.67(%collapsed_36, %transposed_39) : (tensor<7x32xf32>, tensor<32x24xf32>) -> tensor<7x24xf32> loc(#loc140)
      %144 = func.call @addf.68(%143, %model.layers.2.mlp_block.up_proj.bias) : (tensor<7x24xf32>, tensor<24xf32>) -> tensor<7x24xf32> loc(#loc140)
      %expanded_40 = tensor.expand_shape %144 [[0, 1], [2]] output_shape [1, 7, 24] : tensor<7x24xf32> into tensor<1x7x24xf32> loc(#loc140)
      %145 = func.call @mulf.70(%142, %expanded_40) : (tensor<1x7x24xf32>, tensor<1x7x24xf32>) -> tensor<1x7x24xf32> loc(#loc141)
      %collapsed_41 = tensor.collapse_shape %145 [[0, 1], [2]] : tensor<1x7x24xf32> into tensor<7x24xf32> loc(#loc142)
      %146 = tensor.empty() : tensor<24x32xf32> loc(#loc142)
      %transposed_42 = linalg.transpose ins(%model.layers.2.mlp_block.down_proj.weight : tensor<32x24xf32>) outs(%146 : tensor<24x32xf32>) permutation = [1, 0]  loc(#loc142)
      %147 = func.call @matmul.81(%collapsed_41, %transposed_42) : (tensor<7x24xf32>, tensor<24x32xf32>) -> tensor<7x32xf32> loc(#loc142)
      %148 = func.call @addf.12(%147, %model.layers.2.mlp_block.down_proj.bias) : (tensor<7x32xf32>, tensor<32xf32>) -> tensor<7x32xf32> loc(#loc142)
      %expanded_43 = tensor.expand_shape %148 [[0, 1], [2]] output_shape [1, 7, 32] : tensor<7x32xf32> into tensor<1x7x32xf32> loc(#loc142)
      %149 = func.call @addf.16(%expanded_43, %122) : (tensor<1x7x32xf32>, tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc143)
      %inserted_slice_44 = tensor.insert_slice %149 into %arg78[0, %87, 0] [1, 7, 32] [1, 1, 1] : tensor<1x7x32xf32> into tensor<1x196x32xf32> loc(#loc36)
      scf.yield %inserted_slice_44, %inserted_slice_30, %inserted_slice_31 : tensor<1x196x32xf32>, tensor<1x4x196x8xf32>, tensor<1x4x196x8xf32> loc(#loc36)
    } loc(#loc36)
    %70:2 = scf.if %64 -> (tensor<2x4x10x8xf32>, tensor<2x4x10x8xf32>) {
      %87 = func.call @kept_positions.226(%length) : (index) -> tensor<4x10xi64> loc(#loc151)
      %extracted_slice_10 = tensor.extract_slice %extracted_slice_6[%slot, 0, 0, 0] [1, 4, 10, 8] [1, 1, 1, 1] : tensor<2x4x10x8xf32> to tensor<1x4x10x8xf32> loc(#loc151)
      %88 = func.call @gather.227(%69#1, %87, %extracted_slice_10) : (tensor<1x4x196x8xf32>, tensor<4x10xi64>, tensor<1x4x10x8xf32>) -> tensor<1x4x10x8xf32> loc(#loc151)
      %inserted_slice_11 = tensor.insert_slice %88 into %extracted_slice_6[%slot, 0, 0, 0] [1, 4, 10, 8] [1, 1, 1, 1] : tensor<1x4x10x8xf32> into tensor<2x4x10x8xf32> loc(#loc151)
      %extracted_slice_12 = tensor.extract_slice %extracted_slice_7[%slot, 0, 0, 0] [1, 4, 10, 8] [1, 1, 1, 1] : tensor<2x4x10x8xf32> to tensor<1x4x10x8xf32> loc(#loc151)
      %89 = func.call @gather.227(%69#2, %87, %extracted_slice_12) : (tensor<1x4x196x8xf32>, tensor<4x10xi64>, tensor<1x4x10x8xf32>) -> tensor<1x4x10x8xf32> loc(#loc151)
      %inserted_slice_13 = tensor.insert_slice %89 into %extracted_slice_7[%slot, 0, 0, 0] [1, 4, 10, 8] [1, 1, 1, 1] : tensor<1x4x10x8xf32> into tensor<2x4x10x8xf32> loc(#loc151)
      scf.yield %inserted_slice_11, %inserted_slice_13 : tensor<2x4x10x8xf32>, tensor<2x4x10x8xf32> loc(#loc36)
    } else {
      scf.yield %extracted_slice_6, %extracted_slice_7 : tensor<2x4x10x8xf32>, tensor<2x4x10x8xf32> loc(#loc36)
    } loc(#loc36)
    %inserted_slice_8 = tensor.insert_slice %70#0 into %k_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<2x4x10x8xf32> into tensor<1x2x4x10x8xf32> loc(#loc1)
    %inserted_slice_9 = tensor.insert_slice %70#1 into %v_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<2x4x10x8xf32> into tensor<1x2x4x10x8xf32> loc(#loc1)
    %71 = arith.subi %4, %5 : index loc(#loc2)
    %72 = arith.maxsi %71, %c0 : index loc(#loc2)
    %73 = arith.minsi %72, %c1 : index loc(#loc2)
    %74 = arith.subi %8, %5 : index loc(#loc2)
    %75 = arith.maxsi %74, %c0 : index loc(#loc2)
    %76 = arith.minsi %75, %c1 : index loc(#loc2)
    %77 = arith.cmpi slt, %73, %76 : index loc(#loc2)
    %78 = arith.cmpi eq, %76, %c1 : index loc(#loc2)
    %79 = arith.andi %77, %78 : i1 loc(#loc2)
    %80 = scf.if %79 -> (tensor<1x96xf32>) {
      %87 = arith.subi %0, %c1 : index loc(#loc47)
      %88 = arith.muli %87, %c7 : index loc(#loc47)
      %89 = arith.subi %length, %c1 : index loc(#loc47)
      %90 = arith.subi %89, %88 : index loc(#loc47)
      %extracted_slice_10 = tensor.extract_slice %69#0[0, %88, 0] [1, 7, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x7x32xf32> loc(#loc47)
      %91 = func.call @index_cast.229(%90) : (index) -> tensor<1xi64> loc(#loc47)
      %92 = func.call @fpowi.3(%extracted_slice_10) : (tensor<1x7x32xf32>) -> tensor<1x7x32xf32> loc(#loc144)
      %93 = func.call @addf.4(%92) : (tensor<1x7x32xf32>) -> tensor<1x7x1xf32> loc(#loc144)
      %94 = func.call @divf.5(%93) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc144)
      %95 = func.call @addf.6(%94) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc144)
      %96 = func.call @rsqrt.7(%95) : (tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc144)
      %97 = func.call @mulf.8(%extracted_slice_10, %96) : (tensor<1x7x32xf32>, tensor<1x7x1xf32>) -> tensor<1x7x32xf32> loc(#loc144)
      %98 = func.call @addf.9(%model.final_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc145)
      %99 = func.call @mulf.10(%97, %98) : (tensor<1x7x32xf32>, tensor<32xf32>) -> tensor<1x7x32xf32> loc(#loc145)
      %100 = func.call @index_cast.238() : () -> tensor<32xi64> loc(#loc48)
      %expanded = tensor.expand_shape %91 [[0, 1]] output_shape [1, 1] : tensor<1xi64> into tensor<1x1xi64> loc(#loc48)
      %101 = func.call @extract.239(%expanded, %100, %99) : (tensor<1x1xi64>, tensor<32xi64>, tensor<1x7x32xf32>) -> tensor<1x1x32xf32> loc(#loc48)
      %102 = tensor.empty() : tensor<32x96xf32> loc(#loc146)
      %transposed = linalg.transpose ins(%model.embed_tokens.weight : tensor<96x32xf32>) outs(%102 : tensor<32x96xf32>) permutation = [1, 0]  loc(#loc146)
      %collapsed = tensor.collapse_shape %101 [[0], [1, 2]] : tensor<1x1x32xf32> into tensor<1x32xf32> loc(#loc146)
      %103 = func.call @matmul.240(%collapsed, %transposed) : (tensor<1x32xf32>, tensor<32x96xf32>) -> tensor<1x96xf32> loc(#loc146)
      %expanded_11 = tensor.expand_shape %103 [[0], [1, 2]] output_shape [1, 1, 96] : tensor<1x96xf32> into tensor<1x1x96xf32> loc(#loc146)
      %104 = func.call @divf.241(%expanded_11) : (tensor<1x1x96xf32>) -> tensor<1x1x96xf32> loc(#loc50)
      %105 = func.call @tanh.242(%104) : (tensor<1x1x96xf32>) -> tensor<1x1x96xf32> loc(#loc50)
      %106 = func.call @mulf.243(%105) : (tensor<1x1x96xf32>) -> tensor<1x1x96xf32> loc(#loc50)
      %collapsed_12 = tensor.collapse_shape %106 [[0, 1], [2]] : tensor<1x1x96xf32> into tensor<1x96xf32> loc(#loc47)
      %inserted_slice_13 = tensor.insert_slice %collapsed_12 into %prefill_logits[0, 0] [1, 96] [1, 1] : tensor<1x96xf32> into tensor<1x96xf32> loc(#loc47)
      scf.yield %inserted_slice_13 : tensor<1x96xf32> loc(#loc47)
    } else {
      scf.yield %prefill_logits : tensor<1x96xf32> loc(#loc47)
    } loc(#loc47)
    %81 = arith.cmpi eq, %8, %6 : index loc(#loc1)
    %82 = arith.floordivsi %8, %2 : index loc(#loc1)
    %83 = arith.muli %82, %2 : index loc(#loc1)
    %84 = arith.subi %8, %83 : index loc(#loc1)
    %c5 = arith.constant 5 : index loc(#loc1)
    %85 = arith.select %81, %c5, %82 : index loc(#loc1)
    %86 = arith.select %81, %c0, %84 : index loc(#loc1)
    return %80, %85, %86, %69#0, %52#1, %52#2, %69#1, %69#2, %inserted_slice_4, %inserted_slice_5, %inserted_slice_8, %inserted_slice_9 : tensor<1x96xf32>, index, index, tensor<1x196x32xf32>, tensor<1x1x3x32xf32>, tensor<1x32x1x1xf32>, tensor<1x4x196x8xf32>, tensor<1x4x196x8xf32>, tensor<2x2x1x3x32xf32>, tensor<2x2x32x1x1xf32>, tensor<1x2x4x10x8xf32>, tensor<1x2x4x10x8xf32> loc(#loc1)
  } loc(#loc1)
  func.func public @decode(%token: tensor<2x1xi64> {sscc.input = "token"} loc("decode"),
      %position_id: tensor<2x1xi64> {sscc.input = "position_id"} loc("decode"),
      %position: tensor<2xi64> {sscc.input = "position"} loc("decode"),
      %base: tensor<2xi64> {sscc.input = "base"} loc("decode"),
      %active: tensor<2xi1> {sscc.input = "active"} loc("decode"),
      %inputs_cache.convolution: tensor<2x2x1x3x32xf32> {sscc.state = "inputs_cache.convolution"} loc("decode"),
      %recurrent_cache.recurrence: tensor<2x2x32x1x1xf32> {sscc.state = "recurrent_cache.recurrence"} loc("decode"),
      %k_cache.window10: tensor<1x2x4x10x8xf32> {sscc.state = "k_cache.window10"} loc("decode"),
      %v_cache.window10: tensor<1x2x4x10x8xf32> {sscc.state = "v_cache.window10"} loc("decode"),
      %model.embed_tokens.weight: tensor<96x32xf32> {sscc.weight = "model.embed_tokens.weight"} loc("decode"),
      %model.normalizer: tensor<bf16> {sscc.constant = "model.normalizer"} loc("decode"),
      %model.layers.0.temporal_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_pre_norm.weight"} loc("decode"),
      %model.layers.0.temporal_block.linear_y.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_y.weight"} loc("decode"),
      %model.layers.0.temporal_block.linear_y.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_y.bias"} loc("decode"),
      %model.layers.0.temporal_block.linear_x.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_x.weight"} loc("decode"),
      %model.layers.0.temporal_block.linear_x.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_x.bias"} loc("decode"),
      %model.layers.0.temporal_block.linear_out.weight: tensor<32x32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_out.weight"} loc("decode"),
      %model.layers.0.temporal_block.linear_out.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.linear_out.bias"} loc("decode"),
      %model.layers.0.temporal_block.conv_1d.weight: tensor<32x1x4xf32> {sscc.weight = "model.layers.0.temporal_block.conv_1d.weight"} loc("decode"),
      %model.layers.0.temporal_block.conv_1d.bias: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.conv_1d.bias"} loc("decode"),
      %model.layers.0.temporal_block.rg_lru.recurrent_param: tensor<32xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.recurrent_param"} loc("decode"),
      %model.layers.0.temporal_block.rg_lru.input_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.input_gate_weight"} loc("decode"),
      %model.layers.0.temporal_block.rg_lru.input_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.input_gate_bias"} loc("decode"),
      %model.layers.0.temporal_block.rg_lru.recurrent_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.recurrent_gate_weight"} loc("decode"),
      %model.layers.0.temporal_block.rg_lru.recurrent_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.0.temporal_block.rg_lru.recurrent_gate_bias"} loc("decode"),
      %model.layers.0.channel_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.0.channel_pre_norm.weight"} loc("decode"),
      %model.layers.0.mlp_block.gate_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.0.mlp_block.gate_proj.weight"} loc("decode"),
      %model.layers.0.mlp_block.gate_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.0.mlp_block.gate_proj.bias"} loc("decode"),
      %model.layers.0.mlp_block.up_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.0.mlp_block.up_proj.weight"} loc("decode"),
      %model.layers.0.mlp_block.up_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.0.mlp_block.up_proj.bias"} loc("decode"),
      %model.layers.0.mlp_block.down_proj.weight: tensor<32x24xf32> {sscc.weight = "model.layers.0.mlp_block.down_proj.weight"} loc("decode"),
      %model.layers.0.mlp_block.down_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.0.mlp_block.down_proj.bias"} loc("decode"),
      %model.layers.1.temporal_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_pre_norm.weight"} loc("decode"),
      %model.layers.1.temporal_block.linear_y.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_y.weight"} loc("decode"),
      %model.layers.1.temporal_block.linear_y.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_y.bias"} loc("decode"),
      %model.layers.1.temporal_block.linear_x.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_x.weight"} loc("decode"),
      %model.layers.1.temporal_block.linear_x.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_x.bias"} loc("decode"),
      %model.layers.1.temporal_block.linear_out.weight: tensor<32x32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_out.weight"} loc("decode"),
      %model.layers.1.temporal_block.linear_out.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.linear_out.bias"} loc("decode"),
      %model.layers.1.temporal_block.conv_1d.weight: tensor<32x1x4xf32> {sscc.weight = "model.layers.1.temporal_block.conv_1d.weight"} loc("decode"),
      %model.layers.1.temporal_block.conv_1d.bias: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.conv_1d.bias"} loc("decode"),
      %model.layers.1.temporal_block.rg_lru.recurrent_param: tensor<32xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.recurrent_param"} loc("decode"),
      %model.layers.1.temporal_block.rg_lru.input_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.input_gate_weight"} loc("decode"),
      %model.layers.1.temporal_block.rg_lru.input_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.input_gate_bias"} loc("decode"),
      %model.layers.1.temporal_block.rg_lru.recurrent_gate_weight: tensor<4x8x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.recurrent_gate_weight"} loc("decode"),
      %model.layers.1.temporal_block.rg_lru.recurrent_gate_bias: tensor<4x8xf32> {sscc.weight = "model.layers.1.temporal_block.rg_lru.recurrent_gate_bias"} loc("decode"),
      %model.layers.1.channel_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.1.channel_pre_norm.weight"} loc("decode"),
      %model.layers.1.mlp_block.gate_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.1.mlp_block.gate_proj.weight"} loc("decode"),
      %model.layers.1.mlp_block.gate_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.1.mlp_block.gate_proj.bias"} loc("decode"),
      %model.layers.1.mlp_block.up_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.1.mlp_block.up_proj.weight"} loc("decode"),
      %model.layers.1.mlp_block.up_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.1.mlp_block.up_proj.bias"} loc("decode"),
      %model.layers.1.mlp_block.down_proj.weight: tensor<32x24xf32> {sscc.weight = "model.layers.1.mlp_block.down_proj.weight"} loc("decode"),
      %model.layers.1.mlp_block.down_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.1.mlp_block.down_proj.bias"} loc("decode"),
      %model.layers.2.temporal_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.2.temporal_pre_norm.weight"} loc("decode"),
      %temporal_block.q_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.q_proj.weight"} loc("decode"),
      %temporal_block.k_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.k_proj.weight"} loc("decode"),
      %temporal_block.v_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.v_proj.weight"} loc("decode"),
      %temporal_block.o_proj.weight: tensor<32x32xf32> {sscc.weight = "model.layers.2.temporal_block.o_proj.weight"} loc("decode"),
      %temporal_block.o_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.2.temporal_block.o_proj.bias"} loc("decode"),
      %model.layers.2.channel_pre_norm.weight: tensor<32xf32> {sscc.weight = "model.layers.2.channel_pre_norm.weight"} loc("decode"),
      %model.layers.2.mlp_block.gate_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.2.mlp_block.gate_proj.weight"} loc("decode"),
      %model.layers.2.mlp_block.gate_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.2.mlp_block.gate_proj.bias"} loc("decode"),
      %model.layers.2.mlp_block.up_proj.weight: tensor<24x32xf32> {sscc.weight = "model.layers.2.mlp_block.up_proj.weight"} loc("decode"),
      %model.layers.2.mlp_block.up_proj.bias: tensor<24xf32> {sscc.weight = "model.layers.2.mlp_block.up_proj.bias"} loc("decode"),
      %model.layers.2.mlp_block.down_proj.weight: tensor<32x24xf32> {sscc.weight = "model.layers.2.mlp_block.down_proj.weight"} loc("decode"),
      %model.layers.2.mlp_block.down_proj.bias: tensor<32xf32> {sscc.weight = "model.layers.2.mlp_block.down_proj.bias"} loc("decode"),
      %temporal_block.rotary_emb.inv_freq: tensor<2xf32> {sscc.constant = "model.layers.2.temporal_block.rotary_emb.inv_freq"} loc("decode"),
      %model.final_norm.weight: tensor<32xf32> {sscc.weight = "model.final_norm.weight"} loc("decode")) -> (tensor<2x96xf32> {sscc.output = "logits"}, tensor<2x2x1x3x32xf32> {sscc.state = "inputs_cache.convolution"}, tensor<2x2x32x1x1xf32> {sscc.state = "recurrent_cache.recurrence"}, tensor<1x2x4x10x8xf32> {sscc.state = "k_cache.window10"}, tensor<1x2x4x10x8xf32> {sscc.state = "v_cache.window10"}) {
    %0 = call @extract.244(%token, %model.embed_tokens.weight) : (tensor<2x1xi64>, tensor<96x32xf32>) -> tensor<2x1x32xf32> loc(#loc53)
    %1 = call @extf.1(%model.normalizer) : (tensor<bf16>) -> tensor<f32> loc(#loc5)
    %2 = call @mulf.246(%0, %1) : (tensor<2x1x32xf32>, tensor<f32>) -> tensor<2x1x32xf32> loc(#loc5)
    %extracted_slice = tensor.extract_slice %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x2x1x3x32xf32> to tensor<2x1x3x32xf32> loc(#loc51)
    %extracted_slice_0 = tensor.extract_slice %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x2x32x1x1xf32> to tensor<2x32x1x1xf32> loc(#loc51)
    %3 = call @fpowi.247(%2) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc54)
    %4 = call @addf.248(%3) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc54)
    %5 = call @divf.249(%4) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc54)
    %6 = call @addf.250(%5) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc54)
    %7 = call @rsqrt.251(%6) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc54)
    %8 = call @mulf.252(%2, %7) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc54)
    %9 = call @addf.9(%model.layers.0.temporal_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc55)
    %10 = call @mulf.254(%8, %9) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc55)
    %collapsed = tensor.collapse_shape %10 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc56)
    %11 = tensor.empty() : tensor<32x32xf32> loc(#loc56)
    %transposed = linalg.transpose ins(%model.layers.0.temporal_block.linear_y.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc56)
    %12 = call @matmul.255(%collapsed, %transposed) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc56)
    %13 = call @addf.256(%12, %model.layers.0.temporal_block.linear_y.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc56)
    %expanded = tensor.expand_shape %13 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc56)
    %14 = call @mulf.257(%expanded) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %15 = call @mulf.258(%14, %expanded) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %16 = call @mulf.259(%15) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %17 = call @addf.260(%expanded, %16) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %18 = call @mulf.261(%17) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %19 = call @mulf.262(%expanded) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %20 = call @tanh.263(%18) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %21 = call @addf.264(%20) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %22 = call @mulf.258(%19, %21) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc57)
    %transposed_1 = linalg.transpose ins(%model.layers.0.temporal_block.linear_x.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc58)
    %23 = call @matmul.255(%collapsed, %transposed_1) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc58)
    %24 = call @addf.256(%23, %model.layers.0.temporal_block.linear_x.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc58)
    %expanded_2 = tensor.expand_shape %24 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc58)
    %collapsed_3 = tensor.collapse_shape %expanded_2 [[0, 1], [2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc59)
    %extracted_slice_4 = tensor.extract_slice %extracted_slice[0, 0, 0, 0] [2, 1, 1, 32] [1, 1, 1, 1] {df.together} : tensor<2x1x3x32xf32> to tensor<2x1x1x32xf32> loc(#loc59)
    %extracted_slice_5 = tensor.extract_slice %extracted_slice[0, 0, 1, 0] [2, 1, 1, 32] [1, 1, 1, 1] {df.together} : tensor<2x1x3x32xf32> to tensor<2x1x1x32xf32> loc(#loc59)
    %extracted_slice_6 = tensor.extract_slice %extracted_slice[0, 0, 2, 0] [2, 1, 1, 32] [1, 1, 1, 1] {df.together} : tensor<2x1x3x32xf32> to tensor<2x1x1x32xf32> loc(#loc59)
    %collapsed_7 = tensor.collapse_shape %extracted_slice_4 [[0, 1, 2], [3]] {df.together} : tensor<2x1x1x32xf32> into tensor<2x32xf32> loc(#loc59)
    %collapsed_8 = tensor.collapse_shape %extracted_slice_5 [[0, 1, 2], [3]] {df.together} : tensor<2x1x1x32xf32> into tensor<2x32xf32> loc(#loc59)
    %collapsed_9 = tensor.collapse_shape %extracted_slice_6 [[0, 1, 2], [3]] {df.together} : tensor<2x1x1x32xf32> into tensor<2x32xf32> loc(#loc59)
    %extracted_slice_10 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 0] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
    %extracted_slice_11 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 1] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
    %extracted_slice_12 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 2] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
    %extracted_slice_13 = tensor.extract_slice %model.layers.0.temporal_block.conv_1d.weight[0, 0, 3] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc59)
    %collapsed_14 = tensor.collapse_shape %extracted_slice_10 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
    %collapsed_15 = tensor.collapse_shape %extracted_slice_11 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
    %collapsed_16 = tensor.collapse_shape %extracted_slice_12 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
    %collapsed_17 = tensor.collapse_shape %extracted_slice_13 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc59)
    %25 = call @addf.268(%position, %collapsed_7, %collapsed_8, %collapsed_9, %collapsed_3, %collapsed_14, %collapsed_15, %collapsed_16, %collapsed_17, %model.layers.0.temporal_block.conv_1d.bias) : (tensor<2xi64>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc59)
    %26 = call @row.269(%position) : (tensor<2xi64>) -> tensor<2xi64> loc(#loc59)
    %expanded_18 = tensor.expand_shape %collapsed_3 [[0, 1, 2], [3]] output_shape [2, 1, 1, 32] {df.together} : tensor<2x32xf32> into tensor<2x1x1x32xf32> loc(#loc59)
    %27 = call @update.270(%extracted_slice, %expanded_18, %26, %active) : (tensor<2x1x3x32xf32>, tensor<2x1x1x32xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x1x3x32xf32> loc(#loc59)
    %expanded_19 = tensor.expand_shape %25 [[0, 1], [2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc59)
    %expanded_20 = tensor.expand_shape %position_id [[0], [1, 2]] output_shape [2, 1, 1] : tensor<2x1xi64> into tensor<2x1x1xi64> loc(#loc60)
    %28 = call @cmpi.271(%expanded_20) : (tensor<2x1x1xi64>) -> tensor<2x1x1xi1> loc(#loc60)
    %collapsed_21 = tensor.collapse_shape %expanded_19 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc61)
    %expanded_22 = tensor.expand_shape %collapsed_21 [[0], [1, 2]] output_shape [2, 4, 8] : tensor<2x32xf32> into tensor<2x4x8xf32> loc(#loc61)
    %29 = tensor.empty() : tensor<4x2x8xf32> loc(#loc62)
    %transposed_23 = linalg.transpose ins(%expanded_22 : tensor<2x4x8xf32>) outs(%29 : tensor<4x2x8xf32>) permutation = [1, 0, 2]  loc(#loc62)
    %expanded_24 = tensor.expand_shape %model.layers.0.temporal_block.rg_lru.input_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc63)
    %30 = call @batch_matmul.272(%transposed_23, %model.layers.0.temporal_block.rg_lru.input_gate_weight) : (tensor<4x2x8xf32>, tensor<4x8x8xf32>) -> tensor<4x2x8xf32> loc(#loc63)
    %31 = call @addf.273(%expanded_24, %30) : (tensor<4x1x8xf32>, tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc63)
    %32 = tensor.empty() : tensor<2x4x8xf32> loc(#loc64)
    %transposed_25 = linalg.transpose ins(%31 : tensor<4x2x8xf32>) outs(%32 : tensor<2x4x8xf32>) permutation = [1, 0, 2]  loc(#loc64)
    %collapsed_26 = tensor.collapse_shape %transposed_25 [[0], [1, 2]] : tensor<2x4x8xf32> into tensor<2x32xf32> loc(#loc64)
    %expanded_27 = tensor.expand_shape %collapsed_26 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc64)
    %33 = call @divf.274(%expanded_27) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc64)
    %expanded_28 = tensor.expand_shape %model.layers.0.temporal_block.rg_lru.recurrent_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc65)
    %34 = call @batch_matmul.272(%transposed_23, %model.layers.0.temporal_block.rg_lru.recurrent_gate_weight) : (tensor<4x2x8xf32>, tensor<4x8x8xf32>) -> tensor<4x2x8xf32> loc(#loc65)
    %35 = call @addf.273(%expanded_28, %34) : (tensor<4x1x8xf32>, tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc65)
    %transposed_29 = linalg.transpose ins(%35 : tensor<4x2x8xf32>) outs(%32 : tensor<2x4x8xf32>) permutation = [1, 0, 2]  loc(#loc66)
    %collapsed_30 = tensor.collapse_shape %transposed_29 [[0], [1, 2]] : tensor<2x4x8xf32> into tensor<2x32xf32> loc(#loc66)
    %expanded_31 = tensor.expand_shape %collapsed_30 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc66)
    %36 = call @divf.274(%expanded_31) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc66)
    %37 = call @mulf.278(%36) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc67)
    %38 = call @exp.37(%model.layers.0.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc67)
    %39 = call @log1p.38(%38) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc67)
    %40 = call @cmpf.39(%model.layers.0.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xi1> loc(#loc67)
    %41 = call @select.40(%40, %model.layers.0.temporal_block.rg_lru.recurrent_param, %39) : (tensor<32xi1>, tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32> loc(#loc67)
    %42 = call @mulf.254(%37, %41) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc67)
    %43 = call @exp.284(%42) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc68)
    %44 = call @mulf.285(%42) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc69)
    %45 = call @exp.284(%44) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc69)
    %46 = call @mulf.258(%expanded_19, %33) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc70)
    %47 = call @subf.288(%45) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc71)
    %48 = call @sqrt.289(%47) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc72)
    %49 = call @xori.290(%28) : (tensor<2x1x1xi1>) -> tensor<2x1x1xi1> loc(#loc73)
    %50 = call @mulf.291(%49, %48) : (tensor<2x1x1xi1>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc73)
    %51 = call @addf.292(%28, %50) : (tensor<2x1x1xi1>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc73)
    %52 = call @mulf.258(%46, %51) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc74)
    %53 = call @mulf.294(%43, %49) : (tensor<2x1x32xf32>, tensor<2x1x1xi1>) -> tensor<2x1x32xf32> loc(#loc75)
    %expanded_32 = tensor.expand_shape %52 [[0], [1], [2, 3]] output_shape [2, 1, 32, 1] : tensor<2x1x32xf32> into tensor<2x1x32x1xf32> loc(#loc75)
    %54 = call @log.295(%53) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc75)
    %expanded_33 = tensor.expand_shape %54 [[0], [1], [2, 3]] output_shape [2, 1, 32, 1] : tensor<2x1x32xf32> into tensor<2x1x32x1xf32> loc(#loc75)
    %55:2 = call @recurrent_step.296(%expanded_32, %expanded_33, %extracted_slice_0, %active) : (tensor<2x1x32x1xf32>, tensor<2x1x32x1xf32>, tensor<2x32x1x1xf32>, tensor<2xi1>) -> (tensor<2x1x32x1xf32>, tensor<2x32x1x1xf32>) loc(#loc75)
    %collapsed_34 = tensor.collapse_shape %55#0 [[0], [1], [2, 3]] : tensor<2x1x32x1xf32> into tensor<2x1x32xf32> loc(#loc75)
    %56 = call @mulf.258(%collapsed_34, %22) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc76)
    %collapsed_35 = tensor.collapse_shape %56 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc77)
    %transposed_36 = linalg.transpose ins(%model.layers.0.temporal_block.linear_out.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc77)
    %57 = call @matmul.255(%collapsed_35, %transposed_36) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc77)
    %58 = call @addf.256(%57, %model.layers.0.temporal_block.linear_out.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc77)
    %expanded_37 = tensor.expand_shape %58 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc77)
    %59 = call @addf.260(%expanded_37, %2) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc78)
    %60 = call @fpowi.247(%59) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc79)
    %61 = call @addf.248(%60) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc79)
    %62 = call @divf.249(%61) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc79)
    %63 = call @addf.250(%62) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc79)
    %64 = call @rsqrt.251(%63) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc79)
    %65 = call @mulf.252(%59, %64) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc79)
    %66 = call @addf.9(%model.layers.0.channel_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc80)
    %67 = call @mulf.254(%65, %66) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc80)
    %collapsed_38 = tensor.collapse_shape %67 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc81)
    %68 = tensor.empty() : tensor<32x24xf32> loc(#loc81)
    %transposed_39 = linalg.transpose ins(%model.layers.0.mlp_block.gate_proj.weight : tensor<24x32xf32>) outs(%68 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc81)
    %69 = call @matmul.309(%collapsed_38, %transposed_39) : (tensor<2x32xf32>, tensor<32x24xf32>) -> tensor<2x24xf32> loc(#loc81)
    %70 = call @addf.310(%69, %model.layers.0.mlp_block.gate_proj.bias) : (tensor<2x24xf32>, tensor<24xf32>) -> tensor<2x24xf32> loc(#loc81)
    %expanded_40 = tensor.expand_shape %70 [[0], [1, 2]] output_shape [2, 1, 24] : tensor<2x24xf32> into tensor<2x1x24xf32> loc(#loc81)
    %71 = call @mulf.311(%expanded_40) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %72 = call @mulf.312(%71, %expanded_40) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %73 = call @mulf.313(%72) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %74 = call @addf.314(%expanded_40, %73) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %75 = call @mulf.315(%74) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %76 = call @mulf.316(%expanded_40) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %77 = call @tanh.317(%75) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %78 = call @addf.318(%77) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %79 = call @mulf.312(%76, %78) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc82)
    %transposed_41 = linalg.transpose ins(%model.layers.0.mlp_block.up_proj.weight : tensor<24x32xf32>) outs(%68 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc83)
    %80 = call @matmul.309(%collapsed_38, %transposed_41) : (tensor<2x32xf32>, tensor<32x24xf32>) -> tensor<2x24xf32> loc(#loc83)
    %81 = call @addf.310(%80, %model.layers.0.mlp_block.up_proj.bias) : (tensor<2x24xf32>, tensor<24xf32>) -> tensor<2x24xf32> loc(#loc83)
    %expanded_42 = tensor.expand_shape %81 [[0], [1, 2]] output_shape [2, 1, 24] : tensor<2x24xf32> into tensor<2x1x24xf32> loc(#loc83)
    %82 = call @mulf.312(%79, %expanded_42) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc84)
    %collapsed_43 = tensor.collapse_shape %82 [[0], [1, 2]] : tensor<2x1x24xf32> into tensor<2x24xf32> loc(#loc85)
    %83 = tensor.empty() : tensor<24x32xf32> loc(#loc85)
    %transposed_44 = linalg.transpose ins(%model.layers.0.mlp_block.down_proj.weight : tensor<32x24xf32>) outs(%83 : tensor<24x32xf32>) permutation = [1, 0]  loc(#loc85)
    %84 = call @matmul.323(%collapsed_43, %transposed_44) : (tensor<2x24xf32>, tensor<24x32xf32>) -> tensor<2x32xf32> loc(#loc85)
    %85 = call @addf.256(%84, %model.layers.0.mlp_block.down_proj.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc85)
    %expanded_45 = tensor.expand_shape %85 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc85)
    %86 = call @addf.260(%expanded_45, %59) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc86)
    %inserted_slice = tensor.insert_slice %27 into %inputs_cache.convolution[0, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x1x3x32xf32> into tensor<2x2x1x3x32xf32> loc(#loc51)
    %inserted_slice_46 = tensor.insert_slice %55#1 into %recurrent_cache.recurrence[0, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x32x1x1xf32> into tensor<2x2x32x1x1xf32> loc(#loc51)
    %extracted_slice_47 = tensor.extract_slice %inserted_slice[1, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x2x1x3x32xf32> to tensor<2x1x3x32xf32> loc(#loc51)
    %extracted_slice_48 = tensor.extract_slice %inserted_slice_46[1, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x2x32x1x1xf32> to tensor<2x32x1x1xf32> loc(#loc51)
    %87 = call @fpowi.247(%86) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc87)
    %88 = call @addf.248(%87) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc87)
    %89 = call @divf.249(%88) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc87)
    %90 = call @addf.250(%89) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc87)
    %91 = call @rsqrt.251(%90) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc87)
    %92 = call @mulf.252(%86, %91) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc87)
    %93 = call @addf.9(%model.layers.1.temporal_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc88)
    %94 = call @mulf.254(%92, %93) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc88)
    %collapsed_49 = tensor.collapse_shape %94 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc89)
    %transposed_50 = linalg.transpose ins(%model.layers.1.temporal_block.linear_y.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc89)
    %95 = call @matmul.255(%collapsed_49, %transposed_50) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc89)
    %96 = call @addf.256(%95, %model.layers.1.temporal_block.linear_y.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc89)
    %expanded_51 = tensor.expand_shape %96 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc89)
    %97 = call @mulf.257(%expanded_51) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %98 = call @mulf.258(%97, %expanded_51) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %99 = call @mulf.259(%98) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %100 = call @addf.260(%expanded_51, %99) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %101 = call @mulf.261(%100) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %102 = call @mulf.262(%expanded_51) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %103 = call @tanh.263(%101) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %104 = call @addf.264(%103) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %105 = call @mulf.258(%102, %104) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc90)
    %transposed_52 = linalg.transpose ins(%model.layers.1.temporal_block.linear_x.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc91)
    %106 = call @matmul.255(%collapsed_49, %transposed_52) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc91)
    %107 = call @addf.256(%106, %model.layers.1.temporal_block.linear_x.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc91)
    %expanded_53 = tensor.expand_shape %107 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc91)
    %collapsed_54 = tensor.collapse_shape %expanded_53 [[0, 1], [2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc92)
    %extracted_slice_55 = tensor.extract_slice %extracted_slice_47[0, 0, 0, 0] [2, 1, 1, 32] [1, 1, 1, 1] {df.together} : tensor<2x1x3x32xf32> to tensor<2x1x1x32xf32> loc(#loc92)
    %extracted_slice_56 = tensor.extract_slice %extracted_slice_47[0, 0, 1, 0] [2, 1, 1, 32] [1, 1, 1, 1] {df.together} : tensor<2x1x3x32xf32> to tensor<2x1x1x32xf32> loc(#loc92)
    %extracted_slice_57 = tensor.extract_slice %extracted_slice_47[0, 0, 2, 0] [2, 1, 1, 32] [1, 1, 1, 1] {df.together} : tensor<2x1x3x32xf32> to tensor<2x1x1x32xf32> loc(#loc92)
    %collapsed_58 = tensor.collapse_shape %extracted_slice_55 [[0, 1, 2], [3]] {df.together} : tensor<2x1x1x32xf32> into tensor<2x32xf32> loc(#loc92)
    %collapsed_59 = tensor.collapse_shape %extracted_slice_56 [[0, 1, 2], [3]] {df.together} : tensor<2x1x1x32xf32> into tensor<2x32xf32> loc(#loc92)
    %collapsed_60 = tensor.collapse_shape %extracted_slice_57 [[0, 1, 2], [3]] {df.together} : tensor<2x1x1x32xf32> into tensor<2x32xf32> loc(#loc92)
    %extracted_slice_61 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 0] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
    %extracted_slice_62 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 1] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
    %extracted_slice_63 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 2] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
    %extracted_slice_64 = tensor.extract_slice %model.layers.1.temporal_block.conv_1d.weight[0, 0, 3] [32, 1, 1] [1, 1, 1] {df.together} : tensor<32x1x4xf32> to tensor<32x1x1xf32> loc(#loc92)
    %collapsed_65 = tensor.collapse_shape %extracted_slice_61 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
    %collapsed_66 = tensor.collapse_shape %extracted_slice_62 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
    %collapsed_67 = tensor.collapse_shape %extracted_slice_63 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
    %collapsed_68 = tensor.collapse_shape %extracted_slice_64 [[0, 1, 2]] {df.together} : tensor<32x1x1xf32> into tensor<32xf32> loc(#loc92)
    %108 = call @addf.268(%position, %collapsed_58, %collapsed_59, %collapsed_60, %collapsed_54, %collapsed_65, %collapsed_66, %collapsed_67, %collapsed_68, %model.layers.1.temporal_block.conv_1d.bias) : (tensor<2xi64>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc92)
    %109 = call @row.269(%position) : (tensor<2xi64>) -> tensor<2xi64> loc(#loc92)
    %expanded_69 = tensor.expand_shape %collapsed_54 [[0, 1, 2], [3]] output_shape [2, 1, 1, 32] {df.together} : tensor<2x32xf32> into tensor<2x1x1x32xf32> loc(#loc92)
    %110 = call @update.270(%extracted_slice_47, %expanded_69, %109, %active) : (tensor<2x1x3x32xf32>, tensor<2x1x1x32xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x1x3x32xf32> loc(#loc92)
    %expanded_70 = tensor.expand_shape %108 [[0, 1], [2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc92)
    %111 = call @cmpi.271(%expanded_20) : (tensor<2x1x1xi64>) -> tensor<2x1x1xi1> loc(#loc93)
    %collapsed_71 = tensor.collapse_shape %expanded_70 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc94)
    %expanded_72 = tensor.expand_shape %collapsed_71 [[0], [1, 2]] output_shape [2, 4, 8] : tensor<2x32xf32> into tensor<2x4x8xf32> loc(#loc94)
    %transposed_73 = linalg.transpose ins(%expanded_72 : tensor<2x4x8xf32>) outs(%29 : tensor<4x2x8xf32>) permutation = [1, 0, 2]  loc(#loc95)
    %expanded_74 = tensor.expand_shape %model.layers.1.temporal_block.rg_lru.input_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc96)
    %112 = call @batch_matmul.272(%transposed_73, %model.layers.1.temporal_block.rg_lru.input_gate_weight) : (tensor<4x2x8xf32>, tensor<4x8x8xf32>) -> tensor<4x2x8xf32> loc(#loc96)
    %113 = call @addf.273(%expanded_74, %112) : (tensor<4x1x8xf32>, tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc96)
    %transposed_75 = linalg.transpose ins(%113 : tensor<4x2x8xf32>) outs(%32 : tensor<2x4x8xf32>) permutation = [1, 0, 2]  loc(#loc97)
    %collapsed_76 = tensor.collapse_shape %transposed_75 [[0], [1, 2]] : tensor<2x4x8xf32> into tensor<2x32xf32> loc(#loc97)
    %expanded_77 = tensor.expand_shape %collapsed_76 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc97)
    %114 = call @divf.274(%expanded_77) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc97)
    %expanded_78 = tensor.expand_shape %model.layers.1.temporal_block.rg_lru.recurrent_gate_bias [[0], [1, 2]] output_shape [4, 1, 8] : tensor<4x8xf32> into tensor<4x1x8xf32> loc(#loc98)
    %115 = call @batch_matmul.272(%transposed_73, %model.layers.1.temporal_block.rg_lru.recurrent_gate_weight) : (tensor<4x2x8xf32>, tensor<4x8x8xf32>) -> tensor<4x2x8xf32> loc(#loc98)
    %116 = call @addf.273(%expanded_78, %115) : (tensor<4x1x8xf32>, tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc98)
    %transposed_79 = linalg.transpose ins(%116 : tensor<4x2x8xf32>) outs(%32 : tensor<2x4x8xf32>) permutation = [1, 0, 2]  loc(#loc99)
    %collapsed_80 = tensor.collapse_shape %transposed_79 [[0], [1, 2]] : tensor<2x4x8xf32> into tensor<2x32xf32> loc(#loc99)
    %expanded_81 = tensor.expand_shape %collapsed_80 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc99)
    %117 = call @divf.274(%expanded_81) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc99)
    %118 = call @mulf.278(%117) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc100)
    %119 = call @exp.37(%model.layers.1.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc100)
    %120 = call @log1p.38(%119) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc100)
    %121 = call @cmpf.39(%model.layers.1.temporal_block.rg_lru.recurrent_param) : (tensor<32xf32>) -> tensor<32xi1> loc(#loc100)
    %122 = call @select.40(%121, %model.layers.1.temporal_block.rg_lru.recurrent_param, %120) : (tensor<32xi1>, tensor<32xf32>, tensor<32xf32>) -> tensor<32xf32> loc(#loc100)
    %123 = call @mulf.254(%118, %122) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc100)
    %124 = call @exp.284(%123) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc101)
    %125 = call @mulf.285(%123) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc102)
    %126 = call @exp.284(%125) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc102)
    %127 = call @mulf.258(%expanded_70, %114) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc103)
    %128 = call @subf.288(%126) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc104)
    %129 = call @sqrt.289(%128) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc105)
    %130 = call @xori.290(%111) : (tensor<2x1x1xi1>) -> tensor<2x1x1xi1> loc(#loc106)
    %131 = call @mulf.291(%130, %129) : (tensor<2x1x1xi1>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc106)
    %132 = call @addf.292(%111, %131) : (tensor<2x1x1xi1>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc106)
    %133 = call @mulf.258(%127, %132) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc107)
    %134 = call @mulf.294(%124, %130) : (tensor<2x1x32xf32>, tensor<2x1x1xi1>) -> tensor<2x1x32xf32> loc(#loc108)
    %expanded_82 = tensor.expand_shape %133 [[0], [1], [2, 3]] output_shape [2, 1, 32, 1] : tensor<2x1x32xf32> into tensor<2x1x32x1xf32> loc(#loc108)
    %135 = call @log.295(%134) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc108)
    %expanded_83 = tensor.expand_shape %135 [[0], [1], [2, 3]] output_shape [2, 1, 32, 1] : tensor<2x1x32xf32> into tensor<2x1x32x1xf32> loc(#loc108)
    %136:2 = call @recurrent_step.296(%expanded_82, %expanded_83, %extracted_slice_48, %active) : (tensor<2x1x32x1xf32>, tensor<2x1x32x1xf32>, tensor<2x32x1x1xf32>, tensor<2xi1>) -> (tensor<2x1x32x1xf32>, tensor<2x32x1x1xf32>) loc(#loc108)
    %collapsed_84 = tensor.collapse_shape %136#0 [[0], [1], [2, 3]] : tensor<2x1x32x1xf32> into tensor<2x1x32xf32> loc(#loc108)
    %137 = call @mulf.258(%collapsed_84, %105) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc109)
    %collapsed_85 = tensor.collapse_shape %137 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc110)
    %transposed_86 = linalg.transpose ins(%model.layers.1.temporal_block.linear_out.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc110)
    %138 = call @matmul.255(%collapsed_85, %transposed_86) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc110)
    %139 = call @addf.256(%138, %model.layers.1.temporal_block.linear_out.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc110)
    %expanded_87 = tensor.expand_shape %139 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc110)
    %140 = call @addf.260(%expanded_87, %86) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc111)
    %141 = call @fpowi.247(%140) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc112)
    %142 = call @addf.248(%141) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc112)
    %143 = call @divf.249(%142) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc112)
    %144 = call @addf.250(%143) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc112)
    %145 = call @rsqrt.251(%144) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc112)
    %146 = call @mulf.252(%140, %145) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc112)
    %147 = call @addf.9(%model.layers.1.channel_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc113)
    %148 = call @mulf.254(%146, %147) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc113)
    %collapsed_88 = tensor.collapse_shape %148 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc114)
    %transposed_89 = linalg.transpose ins(%model.layers.1.mlp_block.gate_proj.weight : tensor<24x32xf32>) outs(%68 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc114)
    %149 = call @matmul.309(%collapsed_88, %transposed_89) : (tensor<2x32xf32>, tensor<32x24xf32>) -> tensor<2x24xf32> loc(#loc114)
    %150 = call @addf.310(%149, %model.layers.1.mlp_block.gate_proj.bias) : (tensor<2x24xf32>, tensor<24xf32>) -> tensor<2x24xf32> loc(#loc114)
    %expanded_90 = tensor.expand_shape %150 [[0], [1, 2]] output_shape [2, 1, 24] : tensor<2x24xf32> into tensor<2x1x24xf32> loc(#loc114)
    %151 = call @mulf.311(%expanded_90) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %152 = call @mulf.312(%151, %expanded_90) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %153 = call @mulf.313(%152) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %154 = call @addf.314(%expanded_90, %153) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %155 = call @mulf.315(%154) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %156 = call @mulf.316(%expanded_90) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %157 = call @tanh.317(%155) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %158 = call @addf.318(%157) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %159 = call @mulf.312(%156, %158) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc115)
    %transposed_91 = linalg.transpose ins(%model.layers.1.mlp_block.up_proj.weight : tensor<24x32xf32>) outs(%68 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc116)
    %160 = call @matmul.309(%collapsed_88, %transposed_91) : (tensor<2x32xf32>, tensor<32x24xf32>) -> tensor<2x24xf32> loc(#loc116)
    %161 = call @addf.310(%160, %model.layers.1.mlp_block.up_proj.bias) : (tensor<2x24xf32>, tensor<24xf32>) -> tensor<2x24xf32> loc(#loc116)
    %expanded_92 = tensor.expand_shape %161 [[0], [1, 2]] output_shape [2, 1, 24] : tensor<2x24xf32> into tensor<2x1x24xf32> loc(#loc116)
    %162 = call @mulf.312(%159, %expanded_92) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc117)
    %collapsed_93 = tensor.collapse_shape %162 [[0], [1, 2]] : tensor<2x1x24xf32> into tensor<2x24xf32> loc(#loc118)
    %transposed_94 = linalg.transpose ins(%model.layers.1.mlp_block.down_proj.weight : tensor<32x24xf32>) outs(%83 : tensor<24x32xf32>) permutation = [1, 0]  loc(#loc118)
    %163 = call @matmul.323(%collapsed_93, %transposed_94) : (tensor<2x24xf32>, tensor<24x32xf32>) -> tensor<2x32xf32> loc(#loc118)
    %164 = call @addf.256(%163, %model.layers.1.mlp_block.down_proj.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc118)
    %expanded_95 = tensor.expand_shape %164 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc118)
    %165 = call @addf.260(%expanded_95, %140) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc119)
    %inserted_slice_96 = tensor.insert_slice %110 into %inserted_slice[1, 0, 0, 0, 0] [1, 2, 1, 3, 32] [1, 1, 1, 1, 1] : tensor<2x1x3x32xf32> into tensor<2x2x1x3x32xf32> loc(#loc51)
    %inserted_slice_97 = tensor.insert_slice %136#1 into %inserted_slice_46[1, 0, 0, 0, 0] [1, 2, 32, 1, 1] [1, 1, 1, 1, 1] : tensor<2x32x1x1xf32> into tensor<2x2x32x1x1xf32> loc(#loc51)
    %extracted_slice_98 = tensor.extract_slice %k_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<1x2x4x10x8xf32> to tensor<2x4x10x8xf32> loc(#loc51)
    %extracted_slice_99 = tensor.extract_slice %v_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<1x2x4x10x8xf32> to tensor<2x4x10x8xf32> loc(#loc51)
    %166 = call @fpowi.247(%165) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc120)
    %167 = call @addf.248(%166) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc120)
    %168 = call @divf.249(%167) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc120)
    %169 = call @addf.250(%168) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc120)
    %170 = call @rsqrt.251(%169) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc120)
    %171 = call @mulf.252(%165, %170) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc120)
    %172 = call @addf.9(%model.layers.2.temporal_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc121)
    %173 = call @mulf.254(%171, %172) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc121)
    %transposed_100 = linalg.transpose ins(%temporal_block.q_proj.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc122)
    %collapsed_101 = tensor.collapse_shape %173 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc122)
    %174 = call @matmul.255(%collapsed_101, %transposed_100) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc122)
    %expanded_102 = tensor.expand_shape %174 [[0], [1, 2, 3]] output_shape [2, 1, 4, 8] : tensor<2x32xf32> into tensor<2x1x4x8xf32> loc(#loc123)
    %175 = tensor.empty() : tensor<2x4x1x8xf32> loc(#loc123)
    %transposed_103 = linalg.transpose ins(%expanded_102 : tensor<2x1x4x8xf32>) outs(%175 : tensor<2x4x1x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc123)
    %transposed_104 = linalg.transpose ins(%temporal_block.k_proj.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc124)
    %176 = call @matmul.255(%collapsed_101, %transposed_104) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc124)
    %expanded_105 = tensor.expand_shape %176 [[0], [1, 2, 3]] output_shape [2, 1, 4, 8] : tensor<2x32xf32> into tensor<2x1x4x8xf32> loc(#loc125)
    %transposed_106 = linalg.transpose ins(%expanded_105 : tensor<2x1x4x8xf32>) outs(%175 : tensor<2x4x1x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc125)
    %transposed_107 = linalg.transpose ins(%temporal_block.v_proj.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc126)
    %177 = call @matmul.255(%collapsed_101, %transposed_107) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc126)
    %expanded_108 = tensor.expand_shape %177 [[0], [1, 2, 3]] output_shape [2, 1, 4, 8] : tensor<2x32xf32> into tensor<2x1x4x8xf32> loc(#loc127)
    %transposed_109 = linalg.transpose ins(%expanded_108 : tensor<2x1x4x8xf32>) outs(%175 : tensor<2x4x1x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc127)
    %178 = call @sitofp.416(%expanded_20) : (tensor<2x1x1xi64>) -> tensor<2x1x1xf32> loc(#loc128)
    %179 = call @mulf.417(%178, %temporal_block.rotary_emb.inv_freq) : (tensor<2x1x1xf32>, tensor<2xf32>) -> tensor<2x1x2xf32> loc(#loc128)
    %180 = call @concat.418(%179) : (tensor<2x1x2xf32>) -> tensor<2x1x4xf32> loc(#loc129)
    %181 = call @cos.419(%180) : (tensor<2x1x4xf32>) -> tensor<2x1x4xf32> loc(#loc130)
    %182 = call @sin.420(%180) : (tensor<2x1x4xf32>) -> tensor<2x1x4xf32> loc(#loc131)
    %expanded_110 = tensor.expand_shape %181 [[0], [1, 2], [3]] output_shape [2, 1, 1, 4] : tensor<2x1x4xf32> into tensor<2x1x1x4xf32> loc(#loc132)
    %expanded_111 = tensor.expand_shape %182 [[0], [1, 2], [3]] output_shape [2, 1, 1, 4] : tensor<2x1x4xf32> into tensor<2x1x1x4xf32> loc(#loc132)
    %extracted_slice_112 = tensor.extract_slice %transposed_103[0, 0, 0, 0] [2, 4, 1, 4] [1, 1, 1, 1] : tensor<2x4x1x8xf32> to tensor<2x4x1x4xf32> loc(#loc132)
    %extracted_slice_113 = tensor.extract_slice %transposed_103[0, 0, 0, 4] [2, 4, 1, 4] [1, 1, 1, 1] : tensor<2x4x1x8xf32> to tensor<2x4x1x4xf32> loc(#loc132)
    %extracted_slice_114 = tensor.extract_slice %transposed_106[0, 0, 0, 0] [2, 4, 1, 4] [1, 1, 1, 1] : tensor<2x4x1x8xf32> to tensor<2x4x1x4xf32> loc(#loc132)
    %extracted_slice_115 = tensor.extract_slice %transposed_106[0, 0, 0, 4] [2, 4, 1, 4] [1, 1, 1, 1] : tensor<2x4x1x8xf32> to tensor<2x4x1x4xf32> loc(#loc132)
    %183 = call @mulf.421(%extracted_slice_112, %expanded_110) : (tensor<2x4x1x4xf32>, tensor<2x1x1x4xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %extracted_slice_116 = tensor.extract_slice %extracted_slice_112[0, 0, 0, 0] [2, 4, 1, 2] [1, 1, 1, 1] : tensor<2x4x1x4xf32> to tensor<2x4x1x2xf32> loc(#loc132)
    %extracted_slice_117 = tensor.extract_slice %extracted_slice_112[0, 0, 0, 2] [2, 4, 1, 2] [1, 1, 1, 1] : tensor<2x4x1x4xf32> to tensor<2x4x1x2xf32> loc(#loc132)
    %184 = call @negf.422(%extracted_slice_117) : (tensor<2x4x1x2xf32>) -> tensor<2x4x1x2xf32> loc(#loc132)
    %185 = call @concat.423(%184, %extracted_slice_116) : (tensor<2x4x1x2xf32>, tensor<2x4x1x2xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %186 = call @mulf.421(%185, %expanded_111) : (tensor<2x4x1x4xf32>, tensor<2x1x1x4xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %187 = call @addf.425(%183, %186) : (tensor<2x4x1x4xf32>, tensor<2x4x1x4xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %188 = call @mulf.421(%extracted_slice_114, %expanded_110) : (tensor<2x4x1x4xf32>, tensor<2x1x1x4xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %extracted_slice_118 = tensor.extract_slice %extracted_slice_114[0, 0, 0, 0] [2, 4, 1, 2] [1, 1, 1, 1] : tensor<2x4x1x4xf32> to tensor<2x4x1x2xf32> loc(#loc132)
    %extracted_slice_119 = tensor.extract_slice %extracted_slice_114[0, 0, 0, 2] [2, 4, 1, 2] [1, 1, 1, 1] : tensor<2x4x1x4xf32> to tensor<2x4x1x2xf32> loc(#loc132)
    %189 = call @negf.422(%extracted_slice_119) : (tensor<2x4x1x2xf32>) -> tensor<2x4x1x2xf32> loc(#loc132)
    %190 = call @concat.423(%189, %extracted_slice_118) : (tensor<2x4x1x2xf32>, tensor<2x4x1x2xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %191 = call @mulf.421(%190, %expanded_111) : (tensor<2x4x1x4xf32>, tensor<2x1x1x4xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %192 = call @addf.425(%188, %191) : (tensor<2x4x1x4xf32>, tensor<2x4x1x4xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    %193 = call @concat.431(%187, %extracted_slice_113) : (tensor<2x4x1x4xf32>, tensor<2x4x1x4xf32>) -> tensor<2x4x1x8xf32> loc(#loc132)
    %194 = call @concat.431(%192, %extracted_slice_115) : (tensor<2x4x1x4xf32>, tensor<2x4x1x4xf32>) -> tensor<2x4x1x8xf32> loc(#loc132)
    %195 = call @row.433(%position, %base) : (tensor<2xi64>, tensor<2xi64>) -> tensor<2xi64> loc(#loc133)
    %196 = call @update.434(%extracted_slice_98, %194, %195, %active) : (tensor<2x4x10x8xf32>, tensor<2x4x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x10x8xf32> loc(#loc133)
    %197 = call @update.434(%extracted_slice_99, %transposed_109, %195, %active) : (tensor<2x4x10x8xf32>, tensor<2x4x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x10x8xf32> loc(#loc133)
    %198 = call @validity.436(%position, %active) : (tensor<2xi64>, tensor<2xi1>) -> tensor<2x10xi1> loc(#loc133)
    %199 = call @cached_attention.437(%193, %196, %197, %198) : (tensor<2x4x1x8xf32>, tensor<2x4x10x8xf32>, tensor<2x4x10x8xf32>, tensor<2x10xi1>) -> tensor<2x4x1x8xf32> loc(#loc133)
    %200 = tensor.empty() : tensor<2x1x4x8xf32> loc(#loc133)
    %transposed_120 = linalg.transpose ins(%199 : tensor<2x4x1x8xf32>) outs(%200 : tensor<2x1x4x8xf32>) permutation = [0, 2, 1, 3]  loc(#loc133)
    %collapsed_121 = tensor.collapse_shape %transposed_120 [[0], [1, 2, 3]] : tensor<2x1x4x8xf32> into tensor<2x32xf32> loc(#loc134)
    %transposed_122 = linalg.transpose ins(%temporal_block.o_proj.weight : tensor<32x32xf32>) outs(%11 : tensor<32x32xf32>) permutation = [1, 0]  loc(#loc134)
    %201 = call @matmul.255(%collapsed_121, %transposed_122) : (tensor<2x32xf32>, tensor<32x32xf32>) -> tensor<2x32xf32> loc(#loc134)
    %202 = call @addf.256(%201, %temporal_block.o_proj.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc134)
    %expanded_123 = tensor.expand_shape %202 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc134)
    %203 = call @addf.260(%expanded_123, %165) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc135)
    %204 = call @fpowi.247(%203) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc136)
    %205 = call @addf.248(%204) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc136)
    %206 = call @divf.249(%205) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc136)
    %207 = call @addf.250(%206) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc136)
    %208 = call @rsqrt.251(%207) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc136)
    %209 = call @mulf.252(%203, %208) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc136)
    %210 = call @addf.9(%model.layers.2.channel_pre_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc137)
    %211 = call @mulf.254(%209, %210) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc137)
    %collapsed_124 = tensor.collapse_shape %211 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc138)
    %transposed_125 = linalg.transpose ins(%model.layers.2.mlp_block.gate_proj.weight : tensor<24x32xf32>) outs(%68 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc138)
    %212 = call @matmul.309(%collapsed_124, %transposed_125) : (tensor<2x32xf32>, tensor<32x24xf32>) -> tensor<2x24xf32> loc(#loc138)
    %213 = call @addf.310(%212, %model.layers.2.mlp_block.gate_proj.bias) : (tensor<2x24xf32>, tensor<24xf32>) -> tensor<2x24xf32> loc(#loc138)
    %expanded_126 = tensor.expand_shape %213 [[0], [1, 2]] output_shape [2, 1, 24] : tensor<2x24xf32> into tensor<2x1x24xf32> loc(#loc138)
    %214 = call @mulf.311(%expanded_126) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %215 = call @mulf.312(%214, %expanded_126) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %216 = call @mulf.313(%215) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %217 = call @addf.314(%expanded_126, %216) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %218 = call @mulf.315(%217) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %219 = call @mulf.316(%expanded_126) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %220 = call @tanh.317(%218) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %221 = call @addf.318(%220) : (tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %222 = call @mulf.312(%219, %221) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc139)
    %transposed_127 = linalg.transpose ins(%model.layers.2.mlp_block.up_proj.weight : tensor<24x32xf32>) outs(%68 : tensor<32x24xf32>) permutation = [1, 0]  loc(#loc140)
    %223 = call @matmul.309(%collapsed_124, %transposed_127) : (tensor<2x32xf32>, tensor<32x24xf32>) -> tensor<2x24xf32> loc(#loc140)
    %224 = call @addf.310(%223, %model.layers.2.mlp_block.up_proj.bias) : (tensor<2x24xf32>, tensor<24xf32>) -> tensor<2x24xf32> loc(#loc140)
    %expanded_128 = tensor.expand_shape %224 [[0], [1, 2]] output_shape [2, 1, 24] : tensor<2x24xf32> into tensor<2x1x24xf32> loc(#loc140)
    %225 = call @mulf.312(%222, %expanded_128) : (tensor<2x1x24xf32>, tensor<2x1x24xf32>) -> tensor<2x1x24xf32> loc(#loc141)
    %collapsed_129 = tensor.collapse_shape %225 [[0], [1, 2]] : tensor<2x1x24xf32> into tensor<2x24xf32> loc(#loc142)
    %transposed_130 = linalg.transpose ins(%model.layers.2.mlp_block.down_proj.weight : tensor<32x24xf32>) outs(%83 : tensor<24x32xf32>) permutation = [1, 0]  loc(#loc142)
    %226 = call @matmul.323(%collapsed_129, %transposed_130) : (tensor<2x24xf32>, tensor<24x32xf32>) -> tensor<2x32xf32> loc(#loc142)
    %227 = call @addf.256(%226, %model.layers.2.mlp_block.down_proj.bias) : (tensor<2x32xf32>, tensor<32xf32>) -> tensor<2x32xf32> loc(#loc142)
    %expanded_131 = tensor.expand_shape %227 [[0], [1, 2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc142)
    %228 = call @addf.260(%expanded_131, %203) : (tensor<2x1x32xf32>, tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc143)
    %inserted_slice_132 = tensor.insert_slice %196 into %k_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<2x4x10x8xf32> into tensor<1x2x4x10x8xf32> loc(#loc51)
    %inserted_slice_133 = tensor.insert_slice %197 into %v_cache.window10[0, 0, 0, 0, 0] [1, 2, 4, 10, 8] [1, 1, 1, 1, 1] : tensor<2x4x10x8xf32> into tensor<1x2x4x10x8xf32> loc(#loc51)
    %229 = call @fpowi.247(%228) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc144)
    %230 = call @addf.248(%229) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %231 = call @divf.249(%230) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %232 = call @addf.250(%231) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %233 = call @rsqrt.251(%232) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %234 = call @mulf.252(%228, %233) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc144)
    %235 = call @addf.9(%model.final_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc145)
    %236 = call @mulf.254(%234, %235) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc145)
    %237 = tensor.empty() : tensor<32x96xf32> loc(#loc146)
    %transposed_134 = linalg.transpose ins(%model.embed_tokens.weight : tensor<96x32xf32>) outs(%237 : tensor<32x96xf32>) permutation = [1, 0]  loc(#loc146)
    %collapsed_135 = tensor.collapse_shape %236 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc146)
    %238 = call @matmul.474(%collapsed_135, %transposed_134) : (tensor<2x32xf32>, tensor<32x96xf32>) -> tensor<2x96xf32> loc(#loc146)
    %expanded_136 = tensor.expand_shape %238 [[0], [1, 2]] output_shape [2, 1, 96] : tensor<2x96xf32> into tensor<2x1x96xf32> loc(#loc146)
    %239 = call @divf.475(%expanded_136) : (tensor<2x1x96xf32>) -> tensor<2x1x96xf32> loc(#loc50)
    %240 = call @tanh.476(%239) : (tensor<2x1x96xf32>) -> tensor<2x1x96xf32> loc(#loc50)
    %241 = call @mulf.477(%240) : (tensor<2x1x96xf32>) -> tensor<2x1x96xf32> loc(#loc50)
    %collapsed_137 = tensor.collapse_shape %241 [[0, 1], [2]] : tensor<2x1x96xf32> into tensor<2x96xf32> loc(#loc51)
    return %collapsed_137, %inserted_slice_96, %inserted_slice_97, %inserted_slice_132, %inserted_slice_133 : tensor<2x96xf32>, tensor<2x2x1x3x32xf32>, tensor<2x2x32x1x1xf32>, tensor<1x2x4x10x8xf32>, tensor<1x2x4x10x8xf32> loc(#loc51)
  } loc(#loc51)
  func.func public @score(%first: index {sscc.input = "first"} loc("score"),
      %hidden: tensor<1x196x32xf32> {sscc.state = "hidden"} loc("score"),
      %model.final_norm.weight: tensor<32xf32> {sscc.weight = "model.final_norm.weight"} loc("score"),
      %model.embed_tokens.weight: tensor<96x32xf32> {sscc.weight = "model.embed_tokens.weight"} loc("score")) -> (tensor<2x96xf32> {sscc.output = "logits"}) {
    %extracted_slice = tensor.extract_slice %hidden[0, %first, 0] [1, 2, 32] [1, 1, 1] : tensor<1x196x32xf32> to tensor<1x2x32xf32> loc(#loc52)
    %collapsed = tensor.collapse_shape %extracted_slice [[0, 1], [2]] : tensor<1x2x32xf32> into tensor<2x32xf32> loc(#loc52)
    %expanded = tensor.expand_shape %collapsed [[0, 1], [2]] output_shape [2, 1, 32] : tensor<2x32xf32> into tensor<2x1x32xf32> loc(#loc52)
    %0 = call @fpowi.247(%expanded) : (tensor<2x1x32xf32>) -> tensor<2x1x32xf32> loc(#loc144)
    %1 = call @addf.248(%0) : (tensor<2x1x32xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %2 = call @divf.249(%1) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %3 = call @addf.250(%2) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %4 = call @rsqrt.251(%3) : (tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc144)
    %5 = call @mulf.252(%expanded, %4) : (tensor<2x1x32xf32>, tensor<2x1x1xf32>) -> tensor<2x1x32xf32> loc(#loc144)
    %6 = call @addf.9(%model.final_norm.weight) : (tensor<32xf32>) -> tensor<32xf32> loc(#loc145)
    %7 = call @mulf.254(%5, %6) : (tensor<2x1x32xf32>, tensor<32xf32>) -> tensor<2x1x32xf32> loc(#loc145)
    %8 = tensor.empty() : tensor<32x96xf32> loc(#loc146)
    %transposed = linalg.transpose ins(%model.embed_tokens.weight : tensor<96x32xf32>) outs(%8 : tensor<32x96xf32>) permutation = [1, 0]  loc(#loc146)
    %collapsed_0 = tensor.collapse_shape %7 [[0], [1, 2]] : tensor<2x1x32xf32> into tensor<2x32xf32> loc(#loc146)
    %9 = call @matmul.474(%collapsed_0, %transposed) : (tensor<2x32xf32>, tensor<32x96xf32>) -> tensor<2x96xf32> loc(#loc146)
    %expanded_1 = tensor.expand_shape %9 [[0], [1, 2]] output_shape [2, 1, 96] : tensor<2x96xf32> into tensor<2x1x96xf32> loc(#loc146)
    %10 = call @divf.475(%expanded_1) : (tensor<2x1x96xf32>) -> tensor<2x1x96xf32> loc(#loc50)
    %11 = call @tanh.476(%10) : (tensor<2x1x96xf32>) -> tensor<2x1x96xf32> loc(#loc50)
    %12 = call @mulf.477(%11) : (tensor<2x1x96xf32>) -> tensor<2x1x96xf32> loc(#loc50)
    %collapsed_2 = tensor.collapse_shape %12 [[0, 1], [2]] : tensor<2x1x96xf32> into tensor<2x96xf32> loc(#loc52)
    return %collapsed_2 : tensor<2x96xf32> loc(#loc52)
  } loc(#loc52)
  func.func private @extract.0(%x0: tensor<1x7xi64> {sscc.input = "x0"} loc("model.embed_tokens"(#loc4)),
      %x1: tensor<96x32xf32> {sscc.input = "x1"} loc("model.embed_tokens"(#loc4))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc53)
    %1 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7xi64>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: i64 loc("model.embed_tokens"(#loc4)), %out: f32 loc("model.embed_tokens"(#loc4))):
      %2 = arith.index_cast %in : i64 to index loc(#loc53)
      %3 = linalg.index 2 : index loc(#loc53)
      %extracted = tensor.extract %x1[%2, %3] : tensor<96x32xf32> loc(#loc53)
      linalg.yield %extracted : f32 loc(#loc53)
    } -> tensor<1x7x32xf32> loc(#loc53)
    return %1 : tensor<1x7x32xf32> loc(#loc53)
  } loc(#loc53)
  func.func private @extf.1(%x0: tensor<bf16> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0)) -> (tensor<f32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<f32> loc(#loc5)
    %1 = linalg.generic {indexing_maps = [#map2, #map2], iterator_types = []} ins(%x0 : tensor<bf16>) outs(%0 : tensor<f32>) {
    ^bb0(%in: bf16 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0)):
      %2 = arith.extf %in : bf16 to f32 loc(#loc5)
      linalg.yield %2 : f32 loc(#loc5)
    } -> tensor<f32> loc(#loc5)
    return %1 : tensor<f32> loc(#loc5)
  } loc(#loc5)
  func.func private @mulf.2(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0),
      %x1: tensor<f32> {sscc.input = "x1"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0)) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc53)
    %1 = linalg.generic {indexing_maps = [#map1, #map3, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x32xf32>, tensor<f32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.embed_tokens"(#loc4)), %in_0: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0)):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc5)
      linalg.yield %2 : f32 loc(#loc5)
    } -> tensor<1x7x32xf32> loc(#loc5)
    return %1 : tensor<1x7x32xf32> loc(#loc5)
  } loc(#loc5)
  func.func private @fpowi.3(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %c2_i64 = arith.constant 2 : i64 loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<1x7x32xf32> loc(#loc54)
    return %1 : tensor<1x7x32xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @addf.4(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<1x7x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc59)
    %0 = tensor.empty() : tensor<1x7x1xf32> loc(#loc54)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x7x1xf32>) -> tensor<1x7x1xf32> loc(#loc54)
    %2 = linalg.generic {indexing_maps = [#map1, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x0 : tensor<1x7x32xf32>) outs(%1 : tensor<1x7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %3 = arith.addf %in, %out : f32 loc(#loc54)
      linalg.yield %3 : f32 loc(#loc54)
    } -> tensor<1x7x1xf32> loc(#loc54)
    return %2 : tensor<1x7x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @divf.5(%x0: tensor<1x7x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<1x7x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x1xf32> loc(#loc54)
    %cst = arith.constant 3.200000e+01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x1xf32>) outs(%0 : tensor<1x7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = arith.divf %in, %cst : f32 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<1x7x1xf32> loc(#loc54)
    return %1 : tensor<1x7x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @addf.6(%x0: tensor<1x7x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<1x7x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x1xf32> loc(#loc54)
    %cst = arith.constant 9.9999999999999995E-7 : f64 loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x1xf32>) outs(%0 : tensor<1x7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc54)
      %3 = arith.addf %in, %2 : f32 loc(#loc54)
      linalg.yield %3 : f32 loc(#loc54)
    } -> tensor<1x7x1xf32> loc(#loc54)
    return %1 : tensor<1x7x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @rsqrt.7(%x0: tensor<1x7x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<1x7x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x1xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x1xf32>) outs(%0 : tensor<1x7x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = math.rsqrt %in : f32 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<1x7x1xf32> loc(#loc54)
    return %1 : tensor<1x7x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @mulf.8(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7)),
      %x1: tensor<1x7x1xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map4, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x32xf32>, tensor<1x7x1xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0), %in_0: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<1x7x32xf32> loc(#loc54)
    return %1 : tensor<1x7x32xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @addf.9(%x0: tensor<32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc8))) -> (tensor<32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<32xf32> loc(#loc55)
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map5, #map5], iterator_types = ["parallel"]} ins(%x0 : tensor<32xf32>) outs(%0 : tensor<32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc8)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc8))):
      %2 = arith.addf %in, %cst : f32 loc(#loc55)
      linalg.yield %2 : f32 loc(#loc55)
    } -> tensor<32xf32> loc(#loc55)
    return %1 : tensor<32xf32> loc(#loc55)
  } loc(#loc55)
  func.func private @mulf.10(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc8)),
      %x1: tensor<32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_pre_norm"(#loc8))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map6, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x32xf32>, tensor<32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %in_0: f32 loc("model.layers.0.temporal_pre_norm"(#loc8)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc8))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc55)
      linalg.yield %2 : f32 loc(#loc55)
    } -> tensor<1x7x32xf32> loc(#loc55)
    return %1 : tensor<1x7x32xf32> loc(#loc55)
  } loc(#loc55)
  func.func private @matmul.11(%x0: tensor<7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.linear_y"(#loc9)),
      %x1: tensor<32x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.linear_y"(#loc9))) -> (tensor<7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc59)
    %0 = tensor.empty() : tensor<7x32xf32> loc(#loc56)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<7x32xf32>) -> tensor<7x32xf32> loc(#loc56)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<7x32xf32>, tensor<32x32xf32>) outs(%1 : tensor<7x32xf32>) -> tensor<7x32xf32> loc(#loc56)
    return %2 : tensor<7x32xf32> loc(#loc56)
  } loc(#loc56)
  func.func private @addf.12(%x0: tensor<7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.linear_y"(#loc9)),
      %x1: tensor<32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.linear_y"(#loc9))) -> (tensor<7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<7x32xf32> loc(#loc56)
    %1 = linalg.generic {indexing_maps = [#map7, #map8, #map7], iterator_types = ["parallel", "parallel"]} ins(%x0, %x1 : tensor<7x32xf32>, tensor<32xf32>) outs(%0 : tensor<7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %in_0: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc56)
      linalg.yield %2 : f32 loc(#loc56)
    } -> tensor<7x32xf32> loc(#loc56)
    return %1 : tensor<7x32xf32> loc(#loc56)
  } loc(#loc56)
  func.func private @mulf.13(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x0 : tensor<1x7x32xf32>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %in_0: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.14(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10)),
      %x1: tensor<1x7x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x32xf32>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %in_0: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.15(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %cst = arith.constant 4.471500e-02 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc57)
      %3 = arith.mulf %in, %2 : f32 loc(#loc57)
      linalg.yield %3 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @addf.16(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10)),
      %x1: tensor<1x7x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x32xf32>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %in_0: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.17(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %cst = arith.constant 0.79788456080286541 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc57)
      %3 = arith.mulf %in, %2 : f32 loc(#loc57)
      linalg.yield %3 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.18(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %cst = arith.constant 5.000000e-01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @tanh.19(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = math.tanh %in : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @addf.20(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %cst : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<1x7x32xf32> loc(#loc57)
    return %1 : tensor<1x7x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @select.24(%x0: tensor<1x1x3x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12)),
      %x1: index {sscc.input = "x1"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<1x1x3x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x1x3x32xf32> loc(#loc59)
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc59)
    %1 = linalg.generic {indexing_maps = [#map9, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x1x3x32xf32>) outs(%0 : tensor<1x1x3x32xf32>) attrs =  {df.together} {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block"(#loc12)), %out: f32 loc("model.layers.0.temporal_block"(#loc12))):
      %c0 = arith.constant 0 : index loc(#loc59)
      %2 = arith.cmpi sgt, %x1, %c0 : index loc(#loc59)
      %3 = arith.select %2, %in, %cst : f32 loc(#loc59)
      linalg.yield %3 : f32 loc(#loc59)
    } -> tensor<1x1x3x32xf32> loc(#loc59)
    return %1 : tensor<1x1x3x32xf32> loc(#loc59)
  } loc(#loc59)
  func.func private @concat.25(%x0: tensor<1x1x3x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12)),
      %x1: tensor<1x1x7x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<1x1x10x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %concat = tensor.concat dim(2) %x0, %x1 {df.together} : (tensor<1x1x3x32xf32>, tensor<1x1x7x32xf32>) -> tensor<1x1x10x32xf32> loc(#loc59)
    return %concat : tensor<1x1x10x32xf32> loc(#loc59)
  } loc(#loc59)
  func.func private @addf.26(%x0: tensor<7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12)),
      %x1: tensor<7x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block"(#loc12)),
      %x2: tensor<7x32xf32> {sscc.input = "x2"} loc("model.layers.0.temporal_block"(#loc12)),
      %x3: tensor<7x32xf32> {sscc.input = "x3"} loc("model.layers.0.temporal_block"(#loc12)),
      %x4: tensor<32xf32> {sscc.input = "x4"} loc("model.layers.0.temporal_block"(#loc12)),
      %x5: tensor<32xf32> {sscc.input = "x5"} loc("model.layers.0.temporal_block"(#loc12)),
      %x6: tensor<32xf32> {sscc.input = "x6"} loc("model.layers.0.temporal_block"(#loc12)),
      %x7: tensor<32xf32> {sscc.input = "x7"} loc("model.layers.0.temporal_block"(#loc12)),
      %x8: tensor<32xf32> {sscc.input = "x8"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<7x32xf32> loc(#loc56)
    %1 = linalg.generic {indexing_maps = [#map7, #map7, #map7, #map7, #map8, #map8, #map8, #map8, #map8, #map7], iterator_types = ["parallel", "parallel"]} ins(%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7, %x8 : tensor<7x32xf32>, tensor<7x32xf32>, tensor<7x32xf32>, tensor<7x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>) outs(%0 : tensor<7x32xf32>) attrs =  {df.together} {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_0: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_1: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_2: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_3: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_4: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_5: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_6: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_7: f32 loc("model.layers.0.temporal_block"(#loc12)), %out: f32 loc("model.layers.0.temporal_block"(#loc12))):
      %2 = arith.mulf %in_3, %in : f32 loc(#loc59)
      %3 = arith.mulf %in_4, %in_0 : f32 loc(#loc59)
      %4 = arith.mulf %in_5, %in_1 : f32 loc(#loc59)
      %5 = arith.mulf %in_6, %in_2 : f32 loc(#loc59)
      %6 = arith.addf %2, %3 : f32 loc(#loc59)
      %7 = arith.addf %6, %4 : f32 loc(#loc59)
      %8 = arith.addf %7, %5 : f32 loc(#loc59)
      %9 = arith.addf %8, %in_7 : f32 loc(#loc59)
      linalg.yield %9 : f32 loc(#loc59)
    } -> tensor<7x32xf32> loc(#loc59)
    return %1 : tensor<7x32xf32> loc(#loc59)
  } loc(#loc59)
  func.func private @index_cast.27(%x0: index {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<1x3xi64> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x3xi64> loc(#loc59)
    %c9 = arith.constant 9 : index loc(#loc59)
    %1 = linalg.generic {indexing_maps = [#map7], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<1x3xi64>) attrs =  {df.together} {
    ^bb0(%out: i64 loc("model.layers.0.temporal_block"(#loc12))):
      %2 = linalg.index 1 : index loc(#loc59)
      %3 = arith.addi %x0, %2 : index loc(#loc59)
      %4 = arith.minsi %3, %c9 : index loc(#loc59)
      %5 = arith.index_cast %4 : index to i64 loc(#loc59)
      linalg.yield %5 : i64 loc(#loc59)
    } -> tensor<1x3xi64> loc(#loc59)
    return %1 : tensor<1x3xi64> loc(#loc59)
  } loc(#loc59)
  func.func private @gather.28(%x0: tensor<1x1x10x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12)),
      %x1: tensor<1x3xi64> {sscc.input = "x1"} loc("model.layers.0.temporal_block"(#loc12)),
      %x2: tensor<1x1x3x32xf32> {sscc.input = "x2"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<1x1x3x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = "kv.gather"(%x0, %x1, %x2) {df.together, kv.group = "convolution"} : (tensor<1x1x10x32xf32>, tensor<1x3xi64>, tensor<1x1x3x32xf32>) -> tensor<1x1x3x32xf32> loc(#loc59)
    return %0 : tensor<1x1x3x32xf32> loc(#loc59)
  } loc(#loc59)
  func.func private @cmpi.29(%x0: tensor<1x7x1xi64> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc13))) -> (tensor<1x7x1xi1> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x1xi1> loc(#loc60)
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x1xi64>) outs(%0 : tensor<1x7x1xi1>) {
    ^bb0(%in: i64 loc("model.layers.0.temporal_block.rg_lru"(#loc13)), %out: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc13))):
      %2 = arith.cmpi eq, %in, %c0_i64 : i64 loc(#loc60)
      linalg.yield %2 : i1 loc(#loc60)
    } -> tensor<1x7x1xi1> loc(#loc60)
    return %1 : tensor<1x7x1xi1> loc(#loc60)
  } loc(#loc60)
  func.func private @batch_matmul.30(%x0: tensor<4x7x8xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc16)),
      %x1: tensor<4x8x8xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc16))) -> (tensor<4x7x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc59)
    %0 = tensor.empty() : tensor<4x7x8xf32> loc(#loc62)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x7x8xf32>) -> tensor<4x7x8xf32> loc(#loc63)
    %2 = linalg.batch_matmul ins(%x0, %x1 : tensor<4x7x8xf32>, tensor<4x8x8xf32>) outs(%1 : tensor<4x7x8xf32>) -> tensor<4x7x8xf32> loc(#loc63)
    return %2 : tensor<4x7x8xf32> loc(#loc63)
  } loc(#loc63)
  func.func private @addf.31(%x0: tensor<4x1x8xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc16)),
      %x1: tensor<4x7x8xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc16))) -> (tensor<4x7x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<4x7x8xf32> loc(#loc62)
    %1 = linalg.generic {indexing_maps = [#map10, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<4x1x8xf32>, tensor<4x7x8xf32>) outs(%0 : tensor<4x7x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc16)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc16)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc16))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc63)
      linalg.yield %2 : f32 loc(#loc63)
    } -> tensor<4x7x8xf32> loc(#loc63)
    return %1 : tensor<4x7x8xf32> loc(#loc63)
  } loc(#loc63)
  func.func private @divf.32(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc17))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc17)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc17))):
      %2 = arith.negf %in : f32 loc(#loc64)
      %3 = math.exp %2 : f32 loc(#loc64)
      %4 = arith.addf %3, %cst : f32 loc(#loc64)
      %5 = arith.divf %cst, %4 : f32 loc(#loc64)
      linalg.yield %5 : f32 loc(#loc64)
    } -> tensor<1x7x32xf32> loc(#loc64)
    return %1 : tensor<1x7x32xf32> loc(#loc64)
  } loc(#loc64)
  func.func private @mulf.36(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc20))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %cst = arith.constant -8.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc19)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc67)
      linalg.yield %2 : f32 loc(#loc67)
    } -> tensor<1x7x32xf32> loc(#loc67)
    return %1 : tensor<1x7x32xf32> loc(#loc67)
  } loc(#loc67)
  func.func private @exp.37(%x0: tensor<32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc20))) -> (tensor<32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<32xf32> loc(#loc55)
    %1 = linalg.generic {indexing_maps = [#map5, #map5], iterator_types = ["parallel"]} ins(%x0 : tensor<32xf32>) outs(%0 : tensor<32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20))):
      %2 = math.exp %in : f32 loc(#loc67)
      linalg.yield %2 : f32 loc(#loc67)
    } -> tensor<32xf32> loc(#loc67)
    return %1 : tensor<32xf32> loc(#loc67)
  } loc(#loc67)
  func.func private @log1p.38(%x0: tensor<32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc20))) -> (tensor<32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<32xf32> loc(#loc55)
    %1 = linalg.generic {indexing_maps = [#map5, #map5], iterator_types = ["parallel"]} ins(%x0 : tensor<32xf32>) outs(%0 : tensor<32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20))):
      %2 = math.log1p %in : f32 loc(#loc67)
      linalg.yield %2 : f32 loc(#loc67)
    } -> tensor<32xf32> loc(#loc67)
    return %1 : tensor<32xf32> loc(#loc67)
  } loc(#loc67)
  func.func private @cmpf.39(%x0: tensor<32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc20))) -> (tensor<32xi1> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant dense<2.000000e+01> : tensor<32xf32> loc(#loc67)
    %0 = tensor.empty() : tensor<32xi1> loc(#loc67)
    %1 = linalg.generic {indexing_maps = [#map5, #map5, #map5], iterator_types = ["parallel"]} ins(%x0, %cst : tensor<32xf32>, tensor<32xf32>) outs(%0 : tensor<32xi1>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc20))):
      %2 = arith.cmpf ogt, %in, %in_0 : f32 loc(#loc67)
      linalg.yield %2 : i1 loc(#loc67)
    } -> tensor<32xi1> loc(#loc67)
    return %1 : tensor<32xi1> loc(#loc67)
  } loc(#loc67)
  func.func private @select.40(%x0: tensor<32xi1> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc20)),
      %x1: tensor<32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc20)),
      %x2: tensor<32xf32> {sscc.input = "x2"} loc("model.layers.0.temporal_block.rg_lru"(#loc20))) -> (tensor<32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<32xf32> loc(#loc55)
    %1 = linalg.generic {indexing_maps = [#map5, #map5, #map5, #map5], iterator_types = ["parallel"]} ins(%x0, %x1, %x2 : tensor<32xi1>, tensor<32xf32>, tensor<32xf32>) outs(%0 : tensor<32xf32>) {
    ^bb0(%in: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %in_1: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20))):
      %2 = arith.select %in, %in_0, %in_1 : f32 loc(#loc67)
      linalg.yield %2 : f32 loc(#loc67)
    } -> tensor<32xf32> loc(#loc67)
    return %1 : tensor<32xf32> loc(#loc67)
  } loc(#loc67)
  func.func private @exp.42(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc21))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc21))):
      %2 = math.exp %in : f32 loc(#loc68)
      linalg.yield %2 : f32 loc(#loc68)
    } -> tensor<1x7x32xf32> loc(#loc68)
    return %1 : tensor<1x7x32xf32> loc(#loc68)
  } loc(#loc68)
  func.func private @mulf.43(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc22))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %cst = arith.constant 2.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc22))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc69)
      linalg.yield %2 : f32 loc(#loc69)
    } -> tensor<1x7x32xf32> loc(#loc69)
    return %1 : tensor<1x7x32xf32> loc(#loc69)
  } loc(#loc69)
  func.func private @subf.46(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc24))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant dense<1> : tensor<i64> loc(#loc71)
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map3, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%cst, %x0 : tensor<i64>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: i64 loc("model.layers.0.temporal_block.rg_lru"(#loc24)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc22)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc24))):
      %2 = arith.sitofp %in : i64 to f32 loc(#loc71)
      %3 = arith.subf %2, %in_0 : f32 loc(#loc71)
      linalg.yield %3 : f32 loc(#loc71)
    } -> tensor<1x7x32xf32> loc(#loc71)
    return %1 : tensor<1x7x32xf32> loc(#loc71)
  } loc(#loc71)
  func.func private @sqrt.47(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc25))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc24)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc25))):
      %2 = math.sqrt %in : f32 loc(#loc72)
      linalg.yield %2 : f32 loc(#loc72)
    } -> tensor<1x7x32xf32> loc(#loc72)
    return %1 : tensor<1x7x32xf32> loc(#loc72)
  } loc(#loc72)
  func.func private @xori.48(%x0: tensor<1x7x1xi1> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc26))) -> (tensor<1x7x1xi1> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x1xi1> loc(#loc60)
    %true = arith.constant true loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x1xi1>) outs(%0 : tensor<1x7x1xi1>) {
    ^bb0(%in: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc13)), %out: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc26))):
      %2 = arith.xori %in, %true : i1 loc(#loc73)
      linalg.yield %2 : i1 loc(#loc73)
    } -> tensor<1x7x1xi1> loc(#loc73)
    return %1 : tensor<1x7x1xi1> loc(#loc73)
  } loc(#loc73)
  func.func private @mulf.49(%x0: tensor<1x7x1xi1> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc26)),
      %x1: tensor<1x7x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc26))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map4, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x1xi1>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc26)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc25)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc26))):
      %2 = arith.uitofp %in : i1 to f32 loc(#loc73)
      %3 = arith.mulf %2, %in_0 : f32 loc(#loc73)
      linalg.yield %3 : f32 loc(#loc73)
    } -> tensor<1x7x32xf32> loc(#loc73)
    return %1 : tensor<1x7x32xf32> loc(#loc73)
  } loc(#loc73)
  func.func private @addf.50(%x0: tensor<1x7x1xi1> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc26)),
      %x1: tensor<1x7x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc26))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map4, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x1xi1>, tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc13)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc26)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc26))):
      %2 = arith.uitofp %in : i1 to f32 loc(#loc73)
      %3 = arith.addf %2, %in_0 : f32 loc(#loc73)
      linalg.yield %3 : f32 loc(#loc73)
    } -> tensor<1x7x32xf32> loc(#loc73)
    return %1 : tensor<1x7x32xf32> loc(#loc73)
  } loc(#loc73)
  func.func private @mulf.52(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x1: tensor<1x7x1xi1> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc28))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map4, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x32xf32>, tensor<1x7x1xi1>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc21)), %in_0: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc28)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc28))):
      %2 = arith.uitofp %in_0 : i1 to f32 loc(#loc75)
      %3 = arith.mulf %in, %2 : f32 loc(#loc75)
      linalg.yield %3 : f32 loc(#loc75)
    } -> tensor<1x7x32xf32> loc(#loc75)
    return %1 : tensor<1x7x32xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @log.53(%x0: tensor<1x7x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc28))) -> (tensor<1x7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x32xf32>) outs(%0 : tensor<1x7x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc28)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc28))):
      %2 = math.log %in : f32 loc(#loc75)
      linalg.yield %2 : f32 loc(#loc75)
    } -> tensor<1x7x32xf32> loc(#loc75)
    return %1 : tensor<1x7x32xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @recurrent_chunk.54(%x0: tensor<1x7x32x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x1: tensor<1x7x32x1xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x2: tensor<1x32x1x1xf32> {sscc.input = "x2"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x3: index {sscc.input = "x3"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x4: index {sscc.input = "x4"} loc("model.layers.0.temporal_block.rg_lru"(#loc28))) -> (tensor<1x7x32x1xf32> {sscc.output = "y0"}, tensor<1x32x1x1xf32> {sscc.output = "y1"}) attributes {sscc.kernel} {
    %cst = arith.constant dense<1.000000e+00> : tensor<1x7x1x1xf32> loc(#loc)
    %0:2 = "kv.recurrent_chunk"(%cst, %cst, %x0, %x1, %x2, %x3, %x4) {kv.group = "recurrence", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 1, 0, 0>} : (tensor<1x7x1x1xf32>, tensor<1x7x1x1xf32>, tensor<1x7x32x1xf32>, tensor<1x7x32x1xf32>, tensor<1x32x1x1xf32>, index, index) -> (tensor<1x7x32x1xf32>, tensor<1x32x1x1xf32>) loc(#loc75)
    return %0#0, %0#1 : tensor<1x7x32x1xf32>, tensor<1x32x1x1xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @matmul.67(%x0: tensor<7x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.gate_proj"(#loc32)),
      %x1: tensor<32x24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.gate_proj"(#loc32))) -> (tensor<7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc59)
    %0 = tensor.empty() : tensor<7x24xf32> loc(#loc81)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<7x24xf32>) -> tensor<7x24xf32> loc(#loc81)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<7x32xf32>, tensor<32x24xf32>) outs(%1 : tensor<7x24xf32>) -> tensor<7x24xf32> loc(#loc81)
    return %2 : tensor<7x24xf32> loc(#loc81)
  } loc(#loc81)
  func.func private @addf.68(%x0: tensor<7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.gate_proj"(#loc32)),
      %x1: tensor<24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.gate_proj"(#loc32))) -> (tensor<7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<7x24xf32> loc(#loc81)
    %1 = linalg.generic {indexing_maps = [#map7, #map8, #map7], iterator_types = ["parallel", "parallel"]} ins(%x0, %x1 : tensor<7x24xf32>, tensor<24xf32>) outs(%0 : tensor<7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %in_0: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc81)
      linalg.yield %2 : f32 loc(#loc81)
    } -> tensor<7x24xf32> loc(#loc81)
    return %1 : tensor<7x24xf32> loc(#loc81)
  } loc(#loc81)
  func.func private @mulf.69(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x0 : tensor<1x7x24xf32>, tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %in_0: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.70(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10)),
      %x1: tensor<1x7x24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x24xf32>, tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %in_0: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.71(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %cst = arith.constant 4.471500e-02 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc82)
      %3 = arith.mulf %in, %2 : f32 loc(#loc82)
      linalg.yield %3 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @addf.72(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10)),
      %x1: tensor<1x7x24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x24xf32>, tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %in_0: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.73(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %cst = arith.constant 0.79788456080286541 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc82)
      %3 = arith.mulf %in, %2 : f32 loc(#loc82)
      linalg.yield %3 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.74(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %cst = arith.constant 5.000000e-01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @tanh.75(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = math.tanh %in : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @addf.76(%x0: tensor<1x7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<1x7x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x24xf32> loc(#loc82)
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x24xf32>) outs(%0 : tensor<1x7x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %cst : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<1x7x24xf32> loc(#loc82)
    return %1 : tensor<1x7x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @matmul.81(%x0: tensor<7x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.down_proj"(#loc33)),
      %x1: tensor<24x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.down_proj"(#loc33))) -> (tensor<7x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc59)
    %0 = tensor.empty() : tensor<7x32xf32> loc(#loc56)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<7x32xf32>) -> tensor<7x32xf32> loc(#loc56)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<7x24xf32>, tensor<24x32xf32>) outs(%1 : tensor<7x32xf32>) -> tensor<7x32xf32> loc(#loc85)
    return %2 : tensor<7x32xf32> loc(#loc85)
  } loc(#loc85)
  func.func private @index_cast.84(%x0: index {sscc.input = "x0"} loc("compress.0"(#loc59))) -> (tensor<1x3xi64> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x3xi64> loc(#loc147)
    %1 = linalg.generic {indexing_maps = [#map7], iterator_types = ["parallel", "parallel"]} outs(%0 : tensor<1x3xi64>) {
    ^bb0(%out: i64 loc("compress.0"(#loc59))):
      %c2 = arith.constant 2 : index loc(#loc147)
      %2 = arith.muli %x0, %c2 : index loc(#loc147)
      %3 = linalg.index 1 : index loc(#loc147)
      %4 = arith.addi %3, %2 : index loc(#loc147)
      %c3 = arith.constant 3 : index loc(#loc147)
      %5 = arith.remsi %4, %c3 : index loc(#loc147)
      %6 = arith.index_cast %5 : index to i64 loc(#loc147)
      linalg.yield %6 : i64 loc(#loc147)
    } -> tensor<1x3xi64> loc(#loc147)
    return %1 : tensor<1x3xi64> loc(#loc147)
  } loc(#loc147)
  func.func private @gather.85(%x0: tensor<1x1x3x32xf32> {sscc.input = "x0"} loc("compress.0"(#loc59)),
      %x1: tensor<1x3xi64> {sscc.input = "x1"} loc("compress.0"(#loc59)),
      %x2: tensor<1x1x3x32xf32> {sscc.input = "x2"} loc("compress.0"(#loc59))) -> (tensor<1x1x3x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = "kv.gather"(%x0, %x1, %x2) {kv.group = "convolution"} : (tensor<1x1x3x32xf32>, tensor<1x3xi64>, tensor<1x1x3x32xf32>) -> tensor<1x1x3x32xf32> loc(#loc147)
    return %0 : tensor<1x1x3x32xf32> loc(#loc147)
  } loc(#loc147)
  func.func private @sitofp.180(%x0: tensor<1x7x1xi64> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc40))) -> (tensor<1x7x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x1xf32> loc(#loc120)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x1xi64>) outs(%0 : tensor<1x7x1xf32>) {
    ^bb0(%in: i64 loc("model.layers.2.temporal_block.rotary_emb"(#loc40)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40))):
      %2 = arith.sitofp %in : i64 to f32 loc(#loc128)
      linalg.yield %2 : f32 loc(#loc128)
    } -> tensor<1x7x1xf32> loc(#loc128)
    return %1 : tensor<1x7x1xf32> loc(#loc128)
  } loc(#loc128)
  func.func private @mulf.181(%x0: tensor<1x7x1xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc40)),
      %x1: tensor<2xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block.rotary_emb"(#loc40))) -> (tensor<1x7x2xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x2xf32> loc(#loc128)
    %1 = linalg.generic {indexing_maps = [#map4, #map6, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x7x1xf32>, tensor<2xf32>) outs(%0 : tensor<1x7x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40)), %in_0: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc128)
      linalg.yield %2 : f32 loc(#loc128)
    } -> tensor<1x7x2xf32> loc(#loc128)
    return %1 : tensor<1x7x2xf32> loc(#loc128)
  } loc(#loc128)
  func.func private @concat.182(%x0: tensor<1x7x2xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc41))) -> (tensor<1x7x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %concat = tensor.concat dim(2) %x0, %x0 : (tensor<1x7x2xf32>, tensor<1x7x2xf32>) -> tensor<1x7x4xf32> loc(#loc129)
    return %concat : tensor<1x7x4xf32> loc(#loc129)
  } loc(#loc129)
  func.func private @cos.183(%x0: tensor<1x7x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc42))) -> (tensor<1x7x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x4xf32> loc(#loc130)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x4xf32>) outs(%0 : tensor<1x7x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc41)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc42))):
      %2 = math.cos %in : f32 loc(#loc130)
      linalg.yield %2 : f32 loc(#loc130)
    } -> tensor<1x7x4xf32> loc(#loc130)
    return %1 : tensor<1x7x4xf32> loc(#loc130)
  } loc(#loc130)
  func.func private @sin.184(%x0: tensor<1x7x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc43))) -> (tensor<1x7x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x7x4xf32> loc(#loc130)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x7x4xf32>) outs(%0 : tensor<1x7x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc41)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc43))):
      %2 = math.sin %in : f32 loc(#loc131)
      linalg.yield %2 : f32 loc(#loc131)
    } -> tensor<1x7x4xf32> loc(#loc131)
    return %1 : tensor<1x7x4xf32> loc(#loc131)
  } loc(#loc131)
  func.func private @mulf.185(%x0: tensor<1x4x7x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<1x1x7x4xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<1x4x7x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x4x7x4xf32> loc(#loc132)
    %1 = linalg.generic {indexing_maps = [#map9, #map11, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x4x7x4xf32>, tensor<1x1x7x4xf32>) outs(%0 : tensor<1x4x7x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block"(#loc44)), %in_0: f32 loc("model.layers.2.temporal_block"(#loc44)), %out: f32 loc("model.layers.2.temporal_block"(#loc44))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc132)
      linalg.yield %2 : f32 loc(#loc132)
    } -> tensor<1x4x7x4xf32> loc(#loc132)
    return %1 : tensor<1x4x7x4xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @negf.186(%x0: tensor<1x4x7x2xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<1x4x7x2xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x4x7x2xf32> loc(#loc132)
    %1 = linalg.generic {indexing_maps = [#map9, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x4x7x2xf32>) outs(%0 : tensor<1x4x7x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block"(#loc44)), %out: f32 loc("model.layers.2.temporal_block"(#loc44))):
      %2 = arith.negf %in : f32 loc(#loc132)
      linalg.yield %2 : f32 loc(#loc132)
    } -> tensor<1x4x7x2xf32> loc(#loc132)
    return %1 : tensor<1x4x7x2xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @concat.187(%x0: tensor<1x4x7x2xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<1x4x7x2xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<1x4x7x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %concat = tensor.concat dim(3) %x0, %x1 : (tensor<1x4x7x2xf32>, tensor<1x4x7x2xf32>) -> tensor<1x4x7x4xf32> loc(#loc132)
    return %concat : tensor<1x4x7x4xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @addf.189(%x0: tensor<1x4x7x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<1x4x7x4xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<1x4x7x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x4x7x4xf32> loc(#loc132)
    %1 = linalg.generic {indexing_maps = [#map9, #map9, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<1x4x7x4xf32>, tensor<1x4x7x4xf32>) outs(%0 : tensor<1x4x7x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block"(#loc44)), %in_0: f32 loc("model.layers.2.temporal_block"(#loc44)), %out: f32 loc("model.layers.2.temporal_block"(#loc44))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc132)
      linalg.yield %2 : f32 loc(#loc132)
    } -> tensor<1x4x7x4xf32> loc(#loc132)
    return %1 : tensor<1x4x7x4xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @concat.195(%x0: tensor<1x4x7x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<1x4x7x4xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<1x4x7x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %concat = tensor.concat dim(3) %x0, %x1 : (tensor<1x4x7x4xf32>, tensor<1x4x7x4xf32>) -> tensor<1x4x7x8xf32> loc(#loc132)
    return %concat : tensor<1x4x7x8xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @causal_attention.197(%x0: tensor<1x4x7x8xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc45)),
      %x1: tensor<1x4x196x8xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc45)),
      %x2: tensor<1x4x196x8xf32> {sscc.input = "x2"} loc("model.layers.2.temporal_block"(#loc45)),
      %x3: index {sscc.input = "x3"} loc("model.layers.2.temporal_block"(#loc45)),
      %x4: index {sscc.input = "x4"} loc("model.layers.2.temporal_block"(#loc45))) -> (tensor<1x4x7x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0:2 = "kv.causal_attention"(%x0, %x1, %x2, %x3, %x4) {kv.group = "window10", scale = 0.35355339059327379 : f64} : (tensor<1x4x7x8xf32>, tensor<1x4x196x8xf32>, tensor<1x4x196x8xf32>, index, index) -> (tensor<1x4x7x8xf32>, tensor<1x4x7x1xf32>) loc(#loc133)
    return %0#0 : tensor<1x4x7x8xf32> loc(#loc133)
  } loc(#loc133)
  func.func private @kept_positions.226(%x0: index {sscc.input = "x0"} loc("compress.2"(#loc133))) -> (tensor<4x10xi64> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index loc(#loc151)
    %0 = "kv.kept_positions"(%x0, %c0) {kv.group = "window10"} : (index, index) -> tensor<4x10xi64> loc(#loc151)
    return %0 : tensor<4x10xi64> loc(#loc151)
  } loc(#loc151)
  func.func private @gather.227(%x0: tensor<1x4x196x8xf32> {sscc.input = "x0"} loc("compress.2"(#loc133)),
      %x1: tensor<4x10xi64> {sscc.input = "x1"} loc("compress.2"(#loc133)),
      %x2: tensor<1x4x10x8xf32> {sscc.input = "x2"} loc("compress.2"(#loc133))) -> (tensor<1x4x10x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = "kv.gather"(%x0, %x1, %x2) {kv.group = "window10"} : (tensor<1x4x196x8xf32>, tensor<4x10xi64>, tensor<1x4x10x8xf32>) -> tensor<1x4x10x8xf32> loc(#loc151)
    return %0 : tensor<1x4x10x8xf32> loc(#loc151)
  } loc(#loc151)
  func.func private @index_cast.229(%x0: index {sscc.input = "x0"} loc("prefill.phase.head")) -> (tensor<1xi64> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1xi64> loc(#loc47)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel"]} outs(%0 : tensor<1xi64>) {
    ^bb0(%out: i64 loc("prefill.phase.head")):
      %2 = linalg.index 0 : index loc(#loc47)
      %3 = arith.addi %x0, %2 : index loc(#loc47)
      %4 = arith.minsi %3, %x0 : index loc(#loc47)
      %5 = arith.index_cast %4 : index to i64 loc(#loc47)
      linalg.yield %5 : i64 loc(#loc47)
    } -> tensor<1xi64> loc(#loc47)
    return %1 : tensor<1xi64> loc(#loc47)
  } loc(#loc47)
  func.func private @index_cast.238() -> (tensor<32xi64> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<32xi64> loc(#loc48)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel"]} outs(%0 : tensor<32xi64>) {
    ^bb0(%out: i64 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0)):
      %2 = linalg.index 0 : index loc(#loc48)
      %3 = arith.index_cast %2 : index to i64 loc(#loc48)
      linalg.yield %3 : i64 loc(#loc48)
    } -> tensor<32xi64> loc(#loc48)
    return %1 : tensor<32xi64> loc(#loc48)
  } loc(#loc48)
  func.func private @extract.239(%x0: tensor<1x1xi64> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0),
      %x1: tensor<32xi64> {sscc.input = "x1"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0),
      %x2: tensor<1x7x32xf32> {sscc.input = "x2"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0)) -> (tensor<1x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1xi64> loc(#loc48)
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map5], iterator_types = ["parallel"]} outs(%0 : tensor<1xi64>) {
    ^bb0(%out: i64 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0)):
      linalg.yield %c0_i64 : i64 loc(#loc48)
    } -> tensor<1xi64> loc(#loc48)
    %expanded = tensor.expand_shape %1 [[0, 1, 2]] output_shape [1, 1, 1] : tensor<1xi64> into tensor<1x1x1xi64> loc(#loc48)
    %2 = tensor.empty() : tensor<1x1x32xf32> loc(#loc48)
    %c1_i64 = arith.constant 1 : i64 loc(#loc)
    %c7_i64 = arith.constant 7 : i64 loc(#loc)
    %c32_i64 = arith.constant 32 : i64 loc(#loc)
    %3 = linalg.generic {indexing_maps = [#map12, #map13, #map6, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%expanded, %x0, %x1 : tensor<1x1x1xi64>, tensor<1x1xi64>, tensor<32xi64>) outs(%2 : tensor<1x1x32xf32>) {
    ^bb0(%in: i64 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0), %in_0: i64 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0), %in_1: i64 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":741:0)):
      %4 = arith.cmpi slt, %in, %c0_i64 : i64 loc(#loc48)
      %5 = arith.addi %in, %c1_i64 : i64 loc(#loc48)
      %6 = arith.select %4, %5, %in : i64 loc(#loc48)
      %7 = arith.index_cast %6 : i64 to index loc(#loc48)
      %8 = arith.cmpi slt, %in_0, %c0_i64 : i64 loc(#loc48)
      %9 = arith.addi %in_0, %c7_i64 : i64 loc(#loc48)
      %10 = arith.select %8, %9, %in_0 : i64 loc(#loc48)
      %11 = arith.index_cast %10 : i64 to index loc(#loc48)
      %12 = arith.cmpi slt, %in_1, %c0_i64 : i64 loc(#loc48)
      %13 = arith.addi %in_1, %c32_i64 : i64 loc(#loc48)
      %14 = arith.select %12, %13, %in_1 : i64 loc(#loc48)
      %15 = arith.index_cast %14 : i64 to index loc(#loc48)
      %extracted = tensor.extract %x2[%7, %11, %15] : tensor<1x7x32xf32> loc(#loc48)
      linalg.yield %extracted : f32 loc(#loc48)
    } -> tensor<1x1x32xf32> loc(#loc48)
    return %3 : tensor<1x1x32xf32> loc(#loc48)
  } loc(#loc48)
  func.func private @matmul.240(%x0: tensor<1x32xf32> {sscc.input = "x0"} loc("lm_head"(#loc49)),
      %x1: tensor<32x96xf32> {sscc.input = "x1"} loc("lm_head"(#loc49))) -> (tensor<1x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<1x96xf32> loc(#loc146)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<1x96xf32>) -> tensor<1x96xf32> loc(#loc146)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<1x32xf32>, tensor<32x96xf32>) outs(%1 : tensor<1x96xf32>) -> tensor<1x96xf32> loc(#loc146)
    return %2 : tensor<1x96xf32> loc(#loc146)
  } loc(#loc146)
  func.func private @divf.241(%x0: tensor<1x1x96xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)) -> (tensor<1x1x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x1x96xf32> loc(#loc50)
    %cst = arith.constant 3.000000e+01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x1x96xf32>) outs(%0 : tensor<1x1x96xf32>) {
    ^bb0(%in: f32 loc("lm_head"(#loc49)), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)):
      %2 = arith.divf %in, %cst : f32 loc(#loc50)
      linalg.yield %2 : f32 loc(#loc50)
    } -> tensor<1x1x96xf32> loc(#loc50)
    return %1 : tensor<1x1x96xf32> loc(#loc50)
  } loc(#loc50)
  func.func private @tanh.242(%x0: tensor<1x1x96xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)) -> (tensor<1x1x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x1x96xf32> loc(#loc50)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x1x96xf32>) outs(%0 : tensor<1x1x96xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)):
      %2 = math.tanh %in : f32 loc(#loc50)
      linalg.yield %2 : f32 loc(#loc50)
    } -> tensor<1x1x96xf32> loc(#loc50)
    return %1 : tensor<1x1x96xf32> loc(#loc50)
  } loc(#loc50)
  func.func private @mulf.243(%x0: tensor<1x1x96xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)) -> (tensor<1x1x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<1x1x96xf32> loc(#loc50)
    %cst = arith.constant 3.000000e+01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<1x1x96xf32>) outs(%0 : tensor<1x1x96xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)):
      %2 = arith.mulf %in, %cst : f32 loc(#loc50)
      linalg.yield %2 : f32 loc(#loc50)
    } -> tensor<1x1x96xf32> loc(#loc50)
    return %1 : tensor<1x1x96xf32> loc(#loc50)
  } loc(#loc50)
  func.func private @extract.244(%x0: tensor<2x1xi64> {sscc.input = "x0"} loc("model.embed_tokens"(#loc4)),
      %x1: tensor<96x32xf32> {sscc.input = "x1"} loc("model.embed_tokens"(#loc4))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc53)
    %1 = linalg.generic {indexing_maps = [#map, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1xi64>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: i64 loc("model.embed_tokens"(#loc4)), %out: f32 loc("model.embed_tokens"(#loc4))):
      %2 = arith.index_cast %in : i64 to index loc(#loc53)
      %3 = linalg.index 2 : index loc(#loc53)
      %extracted = tensor.extract %x1[%2, %3] : tensor<96x32xf32> loc(#loc53)
      linalg.yield %extracted : f32 loc(#loc53)
    } -> tensor<2x1x32xf32> loc(#loc53)
    return %1 : tensor<2x1x32xf32> loc(#loc53)
  } loc(#loc53)
  func.func private @mulf.246(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0),
      %x1: tensor<f32> {sscc.input = "x1"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0)) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc53)
    %1 = linalg.generic {indexing_maps = [#map1, #map3, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x32xf32>, tensor<f32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.embed_tokens"(#loc4)), %in_0: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0)):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc5)
      linalg.yield %2 : f32 loc(#loc5)
    } -> tensor<2x1x32xf32> loc(#loc5)
    return %1 : tensor<2x1x32xf32> loc(#loc5)
  } loc(#loc5)
  func.func private @fpowi.247(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %c2_i64 = arith.constant 2 : i64 loc(#loc59)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = math.fpowi %in, %c2_i64 : f32, i64 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<2x1x32xf32> loc(#loc54)
    return %1 : tensor<2x1x32xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @addf.248(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<2x1x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc54)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x1x1xf32>) -> tensor<2x1x1xf32> loc(#loc54)
    %2 = linalg.generic {indexing_maps = [#map1, #map4], iterator_types = ["parallel", "parallel", "reduction"]} ins(%x0 : tensor<2x1x32xf32>) outs(%1 : tensor<2x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %3 = arith.addf %in, %out : f32 loc(#loc54)
      linalg.yield %3 : f32 loc(#loc54)
    } -> tensor<2x1x1xf32> loc(#loc54)
    return %2 : tensor<2x1x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @divf.249(%x0: tensor<2x1x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<2x1x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc54)
    %cst = arith.constant 3.200000e+01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x1xf32>) outs(%0 : tensor<2x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = arith.divf %in, %cst : f32 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<2x1x1xf32> loc(#loc54)
    return %1 : tensor<2x1x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @addf.250(%x0: tensor<2x1x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<2x1x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc54)
    %cst = arith.constant 9.9999999999999995E-7 : f64 loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x1xf32>) outs(%0 : tensor<2x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc54)
      %3 = arith.addf %in, %2 : f32 loc(#loc54)
      linalg.yield %3 : f32 loc(#loc54)
    } -> tensor<2x1x1xf32> loc(#loc54)
    return %1 : tensor<2x1x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @rsqrt.251(%x0: tensor<2x1x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<2x1x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x1xf32>) outs(%0 : tensor<2x1x1xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = math.rsqrt %in : f32 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<2x1x1xf32> loc(#loc54)
    return %1 : tensor<2x1x1xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @mulf.252(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc7)),
      %x1: tensor<2x1x1xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_pre_norm"(#loc7))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map4, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x32xf32>, tensor<2x1x1xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":671:0), %in_0: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc7))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc54)
      linalg.yield %2 : f32 loc(#loc54)
    } -> tensor<2x1x32xf32> loc(#loc54)
    return %1 : tensor<2x1x32xf32> loc(#loc54)
  } loc(#loc54)
  func.func private @mulf.254(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_pre_norm"(#loc8)),
      %x1: tensor<32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_pre_norm"(#loc8))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map6, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x32xf32>, tensor<32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_pre_norm"(#loc7)), %in_0: f32 loc("model.layers.0.temporal_pre_norm"(#loc8)), %out: f32 loc("model.layers.0.temporal_pre_norm"(#loc8))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc55)
      linalg.yield %2 : f32 loc(#loc55)
    } -> tensor<2x1x32xf32> loc(#loc55)
    return %1 : tensor<2x1x32xf32> loc(#loc55)
  } loc(#loc55)
  func.func private @matmul.255(%x0: tensor<2x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.linear_y"(#loc9)),
      %x1: tensor<32x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.linear_y"(#loc9))) -> (tensor<2x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x32xf32> loc(#loc56)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x32xf32>) -> tensor<2x32xf32> loc(#loc56)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<2x32xf32>, tensor<32x32xf32>) outs(%1 : tensor<2x32xf32>) -> tensor<2x32xf32> loc(#loc56)
    return %2 : tensor<2x32xf32> loc(#loc56)
  } loc(#loc56)
  func.func private @addf.256(%x0: tensor<2x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.linear_y"(#loc9)),
      %x1: tensor<32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.linear_y"(#loc9))) -> (tensor<2x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x32xf32> loc(#loc56)
    %1 = linalg.generic {indexing_maps = [#map7, #map8, #map7], iterator_types = ["parallel", "parallel"]} ins(%x0, %x1 : tensor<2x32xf32>, tensor<32xf32>) outs(%0 : tensor<2x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %in_0: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc56)
      linalg.yield %2 : f32 loc(#loc56)
    } -> tensor<2x32xf32> loc(#loc56)
    return %1 : tensor<2x32xf32> loc(#loc56)
  } loc(#loc56)
  func.func private @mulf.257(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x0 : tensor<2x1x32xf32>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %in_0: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.258(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10)),
      %x1: tensor<2x1x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x32xf32>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %in_0: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.259(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %cst = arith.constant 4.471500e-02 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc57)
      %3 = arith.mulf %in, %2 : f32 loc(#loc57)
      linalg.yield %3 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @addf.260(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10)),
      %x1: tensor<2x1x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x32xf32>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %in_0: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.261(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %cst = arith.constant 0.79788456080286541 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc57)
      %3 = arith.mulf %in, %2 : f32 loc(#loc57)
      linalg.yield %3 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @mulf.262(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %cst = arith.constant 5.000000e-01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.linear_y"(#loc9)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @tanh.263(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = math.tanh %in : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @addf.264(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.act_fn"(#loc10))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.temporal_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %cst : f32 loc(#loc57)
      linalg.yield %2 : f32 loc(#loc57)
    } -> tensor<2x1x32xf32> loc(#loc57)
    return %1 : tensor<2x1x32xf32> loc(#loc57)
  } loc(#loc57)
  func.func private @addf.268(%x0: tensor<2xi64> {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12)),
      %x1: tensor<2x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block"(#loc12)),
      %x2: tensor<2x32xf32> {sscc.input = "x2"} loc("model.layers.0.temporal_block"(#loc12)),
      %x3: tensor<2x32xf32> {sscc.input = "x3"} loc("model.layers.0.temporal_block"(#loc12)),
      %x4: tensor<2x32xf32> {sscc.input = "x4"} loc("model.layers.0.temporal_block"(#loc12)),
      %x5: tensor<32xf32> {sscc.input = "x5"} loc("model.layers.0.temporal_block"(#loc12)),
      %x6: tensor<32xf32> {sscc.input = "x6"} loc("model.layers.0.temporal_block"(#loc12)),
      %x7: tensor<32xf32> {sscc.input = "x7"} loc("model.layers.0.temporal_block"(#loc12)),
      %x8: tensor<32xf32> {sscc.input = "x8"} loc("model.layers.0.temporal_block"(#loc12)),
      %x9: tensor<32xf32> {sscc.input = "x9"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<2x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x32xf32> loc(#loc56)
    %c2_i64 = arith.constant 2 : i64 loc(#loc59)
    %1 = linalg.generic {indexing_maps = [#map14, #map7, #map7, #map7, #map7, #map8, #map8, #map8, #map8, #map8, #map7], iterator_types = ["parallel", "parallel"]} ins(%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7, %x8, %x9 : tensor<2xi64>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<2x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<32xf32>) outs(%0 : tensor<2x32xf32>) attrs =  {df.together} {
    ^bb0(%in: i64 loc("model.layers.0.temporal_block"(#loc12)), %in_0: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_1: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_2: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_3: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_4: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_5: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_6: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_7: f32 loc("model.layers.0.temporal_block"(#loc12)), %in_8: f32 loc("model.layers.0.temporal_block"(#loc12)), %out: f32 loc("model.layers.0.temporal_block"(#loc12))):
      %c0_i64 = arith.constant 0 : i64 loc(#loc59)
      %2 = arith.addi %in, %c0_i64 : i64 loc(#loc59)
      %c3_i64 = arith.constant 3 : i64 loc(#loc59)
      %3 = arith.remsi %2, %c3_i64 : i64 loc(#loc59)
      %c1_i64 = arith.constant 1 : i64 loc(#loc59)
      %4 = arith.cmpi eq, %3, %c1_i64 : i64 loc(#loc59)
      %5 = arith.select %4, %in_1, %in_0 : f32 loc(#loc59)
      %6 = arith.cmpi eq, %3, %c2_i64 : i64 loc(#loc59)
      %7 = arith.select %6, %in_2, %5 : f32 loc(#loc59)
      %8 = arith.addi %in, %c1_i64 : i64 loc(#loc59)
      %9 = arith.remsi %8, %c3_i64 : i64 loc(#loc59)
      %10 = arith.cmpi eq, %9, %c1_i64 : i64 loc(#loc59)
      %11 = arith.select %10, %in_1, %in_0 : f32 loc(#loc59)
      %12 = arith.cmpi eq, %9, %c2_i64 : i64 loc(#loc59)
      %13 = arith.select %12, %in_2, %11 : f32 loc(#loc59)
      %14 = arith.addi %in, %c2_i64 : i64 loc(#loc59)
      %15 = arith.remsi %14, %c3_i64 : i64 loc(#loc59)
      %16 = arith.cmpi eq, %15, %c1_i64 : i64 loc(#loc59)
      %17 = arith.select %16, %in_1, %in_0 : f32 loc(#loc59)
      %18 = arith.cmpi eq, %15, %c2_i64 : i64 loc(#loc59)
      %19 = arith.select %18, %in_2, %17 : f32 loc(#loc59)
      %20 = arith.mulf %in_4, %7 : f32 loc(#loc59)
      %21 = arith.mulf %in_5, %13 : f32 loc(#loc59)
      %22 = arith.mulf %in_6, %19 : f32 loc(#loc59)
      %23 = arith.mulf %in_7, %in_3 : f32 loc(#loc59)
      %24 = arith.addf %20, %21 : f32 loc(#loc59)
      %25 = arith.addf %24, %22 : f32 loc(#loc59)
      %26 = arith.addf %25, %23 : f32 loc(#loc59)
      %27 = arith.addf %26, %in_8 : f32 loc(#loc59)
      linalg.yield %27 : f32 loc(#loc59)
    } -> tensor<2x32xf32> loc(#loc59)
    return %1 : tensor<2x32xf32> loc(#loc59)
  } loc(#loc59)
  func.func private @row.269(%x0: tensor<2xi64> {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<2xi64> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index loc(#loc59)
    %0 = "kv.row"(%x0, %x0, %c0) {df.together, kv.group = "convolution"} : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64> loc(#loc59)
    return %0 : tensor<2xi64> loc(#loc59)
  } loc(#loc59)
  func.func private @update.270(%x0: tensor<2x1x3x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block"(#loc12)),
      %x1: tensor<2x1x1x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block"(#loc12)),
      %x2: tensor<2xi64> {sscc.input = "x2"} loc("model.layers.0.temporal_block"(#loc12)),
      %x3: tensor<2xi1> {sscc.input = "x3"} loc("model.layers.0.temporal_block"(#loc12))) -> (tensor<2x1x3x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = "kv.update"(%x0, %x1, %x2, %x3) {df.together, kv.group = "convolution"} : (tensor<2x1x3x32xf32>, tensor<2x1x1x32xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x1x3x32xf32> loc(#loc59)
    return %0 : tensor<2x1x3x32xf32> loc(#loc59)
  } loc(#loc59)
  func.func private @cmpi.271(%x0: tensor<2x1x1xi64> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc13))) -> (tensor<2x1x1xi1> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x1xi1> loc(#loc60)
    %c0_i64 = arith.constant 0 : i64 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x1xi64>) outs(%0 : tensor<2x1x1xi1>) {
    ^bb0(%in: i64 loc("model.layers.0.temporal_block.rg_lru"(#loc13)), %out: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc13))):
      %2 = arith.cmpi eq, %in, %c0_i64 : i64 loc(#loc60)
      linalg.yield %2 : i1 loc(#loc60)
    } -> tensor<2x1x1xi1> loc(#loc60)
    return %1 : tensor<2x1x1xi1> loc(#loc60)
  } loc(#loc60)
  func.func private @batch_matmul.272(%x0: tensor<4x2x8xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc16)),
      %x1: tensor<4x8x8xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc16))) -> (tensor<4x2x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<4x2x8xf32> loc(#loc62)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc63)
    %2 = linalg.batch_matmul ins(%x0, %x1 : tensor<4x2x8xf32>, tensor<4x8x8xf32>) outs(%1 : tensor<4x2x8xf32>) -> tensor<4x2x8xf32> loc(#loc63)
    return %2 : tensor<4x2x8xf32> loc(#loc63)
  } loc(#loc63)
  func.func private @addf.273(%x0: tensor<4x1x8xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc16)),
      %x1: tensor<4x2x8xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc16))) -> (tensor<4x2x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<4x2x8xf32> loc(#loc62)
    %1 = linalg.generic {indexing_maps = [#map10, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<4x1x8xf32>, tensor<4x2x8xf32>) outs(%0 : tensor<4x2x8xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc16)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc16)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc16))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc63)
      linalg.yield %2 : f32 loc(#loc63)
    } -> tensor<4x2x8xf32> loc(#loc63)
    return %1 : tensor<4x2x8xf32> loc(#loc63)
  } loc(#loc63)
  func.func private @divf.274(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc17))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc17)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc17))):
      %2 = arith.negf %in : f32 loc(#loc64)
      %3 = math.exp %2 : f32 loc(#loc64)
      %4 = arith.addf %3, %cst : f32 loc(#loc64)
      %5 = arith.divf %cst, %4 : f32 loc(#loc64)
      linalg.yield %5 : f32 loc(#loc64)
    } -> tensor<2x1x32xf32> loc(#loc64)
    return %1 : tensor<2x1x32xf32> loc(#loc64)
  } loc(#loc64)
  func.func private @mulf.278(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc20))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %cst = arith.constant -8.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc19)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc67)
      linalg.yield %2 : f32 loc(#loc67)
    } -> tensor<2x1x32xf32> loc(#loc67)
    return %1 : tensor<2x1x32xf32> loc(#loc67)
  } loc(#loc67)
  func.func private @exp.284(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc21))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc21))):
      %2 = math.exp %in : f32 loc(#loc68)
      linalg.yield %2 : f32 loc(#loc68)
    } -> tensor<2x1x32xf32> loc(#loc68)
    return %1 : tensor<2x1x32xf32> loc(#loc68)
  } loc(#loc68)
  func.func private @mulf.285(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc22))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %cst = arith.constant 2.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc20)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc22))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc69)
      linalg.yield %2 : f32 loc(#loc69)
    } -> tensor<2x1x32xf32> loc(#loc69)
    return %1 : tensor<2x1x32xf32> loc(#loc69)
  } loc(#loc69)
  func.func private @subf.288(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc24))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant dense<1> : tensor<i64> loc(#loc71)
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map3, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%cst, %x0 : tensor<i64>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: i64 loc("model.layers.0.temporal_block.rg_lru"(#loc24)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc22)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc24))):
      %2 = arith.sitofp %in : i64 to f32 loc(#loc71)
      %3 = arith.subf %2, %in_0 : f32 loc(#loc71)
      linalg.yield %3 : f32 loc(#loc71)
    } -> tensor<2x1x32xf32> loc(#loc71)
    return %1 : tensor<2x1x32xf32> loc(#loc71)
  } loc(#loc71)
  func.func private @sqrt.289(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc25))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc24)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc25))):
      %2 = math.sqrt %in : f32 loc(#loc72)
      linalg.yield %2 : f32 loc(#loc72)
    } -> tensor<2x1x32xf32> loc(#loc72)
    return %1 : tensor<2x1x32xf32> loc(#loc72)
  } loc(#loc72)
  func.func private @xori.290(%x0: tensor<2x1x1xi1> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc26))) -> (tensor<2x1x1xi1> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x1xi1> loc(#loc60)
    %true = arith.constant true loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x1xi1>) outs(%0 : tensor<2x1x1xi1>) {
    ^bb0(%in: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc13)), %out: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc26))):
      %2 = arith.xori %in, %true : i1 loc(#loc73)
      linalg.yield %2 : i1 loc(#loc73)
    } -> tensor<2x1x1xi1> loc(#loc73)
    return %1 : tensor<2x1x1xi1> loc(#loc73)
  } loc(#loc73)
  func.func private @mulf.291(%x0: tensor<2x1x1xi1> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc26)),
      %x1: tensor<2x1x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc26))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map4, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x1xi1>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc26)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc25)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc26))):
      %2 = arith.uitofp %in : i1 to f32 loc(#loc73)
      %3 = arith.mulf %2, %in_0 : f32 loc(#loc73)
      linalg.yield %3 : f32 loc(#loc73)
    } -> tensor<2x1x32xf32> loc(#loc73)
    return %1 : tensor<2x1x32xf32> loc(#loc73)
  } loc(#loc73)
  func.func private @addf.292(%x0: tensor<2x1x1xi1> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc26)),
      %x1: tensor<2x1x32xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc26))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map4, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x1xi1>, tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc13)), %in_0: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc26)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc26))):
      %2 = arith.uitofp %in : i1 to f32 loc(#loc73)
      %3 = arith.addf %2, %in_0 : f32 loc(#loc73)
      linalg.yield %3 : f32 loc(#loc73)
    } -> tensor<2x1x32xf32> loc(#loc73)
    return %1 : tensor<2x1x32xf32> loc(#loc73)
  } loc(#loc73)
  func.func private @mulf.294(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x1: tensor<2x1x1xi1> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc28))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map4, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x32xf32>, tensor<2x1x1xi1>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc21)), %in_0: i1 loc("model.layers.0.temporal_block.rg_lru"(#loc28)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc28))):
      %2 = arith.uitofp %in_0 : i1 to f32 loc(#loc75)
      %3 = arith.mulf %in, %2 : f32 loc(#loc75)
      linalg.yield %3 : f32 loc(#loc75)
    } -> tensor<2x1x32xf32> loc(#loc75)
    return %1 : tensor<2x1x32xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @log.295(%x0: tensor<2x1x32xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc28))) -> (tensor<2x1x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x32xf32> loc(#loc54)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x32xf32>) outs(%0 : tensor<2x1x32xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc28)), %out: f32 loc("model.layers.0.temporal_block.rg_lru"(#loc28))):
      %2 = math.log %in : f32 loc(#loc75)
      linalg.yield %2 : f32 loc(#loc75)
    } -> tensor<2x1x32xf32> loc(#loc75)
    return %1 : tensor<2x1x32xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @recurrent_step.296(%x0: tensor<2x1x32x1xf32> {sscc.input = "x0"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x1: tensor<2x1x32x1xf32> {sscc.input = "x1"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x2: tensor<2x32x1x1xf32> {sscc.input = "x2"} loc("model.layers.0.temporal_block.rg_lru"(#loc28)),
      %x3: tensor<2xi1> {sscc.input = "x3"} loc("model.layers.0.temporal_block.rg_lru"(#loc28))) -> (tensor<2x1x32x1xf32> {sscc.output = "y0"}, tensor<2x32x1x1xf32> {sscc.output = "y1"}) attributes {sscc.kernel} {
    %cst = arith.constant dense<1.000000e+00> : tensor<2x1x1x1xf32> loc(#loc)
    %0:2 = "kv.recurrent_step"(%cst, %cst, %x0, %x1, %x2, %x3) {kv.group = "recurrence", operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0, 0>} : (tensor<2x1x1x1xf32>, tensor<2x1x1x1xf32>, tensor<2x1x32x1xf32>, tensor<2x1x32x1xf32>, tensor<2x32x1x1xf32>, tensor<2xi1>) -> (tensor<2x1x32x1xf32>, tensor<2x32x1x1xf32>) loc(#loc75)
    return %0#0, %0#1 : tensor<2x1x32x1xf32>, tensor<2x32x1x1xf32> loc(#loc75)
  } loc(#loc75)
  func.func private @matmul.309(%x0: tensor<2x32xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.gate_proj"(#loc32)),
      %x1: tensor<32x24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.gate_proj"(#loc32))) -> (tensor<2x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x24xf32> loc(#loc81)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x24xf32>) -> tensor<2x24xf32> loc(#loc81)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<2x32xf32>, tensor<32x24xf32>) outs(%1 : tensor<2x24xf32>) -> tensor<2x24xf32> loc(#loc81)
    return %2 : tensor<2x24xf32> loc(#loc81)
  } loc(#loc81)
  func.func private @addf.310(%x0: tensor<2x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.gate_proj"(#loc32)),
      %x1: tensor<24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.gate_proj"(#loc32))) -> (tensor<2x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x24xf32> loc(#loc81)
    %1 = linalg.generic {indexing_maps = [#map7, #map8, #map7], iterator_types = ["parallel", "parallel"]} ins(%x0, %x1 : tensor<2x24xf32>, tensor<24xf32>) outs(%0 : tensor<2x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %in_0: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc81)
      linalg.yield %2 : f32 loc(#loc81)
    } -> tensor<2x24xf32> loc(#loc81)
    return %1 : tensor<2x24xf32> loc(#loc81)
  } loc(#loc81)
  func.func private @mulf.311(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x0 : tensor<2x1x24xf32>, tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %in_0: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.312(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10)),
      %x1: tensor<2x1x24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x24xf32>, tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %in_0: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.313(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %cst = arith.constant 4.471500e-02 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc82)
      %3 = arith.mulf %in, %2 : f32 loc(#loc82)
      linalg.yield %3 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @addf.314(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10)),
      %x1: tensor<2x1x24xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x24xf32>, tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %in_0: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.315(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %cst = arith.constant 0.79788456080286541 : f64 loc(#loc57)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.truncf %cst : f64 to f32 loc(#loc82)
      %3 = arith.mulf %in, %2 : f32 loc(#loc82)
      linalg.yield %3 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @mulf.316(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %cst = arith.constant 5.000000e-01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.gate_proj"(#loc32)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.mulf %in, %cst : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @tanh.317(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = math.tanh %in : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @addf.318(%x0: tensor<2x1x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.act_fn"(#loc10))) -> (tensor<2x1x24xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x24xf32> loc(#loc82)
    %cst = arith.constant 1.000000e+00 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x24xf32>) outs(%0 : tensor<2x1x24xf32>) {
    ^bb0(%in: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10)), %out: f32 loc("model.layers.0.mlp_block.act_fn"(#loc10))):
      %2 = arith.addf %in, %cst : f32 loc(#loc82)
      linalg.yield %2 : f32 loc(#loc82)
    } -> tensor<2x1x24xf32> loc(#loc82)
    return %1 : tensor<2x1x24xf32> loc(#loc82)
  } loc(#loc82)
  func.func private @matmul.323(%x0: tensor<2x24xf32> {sscc.input = "x0"} loc("model.layers.0.mlp_block.down_proj"(#loc33)),
      %x1: tensor<24x32xf32> {sscc.input = "x1"} loc("model.layers.0.mlp_block.down_proj"(#loc33))) -> (tensor<2x32xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x32xf32> loc(#loc56)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x32xf32>) -> tensor<2x32xf32> loc(#loc56)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<2x24xf32>, tensor<24x32xf32>) outs(%1 : tensor<2x32xf32>) -> tensor<2x32xf32> loc(#loc85)
    return %2 : tensor<2x32xf32> loc(#loc85)
  } loc(#loc85)
  func.func private @sitofp.416(%x0: tensor<2x1x1xi64> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc40))) -> (tensor<2x1x1xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x1xf32> loc(#loc120)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x1xi64>) outs(%0 : tensor<2x1x1xf32>) {
    ^bb0(%in: i64 loc("model.layers.2.temporal_block.rotary_emb"(#loc40)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40))):
      %2 = arith.sitofp %in : i64 to f32 loc(#loc128)
      linalg.yield %2 : f32 loc(#loc128)
    } -> tensor<2x1x1xf32> loc(#loc128)
    return %1 : tensor<2x1x1xf32> loc(#loc128)
  } loc(#loc128)
  func.func private @mulf.417(%x0: tensor<2x1x1xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc40)),
      %x1: tensor<2xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block.rotary_emb"(#loc40))) -> (tensor<2x1x2xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x2xf32> loc(#loc128)
    %1 = linalg.generic {indexing_maps = [#map4, #map6, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x1x1xf32>, tensor<2xf32>) outs(%0 : tensor<2x1x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40)), %in_0: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc40))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc128)
      linalg.yield %2 : f32 loc(#loc128)
    } -> tensor<2x1x2xf32> loc(#loc128)
    return %1 : tensor<2x1x2xf32> loc(#loc128)
  } loc(#loc128)
  func.func private @concat.418(%x0: tensor<2x1x2xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc41))) -> (tensor<2x1x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %concat = tensor.concat dim(2) %x0, %x0 : (tensor<2x1x2xf32>, tensor<2x1x2xf32>) -> tensor<2x1x4xf32> loc(#loc129)
    return %concat : tensor<2x1x4xf32> loc(#loc129)
  } loc(#loc129)
  func.func private @cos.419(%x0: tensor<2x1x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc42))) -> (tensor<2x1x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x4xf32> loc(#loc130)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x4xf32>) outs(%0 : tensor<2x1x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc41)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc42))):
      %2 = math.cos %in : f32 loc(#loc130)
      linalg.yield %2 : f32 loc(#loc130)
    } -> tensor<2x1x4xf32> loc(#loc130)
    return %1 : tensor<2x1x4xf32> loc(#loc130)
  } loc(#loc130)
  func.func private @sin.420(%x0: tensor<2x1x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block.rotary_emb"(#loc43))) -> (tensor<2x1x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x4xf32> loc(#loc130)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x4xf32>) outs(%0 : tensor<2x1x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc41)), %out: f32 loc("model.layers.2.temporal_block.rotary_emb"(#loc43))):
      %2 = math.sin %in : f32 loc(#loc131)
      linalg.yield %2 : f32 loc(#loc131)
    } -> tensor<2x1x4xf32> loc(#loc131)
    return %1 : tensor<2x1x4xf32> loc(#loc131)
  } loc(#loc131)
  func.func private @mulf.421(%x0: tensor<2x4x1x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<2x1x1x4xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<2x4x1x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x4x1x4xf32> loc(#loc132)
    %1 = linalg.generic {indexing_maps = [#map9, #map11, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x4x1x4xf32>, tensor<2x1x1x4xf32>) outs(%0 : tensor<2x4x1x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block"(#loc44)), %in_0: f32 loc("model.layers.2.temporal_block"(#loc44)), %out: f32 loc("model.layers.2.temporal_block"(#loc44))):
      %2 = arith.mulf %in, %in_0 : f32 loc(#loc132)
      linalg.yield %2 : f32 loc(#loc132)
    } -> tensor<2x4x1x4xf32> loc(#loc132)
    return %1 : tensor<2x4x1x4xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @negf.422(%x0: tensor<2x4x1x2xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<2x4x1x2xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x4x1x2xf32> loc(#loc132)
    %1 = linalg.generic {indexing_maps = [#map9, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x4x1x2xf32>) outs(%0 : tensor<2x4x1x2xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block"(#loc44)), %out: f32 loc("model.layers.2.temporal_block"(#loc44))):
      %2 = arith.negf %in : f32 loc(#loc132)
      linalg.yield %2 : f32 loc(#loc132)
    } -> tensor<2x4x1x2xf32> loc(#loc132)
    return %1 : tensor<2x4x1x2xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @concat.423(%x0: tensor<2x4x1x2xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<2x4x1x2xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<2x4x1x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %concat = tensor.concat dim(3) %x0, %x1 : (tensor<2x4x1x2xf32>, tensor<2x4x1x2xf32>) -> tensor<2x4x1x4xf32> loc(#loc132)
    return %concat : tensor<2x4x1x4xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @addf.425(%x0: tensor<2x4x1x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<2x4x1x4xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<2x4x1x4xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x4x1x4xf32> loc(#loc132)
    %1 = linalg.generic {indexing_maps = [#map9, #map9, #map9], iterator_types = ["parallel", "parallel", "parallel", "parallel"]} ins(%x0, %x1 : tensor<2x4x1x4xf32>, tensor<2x4x1x4xf32>) outs(%0 : tensor<2x4x1x4xf32>) {
    ^bb0(%in: f32 loc("model.layers.2.temporal_block"(#loc44)), %in_0: f32 loc("model.layers.2.temporal_block"(#loc44)), %out: f32 loc("model.layers.2.temporal_block"(#loc44))):
      %2 = arith.addf %in, %in_0 : f32 loc(#loc132)
      linalg.yield %2 : f32 loc(#loc132)
    } -> tensor<2x4x1x4xf32> loc(#loc132)
    return %1 : tensor<2x4x1x4xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @concat.431(%x0: tensor<2x4x1x4xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc44)),
      %x1: tensor<2x4x1x4xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc44))) -> (tensor<2x4x1x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %concat = tensor.concat dim(3) %x0, %x1 : (tensor<2x4x1x4xf32>, tensor<2x4x1x4xf32>) -> tensor<2x4x1x8xf32> loc(#loc132)
    return %concat : tensor<2x4x1x8xf32> loc(#loc132)
  } loc(#loc132)
  func.func private @row.433(%x0: tensor<2xi64> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc45)),
      %x1: tensor<2xi64> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc45))) -> (tensor<2xi64> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index loc(#loc133)
    %0 = "kv.row"(%x0, %x1, %c0) {kv.group = "window10"} : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64> loc(#loc133)
    return %0 : tensor<2xi64> loc(#loc133)
  } loc(#loc133)
  func.func private @update.434(%x0: tensor<2x4x10x8xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc45)),
      %x1: tensor<2x4x1x8xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc45)),
      %x2: tensor<2xi64> {sscc.input = "x2"} loc("model.layers.2.temporal_block"(#loc45)),
      %x3: tensor<2xi1> {sscc.input = "x3"} loc("model.layers.2.temporal_block"(#loc45))) -> (tensor<2x4x10x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = "kv.update"(%x0, %x1, %x2, %x3) {kv.group = "window10"} : (tensor<2x4x10x8xf32>, tensor<2x4x1x8xf32>, tensor<2xi64>, tensor<2xi1>) -> tensor<2x4x10x8xf32> loc(#loc133)
    return %0 : tensor<2x4x10x8xf32> loc(#loc133)
  } loc(#loc133)
  func.func private @validity.436(%x0: tensor<2xi64> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc45)),
      %x1: tensor<2xi1> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc45))) -> (tensor<2x10xi1> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %c0 = arith.constant 0 : index loc(#loc133)
    %0 = "kv.validity"(%x0, %x1, %c0) {kv.group = "window10"} : (tensor<2xi64>, tensor<2xi1>, index) -> tensor<2x10xi1> loc(#loc133)
    return %0 : tensor<2x10xi1> loc(#loc133)
  } loc(#loc133)
  func.func private @cached_attention.437(%x0: tensor<2x4x1x8xf32> {sscc.input = "x0"} loc("model.layers.2.temporal_block"(#loc45)),
      %x1: tensor<2x4x10x8xf32> {sscc.input = "x1"} loc("model.layers.2.temporal_block"(#loc45)),
      %x2: tensor<2x4x10x8xf32> {sscc.input = "x2"} loc("model.layers.2.temporal_block"(#loc45)),
      %x3: tensor<2x10xi1> {sscc.input = "x3"} loc("model.layers.2.temporal_block"(#loc45))) -> (tensor<2x4x1x8xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = "kv.cached_attention"(%x0, %x1, %x2, %x3) {kv.group = "window10", operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>, scale = 0.35355339059327379 : f64} : (tensor<2x4x1x8xf32>, tensor<2x4x10x8xf32>, tensor<2x4x10x8xf32>, tensor<2x10xi1>) -> tensor<2x4x1x8xf32> loc(#loc133)
    return %0 : tensor<2x4x1x8xf32> loc(#loc133)
  } loc(#loc133)
  func.func private @matmul.474(%x0: tensor<2x32xf32> {sscc.input = "x0"} loc("lm_head"(#loc49)),
      %x1: tensor<32x96xf32> {sscc.input = "x1"} loc("lm_head"(#loc49))) -> (tensor<2x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc)
    %0 = tensor.empty() : tensor<2x96xf32> loc(#loc146)
    %1 = linalg.fill ins(%cst : f32) outs(%0 : tensor<2x96xf32>) -> tensor<2x96xf32> loc(#loc146)
    %2 = linalg.matmul ins(%x0, %x1 : tensor<2x32xf32>, tensor<32x96xf32>) outs(%1 : tensor<2x96xf32>) -> tensor<2x96xf32> loc(#loc146)
    return %2 : tensor<2x96xf32> loc(#loc146)
  } loc(#loc146)
  func.func private @divf.475(%x0: tensor<2x1x96xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)) -> (tensor<2x1x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x96xf32> loc(#loc50)
    %cst = arith.constant 3.000000e+01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x96xf32>) outs(%0 : tensor<2x1x96xf32>) {
    ^bb0(%in: f32 loc("lm_head"(#loc49)), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)):
      %2 = arith.divf %in, %cst : f32 loc(#loc50)
      linalg.yield %2 : f32 loc(#loc50)
    } -> tensor<2x1x96xf32> loc(#loc50)
    return %1 : tensor<2x1x96xf32> loc(#loc50)
  } loc(#loc50)
  func.func private @tanh.476(%x0: tensor<2x1x96xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)) -> (tensor<2x1x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x96xf32> loc(#loc50)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x96xf32>) outs(%0 : tensor<2x1x96xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)):
      %2 = math.tanh %in : f32 loc(#loc50)
      linalg.yield %2 : f32 loc(#loc50)
    } -> tensor<2x1x96xf32> loc(#loc50)
    return %1 : tensor<2x1x96xf32> loc(#loc50)
  } loc(#loc50)
  func.func private @mulf.477(%x0: tensor<2x1x96xf32> {sscc.input = "x0"} loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)) -> (tensor<2x1x96xf32> {sscc.output = "y0"}) attributes {sscc.kernel} {
    %0 = tensor.empty() : tensor<2x1x96xf32> loc(#loc50)
    %cst = arith.constant 3.000000e+01 : f32 loc(#loc)
    %1 = linalg.generic {indexing_maps = [#map1, #map1], iterator_types = ["parallel", "parallel", "parallel"]} ins(%x0 : tensor<2x1x96xf32>) outs(%0 : tensor<2x1x96xf32>) {
    ^bb0(%in: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0), %out: f32 loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":746:0)):
      %2 = arith.mulf %in, %cst : f32 loc(#loc50)
      linalg.yield %2 : f32 loc(#loc50)
    } -> tensor<2x1x96xf32> loc(#loc50)
    return %1 : tensor<2x1x96xf32> loc(#loc50)
  } loc(#loc50)
} loc(#loc)
#loc = loc(unknown)
#loc2 = loc("progress")
#loc3 = loc("prefill.phase.embed")
#loc6 = loc("prefill.phase.layer.0")
#loc11 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":429:0)
#loc14 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":309:0)
#loc15 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":310:0)
#loc18 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":315:0)
#loc23 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":324:0)
#loc27 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":330:0)
#loc29 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":459:0)
#loc30 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":460:0)
#loc31 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":523:0)
#loc34 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":528:0)
#loc35 = loc("prefill.phase.layer.1")
#loc36 = loc("prefill.phase.layer.2")
#loc37 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":232:0)
#loc38 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":233:0)
#loc39 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":234:0)
#loc46 = loc("transformers/models/recurrent_gemma/modeling_recurrent_gemma.py":260:0)
#loc58 = loc("model.layers.0.temporal_block.linear_x"(#loc11))
#loc61 = loc("model.layers.0.temporal_block.rg_lru"(#loc14))
#loc62 = loc("model.layers.0.temporal_block.rg_lru"(#loc15))
#loc65 = loc("model.layers.0.temporal_block.rg_lru"(#loc18))
#loc70 = loc("model.layers.0.temporal_block.rg_lru"(#loc23))
#loc74 = loc("model.layers.0.temporal_block.rg_lru"(#loc27))
#loc76 = loc("model.layers.0.temporal_block"(#loc29))
#loc77 = loc("model.layers.0.temporal_block.linear_out"(#loc30))
#loc78 = loc("model.layers.0"(#loc31))
#loc79 = loc("model.layers.0.channel_pre_norm"(#loc7))
#loc80 = loc("model.layers.0.channel_pre_norm"(#loc8))
#loc83 = loc("model.layers.0.mlp_block.up_proj"(#loc33))
#loc84 = loc("model.layers.0.mlp_block"(#loc33))
#loc86 = loc("model.layers.0"(#loc34))
#loc87 = loc("model.layers.1.temporal_pre_norm"(#loc7))
#loc88 = loc("model.layers.1.temporal_pre_norm"(#loc8))
#loc89 = loc("model.layers.1.temporal_block.linear_y"(#loc9))
#loc90 = loc("model.layers.1.temporal_block.act_fn"(#loc10))
#loc91 = loc("model.layers.1.temporal_block.linear_x"(#loc11))
#loc92 = loc("model.layers.1.temporal_block"(#loc12))
#loc93 = loc("model.layers.1.temporal_block.rg_lru"(#loc13))
#loc94 = loc("model.layers.1.temporal_block.rg_lru"(#loc14))
#loc95 = loc("model.layers.1.temporal_block.rg_lru"(#loc15))
#loc96 = loc("model.layers.1.temporal_block.rg_lru"(#loc16))
#loc97 = loc("model.layers.1.temporal_block.rg_lru"(#loc17))
#loc98 = loc("model.layers.1.temporal_block.rg_lru"(#loc18))
#loc99 = loc("model.layers.1.temporal_block.rg_lru"(#loc19))
#loc100 = loc("model.layers.1.temporal_block.rg_lru"(#loc20))
#loc101 = loc("model.layers.1.temporal_block.rg_lru"(#loc21))
#loc102 = loc("model.layers.1.temporal_block.rg_lru"(#loc22))
#loc103 = loc("model.layers.1.temporal_block.rg_lru"(#loc23))
#loc104 = loc("model.layers.1.temporal_block.rg_lru"(#loc24))
#loc105 = loc("model.layers.1.temporal_block.rg_lru"(#loc25))
#loc106 = loc("model.layers.1.temporal_block.rg_lru"(#loc26))
#loc107 = loc("model.layers.1.temporal_block.rg_lru"(#loc27))
#loc108 = loc("model.layers.1.temporal_block.rg_lru"(#loc28))
#loc109 = loc("model.layers.1.temporal_block"(#loc29))
#loc110 = loc("model.layers.1.temporal_block.linear_out"(#loc30))
#loc111 = loc("model.layers.1"(#loc31))
#loc112 = loc("model.layers.1.channel_pre_norm"(#loc7))
#loc113 = loc("model.layers.1.channel_pre_norm"(#loc8))
#loc114 = loc("model.layers.1.mlp_block.gate_proj"(#loc32))
#loc115 = loc("model.layers.1.mlp_block.act_fn"(#loc10))
#loc116 = loc("model.layers.1.mlp_block.up_proj"(#loc33))
#loc117 = loc("model.layers.1.mlp_block"(#loc33))
#loc118 = loc("model.layers.1.mlp_block.down_proj"(#loc33))
#loc119 = loc("model.layers.1"(#loc34))
#loc120 = loc("model.layers.2.temporal_pre_norm"(#loc7))
#loc121 = loc("model.layers.2.temporal_pre_norm"(#loc8))
#loc122 = loc("model.layers.2.temporal_block.q_proj"(#loc37))
#loc123 = loc("model.layers.2.temporal_block"(#loc37))
#loc124 = loc("model.layers.2.temporal_block.k_proj"(#loc38))
#loc125 = loc("model.layers.2.temporal_block"(#loc38))
#loc126 = loc("model.layers.2.temporal_block.v_proj"(#loc39))
#loc127 = loc("model.layers.2.temporal_block"(#loc39))
#loc134 = loc("model.layers.2.temporal_block.o_proj"(#loc46))
#loc135 = loc("model.layers.2"(#loc31))
#loc136 = loc("model.layers.2.channel_pre_norm"(#loc7))
#loc137 = loc("model.layers.2.channel_pre_norm"(#loc8))
#loc138 = loc("model.layers.2.mlp_block.gate_proj"(#loc32))
#loc139 = loc("model.layers.2.mlp_block.act_fn"(#loc10))
#loc140 = loc("model.layers.2.mlp_block.up_proj"(#loc33))
#loc141 = loc("model.layers.2.mlp_block"(#loc33))
#loc142 = loc("model.layers.2.mlp_block.down_proj"(#loc33))
#loc143 = loc("model.layers.2"(#loc34))
#loc144 = loc("model.final_norm"(#loc7))
#loc145 = loc("model.final_norm"(#loc8))
#loc148 = loc("compress.0.recurrence"(#loc75))
#loc149 = loc("compress.1"(#loc92))
#loc150 = loc("compress.1.recurrence"(#loc108))
