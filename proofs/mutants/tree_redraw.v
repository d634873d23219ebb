(* SPDX-License-Identifier: Apache-2.0
   After a child has failed, the node weighs all that it pi_left before, not (pi_left - L)+. *)
(* changes: tree.v *)
(* theorem: verify_tree_emits_pi *)
(* needs: tree *)
(* was:
      let left := residual 1 pi_left L in
      let failed
   now:
      let left := pi_left in
      let failed *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law tree.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Definition row2 (a b : rat) : bool -> rat := fun v => if v then a else b.
Lemma row2_law a b : 0 <= a -> 0 <= b -> a + b = 1 -> law (row2 a b).
Proof. by move=> a0 b0 e; split=> [[]|] //; rewrite /mass big_bool. Qed.
Definition half := row2 (1 / 2%:Q) (1 / 2%:Q).
Lemma half_law : law half. Proof. exact: row2_law. Qed.
Definition begins (s : seq bool) : rat := (head false s)%:R.
Lemma continued_0 (T : finType) (pi : seq T -> T -> rat) f :
  continued pi 1 f [::] = draw (pi [::]) (fun y => f [:: y]).
Proof. by []. Qed.
Lemma continued_1 (T : finType) (pi : seq T -> T -> rat) f y s : continued pi 1 f (y :: s) = f [:: y].
Proof. by rewrite /continued (eqP (_ : 1 - size (y :: s) == 0)%N) //= take0. Qed.
Arguments one_hot : simpl never.
Arguments half : simpl never. Arguments begins : simpl never.

Lemma counter : ~ forall (pi : seq bool -> bool -> rat) end_of_text bonus
  (d : seq bool -> drafting bool_finType [realFieldType of rat]),
  (forall s, law (pi s)) -> (forall s, draws_from_laws (d s)) ->
  emits pi (fun s V => drafted (d s) (Leaf _ _) (fun t => verify_tree pi end_of_text bonus t s V)).
Proof.
pose d := Draft [::] (one_hot [realFieldType of rat] true) (fun=> Done _ _).
have drawn (s : seq bool) : draws_from_laws d by split=> //; exact: one_hot_law.
move=> /(_ (fun=> half) pred0 predT (fun=> d) (fun=> half_law) drawn 1%N begins [::]);
rewrite /= draw_one_hot /verify_tree /=
  /finish /emitted /= /norm_or /mass /draw !big_bool.
by rewrite !continued_1 continued_0 /draw !big_bool => /eqP; vm_compute.
Qed.
