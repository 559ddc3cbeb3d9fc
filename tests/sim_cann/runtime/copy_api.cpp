// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include <cstring>

#include "device.h"
#include "graph.h"
#include "memory.h"
#include "settings.h"
#include "stream.h"

namespace sim {
namespace {

// What an address is to a copy. Registered host memory whose device address is its host address is both.
struct Side {
  bool device, host, mapped;
};
Side sideOf(const void* p) {
  char* begin;
  Range range;
  bool live = Memory::get().find(p, &begin, &range);
  bool mapped = live && range.kind == RangeKind::kMappedHost;
  bool device = live || AddressSpace::get().contains(p);
  return {device, !AddressSpace::get().contains(p), mapped};
}

aclError checkKind(const char* function, const void* dst, const void* src, aclrtMemcpyKind kind) {
  Side d = sideOf(dst), s = sideOf(src);
  bool fits = true, dstOnDevice = !d.host, srcOnDevice = !s.host;
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_HOST:
      fits = d.host && s.host;
      break;
    case ACL_MEMCPY_HOST_TO_DEVICE:
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
      fits = d.device && s.host;
      dstOnDevice = true;
      break;
    case ACL_MEMCPY_DEVICE_TO_HOST:
      fits = d.host && s.device;
      srcOnDevice = true;
      break;
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_INNER_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_INTER_DEVICE_TO_DEVICE:
      fits = d.device && s.device;
      dstOnDevice = srcOnDevice = true;
      break;
    case ACL_MEMCPY_DEFAULT:
      break;
    default:
      return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: kind %d", function, kind);
  }
  if (!fits)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: kind %d does not fit dst %p (%s) and src %p (%s)", function, kind, dst,
                d.device ? "device" : "host", src, s.device ? "device" : "host");
  if (is(Setting::kMappedCopies, "refuse") && ((dstOnDevice && d.mapped) || (srcOnDevice && s.mapped)))
    return fail(ACL_ERROR_RT_PARAM_INVALID,
                "%s: the device address of registered host memory (dst %p, src %p) is for kernels only", function, dst,
                src);
  return ACL_SUCCESS;
}

// Where the host finds [p, p + n), or null.
char* reach(const void* p, uint64_t n, bool write) {
  if (char* view = Memory::get().translate(p, n, write)) return view;
  bool host = !AddressSpace::get().contains(p) && !sideOf(p).device;
  return host ? static_cast<char*>(const_cast<void*>(p)) : nullptr;
}

aclError copyNow(const char* function, void* dst, const void* src, uint64_t n) {
  if (!n) return ACL_SUCCESS;
  char* to = reach(dst, n, true);
  char* from = reach(src, n, false);
  if (!to || !from)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %s", function, Memory::get().describe(to ? src : dst, n).c_str());
  memmove(to, from, n);
  return ACL_SUCCESS;
}

aclError fillNow(const char* function, void* p, int value, uint64_t n) {
  if (!n) return ACL_SUCCESS;
  char* to = reach(p, n, true);
  if (!to) return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %s", function, Memory::get().describe(p, n).c_str());
  memset(to, value, n);
  return ACL_SUCCESS;
}

aclError checkFill(const char* function, const void* p, size_t max, size_t n) {
  SIM_REQUIRE(n <= max, "%s: %zu bytes into %zu", function, n, max);
  Side side = sideOf(p);
  if (side.mapped && !side.host && is(Setting::kMappedCopies, "refuse"))
    return fail(ACL_ERROR_RT_PARAM_INVALID, "%s: %p is the device address of registered host memory", function, p);
  return ACL_SUCCESS;
}

aclError copyAsync(const char* function, void* dst, size_t max, const void* src, size_t n, aclrtMemcpyKind kind,
                   aclrtStream handle) {
  SIM_REQUIRE_STREAM(stream, handle);
  SIM_REQUIRE(n <= max, "%s: %zu bytes into %zu", function, n, max);
  if (aclError error = checkKind(function, dst, src, kind)) return error;
  return submit(stream, {"memcpy", [=] { return copyNow(function, dst, src, n); }});
}

}  // namespace
}  // namespace sim
using namespace sim;

SIM_EXPORT aclError aclrtMemcpy(void* dst, size_t max, const void* src, size_t n, aclrtMemcpyKind kind) {
  SIM_CALL("%p, %p, %zu, %d", dst, src, n, kind);
  SIM_REQUIRE_DEVICE(device);
  SIM_REQUIRE(n <= max, "aclrtMemcpy: %zu bytes into %zu", n, max);
  if (aclError error = refuseInCapture("a synchronous memcpy")) return error;
  if (aclError error = checkKind(__func__, dst, src, kind)) return error;
  return copyNow(__func__, dst, src, n);
}

SIM_EXPORT aclError aclrtMemcpyAsync(void* dst, size_t max, const void* src, size_t n, aclrtMemcpyKind kind,
                                     aclrtStream stream) {
  SIM_CALL("%p, %p, %zu, %d, %p", dst, src, n, kind, stream);
  return copyAsync(__func__, dst, max, src, n, kind, stream);
}

// The condition: where the host memory is not page-locked the copy may be synchronous. Here it never is.
SIM_EXPORT aclError aclrtMemcpyAsyncWithCondition(void* dst, size_t max, const void* src, size_t n,
                                                  aclrtMemcpyKind kind, aclrtStream stream) {
  SIM_CALL("%p, %p, %zu, %d, %p", dst, src, n, kind, stream);
  return copyAsync(__func__, dst, max, src, n, kind, stream);
}

SIM_EXPORT aclError aclrtMemset(void* p, size_t max, int32_t value, size_t n) {
  SIM_CALL("%p, %zu", p, n);
  if (aclError error = checkFill(__func__, p, max, n)) return error;
  if (aclError error = refuseInCapture("a synchronous memset")) return error;
  return fillNow(__func__, p, value, n);
}

SIM_EXPORT aclError aclrtMemsetAsync(void* p, size_t max, int32_t value, size_t n, aclrtStream handle) {
  SIM_CALL("%p, %zu", p, n);
  SIM_REQUIRE_STREAM(stream, handle);
  if (aclError error = checkFill(__func__, p, max, n)) return error;
  return submit(stream, {"memset", [=] { return fillNow("aclrtMemsetAsync", p, value, n); }});
}

SIM_EXPORT aclError aclrtCmoAsync(void*, size_t, aclrtCmoType, aclrtStream) { SIM_NO_EFFECT(); }  // a cache hint
