(* SPDX-License-Identifier: Apache-2.0
   The draft ends before a token, because of that token: a drafter that stops drops the token it drew last. *)
(* changes: token.v *)
(* theorem: verify_token_emits_pi *)
(* needs: token *)
(* was:
  | Propose q next => draw q (fun y => propose (next y) (fun rest => F ((q, Some y) :: rest)))
   now:
  | Propose q next => draw q (fun y =>
      if next y is Stop then F [::] else propose (next y) (fun rest => F ((q, Some y) :: rest))) *)
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

Lemma counter : ~ forall (pi : seq bool -> bool -> rat) bonus
  (draft : seq bool -> drafter bool_finType [realFieldType of rat]),
  (forall s, law (pi s)) -> (forall s, honest (draft s)) ->
  emits pi (fun s V => propose (draft s) (fun drafted => verify_token pi bonus s drafted V)).
Proof.
pose draft := Propose half (fun y => if y then Stop _ _ else Outside half None [::]).
have drawn (s : seq bool) : honest draft by split=> [|[]] //; exact: half_law.
move=> /(_ (fun=> half) predT (fun=> draft) (fun=> half_law) drawn 1%N begins [::]);
rewrite /= /draw !big_bool /= /draw_bonus /keep_or_replace /draw !big_bool.
by rewrite !continued_0 !continued_1 /norm_or /mass /draw !big_bool => /eqP; vm_compute.
Qed.
