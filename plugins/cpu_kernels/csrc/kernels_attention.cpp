// Attention over the paged cache: a step is cut into tasks, which the threads take one after another.
//
// Few queries (decodes) of a long context are cut by chunks of keys, so that all threads work at batch 1 too; whoever
// finishes the last chunk adds them up, in order. Chunks that several decodes begin with are met by all of them at once.
// Many queries (prompts) are cut into tiles of rows.
#include "attention_few.h"
#include "attention_rows.h"
#include "attention_shared.h"
#include "scratch.h"

namespace CK_NS {

static const int64_t MAX_HEAD_SIZE = 512;
static const int64_t ROWS_A_TASK = 64;
static const int64_t MAX_DECODE_TOKENS = 8;
// Products of a row and a key below which waking other threads costs more than it saves.
static const int64_t LEAST_WORK = 2048;

struct Task {
    enum How { WHOLE, CHUNK, SHARED, TILES } how;
    Rows rows;  // of the first member, where they are shared
    int64_t chunk;
};

// A request and KV head whose chunks are separate tasks.
struct Split {
    int64_t first_chunk, end_chunk;
    int64_t place;  // of the states of the first chunk of its own
    int64_t num_shared, shared_place, shared_stride;
    int pending;

    int64_t place_of(int64_t chunk, int64_t num_rows) const {
        if (chunk < num_shared) return shared_place + chunk * shared_stride;
        return place + (chunk - (first_chunk > num_shared ? first_chunk : num_shared)) * num_rows;
    }
};

enum Slot { TASKS = 1, SPLITS, STATES, GROUPS };

template <class T>
static T* room(Slot slot, int64_t count) {
    return static_cast<T*>(ck_scratch_slot(slot, count * int64_t(sizeof(T))));
}

struct Plan {
    const Layer& layer;
    Task* tasks;
    int num_tasks;
    Split* splits;  // [R, K]
    Groups groups;
    float* states;
    int64_t num_states;
    int64_t work;

    Split& split(int64_t request, int64_t kv_head) const { return splits[request * layer.num_kv_heads + kv_head]; }
};

static int64_t visible_keys(const Layer& layer, int64_t request) {
    return layer.step->seq_lens[request] - layer.first_key(layer.start(request));
}

// Of the cache that a step reads. With less than that, fetching ahead costs more than it saves.
static const int64_t MUCH = 2 << 20;

static int64_t cached_bytes(const Layer& layer) {
    int64_t keys = 0;
    for (int64_t r = 0; r < layer.step->num_requests; ++r) keys += visible_keys(layer, r);
    return keys * layer.num_kv_heads * layer.row_bytes();
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
        plan.split(request, head) = Split{first, first + chunks, plan.num_states, 0, 0, 0, int(chunks)};
        plan.num_states += chunks * num_rows;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) add_task(plan, Task::CHUNK, rows, first + chunk);
    }
}

// Shared chunks first: they take longest.
static void plan_group(Plan& plan, const Group& group) {
    const Layer& layer = plan.layer;
    int64_t num_rows = layer.group(), shared = group.num_chunks, stride = group.num_members * num_rows;
    for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
        for (int64_t chunk = 0; chunk < shared; ++chunk)
            add_task(plan, Task::SHARED, Rows{group.leader, head, 0, num_rows}, chunk);
        int64_t place = plan.num_states;
        plan.num_states += shared * stride;
        for (int64_t member = group.leader; member >= 0; member = plan.groups.next[member]) {
            int64_t end = end_chunk(layer, member);
            plan.split(member, head) = Split{0, end, plan.num_states, shared, place, stride, int(end)};
            plan.num_states += (end - shared) * num_rows;
            place += num_rows;
        }
    }
    for (int64_t head = 0; head < layer.num_kv_heads; ++head)
        for (int64_t member = group.leader; member >= 0; member = plan.groups.next[member])
            for (int64_t chunk = shared; chunk < plan.split(member, head).end_chunk; ++chunk)
                add_task(plan, Task::CHUNK, Rows{member, head, 0, num_rows}, chunk);
}

// Groups of several, whose members are then planned.
static void plan_groups(Plan& plan, bool* planned) {
    const Layer& layer = plan.layer;
    if (layer.window > 0 || layer.group() > ROWS_A_TASK) return;
    find_groups(plan.groups, layer);
    for (int64_t i = 0; i < plan.groups.count; ++i) {
        const Group& group = plan.groups.all[i];
        if (group.num_members < 2) continue;
        plan_group(plan, group);
        for (int64_t member = group.leader; member >= 0; member = plan.groups.next[member]) planned[member] = true;
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
    int64_t num_requests = step.num_requests;
    char* memory = room<char>(GROUPS, num_requests * int64_t(sizeof(Group) + 2 * sizeof(int32_t) + sizeof(bool)));
    Group* groups = reinterpret_cast<Group*>(memory);
    int32_t* next = reinterpret_cast<int32_t*>(groups + num_requests);
    bool* planned = reinterpret_cast<bool*>(next + 2 * num_requests);
    Plan plan = {layer, room<Task>(TASKS, count_tasks(layer)), 0, room<Split>(SPLITS, num_requests * layer.num_kv_heads),
                 Groups{groups, next, next + num_requests, 0}, nullptr, 0, 0};
    int64_t decoded = 0;
    for (int64_t r = 0; r < num_requests; ++r) {
        planned[r] = !has_tokens(layer, r);
        if (planned[r]) continue;
        int64_t keys = visible_keys(layer, r) * layer.num_kv_heads;
        plan.work += keys * layer.num_new(r) * layer.group();
        if (is_decode(layer, r)) decoded += keys;
    }
    plan_groups(plan, planned);
    int64_t longest_whole = decoded / (4 * ck_num_threads());
    for (int64_t r = 0; r < num_requests; ++r) {
        if (planned[r]) continue;
        if (is_decode(layer, r))
            plan_decode(plan, r, longest_whole);
        else
            plan_prompt(plan, r);
    }
    plan.states = room<float>(STATES, plan.num_states * State::stride(layer.head_size));
    return plan;
}

template <class Kernel>
struct Queries {
    alignas(64) typename Kernel::Query rows[ROWS_A_TASK * MAX_HEAD_SIZE];
    int64_t positions[ROWS_A_TASK];

    void copy(const Layer& layer, const Rows& rows_of, int64_t at = 0) {
        int64_t width = Kernel::query_width(layer.head_size);
        for (int64_t row = rows_of.begin; row < rows_of.end; ++row, ++at) {
            int64_t place = place_of(layer, rows_of, row, layer.query_stride);
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
        for (int64_t chunk = split.first_chunk; chunk < split.end_chunk; ++chunk)
            add_chunk(
                total, state_of(plan.states, split.place_of(chunk, rows.end) + row, layer.head_size), layer.head_size);
        write_out(layer, rows, row, total);
    }
}

static void finish_chunk(const Plan& plan, const Rows& rows) {
    Split& split = plan.split(rows.request, rows.kv_head);
    if (__atomic_sub_fetch(&split.pending, 1, __ATOMIC_ACQ_REL) == 0) add_up(plan, rows, split);
}

template <class Kernel>
static void run_chunk(const Plan& plan, const Rows& all, int64_t number) {
    const Layer& layer = plan.layer;
    int64_t place = plan.split(all.request, all.kv_head).place_of(number, all.end);
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
    finish_chunk(plan, all);
}

// A chunk that all members of a group see as a whole.
template <class Kernel>
static void run_shared(const Plan& plan, Rows rows, int64_t number) {
    const Layer& layer = plan.layer;
    Chunk chunk;
    chunk.first = chunk.begin = number * KEYS;
    chunk.end = chunk.first + KEYS;
    locate(chunk, layer, rows.request, rows.kv_head);
    Queries<Kernel> queries;
    for (int64_t member = rows.request; member >= 0;) {
        int64_t place = plan.split(member, rows.kv_head).place_of(number, rows.end), num_rows = 0, first = member;
        for (; member >= 0 && num_rows + rows.end <= ROWS_A_TASK; member = plan.groups.next[member]) {
            rows.request = member;
            queries.copy(layer, rows, num_rows);
            num_rows += rows.end;
        }
        for (int64_t row = 0; row < num_rows; ++row)
            clear(state_of(plan.states, place + row, layer.head_size), layer.head_size);
        Kernel::attend(
            queries.rows, chunk, layer, queries.positions, state_of(plan.states, place, layer.head_size).at, num_rows);
        for (rows.request = first; rows.request != member; rows.request = plan.groups.next[rows.request])
            finish_chunk(plan, rows);
    }
}

template <class Kernel>
static void run_rows(const Plan& plan, const Task& task) {
    if (task.how == Task::SHARED) run_shared<Kernel>(plan, task.rows, task.chunk);
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
    layer.reads_much = cached_bytes(layer) > MUCH;
    zero_padding(layer);
    Plan plan = make_plan(layer);
    if (plan.work < LEAST_WORK)
        for (int i = 0; i < plan.num_tasks; ++i) run(plan, plan.tasks[i]);
    else
        parallel(plan.num_tasks, [&](int i) { run(plan, plan.tasks[i]); });
}
