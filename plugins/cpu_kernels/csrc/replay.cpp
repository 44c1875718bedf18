// A list of calls in one.
#include "ck.h"
#include "threads.h"

namespace {

struct Calls {
    const ck_call* calls;
    int64_t count;
};

void make(void* context) {
    const Calls& all = *static_cast<const Calls*>(context);
    for (int64_t i = 0; i < all.count; ++i) all.calls[i].function(all.calls[i].args);
}

}  // namespace

CK_EXPORT void ck_replay(const ck_call* calls, int64_t num_calls) {
    Calls all = {calls, num_calls};
    ck_together(make, &all);
}
