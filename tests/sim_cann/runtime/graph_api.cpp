// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include "device.h"
#include "graph.h"

namespace sim {
namespace {

struct Graphs {
  std::mutex mutex;
  std::map<void*, GraphPtr> byHandle;
  std::map<void*, std::shared_ptr<TaskGroup>> groups;
};
Graphs& graphs() {
  static auto* instance = new Graphs;
  return *instance;
}

std::atomic<int> globalCaptures{0};
thread_local int localCaptures = 0;
thread_local aclmdlRICaptureMode threadMode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

GraphPtr findGraph(aclmdlRI handle) {
  std::lock_guard guard(graphs().mutex);
  auto it = graphs().byHandle.find(handle);
  return it == graphs().byHandle.end() ? nullptr : it->second;
}

bool isCapturing(const Graph& graph) {
  std::lock_guard guard(captureMutex());
  return graph.origin != nullptr;
}

void countCapture(const Graph& graph, int change) {
  if (graph.mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL) globalCaptures += change;
  if (graph.mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED) localCaptures += change;
}

// Does everything that was captured on other streams come before the end of the capture?
bool joined(const Graph& graph) {
  auto origin = graph.clocks.find(graph.origin.get());
  for (auto& [stream, clock] : graph.clocks) {
    if (stream == graph.origin.get()) continue;
    auto own = clock.find(stream);
    if (own == clock.end()) continue;
    if (origin == graph.clocks.end()) return false;
    auto known = origin->second.find(stream);
    if (known == origin->second.end() || known->second < own->second) return false;
  }
  return true;
}

}  // namespace

aclError refuseInCapture(const char* what) {
  bool refuse = threadMode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL && globalCaptures > 0;
  if (threadMode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED) refuse = refuse || localCaptures > 0;
  if (!refuse) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, "%s while a capture is under way", what);
}

}  // namespace sim
using namespace sim;

#define SIM_REQUIRE_GRAPH(graph, handle) \
  GraphPtr graph = findGraph(handle);    \
  SIM_REQUIRE(graph, "%s: %p is not a graph", __func__, (void*)handle)

SIM_EXPORT aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode) {
  SIM_CALL("%p, %d", handle, mode);
  SIM_REQUIRE_STREAM(stream, handle);
  if (!handle) return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the default stream cannot capture");
  std::lock_guard guard(captureMutex());
  if (stream->capture) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream captures already");
  stream->capture = std::make_shared<Graph>(stream, mode);
  countCapture(*stream->capture, 1);
  // Known from now on: torch_npu asks for the id while it captures.
  std::lock_guard table(graphs().mutex);
  graphs().byHandle[stream->capture.get()] = stream->capture;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus* status, aclmdlRI* graph) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  std::lock_guard guard(captureMutex());
  *status = !stream->capture           ? ACL_MODEL_RI_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED
                                       : ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
  if (graph) *graph = stream->capture.get();
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI* out) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  std::lock_guard guard(captureMutex());
  GraphPtr graph = stream->capture;
  if (!graph) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream does not capture");
  if (graph->origin != stream)
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "the capture began on stream %d", graph->origin->id);
  if (graph->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && graph->thread != std::this_thread::get_id())
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, "the capture began in another thread");
  countCapture(*graph, -1);
  const bool complete = joined(*graph);
  for (auto& member : graph->streams) {
    member->capture = nullptr;
    member->openGroup = nullptr;
  }
  releaseCapturedEvents(graph);
  graph->streams.clear();
  graph->clocks.clear();
  graph->origin = nullptr;
  *out = nullptr;
  std::lock_guard table(graphs().mutex);
  if (graph->invalid || !complete) graphs().byHandle.erase(graph.get());
  if (graph->invalid) return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "the capture was made invalid before");
  if (!complete) return fail(ACL_ERROR_RT_STREAM_UNJOINED, "another stream was captured and not waited for");
  *out = graph.get();
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  SIM_CALL("%d", *mode);
  std::swap(*mode, threadMode);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRIExecuteAsync(aclmdlRI handle, aclrtStream streamHandle) {
  SIM_CALL("%p, %p", handle, streamHandle);
  SIM_REQUIRE_STREAM(stream, streamHandle);
  SIM_REQUIRE_GRAPH(graph, handle);
  if (isCapturing(*graph)) return fail(ACL_ERROR_RT_MODEL_CAPTURED, "the graph is still being captured");
  return submit(stream, {"graph", [graph] { return graph->run(); }});
}

// An execution that is queued keeps what it needs.
SIM_EXPORT aclError aclmdlRIDestroy(aclmdlRI handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_GRAPH(found, handle);
  if (isCapturing(*found)) return fail(ACL_ERROR_RT_MODEL_CAPTURED, "the graph is still being captured");
  std::lock_guard guard(graphs().mutex);
  auto it = graphs().byHandle.find(handle);
  SIM_REQUIRE(it != graphs().byHandle.end(), "aclmdlRIDestroy: %p is not a graph", (void*)handle);
  for (auto group = graphs().groups.begin(); group != graphs().groups.end();)
    group = group->second->graph.lock() == it->second ? graphs().groups.erase(group) : std::next(group);
  graphs().byHandle.erase(it);
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRIGetId(aclmdlRI handle, uint32_t* id) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_GRAPH(graph, handle);
  *id = graph->id;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRIDebugPrint(aclmdlRI handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_GRAPH(graph, handle);
  for (auto& node : graph->nodes()) fprintf(stderr, "[sim graph] stream %d: %s\n", node.stream, node.name.c_str());
  return ACL_SUCCESS;
}

// Trace events, as torch_npu reads them; `ts` is only the position.
SIM_EXPORT aclError aclmdlRIDebugJsonPrint(aclmdlRI handle, const char* path, uint32_t) {
  SIM_CALL("%p, %s", handle, path);
  SIM_REQUIRE_GRAPH(graph, handle);
  std::ofstream file(path);
  file << "[";
  int position = 0;
  for (auto& node : graph->nodes()) {
    file << (position ? ",\n " : "") << "{\"name\": \"" << node.name << "\", \"ph\": \"X\", \"pid\": " << graph->id
         << ", \"tid\": " << node.stream << ", \"ts\": " << position << ", \"dur\": 1}";
    position++;
  }
  file << "]\n";
  return file ? ACL_SUCCESS : fail(ACL_ERROR_RT_FILE_WRITE, "aclmdlRIDebugJsonPrint: cannot write %s", path);
}

// ---- task groups: between UpdateBegin and UpdateEnd what is submitted replaces the group's tasks in their
// order
SIM_EXPORT aclError aclmdlRICaptureTaskGrpBegin(aclrtStream handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  std::lock_guard guard(captureMutex());
  if (!stream->capture) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream does not capture");
  if (stream->openGroup) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task group is open already");
  stream->openGroup = std::make_shared<TaskGroup>();
  stream->openGroup->graph = stream->capture;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRICaptureTaskGrpEnd(aclrtStream handle, aclrtTaskGrp* out) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  std::lock_guard guard(captureMutex());
  if (!stream->openGroup) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no task group is open");
  std::lock_guard table(graphs().mutex);
  *out = stream->openGroup.get();
  graphs().groups[*out] = std::move(stream->openGroup);
  stream->openGroup = nullptr;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream handle, aclrtTaskGrp group) {
  SIM_CALL("%p, %p", handle, group);
  SIM_REQUIRE_STREAM(stream, handle);
  std::lock_guard guard(captureMutex());
  std::lock_guard table(graphs().mutex);
  auto it = graphs().groups.find(group);
  SIM_REQUIRE(it != graphs().groups.end(), "aclmdlRICaptureTaskUpdateBegin: %p is not a task group", group);
  if (stream->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "the stream updates a group already");
  stream->updating = it->second;
  stream->updatePosition = 0;
  return ACL_SUCCESS;
}

SIM_EXPORT aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream handle) {
  SIM_CALL("%p", handle);
  SIM_REQUIRE_STREAM(stream, handle);
  std::lock_guard guard(captureMutex());
  if (!stream->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "the stream updates no group");
  const bool complete = stream->updatePosition == stream->updating->nodes.size();
  stream->updating = nullptr;
  if (!complete) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "the update has fewer tasks than the group");
  return ACL_SUCCESS;
}
