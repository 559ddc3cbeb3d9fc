// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <map>
#include <set>

#include "device.h"
#include "graph.h"
#include "memory.h"
#include "settings.h"
#include "stream.h"

namespace sim {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<void*, StreamPtr> byHandle;
  std::map<int, StreamPtr> defaults;  // by device
  int nextId = 1;
};
Streams& streams() {
  static auto* instance = new Streams;
  return *instance;
}

aclError createStream(aclrtStream* out, uint32_t flags) {
  SIM_REQUIRE(out, "no place for the stream");
  SIM_REQUIRE_DEVICE(device);
  std::lock_guard guard(streams().mutex);
  auto stream = std::make_shared<Stream>(streams().nextId++, device, flags);
  streams().byHandle[stream.get()] = stream;
  *out = stream.get();
  return ACL_SUCCESS;
}

aclError destroyStream(aclrtStream handle) {
  StreamPtr stream;
  {
    std::lock_guard guard(streams().mutex);
    auto it = streams().byHandle.find(handle);
    SIM_REQUIRE(it != streams().byHandle.end(), "%p is not a stream", handle);
    stream = it->second;
    std::lock_guard capture(captureMutex());
    if (stream->capture) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "destroying a stream that captures");
    streams().byHandle.erase(it);
  }
  if (inForkedChild())
    new StreamPtr(stream);  // never destroyed: its thread, which waits in it, does not exist in this process
  else
    stream->join();
  return ACL_SUCCESS;
}

// Waiting for a stream that captures makes the capture invalid.
aclError refuseIfCapturing(const char* what, const StreamPtr& stream) {
  std::lock_guard guard(captureMutex());
  if (!stream->capture) return ACL_SUCCESS;
  stream->capture->invalid = true;
  return fail(ACL_ERROR_RT_STREAM_CAPTURED, "%s of stream %d, which captures", what, stream->id);
}

aclError synchronizeStream(const char* function, aclrtStream handle, int timeoutMs) {
  SIM_REQUIRE_STREAM(stream, handle);
  if (aclError error = refuseIfCapturing(function, stream)) return error;
  return stream->drain(timeoutMs);
}

}  // namespace

StreamPtr findStream(aclrtStream handle) {
  int device = handle ? 0 : currentDevice();
  if (device < 0) return nullptr;
  std::lock_guard guard(streams().mutex);
  if (handle) {
    auto it = streams().byHandle.find(handle);
    return it == streams().byHandle.end() ? nullptr : it->second;
  }
  StreamPtr& slot = streams().defaults[device];
  if (!slot) slot = std::make_shared<Stream>(0, device, 0);
  return slot;
}

std::vector<StreamPtr> streamsOf(int device) {
  std::lock_guard guard(streams().mutex);
  std::vector<StreamPtr> found;
  for (auto& [handle, stream] : streams().byHandle)
    if (device == kAllDevices || stream->device == device) found.push_back(stream);
  for (auto& [id, stream] : streams().defaults)
    if (device == kAllDevices || id == device) found.push_back(stream);
  return found;
}

aclError synchronizeDevice(int timeoutMs) {
  SIM_REQUIRE_DEVICE(device);
  std::vector<StreamPtr> all = streamsOf(device);
  for (auto& stream : all)
    if (aclError error = refuseIfCapturing("synchronize of the device", stream)) return error;
  aclError result = ACL_SUCCESS;
  for (auto& stream : all)
    if (aclError error = stream->drain(timeoutMs)) result = error;
  return result;
}

}  // namespace sim
using namespace sim;

SIM_EXPORT aclError aclrtCreateStream(aclrtStream* out) {
  SIM_CALL();
  return createStream(out, 0);
}
SIM_EXPORT aclError aclrtCreateStreamWithConfig(aclrtStream* out, uint32_t priority, uint32_t flag) {
  SIM_CALL("%u, %#x", priority, flag);
  return createStream(out, flag);
}
SIM_EXPORT aclError aclrtDestroyStream(aclrtStream handle) {
  SIM_CALL("%p", handle);
  return destroyStream(handle);
}
SIM_EXPORT aclError aclrtDestroyStreamForce(aclrtStream handle) {
  SIM_CALL("%p", handle);
  return destroyStream(handle);
}

SIM_EXPORT aclError aclrtSynchronizeStream(aclrtStream handle) {
  SIM_CALL("%p", handle);
  return synchronizeStream(__func__, handle, -1);
}
SIM_EXPORT aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t ms) {
  SIM_CALL("%p, %d", handle, ms);
  return synchronizeStream(__func__, handle, ms);
}
SIM_EXPORT aclError aclrtSynchronizeDevice(void) {
  SIM_CALL();
  return synchronizeDevice(-1);
}
SIM_EXPORT aclError aclrtSynchronizeDeviceWithTimeout(int32_t ms) {
  SIM_CALL("%d", ms);
  return synchronizeDevice(ms);
}

SIM_EXPORT aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  if (aclError error = refuseIfCapturing("query", stream)) return error;
  *status = stream->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtStreamGetId(aclrtStream handle, int32_t* id) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  *id = stream->id;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtSetStreamFailureMode(aclrtStream handle, uint64_t mode) {
  SIM_CALL("%p, %lu", handle, mode);
  SIM_REQUIRE_STREAM(stream, handle);
  SIM_REQUIRE(mode <= ACL_STOP_ON_FAILURE, "failure mode %lu", mode);
  stream->failureMode = mode;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtSetStreamOverflowSwitch(aclrtStream handle, uint32_t flag) {
  SIM_CALL("%p, %u", handle, flag);
  SIM_REQUIRE_STREAM(stream, handle);
  stream->overflowSwitch = flag;
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclrtGetStreamOverflowSwitch(aclrtStream handle, uint32_t* flag) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  *flag = stream->overflowSwitch;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtSetStreamAttribute(aclrtStream handle, aclrtStreamAttr attribute,
                                            aclrtStreamAttrValue* value) {
  SIM_CALL("%p, %d", handle, attribute);
  SIM_REQUIRE_STREAM(stream, handle);
  switch (attribute) {
    case ACL_STREAM_ATTR_FAILURE_MODE:
      stream->failureMode = value->failureMode;
      return ACL_SUCCESS;
    case ACL_STREAM_ATTR_FLOAT_OVERFLOW_CHECK:
      stream->overflowSwitch = value->overflowSwitch;
      return ACL_SUCCESS;
    case ACL_STREAM_ATTR_USER_CUSTOM_TAG:
    case ACL_STREAM_ATTR_CACHE_OP_INFO:
    case ACL_STREAM_ATTR_PRIORITY:
      return ACL_SUCCESS;  // for profiling and scheduling
    default:
      return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtSetStreamAttribute: attribute %d", attribute);
  }
}

// ---- host functions. They run on the stream's thread; the thread that is subscribed for callbacks has
// nothing to do.
SIM_EXPORT aclError aclrtLaunchHostFunc(aclrtStream handle, aclrtHostFunc function, void* argument) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  return submit(stream, {"host function", [=] {
                           function(argument);
                           return ACL_SUCCESS;
                         }});
}

SIM_EXPORT aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType,
                                        aclrtStream handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  if (!stream->subscribed) return fail(ACL_ERROR_RT_STREAM_NO_CB_REG, "no thread is subscribed to this stream");
  return submit(stream, {"callback", [=] {
                           function(argument);
                           return ACL_SUCCESS;
                         }});
}

SIM_EXPORT aclError aclrtSubscribeReport(uint64_t thread, aclrtStream handle) {
  SIM_CALL("%lu, %p", thread, handle);
  SIM_REQUIRE_STREAM(stream, handle);
  stream->subscribed = true;
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclrtUnSubscribeReport(uint64_t thread, aclrtStream handle) {
  SIM_CALL("%lu, %p", thread, handle);
  SIM_REQUIRE_STREAM(stream, handle);
  stream->subscribed = false;
  return ACL_SUCCESS;
}
SIM_EXPORT aclError aclrtProcessReport(int32_t ms) {
  SIM_CALL("%d", ms);
  std::this_thread::sleep_for(std::chrono::milliseconds(ms > 0 ? ms : 10));
  return ACL_SUCCESS;
}

// ---- device words (external events of torch_npu)
SIM_EXPORT aclError aclrtValueWrite(void* p, uint64_t value, uint32_t, aclrtStream handle) {
  SIM_CALL("%p, %lu", p, value);
  SIM_REQUIRE_STREAM(stream, handle);
  return submit(stream, {"value write", [=]() -> aclError {
                           auto* word = reinterpret_cast<uint64_t*>(Memory::get().translate(p, 8, true));
                           SIM_REQUIRE(word, "aclrtValueWrite: %s", Memory::get().describe(p, 8).c_str());
                           __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
                           return ACL_SUCCESS;
                         }});
}

SIM_EXPORT aclError aclrtValueWait(void* p, uint64_t value, uint32_t flag, aclrtStream handle) {
  SIM_CALL("%p, %lu, %u", p, value, flag);
  SIM_REQUIRE_STREAM(stream, handle);
  auto reached = [=](uint64_t current) {
    switch (flag) {
      case ACL_STREAM_WAIT_VALUE_GEQ:
        return current >= value;
      case ACL_STREAM_WAIT_VALUE_EQ:
        return current == value;
      case ACL_STREAM_WAIT_VALUE_AND:
        return (current & value) != 0;
      default:
        return ~(current | value) != 0;
    }
  };
  return submit(stream, {"value wait", [=]() -> aclError {
                           while (true) {
                             auto* word = reinterpret_cast<uint64_t*>(Memory::get().translate(p, 8, false));
                             SIM_REQUIRE(word, "aclrtValueWait: %s", Memory::get().describe(p, 8).c_str());
                             if (reached(__atomic_load_n(word, __ATOMIC_SEQ_CST))) return ACL_SUCCESS;
                             std::this_thread::sleep_for(std::chrono::microseconds(20));
                           }
                         }});
}
