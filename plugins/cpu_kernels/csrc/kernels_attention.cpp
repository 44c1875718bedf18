// Attention over the paged cache: a step is cut into tasks, which the threads take one after another.
//
// Few queries (decodes) of a long context are cut by chunks of keys, so that all threads work at batch 1 too; whoever
// finishes the last chunk adds them up, in order. Many queries (prompts) are cut into tiles of rows.
#include "attention_few.h"
#include "attention_rows.h"

#include <stdlib.h>

namespace CK_NS {

static const int64_t MAX_HEAD_SIZE = 512;
static const int64_t ROWS_A_TASK = 64;
static const int64_t MAX_DECODE_TOKENS = 8;
// Products of a row and a key below which waking other threads costs more than it saves.
static const int64_t LEAST_WORK = 2048;

struct Task {
    enum How { WHOLE, CHUNK, TILES } how;
    Rows rows;
    int64_t chunk;
};

// A request and KV head whose chunks are separate tasks.
struct Split {
    int64_t first_chunk, num_chunks;
    int64_t place;  // of the first chunk's states
    int pending;
};

// Grows with the largest step and stays. A thread that calls kernels has its own.
struct Memory {
    char* at;
    int64_t size;
};
static thread_local Memory task_memory, split_memory, state_memory;

template <class T>
static T* room(Memory& memory, int64_t count) {
    int64_t needed = (count * int64_t(sizeof(T)) + 64) / 64 * 64;
    if (needed > memory.size) {
        free(memory.at);
        memory.size = needed * 3 / 2 / 64 * 64;
        memory.at = static_cast<char*>(aligned_alloc(64, memory.size));
    }
    return reinterpret_cast<T*>(memory.at);
}

struct Plan {
    const Layer& layer;
    Task* tasks;
    int num_tasks;
    Split* splits;  // [R, K]
    float* states;
    int64_t num_states;
    int64_t work;
};

static int64_t visible_keys(const Layer& layer, int64_t request) {
    return layer.step->seq_lens[request] - layer.first_key(layer.start(request));
}

static bool is_decode(const Layer& layer, int64_t request) {
    int64_t num_new = layer.num_new(request);
    if (num_new <= 1) return true;
#if CK_LEVEL >= CK_AMX
    if (tiles_serve(layer) && !layer.fixed_order && num_new * layer.group() >= 16) return false;
#endif
    return num_new <= MAX_DECODE_TOKENS;
}

static bool has_tokens(const Layer& layer, int64_t request) {
    return layer.num_new(request) > 0 && layer.step->seq_lens[request] > 0;
}

static int64_t first_chunk(const Layer& layer, int64_t request) {
    return layer.first_key(layer.start(request)) / KEYS;
}
static int64_t end_chunk(const Layer& layer, int64_t request) {
    return (layer.step->seq_lens[request] + KEYS - 1) / KEYS;
}

static void zero_tokens(const Layer& layer, int64_t begin, int64_t end) {
    int64_t bytes = layer.num_heads * layer.head_size * (layer.kind == FLOAT32 ? 4 : 2);
    if (end > begin) __builtin_memset(static_cast<char*>(layer.out) + begin * bytes, 0, (end - begin) * bytes);
}

static void zero_padding(const Layer& layer) {
    const Step& step = *layer.step;
    for (int64_t r = 0; r < step.num_requests; ++r)
        if (step.seq_lens[r] <= 0) zero_tokens(layer, step.query_starts[r], step.query_starts[r + 1]);
    zero_tokens(layer, step.query_starts[step.num_requests], layer.num_tokens);
}

static void add_task(Plan& plan, Task::How how, const Rows& rows, int64_t chunk) {
    plan.tasks[plan.num_tasks++] = Task{how, rows, chunk};
}

static void plan_decode(Plan& plan, int64_t request, int64_t longest_whole) {
    const Layer& layer = plan.layer;
    int64_t num_rows = layer.num_new(request) * layer.group(), keys = visible_keys(layer, request);
    int64_t first = first_chunk(layer, request), chunks = end_chunk(layer, request) - first;
    for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
        Rows rows = {request, head, 0, num_rows};
        if (keys <= longest_whole || chunks <= 1) {
            for (; rows.begin < num_rows; rows.begin += ROWS_A_TASK) {
                rows.end = rows.begin + ROWS_A_TASK < num_rows ? rows.begin + ROWS_A_TASK : num_rows;
                add_task(plan, Task::WHOLE, rows, 0);
            }
            continue;
        }
        plan.splits[request * layer.num_kv_heads + head] = Split{first, chunks, plan.num_states, int(chunks)};
        plan.num_states += chunks * num_rows;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) add_task(plan, Task::CHUNK, rows, first + chunk);
    }
}

// Last rows first: they see most keys, and short tasks at the end let all threads finish together.
static void plan_prompt(Plan& plan, int64_t request) {
    const Layer& layer = plan.layer;
    int64_t num_rows = layer.num_new(request) * layer.group(), most = ROWS_A_TASK;
    Task::How how = Task::WHOLE;
#if CK_LEVEL >= CK_AMX
    if (tiles_serve(layer) && !layer.fixed_order) {
        most = MAX_TILE_ROWS;
        how = Task::TILES;
    }
#endif
    for (int64_t end = num_rows; end > 0;) {
        int64_t begin = (end - 1) / most * most;
        for (int64_t head = 0; head < layer.num_kv_heads; ++head) add_task(plan, how, Rows{request, head, begin, end}, 0);
        end = begin;
    }
}

static int64_t count_tasks(const Layer& layer) {
    int64_t count = 0;
    for (int64_t r = 0; r < layer.step->num_requests; ++r) {
        if (!has_tokens(layer, r)) continue;
        int64_t rows = (layer.num_new(r) * layer.group() + ROWS_A_TASK - 1) / ROWS_A_TASK;
        int64_t chunks = is_decode(layer, r) ? end_chunk(layer, r) - first_chunk(layer, r) : 0;
        count += layer.num_kv_heads * (rows > chunks ? rows : chunks);
    }
    return count;
}

static Plan make_plan(const Layer& layer) {
    const Step& step = *layer.step;
    Plan plan = {layer, room<Task>(task_memory, count_tasks(layer)), 0,
                 room<Split>(split_memory, step.num_requests * layer.num_kv_heads), nullptr, 0, 0};
    int64_t decoded = 0;
    for (int64_t r = 0; r < step.num_requests; ++r) {
        if (!has_tokens(layer, r)) continue;
        int64_t keys = visible_keys(layer, r) * layer.num_kv_heads;
        plan.work += keys * layer.num_new(r) * layer.group();
        if (is_decode(layer, r)) decoded += keys;
    }
    int64_t longest_whole = decoded / (4 * ck_num_threads());
    for (int64_t r = 0; r < step.num_requests; ++r) {
        if (!has_tokens(layer, r)) continue;
        if (is_decode(layer, r))
            plan_decode(plan, r, longest_whole);
        else
            plan_prompt(plan, r);
    }
    plan.states = room<float>(state_memory, plan.num_states * State::stride(layer.head_size));
    return plan;
}

template <class Kernel>
struct Queries {
    alignas(64) typename Kernel::Query rows[ROWS_A_TASK * MAX_HEAD_SIZE];
    int64_t positions[ROWS_A_TASK];

    void copy(const Layer& layer, const Rows& rows_of) {
        int64_t width = Kernel::query_width(layer.head_size);
        for (int64_t row = rows_of.begin; row < rows_of.end; ++row) {
            int64_t place = place_of(layer, rows_of, row, layer.query_stride), at = row - rows_of.begin;
            positions[at] = position_of(layer, rows_of, row);
            if (layer.kind == FLOAT32)
                Kernel::copy_query(rows + at * width, (const float*)layer.query + place, layer.head_size);
            else
                Kernel::copy_query(rows + at * width, (const bf16*)layer.query + place, layer.head_size);
        }
    }
};

static void write_out(const Layer& layer, const Rows& rows, int64_t row, State state) {
    int64_t place = place_of(layer, rows, row, layer.num_heads * layer.head_size);
    if (layer.kind == FLOAT32)
        write_row((float*)layer.out + place, state, layer.head_size);
    else
        write_row((bf16*)layer.out + place, state, layer.head_size);
}

// The part of a chunk that some of the rows see; whether there is one.
static bool cut(Chunk& chunk, const Layer& layer, const Rows& rows, int64_t number) {
    int64_t begin = layer.first_key(position_of(layer, rows, rows.begin));
    int64_t end = layer.last_key(position_of(layer, rows, rows.end - 1));
    chunk.first = number * KEYS;
    chunk.begin = begin > chunk.first ? begin : chunk.first;
    chunk.end = end < chunk.first + KEYS ? end : chunk.first + KEYS;
    return chunk.begin < chunk.end;
}

template <class Kernel>
static void run_whole(const Layer& layer, const Rows& rows) {
    Queries<Kernel> queries;
    alignas(64) float states[ROWS_A_TASK * State::stride(MAX_HEAD_SIZE)];
    int64_t num_rows = rows.end - rows.begin;
    queries.copy(layer, rows);
    for (int64_t row = 0; row < num_rows; ++row) clear(state_of(states, row, layer.head_size), layer.head_size);
    for (int64_t number = first_chunk(layer, rows.request);; ++number) {
        Chunk chunk;
        if (!cut(chunk, layer, rows, number)) {
            if (chunk.first >= chunk.end) break;
            continue;
        }
        locate(chunk, layer, rows.request, rows.kv_head);
        Kernel::attend(queries.rows, chunk, layer, queries.positions, states, num_rows);
    }
    for (int64_t row = 0; row < num_rows; ++row)
        write_out(layer, rows, rows.begin + row, state_of(states, row, layer.head_size));
}

static void add_up(const Plan& plan, const Rows& rows, const Split& split) {
    const Layer& layer = plan.layer;
    alignas(64) float memory[16 + MAX_HEAD_SIZE];
    State total = {memory};
    for (int64_t row = rows.begin; row < rows.end; ++row) {
        clear(total, layer.head_size);
        for (int64_t chunk = 0; chunk < split.num_chunks; ++chunk)
            add_chunk(
                total, state_of(plan.states, split.place + chunk * rows.end + row, layer.head_size), layer.head_size);
        write_out(layer, rows, row, total);
    }
}

template <class Kernel>
static void run_chunk(const Plan& plan, const Rows& all, int64_t number) {
    const Layer& layer = plan.layer;
    Split& split = plan.splits[all.request * layer.num_kv_heads + all.kv_head];
    int64_t place = split.place + (number - split.first_chunk) * all.end;
    for (int64_t row = 0; row < all.end; ++row)
        clear(state_of(plan.states, place + row, layer.head_size), layer.head_size);
    Chunk chunk;
    if (cut(chunk, layer, all, number)) {
        Queries<Kernel> queries;
        locate(chunk, layer, all.request, all.kv_head);
        for (Rows rows = all; rows.begin < all.end; rows.begin += ROWS_A_TASK) {
            rows.end = rows.begin + ROWS_A_TASK < all.end ? rows.begin + ROWS_A_TASK : all.end;
            queries.copy(layer, rows);
            Kernel::attend(
                queries.rows, chunk, layer, queries.positions,
                state_of(plan.states, place + rows.begin, layer.head_size).at, rows.end - rows.begin);
        }
    }
    if (__atomic_sub_fetch(&split.pending, 1, __ATOMIC_ACQ_REL) == 0) add_up(plan, all, split);
}

template <class Kernel>
static void run_rows(const Plan& plan, const Task& task) {
    if (task.how == Task::CHUNK) run_chunk<Kernel>(plan, task.rows, task.chunk);
    if (task.how == Task::WHOLE) run_whole<Kernel>(plan.layer, task.rows);
}

static void run(const Plan& plan, const Task& task) {
#if CK_LEVEL >= CK_AMX
    if (task.how == Task::TILES) {
        attend_by_tiles(plan.layer, task.rows);
        return;
    }
    if (tiles_serve(plan.layer)) {
        _tile_loadconfig(&ALL_FULL);
        run_rows<FewOnTiles>(plan, task);
        _tile_release();
        return;
    }
#endif
    switch (plan.layer.kv_kind) {
        case FLOAT32: run_rows<OnVectors<float>>(plan, task); break;
        case BFLOAT16: run_rows<OnVectors<bf16>>(plan, task); break;
        default: run_rows<OnVectors<int8_t>>(plan, task);
    }
}

}  // namespace CK_NS

using namespace CK_NS;

// out [T, H, D], query (tokens query_stride elements apart), query_stride, T, pages (page_stride bytes apart),
// page_stride, step, H, K, D, scale, window (0: none), soft_cap (0: none), kind, kv_kind, fixed_order
CK_KERNEL(attention) {
    Layer layer = {args[0].p, args[1].p, args[2].i, args[3].i, pointer<const char>(args[4]), args[5].i,
                   pointer<const Step>(args[6]), args[7].i, args[8].i, args[9].i, float(args[10].f), args[11].i,
                   float(args[12].f), args[13].i, args[14].i, args[15].i != 0};
    zero_padding(layer);
    Plan plan = make_plan(layer);
    if (plan.work < LEAST_WORK)
        for (int i = 0; i < plan.num_tasks; ++i) run(plan, plan.tasks[i]);
    else
        parallel(plan.num_tasks, [&](int i) { run(plan, plan.tasks[i]); });
}
