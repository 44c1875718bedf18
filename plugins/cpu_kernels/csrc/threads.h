// Threads for more than one kernel.
#pragma once

// Calls lead(context) on the calling thread; until it returns, the other threads wait for what it gives ck_parallel.
void ck_together(void (*lead)(void*), void* context);
