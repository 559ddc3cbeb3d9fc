// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include "task.h"

namespace sim {
namespace {

std::atomic<uint32_t> nextGraphId{1};

}  // namespace

std::mutex& captureMutex() {
  static auto* instance = new std::mutex;
  return *instance;
}

Graph::Graph(StreamPtr originStream, aclmdlRICaptureMode captureMode)
    : id(nextGraphId++), mode(captureMode), thread(std::this_thread::get_id()), origin(std::move(originStream)) {
  streams.insert(origin);
}

void Graph::append(Stream& stream, Task task) {
  clocks[&stream][&stream]++;
  std::lock_guard guard(mutex_);
  nodes_.push_back({task.name, std::make_shared<const std::function<aclError()>>(std::move(task.run)), stream.id});
  if (stream.openGroup) stream.openGroup->nodes.push_back(nodes_.size() - 1);
}

void Graph::replace(size_t node, Task task) {
  std::lock_guard guard(mutex_);
  nodes_.at(node).name = task.name;
  nodes_.at(node).run = std::make_shared<const std::function<aclError()>>(std::move(task.run));
}

std::vector<Graph::Node> Graph::nodes() {
  std::lock_guard guard(mutex_);
  return nodes_;
}

aclError Graph::run() {
  for (const Node& node : nodes()) {
    if (aclError code = (*node.run)()) return code;
    RunningTask* task = RunningTask::current();
    if (task && task->fault()) return ACL_SUCCESS;  // the stream finds the fault in the task
  }
  return ACL_SUCCESS;
}

aclError replaceInGroup(Stream& stream, Task task) {
  TaskGroup& group = *stream.updating;
  GraphPtr graph = group.graph.lock();
  if (!graph || stream.updatePosition >= group.nodes.size())
    return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "the update has more tasks than the group, or the graph is gone");
  graph->replace(group.nodes[stream.updatePosition++], std::move(task));
  return ACL_SUCCESS;
}

}  // namespace sim
