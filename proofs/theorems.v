(* SPDX-License-Identifier: Apache-2.0
   The main theorems: their statements, and what they assume. "Closed under the global context" means: no axiom, nothing
   admitted. `make proofs` prints this and fails if a theorem is not closed. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token policies unanimous exchange combiners tree block propose decode.
From specagg Require Import counterexamples cuts coupled cos instances.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Check @probability_of_text.
Print Assumptions probability_of_text.

(* Token verification: token.v *)
Check @keep_or_replace_emits_pi.
Print Assumptions keep_or_replace_emits_pi.
Check @acceptance_is_1_minus_tv.
Print Assumptions acceptance_is_1_minus_tv.
Check @verify_token_emits_pi.
Print Assumptions verify_token_emits_pi.
Check @verify_match_emits_pi.
Print Assumptions verify_match_emits_pi.
Check @verify_token_is_expectation.
Print Assumptions verify_token_is_expectation.

(* Policies: policies.v *)
Check @target_if_law.
Print Assumptions target_if_law.
Check @mixture_law.
Print Assumptions mixture_law.
Check @ensemble_law.
Print Assumptions ensemble_law.
Check @normalised_law.
Print Assumptions normalised_law.
Check @minimum_law.
Print Assumptions minimum_law.
Check @maximum_law.
Print Assumptions maximum_law.
Check @softmax_of_law.
Print Assumptions softmax_of_law.
Check @token_cascade_law.
Print Assumptions token_cascade_law.
Check @token_cascade_rejection.
Print Assumptions token_cascade_rejection.
Check @lossy_law.
Print Assumptions lossy_law.
Check @exact_beta_exists.
Print Assumptions exact_beta_exists.
Check @printed_formula_is_a_law_iff.
Print Assumptions printed_formula_is_a_law_iff.
Check @lossy_exact.
Print Assumptions lossy_exact.
Check @target_if_frontier.
Print Assumptions target_if_frontier.
Check @ensemble_frontier.
Print Assumptions ensemble_frontier.
Check @lossy_frontier.
Print Assumptions lossy_frontier.

(* The Gumbel-max coupling: unanimous.v *)
Check @unanimous_winner.
Print Assumptions unanimous_winner.
Check @wins_normalised.
Print Assumptions wins_normalised.
Check @mixture_combines.
Print Assumptions mixture_combines.

(* The threshold exchange: exchange.v *)
Check @exchange_ends.
Print Assumptions exchange_ends.
Check @exchange_names.
Print Assumptions exchange_names.
Check @exchange_finds_winner.
Print Assumptions exchange_finds_winner.
Check @exchange_is_the_race.
Print Assumptions exchange_is_the_race.

(* Combiners that are increasing and 1-homogeneous: combiners.v *)
Check @minimum_combines.
Print Assumptions minimum_combines.
Check @maximum_combines.
Print Assumptions maximum_combines.
Check @power_mean_combines.
Print Assumptions power_mean_combines.
Check @negative_power_mean_combines.
Print Assumptions negative_power_mean_combines.
Check @geometric_combines.
Print Assumptions geometric_combines.
Check @rational_power.
Print Assumptions rational_power.
Check @rational_weights.
Print Assumptions rational_weights.

(* Trees: tree.v *)
Check @visit_delivers_its_claim.
Print Assumptions visit_delivers_its_claim.
Check @verify_tree_emits_pi.
Print Assumptions verify_tree_emits_pi.
Check @verify_tree_recursive_emits_pi.
Print Assumptions verify_tree_recursive_emits_pi.
Check @verify_tree_is_expectation.
Print Assumptions verify_tree_is_expectation.
Check @verify_tree_recursive_is_expectation.
Print Assumptions verify_tree_recursive_is_expectation.

(* Block verification: block.v *)
Check @block_is_verify_tree.
Print Assumptions block_is_verify_tree.
Check @verify_token_is_verify_tree_recursive.
Print Assumptions verify_token_is_verify_tree_recursive.
Check @verify_block_emits_pi.
Print Assumptions verify_block_emits_pi.
Check @verify_block_is_expectation.
Print Assumptions verify_block_is_expectation.
Check @block_accepts_at_least_token.
Print Assumptions block_accepts_at_least_token.

(* What drafts are drawn from: propose.v *)
Check @row_without_law.
Print Assumptions row_without_law.
Check @mapped_row_law.
Print Assumptions mapped_row_law.
Check @propose_children_emit.
Print Assumptions propose_children_emit.

(* Decoders: decode.v *)
Check @decode_has_law.
Print Assumptions decode_has_law.
Check @decode_probability.
Print Assumptions decode_probability.
Check @speculative_decode_has_law.
Print Assumptions speculative_decode_has_law.
Check @block_decode_has_law.
Print Assumptions block_decode_has_law.
Check @tree_decode_has_law.
Print Assumptions tree_decode_has_law.

(* Collaborative decoding: cos.v *)
Check @collaborative_turn_keeps_value.
Print Assumptions collaborative_turn_keeps_value.
Check @collaborative_turn_advances.
Print Assumptions collaborative_turn_advances.
Check @collaborative_decode_has_law.
Print Assumptions collaborative_decode_has_law.
Check @collaborative_decode_probability.
Print Assumptions collaborative_decode_probability.

(* The Gumbel-max coupling and a memory: coupled.v *)
Check @remembers_verified_is_pi.
Print Assumptions remembers_verified_is_pi.
Check @history_is_pi.
Print Assumptions history_is_pi.
Check @remembers_rejected_is_not_pi.
Print Assumptions remembers_rejected_is_not_pi.

(* What is not the law: counterexamples.v *)
Check @residual_of_p_is_not_pi.
Print Assumptions residual_of_p_is_not_pi.
Check @redraw_is_not_pi.
Print Assumptions redraw_is_not_pi.
Check @reused_noise_is_not_pi.
Print Assumptions reused_noise_is_not_pi.
Check @first_failure_is_not_pi.
Print Assumptions first_failure_is_not_pi.
Check @outside_claim_1_is_not_pi.
Print Assumptions outside_claim_1_is_not_pi.
Check @outside_claim_0_is_not_pi.
Print Assumptions outside_claim_0_is_not_pi.

(* Drafts that are cut: cuts.v *)
Check @verify_token_of_cut_emits_pi.
Print Assumptions verify_token_of_cut_emits_pi.
Check @verify_block_of_cut_emits_pi.
Print Assumptions verify_block_of_cut_emits_pi.
Check @kept_part_law.
Print Assumptions kept_part_law.
Check @draw_kept_part.
Print Assumptions draw_kept_part.
Check @keep_or_replace_kept_emits_pi.
Print Assumptions keep_or_replace_kept_emits_pi.
Check @nothing_kept_is_replaced.
Print Assumptions nothing_kept_is_replaced.
Check @continued_marked.
Print Assumptions continued_marked.
Check @verify_token_of_kept_emits_pi.
Print Assumptions verify_token_of_kept_emits_pi.
Check @verify_block_of_kept_emits_pi.
Print Assumptions verify_block_of_kept_emits_pi.
Check @verify_tree_of_kept_emits_pi.
Print Assumptions verify_tree_of_kept_emits_pi.
Check @verify_tree_recursive_of_kept_emits_pi.
Print Assumptions verify_tree_recursive_of_kept_emits_pi.
Check @dropped_if_short_is_not_pi.
Print Assumptions dropped_if_short_is_not_pi.
Check @redraw_of_refused_is_not_pi.
Print Assumptions redraw_of_refused_is_not_pi.
Check @stop_at_unlikely_is_not_pi.
Print Assumptions stop_at_unlikely_is_not_pi.
Check @smaller_vocabulary_is_not_pi.
Print Assumptions smaller_vocabulary_is_not_pi.

(* The hypotheses can hold: instances.v *)
Check @collaborative_instance_probability.
Print Assumptions collaborative_instance_probability.
Check @tree_instance.
Print Assumptions tree_instance.
Check @unanimous_instance.
Print Assumptions unanimous_instance.
Check @exchange_instance.
Print Assumptions exchange_instance.
Check @exact_beta_instance.
Print Assumptions exact_beta_instance.
