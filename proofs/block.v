(* SPDX-License-Identifier: Apache-2.0
   Block verification (include/specagg/verify/block.hpp) of chains of drafts. Sun et al. 2024 (arXiv:2403.10444) for
   pi = p; here for any law pi.

     block_is_verify_tree                        it decides every draft as the traversal of a chain does
     verify_token_is_verify_tree_recursive       token verification is recursive rejection of a chain
     verify_block_emits_pi                       it emits exactly pi, for drafts of any length, also with tokens
                                               outside the support
     block_accepts_at_least_token                its expected number of accepted tokens is at least that of token
                                                 verification, for every drafter and every law pi

   A draft, its drafter and tokens outside the support are those of token.v. *)
From mathcomp Require Import all_ssreflect all_algebra.
From mathcomp Require Import ring.
From specagg Require Import law token tree.
Set Implicit Arguments.
Unset Strict Implicit.
Unset Printing Implicit Defensive.
Import Order.TTheory GRing.Theory Num.Theory.
Local Open Scope ring_scope.

Section Block.
Variables (T : finType) (R : realFieldType).
Implicit Types (y z v : T) (q L pi_left : T -> R) (a w fail : R) (s : seq T) (V : seq T -> R) (W : seq T -> seq T -> R)
  (d : seq ((T -> R) * T)) (drafted : seq (drafted_token T R)).

Variables (pi : seq T -> T -> R) (bonus : seq T -> bool).

(* ---- block verification ---------------------------------------------------------------------------------------- *)

(* The draft up to its first token outside the support. *)
Fixpoint usable drafted : seq ((T -> R) * T) :=
  if drafted is (q, Some y) :: rest then if 0 < q y then (q, y) :: usable rest else [::] else [::].

(* w[0] = w;  w[i] = min(1, w[i-1] pi_i(y_i) / q_i(y_i)). *)
Fixpoint claims s w d : seq R :=
  w :: (if d is (q, y) :: rest then claims (rcons s y) (share (w * pi s y) (q y)) rest else [::]).

Section Draft.
Variables (s : seq T) (w : R) (d : seq ((T -> R) * T)).
Definition text i : seq T := s ++ take i [seq y.2 | y <- d].
Definition claim i : R := nth 0 (claims s w d) i.
Definition left i : T -> R := residual (claim i) (pi (text i)) (nth (fun=> 0) [seq y.1 | y <- d] i).

(* h[i] = S / (S + 1 - w[i]), S = sum (w[i] pi_{i+1} - q_{i+1})+;  h[g] = w[g]. *)
Definition h i : R :=
  if (i < size d)%N then
    let all := mass (left i) + (1 - claim i) in if 0 < all then mass (left i) / all else 1
  else claim i.

(* What is emitted if i tokens are accepted. W: see tree.v. *)
Definition emission W i : R :=
  if (i < size d)%N then draw (norm_or (pi (text i)) (left i)) (fun z => W (text i) [:: z])
  else if bonus (text i) then draw (pi (text i)) (fun z => W (text i) [:: z])
  else W (text i) [::].
End Draft.

(* The largest i with U_i < h[i], else 0; then e i. *)
Fixpoint last_accepted (h e : nat -> R) i : R := if i is i'.+1 then coin (h i) (e i) (last_accepted h e i') else e 0%N.

Definition block s drafted W : R :=
  let d := usable drafted in last_accepted (h s 1 d) (emission s 1 d W) (size d).

Definition verify_block s drafted V : R := block s drafted (emitted V).

(* ---- a chain is a tree ----------------------------------------------------------------------------------------- *)

Fixpoint chain drafted : tree T R :=
  if drafted is (q, Some y) :: rest then Child y q (chain rest) (Leaf T R) else Leaf T R.

Hypothesis pi_law : forall s, law (pi s).

Lemma norm_or_scale other pi_left (c : R) v : 0 < c ->
  norm_or other (fun u => pi_left u / c) v = norm_or other pi_left v.
Proof.
move=> c0; have e : mass (fun u => pi_left u / c) = mass pi_left / c by rewrite /mass mulr_suml.
rewrite /norm_or e pmulr_lgt0 ?invr_gt0 //; case: ifP => // m0.
by rewrite invf_div mulrA divfK // gt_eqF.
Qed.

(* The coins from i = n to 0, as in last_accepted, then `fail`. *)
Fixpoint tested (h e : nat -> R) n fail : R :=
  if n is n'.+1 then coin (h n) (e n) (tested h e n' fail) else coin (h 0%N) (e 0%N) fail.

Lemma tested_shift (h e : nat -> R) n fail :
  tested h e n.+1 fail = tested (fun i => h i.+1) (fun i => e i.+1) n (coin (h 0%N) (e 0%N) fail).
Proof. by elim: n => //= n ->. Qed.

Lemma tested_ext (h h' e e' : nat -> R) n fail :
  (forall i, h i = h' i) -> (forall i, e i = e' i) -> tested h e n fail = tested h' e' n fail.
Proof. by move=> hh ee; elim: n => [|n ih] /=; rewrite hh ee ?ih. Qed.

Lemma last_accepted_tested (h e : nat -> R) n : h 0%N = 1 -> last_accepted h e n = tested h e n 0.
Proof. by move=> h0; elim: n => [|n ih] /=; rewrite ?ih // /coin h0 mul1r subrr mul0r addr0. Qed.

Notation visit := (visit pi pred0 bonus).

Lemma tested_is_visit s w drafted W fail :
  0 <= w -> w <= 1 ->
  tested (h s w (usable drafted)) (emission s w (usable drafted) W) (size (usable drafted)) fail =
  visit (chain drafted) s w (fun v => w * pi s v) false W fail.
Proof.
elim: drafted s w fail => [|[q [y|]] rest ih] s w fail w0 w1 /=.
- by rewrite /h /emission /text /claim /= cats0.
- case: ifP => qy; last by rewrite /= /h /emission /text /claim /= cats0.
  have c0 : 0 <= share (w * pi s y) (q y) by rewrite share_ge0 // mulr_ge0 // law_ge0.
  have c1 : share (w * pi s y) (q y) <= 1 by rewrite share_le1 // mulr_ge0 // law_ge0.
  rewrite [size _]/= tested_shift -(ih _ _ _ c0 c1).
  have e v : residual w (pi s) q v = residual 1 (fun u => w * pi s u) q v by rewrite /residual mul1r.
  have m : mass (residual w (pi s) q) = mass (residual 1 (fun u => w * pi s u) q) by apply: eq_bigr => v _.
  set m1 := mass (residual 1 (fun u => w * pi s u) q) in m *; set all := m1 + (1 - w).
  rewrite (_ : coin (h s w _ 0) _ fail = coin (if 0 < all then m1 / all else 1)
    (draw (norm_or (pi s) (fun v => residual 1 (fun u => w * pi s u) q v / all)) (fun z => W s [:: z])) fail).
    by apply: tested_ext => i; rewrite /h /emission /left /text /claim /= cat_rcons.
  rewrite /h /emission /left /text /claim /= cats0 m -/all; congr (coin _ _ _); apply: draw_row_ext => v.
  have m0 : 0 <= m1 by apply: residual_mass_ge0.
  have w2 : 0 <= 1 - w by rewrite subr_ge0.
  case: (ltrP 0 all) => a0.
    rewrite norm_or_scale // /norm_or -/m1 m.
    by case: ifP => // _; rewrite e.
  have all0 : all = 0 by apply/le_anti; rewrite a0 addr_ge0.
  move/eqP: all0 (all0); rewrite {1}/all paddr_eq0 // => /andP [/eqP m_0 _] ->.
  rewrite /norm_or m m_0 ltxx ifF // /mass big1 ?ltxx // => u _.
  by rewrite invr0 mulr0.
- by rewrite /= /h /emission /text /claim /= cats0.
Qed.

Lemma visit_left_ext t s a pi_left pi_left' settled W fail :
  (forall v, pi_left v = pi_left' v) -> visit t s a pi_left settled W fail = visit t s a pi_left' settled W fail.
Proof.
elim: t a pi_left pi_left' settled => [|y L below _ rest ih] a pi_left pi_left' settled e /=.
  congr (coin _ _ _); rewrite /finish; case: settled => //; apply: draw_row_ext => v; rewrite /norm_or.
  by rewrite (_ : mass pi_left = mass pi_left') ?e //; apply: eq_bigr => u _.
have r v : residual 1 pi_left L v = residual 1 pi_left' L v by rewrite /residual e.
have m : mass (residual 1 pi_left L) = mass (residual 1 pi_left' L) by apply: eq_bigr => v _.
rewrite e m; case: ifP => // _; last exact: ih.
rewrite (ih _ _ (fun v => residual 1 pi_left' L v / (mass (residual 1 pi_left' L) + (1 - a)))) //.
by move=> v; rewrite r.
Qed.

(* Block verification decides a draft as the traversal decides the chain. W: whatever is measured. *)
Theorem block_is_verify_tree s drafted W : block s drafted W = visit (chain drafted) s 1 (pi s) false W 0.
Proof.
rewrite /block last_accepted_tested.
  rewrite tested_is_visit ?ler01 //; apply: visit_left_ext => v; exact: mul1r.
rewrite /h /claim; case: ifP; case: (usable drafted) => [|[q y] u] //= _.
by rewrite subrr addr0; case: ltrP => // m0; rewrite divff // gt_eqF.
Qed.

(* ---- the law ---------------------------------------------------------------------------------------------------- *)

Lemma weighs_share s y q w : 0 <= w ->
  0 <= share (w * pi s y) (q y) /\ share (w * pi s y) (q y) <= 1.
Proof. by move=> w0; rewrite share_ge0 ?share_le1 // mulr_ge0 // law_ge0. Qed.

Lemma settle_value s w q V fail : promised pi V -> law q -> weighs w (fun v => w * pi s v) ->
  0 < failure (fun v => w * pi s v) q w ->
  let pi_left v := w * pi s v in
  visit (Leaf T R) s (if 0 < failure pi_left q w then mass (residual 1 pi_left q) / failure pi_left q w else 1)
    (fun v => residual 1 pi_left q v / failure pi_left q w) true (emitted V) fail =
  draw (fun v => residual 1 pi_left q v / failure pi_left q w) (fun z => V (rcons s z))
  + (1 - mass (residual 1 pi_left q) / failure pi_left q w) * fail.
Proof. by move=> hV hq ow f0 pi_left; rewrite f0 (visit_leaf pred0 bonus fail hV (weighs_after ow f0)). Qed.

Lemma visit_chain (D : drafter T R) s w V fail :
  0 <= w -> w <= 1 -> honest D -> promised pi V ->
  propose D (fun drafted => visit (chain drafted) s w (fun v => w * pi s v) false (emitted V) fail) =
  coin w (V s) fail.
Proof.
move=> w0 w1 hD hV.
have leaf u a f : 0 <= a -> a <= 1 -> visit (Leaf T R) u a (fun v => a * pi u v) false (emitted V) f = coin a (V u) f.
  by move=> a0 a1; rewrite (visit_leaf pred0 bonus f hV) ?draw_row_scale -?hV //; apply: weighs_claim.
elim: D s w w0 w1 fail hD => [|q [y|] more|q next ih] s w w0 w1 fail; try by move=> *; apply: leaf.
  by move=> /= qy; rewrite qy ltxx; apply: leaf.
move=> [hq hn]; rewrite [LHS]/=.
have ow := weighs_claim pi_law s w0 w1.
rewrite -[RHS]leaf // (visit_leaf pred0 bonus fail hV ow) //.
rewrite -(child_pays (s := s) (V := V) (fail := fail) hq ow (settle_value fail hV hq ow)).
apply: eq_bigr => y _; case: (ltrP 0 (q y)) => qy; last first.
  have -> : q y = 0 by apply/le_anti; rewrite qy law_ge0.
  by rewrite !mul0r.
have [c0 c1] := weighs_share s y q w0.
by rewrite -(ih y (rcons s y) _ c0 c1 _ (hn y)).
Qed.

Theorem verify_block_emits_pi (draft : seq T -> drafter T R) :
  (forall s, honest (draft s)) ->
  emits pi (fun s V => propose (draft s) (fun drafted => verify_block s drafted V)).
Proof.
move=> hd; apply: emits_of_promised => // V s hV.
rewrite (_ : propose _ _ =
  propose (draft s) (fun drafted => visit (chain drafted) s 1 (fun v => 1 * pi s v) false (emitted V) 0)).
  by rewrite visit_chain ?ler01 // /coin mul1r subrr mul0r addr0.
apply: propose_ext => drafted; rewrite /verify_block block_is_verify_tree; apply: visit_left_ext => v.
by rewrite mul1r.
Qed.

Theorem verify_block_is_expectation s drafted : expectation (verify_block s drafted).
Proof.
have [ge0 one linear] := verify_tree_is_expectation pred0 bonus pi_law (chain drafted) s.
by split=> *; rewrite /verify_block !block_is_verify_tree; [apply: ge0 | apply: one | apply: linear].
Qed.

(* ---- recursive rejection of a chain is token verification ------------------------------------------------------- *)

Theorem verify_token_is_verify_tree_recursive s drafted V :
  verify_token pi bonus s drafted V = verify_tree_recursive pi pred0 bonus (chain drafted) s V.
Proof.
rewrite /verify_tree_recursive; elim: drafted s => [|[q [y|]] rest ih] s /=; try by
  rewrite /draw_bonus /emitted cats0; case: (bonus s) => //; apply: draw_ext => z; rewrite cats1.
case: ifP => _; last by
  rewrite /draw_bonus /emitted cats0; case: (bonus s) => //; apply: draw_ext => z; rewrite cats1.
rewrite /keep_or_replace -ih; congr (coin _ _ _).
have m0 := residual_mass_ge0 1 (pi s) q; case: (ltrP 0 (mass (residual 1 (pi s) q))) => m1.
  rewrite (draw_row_ext _ (fun v => norm_or_scale (pi s) _ v m1)).
  by apply: draw_ext => z; rewrite /emitted cats1.
have e : mass (residual 1 (pi s) q) = 0 by apply/le_anti; rewrite m0 m1.
rewrite e (draw_row_ext (w' := pi s)); last by move=> v; rewrite /norm_or e ltxx.
rewrite (draw_row_ext (w := norm_or _ _) (w' := pi s)).
  by apply: draw_ext => z; rewrite /emitted cats1.
move=> v; rewrite /norm_or /mass big1 ?ltxx // => u _; by rewrite invr0 mulr0.
Qed.

(* ---- accepted tokens -------------------------------------------------------------------------------------------- *)

(* The expected number of accepted tokens of a draft. *)
Definition accepted_block s drafted : R := block s drafted (fun accepted _ => (size accepted)%:R - (size s)%:R).

Fixpoint accepted_token s drafted : R :=
  if drafted is (q, Some y) :: rest then
    if 0 < q y then share (pi s y) (q y) * (1 + accepted_token (rcons s y) rest) else 0
  else 0.

(* The same as counted by the walks: with a bonus, one token more than accepted is emitted. *)
Lemma accepted_token_counts s drafted :
  (forall s, bonus s) ->
  verify_token pi bonus s drafted (fun t => (size t)%:R) = (size s)%:R + 1 + accepted_token s drafted.
Proof.
move=> hb; have b u : draw_bonus pi bonus u (fun t => (size t)%:R) = (size u)%:R + 1.
  rewrite /draw_bonus hb -[RHS](draw_law_const _ (pi_law u)); apply: draw_ext => z.
  by rewrite size_rcons mulrSr.
elim: drafted s => [|[q [y|]] rest ih] s /=; rewrite ?b ?addr0 //.
case: ifP => _; last by rewrite addr0.
rewrite /keep_or_replace ih size_rcons.
rewrite (_ : draw _ _ = (size s)%:R + 1).
  by rewrite /coin mulrSr; ring.
by rewrite -[RHS](draw_law_const _ (norm_or_law (pi_law s) (@residual_ge0 _ _ 1 (pi s) q)));
  apply: draw_ext => z; rewrite size_rcons mulrSr.
Qed.

(* The accepted tokens behind a node with claim w, of a chain that D drafts there. *)
Fixpoint gain (D : drafter T R) s w : R :=
  if D is Propose q next then
    draw q (fun y => share (w * pi s y) (q y) + gain (next y) (rcons s y) (share (w * pi s y) (q y)))
  else 0.

Fixpoint token_gain (D : drafter T R) s : R :=
  if D is Propose q next then
    draw q (fun y => share (pi s y) (q y) * (1 + token_gain (next y) (rcons s y)))
  else 0.

Lemma finish_size u pi_left b n : (forall v, 0 <= pi_left v) ->
  finish pi bonus u pi_left b (fun accepted _ => (size accepted)%:R - n) = (size u)%:R - n.
Proof.
move=> o0; rewrite /finish; case: b; last by case: (bonus u); rewrite // draw_law_const.
by rewrite draw_law_const //; apply: norm_or_law.
Qed.

Lemma visit_chain_size (D : drafter T R) s w n fail : 0 <= w -> w <= 1 -> honest D ->
  propose D (fun drafted =>
    visit (chain drafted) s w (fun v => w * pi s v) false (fun accepted _ => (size accepted)%:R - n) fail) =
  coin w ((size s)%:R - n) fail + gain D s w.
Proof.
have leaf u a f : 0 <= a ->
  visit (Leaf T R) u a (fun v => a * pi u v) false (fun accepted _ => (size accepted)%:R - n) f
  = coin a ((size u)%:R - n) f.
  move=> a0; apply: (congr1 (fun x => coin a x f) (@finish_size u (fun v => a * pi u v) false n _)) => v.
  by rewrite mulr_ge0 // law_ge0.
elim: D s w fail => [|q [y|] more|q next ih] s w fail w0 w1.
- by move=> _; rewrite addr0; apply: leaf.
- by move=> /= qy; rewrite qy ltxx addr0; apply: leaf.
- by move=> _; rewrite addr0; apply: leaf.
move=> [hq hn]; rewrite [LHS]/= [gain _ _ _]/=.
have ow := weighs_claim pi_law s w0 w1.
pose pi_left v := w * pi s v.
pose settle := visit (Leaf T R) s
  (if 0 < failure pi_left q w then mass (residual 1 pi_left q) / failure pi_left q w else 1)
  (fun v => residual 1 pi_left q v / failure pi_left q w) true (fun accepted _ => (size accepted)%:R - n) fail.
transitivity (draw q (fun y => coin (share (pi_left y) (q y)) ((size s)%:R - n) settle
  + (share (pi_left y) (q y) + gain (next y) (rcons s y) (share (pi_left y) (q y))))).
  apply: eq_bigr => y _; case: (ltrP 0 (q y)) => qy; last first.
    have -> : q y = 0 by apply/le_anti; rewrite qy law_ge0.
    by rewrite !mul0r.
  have [c0 c1] := weighs_share s y q w0.
  congr (_ * _); rewrite [LHS](ih y (rcons s y) _ settle c0 c1 (hn y)) size_rcons mulrSr /coin -/(pi_left y).
  by ring.
rewrite draw_add; congr (_ + _).
rewrite (@child_pays T R pi_left q w s (fun=> (size s)%:R - n) settle fail hq ow).
  by rewrite draw_const /coin; case: ow => _ ->.
move=> f0; rewrite /settle f0 draw_const.
rewrite [LHS](congr1 (fun x => coin (mass (residual 1 pi_left q) / failure pi_left q w) x fail)
  (@finish_size s (fun v => residual 1 pi_left q v / failure pi_left q w) true n _)).
  by rewrite /coin /mass -mulr_suml.
by move=> v; rewrite divr_ge0 ?residual_ge0 // ltW.
Qed.

Lemma propose_accepted_block (D : drafter T R) s : honest D ->
  propose D (accepted_block s) = gain D s 1.
Proof.
move=> hD; rewrite -[RHS]add0r -[X in X + _](subrr ((size s)%:R : R)).
rewrite -[X in X + _](_ : coin 1 ((size s)%:R - (size s)%:R) 0 = _); last by rewrite /coin subrr; ring.
rewrite -(visit_chain_size s _ 0 ler01 (lexx 1) hD); apply: propose_ext => drafted.
rewrite /accepted_block block_is_verify_tree; apply: visit_left_ext => v.
by rewrite mul1r.
Qed.

Lemma propose_affine (D : drafter T R) (c e : R) (F : seq (drafted_token T R) -> R) : honest D ->
  propose D (fun l => c * (e + F l)) = c * (e + propose D F).
Proof.
elim: D F => [|? ? ?|q next ih] F //= [hq hn].
rewrite (draw_ext _ (fun y => ih y _ (hn y))) draw_scale; congr (_ * _).
by rewrite draw_add draw_law_const.
Qed.

Lemma propose_accepted_token (D : drafter T R) s : honest D ->
  propose D (accepted_token s) = token_gain D s.
Proof.
elim: D s => [|q [y|] more|q next ih] s //=; first by move=> ->; rewrite ltxx.
move=> [hq hn]; apply: eq_bigr => y _; case: (ltrP 0 (q y)) => qy; last first.
  have -> : q y = 0 by apply/le_anti; rewrite qy law_ge0.
  by rewrite !mul0r.
by rewrite propose_affine // ih.
Qed.

Lemma gain_ge (D : drafter T R) s (t w : R) : 0 <= t -> t <= w -> w <= 1 -> honest D ->
  t * token_gain D s <= gain D s w.
Proof.
elim: D s t w => [|? ? ?|q next ih] s t w t0 tw w1 /=; rewrite ?mulr0 //.
move=> [hq hn]; rewrite -draw_scale; apply: ler_sum => y _.
have [qy|qy] := ltrP 0 (q y); last first.
  have -> : q y = 0 by apply/le_anti; rewrite qy law_ge0.
  by rewrite !mul0r.
rewrite ler_pmul2l // mulrA mulrDr mulr1.
have w0 := le_trans t0 tw; have p0 := law_ge0 y (pi_law s).
have s0 : 0 <= share (pi s y) (q y) by apply: share_ge0.
have s1 : share (pi s y) (q y) <= 1 by apply: share_le1.
have le : t * share (pi s y) (q y) <= share (w * pi s y) (q y).
  rewrite [leRHS]share_min ?mulr_ge0 // le_minr; apply/andP; split.
    by rewrite mulr_ile1 // (le_trans tw).
  rewrite -mulrA share_min //; apply: ler_pmul => //; first by rewrite -share_min.
  by rewrite le_minl lexx orbT.
have [c0 c1] := weighs_share s y q w0.
by apply: ler_add => //; apply: ih => //; apply: mulr_ge0.
Qed.

(* Block verification accepts at least as many tokens in expectation as token verification. *)
Theorem block_accepts_at_least_token (D : drafter T R) s : honest D ->
  propose D (accepted_token s) <= propose D (accepted_block s).
Proof.
move=> hD; rewrite propose_accepted_token // propose_accepted_block //.
by rewrite -[leLHS]mul1r; apply: gain_ge => //; apply: ler01.
Qed.

End Block.
