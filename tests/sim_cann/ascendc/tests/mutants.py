# SPDX-License-Identifier: Apache-2.0
"""Seeded faults in the kernels: each changes one place of op_kernel/ and must make the tests fail.

A fault whose text is not found exactly once in the source is an error: the list has to follow the kernel.
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent
ROOT = MODEL.parents[2]
KERNEL = ROOT / "op_kernel"

TRANSFER, TABLES, FRAME, INDEX, WEIGHTS, POINTERS, PLANNER, PLAN_FLAGS, TOKENS, MISSES, LIST = (
    "sparse_copy_transfer.h",
    "sparse_copy_tables.h",
    "sparse_copy_kernel.h",
    "sparse_copy.h",
    "sparse_copy_weights.h",
    "sparse_copy_ptrs.h",
    "plan_residency.h",
    "plan_residency_common.h",
    "plan_residency_tokens.h",
    "plan_residency_misses.h",
    "plan_residency_list.h",
)

# name: (file, text, replacement)
MUTANTS = {
    # Missing synchronisation.
    "store_does_not_await_load": (
        TRANSFER,
        "        AscendC::SetFlag<AscendC::HardEvent::MTE2_MTE3>(loaded_[current_]);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_MTE3>(loaded_[current_]);\n",
        "",
    ),
    "slot_reloaded_before_its_store": (
        TRANSFER,
        "        if (inUse_[current_]) {\n            AscendC::WaitFlag",
        "        if (false) {\n            AscendC::WaitFlag",
    ),
    "flags_left_set_at_the_end": (TRANSFER, "            if (inUse_[i]) {", "            if (i > 0 && inUse_[i]) {"),
    "table_read_before_it_is_there": (
        TABLES,
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_[current_]);\n",
        "",
    ),
    "table_reloaded_while_it_is_read": (
        TABLES,
        "            AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(released_[next_]);\n"
        "            mustWait_[next_] = false;\n",
        "",
    ),
    "arguments_read_before_they_are_there": (
        FRAME,
        "        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched);\n",
        "",
    ),
    "status_stored_before_it_is_written": (
        INDEX,
        "        AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(statusWritten_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(statusWritten_);\n",
        "",
    ),
    # Wrong places.
    "row_offset_in_32_bits": (
        INDEX,
        "static_cast<uint64_t>(src) * component_.srcStride",
        "static_cast<uint32_t>(static_cast<uint32_t>(src) * component_.srcStride)",
    ),
    "destination_takes_the_source_stride": (
        INDEX,
        "static_cast<uint64_t>(dst) * component_.dstStride",
        "static_cast<uint64_t>(dst) * component_.srcStride",
    ),
    "one_byte_too_many_stored": (
        TRANSFER,
        "            StoreBlocks(first_, slot_[offset_], blocks, bytes, gap);",
        "            StoreBlocks(first_, slot_[offset_], blocks, bytes + (blocks == 1), gap);",
    ),
    "rows_overlap_in_the_slot": (
        FRAME,
        "used += static_cast<uint32_t>(RoundUp(bytes, UB_BLOCK));",
        "used += static_cast<uint32_t>(bytes / UB_BLOCK * UB_BLOCK);",
    ),
    "slots_overlap": (
        TRANSFER,
        "GetWithOffset<uint8_t>(slotBytes_, current_ * slotBytes_)",
        "GetWithOffset<uint8_t>(slotBytes_, current_ * (slotBytes_ - UB_BLOCK))",
    ),
    "table_buffers_overlap": (TABLES, "(buffer * TABLES + table) * tableBytes_", "table * tableBytes_"),
    "table_pitch_ignored": (
        TABLES,
        "local * tables_[table].pitch / sizeof(uint32_t)",
        "local * tables_[table].entryBytes / sizeof(uint32_t)",
    ),
    "table_read_beyond_its_end": (
        TABLES,
        "(entries - 1) * table.pitch + table.entryBytes",
        "entries * table.pitch + table.entryBytes",
    ),
    "unequal_gaps_in_one_transfer": (TRANSFER, "(blocks_ == 1 || gap == gap_)", "(blocks_ == 1 || gap >= gap_)"),
    "unequal_lengths_in_one_transfer": (TRANSFER, "bytes != bytes_ || ", ""),
    "odd_rows_joined_in_the_slot": (TRANSFER, "gap == 0 && bytes % UB_BLOCK == 0", "gap == 0"),
    # Parts of the work forgotten or done twice.
    "tail_of_the_entries_ignored": (
        INDEX,
        "{EvenCut(entries, cores, core + 1), 0}}",
        "{entries / cores * (core + 1), 0}}",
    ),
    "tail_of_a_row_ignored": (
        FRAME,
        "while (cursor.done < row.bytes) {",
        "while (cursor.done + LINE <= row.bytes || cursor.done == 0) {",
    ),
    "last_component_ignored": (
        FRAME,
        "while (cursor.item < form_.Items()) {\n            for",
        "while (cursor.item < 1) {\n            for",
    ),
    "cut_rows_moved_whole_by_both_cores": (FRAME, "                    Trim(first + cursor.entry, row);\n", ""),
    "cut_of_the_two_cores_differs": (
        FRAME,
        "uint64_t begin = entry == share_.begin.entry ? CutIn(row, share_.begin.byte) : 0;",
        "uint64_t begin = entry == share_.begin.entry ? Min(row.bytes, CutIn(row, share_.begin.byte) + 1) : 0;",
    ),
    "last_piece_of_the_tables_ignored": (
        FRAME,
        "        while (first < end) {",
        "        while (first + pieceEntries < end) {",
    ),
    # The contract of values.
    "count_not_clamped": (
        FRAME,
        "            form_.RecordClampedCount(count);\n            return capacity;",
        "            form_.RecordClampedCount(count);\n            return static_cast<uint64_t>(count);",
    ),
    "negative_count_not_clamped": (FRAME, "if (count < 0) {", "if (false) {"),
    "negative_destination_not_skipped": (INDEX, "if (src < 0 || dst < 0) {", "if (src < 0) {"),
    "source_bound_off_by_one": (
        INDEX,
        "static_cast<uint64_t>(src) >= tiling_.srcRows",
        "static_cast<uint64_t>(src) > tiling_.srcRows",
    ),
    "destination_bound_ignored": (INDEX, " || static_cast<uint64_t>(dst) >= tiling_.dstRows", ""),
    "skipped_after_the_range_check": (
        INDEX,
        "        if (src < 0 || dst < 0) {\n            return EntryState::SKIP;\n        }\n"
        "        if (static_cast<uint64_t>(src) >= tiling_.srcRows",
        "        if (static_cast<uint64_t>(src) >= tiling_.srcRows",
    ),
    "entry_counted_by_both_cores": (
        FRAME,
        "if (entry == share_.begin.entry && share_.begin.byte != 0) {",
        "if (false) {",
    ),
    "status_of_another_core": (INDEX, "core_ * SPARSE_COPY_STATUS_PITCH", "core_ / 2 * SPARSE_COPY_STATUS_PITCH"),
    # Shares by weight, and the pointer form.
    "scratch_loaded_while_it_is_read": (
        WEIGHTS,
        "        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(read_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(read_);\n",
        "",
    ),
    "vector_does_not_await_the_load": (
        WEIGHTS,
        "        AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(loaded_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(loaded_);\n",
        "",
    ),
    "weights_reloaded_under_the_vector_unit": (
        WEIGHTS,
        "        AscendC::SetFlag<AscendC::HardEvent::V_MTE2>(free_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::V_MTE2>(free_);\n",
        "",
    ),
    "sums_read_before_they_are_there": (
        WEIGHTS,
        "        AscendC::SetFlag<AscendC::HardEvent::V_S>(summed_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::V_S>(summed_);\n",
        "",
    ),
    "vector_barrier_forgotten": (
        WEIGHTS,
        "words);\n        AscendC::PipeBarrier<PIPE_V>();\n        uint32_t whole",
        "words);\n        uint32_t whole",
    ),
    "second_table_not_weighed": (WEIGHTS, "bool both = a.entryBytes != 0 && b.entryBytes != 0;", "bool both = false;"),
    "weights_of_the_tail_ignored": (WEIGHTS, "if (words % REPEAT_WORDS != 0) {", "if (false) {"),
    "wrong_half_of_the_words": (
        WEIGHTS,
        "static constexpr uint64_t ODD = ~EVEN;",
        "static constexpr uint64_t ODD = EVEN;",
    ),
    "place_of_the_wrong_block": (INDEX, "wanted - before;", "wanted - before + 1;"),
    "sample_fetch_not_dropped": (FRAME, "if (weigh && !IsEmpty()) {", "if (false) {"),
    "null_destination_not_refused": (POINTERS, " || row.dst == 0", ""),
    "negative_length_not_refused": (POINTERS, "if (bytes < 0 || row.src == 0", "if (row.src == 0"),
    "first_refused_off_by_one": (
        POINTERS,
        "static_cast<int64_t>(record.firstBad) - 1",
        "static_cast<int64_t>(record.firstBad)",
    ),
    "records_of_some_cores_forgotten": (
        POINTERS,
        "for (uint32_t core = 0; core < arguments.cores; ++core) {",
        "for (uint32_t core = 1; core < arguments.cores; ++core) {",
    ),
    "status_without_gaps": (
        POINTERS,
        "arguments.status + i * arguments.statusStride",
        "arguments.status + i * sizeof(int64_t)",
    ),
    "sum_stored_before_it_is_written": (
        POINTERS,
        "    AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(written);\n"
        "    AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(written);\n",
        "",
    ),
    "records_read_before_they_are_there": (
        POINTERS,
        "        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched);\n",
        "",
    ),
    "long_entries_not_shared": (
        POINTERS,
        "return {first + local, local < inBlock ? left : 0};",
        "return {first + local, 0};",
    ),
    "every_core_records_the_count": (INDEX, "countClamped_ = core_ == 0;", "countClamped_ = true;"),
    # plan_residency.
    "state_read_before_it_is_there": (
        PLANNER,
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_);\n        request_",
        "        request_",
    ),
    "state_loaded_while_it_is_read": (
        PLANNER,
        "        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(free_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(free_);\n        wanted_",
        "        wanted_",
    ),
    "plan_stored_before_it_is_written": (
        PLAN_FLAGS,
        "        AscendC::SetFlag<AscendC::HardEvent::S_MTE3>(written_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::S_MTE3>(written_);\n",
        "",
    ),
    "plan_changed_while_it_is_stored": (
        PLAN_FLAGS,
        "        AscendC::SetFlag<AscendC::HardEvent::MTE3_S>(stored_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE3_S>(stored_);\n",
        "",
    ),
    "fill_not_awaited": (
        PLAN_FLAGS,
        "        AscendC::SetFlag<AscendC::HardEvent::V_S>(done_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::V_S>(done_);\n",
        "",
    ),
    "fill_does_not_await_the_scalar_unit": (
        PLAN_FLAGS,
        "        AscendC::SetFlag<AscendC::HardEvent::S_V>(before_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::S_V>(before_);\n",
        "",
    ),
    "blocks_read_before_they_are_there": (
        MISSES,
        "        AscendC::SetFlag<AscendC::HardEvent::MTE2_S>(fetched_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_);\n",
        "",
    ),
    "blocks_loaded_while_they_are_read": (
        MISSES,
        "        AscendC::SetFlag<AscendC::HardEvent::S_MTE2>(free_);\n"
        "        AscendC::WaitFlag<AscendC::HardEvent::S_MTE2>(free_);\n",
        "",
    ),
    "repeated_token_loaded_twice": (TOKENS, "            slots_.SetValue(position, REPEATED - head);\n", ""),
    "repeated_token_of_the_wrong_position": (
        PLANNER,
        "slots_.GetValue(StepTokens::REPEATED - slot)",
        "slots_.GetValue((StepTokens::REPEATED - slot) / 2)",
    ),
    "probing_stops_at_the_first_place": (
        TOKENS,
        "head >= 0 && tokens_.GetValue(head) != token;",
        "head >= 0 && tokens_.GetValue(head) != token && false;",
    ),
    "token_limit_off_by_one": (TOKENS, "if (token >= limit_) {", "if (token > limit_) {"),
    "only_the_first_piece_of_topk": (TOKENS, "first < count_;) {", "first == 0;) {"),
    "unstable_tokens_trusted": (PLANNER, "if (token >= stable) {", "if (token > stable) {"),
    "emptied_slots_not_stored": (
        PLANNER,
        "            isChanged_ = true;\n            return false;",
        "            return false;",
    ),
    "another_requests_slots_trusted": (
        PLANNER,
        "isFresh_ = Number(OWNER, sizeof(int64_t)) != request_;",
        "isFresh_ = Number(OWNER, sizeof(int64_t)) < 0;",
    ),
    "request_ids_cut_to_32_bits": (
        PLANNER,
        "isFresh_ = Number(OWNER, sizeof(int64_t)) != request_;",
        "isFresh_ = static_cast<int32_t>(Number(OWNER, sizeof(int64_t))) != static_cast<int32_t>(request_);",
    ),
    "owner_not_stored": (
        PLANNER,
        "        if (isFresh_) {\n            StoreBlocks(",
        "        if (false) {\n            StoreBlocks(",
    ),
    "more_tokens_than_slots_not_refused": (
        PLANNER,
        "if (wanted_.Distinct() > t_.slotCount) {",
        "if (wanted_.Distinct() > t_.slotCount + 1) {",
    ),
    "order_not_checked": (PLANNER, "slot < 0 || slot >= static_cast<int32_t>(t_.slotCount)", "slot < 0"),
    "loaded_slots_stay_where_they_were": (
        PLANNER,
        "            rest_.SetValue(word, static_cast<int32_t>(rest));\n",
        "",
    ),
    "newest_slots_loaded": (PLANNER, "rest & (~rest + 1)", "rest & (1u << 31) ? 1u << 31 : rest & (~rest + 1)"),
    "hits_become_the_oldest": (PLANNER, "StoreSlots(lru, 0, restCount_);", "StoreSlots(lru, usedAt_, hits_);"),
    "victims_that_the_step_reads": (
        PLANNER,
        "rest_.SetValue(word, static_cast<int32_t>(~used));",
        "rest_.SetValue(word, -1);",
    ),
    "parts_of_the_order_overlap": (PLANNER, "usedAt_ = loadedAt_ + Aligned(misses_);", "usedAt_ = loadedAt_;"),
    "parts_of_the_order_not_aligned": (PLANNER, "loadedAt_ = Aligned(restCount_);", "loadedAt_ = restCount_;"),
    "parts_collected_at_once": (PLANNER, "        AscendC::PipeBarrier<PIPE_V>();\n", ""),
    "halves_of_a_pair_swapped": (PLANNER, "bit % 2 == 0 ? pairs", "bit % 2 != 0 ? pairs"),
    "empty_order_of_another": (PLANNER, "(slot + 1) << 16 | slot", "slot << 16 | (slot + 1)"),
    "nobodys_request_served": (PLANNER, "if (request_ < 0) {", "if (false) {"),
    "refused_request_stored": (
        PLANNER,
        "        if (refusal_ == RESIDENCY_REFUSED_NONE) {\n            Store(r);",
        "        if (refusal_ != RESIDENCY_REFUSED_TOKEN) {\n            Store(r);",
    ),
    "block_not_checked": (
        MISSES,
        "if (block < 0 || static_cast<uint64_t>(block) >= blockLimit_) {",
        "if (block < 0) {",
    ),
    "host_row_in_32_bits": (
        MISSES,
        "static_cast<uint64_t>(block) * blockSize_ + inBlock",
        "static_cast<uint64_t>(static_cast<uint32_t>(block) * blockSize_) + inBlock",
    ),
    "misses_of_a_chunk_forgotten": (MISSES, "        stored_ += pending_;\n", ""),
    "block_table_of_another_request": (MISSES, "request_ * rowStride_ + entry", "entry"),
    "list_begins_too_late": (LIST, "misses_ += misses;", "misses_ += misses + (misses == 3);"),
    "requests_behind_the_first_piece_forgotten": (LIST, "first < last;) {", "first == 0 && last != 0;) {"),
    "totals_without_those_before": (LIST, "ReadWide(words, 0) + hits_", "hits_"),
    "totals_read_before_they_are_there": (
        LIST,
        "        AscendC::WaitFlag<AscendC::HardEvent::MTE2_S>(fetched_);\n",
        "",
    ),
    "totals_of_the_first_core_alone": (LIST, "core == 0 ? t_.requests : end", "end"),
}


# Tests that catch most faults within a second: they go first.
QUICK = [
    "beyond",
    "absent",
    "negative",
    "counts",
    "cost_of",
    "tables",
    "pointers_refused",
    "pointers_strided",
    "one_entry",
    "residency",
]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def try_mutant(name, build, objects):
    """Returns (caught, what the tests said first, seconds)."""
    begin = time.monotonic()
    folder = build / "mutants" / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(KERNEL, folder / "op_kernel")
    file, text, replacement = MUTANTS[name]
    path = folder / "op_kernel" / file
    source = path.read_text()
    if source.count(text) != 1:
        raise SystemExit(f"{name}: the text to change occurs {source.count(text)} times in {file}")
    path.write_text(source.replace(text, replacement))
    glue = folder / "sparse_copy_sim.o"
    flags = ["-std=c++17", "-O1", "-pthread", "-w", f"-I{MODEL}", f"-I{folder / 'op_kernel'}"]
    compiled = run(["g++", *flags, "-c", MODEL / "kernels" / "sparse_copy_sim.cpp", "-o", glue])
    if compiled.returncode:
        raise SystemExit(f"{name}: does not compile\n{compiled.stdout}")
    linked = run(["g++", "-pthread", *objects, glue, "-o", folder / "tests"])
    if linked.returncode:
        raise SystemExit(f"{name}: does not link\n{linked.stdout}")
    try:
        for chosen in (QUICK, []):
            tests = run([folder / "tests", *chosen], env={**os.environ, "TEST_STOP": "1"}, timeout=300)
            if tests.returncode:
                break
        lines = [line.strip() for line in tests.stdout.splitlines()]
        said = next(
            (line for line in lines if ".cpp:" in line), lines[-1] if lines else f"exit code {tests.returncode}"
        )
        caught = tests.returncode != 0
    except subprocess.TimeoutExpired:
        caught, said = True, "ran too long"
    shutil.rmtree(folder)
    return caught, said, time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--objects", nargs="+", required=True, help="everything but the kernels")
    parser.add_argument("--names", nargs="*", help="only these")
    options = parser.parse_args()
    build = options.build.resolve()
    names = options.names or list(MUTANTS)
    missed = []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, (caught, said, seconds) in zip(
            names, pool.map(lambda n: try_mutant(n, build, options.objects), names), strict=True
        ):
            print(f"{'caught' if caught else 'MISSED'} {name} ({seconds:.1f} s): {said[:160]}", flush=True)
            missed += [] if caught else [name]
    print(f"{len(names) - len(missed)} passed, {len(missed)} failed")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
