// SPDX-License-Identifier: Apache-2.0
//
// Tells when streams have passed a point.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "host_pool/device_backend.h"

namespace torch_offload::npu {

// The point is where the streams are when passed() is called first, or, for a stream that is being captured then, when
// it is called first after the capture.
class StreamFence {
 public:
  explicit StreamFence(const std::vector<StreamUse>& uses);
  StreamFence(const StreamFence&) = delete;
  StreamFence& operator=(const StreamFence&) = delete;

  // True once all streams are past it, or the runtime has gone down. Never waits. A call that fails is a warning and is
  // tried again the next time; until then the stream counts as not past it. Any thread.
  bool passed() noexcept;

 private:
  class Event;
  struct Point {
    StreamUse use;
    std::shared_ptr<Event> event;  // null until it is recorded
  };

  static bool is_past(Point& point);

  std::mutex mutex_;
  std::vector<Point> points_;
};

}  // namespace torch_offload::npu
