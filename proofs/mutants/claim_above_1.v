(* SPDX-License-Identifier: Apache-2.0
   A claim of block verification is not cut at 1. *)
(* changes: block.v *)
(* theorem: verify_block_is_expectation *)
(* needs: token tree block *)
(* was:
claims (rcons s y) (share (w * pi s y) (q y)) rest else [::]).
   now:
claims (rcons s y) (w * pi s y / q y) rest else [::]). *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token tree block.
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

Definition pi := row2 (3%:Q / 4%:Q) (1 / 4%:Q).
Arguments pi : simpl never.
Lemma counter : ~ forall (pi : seq bool -> bool -> rat) bonus s drafted, (forall s, law (pi s)) ->
  expectation (verify_block pi bonus s drafted).
Proof.
move=> h; have pi_law : law pi by exact: row2_law.
have [ge0 _ _] := h (fun=> pi) predT [::] [:: (half, Some true)] (fun=> pi_law).
have := ge0 (fun s => (size s == 1%N)%:R) (fun s => ler0n _ _).
rewrite /verify_block /block /= /h /emission /left /claim /text /emitted /draw /norm_or /mass /=.
by rewrite !big_bool; vm_compute.
Qed.
