(* SPDX-License-Identifier: Apache-2.0
   Small cases, in rational numbers, where a changed procedure does not emit pi.
   The definitions are those of token.v, block.v and tree.v but for the line marked `changed`.

     residual_of_p_is_not_pi      a rejected draft is replaced from the target's residual (p - q)+, not from (pi - q)+
     redraw_is_not_pi             a rejected draft is replaced from pi itself
     reused_noise_is_not_pi       the residual is drawn with the random number that the draft was drawn with
     first_failure_is_not_pi      block verification (the traversal of a chain) stops at the first coin that fails
     outside_claim_1_is_not_pi    a token outside the support gets claim 1
     outside_claim_0_is_not_pi    a token outside the support gets claim 0 *)
From mathcomp Require Import all_ssreflect all_algebra.
From specagg Require Import law token tree block.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

(* Rows of two tokens, true and false; rows of three. *)
Definition row2 (a b : rat) : bool -> rat := fun v => if v then a else b.
Definition row3 (a b c : rat) : 'I_3 -> rat := fun v => nth 0 [:: a; b; c] v.
Definition token0 : 'I_3 := Ordinal (erefl : (0 < 3)%N = true).
Definition token1 : 'I_3 := Ordinal (erefl : (1 < 3)%N = true).
Definition token2 : 'I_3 := Ordinal (erefl : (2 < 3)%N = true).

(* The value of a text: 1 if it begins with the token y. The mean is the probability of y as first token. *)
Definition begins_with (T : finType) (y : T) (s : seq T) : rat := if s is z :: _ then (z == y)%:R else 0.
Definition is_token (T : finType) (y z : T) : rat := (z == y)%:R.

Lemma sum3 (f : 'I_3 -> rat) : \sum_v f v = f token0 + f token1 + f token2.
Proof. by rewrite !big_ord_recr big_ord0 /= add0r; congr (f _ + f _ + f _); apply: val_inj. Qed.

Lemma row2_law a b : 0 <= a -> 0 <= b -> a + b = 1 -> law (row2 a b).
Proof. by move=> a0 b0 e; split=> [[]|] //; rewrite /mass big_bool. Qed.

(* ---- what a rejected draft is replaced by ---------------------------------------------------------------------- *)

Definition keep_or_replace_by (T : finType) (r pi q : T -> rat) y (kept : rat) (replaced : T -> rat) : rat :=
  coin (share (pi y) (q y)) kept (draw r replaced).  (* changed: r *)

(* It is keep_or_replace where r is the normalised residual of pi. *)
Lemma keep_or_replace_by_residual (T : finType) (pi q : T -> rat) y kept replaced :
  keep_or_replace_by (norm_or pi (residual 1 pi q)) pi q y kept replaced = keep_or_replace pi q y kept replaced.
Proof. by []. Qed.

Section Replaced.
Let q := row2 (1 / 2%:Q) (1 / 2%:Q).
Let p := row2 (1 / 4%:Q) (3%:Q / 4%:Q).
Let pi := row2 (3%:Q / 4%:Q) (1 / 4%:Q).

Theorem residual_of_p_is_not_pi :
  draw q (fun y => keep_or_replace_by (norm_or p (residual 1 p q)) pi q y (is_token true y) (is_token true)) = 1 / 2%:Q
  /\ pi true = 3%:Q / 4%:Q.
Proof. by split=> //; rewrite /draw /keep_or_replace_by /norm_or /mass /draw !big_bool; vm_compute. Qed.
End Replaced.

Section Redrawn.
Let q := one_hot [realFieldType of rat] true.
Let pi := row2 (1 / 2%:Q) (1 / 2%:Q).

Theorem redraw_is_not_pi :
  draw q (fun y => keep_or_replace_by pi pi q y (is_token true y) (is_token true)) = 3%:Q / 4%:Q
  /\ pi true = 1 / 2%:Q.
Proof. by split=> //; rewrite /draw /keep_or_replace_by /draw !big_bool; vm_compute. Qed.
End Redrawn.

(* ---- reused noise ---------------------------------------------------------------------------------------------- *)

(* The first token whose cumulated probability exceeds u. *)
Definition inverse_transform (w : 'I_3 -> rat) (u : rat) : 'I_3 :=
  if u < w token0 then token0 else if u < w token0 + w token1 then token1 else token2.

(* The mean over u = 0, 1/4, 2/4, 3/4: enough, since all rows here are multiples of 1/4. *)
Definition mean_over_noise (f : rat -> rat) : rat :=
  (f 0 + f (1 / 4%:Q) + f (2%:Q / 4%:Q) + f (3%:Q / 4%:Q)) / 4%:Q.

Section Noise.
Let q := row3 (1 / 2%:Q) (1 / 4%:Q) (1 / 4%:Q).
Let p := row3 0 (1 / 2%:Q) (1 / 2%:Q).
(* u: the noise that the draft is drawn with. u': the noise for the residual. *)
Let round (u u' : rat) (v : 'I_3) : rat :=
  let y := inverse_transform q u in
  coin (share (p y) (q y)) (is_token v y) (is_token v (inverse_transform (norm_or p (residual 1 p q)) u')).

Theorem fresh_noise_is_pi :
  mean_over_noise (fun u => mean_over_noise (fun u' => round u u' token1)) = p token1.
Proof. by rewrite /mean_over_noise /round /inverse_transform /norm_or /mass !sum3; vm_compute. Qed.

Theorem reused_noise_is_not_pi :
  mean_over_noise (fun u => round u u token1) = 3%:Q / 4%:Q  (* changed: u twice *)
  /\ p token1 = 1 / 2%:Q.
Proof. by split=> //; rewrite /mean_over_noise /round /inverse_transform /norm_or /mass !sum3; vm_compute. Qed.
End Noise.

(* ---- stopping at the first failure ------------------------------------------------------------------------------- *)

(* The coins from the first token on, until one fails; n coins are left after i accepted tokens. Changed: last_accepted
   goes from the last coin to the first, until one succeeds. *)
Fixpoint until_failure (h e : nat -> rat) i n : rat :=
  if n is n'.+1 then coin (h i.+1) (until_failure h e i.+1 n') (e i) else e i.

Definition block_until_failure (T : finType) (pi : seq T -> T -> rat) bonus s drafted V : rat :=
  let d := usable drafted in until_failure (h pi s 1 d) (emission pi bonus s 1 d (emitted V)) 0 (size d).

Section FirstFailure.
Let p := row2 (1 / 2%:Q) (1 / 2%:Q).
Let pi (s : seq bool) := p.
Let bonus (s : seq bool) := true.
(* A lookup proposes `true true`. *)
Let q := one_hot [realFieldType of rat] true.
Let two_tokens := Propose q (fun=> Propose q (fun=> Stop _ _)).

Theorem all_coins_is_pi :
  propose two_tokens (fun drafted => verify_block pi bonus [::] drafted (begins_with true)) = p true.
Proof.
rewrite /= !draw_one_hot /verify_block /block /= /h /emission /left /claim /text /draw /norm_or /mass /=.
by rewrite !big_bool; vm_compute.
Qed.

Theorem first_failure_is_not_pi :
  propose two_tokens (fun drafted => block_until_failure pi bonus [::] drafted (begins_with true)) = 1 / 3%:Q
  /\ p true = 1 / 2%:Q.
Proof.
split=> //; rewrite /= !draw_one_hot /block_until_failure /= /h /emission /left /claim /text /draw /norm_or /mass /=.
by rewrite !big_bool; vm_compute.
Qed.
End FirstFailure.

(* ---- tokens outside the support ------------------------------------------------------------------------------- *)

(* As visit in tree.v, but a token outside the support gets the claim c, where visit leaves it out. *)
Fixpoint visit_outside (T : finType) (pi : seq T -> T -> rat) bonus (c : rat) t s a pi_left settled W fail : rat :=
  match t with
  | Leaf => coin a (finish pi bonus s pi_left settled W) fail
  | Child y L below rest =>
    let claim := if 0 < L y then share (pi_left y) (L y) else c in  (* changed *)
    let left := residual 1 pi_left L in
    let failed := mass left + (1 - a) in
    let settle :=
      visit_outside pi bonus c rest s (if 0 < failed then mass left / failed else 1) (fun v => left v / failed) true W
        fail in
    visit_outside pi bonus c below (rcons s y) claim (fun v => claim * pi (rcons s y) v) false W settle
  end.

Section Outside.
Let q0 := row2 (4%:Q / 5%:Q) (1 / 5%:Q).
Let p0 := row2 (1 / 2%:Q) (1 / 2%:Q).
Let q1 := row2 0 1.
Let pi (s : seq bool) := if s is [::] then p0 else q1.
Let bonus (s : seq bool) := true.
(* The second token is `true`, but q1 has no probability for it. *)
Let draft (y : bool) := Child y q0 (Child true q1 (Leaf _ _) (Leaf _ _)) (Leaf _ _).
Let first_is_true (s : seq bool) (next : seq bool) : rat := begins_with true (s ++ next).

Theorem outside_left_out_is_pi :
  draw q0 (fun y => visit pi pred0 bonus (draft y) [::] 1 p0 false first_is_true 0) = p0 true.
Proof. by rewrite /= /finish /draw /norm_or /mass /= !big_bool; vm_compute. Qed.

Theorem outside_claim_1_is_not_pi :
  draw q0 (fun y => visit_outside pi bonus 1 (draft y) [::] 1 p0 false first_is_true 0) = 4%:Q / 5%:Q
  /\ p0 true = 1 / 2%:Q.
Proof. by split=> //; rewrite /= /finish /draw /norm_or /mass /= !big_bool; vm_compute. Qed.

Theorem outside_claim_0_is_not_pi :
  draw q0 (fun y => visit_outside pi bonus 0 (draft y) [::] 1 p0 false first_is_true 0) = 0
  /\ p0 true = 1 / 2%:Q.
Proof. by split=> //; rewrite /= /finish /draw /norm_or /mass /= !big_bool; vm_compute. Qed.
End Outside.
