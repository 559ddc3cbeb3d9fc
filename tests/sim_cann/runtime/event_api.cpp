// SPDX-License-Identifier: Apache-2.0
// Events. Each record has a generation; a wait is for the one issued last at the time of the call.
#include <chrono>
#include <map>

#include "device.h"
#include "graph.h"
#include "stream.h"

namespace sim {
namespace {

double nowMs() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

class Event {
 public:
  explicit Event(uint32_t eventFlags) : flags(eventFlags) {}

  uint64_t issue() {
    std::lock_guard guard(mutex_);
    return ++issued_;
  }
  uint64_t issued() {
    std::lock_guard guard(mutex_);
    return issued_;
  }
  bool done() {
    std::lock_guard guard(mutex_);
    return done_ >= issued_;
  }
  // Of the latest record, if that has been reached.
  bool time(double* ms) {
    std::lock_guard guard(mutex_);
    *ms = timeMs_;
    return issued_ && done_ >= issued_;
  }
  void complete(uint64_t generation) {
    std::lock_guard guard(mutex_);
    if (generation > done_) {
      done_ = generation;
      timeMs_ = nowMs();
    }
    reached_.notify_all();
  }
  void wait(uint64_t generation) {
    std::unique_lock lock(mutex_);
    reached_.wait(lock, [&] { return done_ >= generation; });
  }

  const uint32_t flags;
  std::atomic<int> pendingWaits{0};
  // Recorded inside this capture, after so many tasks of its streams. Guarded by captureMutex().
  GraphPtr capture;
  CaptureClock clock;

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  uint64_t issued_ = 0, done_ = 0;
  double timeMs_ = 0;
};

using EventPtr = std::shared_ptr<Event>;  // tasks share it: destroying one that is still queued is safe

struct Events {
  std::mutex mutex;
  std::map<void*, EventPtr> byHandle;
};
Events& events() {
  static auto* instance = new Events;
  return *instance;
}

EventPtr findEvent(aclrtEvent handle) {
  std::lock_guard guard(events().mutex);
  auto it = events().byHandle.find(handle);
  return it == events().byHandle.end() ? nullptr : it->second;
}

aclError createEvent(aclrtEvent* out, uint32_t flags) {
  SIM_REQUIRE(out, "no place for the event");
  // The code must be this one as long as sharing events between processes is not simulated.
  if (flags & ACL_EVENT_IPC) return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "events between processes");
  SIM_REQUIRE_DEVICE(device);
  auto event = std::make_shared<Event>(flags);
  std::lock_guard guard(events().mutex);
  events().byHandle[event.get()] = event;
  *out = event.get();
  return ACL_SUCCESS;
}

aclError refuseIfCaptured(const char* what, const EventPtr& event) {
  std::lock_guard guard(captureMutex());
  if (!event->capture) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_EVENT_CAPTURED, "%s: the event was recorded inside a capture", what);
}

void joinClocks(CaptureClock& into, const CaptureClock& from) {
  for (auto& [stream, count] : from) into[stream] = std::max(into[stream], count);
}

}  // namespace

void releaseCapturedEvents(const GraphPtr& graph) {
  std::lock_guard guard(events().mutex);
  for (auto& [handle, event] : events().byHandle) {
    if (event->capture != graph) continue;
    event->capture = nullptr;
    event->clock.clear();
  }
}

}  // namespace sim
using namespace sim;

#define SIM_REQUIRE_EVENT(event, handle) \
  EventPtr event = findEvent(handle);    \
  SIM_REQUIRE(event, "%s: %p is not an event", __func__, (void*)handle)

SIM_EXPORT aclError aclrtCreateEvent(aclrtEvent* out) {
  SIM_CALL();
  return createEvent(out, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE);
}
SIM_EXPORT aclError aclrtCreateEventWithFlag(aclrtEvent* out, uint32_t flag) {
  SIM_CALL("%#x", flag);
  return createEvent(out, flag);
}
SIM_EXPORT aclError aclrtCreateEventExWithFlag(aclrtEvent* out, uint32_t flag) {
  SIM_CALL("%#x", flag);
  return createEvent(out, flag);
}

SIM_EXPORT aclError aclrtDestroyEvent(aclrtEvent handle) {
  SIM_CALL("%p", handle);
  std::lock_guard guard(events().mutex);
  SIM_REQUIRE(events().byHandle.erase(handle), "aclrtDestroyEvent: %p is not an event", handle);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream streamHandle) {
  SIM_CALL("%p, %p", handle, streamHandle);
  SIM_REQUIRE_EVENT(event, handle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  {
    std::lock_guard guard(captureMutex());
    event->capture = stream->capture;
    if (stream->capture) {
      event->clock = stream->capture->clocks[stream.get()];
      return ACL_SUCCESS;
    }
  }
  const uint64_t generation = event->issue();
  aclError error = submit(stream, {"record",
                                   [=] {
                                     event->complete(generation);
                                     return ACL_SUCCESS;
                                   },
                                   true});
  if (error) event->complete(generation);
  return error;
}

SIM_EXPORT aclError aclrtStreamWaitEvent(aclrtStream streamHandle, aclrtEvent handle) {
  SIM_CALL("%p, %p", streamHandle, handle);
  SIM_REQUIRE_EVENT(event, handle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  {
    std::lock_guard guard(captureMutex());
    if (event->capture) {
      if (stream->capture && stream->capture != event->capture)
        return fail(ACL_ERROR_RT_CAPTURE_DEPENDENCY, "the event belongs to another capture");
      stream->capture = event->capture;  // the stream joins the capture
      stream->capture->streams.insert(stream);
      joinClocks(stream->capture->clocks[stream.get()], event->clock);
      return ACL_SUCCESS;
    }
    if (stream->capture)
      return fail(ACL_ERROR_RT_CAPTURE_DEPENDENCY, "a capturing stream waits for an event recorded outside");
  }
  const uint64_t generation = event->issued();
  event->pendingWaits++;
  aclError error = submit(stream, {"wait",
                                   [=] {
                                     event->wait(generation);
                                     event->pendingWaits--;
                                     return ACL_SUCCESS;
                                   },
                                   true});
  if (error) event->pendingWaits--;
  return error;
}

// Clears a device flag that the simulator does not have: generations take its place.
SIM_EXPORT aclError aclrtResetEvent(aclrtEvent handle, aclrtStream streamHandle) {
  SIM_CALL("%p, %p", handle, streamHandle);
  SIM_REQUIRE_EVENT(event, handle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtSynchronizeEvent(aclrtEvent handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_EVENT(event, handle);
  if (aclError error = refuseIfCaptured(__func__, event)) return error;
  event->wait(event->issued());
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_EVENT(event, handle);
  if (aclError error = refuseIfCaptured(__func__, event)) return error;
  *status = event->done() ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus* status) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_EVENT(event, handle);
  *status = event->pendingWaits ? ACL_EVENT_WAIT_STATUS_NOT_READY : ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtEventElapsedTime(float* ms, aclrtEvent first, aclrtEvent second) {
  SIM_CALL("%p, %p", first, second);
  SIM_REQUIRE_EVENT(a, first);
  SIM_REQUIRE_EVENT(b, second);
  double begin, end;
  if (!(a->flags & b->flags & ACL_EVENT_TIME_LINE) || !a->time(&begin) || !b->time(&end))
    return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "aclrtEventElapsedTime: no time, or not reached yet");
  if (end < begin) return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "aclrtEventElapsedTime: in the wrong order");
  *ms = static_cast<float>(end - begin);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclrtEventGetTimestamp(aclrtEvent handle, uint64_t* us) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_EVENT(event, handle);
  double ms;
  if (!event->time(&ms)) return fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, "the event has not been reached");
  *us = static_cast<uint64_t>(ms * 1000);
  return ACL_SUCCESS;
}
