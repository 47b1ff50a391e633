// Owns what is shown: the iteration, the map, the followed request; the keys, the scrubber, and the address of the page.

const MAPS = { plan: ["Plan", drawPlan], state: ["State", drawState], process: ["Process", drawProcess], hot: ["Hot path", drawHot], timeline: ["Timeline", drawTimeline] };
const byNumber = (entries, key = (entry) => entry.iteration) => new Map(entries.map((entry) => [key(entry), entry]));
const PLANS = byNumber(DATA.plan.iterations);
const STATES = byNumber(DATA.state.iterations);
const PROCESSES = byNumber(DATA.process.iterations);
const HOTS = byNumber(DATA.hot.iterations, (entry) => entry.iterations[0]);
const NUMBERS = DATA.timeline.iterations;
const PLAY_MS = 900;

const view = { iteration: DATA.look_at, map: "plan", request: null, block: null };
let player = null;

/** Show something else; the address follows. */
function go(change) {
  Object.assign(view, "map" in change || "iteration" in change ? { block: null } : {}, change);
  view.iteration = nearest(view.iteration);
  history.replaceState(null, "", address());
  draw();
}

const nearest = (number) => NUMBERS.reduce((best, n) => (Math.abs(n - number) < Math.abs(best - number) ? n : best), NUMBERS[0]);

function address() {
  const parts = new URLSearchParams({ iteration: view.iteration, map: view.map });
  if (view.request) parts.set("request", view.request);
  return `#${parts}`;
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const iteration = parts.get("iteration");
  if (iteration !== null && /^\d+$/.test(iteration)) view.iteration = nearest(Number(iteration));
  if (parts.get("map") in MAPS) view.map = parts.get("map");
  if (parts.size) view.request = ORDER.has(parts.get("request")) ? parts.get("request") : null;
}

function draw() {
  const { iteration, map, request } = view;
  const focused = document.activeElement?.dataset?.request;
  const inMap = byId("map").contains(document.activeElement);
  byId("number").value = iteration;
  fill(byId("of"), `of ${NUMBERS[0]}–${NUMBERS[NUMBERS.length - 1]}`);
  byId("slider").value = NUMBERS.indexOf(iteration);
  byId("slider").setAttribute("aria-valuetext", `iteration ${iteration}`);
  byId("back").disabled = iteration === NUMBERS[0];
  byId("next").disabled = iteration === NUMBERS[NUMBERS.length - 1];
  for (const bar of byId("strip").children) bar.classList.toggle("current", Number(bar.dataset.iteration) === iteration);
  drawRequests(iteration);
  drawCard(request);
  drawStory(iteration);
  for (const tab of byId("tabs").children) {
    const isChosen = tab.dataset.map === map;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
  }
  byId("map").setAttribute("aria-labelledby", `tab-${map}`);
  byId("map").className = `map ${map}`;
  const scrolled = byId("map").querySelector(".scroller")?.scrollLeft;
  fill(byId("map"), MAPS[map][1](iteration));
  showColumn(scrolled);
  fill(byId("command"), command());
  if (focused) (inMap ? byId("map") : byId("requests")).querySelector(`[data-request="${CSS.escape(focused)}"]`)?.focus();
}

/** The timeline keeps its place, as long as the iteration that is shown can be seen. */
function showColumn(scrolled) {
  const scroller = byId("map").querySelector(".scroller");
  const current = scroller?.querySelector("th.current");
  if (!current) return;
  if (scrolled !== undefined) scroller.scrollLeft = scrolled;
  const left = current.offsetLeft - scroller.scrollLeft;
  if (left < 90 || left > scroller.clientWidth - 40) scroller.scrollLeft = current.offsetLeft - scroller.clientWidth / 2;
}

function command() {
  const iteration = view.map === "timeline" ? "" : ` --iteration ${view.iteration}`;
  return `minivllm map ${view.map} ${DATA.source}${iteration}${view.request ? ` --request ${view.request}` : ""}`;
}

function drawRequests(iteration) {
  const states = new Map(STATES.get(iteration).requests.map((entry) => [entry.request, entry.scheduler.status]));
  const shown = DATA.plan.requests.filter((entry) => states.has(entry.request) || entry.request === view.request);
  fill(byId("requests"), shown.map((entry) => {
    const status = states.get(entry.request) ?? "not here";
    return h("span", { class: `chip ${other(entry.request)}` }, requestName(entry.request), h("small", {}, status.toLowerCase().replace("finished_", "").replaceAll("_", " ")));
  }), shown.length ? null : h("span", { class: "dim" }, "No request is there."));
}

function drawCard(request) {
  const card = byId("card");
  card.hidden = !request;
  if (!request) return;
  const facts = DATA.plan.requests.find((entry) => entry.request === request);
  if (!facts) { card.hidden = true; return; }
  const row = DATA.timeline.requests.find((entry) => entry.request === request);
  const here = row ? NUMBERS.filter((_, place) => row.cells[place]) : [];
  const jump = (label, step) => step !== undefined && h("button", { type: "button", onclick: () => go({ iteration: step }) }, `${label} ${step}`);
  const prompt = facts.prompt && facts.prompt.length > 220 ? `${facts.prompt.slice(0, 220)}…` : facts.prompt;
  fill(card, h("div", {}, "Following ", requestName(request), ` · ${facts.num_prompt_tokens} prompt tokens · ${count(facts.num_output_tokens, "output token")}`,
    facts.finish_reason ? ` · ended: ${facts.finish_reason}` : ""),
  h("blockquote", {}, prompt ? h("span", { class: "prompt" }, prompt) : h("span", { class: "dim" }, `[${facts.num_prompt_tokens} prompt tokens]`), h("b", {}, facts.text)),
  h("div", { class: "jumps" }, jump("came in", here[0]), here.length > 1 && jump("last seen in", here[here.length - 1]), h("button", { type: "button", onclick: () => go({ request: null }) }, "follow nobody")));
}

function drawStory(iteration) {
  const { narration } = PLANS.get(iteration);
  fill(byId("story"), narration.length ? narration.map((text) => h("li", { class: view.request && !namesRequest(text, view.request) ? "other" : "" }, sentence(text)))
    : h("li", { class: "dim" }, "Nothing worth telling."));
}

function setUpFrame() {
  const { run } = DATA;
  fill(byId("title"), run.title);
  fill(byId("subtitle"), [run.model, run.device, run.async_scheduling ? "async scheduling" : "sync", run.batch, run.clock === "logical" ? "no clocks" : run.started_at?.slice(0, 10)]
    .filter((fact) => fact && fact !== run.title).join(" · "));
  fill(byId("notes"), DATA.notes.map((text) => h("p", { class: "note", role: "note" }, text)));
  const most = Math.max(...DATA.plan.iterations.map((plan) => plan.budget?.used ?? 0), 1);
  fill(byId("strip"), DATA.plan.iterations.map((plan) => h("span", { "data-iteration": plan.iteration, vars: { "--height": (plan.budget?.used ?? 0) / most } },
    h("i", {}, plan.scheduled.map((entry) => h("b", { vars: { "flex-grow": entry.num_tokens, "--c": colourOf(entry.request) } }))))));
  Object.assign(byId("slider"), { min: 0, max: NUMBERS.length - 1, step: 1 });
  fill(byId("tabs"), Object.entries(MAPS).map(([name, [title]], place) => h("button", {
    type: "button", role: "tab", id: `tab-${name}`, "data-map": name, "aria-controls": "map", onclick: () => go({ map: name }),
  }, title, h("kbd", { "aria-hidden": "true" }, place + 1))));
}

const step = (by) => go({ iteration: NUMBERS[Math.min(Math.max(NUMBERS.indexOf(view.iteration) + by, 0), NUMBERS.length - 1)] });

function play(on = player === null) {
  clearInterval(player);
  if (on && view.iteration === NUMBERS[NUMBERS.length - 1]) go({ iteration: NUMBERS[0] });
  player = on ? setInterval(() => (view.iteration === NUMBERS[NUMBERS.length - 1] ? play(false) : step(1)), PLAY_MS) : null;
  fill(byId("play"), on ? "❚❚" : "▶");
  byId("play").setAttribute("aria-label", on ? "Pause" : "Play");
}

function followNext() {
  const here = [...byId("requests").querySelectorAll("[data-request]")].map((button) => button.dataset.request);
  go({ request: here[here.indexOf(view.request) + 1] ?? null });
}

const THEMES = { system: "◐", light: "☀", dark: "☾" };
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  fill(byId("theme"), THEMES[name]);
  byId("theme").setAttribute("aria-label", `Colours: ${name}. Change`);
  byId("theme").title = `Colours: ${name} (t)`;
  try { localStorage.setItem("minivllm-theme", name); } catch { /* a file may not be allowed to keep anything */ }
}
function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
}
function savedTheme() {
  try { return localStorage.getItem("minivllm-theme"); } catch { return null; }
}

const KEYS = {
  ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => go({ iteration: NUMBERS[0] }), End: () => go({ iteration: NUMBERS[NUMBERS.length - 1] }),
  " ": () => play(), "/": () => byId("search").focus(), "?": () => byId("keys").showModal(), t: nextTheme, f: followNext, Escape: () => go({ request: null }),
};
Object.keys(MAPS).forEach((name, place) => { KEYS[place + 1] = () => go({ map: name }); });

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open || event.target.id === "search") return;
  const onButton = event.target instanceof HTMLButtonElement || event.target.tagName === "SUMMARY";
  const scrolls = event.target.classList?.contains("scroller") && event.key.startsWith("Arrow");
  if (!(event.key in KEYS) || scrolls || (event.key === " " && onButton)) return;
  event.preventDefault();
  const isTab = event.target.getAttribute?.("role") === "tab";
  if (isTab && event.key.startsWith("Arrow")) {
    const names = Object.keys(MAPS);
    go({ map: names[(names.indexOf(view.map) + (event.key === "ArrowRight" ? 1 : names.length - 1)) % names.length] });
    byId(`tab-${view.map}`).focus();
  } else KEYS[event.key]();
}

/** The strip is one bar an iteration: where it is touched is where to go. */
function onStrip(event) {
  const { left, width } = byId("strip").getBoundingClientRect();
  const place = Math.floor(((event.clientX - left) / width) * NUMBERS.length);
  go({ iteration: NUMBERS[Math.min(Math.max(place, 0), NUMBERS.length - 1)] });
}

setUpFrame();
setUpSearch();
setTheme(savedTheme() in THEMES ? savedTheme() : "system");
readAddress();
draw();
byId("strip").addEventListener("pointerdown", onStrip);
byId("strip").addEventListener("pointermove", (event) => event.buttons && onStrip(event));
byId("slider").addEventListener("input", (event) => go({ iteration: NUMBERS[Number(event.target.value)] }));
byId("back").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("play").addEventListener("click", () => play());
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("theme").addEventListener("click", nextTheme);
byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("map").focus(); });
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", () => { readAddress(); draw(); });
