// Markdown of answers as elements: headings, lists, quotes, tables, code, emphasis and links. Every text is put into the
// page as text; markup in an answer stays text, and a link leads to http or https alone.
"use strict";

const INLINE = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*(\S(?:[\s\S]*?\S)?)\*\*|\*(\S(?:[^*]*?\S)?)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?])/g;

function markdown(text) {
  const made = document.createDocumentFragment();
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) at = block(lines, at, made);
  return made;
}

// Puts the block that begins at a line into `parent`; returns the line behind it.
function block(lines, at, parent) {
  const line = lines[at];
  const fence = line.match(/^ {0,3}(```+|~~~+)/);
  if (fence) return code(lines, at, fence[1], parent);
  if (!line.trim()) return at + 1;
  const heading = line.match(/^(#{1,6})\s+(.*)$/);
  if (heading) {
    parent.append(filled("h" + Math.min(6, heading[1].length + 2), heading[2]));
    return at + 1;
  }
  if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
    parent.append(document.createElement("hr"));
    return at + 1;
  }
  if (/^ {0,3}>/.test(line)) {
    const inside = taken(lines, at, (one) => /^ {0,3}>/.test(one)).map((one) => one.replace(/^ {0,3}> ?/, ""));
    const quote = document.createElement("blockquote");
    quote.append(markdown(inside.join("\n")));
    parent.append(quote);
    return at + inside.length;
  }
  if (item(line)) return list(lines, at, parent);
  if (line.includes("|") && /^[\s|:-]*-[\s|:-]*$/.test(lines[at + 1] || "") && lines[at + 1].includes("|"))
    return table(lines, at, parent);
  const rows = taken(lines, at, (one, number) => one.trim() && (number === at || !begins(one)));
  parent.append(filled("p", rows.join("\n")));
  return at + rows.length;
}

const item = (line) => line.match(/^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/);
const begins = (line) => /^ {0,3}(```|~~~|>|#{1,6}\s)/.test(line) || item(line);

function taken(lines, at, goesOn) {
  let end = at;
  while (end < lines.length && goesOn(lines[end], end)) end += 1;
  return lines.slice(at, end);
}

function code(lines, at, fence, parent) {
  const inside = taken(lines, at + 1, (line) => !line.trim().startsWith(fence));
  const made = document.createElement("pre");
  const text = document.createElement("code");
  text.textContent = inside.join("\n");
  made.append(text);
  parent.append(made);
  return at + inside.length + 2;
}

function list(lines, at, parent) {
  const [, indent, mark] = item(lines[at]);
  const made = document.createElement(/\d/.test(mark) ? "ol" : "ul");
  if (/\d/.test(mark)) made.start = parseInt(mark, 10);
  while (at < lines.length) {
    const found = item(lines[at]);
    if (!found || found[1].length < indent.length || /\d/.test(found[2]) !== /\d/.test(mark)) break;
    const deeper = (line) => !line.trim() || line.length - line.trimStart().length > indent.length;
    const inside = taken(lines, at + 1, (line, number) => deeper(line) && !(line.trim() === "" && !deeper(lines[number + 1] || "x")));
    const entry = document.createElement("li");
    entry.append(...inline(found[3]));
    const depth = found[0].length - found[3].length;
    const rest = inside.map((line) => line.slice(Math.min(depth, line.length - line.trimStart().length)));
    if (rest.some((line) => line.trim())) entry.append(markdown(rest.join("\n")));
    made.append(entry);
    at += 1 + inside.length;
    if (at + 1 < lines.length && !lines[at].trim() && item(lines[at + 1])) at += 1;
  }
  parent.append(made);
  return at;
}

function table(lines, at, parent) {
  const rows = taken(lines, at, (line) => line.includes("|"));
  const made = document.createElement("table");
  rows.forEach((line, number) => {
    if (number === 1) return;
    const row = document.createElement("tr");
    const cells = line.trim().replace(/^\||\|$/g, "").split("|");
    for (const cell of cells) row.append(filled(number === 0 ? "th" : "td", cell.trim()));
    made.append(row);
  });
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.append(made);
  parent.append(scroll);
  return at + rows.length;
}

function filled(name, text) {
  const made = document.createElement(name);
  made.append(...inline(text));
  return made;
}

// A text with emphasis, code and links, as nodes.
function inline(text) {
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > end) nodes.push(text.slice(end, found.index));
    const [whole, , code, strong, emphasis, label, address, bare] = found;
    const made = document.createElement(code !== undefined ? "code" : strong ? "strong" : emphasis ? "em" : "a");
    if (made.tagName === "A") {
      made.href = address || bare;
      made.rel = "noopener noreferrer";
      made.target = "_blank";
    }
    if (strong || emphasis) made.append(...inline(strong || emphasis));
    else made.textContent = code !== undefined ? code.trim() || code : label || bare;
    nodes.push(made);
    end = found.index + whole.length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}
