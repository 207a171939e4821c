// The server's page: asks /health and /v1/status every second, and lets a person talk to the model.
// Whatever comes from the server or the model is put into the page as text.
"use strict";

const PERIOD = 1000; // milliseconds between two looks
const KEPT_SECONDS = 120; // what the plot shows
const KEY = "sscc-api-key";
const byId = (id) => document.getElementById(id);

let chatTemplate = true;
let modelName = "";
let talk = []; // messages of the conversation
let answering = null; // the AbortController of the answer that streams
let before = null; // the last status, and when it came
let points = []; // [time in ms, new tokens per second]
let reading = new Map(); // of slots that read prompts: [request, time in ms, tokens read when it was first seen]

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

function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit + 1 < units.length) {
    count /= 1024;
    unit += 1;
  }
  return number.format(count) + " " + units[unit];
}

// ------------------------------------------------------------------------------------------------ what runs now

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
      showState("bad", "needs an API key");
      return;
    }
    if (!status.ok) throw new Error("the server answers " + status.status);
    show(await status.json());
    showState(health.ok ? "ok" : "bad", health.ok ? "running" : told.reason || told.status);
  } catch (error) {
    before = null;
    showState("bad", error instanceof TypeError ? "not reached" : error.message);
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
    byId("chat-title").textContent = chatTemplate ? "Chat" : "Go on with a text";
    byId("text").placeholder = chatTemplate ? "Message" : "A text that the model goes on with (it has no chat template)";
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
  byId("queued").textContent = status.queued ? status.queued + " wait" + (status.queued === 1 ? "s" : "") : "none waits";
  const kept = status.slots.reduce((sum, slot) => sum + slot.kept_rows, 0);
  const evicted = status.slots.reduce((sum, slot) => sum + slot.evicted_rows, 0);
  byId("kept").textContent = short.format(kept);
  byId("evicted").textContent = evicted ? short.format(evicted) + " evicted" : "none evicted";
  byId("total").textContent = short.format(status.totals.new_tokens);
  byId("prompts").textContent = "tokens, " + short.format(status.totals.prompt_tokens) + " read";
}

function showPlot(now) {
  const width = 600, height = 120, most = Math.max(1, ...points.map(([, speed]) => speed));
  byId("peak").textContent = "most " + number.format(Math.max(0, ...points.map(([, speed]) => speed)));
  const at = ([time, speed]) =>
    (width - ((now - time) / (KEPT_SECONDS * 1000)) * width).toFixed(1) + "," + (height - 4 - (speed / most) * (height - 12)).toFixed(1);
  if (!points.length) return;
  const line = "M" + points.map(at).join("L");
  const first = at(points[0]).split(",")[0], last = at(points[points.length - 1]).split(",")[0];
  byId("line").setAttribute("d", line);
  byId("area").setAttribute("d", line + "L" + last + "," + height + "L" + first + "," + height + "Z");
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
  byId("slots-note").textContent = "of " + short.format(context) + " positions each";
  status.slots.forEach((slot, index) => {
    const row = list.children[index];
    row.className = "slot " + slot.phase;
    const [name, bar, what] = row.children;
    name.textContent = slot.slot;
    bar.children[0].style.width = (100 * slot.kept_rows) / context + "%";
    bar.children[1].style.width = (100 * slot.evicted_rows) / context + "%";
    const words = {
      free: "free",
      prefill: reads(slot),
      decode: slot.prompt_tokens + " + " + slot.new_tokens + " tokens, " + number.format(slot.seconds) + " s",
    };
    what.textContent = words[slot.phase];
    row.title = slot.phase === "decode" ? slot.kept_rows + " positions kept, " + slot.evicted_rows + " evicted" : "";
  });
}

// How far a slot has read its prompt, and how fast.
function reads(slot) {
  const now = performance.now();
  const known = reading.get(slot.slot);
  if (!known || known[0] !== slot.request) reading.set(slot.slot, [slot.request, now, slot.read_tokens]);
  const [, since, read] = reading.get(slot.slot);
  const speed = now > since ? ((slot.read_tokens - read) * 1000) / (now - since) : 0;
  const words = "has read " + slot.read_tokens + " of " + slot.prompt_tokens + " tokens";
  return speed > 0 ? words + ", " + number.format(speed) + " a second" : words;
}

function showFacts(program) {
  const budgets = program.policy === "query"
    ? "every step's query chooses " + program.topk + " rows; " + program.sink + " first, " + program.recent + " most recent"
    : program.sink + " first + " + program.recent + " most recent + " + program.topk + " selected = " + program.budget + " rows";
  const facts = [
    ["program", program.layers + " layers, " + program.dtype],
    ["slots", program.slots + " of " + program.max_context + " tokens"],
    ["cache", budgets],
    ["rows stored as", program.row_dtype === "model" ? program.dtype : program.row_dtype],
    ["KV a sequence", bytes(program.kv_bytes) + ", uncompressed " + bytes(program.full_kv_bytes)],
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
      say("error", "The JSON Schema is no JSON: " + error.message);
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
  thought.append(element("summary", "", "Thought"), element("div", "", ""));
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
  if (finish === "length") shown.append(element("p", "cut small", "The answer was cut: it has as many tokens as it may."));
  if (usage && first) {
    const speed = usage.completion_tokens > 1 ? (usage.completion_tokens - 1) / ((performance.now() - first) / 1000) : 0;
    const words = [
      usage.prompt_tokens + " + " + usage.completion_tokens + " tokens",
      "first after " + Math.round(first - start) + " ms",
    ];
    if (speed) words.push(number.format(speed) + " a second");
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
  byId("talk").replaceChildren(element("p", "empty", "Ask something. The answer streams as it is made."));
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
