// Owns how things are named and written: the three identities, numbers with their units, places in the source.

const DATA = JSON.parse(byId("data").textContent);
const ORDER = new Map(DATA.requests.map((id, place) => [id, place]));
const COLOURS = 8;

const colourOf = (request) => `var(--r${(ORDER.get(request) ?? 0) % COLOURS})`;

/** A request: a round name in its colour. A click follows it. */
function requestName(request) {
  return h("button", {
    type: "button", class: "req", vars: { "--c": colourOf(request) }, "data-request": request,
    title: `Follow ${request}`, "aria-pressed": String(view.request === request),
    onclick: () => go({ request: view.request === request ? null : request }),
  }, request);
}

const rowWord = DATA.run.batch === "slots" ? "slot" : "row";
const rowName = (row) => h("span", { class: "row" }, `${rowWord} ${row}`);
const blockName = (block) => h("span", { class: "block" }, `#${block}`);

/** Few blocks by name, many as ranges: #40–#71. */
function blockNames(blocks, limit = 4) {
  const parts = runsOf(blocks).map(([a, b]) => h("span", { class: "block" }, a === b ? `#${a}` : `#${a}–${b}`));
  const left = parts.length - limit;
  return left > 0 ? [...parts.slice(0, limit), ` and ${left} more runs`] : parts;
}

/** Numbers as [first, last] of each run. */
function runsOf(numbers) {
  const runs = [];
  for (const number of numbers) {
    const last = runs[runs.length - 1];
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs;
}

function ranges(numbers, limit = 4) {
  const runs = runsOf(numbers).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`));
  return runs.slice(0, limit).join(", ") + (runs.length > limit ? ` and ${runs.length - limit} more` : "");
}

const IDS = [...DATA.requests].sort((a, b) => b.length - a.length).map((id) => id.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
const NAMES = new RegExp(`(?<![\\w-])(${[...IDS, "#\\d+(?:–#?\\d+)?", "(?:row|slot) \\d+"].join("|")})(?![\\w-])`, "g");

/** A sentence with every request, row and block in its own look. */
function sentence(text) {
  return text.split(NAMES).map((part, place) => {
    if (place % 2 === 0) return part;
    if (ORDER.has(part)) return requestName(part);
    return h("span", { class: part.startsWith("#") ? "block" : "row" }, part);
  });
}

const namesRequest = (text, request) =>
  text.split(NAMES).some((part, place) => place % 2 === 1 && part === request);

function inMs(ns) {
  if (ns === null || ns === undefined) return "–";
  const ms = ns / 1e6;
  if (ms < 0.0005) return "<1 µs";
  return `${ms.toFixed(ms >= 100 ? 0 : ms >= 10 ? 1 : ms >= 1 ? 2 : 3)} ms`;
}

function inBytes(count) {
  if (count === null || count === undefined) return null;
  if (count < 1000) return `${count} B`;
  return count < 999950 ? `${(count / 1000).toFixed(1)} kB` : `${(count / 1e6).toFixed(1)} MB`;
}

function inPercent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.005) return "<1 %";
  return `${Math.round(share * 100)} %`;
}

const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

/** A token's text between quotes, with what would not be seen made visible. */
const quoted = (text) => `“${text.replace(/\n/g, "↵").replace(/\t/g, "⇥")}”`;

/** Where something is: our file and line, and vLLM's symbol behind it. */
function place(src, ref) {
  if (!src && !ref) return null;
  return h("span", { class: "place" },
    src ? h("code", { title: src }, DATA.places[src] ?? src.split(":").pop()) : null,
    ref ? h("code", { class: "theirs", title: `vLLM 0.27.1: ${ref}` }, ref.replace(/^vllm\//, "").replace(/^v1\//, "")) : null);
}

/** A value; if this iteration changed it, marked, and with what it was. */
function changed(part, key, shown = part[key]) {
  if (!part.changed || !(key in part.changed)) return shown;
  const was = part.changed[key];
  const before = was === null || typeof was === "object" ? "new in this iteration" : `was ${was}`;
  return h("mark", { title: before }, shown);
}

/** Tokens of a request as a bar: from the prefix cache, computed earlier, computed now, still owed. */
function tokenBar(request, { cached, computed, now, known }) {
  const parts = [["cached", cached], ["computed", computed], ["now", now], ["owed", Math.max(known - cached - computed - now, 0)]];
  const said = parts.filter(([, n]) => n).map(([name, n]) => `${n} ${name}`).join(", ");
  return h("div", { class: "bar", role: "img", "aria-label": `${request}: ${said} of ${known} tokens`, vars: { "--c": colourOf(request) } },
    parts.map(([name, n]) => n > 0 && h("i", { class: name, vars: { "flex-grow": n }, title: `${count(n, "token")} ${name}` })));
}

const barLegend = () => h("p", { class: "legend" },
  [["cached", "from the prefix cache"], ["computed", "computed before"], ["now", "computed now"], ["owed", "still owed"]]
    .map(([name, text]) => h("span", {}, h("span", { class: "bar key" }, h("i", { class: name })), text)));
