(* SPDX-License-Identifier: Apache-2.0
   Coupled verification with a memory (include/specagg/verify/coupled.hpp, decode/speculative.hpp). The noise of a
   position is used again: drafted tokens behind a rejection were drawn with the noise that later rounds draw their
   tokens with. So what decides where rounds begin may remember some things and not others.

     remembers_verified_is_pi       a token drawn from pi(d) with the noise of position t has the law pi(d), if d, all
                                    that was decided, does not depend on that noise
     history_ignores                d is such where it is made, token by token, of the noise of earlier positions: of
                                    tokens and rows up to the first rejected one of each round
     remembers_rejected_is_not_pi   a case in which d has seen a token that was drafted behind a rejection

   A draw from a law w with noise a is any function `choose w a` for which each token has the probability w(v): the race
   of coupled.hpp, or an inverse transform. The noise of one position has finitely many, equally likely values. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law counterexamples.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section SharedNoise.
Variables (T U : finType) (R : realFieldType) (N : nat) (a0 : U) (choose : (T -> R) -> U -> T).
Notation noise := {ffun 'I_N -> U}.
Implicit Types (u : noise) (t : 'I_N) (a : U) (v : T).

(* Over all values of the noise of one position, and of all positions. *)
Definition draws (w : T -> R) : Prop := forall v, \sum_a (choose w a == v)%:R = #|U|%:R * w v.
Definition mean (F : noise -> R) : R := (\sum_u F u) / #|{: noise}|%:R.

(* Other noise at position t. *)
Definition put u t a : noise := [ffun i => if i == t then a else u i].
Definition ignores (X : Type) t (d : noise -> X) : Prop := forall u a, d (put u t a) = d u.

Lemma put_at u t a : put u t a t = a. Proof. by rewrite ffunE eqxx. Qed.
Lemma put_back u t a : put (put u t a) t (u t) = u.
Proof. by apply/ffunP=> i; rewrite !ffunE; case: eqP => [->|]. Qed.

Lemma sum_put t (F : noise -> R) : \sum_u \sum_a F (put u t a) = #|U|%:R * \sum_u F u.
Proof.
rewrite pair_big /=.
pose swap (x : noise * U) := (put x.1 t x.2, x.1 t).
have swapK : involutive swap by move=> [u a]; rewrite /swap /= put_back put_at.
rewrite (reindex_inj (inv_inj swapK)) /=.
rewrite (eq_bigr (fun x : noise * U => F x.1)) => [|[u a] _]; last by rewrite /= put_back.
rewrite -(pair_big xpredT xpredT (fun u _ => F u)) /= big_distrr /=.
by apply: eq_bigr => u _; rewrite sumr_const mulr_natl.
Qed.

(* A: any event, or any value, that does not depend on this noise either: for instance, that the text so far is s. *)
Theorem remembers_verified_is_pi (S : Type) t v (d : noise -> S) (pi : S -> T -> R) (A : noise -> R) :
  ignores t d -> ignores t A -> (forall s, draws (pi s)) ->
  mean (fun u => (choose (pi (d u)) (u t) == v)%:R * A u) = mean (fun u => pi (d u) v * A u).
Proof.
move=> hd hA hpi; rewrite /mean; congr (_ / _).
have nz : #|U|%:R != 0 :> R by rewrite pnatr_eq0 -lt0n; apply/card_gt0P; exists a0.
apply: (mulfI nz); rewrite -(sum_put t) big_distrr /=; apply: eq_bigr => u _.
rewrite mulrA -(hpi (d u)) big_distrl /=; apply: eq_bigr => a _.
by rewrite hd hA put_at.
Qed.

(* What is remembered before position n: made of the noise of the positions before it. *)
Section History.
Variables (S : Type) (s0 : S) (next : S -> U -> S).
Definition noise_at u n : U := if insub n is Some i then u i else a0.
Fixpoint history n u : S := if n is m.+1 then next (history m u) (noise_at u m) else s0.

Lemma history_ignores t n : (n <= t)%N -> ignores t (history n).
Proof.
elim: n => // n ih lt u a /=; rewrite (ih (ltnW lt) u a); congr (next _ _).
rewrite /noise_at; case: insubP => // i _ ei; rewrite ffunE.
by case: eqP => // e; move: lt; rewrite -ei e ltnn.
Qed.

Corollary history_is_pi t v (pi : S -> T -> R) (A : S -> R) :
  (forall s, draws (pi s)) ->
  mean (fun u => (choose (pi (history t u)) (u t) == v)%:R * A (history t u)) =
  mean (fun u => pi (history t u) v * A (history t u)).
Proof.
move=> hpi; apply: (remembers_verified_is_pi v _ (A := fun u => A (history t u))) => //.
  exact: history_ignores.
by move=> u a /=; rewrite history_ignores.
Qed.
End History.
End SharedNoise.

(* Round 1 drafts three tokens at positions 1, 2, 3, and its first one is rejected: it emits one token. The third was
   drawn from q with the noise u of position 3. A length that remembers it drafts one token in round 2, which is
   accepted, or none: so round 3 begins at position 4 or 3, and pi at position 3 depends on which round it is of. *)
Section Remembered.
Definition inverse2 (w : bool -> rat) (u : rat) : bool := u < w true.
Let q := row2 (1 / 2%:Q) (1 / 2%:Q).
Let pi (began : nat) : bool -> rat :=
  if (began == 2)%N then row2 (1 / 2%:Q) (1 / 2%:Q) else row2 (3%:Q / 4%:Q) (1 / 4%:Q).
Let began (third_draft : bool) : nat := if third_draft then 2%N else 3%N.
Let third_token (remembered : rat) (u : rat) : bool := inverse2 (pi (began (inverse2 q remembered))) u.

Theorem remembers_other_noise_is_pi :
  mean_over_noise (fun r => mean_over_noise (fun u => (third_token r u)%:R)) =
  mean_over_noise (fun r => pi (began (inverse2 q r)) true).
Proof. by rewrite /mean_over_noise; vm_compute. Qed.

Theorem remembers_rejected_is_not_pi :
  mean_over_noise (fun u => (third_token u u)%:R) = 3%:Q / 4%:Q
  /\ mean_over_noise (fun u => pi (began (inverse2 q u)) true) = 5%:Q / 8%:Q.
Proof. by split; rewrite /mean_over_noise; vm_compute. Qed.
End Remembered.
