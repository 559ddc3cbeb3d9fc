// SPDX-License-Identifier: Apache-2.0
// Captured graphs ("model running instances", aclmdlRI*). While a stream captures, submit() appends to the
// graph instead of the queue; an execution is one task that runs the list in the order of issue.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "stream.h"

namespace sim {

// How many tasks of each stream come before a point of the capture.
using CaptureClock = std::map<const Stream*, uint64_t>;

class Graph {
 public:
  struct Node {
    std::string name;
    std::shared_ptr<const std::function<aclError()>> run;
    int stream;
  };

  Graph(StreamPtr origin, aclmdlRICaptureMode mode);

  void append(Stream& stream, Task task);
  void replace(size_t node, Task task);
  std::vector<Node> nodes();
  aclError run();

  const uint32_t id;
  const aclmdlRICaptureMode mode;
  const std::thread::id thread;

  // Of the capture, guarded by captureMutex(); empty afterwards.
  StreamPtr origin;
  std::set<StreamPtr> streams;
  std::map<const Stream*, CaptureClock> clocks;
  bool invalid = false;

 private:
  std::mutex mutex_;
  std::vector<Node> nodes_;
};
using GraphPtr = std::shared_ptr<Graph>;

// Tasks of a graph whose arguments can be replaced later.
struct TaskGroup {
  std::weak_ptr<Graph> graph;
  std::vector<size_t> nodes;
};

// Guards the capture state of streams, events and graphs. Taken before any other mutex of theirs.
std::mutex& captureMutex();

// Puts the task in the place of the next one of the group that the stream is updating. With captureMutex().
aclError replaceInGroup(Stream& stream, Task task);

// An error if synchronous copies are refused because a capture is under way.
aclError refuseInCapture(const char* what);

// Forgets that events were recorded inside this capture (event_api.cpp). With captureMutex().
void releaseCapturedEvents(const GraphPtr& graph);

}  // namespace sim
