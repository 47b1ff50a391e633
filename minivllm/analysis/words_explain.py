"""Owns the sentences of explanations in both languages; formulas keep the names of the source.

The topics graph and roofline are told in English only.
"""

from __future__ import annotations

_ENGLISH = {
    "comma": ", ",
    "full_stop": ".",
    "and_so_on": ", ",
    "and": " and ",
    # Column headings and titles.
    "request": "request",
    "iteration": "iteration",
    "tokens": "tokens",
    "budget": "budget",
    "what_for": "what for",
    "what": "what",
    "bytes": "bytes",
    "how": "how",
    "blocks": "blocks",
    "new": "new",
    "when": "when",
    # Budget.
    "spent": "Iteration {step} spent {used} of {budget} tokens on {count:request|requests}.",
    "in_order": "in the order of the scheduler",
    "left": "{count} left",
    "kind_new": "new",
    "kind_resumed": "resumed",
    "kind_running": "running",
    "what_drafts": "{kind}: {before} to {after}, {drafts:draft|drafts} behind its {known} known",
    "what_known": "{kind}: {before} to {after} of {known}",
    "what_ahead": "{kind}: {before} to {after}, planned ahead",
    "bounds_budget": "max_num_batched_tokens ({limit}) bounds the tokens of one iteration, over all requests.",
    "bounds_seqs": "max_num_seqs ({limit}) bounds how many requests share them: {count} here.",
    "bounds_length": "max_model_len ({limit}) bounds one request over its whole life, prompt and output.",
    "longest_in_chunks": (
        "The longest prompt of this run has {longest} tokens, and one request gets at most {most} an iteration: it "
        "comes in chunks."
    ),
    "longest_in_one": (
        "The longest prompt of this run has {longest} tokens, and one request gets at most {most} an iteration: it can "
        "come in one piece."
    ),
    "got_less": "{request} got less than it owed: {why}.",
    "got_none": "{request} got none: {why}.",
    "in_chunks": (
        "The prompt of {request} has {prompt} tokens: {hit} were cached, the rest came in {count:chunk|chunks}, in "
        "iterations {first} to {last}."
    ),
    "in_one_chunk": (
        "The prompt of {request} has {prompt} tokens: {hit} were cached, the rest came in {count:chunk|chunks}."
    ),
    "chunks": "chunks",
    "of_the_prompt": "of the prompt",
    "not_computed": "{count} tokens of it were not computed before the log ended.",
    "only_has_to_fit": (
        "A prompt only has to fit max_model_len ({longest}); max_num_batched_tokens ({budget}) bounds what one "
        "iteration computes of it. Only the last chunk samples a token."
    ),
    "for_others": "{budget} - {others} for others",
    "from_to": "{before} to {after} of {prompt}",
    # Slot.
    "slot": "Position {pos} of {request} is in slot {slot}: offset {offset} of block #{block}. It {how}.",
    "was_written": "was written in iteration {step}",
    "was_cached": ("was in the prefix cache: {request} took over its block in iteration {step} and computed nothing"),
    "positions_of_block": (
        "Positions {first} to {last} of {request} are block #{block}. Two positions of one request differ in the block "
        "or in the offset, so their slots differ."
    ),
    "one_owner": (
        "A block that is written to has one owner. It is shared only when it is full, by requests whose tokens up to "
        "its end are the same, and nobody writes to it any more."
    ),
    "no_slot_yet": (
        "Position {pos} of {request} has no slot yet in iteration {until}: {done} tokens are computed by then. {later}"
    ),
    "computed_later": "It is computed in iteration {steps}.",
    "computed_often": "It is computed in iterations {steps}.",
    "never_a_slot": (
        "Position {pos} of {request} never gets a slot: it is its last token, and nothing comes after that."
    ),
    "no_batch": "The log holds no batch of that iteration (prepare_inputs) to compare with.",
    "to_slots": "In iteration {step}, {count:token|tokens} went to {slots} different slots.",
    "to_one_slot": "In iteration {step}, {count:token|tokens} went to one slot.",
    "contradiction": (
        "The worker's slot_mapping says {logged}: table and mapping contradict each other (minivllm check)."
    ),
    # Memory.
    "memory": ("A KV block takes {block}, and there are {blocks} ({reason}): {all} with room for {tokens} tokens."),
    "memory_title": "memory",
    "one_token": "one token",
    "one_block": "one block",
    "kv_cache": "KV cache",
    "one_long_request": "one request of max_model_len",
    "weights": "weights",
    "factors": "2 x {layers} x {heads} x {head_dim} x {number} bytes",
    "so_many_tokens": "{count} tokens",
    "with_null_block": "{count} blocks, one of them the null block",
    "tokens_and_blocks": "{tokens} tokens, {blocks} blocks",
    "two_is_for": (
        "2 is for keys and values. Query heads cost nothing here: several of them share one KV head ({queries} on "
        "{heads})."
    ),
    "null_block": "Block 0 is the null block: block tables are padded with it, and it is never anybody's.",
    "memory_contradiction": (
        "The worker reported {block} bytes a block and {all} for all: shape and report contradict each other."
    ),
    # Alloc.
    "began": (
        "{request} began with {first:block|blocks} for {tokens} tokens in iteration {step}, and held {peak} at most "
        "(iteration {peak_step})."
    ),
    "changes": "iterations in which its blocks changed",
    "from_cache": "from the cache",
    "given_back": "given back",
    "held": "held",
    "free_after": "free after",
    "one_by_one": (
        "Blocks come one by one as tokens come. For its prompt and max_tokens ({prompt} + {max_tokens}) it would have "
        "been {upfront} at once; nobody reserves them."
    ),
    "for_drafts": "{more} more than that are for drafts (num_lookahead_tokens is {drafts}).",
    "alloc_contradiction": (
        "The log has {held} blocks there: block events and plan contradict each other (minivllm check)."
    ),
    "never_scheduled": "never scheduled",
    "given_back_in": "given back in iteration {steps}",
    "still_held": "still held",
    "taken": (
        "{count:block|blocks} were taken from the free queue and {shared} from the prefix cache, one by one as tokens "
        "came. {more}"
    ),
    "requests": "requests",
    "first": "first",
    "most": "most",
    "usable": ("{usable} usable blocks hold {fit} requests of max_model_len ({longest} tokens, {each} blocks each)."),
    "more_may_run": (
        "{ran} ran in one iteration at most: requests that are shorter, or still growing, need fewer blocks, so more "
        "may run than the number at start-up says. If the pool runs out, somebody is preempted."
    ),
    # Hit rate.
    "hit_rate": (
        "{hits} of {queries} tokens{of} were found in the prefix cache: {percent} %, in {count:look-up|look-ups}."
    ),
    "of_request": " of {request}",
    "lookups": "look-ups",
    "found": "found",
    "and_then": "and then",
    "again": "{request}, again",
    "next_block": "block {index}: {why}",
    "never_computed": "never computed",
    "evicted": "evicted",
    "differs": "differs",
    "not_full": "not full",
    "last_token": "last token",
    "caching_off": "caching off",
    "not_asked": "not asked",
    "whole_blocks": (
        "Only whole blocks are cached: a hit is a multiple of {size} tokens, and the last token is always computed."
    ),
    "queries_are": (
        "The queries of an admission are all tokens that the request has then, not only those that a block could hold."
    ),
    "not_among": (
        "Not among these: {count:look-up|look-ups} with {hits} hits in {queries} tokens of preempted requests that "
        "came back. They find what they computed themselves, so they are counted apart "
        "(PrefixCacheStats.preempted_queries)."
    ),
    "of_everything": ("A count of everything would say {hits} of {queries} tokens: hits without a common prefix."),
    "each_counts": "Every look-up in the log led to an admission, and each counts once.",
    "no_admission": (
        "The log has {count:look-up|look-ups} more that led to no admission, and do not count: a blocked request looks "
        "up again in every iteration (only a new answer is logged)."
    ),
    # Weights.
    "became": "{count:tensor|tensors} of {model} became {size} of parameters in {dtype}.",
    "tensors": "tensors",
    "in_checkpoint": "in the checkpoint",
    "stored": "stored",
    "our_parameter": "our parameter",
    "layers": "layers",
    "bytes_by_part": "bytes by part",
    "part": "part",
    "share": "share",
    "weights_contradiction": "The loader counted {count} bytes: header and rows contradict each other.",
    "fused": ("{ours} is {names} one below the other: one large product is faster than {count} small ones."),
    "tied": ("The head is tied: logits are computed with the embedding's own rows, and lm_head.weight takes nothing."),
    "own_head": "The head has rows of its own (lm_head.weight).",
    # Ledger.
    "lived": (
        "{request} lived for {life:iteration|iterations}: {queue} in the queue, {prefill} until its first token, "
        "{decode} after it."
    ),
    "ledger_no_clocks": "The log has no clocks: time is counted in iterations.",
    "ledger_no_messages": "What it cost in messages is not known: the log holds none (message).",
    "ledger_no_phases": "What it cost the processor is not known: the log holds no phases (span).",
    "bears_its_share": "Of a phase it bears its share: of forward by its tokens, else one part of all requests.",
    "account": "account",
    "amount": "amount",
    "messages": "{count:message|messages}, {bytes} bytes",
    "back_in": "{count} in iteration {step}",
    "not_yet": "not yet",
    "row_arrived": "arrived",
    "row_first_scheduled": "first scheduled",
    "row_first_token": "first token",
    "row_last_token": "last token",
    "row_queue_iterations": "queue iterations",
    "row_prefill_iterations": "prefill iterations",
    "row_decode_iterations": "decode iterations",
    "row_life_iterations": "life iterations",
    "row_ttft_iterations": "ttft iterations",
    "row_itl_iterations": "itl iterations",
    "row_queue_ms": "queue",
    "row_prefill_ms": "prefill",
    "row_decode_ms": "decode",
    "row_ttft_ms": "ttft",
    "row_itl_ms": "itl",
    "row_e2e_ms": "e2e",
    "row_peak_blocks": "peak blocks",
    "row_peak_bytes": "peak bytes",
    "row_block_iterations": "block iterations",
    "row_shared_blocks": "shared blocks",
    "row_allocated_blocks": "allocated blocks",
    "row_boundary_1": "frontend - engine core",
    "row_boundary_2": "engine core - worker",
    "row_boundary_3": "worker - device",
    "row_prompt_tokens": "prompt tokens",
    "row_cached_tokens": "cached tokens",
    "row_cached_again": "cached again",
    "row_computed_tokens": "computed tokens",
    "row_recomputed_tokens": "recomputed tokens",
    "row_sampled_tokens": "sampled tokens",
    "row_preemptions": "preemptions",
    "row_finish_reason": "finish reason",
    "row_stop_reason": "stop reason",
    "row_characters_sent": "characters sent",
    "row_most_held": "most held",
    "row_total_ms": "total",
    "title_time": "time",
    "title_memory": "memory",
    "title_communication": "communication",
    "title_cpu": "cpu",
    "title_request": "request",
    # Around the explanation.
    "here": "here",
    "next": "next: {command}",
    "more_rows": "and {count} more (--json has all)",
}

_CHINESE = {
    "comma": "，",
    "full_stop": "。",
    "and_so_on": "、",
    "and": " 和 ",
    "request": "请求",
    "iteration": "轮",
    "tokens": "token 数",
    "budget": "预算",
    "what_for": "用途",
    "what": "项目",
    "bytes": "字节",
    "how": "算法",
    "blocks": "块数",
    "new": "新取",
    "when": "何时",
    "spent": "第 {step} 轮的 {budget} 个 token 预算用掉 {used} 个，分给 {count} 个请求。",
    "in_order": "按调度器的次序",
    "left": "剩 {count}",
    "kind_new": "新请求",
    "kind_resumed": "恢复运行",
    "kind_running": "运行中",
    "what_drafts": "{kind}：从 {before} 到 {after}，在已知的 {known} 个之后还有 {drafts} 个草稿 token",
    "what_known": "{kind}：从 {before} 到 {after}，共 {known}",
    "what_ahead": "{kind}：从 {before} 到 {after}，提前规划",
    "bounds_budget": "max_num_batched_tokens（{limit}）限制一轮里所有请求合计的 token 数。",
    "bounds_seqs": "max_num_seqs（{limit}）限制同一轮里有多少个请求：这里是 {count} 个。",
    "bounds_length": "max_model_len（{limit}）限制一个请求从头到尾的长度，包括提示词和输出。",
    "longest_in_chunks": (
        "这次运行里最长的提示词有 {longest} 个 token，而一个请求每轮最多分到 {most} 个：它要分块计算。"
    ),
    "longest_in_one": (
        "这次运行里最长的提示词有 {longest} 个 token，而一个请求每轮最多分到 {most} 个：它可以一次算完。"
    ),
    "got_less": "{request} 分到的比欠的少：{why}。",
    "got_none": "{request} 没有分到：{why}。",
    "in_chunks": (
        "{request} 的提示词有 {prompt} 个 token：{hit} 个命中前缀缓存，其余分 {count} 块计算，从第 {first} 轮到第 "
        "{last} 轮。"
    ),
    "in_one_chunk": "{request} 的提示词有 {prompt} 个 token：{hit} 个命中前缀缓存，其余分 {count} 块计算。",
    "chunks": "分块",
    "of_the_prompt": "提示词的哪一段",
    "not_computed": "到日志结束时，其中还有 {count} 个 token 没有计算。",
    "only_has_to_fit": (
        "提示词只需放得进 max_model_len（{longest}）；max_num_batched_tokens（{budget}）限制的是一轮里计算它的多少。"
        "只有最后一块会采样。"
    ),
    "for_others": "{budget} - 其他请求的 {others}",
    "from_to": "从 {before} 到 {after}，共 {prompt}",
    "slot": "{request} 的位置 {pos} 在 slot {slot}：块 #{block} 的偏移 {offset}。它{how}。",
    "was_written": "在第 {step} 轮写入",
    "was_cached": "命中前缀缓存：{request} 在第 {step} 轮接手它所在的块，没有计算",
    "positions_of_block": (
        "{request} 的位置 {first} 到 {last} 都在块 #{block} 里。同一请求的两个位置，不是块不同就是偏移不同，"
        "所以 slot 一定不同。"
    ),
    "one_owner": (
        "正在写入的块只有一个主人。块填满之后才会共享，共享它的请求到块末尾为止的 token 都相同，而且不会再有人写它。"
    ),
    "no_slot_yet": "{request} 的位置 {pos} 在第 {until} 轮还没有 slot：到那时算完了 {done} 个 token。{later}",
    "computed_later": "它在第 {steps} 轮计算。",
    "computed_often": "它在第 {steps} 轮计算。",
    "never_a_slot": "{request} 的位置 {pos} 永远不会有 slot：它是最后一个 token，后面不再有别的 token。",
    "no_batch": "日志里没有那一轮的批次（prepare_inputs），无法比对。",
    "to_slots": "第 {step} 轮有 {count} 个 token 写进 {slots} 个不同的 slot。",
    "to_one_slot": "第 {step} 轮有 {count} 个 token 写进一个 slot。",
    "contradiction": "worker 的 slot_mapping 是 {logged}：块表与映射互相矛盾（minivllm check）。",
    "memory": "一个 KV 块占 {block}，共有 {blocks} 个（{reason}）：合计 {all}，能放 {tokens} 个 token。",
    "memory_title": "内存",
    "one_token": "一个 token",
    "one_block": "一个块",
    "kv_cache": "KV cache 合计",
    "one_long_request": "一个 max_model_len 长的请求",
    "weights": "权重",
    "factors": "2 x {layers} x {heads} x {head_dim} x {number} 字节",
    "so_many_tokens": "{count} 个 token",
    "with_null_block": "{count} 个块，其中一个是空块",
    "tokens_and_blocks": "{tokens} 个 token，{blocks} 个块",
    "two_is_for": "2 表示 K 和 V。query 头在这里不占内存：几个 query 头共用一个 KV 头（{queries} 比 {heads}）。",
    "null_block": "0 号块是空块：块表用它补齐，它从不属于任何请求。",
    "memory_contradiction": "worker 报告每块 {block} 字节，合计 {all}：模型形状与报告互相矛盾。",
    "began": (
        "{request} 在第 {step} 轮从 {first} 个块（{tokens} 个 token）开始，最多时持有 {peak} 个（第 {peak_step} 轮）。"
    ),
    "changes": "块发生变化的各轮",
    "from_cache": "取自缓存",
    "given_back": "归还",
    "held": "持有",
    "free_after": "之后空闲",
    "one_by_one": (
        "块是随着 token 一个一个取的。如果按提示词加 max_tokens（{prompt} + {max_tokens}）一次取足，"
        "就要 {upfront} 个；没有人会这样预留。"
    ),
    "for_drafts": "比这多出的 {more} 个留给草稿 token（num_lookahead_tokens 是 {drafts}）。",
    "alloc_contradiction": "日志里那时有 {held} 个块：块的事件与计划互相矛盾（minivllm check）。",
    "never_scheduled": "从未被调度",
    "given_back_in": "在第 {steps} 轮归还",
    "still_held": "仍在持有",
    "taken": "从空闲队列取了 {count} 个块，从前缀缓存取了 {shared} 个，随着 token 一个一个地取。{more}",
    "requests": "各请求",
    "first": "最初",
    "most": "最多",
    "usable": "可用的 {usable} 个块能放下 {fit} 个 max_model_len 长的请求（每个 {longest} 个 token，{each} 个块）。",
    "more_may_run": (
        "同一轮里最多运行过 {ran} 个：较短的或者还在变长的请求用不了那么多块，"
        "所以能运行的数目可以超过启动时报告的数字。块池用尽时，会有请求被抢占。"
    ),
    "hit_rate": "{queries} 个 token{of} 中有 {hits} 个命中前缀缓存：{percent} %，共 {count} 次查找。",
    "of_request": "（{request}）",
    "lookups": "查找",
    "found": "命中",
    "and_then": "之后",
    "again": "{request}，再次",
    "next_block": "块 {index}：{why}",
    "never_computed": "从未计算过",
    "evicted": "已被驱逐",
    "differs": "内容不同",
    "not_full": "不足一块",
    "last_token": "最后一个 token",
    "caching_off": "缓存未开启",
    "not_asked": "没有查找",
    "whole_blocks": "只缓存整块：命中数是 {size} 个 token 的倍数，而最后一个 token 总要计算。",
    "queries_are": "一次接纳的查找量，是请求当时的全部 token，而不只是能装满块的那些。",
    "not_among": (
        "不计入其中的：被抢占后恢复运行的请求的 {count} 次查找，{queries} 个 token 命中 {hits} 个。"
        "它们找到的是自己算过的内容，所以另行统计（PrefixCacheStats.preempted_queries）。"
    ),
    "of_everything": "如果全部计入，就是 {queries} 个 token 命中 {hits} 个：没有公共前缀也有命中。",
    "each_counts": "日志里的每次查找都带来一次接纳，各计一次。",
    "no_admission": (
        "日志里另有 {count} 次查找没有带来接纳，不计入：被挡住的请求每一轮都会再查一次（只有结果变化时才记录）。"
    ),
    "became": "{model} 的 {count} 个张量变成 {size} 的参数，精度 {dtype}。",
    "tensors": "张量",
    "in_checkpoint": "检查点里的名字",
    "stored": "存储精度",
    "our_parameter": "我们的参数",
    "layers": "层数",
    "bytes_by_part": "各部分的字节数",
    "part": "部分",
    "share": "占比",
    "weights_contradiction": "加载器统计的是 {count} 字节：日志头与各行互相矛盾。",
    "fused": "{ours} 由 {names} 上下拼成：一次大的乘法比 {count} 次小的快。",
    "tied": "输出头与 embedding 共用权重：logits 直接用 embedding 的各行计算，lm_head.weight 不占空间。",
    "own_head": "输出头有自己的权重（lm_head.weight）。",
    "lived": ("{request} 一共经历 {life} 轮：排队 {queue} 轮，到第一个 token 为止 {prefill} 轮，此后 {decode} 轮。"),
    "ledger_no_clocks": "日志不含时钟：时间按轮数计算。",
    "ledger_no_messages": "消息开销未知：日志里没有消息（message）。",
    "ledger_no_phases": "处理器开销未知：日志里没有阶段（span）。",
    "bears_its_share": "每个阶段它只承担自己的一份：forward 按 token 数分摊，其余按请求数均摊。",
    "account": "科目",
    "amount": "数量",
    "messages": "{count} 条消息，{bytes} 字节",
    "back_in": "第 {step} 轮归还 {count} 个",
    "not_yet": "尚未",
    "row_arrived": "到达（轮）",
    "row_first_scheduled": "首次调度（轮）",
    "row_first_token": "第一个 token（轮）",
    "row_last_token": "最后一个 token（轮）",
    "row_queue_iterations": "排队轮数",
    "row_prefill_iterations": "预填充轮数",
    "row_decode_iterations": "解码轮数",
    "row_life_iterations": "总轮数",
    "row_ttft_iterations": "TTFT 轮数",
    "row_itl_iterations": "ITL 轮数",
    "row_queue_ms": "排队",
    "row_prefill_ms": "预填充",
    "row_decode_ms": "解码",
    "row_ttft_ms": "TTFT",
    "row_itl_ms": "ITL",
    "row_e2e_ms": "端到端",
    "row_peak_blocks": "块数峰值",
    "row_peak_bytes": "字节峰值",
    "row_block_iterations": "块 × 轮数",
    "row_shared_blocks": "取自缓存的块",
    "row_allocated_blocks": "新取的块",
    "row_boundary_1": "前端 - EngineCore",
    "row_boundary_2": "EngineCore - worker",
    "row_boundary_3": "worker - 设备",
    "row_prompt_tokens": "提示词 token",
    "row_cached_tokens": "命中缓存的 token",
    "row_cached_again": "恢复时命中的 token",
    "row_computed_tokens": "计算的 token",
    "row_recomputed_tokens": "重算的 token",
    "row_sampled_tokens": "采样的 token",
    "row_preemptions": "被抢占次数",
    "row_finish_reason": "结束原因",
    "row_stop_reason": "停止条件",
    "row_characters_sent": "已发送字符",
    "row_most_held": "最多暂扣字符",
    "row_total_ms": "合计",
    "title_time": "时间（time）",
    "title_memory": "内存（memory）",
    "title_communication": "通信（communication）",
    "title_cpu": "CPU 用时（cpu）",
    "title_request": "请求自己（request）",
    "here": "这里",
    "next": "下一步：{command}",
    "more_rows": "还有 {count} 行（--json 有全部）",
}

EXPLAIN_WORDS = {"en": _ENGLISH, "zh": _CHINESE}
