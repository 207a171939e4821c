// The server's page: polls /health and /v1/status every second, and chats with the model.
// All text from the server or the model is inserted as text, never as markup.
"use strict";

const PERIOD = 1000; // milliseconds between two polls
const KEPT_SECONDS = 120; // width of the plot
const KEY = "sscc-api-key";
const byId = (id) => document.getElementById(id);
const EMPTY = byId("talk").firstElementChild.cloneNode(true);

let chatTemplate = true;
let modelName = "";
let talk = []; // messages of the conversation
let answering = null; // the AbortController of the answer that streams
let before = null; // the last status and its time
let points = []; // [time in ms, new tokens per second]
let reading = new Map(); // by slot in prefill: [request, time in ms and prompt tokens read when first seen]

function headers() {
  const key = sessionStorage.getItem(KEY);
  const sent = { "content-type": "application/json" };
  if (key) sent.authorization = "Bearer " + key;
  return sent;
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function counted(count, noun) {
  return whole.format(count) + " " + noun + (count === 1 ? "" : "s");
}

function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit + 1 < units.length) {
    count /= 1024;
    unit += 1;
  }
  return number.format(count) + " " + units[unit];
}

// ------------------------------------------------------------------------------------------------------ status

async function look() {
  if (document.visibilityState === "hidden") return;
  try {
    const [health, status] = await Promise.all([
      fetch("health"),
      fetch("v1/status", { headers: headers() }),
    ]);
    const told = await health.json();
    if (status.status === 401) {
      askForKey();
      showState("bad", "API key required");
      return;
    }
    if (!status.ok) throw new Error("HTTP status " + status.status);
    show(await status.json());
    showState(health.ok ? "ok" : "bad", health.ok ? "running" : told.reason || told.status);
  } catch (error) {
    before = null;
    showState("bad", error instanceof TypeError ? "server unreachable" : error.message);
  }
}

function showState(kind, text) {
  byId("state").className = "state " + kind;
  byId("state-text").textContent = text;
}

function askForKey() {
  byId("key-form").hidden = false;
}

function show(status) {
  byId("key-form").hidden = true;
  const now = performance.now();
  if (modelName !== status.model) {
    modelName = status.model;
    document.title = status.model + " - sscc";
    byId("model").textContent = status.model;
    byId("version").textContent = "sscc " + status.version;
    showFacts(status.program);
    chatTemplate = status.chat;
    byId("system-box").hidden = !chatTemplate;
    byId("chat-title").textContent = chatTemplate ? "Chat" : "Text completion";
    byId("text").placeholder = chatTemplate ? "Message" : "Text to continue (this model has no chat template)";
    byId("count").max = status.program.max_context;
    byId("count").value = Math.min(256, Math.max(1, Math.floor(status.program.max_context / 2)));
  }
  if (before) {
    const seconds = (now - before.at) / 1000;
    points.push([now, Math.max(0, (status.totals.new_tokens - before.made) / seconds)]);
  }
  before = { at: now, made: status.totals.new_tokens };
  points = points.filter(([at]) => now - at <= KEPT_SECONDS * 1000);
  showFigures(status);
  showPlot(now);
  showSlots(status);
}

function showFigures(status) {
  const recent = points.slice(-3).map(([, speed]) => speed);
  const speed = recent.length ? recent.reduce((sum, one) => sum + one, 0) / recent.length : 0;
  byId("speed").textContent = number.format(speed);
  const busy = status.slots.filter((slot) => slot.phase !== "free").length;
  byId("running").textContent = busy + " of " + status.slots.length;
  byId("queued").textContent = counted(status.queued, "request") + " queued";
  const kept = status.slots.reduce((sum, slot) => sum + slot.kept_rows, 0);
  const evicted = status.slots.reduce((sum, slot) => sum + slot.evicted_rows, 0);
  byId("kept").textContent = short.format(kept);
  byId("evicted").textContent = short.format(evicted) + " evicted";
  byId("total").textContent = short.format(status.totals.new_tokens);
  byId("prompts").textContent = short.format(status.totals.prompt_tokens) + " prompt tokens";
}

function showPlot(now) {
  const width = 600, height = 120, peak = Math.max(0, ...points.map(([, speed]) => speed));
  const top = roundedUp(peak);
  byId("peak").textContent = "peak " + number.format(peak);
  byId("top").textContent = short.format(top);
  byId("middle").textContent = short.format(top / 2);
  const at = ([time, speed]) =>
    (width - ((now - time) / (KEPT_SECONDS * 1000)) * width).toFixed(1) + "," + (height - (speed / top) * height).toFixed(1);
  if (!points.length) return;
  const line = "M" + points.map(at).join("L");
  const first = at(points[0]).split(",")[0], last = at(points[points.length - 1]).split(",")[0];
  byId("line").setAttribute("d", line);
  byId("area").setAttribute("d", line + "L" + last + "," + height + "L" + first + "," + height + "Z");
}

// The end of an axis: 1, 2 or 5 times a power of ten, at least 1.
function roundedUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((end) => end >= value);
}

function showSlots(status) {
  const list = byId("slots");
  while (list.children.length > status.slots.length) list.lastChild.remove();
  while (list.children.length < status.slots.length) {
    const row = element("div", "slot");
    const bar = element("div", "bar");
    bar.append(element("i", "kept"), element("i", "evicted"));
    row.append(element("span", "name small"), bar, element("span", "what"));
    list.append(row);
  }
  const context = status.program.max_context;
  byId("slots-note").textContent = "context of " + whole.format(context) + " tokens each";
  status.slots.forEach((slot, index) => {
    const row = list.children[index];
    row.className = "slot " + slot.phase;
    const [name, bar, what] = row.children;
    name.textContent = slot.slot;
    bar.children[0].style.width = (100 * slot.kept_rows) / context + "%";
    bar.children[1].style.width = (100 * slot.evicted_rows) / context + "%";
    const words = {
      free: "free",
      prefill: progress(slot),
      decode: slot.prompt_tokens + " prompt + " + slot.new_tokens + " new, " + number.format(slot.seconds) + " s",
    };
    what.textContent = words[slot.phase];
    row.title = slot.phase === "decode" ? slot.kept_rows + " rows cached, " + slot.evicted_rows + " evicted" : "";
  });
}

// Prompt tokens that a slot has prefilled, and their rate.
function progress(slot) {
  const now = performance.now();
  const known = reading.get(slot.slot);
  if (!known || known[0] !== slot.request) reading.set(slot.slot, [slot.request, now, slot.read_tokens]);
  const [, since, read] = reading.get(slot.slot);
  const speed = now > since ? ((slot.read_tokens - read) * 1000) / (now - since) : 0;
  const words = "prefill: " + slot.read_tokens + " of " + slot.prompt_tokens;
  return speed > 0 ? words + ", " + number.format(speed) + " tokens/s" : words;
}

function showFacts(program) {
  const budgets = program.policy === "query"
    ? program.sink + " sinks, " + program.recent + " recent, and " + program.topk + " selected by the query of every step"
    : program.sink + " sinks + " + program.recent + " recent + " + program.topk + " selected = " + program.budget;
  const facts = [
    ["model", program.layers + " layers, " + program.dtype],
    ["slots", program.slots + ", each with a context of " + whole.format(program.max_context) + " tokens"],
    ["cache rows", budgets],
    ["row dtype", program.row_dtype === "model" ? program.dtype : program.row_dtype],
    ["KV cache", bytes(program.kv_bytes) + " per sequence (" + bytes(program.full_kv_bytes) + " uncompressed)"],
  ];
  const list = byId("facts");
  list.replaceChildren();
  for (const [name, value] of facts) list.append(element("dt", "", name), element("dd", "", value));
}

// -------------------------------------------------------------------------------------------------------- chat

function say(className, text) {
  const list = byId("talk");
  const empty = list.querySelector(".empty");
  if (empty) empty.remove();
  const made = element("div", className, text);
  list.append(made);
  list.scrollTop = list.scrollHeight;
  return made;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.startsWith("data: ") ? part.slice(6) : "";
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function ask(text) {
  const body = {
    model: modelName,
    max_tokens: Number(byId("count").value) || 256,
    stream: true,
    stream_options: { include_usage: true },
  };
  if (byId("temperature").value !== "") body.temperature = Number(byId("temperature").value);
  const schema = byId("schema").value.trim();
  if (schema) {
    try {
      body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) } };
    } catch (error) {
      say("error", "The schema is not valid JSON: " + error.message);
      byId("text").value = text;
      return;
    }
  }
  say("message user", text);
  if (chatTemplate) {
    talk.push({ role: "user", content: text });
    const system = byId("system").value.trim();
    body.messages = system ? [{ role: "system", content: system }, ...talk] : talk;
  } else {
    body.prompt = text;
  }
  const shown = say("message assistant busy", "");
  const thought = element("details", "thought");
  thought.append(element("summary", "", "Reasoning"), element("div", "", ""));
  const said = element("div", "said");
  shown.append(said);
  let drawing = 0; // the next frame in which the answer is drawn again
  const draw = () => {
    drawing = 0;
    said.replaceChildren(markdown(answer));
    const list = byId("talk");
    list.scrollTop = list.scrollHeight;
  };
  const start = performance.now();
  let answer = "", thinking = "", first = 0, usage = null, finish = "";
  answering = new AbortController();
  setBusy(true);
  try {
    const path = chatTemplate ? "v1/chat/completions" : "v1/completions";
    const response = await fetch(path, {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: answering.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const choice = event.choices && event.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason || finish;
      const piece = (chatTemplate ? choice.delta.content : choice.text) || "";
      const more = (chatTemplate && choice.delta.reasoning_content) || "";
      if (!piece && !more) continue;
      first = first || performance.now();
      answer += piece;
      thinking += more;
      if (more) {
        if (!thought.parentNode) shown.prepend(thought);
        thought.lastChild.textContent = thinking;
      }
      drawing = drawing || requestAnimationFrame(draw);
    }
  } catch (error) {
    if (error.name !== "AbortError") say("error", error.message);
  }
  if (drawing) cancelAnimationFrame(drawing);
  draw();
  answering = null;
  setBusy(false);
  shown.classList.remove("busy");
  if (chatTemplate && answer) talk.push({ role: "assistant", content: answer });
  else if (chatTemplate) talk.pop();
  if (!answer && !thinking) shown.remove();
  if (finish === "length") shown.append(element("p", "cut small", "Truncated at the token limit."));
  if (usage && first) {
    const speed = usage.completion_tokens > 1 ? (usage.completion_tokens - 1) / ((performance.now() - first) / 1000) : 0;
    const words = [
      usage.prompt_tokens + " prompt + " + usage.completion_tokens + " new tokens",
      "first after " + Math.round(first - start) + " ms",
    ];
    if (speed) words.push(number.format(speed) + " tokens/s");
    say("figures-of small", words.join(", "));
  }
}

function setBusy(busy) {
  byId("send").textContent = busy ? "Stop" : "Send";
  byId("clear").disabled = busy;
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (answering) {
    answering.abort();
    return;
  }
  const text = byId("text").value;
  if (!text.trim() || !modelName) return;
  byId("text").value = "";
  ask(text);
});

byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !answering) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});

byId("clear").addEventListener("click", () => {
  talk = [];
  byId("talk").replaceChildren(EMPTY.cloneNode(true));
  byId("text").focus();
});

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, byId("key").value);
  byId("key").value = "";
  look();
});

document.addEventListener("visibilitychange", look);
setInterval(look, PERIOD);
look();
