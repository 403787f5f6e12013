#include "abi/lookup_run.h"

#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "abi/lookup.h"
#include "base/clock.h"
#include "chosen_ids.h"
#include "results.h"
#include "tiers/row_tier.h"

namespace sharded_infer {
namespace {

// One group of a run.
class GroupLookup {
 public:
  GroupLookup(const LookupGroup& group, LookupWork* work) : group_(group), work_(work) {}

  // Chooses each step's ids, and begins to read their rows. Returns `LookupRun::saved`.
  std::int64_t start() {
    const std::vector<std::int64_t> firsts = first_ids(group_);
    const OwnIds own = room(firsts);
    std::int64_t saved = 0, ids = 0, entries = 0;
    steps_.resize(static_cast<std::size_t>(group_.plan->step_count));
    for (std::size_t number = 0; number < steps_.size(); ++number) {
      const double began = monotonic();
      const LookupStep& step = group_.plan->steps[number];
      const LookupPart& part = *step.part;
      const OwnIds to{own.values + ids, own.lengths + entries * group_.bags,
                      own.weights == nullptr ? nullptr : own.weights + ids};
      const LookupChosen chosen = choose(group_, part, firsts, to);
      Started& started = steps_[number];
      if (part.is_adjacent) {
        started.ids = {group_.values + chosen.first_id,
                       group_.lengths + part.entries[0].feature * group_.bags,
                       group_.weights == nullptr ? nullptr : group_.weights + chosen.first_id};
      } else {
        started.ids = {to.values, to.lengths, to.weights};
        ids += chosen.ids;
        entries += part.entry_count;
      }
      if (step.tiers != nullptr) read_rows(step, chosen.ids, started);
      saved += chosen.saved;
      work_[number] = {part.rank, chosen.ids, chosen.row_bytes, monotonic() - began};
    }
    return saved;
  }

  // Runs the steps; sets `run`'s end where it fails.
  void run(LookupRun& run) {
    const LookupPlan& plan = *group_.plan;
    clear_sums(group_);
    float* apart = group_.apart;
    for (std::size_t number = 0; number < steps_.size(); ++number) {
      const LookupStep& step = plan.steps[number];
      if (step.tiers != nullptr && !wait(steps_[number], run)) {
        run.step = static_cast<std::int64_t>(number);
        return;
      }
      // Without the wait: a rank is busy while it computes.
      const double began = monotonic();
      if (step.placed != nullptr && group_.bags == group_.rows) {
        look_up(step, steps_[number], step.placed, group_.out, group_.stride);
      } else {
        const LookupPart& part = *step.part;
        const bool waits = step.placed == nullptr && plan.is_merged;
        float* const to = waits ? apart : result_of(part.width);
        look_up(step, steps_[number], step.features, to, part.width);
        if (waits) {
          apart += group_.bags * part.width;
        } else {
          check_rows(write_result(group_, {&part, to, part.width}), run);
        }
      }
      work_[number].seconds += monotonic() - began;
    }
    if (!plan.is_merged) check_rows(divide_means(group_), run);
    for (std::int64_t at = 0; at < plan.watch_count; ++at) {
      const LookupWatch& watch = plan.watches[at];
      // Reading a byte that is lost sets the mark; where it was zero, it reads as it did before.
      if (*watch.place != static_cast<std::uint8_t>(watch.byte) || *watch.lost != 0)
        run.end = kFileLost;
    }
  }

 private:
  struct Started {
    Ids ids;
    std::unique_ptr<const std::uint8_t*[]> places;  // of rows in tiers
    std::unique_ptr<TierLookup> rows;
  };

  // Memory for the ids of all steps that copy theirs.
  OwnIds room(const std::vector<std::int64_t>& firsts) {
    std::int64_t ids = 0, entries = 0;
    for (std::int64_t number = 0; number < group_.plan->step_count; ++number) {
      const LookupPart& part = *group_.plan->steps[number].part;
      if (part.is_adjacent) continue;
      entries += part.entry_count;
      for (std::int64_t entry = 0; entry < part.entry_count; ++entry) {
        const std::int64_t feature = part.entries[entry].feature;
        ids += firsts[feature + 1] - firsts[feature];
      }
    }
    if (entries == 0) return {};
    numbers_.reset(new std::int64_t[static_cast<std::size_t>(ids + entries * group_.bags)]);
    if (group_.weights != nullptr) weights_.reset(new float[static_cast<std::size_t>(ids)]);
    return {numbers_.get(), numbers_.get() + ids, weights_.get()};
  }

  void read_rows(const LookupStep& step, std::int64_t count, Started& started) {
    started.rows = std::make_unique<TierLookup>();
    started.places.reset(new const std::uint8_t*[static_cast<std::size_t>(count)]);
    const std::int64_t *ids = started.ids.values, *lengths = started.ids.lengths;
    const std::uint8_t** places = started.places.get();
    for (std::int64_t entry = 0; entry < step.part->entry_count; ++entry) {
      const std::int64_t own = std::accumulate(lengths, lengths + group_.bags, std::int64_t{0});
      const LookupTier& tier = step.tiers[entry];
      started.rows->find(*static_cast<std::shared_ptr<RowTier>*>(tier.tier), tier.first_row,
                         step.features[entry].overlay, ids, own, places);
      ids += own;
      places += own;
      lengths += group_.bags;
    }
    started.rows->submit();
  }

  static bool wait(const Started& started, LookupRun& run) {
    run.seconds = std::max(0.0, std::min(run.deadline - monotonic(), run.most_seconds));
    const MissingRow missing = started.rows->wait(run.seconds);
    if (missing.why == kThere) return true;
    run.end = kRowsMissing;
    run.why = missing.why;
    run.error = missing.error;
    run.entry = missing.tier;
    run.row = missing.row;
    run.count = missing.count;
    return false;
  }

  void look_up(const LookupStep& step, const Started& started, const Feature* features, float* out,
               std::int64_t stride) const {
    const Lookup lookup{features,
                        step.part->entry_count,
                        group_.bags,
                        started.ids.values,
                        started.ids.lengths,
                        started.ids.weights,
                        out,
                        stride,
                        step.format,
                        0,
                        started.places.get()};
    sharded_infer_lookup(group_.plan->instruction_set, &lookup);
  }

  // Memory of a step's result, which the next one overwrites.
  float* result_of(std::int64_t width) {
    const std::int64_t numbers = group_.bags * width;
    if (numbers > result_numbers_) {
      result_.reset(new float[static_cast<std::size_t>(numbers)]);
      result_numbers_ = numbers;
    }
    return result_.get();
  }

  void check_rows(std::int64_t rows, LookupRun& run) const {
    if (rows == group_.rows) return;
    run.end = kWrongRepeats;
    run.row = rows;
  }

  const LookupGroup& group_;
  LookupWork* const work_;
  std::vector<Started> steps_;
  std::unique_ptr<std::int64_t[]> numbers_;
  std::unique_ptr<float[]> weights_, result_;
  std::int64_t result_numbers_ = 0;
};

}  // namespace
}  // namespace sharded_infer

using namespace sharded_infer;

extern "C" void sharded_infer_lookup_run(LookupRun* run) try {
  run->saved = 0;
  run->end = kLookedUp;
  std::vector<GroupLookup> lookups;
  lookups.reserve(static_cast<std::size_t>(run->group_count));
  LookupWork* work = run->work;
  // All reads are started before the first is awaited.
  for (std::int64_t number = 0; number < run->group_count; ++number) {
    lookups.emplace_back(run->groups[number], work);
    run->saved += lookups.back().start();
    work += run->groups[number].plan->step_count;
  }
  for (run->group = 0; run->group < run->group_count; ++run->group) {
    lookups[static_cast<std::size_t>(run->group)].run(*run);
    if (run->end != kLookedUp) return;
  }
} catch (const std::bad_alloc&) { run->end = kNoMemory; }
