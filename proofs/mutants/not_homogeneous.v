(* SPDX-License-Identifier: Apache-2.0
   F need not be 1-homogeneous. *)
(* changes: unanimous.v *)
(* theorem: unanimous_winner *)
(* needs: unanimous *)
(* was:
  forall t x, 0 < t -> (forall k, 0 <= x k) -> F (fun k => t * x k) = t * F x.
   now:
  forall t x, 0 < t -> (forall k, 0 <= x k) -> F (fun k => t * x k) = F (fun k => t * x k). *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import unanimous.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Definition F (x : 'I_1 -> rat) : rat := x ord0 + 1.
Definition p (k : 'I_1) (v : 'I_2) : rat := nth 0 [:: 3%:Q / 4%:Q; 1 / 4%:Q] v.
Definition E (v : 'I_2) : rat := nth 0 [:: 2%:Q; 1] v.
Lemma counter : ~ forall (F : ('I_1 -> rat) -> rat) (p : 'I_1 -> 'I_2 -> rat) (E : 'I_2 -> rat) i,
  increasing F -> homogeneous F -> (forall k v, 0 <= p k v) -> (forall v, 0 < E v) -> (forall k, wins E (p k) i) ->
  (exists v, 0 < combined F p v) -> wins E (combined F p) i.
Proof.
move=> /(_ F p E ord0) h.
have [] := h _ _ _ _ _ _.
- by move=> x y xy; rewrite /F ler_add2r; case/andP: (xy ord0).
- by [].
- by move=> k [[|[|v]] hv].
- by case=> [[|[|v]] hv].
- by move=> k; split=> // [[[|[|v]] hv]].
- by exists ord0.
by move=> _ /(_ (Ordinal (erefl : (1 < 2)%N = true)) isT); vm_compute.
Qed.
