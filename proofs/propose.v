(* SPDX-License-Identifier: Apache-2.0
   The laws that drafts are drawn from (include/specagg/draft/row_without.hpp, mapped_row.hpp, propose.hpp): each is a
   law, so tree.v covers trees of such children.

     row_without_law        q without the siblings before it, renormalised: drafts without replacement
     mapped_row_law         a row of another vocabulary, restricted to shared tokens (token-level intersection)
     propose_children_emit  b children of one node, each in one of three ways: drawn with replacement, without the
                            children before it, or chosen (any token, for example the likeliest); the rows may be those
                            of different models

   What it does not cover: that the chosen tokens are the likeliest. The law does not depend on it. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law tree.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Propose.
Variables (T : finType) (R : realFieldType).
Implicit Types (y v : T) (q : T -> R) (s taken : seq T).

Lemma scaled_law (w : T -> R) : (forall v, 0 <= w v) -> 0 < mass w -> law (fun v => w v / mass w).
Proof.
move=> w0 m0; split=> [v|]; first by rewrite divr_ge0 // ltW.
by rewrite /mass -mulr_suml divff // gt_eqF.
Qed.

Definition without q taken : T -> R := fun v => if v \in taken then 0 else q v.
Definition row_without q taken : T -> R := fun v => without q taken v / mass (without q taken).

Lemma row_without_law q taken : law q -> 0 < mass (without q taken) -> law (row_without q taken).
Proof. by move=> hq; apply: scaled_law => v; rewrite /without; case: ifP => // _; apply: law_ge0. Qed.

(* D: the draft's vocabulary. map d: the target's token, None if it has none. *)
Definition shared (D : finType) (map : D -> option T) (q : D -> R) : T -> R :=
  fun v => \sum_(d | map d == Some v) q d.
Definition mapped_row (D : finType) (map : D -> option T) (q : D -> R) : T -> R :=
  fun v => shared map q v / mass (shared map q).

Lemma mapped_row_law (D : finType) (map : D -> option T) (q : D -> R) :
  law q -> 0 < mass (shared map q) -> law (mapped_row map q).
Proof. by move=> hq; apply: scaled_law => v; apply: sumr_ge0 => d _; apply: law_ge0. Qed.

(* How a child is proposed, from its row. *)
Inductive proposal := Independent (q : T -> R) | Sampled (q : T -> R) | Chosen (y : T).

(* One child after another behind the node at `path`; it ends where nothing is left to draw. *)
Fixpoint propose_children (path : seq nat) (kinds : seq proposal) taken : drafting T R :=
  if kinds is kind :: rest then
    let next y := propose_children path rest (rcons taken y) in
    match kind with
    | Independent q => Draft path q next
    | Sampled q => if 0 < mass (without q taken) then Draft path (row_without q taken) next else Done T R
    | Chosen y => Draft path (one_hot R y) next
    end
  else Done T R.

Definition row_is_law kind : Prop :=
  match kind with Independent q => law q | Sampled q => law q | Chosen _ => True end.

Lemma propose_children_from_laws path (kinds : seq proposal) taken :
  (forall kind, List.In kind kinds -> row_is_law kind) -> draws_from_laws (propose_children path kinds taken).
Proof.
elim: kinds taken => [|kind rest ih] taken //= h.
have hk := h _ (or_introl erefl); have hr k (i : List.In k rest) := h k (or_intror i).
case: kind hk {h} => [q hq|q hq|y _] /=.
- by split=> // y _; apply: ih.
- by case: ifP => // m0; split=> [|y _]; [exact: row_without_law | exact: ih].
- by split=> [|z _]; [exact: one_hot_law | exact: ih].
Qed.

Theorem propose_children_emit (pi : seq T -> T -> R) end_of_text bonus (kinds : seq T -> seq proposal) :
  (forall s, law (pi s)) -> (forall s kind, List.In kind (kinds s) -> row_is_law kind) ->
  emits pi (fun s V => drafted (propose_children [::] (kinds s) [::]) (Leaf T R)
    (fun t => verify_tree pi end_of_text bonus t s V)).
Proof.
move=> hpi hk; apply: (verify_tree_emits_pi end_of_text bonus hpi (d := fun s => propose_children [::] (kinds s) [::])).
by move=> s; apply: propose_children_from_laws => kind; apply: hk.
Qed.

End Propose.
