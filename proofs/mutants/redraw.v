(* SPDX-License-Identifier: Apache-2.0
   A rejected draft is replaced from pi, not from (pi - q)+. *)
(* changes: token.v *)
(* theorem: keep_or_replace_emits_pi *)
(* needs: token *)
(* was:
coin (share (pi y) (q y)) kept (draw (norm_or pi (residual 1 pi q)) replaced).
   now:
coin (share (pi y) (q y)) kept (draw pi replaced). *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token.
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

Lemma counter : ~ forall (pi q f : bool -> rat), law pi -> law q ->
  draw q (fun y => keep_or_replace pi q y (f y) f) = draw pi f.
Proof.
move=> /(_ half (one_hot [realFieldType of rat] true) (fun v => v%:R) half_law (one_hot_law _ true)).
by rewrite draw_one_hot /keep_or_replace /draw !big_bool => /eqP; vm_compute.
Qed.
