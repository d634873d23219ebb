(* SPDX-License-Identifier: Apache-2.0
   The theorems speak of something. For a vocabulary of two tokens, a pi that depends on the text, uniform draft rows
   and drafts of several tokens, all of their hypotheses hold. Each lemma is a main theorem with nothing left to
   assume. *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token policies tree block decode propose cos unanimous exchange combiners.
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

(* A draft is certain of a token that has 1/2 in p: `lossy` with alpha = 0 may reject it, and has an exact beta. *)
Lemma exact_beta_instance :
  exists beta, 1 <= beta /\ residual_mass (one_hot R true) uniform beta^-1 = rejected_mass 0 (one_hot R true) uniform.
Proof.
apply: exact_beta_exists; rewrite ?lexx ?ltr01 //; [exact: one_hot_law | exact: uniform_law |].
rewrite /rejected_mass big_bool ltr_paddr ?positive_ge0 // /positive lt_maxr /lenient_p subr0 divr1 /one_hot eqxx.
by rewrite subr_gt0 /uniform invf_lt1 ?ltr0n // ltr1n.
Qed.

(* ---- unanimity and the exchange ---------------------------------------------------------------------------------- *)

(* Two sites, three tokens: 3 1 2 and 1 3 2, each over 6. *)
Definition site_row (k : 'I_2) : 'I_3 -> R :=
  fun v => (nth 0%N (if k == ord0 then [:: 3; 1; 2]%N else [:: 1; 3; 2]%N) v)%:R / 6%:R.
Definition no_noise : 'I_3 -> R := fun=> 1.

Lemma site_row_ge0 k v : 0 <= site_row k v. Proof. by rewrite divr_ge0 ?ler0n. Qed.

Let first : 'I_3 := ord0.
Let third : 'I_3 := Ordinal (erefl : (2 < 3)%N = true).

Lemma least_2 (x : 'I_2 -> R) : least x = Num.min (x ord0) (x (Ordinal (erefl : (1 < 2)%N = true))).
Proof.
rewrite /least !big_ord_recl big_ord0 minCA minC [Num.min (x ord0) (x ord0)]minxx.
by congr Num.min; congr x; apply: val_inj.
Qed.

(* With this noise both sites have the winner 2, so their harmonic mean has it. *)
Definition noise : 'I_3 -> R := fun v => (nth 0%N [:: 4; 4; 1]%N v)%:R.

Lemma unanimous_instance :
  wins noise (combined (negative_power_mean (fun x : R => x) (fun x => x) (fun _ : 'I_2 => 2%:R^-1)) site_row) third.
Proof.
have half0 : 0 <= 2%:R^-1 :> R by rewrite invr_ge0 ler0n.
have half1 : \sum_(k < 2) 2%:R^-1 = 1 :> R by rewrite !big_ord_recr big_ord0 /= add0r [RHS]splitr mul1r.
have [F_increasing F_homogeneous] := negative_power_mean_combines (power_1 R) (fun=> half0) half1.
have six : 0 < 6%:R^-1 :> R by rewrite invr_gt0 ltr0n.
apply: (unanimous_winner F_increasing F_homogeneous); first exact: site_row_ge0.
- by case=> [[|[|[|j]]] hj] //; rewrite /noise /= ltr0n.
- move=> k; rewrite /wins /before /score /site_row /noise; split.
    by rewrite mulr_gt0 // ltr0n; case: k => [[|[|k]] hk].
  have four : 0 < 4%:R :> R by rewrite ltr0n.
  move=> j ne; apply/orP; left; rewrite divr1 ltr_pdivr_mulr; last by case: j ne => [[|[|[|j]]] hj].
  rewrite mulrAC ltr_pmul2r // -natrM ltr_nat.
  by case: j ne => [[|[|[|j]]] hj]; case: k => [[|[|k]] hk].
have pos k : 0 < site_row k third by rewrite mulr_gt0 // ltr0n; case: k => [[|[|k]] hk].
exists third; rewrite /combined /negative_power_mean ifT; last by apply/forallP => k; rewrite pos orbT.
by rewrite invr_gt0 !big_ord_recl big_ord0 addr0 addr_gt0 // mulr_gt0 ?invr_gt0 ?ltr0n.
Qed.

(* Without noise the sites have the winners 0 and 1, the minimum has 2: the exchange ends with it. *)
Lemma exchange_instance :
  exists st, exchange (@least R 1) site_row no_noise 4 = Some st /\ best st = Some third.
Proof.
have [F_increasing F_homogeneous] := minimum_combines R 1.
apply/(exchange_is_the_race F_increasing F_homogeneous); first exact: site_row_ge0.
- by move=> v; apply: ltr01.
- by [].
have six : 0 < 6%:R^-1 :> R by rewrite invr_gt0 ltr0n.
have e v : combined (@least R 1) site_row v = (minn (nth 0%N [:: 3; 1; 2]%N v) (nth 0%N [:: 1; 3; 2]%N v))%:R / 6%:R.
  rewrite /combined least_2 /site_row /= -minr_pmull ?invr_ge0 ?ler0n //; congr (_ * _).
  by rewrite minEle ler_nat; case: leqP.
rewrite /wins e; split; first by rewrite mulr_gt0 // ltr0n.
case=> [[|[|[|j]]] hj] // ne; rewrite /before /score !e !divr1 ltr_pmul2r //= ltr_nat //.
Qed.
End Instances.
