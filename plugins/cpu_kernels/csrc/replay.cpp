// A list of calls in one.
#include "ck.h"
#include "threads.h"

#include <time.h>

namespace {

struct Calls {
    const ck_call* calls;
    int64_t count;
    int64_t* nanoseconds;  // that each call takes are added here; may be null
};

int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

void make(void* context) {
    const Calls& all = *static_cast<const Calls*>(context);
    for (int64_t i = 0; i < all.count; ++i) all.calls[i].function(all.calls[i].args);
}

void make_timed(void* context) {
    const Calls& all = *static_cast<const Calls*>(context);
    int64_t last = now();
    for (int64_t i = 0; i < all.count; ++i) {
        all.calls[i].function(all.calls[i].args);
        int64_t time = now();
        all.nanoseconds[i] += time - last;
        last = time;
    }
}

}  // namespace

CK_EXPORT void ck_replay(const ck_call* calls, int64_t num_calls) {
    Calls all = {calls, num_calls, nullptr};
    ck_together(make, &all);
}

// The same, with a clock between the calls.
CK_EXPORT void ck_replay_timed(const ck_call* calls, int64_t num_calls, int64_t* nanoseconds) {
    Calls all = {calls, num_calls, nanoseconds};
    ck_together(make_timed, &all);
}
