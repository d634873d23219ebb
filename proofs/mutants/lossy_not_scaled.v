(* SPDX-License-Identifier: Apache-2.0
   The residual of `lossy` is not scaled to the rejected mass (beta that is not exact). *)
(* changes: policies.v *)
(* theorem: lossy_law *)
(* needs: policies *)
(* was:
(if 0 < S then rejected_mass / S * positive (beta^-1 * p v - q v) else rejected_mass * p v).
   now:
(if 0 < S then positive (beta^-1 * p v - q v) else rejected_mass * p v). *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law policies.
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

Lemma counter : ~ forall (alpha beta : rat) (q p : bool -> rat), 0 <= alpha < 1 -> law q -> law p ->
  law (lossy alpha q p beta).
Proof.
move=> /(_ (1 / 2%:Q) 1 _ half isT (one_hot_law _ true) half_law) [_].
by rewrite /mass /lossy /residual_mass /rejected_mass /mass !big_bool => /eqP; vm_compute.
Qed.
