"""Owns the sentences above the process map and the hot-path map, and the legend of the timeline, in both languages."""

from __future__ import annotations

_ENGLISH = {
    "comma": ", ",
    "semicolon": "; ",
    "full_stop": ".",
    "and_so_on": ", ",
    "and": " and ",
    # The process map.
    "took": " It took {ms} ms from end to end.",
    "nothing_computed": "Nothing was computed in iteration {iteration}.{took}",
    "computed": "Iteration {iteration} computed {count:token|tokens} of {who}.{took}",
    "many_requests": "{count} requests",
    "ahead": (
        "What the core committed (update_from_output) was computed for the plan of iteration {answered}: "
        "with async scheduling, plan {number} was made before that."
    ),
    "several": "{count} {name}",
    "bytes": " ({count} bytes)",
    "crossed": "Over the boundaries went: {parts}.",
    "waited": "the {who} waited {ms} ms for the {other}",
    "who_waits": "Who waits for whom: {clauses}.",
    "one_process": (
        "One process (pid {pid}) is {names}: what crosses between them is a call, "
        "and its bytes are what it would weigh as a message."
    ),
    "simulated": "This run was simulated: nobody computed anything, so there is no worker and no device.",
    "no_clocks": "This log keeps no clocks, so the order is true, and times and bytes are not in it.",
    "for_both": " For both: minivllm map process -s {scenario} --fresh",
    "no_messages": "This log holds no messages: those drawn follow from its other events, without bytes and times.",
    "device_is_cpu": (
        "The device is the CPU itself: the worker's own thread computes, nothing crosses ③, and nothing overlaps."
    ),
    # The hot-path map.
    "hot_no_clocks": (
        "This log keeps no clocks, so there are no times in it: it shows what was called, how often, and in what order."
    ),
    "hot_fresh": "For times on this machine: minivllm map hot -s {scenario} --fresh",
    "hot_simulated": "The run was simulated: nothing was computed, so there is no data plane.",
    "planes": (
        "{ms} ms of work: {data} in the data plane (moves tensors), "
        "{control} in the control plane (decides who and how much)."
    ),
    "longest": " The longest stage was {name} with {share}.",
    "outside": " More time went by outside of all stages: {share} in {name} itself.",
    "device_worked": (
        "To start what the device did took {enqueue} ms; it then worked "
        "{device} ms, and for {waited} ms of that the CPU truly waited (sync)."
    ),
    "hot_cpu": "The device is the CPU: a forward pass is computed where it is called, and nothing waits later{sync}.",
    "sync_took": " (the sync took {ms} ms)",
    "compared": (
        "Iteration {iteration} took {own} ms from its first stage to its last; "
        "the median of {steps} iterations is {median} ms, the 99th percentile {p99} ms."
    ),
    "ttft": "A request waited {ms} ms for its first token (TTFT, median)",
    "queued": ", {ms} ms of them in the queue",
    "itl": ", then {ms} ms for each next one (ITL, median; p99 {p99} ms)",
    "unknown_part": "an unknown part",
    # The timeline's legend.
    "glyph_p": "prompt, up to 1/4 of the budget",
    "glyph_P": "up to 3/4",
    "glyph_B": "more",
    "glyph_h": "entered with a prefix hit",
    "glyph_D": "decode",
    "glyph_f": "last token",
    "glyph_w": "waits",
    "glyph_x": "preempted",
    "glyph_a": "aborted",
    "glyph_r": "refused",
    "glyph_-": "runs, but got no tokens",
    "glyph_fold": "the same for several iterations",
    "prompt": "prompt",
}

_CHINESE = {
    "comma": "，",
    "semicolon": "；",
    "full_stop": "。",
    "and_so_on": "、",
    "and": " 和 ",
    "took": "首尾共用时 {ms} ms。",
    "nothing_computed": "第 {iteration} 轮没有计算任何 token。{took}",
    "computed": "第 {iteration} 轮计算了 {who} 的 {count} 个 token。{took}",
    "many_requests": "{count} 个请求",
    "ahead": (
        "EngineCore 本轮提交（update_from_output）的是第 {answered} 轮计划的结果："
        "异步调度时，第 {number} 轮的计划在它之前就已制定。"
    ),
    "several": "{count} 条 {name}",
    "bytes": "（{count} 字节）",
    "crossed": "跨越边界的消息：{parts}。",
    "waited": "{who} 等待 {other} {ms} ms",
    "who_waits": "谁在等谁：{clauses}。",
    "one_process": "{names} 同在一个进程（pid {pid}）：它们之间只是函数调用，字节数是假如作为消息发送时的大小。",
    "simulated": "这是模拟运行：没有真正计算，因此没有 worker，也没有设备。",
    "no_clocks": "这份日志不含时钟：顺序是真实的，但没有时间和字节数。",
    "for_both": "要看时间和字节数：minivllm map process -s {scenario} --fresh",
    "no_messages": "这份日志没有记录消息：图中的消息由其他事件推出，因此没有字节数和时间。",
    "device_is_cpu": "设备就是 CPU 本身：由 worker 自己的线程计算，没有数据跨越 ③，也没有任何重叠。",
    "hot_no_clocks": "这份日志不含时钟，因此没有时间：只显示调用了什么、多少次、按什么顺序。",
    "hot_fresh": "要看本机上的时间：minivllm map hot -s {scenario} --fresh",
    "hot_simulated": "这是模拟运行：没有真正计算，因此没有数据面。",
    "planes": "共 {ms} ms 的工作：数据面（搬运和计算张量）占 {data}，控制面（决定谁算、算多少）占 {control}。",
    "longest": "耗时最长的阶段是 {name}，占 {share}。",
    "outside": "还有更多时间花在各阶段之外：{name} 自身占 {share}。",
    "device_worked": (
        "向设备下发任务用时 {enqueue} ms；设备随后工作了 {device} ms，其中 CPU 真正等待（sync）{waited} ms。"
    ),
    "hot_cpu": "设备就是 CPU：前向计算在调用处就地完成，之后无须等待{sync}。",
    "sync_took": "（sync 用时 {ms} ms）",
    "compared": (
        "第 {iteration} 轮从第一个阶段到最后一个阶段用时 {own} ms；"
        "全部 {steps} 轮的中位数是 {median} ms，第 99 百分位是 {p99} ms。"
    ),
    "ttft": "请求等待第一个 token 用时 {ms} ms（TTFT，中位数）",
    "queued": "，其中排队 {ms} ms",
    "itl": "；此后每个 token 间隔 {ms} ms（ITL，中位数；p99 为 {p99} ms）",
    "unknown_part": "未知的一部分",
    "glyph_p": "预填充，不超过预算的 1/4",
    "glyph_P": "不超过 3/4",
    "glyph_B": "更多",
    "glyph_h": "进入时命中前缀缓存",
    "glyph_D": "解码",
    "glyph_f": "最后一个 token",
    "glyph_w": "等待",
    "glyph_x": "被抢占",
    "glyph_a": "中止",
    "glyph_r": "被拒绝",
    "glyph_-": "在运行队列中，但没有分到 token",
    "glyph_fold": "连续若干轮相同",
    "prompt": "预填充",
}

MAP_WORDS = {"en": _ENGLISH, "zh": _CHINESE}
