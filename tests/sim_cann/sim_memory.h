// SPDX-License-Identifier: Apache-2.0
// What a simulated kernel may ask of the simulated runtime (exported by libascendcl.so, plain C).
//
// A kernel "device binary" is a shared object built for the host. Its entry
//     extern "C" void <kernel_name>_sim(void* args, uint32_t args_bytes, uint32_t block_dim);
// is called on the stream's thread, once per launch, and runs all the blocks itself, on threads of its own if
// it likes. `args` is the launch's private copy of the argument block.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The kernel's signature, as the runtime calls it.
typedef void (*SimKernelEntry)(void* args, uint32_t args_bytes, uint32_t block_dim);

// The host address at which a kernel may touch the bytes [device_address, device_address + bytes), or NULL if
// they do not lie, to the last byte, inside one live device allocation or one mapped host registration
// (`write` != 0: that is not read-only). Thread safe; `bytes` may be 0, then only the address is checked.
void* simTranslate(uint64_t device_address, uint64_t bytes, int write);

// One line that says what lies at the address: "2 bytes beyond the 100 bytes at 0x..." and the like. Writes
// at most `size` bytes, the closing zero included.
void simDescribeAddress(uint64_t device_address, uint64_t bytes, char* text, uint64_t size);

// Records a device fault for the running task: its stream gets ACL_ERROR_RT_VECTOR_CORE_EXCEPTION (507035),
// the next synchronize of the stream returns it, and aclGetRecentErrMsg then says `message`. The first fault
// of a task counts. It only records: the kernel returns by itself. From a thread that belongs to no task (see
// simAdoptTask) it is recorded for every kernel that is running.
void simKernelFault(const char* message);

// The task that runs in this thread, or NULL. A kernel with threads of its own hands it on, so that their
// faults reach the right stream: `void* task = simCurrentTask();` in the entry, `simAdoptTask(task);` in each
// thread.
void* simCurrentTask(void);
void simAdoptTask(void* task);

// Counters by name, for the whole process and shared with those of the runtime's calls ("aclrtMalloc", ...).
// The names of a kernel's counters should begin with its own: "sparse_copy.mte2_bytes".
void simCounterAdd(const char* name, uint64_t amount);
void simCounterMax(const char* name, uint64_t value);  // keeps the largest
uint64_t simCounterGet(const char* name);              // 0 if there is none of that name
void simCountersReset(void);
// "name value\n" for every counter that is not 0, sorted by name. Returns the bytes that the whole text
// needs, the closing zero included; writes at most `size` of them.
uint64_t simCountersText(char* text, uint64_t size);

#ifdef __cplusplus
}
#endif
