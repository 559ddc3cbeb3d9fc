// SPDX-License-Identifier: Apache-2.0
// libge_runner.so: the safe string functions that torchair's libraries take from CANN; all of the graph
// engine itself are traps, generated from what the installed wheel links (generate_traps.sh).
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

SIM_EXPORT [[noreturn]] void simTrap(const char* name) {
  fprintf(stderr, "[sim] %s is not simulated\n", name);
  fflush(stderr);
  abort();
}

SIM_EXPORT int vsnprintf_s(char* out, size_t size, size_t count, const char* format, va_list arguments) {
  return vsnprintf(out, size < count + 1 ? size : count + 1, format, arguments);
}
SIM_EXPORT int snprintf_s(char* out, size_t size, size_t count, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = vsnprintf_s(out, size, count, format, arguments);
  va_end(arguments);
  return written;
}
SIM_EXPORT int strcpy_s(char* out, size_t size, const char* text) {
  constexpr int kTooLong = 34;
  if (strlen(text) >= size) return kTooLong;
  strcpy(out, text);
  return 0;
}
