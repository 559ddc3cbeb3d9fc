/* SPDX-License-Identifier: Apache-2.0
 *
 * The C interface end to end, from a C11 program. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "c_api/offload.h"

static int passed = 0;
static int failed = 0;

#define EXPECT(condition)                                                                                  \
  do {                                                                                                     \
    if (condition) {                                                                                       \
      ++passed;                                                                                            \
    } else {                                                                                               \
      ++failed;                                                                                            \
      printf("FAILED %s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, offload_last_error()); \
    }                                                                                                      \
  } while (0)

#define EXPECT_CODE(code, part, call)                   \
  do {                                                  \
    EXPECT((call) == (code));                           \
    EXPECT(strstr(offload_last_error(), part) != NULL); \
  } while (0)

enum { MIB = 1 << 20 };

static offload_config_t config_of(uint64_t capacity) {
  offload_config_t config = OFFLOAD_CONFIG_INIT;
  config.capacity = capacity;
  config.huge_pages = OFFLOAD_HUGE_PAGES_NEVER;
  return config;
}

static offload_stats_t stats_now(void) {
  offload_stats_t stats;
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  EXPECT(offload_stats(&stats) == OFFLOAD_OK);
  EXPECT(stats.used + stats.free == stats.capacity);
  return stats;
}

static void test_before_init(void) {
  void* block = &block;
  offload_copy_t copy = OFFLOAD_COPY_INIT;
  offload_stats_t stats = {.struct_size = sizeof(stats)};
  EXPECT(strcmp(offload_last_error(), "") == 0);
  EXPECT_CODE(OFFLOAD_ERROR_STATE, "not initialized", offload_malloc(1, 0, &block));
  EXPECT(block == NULL);
  EXPECT_CODE(OFFLOAD_ERROR_STATE, "not initialized", offload_free(&stats));
  EXPECT_CODE(OFFLOAD_ERROR_STATE, "not initialized", offload_sparse_copy(&copy));
  EXPECT_CODE(OFFLOAD_ERROR_STATE, "not initialized", offload_stats(&stats));
  EXPECT(offload_alloc_fn(1, OFFLOAD_NO_DEVICE, NULL) == NULL);
  EXPECT(offload_free(NULL) == OFFLOAD_OK);
  EXPECT(offload_uninit() == OFFLOAD_OK);
}

static void test_init(void) {
  struct {
    offload_config_t known;
    uint64_t later;
  } longer = {config_of(MIB), 0};
  offload_config_t config = config_of(MIB);
  config.struct_size = 8;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "config.struct_size", offload_init(&config));
  config.struct_size = 0;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "config.struct_size", offload_init(&config));
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "got NULL", offload_init(NULL));
  config = config_of(0);
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "capacity", offload_init(&config));
  config = config_of(UINT64_MAX);
  EXPECT_CODE(OFFLOAD_ERROR_MEMORY, "out of memory", offload_init(&config));
  config = config_of(MIB);
  config.device = 256; /* is not device 0 */
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "device: expected -1 (host only), got 256", offload_init(&config));
  config.device = -2;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "got -2", offload_init(&config));
  config = config_of(MIB);
  config.huge_pages = 3;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "huge_pages", offload_init(&config));
  config = config_of(MIB);
  config.flags = 64;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "flags", offload_init(&config));
  config = config_of(MIB);
  config.alignment = 48;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "alignment", offload_init(&config));
  config = config_of(MIB);
  config.numa_node = 999;
  EXPECT(offload_init(&config) != OFFLOAD_OK);
  offload_uninit();

  config = config_of(MIB);
  EXPECT(offload_init(&config) == OFFLOAD_OK);
  EXPECT(offload_init(&config) == OFFLOAD_OK);
  EXPECT(strcmp(offload_warnings(), "") == 0);
  longer.known.struct_size = sizeof(longer);
  EXPECT(offload_init(&longer.known) == OFFLOAD_OK);
  longer.later = 1;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "does not know", offload_init(&longer.known));
  config.capacity = 2 * MIB;
  EXPECT_CODE(OFFLOAD_ERROR_STATE, "call uninit first", offload_init(&config));
  EXPECT(stats_now().capacity == MIB);
  EXPECT(offload_uninit() == OFFLOAD_OK);
}

static void test_blocks(void) {
  offload_config_t config = config_of(MIB);
  char* a = NULL;
  char* b = NULL;
  int local = 0;
  EXPECT(offload_init(&config) == OFFLOAD_OK);
  EXPECT(offload_malloc(1000, 0, (void**)&a) == OFFLOAD_OK);
  EXPECT((uintptr_t)a % 64 == 0);
  memset(a, 1, 1000);
  EXPECT(stats_now().used == 1024 && stats_now().requested == 1000);
  EXPECT(offload_malloc(10, 1 << 16, (void**)&b) == OFFLOAD_OK);
  EXPECT((uintptr_t)b % (1 << 16) == 0);
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "alignment", offload_malloc(1, 3, (void**)&b));
  EXPECT(b == NULL);
  EXPECT_CODE(OFFLOAD_ERROR_MEMORY, "asked for 1048576 bytes", offload_malloc(MIB, 0, (void**)&b));
  EXPECT_CODE(OFFLOAD_ERROR_MEMORY, "out of memory", offload_malloc(UINT64_MAX, 0, (void**)&b));
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "block", offload_malloc(1, 0, NULL));

  EXPECT_CODE(OFFLOAD_ERROR_POINTER, "inside of one", offload_free(a + 16));
  EXPECT_CODE(OFFLOAD_ERROR_POINTER, "expected a block of offload_malloc", offload_free(&local));
  EXPECT(offload_free(a) == OFFLOAD_OK);
  EXPECT_CODE(OFFLOAD_ERROR_POINTER, "free memory", offload_free(a));
  EXPECT(stats_now().double_frees == 1 && stats_now().foreign_frees == 2);
  EXPECT(stats_now().live_blocks == 1);

  EXPECT(offload_malloc(0, 0, (void**)&b) == OFFLOAD_OK);
  EXPECT(b != NULL);
  EXPECT(offload_free(b) == OFFLOAD_OK);

  /* A block keeps its memory after uninit; a new pool is another one. */
  EXPECT(offload_malloc(100, 0, (void**)&a) == OFFLOAD_OK);
  EXPECT(offload_uninit() == OFFLOAD_OK);
  memset(a, 2, 100);
  EXPECT(offload_init(&config) == OFFLOAD_OK);
  EXPECT(stats_now().live_blocks == 0);
  memset(a, 3, 100);
  EXPECT(offload_free(a) == OFFLOAD_OK);
  EXPECT(stats_now().frees == 0);
  EXPECT(offload_uninit() == OFFLOAD_OK);
}

static void test_allocator_functions(void) {
  offload_config_t config = config_of(MIB);
  void* block;
  EXPECT(offload_init(&config) == OFFLOAD_OK);
  block = offload_alloc_fn(1000, OFFLOAD_NO_DEVICE, NULL);
  EXPECT(block != NULL && (uintptr_t)block % 512 == 0);
  EXPECT(offload_alloc_fn(1000, 1, NULL) == NULL);
  EXPECT(strstr(offload_last_error(), "device: expected the pool's device -1, got 1") != NULL);
  EXPECT(offload_alloc_fn(-1, OFFLOAD_NO_DEVICE, NULL) == NULL);
  EXPECT(strstr(offload_last_error(), "size") != NULL);
  EXPECT(offload_alloc_fn(2 * MIB, OFFLOAD_NO_DEVICE, NULL) == NULL);
  EXPECT(strstr(offload_last_error(), "out of memory") != NULL);
  EXPECT(stats_now().allocations == 1);
  offload_free_fn(block, 1000, 3, NULL); /* another device: refused */
  EXPECT(stats_now().live_blocks == 1);
  offload_free_fn(block, 1, OFFLOAD_NO_DEVICE, NULL); /* a wrong size does not matter */
  EXPECT(stats_now().used == 0);
  offload_free_fn(block, 1000, OFFLOAD_NO_DEVICE, NULL);
  EXPECT(stats_now().double_frees == 1);
  block = offload_alloc_fn(0, OFFLOAD_NO_DEVICE, NULL);
  EXPECT(block != NULL);
  offload_free_fn(block, 0, OFFLOAD_NO_DEVICE, NULL);
  offload_free_fn(NULL, 0, OFFLOAD_NO_DEVICE, NULL);
  EXPECT(stats_now().live_blocks == 0);
  EXPECT(offload_uninit() == OFFLOAD_OK);
}

enum { ROWS = 1000, N = 300, K_BYTES = 656, V_BYTES = 4 };

static void test_sparse_copy(void) {
  offload_config_t config = config_of(4 * MIB);
  static unsigned char k_dst[ROWS * 1024], v_dst[ROWS * V_BYTES];
  int64_t dst_index[N], src_index[N];
  unsigned char* k_src = NULL;
  unsigned char* v_src = NULL;
  EXPECT(offload_init(&config) == OFFLOAD_OK);
  EXPECT(offload_malloc(ROWS * K_BYTES, 0, (void**)&k_src) == OFFLOAD_OK);
  EXPECT(offload_malloc(ROWS * V_BYTES, 0, (void**)&v_src) == OFFLOAD_OK);
  for (int i = 0; i < ROWS * K_BYTES; ++i) k_src[i] = (unsigned char)(i * 31 + i / 251);
  for (int i = 0; i < ROWS * V_BYTES; ++i) v_src[i] = (unsigned char)(i * 17 + i / 249);
  for (int i = 0; i < N; ++i) {
    dst_index[i] = (i * 7) % ROWS;
    src_index[i] = (i * 577 + 3) % ROWS;
  }
  dst_index[5] = -1;
  src_index[9] = -7;
  dst_index[20] = dst_index[10]; /* the last one wins */

  offload_component_t components[2] = {
      {k_src, k_dst, ROWS, ROWS, K_BYTES, 1024, K_BYTES},
      {v_src, v_dst, ROWS, ROWS, V_BYTES, V_BYTES, V_BYTES},
  };
  offload_copy_t copy = OFFLOAD_COPY_INIT;
  copy.components = components;
  copy.num_components = 2;
  copy.dst_index = dst_index;
  copy.src_index = src_index;
  copy.n = N;
  for (int threads = 0; threads <= 4; ++threads) {
    static unsigned char k_expected[sizeof(k_dst)], v_expected[sizeof(v_dst)];
    memset(k_dst, 0xAA, sizeof(k_dst));
    memset(v_dst, 0xAA, sizeof(v_dst));
    memset(k_expected, 0xAA, sizeof(k_expected));
    memset(v_expected, 0xAA, sizeof(v_expected));
    for (int i = 0; i < N; ++i) {
      if (dst_index[i] < 0 || src_index[i] < 0) continue;
      memcpy(k_expected + dst_index[i] * 1024, k_src + src_index[i] * K_BYTES, K_BYTES);
      memcpy(v_expected + dst_index[i] * V_BYTES, v_src + src_index[i] * V_BYTES, V_BYTES);
    }
    copy.threads = threads;
    EXPECT(offload_sparse_copy(&copy) == OFFLOAD_OK);
    EXPECT(memcmp(k_dst, k_expected, sizeof(k_dst)) == 0);
    EXPECT(memcmp(v_dst, v_expected, sizeof(v_dst)) == 0);
  }

  /* Mistakes write nothing. */
  memset(k_dst, 0xAA, sizeof(k_dst));
  src_index[N - 1] = ROWS;
  EXPECT_CODE(OFFLOAD_ERROR_INDEX, "src_index[299]", offload_sparse_copy(&copy));
  src_index[N - 1] = 0;
  dst_index[0] = INT64_MAX;
  EXPECT_CODE(OFFLOAD_ERROR_INDEX, "dst_index[0]", offload_sparse_copy(&copy));
  dst_index[0] = 0;
  copy.threads = -1;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "threads", offload_sparse_copy(&copy));
  copy.threads = 1;
  copy.n = -1;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "n to be at least 0", offload_sparse_copy(&copy));
  copy.n = N;
  copy.component_size = 8;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "component_size", offload_sparse_copy(&copy));
  copy.component_size = sizeof(offload_component_t);
  components[1].src = NULL;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "memory for src", offload_sparse_copy(&copy));
  components[1].src = k_dst + 100;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "not to overlap", offload_sparse_copy(&copy));
  components[1].src = v_src;
  components[1].src_stride = INT64_MAX / 2;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "address space", offload_sparse_copy(&copy));
  components[1].src_stride = V_BYTES;
  components[0].dst_stride = K_BYTES - 1;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "dst_stride", offload_sparse_copy(&copy));
  components[0].dst_stride = 1024;
  copy.num_components = 0;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "at least one component", offload_sparse_copy(&copy));
  copy.num_components = 2;
  for (size_t i = 0; i < sizeof(k_dst); ++i) {
    if (k_dst[i] != 0xAA) {
      EXPECT(!"written in spite of a mistake");
      break;
    }
  }

  /* Destinations that lie over an index. */
  offload_component_t over = {k_src, dst_index, 4, 4, 8, 8, 8};
  int64_t before[N];
  memcpy(before, dst_index, sizeof(before));
  copy.components = &over;
  copy.num_components = 1;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "dst and dst_index not to overlap", offload_sparse_copy(&copy));
  over.dst = src_index + N - 1;
  over.dst_rows = 1;
  EXPECT_CODE(OFFLOAD_ERROR_VALUE, "dst and src_index not to overlap", offload_sparse_copy(&copy));
  EXPECT(memcmp(before, dst_index, sizeof(before)) == 0);
  copy.components = components;
  copy.num_components = 2;

  /* Without indices: row i to row i. */
  copy.dst_index = copy.src_index = NULL;
  copy.n = ROWS;
  EXPECT(offload_sparse_copy(&copy) == OFFLOAD_OK);
  EXPECT(memcmp(v_dst, v_src, sizeof(v_dst)) == 0);
  copy.n = ROWS + 1;
  EXPECT(offload_sparse_copy(&copy) == OFFLOAD_ERROR_INDEX);
  copy.n = 0;
  EXPECT(offload_sparse_copy(&copy) == OFFLOAD_OK);
  EXPECT(offload_free(k_src) == OFFLOAD_OK);
  EXPECT(offload_free(v_src) == OFFLOAD_OK);
  EXPECT(offload_uninit() == OFFLOAD_OK);
}

struct copier {
  pthread_t thread;
  char* src;
  char* dst;
  int copies;
  int last_code;
};

enum { COPIERS = 4, COPY_ROWS = 64, COPY_BYTES = 1152 };

static void* copy_until_refused(void* argument) {
  struct copier* self = argument;
  offload_component_t component = {self->src, self->dst, COPY_ROWS, COPY_ROWS, COPY_BYTES, COPY_BYTES, COPY_BYTES};
  offload_copy_t copy = OFFLOAD_COPY_INIT;
  copy.components = &component;
  copy.num_components = 1;
  copy.n = COPY_ROWS;
  while ((self->last_code = offload_sparse_copy(&copy)) == OFFLOAD_OK) {
    __atomic_add_fetch(&self->copies, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void test_uninit_while_others_copy(void) {
  offload_config_t config = config_of(4 * MIB);
  for (int round = 0; round < 10; ++round) {
    struct copier copiers[COPIERS];
    memset(copiers, 0, sizeof(copiers));
    EXPECT(offload_init(&config) == OFFLOAD_OK);
    for (int i = 0; i < COPIERS; ++i) {
      EXPECT(offload_malloc(COPY_ROWS * COPY_BYTES, 0, (void**)&copiers[i].src) == OFFLOAD_OK);
      EXPECT(offload_malloc(COPY_ROWS * COPY_BYTES, 0, (void**)&copiers[i].dst) == OFFLOAD_OK);
      memset(copiers[i].src, i + 1, COPY_ROWS * COPY_BYTES);
      pthread_create(&copiers[i].thread, NULL, copy_until_refused, &copiers[i]);
    }
    for (int i = 0; i < COPIERS; ++i) {
      while (__atomic_load_n(&copiers[i].copies, __ATOMIC_RELAXED) < 10) usleep(100);
    }
    EXPECT(offload_uninit() == OFFLOAD_OK);
    for (int i = 0; i < COPIERS; ++i) {
      pthread_join(copiers[i].thread, NULL);
      EXPECT(copiers[i].last_code == OFFLOAD_ERROR_STATE);
      EXPECT(memcmp(copiers[i].src, copiers[i].dst, COPY_ROWS * COPY_BYTES) == 0);
      EXPECT(offload_free(copiers[i].src) == OFFLOAD_OK);
      EXPECT(offload_free(copiers[i].dst) == OFFLOAD_OK);
    }
  }
}

static void test_fork(void) {
  offload_config_t config = config_of(MIB);
  void* block = NULL;
  int status = -1;
  pid_t child;
  EXPECT(offload_init(&config) == OFFLOAD_OK);
  EXPECT(offload_malloc(100, 0, &block) == OFFLOAD_OK);
  child = fork();
  if (child == 0) {
    void* mine = NULL;
    int good = offload_malloc(1, 0, &mine) == OFFLOAD_ERROR_STATE;
    good = good && strstr(offload_last_error(), "parent of this forked process") != NULL;
    good = good && offload_free(block) == OFFLOAD_ERROR_STATE;
    good = good && offload_init(&config) == OFFLOAD_OK && offload_malloc(1, 0, &mine) == OFFLOAD_OK;
    _exit(good ? 0 : 1);
  }
  waitpid(child, &status, 0);
  EXPECT(status == 0);
  EXPECT(stats_now().live_blocks == 1);
  EXPECT(offload_free(block) == OFFLOAD_OK);
  EXPECT(offload_uninit() == OFFLOAD_OK);
}

int main(void) {
  test_before_init();
  test_init();
  test_blocks();
  test_allocator_functions();
  test_sparse_copy();
  test_uninit_while_others_copy();
  test_fork();
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
