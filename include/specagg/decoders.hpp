// SPDX-License-Identifier: Apache-2.0
// specagg decides which tokens to emit, given rows of logits from two or more models.
//
// The order of these headers is the order in which the data flows. Each header includes only
// headers above it:
//   logits --process--> row --policy--> pi --verify--> accepted prefix + one token + status
//          --decode: commit, roll back
#pragma once
#include <specagg/detail/hide_macros.hpp>
#include <specagg/specagg.hpp>
#include <specagg/logit_source.hpp>
#include <specagg/text.hpp>
#include <specagg/plan/side.hpp>
#include <specagg/plan/acceptance.hpp>
#include <specagg/plan/acceptance_record.hpp>
#include <specagg/plan/speedup.hpp>
#include <specagg/plan/draft_length.hpp>
#include <specagg/plan/load.hpp>
#include <specagg/plan/tree_growth.hpp>
#include <specagg/plan/link.hpp>
#include <specagg/plan/dragon.hpp>
#include <specagg/plan/profiler.hpp>
#include <specagg/draft/row_without.hpp>
#include <specagg/draft/propose.hpp>
#include <specagg/draft/drafter.hpp>
#include <specagg/draft/model.hpp>
#include <specagg/draft/suffix_automaton.hpp>
#include <specagg/draft/lookup.hpp>
#include <specagg/draft/ngram_counts.hpp>
#include <specagg/draft/counts.hpp>
#include <specagg/draft/first_of.hpp>
#include <specagg/draft/vocabulary_map.hpp>
#include <specagg/draft/mapped_row.hpp>
#include <specagg/draft/retokenised.hpp>
#include <specagg/draft/mapped.hpp>
#include <specagg/draft/string_match.hpp>
#include <specagg/draft/head.hpp>
#include <specagg/decode/request.hpp>
#include <specagg/decode/length.hpp>
#include <specagg/decode/workspace.hpp>
#include <specagg/decode/tree_workspace.hpp>
#include <specagg/decode/collaborative_workspace.hpp>
#include <specagg/decode/together_text.hpp>
#include <specagg/decode/rounds.hpp>
#include <specagg/decode/speculative.hpp>
#include <specagg/decode/together.hpp>
#include <specagg/decode/tree.hpp>
#include <specagg/decode/collaborative.hpp>
#include <specagg/decode/cascade.hpp>
#include <specagg/decode/bild.hpp>
#include <specagg/decode/stop.hpp>
#include <specagg/decode/measured_calls.hpp>
#include <specagg/detail/restore_macros.hpp>
