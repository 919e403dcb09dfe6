// How long the threads of a team wait awake.
#pragma once

namespace partita::runtime {

// GCC's OpenMP threads turn 300,000 times, for 8 to 15 ms, before they sleep: beside another busy process a thread that
// waits keeps the processor from the one it waits for. This lets them turn for some 150 microseconds: longer than a
// barrier takes, shorter than what the system gives a process. The library reads its setting (GOMP_SPINCOUNT) before
// main(), so the process begins anew with it, once. Nothing where the user has said how threads wait (GOMP_SPINCOUNT or
// OMP_WAIT_POLICY), or where the executable cannot be started again. To be called first in main().
void limit_spinning(char** argv);

}  // namespace partita::runtime
