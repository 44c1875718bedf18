// Threads of the OpenMP runtime that the process has already. A second runtime would spin against it, so the library
// links to none: its functions are handed over when the library is loaded.
//
// Tasks are claimed one by one, so a thread that the system took off its core delays nobody but the task it is at. In
// a replay the threads stay together from the first call to the last: waking them takes as long as a small kernel.
#include "ck.h"
#include "threads.h"

#include <immintrin.h>
#include <sched.h>

namespace {

typedef void (*gomp_parallel_function)(void (*)(void*), void*, unsigned, unsigned);
typedef int (*thread_num_function)(void);
typedef void (*task_function)(void*, int);

gomp_parallel_function gomp_parallel = nullptr;
thread_num_function thread_num = nullptr;
int num_threads = 1;

const int SPINS_BEFORE_YIELDING = 4000;

// One job after another, for threads that wait for it. A claim names the job, so a thread that comes late gets nothing
// of the next one by the last one's numbers.
struct Team {
    alignas(64) uint64_t claim = 0;  // number of the job, then of its next task
    alignas(64) int completed = 0;
    alignas(64) task_function task = nullptr;
    void* context = nullptr;
    int num_tasks = 0;
    bool over = false;
    uint32_t job = 0;
    void (*lead)(void*) = nullptr;
    void* lead_context = nullptr;
};

thread_local Team* leading = nullptr;

template <class T>
T get(const T& value) {
    return __atomic_load_n(&value, __ATOMIC_ACQUIRE);
}

template <class T>
void set(T& target, T value) {
    __atomic_store_n(&target, value, __ATOMIC_RELEASE);
}

// Does one task of the job at hand; false: there is none left.
bool do_one(Team& team) {
    uint64_t claim = get(team.claim);
    int at = int(claim & 0xffffffffu);
    if (at >= get(team.num_tasks)) return false;
    // The number of tasks is written last. Read before it, task and context could be those of the job before.
    task_function task = get(team.task);
    void* context = get(team.context);
    if (!__atomic_compare_exchange_n(&team.claim, &claim, claim + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return true;
    task(context, at);
    __atomic_fetch_add(&team.completed, 1, __ATOMIC_ACQ_REL);
    return true;
}

void follow(Team& team) {
    int idle = 0;
    while (!get(team.over)) {
        if (do_one(team)) {
            idle = 0;
            continue;
        }
        _mm_pause();
        if (++idle > SPINS_BEFORE_YIELDING) sched_yield();
    }
}

void publish(Team& team, int num_tasks, task_function task, void* context) {
    set(team.completed, 0);
    set(team.num_tasks, 0);  // claims of the last job are refused while this one is written
    set(team.claim, uint64_t(++team.job) << 32);
    set(team.task, task);
    set(team.context, context);
    set(team.num_tasks, num_tasks);
    while (do_one(team)) {
    }
    for (int idle = 0; get(team.completed) < num_tasks;) {
        _mm_pause();
        if (++idle > SPINS_BEFORE_YIELDING) sched_yield();
    }
}

void enter_team(void* data) {
    Team& team = *static_cast<Team*>(data);
    if (thread_num() != 0) {
        follow(team);
        return;
    }
    leading = &team;
    team.lead(team.lead_context);
    leading = nullptr;
    set(team.over, true);
}

struct Region {
    task_function task;
    void* context;
    int num_tasks;
    int next;
};

void work(void* data) {
    Region* region = static_cast<Region*>(data);
    for (;;) {
        int task = __atomic_fetch_add(&region->next, 1, __ATOMIC_RELAXED);
        if (task >= region->num_tasks) return;
        region->task(region->context, task);
    }
}

}  // namespace

extern "C" int ck_num_threads(void) { return num_threads; }

extern "C" void ck_parallel(int num_tasks, void (*task)(void*, int), void* context) {
    int threads = num_tasks < num_threads ? num_tasks : num_threads;
    if (threads <= 1 || gomp_parallel == nullptr) {
        for (int i = 0; i < num_tasks; ++i) task(context, i);
        return;
    }
    if (leading) {
        publish(*leading, num_tasks, task, context);
        return;
    }
    Region region = {task, context, num_tasks, 0};
    gomp_parallel(work, &region, unsigned(threads), 0);
}

void ck_together(void (*lead)(void*), void* context) {
    if (num_threads <= 1 || gomp_parallel == nullptr || thread_num == nullptr || leading) {
        lead(context);
        return;
    }
    Team team;
    team.lead = lead;
    team.lead_context = context;
    gomp_parallel(enter_team, &team, unsigned(num_threads), 0);
}

// args: GOMP_parallel, omp_get_thread_num (both may be null: one thread), number of threads.
CK_EXPORT void ck_set_threads(const ck_arg* args) {
    gomp_parallel = reinterpret_cast<gomp_parallel_function>(args[0].p);
    thread_num = reinterpret_cast<thread_num_function>(args[1].p);
    num_threads = args[2].i < 1 ? 1 : int(args[2].i);
}
