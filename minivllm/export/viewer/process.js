// Owns the process map: time runs down, one column a process, and what crosses the boundaries ①②③ between them.

const TITLES = { frontend: "frontend", engine_core: "EngineCore", worker: "worker", device: "device" };
const BOUNDARIES = ["①", "②", "③"];

function drawProcess(number) {
  const { processes, messages } = DATA.process;
  const iteration = PROCESSES.get(number);
  const columns = new Map(processes.map((entry, place) => [entry.name, place + 1]));
  const lists = { stage: iteration.stages, message: messages, wait: iteration.waits };
  const drawn = DATA.process_order[number].filter(([kind, at]) => kind !== "stage" || lists.stage[at].name !== "step");
  const rows = drawn.map(([kind, at], row) => drawItem(kind, lists[kind][at], columns, row + 2));
  const lanes = processes.map((entry, place) => h("i", { class: "lane", vars: { "grid-column": place + 1, "grid-row": `1 / ${drawn.length + 3}` } }));
  const heads = processes.map((entry, place) => h("div", { class: "who", vars: { "grid-column": place + 1 } },
    h("b", {}, TITLES[entry.name]), h("small", {}, entry.pid === null ? "" : `pid ${entry.pid}`)));
  const told = drawn.map(([kind, at]) => itemWords(kind, lists[kind][at])).join(". ");
  return [
    heading("Processes", null, iteration.dur_ns === null ? "the order of one iteration" : `${inMs(iteration.dur_ns)} from end to end`),
    h("ul", { class: "sentences" }, DATA.stories.process[number].map((text) => h("li", {}, sentence(text)))),
    h("div", { class: "sequence", role: "img", "aria-label": told, vars: { "--columns": widths(drawn, lists, processes) } }, lanes, heads, rows),
    h("details", { class: "sources" }, h("summary", {}, "Where it is in the source"), sourceTable(drawn, lists)),
  ];
}

/** Columns in which nothing happens are narrow. */
function widths(drawn, lists, processes) {
  const busy = new Set(drawn.flatMap(([kind, at]) => {
    const item = lists[kind][at];
    return kind === "message" ? [item.from, item.to] : [item.process];
  }));
  return processes.map((entry) => `minmax(0, ${busy.has(entry.name) ? 1 : 0.4}fr)`).join(" ");
}

function drawItem(kind, item, columns, row) {
  if (kind === "message") return drawMessage(item, columns, row);
  const column = columns.get(item.process);
  if (kind === "wait") {
    return h("div", { class: "wait", vars: { "grid-column": column, "grid-row": row } }, `waits for ${TITLES[item.for]}`, time(item.dur_ns));
  }
  return h("div", { class: `stage ${item.plane} ${item.name === "sync" ? "sync" : ""}`, title: item.src ?? "", vars: { "grid-column": column, "grid-row": row } },
    item.name, time(item.dur_ns), item.device_ns ? h("small", {}, `device ${inMs(item.device_ns)}`) : null);
}

function drawMessage(message, columns, row) {
  const from = columns.get(message.from);
  const to = columns.get(message.to);
  const [left, right] = from < to ? [from, to] : [to, from];
  const concerns = view.request && !message.requests.includes(view.request) ? "other" : "";
  return h("div", {
    class: `message ${from < to ? "forth" : "back"} ${concerns}`,
    vars: { "grid-column": `${left} / ${right + 1}`, "grid-row": row, "--span": right - left + 1 },
  }, h("span", { class: "label" }, `${BOUNDARIES[message.boundary - 1]} ${message.type}`, h("small", {}, [inBytes(message.bytes), travel(message)].filter(Boolean).join(" · "))));
}

const travel = (message) => (message.send_ns !== null && message.recv_ns > message.send_ns ? inMs(message.recv_ns - message.send_ns) : null);
const time = (ns) => (ns === null ? null : h("small", {}, inMs(ns)));

function itemWords(kind, item) {
  if (kind === "message") return `${TITLES[item.from]} sends ${item.type} to ${TITLES[item.to]}`;
  return kind === "wait" ? `${TITLES[item.process]} waits for ${TITLES[item.for]}` : `${TITLES[item.process]}: ${item.name}`;
}

function sourceTable(drawn, lists) {
  const seen = new Map();
  for (const [kind, at] of drawn) {
    const item = lists[kind][at];
    if (kind !== "wait") seen.set(item.name ?? item.type, item);
  }
  return table("Where each stage and message is defined", ["what", "our source · vLLM 0.27.1"],
    [...seen].map(([name, item]) => ({ cells: [name, place(item.src, item.ref)] })));
}
