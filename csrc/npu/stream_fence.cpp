// SPDX-License-Identifier: Apache-2.0
#include "npu/stream_fence.h"

#include <c10/util/Exception.h>
#include <torch_npu/csrc/core/npu/NPUGuard.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

#include <atomic>
#include <exception>
#include <utility>

#include "npu/acl_api.h"

namespace torch_offload::npu {
namespace {

constexpr const char* kOperator = "offload::record_event";  // in profiles

aclrtEvent create_event() {
  aclrtEvent event = nullptr;
  if (const auto create = OFFLOAD_ACL_OPTIONAL(aclrtCreateEventExWithFlag)) {
    check_acl("aclrtCreateEventExWithFlag", create(&event, ACL_EVENT_SYNC));
  } else {
    OFFLOAD_ACL(aclrtCreateEventWithFlag, &event, ACL_EVENT_SYNC);
  }
  return event;
}

bool is_idle(c10::DeviceIndex device, aclrtStream stream) {
  (void)c10_npu::getCurrentNPUStream(device).stream();  // hands over what torch_npu's task queue holds
  aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
  OFFLOAD_ACL(aclrtStreamQuery, stream, &status);
  return status == ACL_STREAM_STATUS_COMPLETE;
}

}  // namespace

// One record of an event. torch_npu's own events take no streams from outside of torch_npu.
class StreamFence::Event {
 public:
  Event() : handle_(create_event()) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  ~Event() {
    if (!runtime_is_up()) return;
    aclError code = aclrtDestroyEvent(handle_);
    if (code != ACL_SUCCESS) code = aclrtDestroyEvent(handle_);
    if (code != ACL_SUCCESS) {
      TORCH_WARN("torch_offload: aclrtDestroyEvent: expected success, got code ", code, ": ", recent_acl_message());
    }
  }

  // Runs behind what torch_npu's task queue holds, possibly on its thread. It never fails there: that would stop
  // everything that comes after.
  int record(aclrtStream stream) {
    code_ = aclrtRecordEvent(handle_, stream);
    state_ = code_ == ACL_SUCCESS ? State::kRecorded : State::kFailed;
    return ACL_SUCCESS;
  }

  bool is_past() const {
    if (state_ == State::kQueued) return false;
    check_acl("aclrtRecordEvent", code_);
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    OFFLOAD_ACL(aclrtQueryEventStatus, handle_, &status);
    return status == ACL_EVENT_RECORDED_STATUS_COMPLETE;
  }

  bool failed() const { return state_ == State::kFailed; }

 private:
  enum class State { kQueued, kRecorded, kFailed };

  const aclrtEvent handle_;
  aclError code_ = ACL_SUCCESS;  // written before `state_`
  std::atomic<State> state_{State::kQueued};
};

StreamFence::StreamFence(const std::vector<StreamUse>& uses) {
  for (const StreamUse& use : uses) points_.push_back({use, nullptr});
}

bool StreamFence::is_past(Point& point) {
  const auto device = static_cast<c10::DeviceIndex>(point.use.device);
  const c10_npu::NPUGuard guard(device);  // finalizers may have no device yet
  const RelaxedCapture relaxed;
  if (point.event == nullptr) {
    if (captured_graph(point.use.stream) != nullptr) return false;
    if (is_idle(device, point.use.stream)) return true;
    auto event = std::make_shared<Event>();
    at_npu::native::OpCommand::RunOpApiV2(
        kOperator, [event, stream = point.use.stream]() -> int { return event->record(stream); });
    point.event = std::move(event);
  }
  const std::shared_ptr<Event> event = point.event;
  if (event->failed()) point.event = nullptr;  // the next call records anew
  if (!event->is_past()) return false;
  point.event = nullptr;  // goes while this thread has the device
  return true;
}

bool StreamFence::passed() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!runtime_is_up()) return true;
  size_t left = 0;
  for (Point& point : points_) {
    bool past = false;
    try {
      past = is_past(point);
    } catch (const std::exception& error) {
      TORCH_WARN("torch_offload: a block of a HostPool stays in use for now: ", first_line(error));
    }
    if (!past) std::swap(points_[left++], point);
  }
  points_.resize(left);
  return left == 0;
}

}  // namespace torch_offload::npu
