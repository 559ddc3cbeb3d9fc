// SPDX-License-Identifier: Apache-2.0
// What tests and the sister libraries may ask of the simulated runtime (exported by libascendcl.so, plain C).
// Counters, address translation and kernel faults stand in sim_memory.h.
#pragma once
#include "sim_memory.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- settings: the table in runtime/settings.cpp, also read from the environment when the process starts.
// Changes one that may change while the process runs. 0: done, 1: there is none of that name, 2: it is fixed
// once the process runs, 3: bad value.
int simSet(const char* name, const char* value);
// "name<TAB>value<TAB>default<TAB>meaning\n" for each; sizes as in simCountersText.
uint64_t simSettingsText(char* text, uint64_t size);

// ---- fault injection. Of the calls of `function` from now on, the nth (1 is the next one) returns `code`
// without doing anything; with `and_later` != 0 those after it as well. `function` is the name of a runtime
// call, or "kernel" (any) or "kernel.<name>": then it is the nth run of a kernel, whose stream gets the code.
void simFailCall(const char* function, uint64_t nth, int code, int and_later);
void simFailClear(void);

// ---- what is alive
uint64_t simLiveDeviceBytes(int device);
uint64_t simLiveHostBytes(void);        // of aclrtMallocHost and its variants
uint64_t simLiveRegistrations(void);    // of aclrtHostRegister and aclrtHostRegisterV2
int simIsDeviceAddress(const void* p);  // 1: a kernel may touch the byte at p

// ---- for simulated operator libraries
// Runs fn(arg) on a stream, or records it into the graph that is being captured there. fn returns an ACL
// code; other than 0 it makes the task fail. drop(arg) is called once nothing can run fn any more, at once if
// the call fails. The names are kept as pointers.
int simEnqueue(void* stream, const char* name, int (*fn)(void*), void* arg, void (*drop)(void*));
// Makes the running task fail with `code`; simKernelFault with a code of one's own.
void simTaskFailed(int code, const char* message);
// Keeps `message` for aclGetRecentErrMsg of this thread and returns `code`.
int simFail(int code, const char* message);
// Counts a call of a sister library; not 0: the code that fault injection wants it to return.
int simCountCall(const char* function);

#ifdef __cplusplus
}
#endif
