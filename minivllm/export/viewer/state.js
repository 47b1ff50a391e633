// Owns the state map: each request as frontend, scheduler and worker have it, and the block pool.

// Runs of equal blocks that are longer than this are drawn as one cell in a large pool.
const LONG_RUN = 24;
const LARGE_POOL = 1200;
// A pool of no more blocks has room for their numbers.
const SMALL_POOL = 160;
const STATE_WORDS = { null: "the null block", owned: "owned", shared: "shared", cached_free: "free, can still be hit", free: "free" };

/** The pool of an iteration: the page holds only what is not as in the iteration before, and at first all are free. */
function poolOf(number) {
  const free = { state: "free", ref_cnt: 0, owners: [], hash: null, changed: false, happened: [] };
  const blocks = Array.from({ length: DATA.state.num_blocks }, (_, id) => ({ block_id: id, ...free }));
  for (const entry of DATA.state.iterations) {
    for (const block of entry.pool) blocks[block.block_id] = block;
    if (entry.iteration === number) break;
  }
  return blocks;
}

function drawState(number) {
  const state = STATES.get(number);
  const source = DATA.state.source;
  const cells = (entry) => [requestName(entry.request), frontendCell(entry), schedulerCell(entry), workerCell(entry)];
  return [
    heading("State", null, `after iteration ${number}; what it changed is marked`),
    table("Each request in three processes", ["request", "frontend: text", "scheduler: the truth", "worker: a mirror"],
      state.requests.map((entry) => ({ class: other(entry.request), cells: cells(entry) }))),
    h("p", { class: "queues" }, queue("running", state.queues.running), queue("waiting", state.queues.waiting),
      state.queues.skipped_waiting.length ? queue("skipped", state.queues.skipped_waiting) : null),
    h("p", { class: "places" }, ["frontend", "scheduler", "worker"].map((who) => h("span", {}, `${who} `, place(source[who].ours)))),
    drawPool(number, state),
  ];
}

const queue = (name, ids) => h("span", { class: "queue" }, `${name} `, ids.length ? ids.map(requestName) : h("span", { class: "dim" }, "nobody"));

function frontendCell({ frontend }) {
  if (!frontend) return h("span", { class: "dim" }, "–");
  return [
    "sent ", changed(frontend, "sent"), frontend.held ? [", holds back ", changed(frontend, "held_text", quoted(frontend.held_text))] : null,
    frontend.finish_reason ? [" · ended: ", changed(frontend, "finish_reason")] : null,
  ];
}

function schedulerCell({ request, scheduler }) {
  const before = scheduler.num_computed_tokens - scheduler.num_scheduled;
  const isDone = scheduler.status.startsWith("FINISHED");
  return [
    h("span", { class: "status" }, changed(scheduler, "status")), " ",
    changed(scheduler, "num_computed_tokens"), " of ", changed(scheduler, "num_tokens"), " tokens · ",
    changed(scheduler, "block_ids", count(scheduler.block_ids.length, "block")),
    scheduler.num_preemptions ? [" · preempted ", changed(scheduler, "num_preemptions", `${scheduler.num_preemptions}×`)] : null,
    isDone ? null : tokenBar(request, { cached: 0, computed: Math.max(before, 0), now: scheduler.num_scheduled, known: scheduler.num_tokens }),
  ];
}

function workerCell({ worker, worker_left }) {
  if (!worker) return h("span", { class: "dim" }, worker_left ? "left its place" : "–");
  return [
    changed(worker, "row", rowName(worker.row)), " computed ", changed(worker, "num_computed_tokens"),
    worker.equal ? h("span", { class: "good" }, " ✓ same blocks") : h("span", { class: "dim" }, " not told yet"),
  ];
}

function drawPool(number, state) {
  const blocks = poolOf(number);
  const { pool_counts: counts, free_queue: free } = state;
  const owned = counts.owned + counts.shared;
  const fact = `${blocks.length} blocks of ${state.block_size} tokens · ${owned} owned (${counts.shared} shared) · ${counts.cached_free} cached and free · ${counts.free} free`;
  const said = h("p", { class: "said", "aria-live": "polite" }, "Point at a block to see whose it is, or search for its number (#37).");
  const grid = h("div", { class: blocks.length <= SMALL_POOL ? "pool roomy" : "pool", role: "img", "aria-label": fact }, cellsOf(blocks));
  const tell = (event) => {
    const id = event.target.dataset?.block;
    if (id !== undefined) fill(said, blockStory(blocks[id]));
  };
  grid.addEventListener("pointerover", tell);
  grid.addEventListener("click", tell);
  if (view.block !== null && blocks[view.block]) fill(said, blockStory(blocks[view.block]));
  return [
    heading("Pool", DATA.state.source.pool, fact), grid, poolLegend(), said,
    h("p", { class: "queues" }, "free queue: next ", h("span", { class: "names" }, free.head.map(blockName)),
      free.tail.length ? [" … last ", h("span", { class: "names" }, free.tail.map(blockName))] : null, ` (${free.num_blocks} in all)`),
  ];
}

function cellsOf(blocks) {
  if (blocks.length <= SMALL_POOL) return blocks.map((block) => poolCell(block, 1, block.block_id));
  if (blocks.length <= LARGE_POOL) return blocks.map((block) => poolCell(block));
  const alike = (a, b) => a.state === b.state && !a.changed && !b.changed && a.owners.join() === b.owners.join();
  const cells = [];
  for (let at = 0; at < blocks.length;) {
    let end = at + 1;
    while (end < blocks.length && alike(blocks[at], blocks[end])) end += 1;
    if (end - at > LONG_RUN) cells.push(poolCell(blocks[at], end - at));
    else for (let i = at; i < end; i += 1) cells.push(poolCell(blocks[i]));
    at = end;
  }
  return cells;
}

function poolCell(block, run = 1, text = "") {
  const owner = block.owners[0];
  const isOther = view.request && !block.owners.includes(view.request) ? "other" : "";
  const names = ["cell", block.state ?? "null", block.changed ? "changed" : "", isOther, run > 1 ? "run" : "",
    view.block === block.block_id ? "chosen" : ""];
  const what = run > 1 ? `#${block.block_id}–#${block.block_id + run - 1}` : `#${block.block_id}`;
  return h("i", {
    class: names.filter(Boolean).join(" "), "data-block": block.block_id, vars: owner ? { "--c": colourOf(owner) } : {},
    title: `${what} ${STATE_WORDS[block.state] ?? block.state}${owner ? `: ${block.owners.join(", ")}` : ""}${block.happened.length ? ` (${block.happened.join(", ")})` : ""}`,
  }, run > 1 ? `×${run}` : text !== "" ? text : block.state === "shared" ? block.ref_cnt : "");
}

function blockStory(block) {
  return [
    blockName(block.block_id), ` ${STATE_WORDS[block.state] ?? block.state}`,
    block.owners.length ? [" by ", block.owners.map(requestName)] : null,
    block.hash ? [" · published as ", h("code", {}, block.hash)] : " · not in the prefix cache",
    block.happened.length ? [" · in this iteration ", h("mark", {}, block.happened.join(", "))] : null,
  ];
}

const poolLegend = () => h("p", { class: "legend" },
  [["owned", "owned, in its request's colour"], ["shared", "shared"], ["cached_free", "free, can still be hit"], ["free", "free"], ["null", "the null block"], ["free changed", "changed now"]]
    .map(([name, text]) => h("span", {}, h("i", { class: `cell ${name}`, vars: { "--c": "var(--ink)" } }), text)));
