// Threads of the OpenMP runtime that the process has already. A second runtime would spin against it, so the library
// links to none: its functions are handed over when the library is loaded.
#include "ck.h"

namespace {

typedef void (*gomp_parallel_function)(void (*)(void*), void*, unsigned, unsigned);
typedef int (*thread_num_function)(void);

gomp_parallel_function gomp_parallel = nullptr;
thread_num_function thread_num = nullptr;
int num_threads = 1;

struct Team {
    void (*task)(void*, int);
    void* context;
    int num_tasks;
    int next;
};

void work(void* data) {
    Team* team = static_cast<Team*>(data);
    for (;;) {
        int task = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED);
        if (task >= team->num_tasks) return;
        team->task(team->context, task);
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
    Team team = {task, context, num_tasks, 0};
    gomp_parallel(work, &team, unsigned(threads), 0);
}

// args: GOMP_parallel, omp_get_thread_num (both may be null: one thread), number of threads.
CK_EXPORT void ck_set_threads(const ck_arg* args) {
    gomp_parallel = reinterpret_cast<gomp_parallel_function>(args[0].p);
    thread_num = reinterpret_cast<thread_num_function>(args[1].p);
    num_threads = args[2].i < 1 ? 1 : int(args[2].i);
}
