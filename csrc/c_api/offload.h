/* SPDX-License-Identifier: Apache-2.0
 *
 * C interface of torch_offload: the process-wide host pool and sparse_copy, for callers without Python.
 *
 * Every function may be called by any thread at any time. No exception crosses this interface. Functions that return
 * int32_t return OFFLOAD_OK or a negative code; offload_last_error() then tells more. After a failure nothing has
 * changed and nothing was written.
 *
 * Structures begin with their size, which the caller sets (the *_INIT macros do). A library that knows fewer fields
 * accepts a longer structure if the fields that it does not know are zero; one that knows more fills in defaults.
 *
 * The pool is the one that torch_offload.init() and torch_offload.empty() use in Python. In a forked child the pool of
 * the parent does not exist: allocating from it and freeing return OFFLOAD_ERROR_STATE and do nothing.
 */
#ifndef TORCH_OFFLOAD_C_API_OFFLOAD_H_
#define TORCH_OFFLOAD_C_API_OFFLOAD_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define OFFLOAD_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum {
  OFFLOAD_OK = 0,
  OFFLOAD_ERROR_VALUE = -1,    /* a bad argument */
  OFFLOAD_ERROR_INDEX = -2,    /* a row index outside the rows */
  OFFLOAD_ERROR_MEMORY = -3,   /* the pool or the host has too little memory */
  OFFLOAD_ERROR_STATE = -4,    /* not initialized, initialized otherwise, closed, or a forked child */
  OFFLOAD_ERROR_POINTER = -5,  /* freed twice, or no block of the pool starts there */
  OFFLOAD_ERROR_INTERNAL = -6, /* anything else */
};

enum { OFFLOAD_NO_DEVICE = -1, OFFLOAD_NO_NUMA_NODE = -1 };

enum { OFFLOAD_HUGE_PAGES_AUTO = 0, OFFLOAD_HUGE_PAGES_REQUIRE = 1, OFFLOAD_HUGE_PAGES_NEVER = 2 };

enum {
  OFFLOAD_FLAG_LOCK = 1,   /* lock the memory where the limits allow it */
  OFFLOAD_FLAG_SHARED = 2, /* memory that other processes can attach */
};

typedef struct offload_config {
  uint64_t struct_size;
  uint64_t capacity;        /* bytes; rounded up to pages */
  uint64_t alignment;       /* of every block: a power of two from 16 to 2 MiB; 0: 64 */
  int32_t device;           /* OFFLOAD_NO_DEVICE: host memory only; others need torch_offload's backend for it */
  int32_t huge_pages;       /* OFFLOAD_HUGE_PAGES_* */
  int32_t numa_node;        /* OFFLOAD_NO_NUMA_NODE: not bound */
  int32_t prefault_threads; /* 0: pages come with their first touch */
  uint32_t flags;           /* OFFLOAD_FLAG_* */
  uint32_t reserved;        /* 0 */
  const char* name;         /* copied; NULL: "host_pool" */
} offload_config_t;

#define OFFLOAD_CONFIG_INIT \
  {sizeof(offload_config_t), 0, 0, OFFLOAD_NO_DEVICE, OFFLOAD_HUGE_PAGES_AUTO, OFFLOAD_NO_NUMA_NODE, 0, 0, 0, NULL}

/* Makes the pool. Again with the same arguments: does nothing; with others: OFFLOAD_ERROR_STATE. */
OFFLOAD_API int32_t offload_init(const offload_config_t* config);

/* Refuses new blocks and copies, waits for the copies that have started. Blocks that are still allocated keep the
 * memory until the last of them is freed. Without a pool it does nothing. */
OFFLOAD_API int32_t offload_uninit(void);

/* Sets *block to `size` bytes at a multiple of `alignment` (0: the pool's), to NULL on failure. The caller owns the
 * block until offload_free. Size 0 is valid, also when the pool is full; its address must not be accessed. */
OFFLOAD_API int32_t offload_malloc(uint64_t size, uint64_t alignment, void** block);

/* Gives a block back, by any thread, also after offload_uninit. NULL is ignored. A wrong pointer is counted, reported
 * with OFFLOAD_ERROR_POINTER, and changes nothing. */
OFFLOAD_API int32_t offload_free(void* block);

/* The message of this thread's latest failure, "" if there was none; valid until the thread's next failure. */
OFFLOAD_API const char* offload_last_error(void);

/* What offload_init wished for and did not get, one text a line; "" if nothing. Valid until this thread's next call. */
OFFLOAD_API const char* offload_warnings(void);

/* Rows of one tensor pair: row i of a side starts i * stride bytes after its address. */
typedef struct offload_component {
  const void* src;
  void* dst;
  int64_t src_rows;
  int64_t dst_rows;
  int64_t src_stride; /* bytes, at least 0 */
  int64_t dst_stride; /* bytes, at least row_bytes unless there is one row */
  int64_t row_bytes;
} offload_component_t;

/* For every component and every i in [0, n): row src_index[i] of src goes to row dst_index[i] of dst. An entry with a
 * negative index on either side is skipped; the last entry of a destination row wins. Memory of dst must not
 * overlap that of src or of an index; where destinations share bytes, the last component wins. Any host memory may be
 * used; the caller keeps it alive. */
typedef struct offload_copy {
  uint64_t struct_size;
  uint64_t component_size; /* sizeof(offload_component_t) */
  const offload_component_t* components;
  int64_t num_components;
  const int64_t* dst_index; /* n values; NULL: 0, 1, 2, ... */
  const int64_t* src_index; /* n values; NULL: 0, 1, 2, ... */
  int64_t n;
  int32_t threads;  /* at most; 0 or 1: the calling thread alone */
  int32_t reserved; /* 0 */
} offload_copy_t;

#define OFFLOAD_COPY_INIT {sizeof(offload_copy_t), sizeof(offload_component_t), NULL, 0, NULL, NULL, 0, 0, 0}

/* Checks everything, then copies, then returns. OFFLOAD_ERROR_STATE without a pool. */
OFFLOAD_API int32_t offload_sparse_copy(const offload_copy_t* copy);

typedef struct offload_stats {
  uint64_t struct_size;
  uint64_t capacity;
  uint64_t used; /* used + free == capacity */
  uint64_t free;
  uint64_t largest_free;
  uint64_t peak;
  uint64_t requested; /* used without the rounding */
  uint64_t live_blocks;
  uint64_t allocations;
  uint64_t frees;
  uint64_t double_frees;  /* refused */
  uint64_t foreign_frees; /* refused */
  uint64_t page_size;
  int32_t numa_node;
  int32_t locked;
  int32_t device_registered;
  int32_t reserved;
} offload_stats_t;

/* Fills in one consistent snapshot; set struct_size first. */
OFFLOAD_API int32_t offload_stats(offload_stats_t* stats);

/* The signatures of PyTorch's pluggable allocators, over the same pool, or over the one whose HostPool.use() this
 * thread is in. `device` must be the pool's. Addresses are those of the device, of the host if the pool has none. A
 * block is handed out again once what `stream` had to do when it was freed has ended; NULL: at once. Blocks are aligned
 * to 512 bytes at least. NULL and offload_last_error() on failure. The size that is given to offload_free_fn is
 * ignored: the pool knows it. */
OFFLOAD_API void* offload_alloc_fn(ssize_t size, int device, void* stream);
OFFLOAD_API void offload_free_fn(void* ptr, ssize_t size, int device, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* TORCH_OFFLOAD_C_API_OFFLOAD_H_ */
