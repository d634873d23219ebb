(* SPDX-License-Identifier: Apache-2.0
   The theorems speak of something. For a vocabulary of two tokens, a pi that depends on the text, uniform draft rows
   and drafts of several tokens, all of their hypotheses hold. Each lemma is a main theorem with nothing left to
   assume. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token tree block decode propose cos.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Instances.
Variable R : realFieldType.

Definition uniform : bool -> R := fun=> 2%:R^-1.
(* 1/3 and 2/3; `true` has 2/3 after `true` and at the beginning, else 1/3. *)
Definition pi (s : seq bool) : bool -> R := fun v => if v == last true s then 2%:R / 3%:R else 3%:R^-1.

Lemma uniform_law : law uniform.
Proof.
split=> [v|]; first by rewrite invr_ge0 ler0n.
by rewrite /mass big_bool /uniform /= [RHS]splitr mul1r.
Qed.

Lemma pi_law s : law (pi s).
Proof.
split=> [v|]; first by rewrite /pi; case: ifP => _; rewrite ?mulr_ge0 // ?invr_ge0 ler0n.
have e : 2%:R / 3%:R + 3%:R^-1 = 1 :> R by rewrite -[X in _ + X]mul1r -mulrDl -mulrSr divff // pnatr_eq0.
by rewrite /mass big_bool /pi /=; case: (last true s) => //=; rewrite addrC.
Qed.

Let always (s : seq bool) : bool := true.
Let ends (y : bool) : bool := false.

(* Three drafted tokens; a fourth if the first is `true`. *)
Definition three_or_four : drafter bool_finType R :=
  Propose uniform (fun y => Propose uniform (fun _ => Propose uniform (fun _ =>
    if y then Propose uniform (fun _ => Stop _ _) else Stop _ _))).

Lemma three_or_four_honest : honest three_or_four.
Proof.
by split=> [|y]; [exact: uniform_law | split=> [|_]; [exact: uniform_law | split=> [|_]; [exact: uniform_law |
   case: y => //=; split=> [|_] //; exact: uniform_law]]].
Qed.

(* Two children of the root, and one below the first; that one only if the two are different. *)
Definition small_tree : drafting bool_finType R :=
  Draft [::] uniform (fun y => Draft [::] uniform (fun z =>
    if y != z then Draft [:: 0%N] uniform (fun _ => Done _ _) else Done _ _)).

Lemma small_tree_from_laws : draws_from_laws small_tree.
Proof.
by split=> [|y _]; [exact: uniform_law | split=> [|z _]; [exact: uniform_law |
   case: (y != z) => //=; split=> [|_ _] //; exact: uniform_law]].
Qed.

Lemma speculative_instance (f : seq bool -> R) :
  decode (speculative_round pi always (fun _ _ => three_or_four) (fun m _ _ _ => m)) 5 5 tt [::] f =
  continued pi 5 f [::].
Proof.
by apply: (speculative_decode_has_law pi_law (fun _ => erefl) _ 5 tt [::]) => m s; exact: three_or_four_honest.
Qed.

Lemma block_instance (f : seq bool -> R) :
  decode (block_round pi always (fun _ _ => three_or_four) (fun m _ _ _ => m)) 5 5 tt [::] f =
  continued pi 5 f [::].
Proof. by apply: (block_decode_has_law pi_law (fun _ => erefl) _ 5 tt [::]) => m s; exact: three_or_four_honest. Qed.

Lemma tree_instance (f : seq bool -> R) :
  decode (tree_round pi ends always (fun _ _ => small_tree) (fun m _ _ _ => m)) 5 5 tt [::] f =
  continued pi 5 f [::].
Proof.
by apply: (tree_decode_has_law ends pi_law (fun _ => erefl) _ 5 tt [::]) => m s; exact: small_tree_from_laws.
Qed.

(* Three models, of which the second drafts nothing at first and more in each later turn; a drafter that proposes up to
   two tokens. *)
Lemma collaborative_instance (f : seq bool -> R) :
  collaborative_decode 3 (fun _ _ => uniform) pi ends false (fun m _ k => if k == 1%N then m else 2%N)
    (fun _ _ => 2%N) (fun _ _ _ => Some uniform) (fun m _ => m.+1) 5 30 (State 0%N [::] [::] (fun=> 0%N)) f =
  continued pi 5 f [::].
Proof.
apply: collaborative_decode_has_law => //; first exact: pi_law; first by move=> *; exact: uniform_law.
by move=> m s c q [<-]; exact: uniform_law.
Qed.

(* And what they say is not 0 = 0: the text `true false` has probability 2/9. *)
Lemma collaborative_instance_probability :
  collaborative_decode 3 (fun _ _ => uniform) pi ends false (fun m _ k => if k == 1%N then m else 2%N)
    (fun _ _ => 2%N) (fun _ _ _ => Some uniform) (fun m _ => m.+1) 2 15 (State 0%N [::] [::] (fun=> 0%N))
    (fun u => (u == [:: true; false])%:R) = 2%:R / 9%:R.
Proof.
have := @collaborative_decode_probability bool_finType R nat 3 (fun _ _ => uniform) pi ends false
  (fun m _ k => if k == 1%N then m else 2%N) (fun _ _ => 2%N) (fun _ _ _ => Some uniform) (fun m _ => m.+1) 0%N
  (fun=> 0%N) [:: true; false].
rewrite /= => -> //; last by move=> m s c q [<-]; exact: uniform_law.
- by rewrite /pi /= mulr1 -mulrA -invfM -natrM.
- exact: pi_law.
- by move=> *; exact: uniform_law.
Qed.

End Instances.
